//! What a training loop keeps beside its tensors: which samples are used, what a usual weight is, and the program's bytes.
//!
//! It rides in the `extra` bytes of the state, so it is elected, healed and saved with the tensors, and all members hold
//! the same one. A commit changes it by numbers that every contributor learned in that very commit; nobody else is asked.
//!
//! **The tally.** Beside the gradients each member reduces a short list of numbers: its weight, and how many samples it
//! took, at its own place among the crew. The mean over the contributors says what all took together. Who was lost
//! contributes nothing, so its place holds zero, and its samples become holes of the [`Ledger`]. The list is filled up to whole
//! cache lines: it goes round in front of the gradients, and they are to lie where they lay without it.
//!
//! What a tally says comes from others, and one faulty member can make it say anything. A step whose weights make no mean,
//! or whose samples are more than its crew may take, is *void*: it is committed and changes no tensor. Every contributor
//! holds the same tally, to the bit, so all find the same.
//!
//! **Weights.** The mean that a program wants is `sum(weight * gradient) / sum(weight)`. A ring gives plain means, and
//! multiplying a gradient costs a pass over memory. So weights are taken relative to a *reference* that all agree on: the
//! mean weight of the last step. As long as every member's weight is what it was, nothing is multiplied at all.

use super::ledger::{HOLES_MAX, InvalidLedger, Ledger};
use minicbor::{CborLen, Decode, Encode};

/// How bytes begin that are a chronicle. Others are a program's own.
const MARK: &[u8] = b"outlast-elastic/1\n";

/// Numbers of a tally come in multiples of this, a cache line.
const LINE: usize = 64 / size_of::<f64>();

/// Relative weights so close to one are one: a rounding error is not worth a pass over memory.
const NEGLIGIBLE: f64 = 1e-12;

/// What travels along with the tensors of a training loop.
#[derive(Clone, Debug, PartialEq, Encode, Decode, CborLen)]
pub struct Chronicle {
    /// Which samples are used.
    #[n(0)]
    pub ledger: Ledger,
    /// The mean weight of the last step.
    #[n(1)]
    reference: f64,
    /// The program's own bytes.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub extra: Vec<u8>,
}

/// Why a step cannot be what a member asks for. Nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidStep {
    /// A weight that means nothing.
    #[error("weight={0}: a weight is a finite number, zero or more")]
    Weight(f64),
    /// More numbers than a ledger can keep apart if some are not used.
    #[error(
        "{0} samples in one step: with {1} members each may take {max}; let a number stand for several samples",
        max = samples_max(*.1)
    )]
    TooManySamples(u64, usize),
}

/// Why a step that was committed changes nothing. The same on every contributor.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VoidStep {
    /// All weights together are nothing, or no number. The samples were looked at, and are used.
    #[error("the weights of all contributors together are 0 or beyond counting: there is no mean")]
    Weights,
    /// Somebody claims samples that nobody can have taken. None is used.
    #[error(
        "the member at place {place} is said to have taken {taken} samples, where each may take {most}: a contributor is \
         faulty, and the step changes nothing"
    )]
    Samples {
        /// Whose count it is, by its place in the crew.
        place: usize,
        /// How many.
        taken: f64,
        /// How many there may be.
        most: u64,
    },
}

/// What the contributors to a commit told of themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// What the mean that came out must be multiplied by; none if it is what was asked for.
    pub factor: Option<f64>,
    /// How many samples the member at each place took; zero for who was lost, and for all if they cannot be counted.
    pub taken: Vec<u64>,
    /// Why there is no mean, if there is none.
    pub void: Option<VoidStep>,
    mean: f64,
}

/// How many numbers each member of a crew may take in one step: all of them can be told apart, if none is used.
fn samples_max(crew: usize) -> u64 {
    (HOLES_MAX / crew.max(1)) as u64
}

impl Chronicle {
    /// Nothing is used yet.
    pub fn new(extra: Vec<u8>) -> Self {
        Self { ledger: Ledger::default(), reference: 1.0, extra }
    }

    /// Whether the extra bytes of a state hold a training's chronicle, and not only a program's own bytes.
    pub fn is_in(bytes: &[u8]) -> bool {
        bytes.starts_with(MARK)
    }

    /// Reads the extra bytes of a state: a chronicle, or the program's own bytes at the beginning of one.
    pub fn of(bytes: &[u8]) -> Result<Self, InvalidLedger> {
        let Some(rest) = bytes.strip_prefix(MARK) else { return Ok(Self::new(bytes.to_vec())) };
        let Self { ledger, reference, extra } = minicbor::decode(rest).map_err(|_| InvalidLedger)?;
        let ledger = ledger.checked()?;
        let usable = reference.is_finite() && reference > 0.0;
        usable.then_some(Self { ledger, reference, extra }).ok_or(InvalidLedger)
    }

    /// As it travels. Replaces what `bytes` held; every step writes one, and needs no new memory for it.
    pub fn encode_to(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.extend_from_slice(MARK);
        minicbor::encode(self, bytes).expect("a Vec takes every byte");
    }

    /// Whether a member of a crew of that size may take so many numbers in one step.
    pub fn check_samples(count: u64, crew: usize) -> Result<(), InvalidStep> {
        if count <= samples_max(crew) { Ok(()) } else { Err(InvalidStep::TooManySamples(count, crew)) }
    }

    /// What a gradient of that weight is multiplied by before it is added to the others'.
    pub fn scale(&self, weight: f64) -> Result<f64, InvalidStep> {
        if !weight.is_finite() || weight < 0.0 {
            return Err(InvalidStep::Weight(weight));
        }
        let scale = weight / self.reference;
        if !scale.is_finite() {
            return Err(InvalidStep::Weight(weight));
        }
        Ok(if (scale - 1.0).abs() <= NEGLIGIBLE { 1.0 } else { scale })
    }

    /// What a member at that place of a crew contributes beside its gradients.
    pub fn tally(scale: f64, taken: u64, place: usize, crew: usize) -> Vec<f64> {
        let mut tally = vec![0.0; (crew + 1).next_multiple_of(LINE)];
        (tally[0], tally[place + 1]) = (scale, taken as f64);
        tally
    }

    /// What the mean of the tallies of so many contributors says of a crew.
    pub fn told(mean: &[f64], crew: usize, contributors: usize) -> Told {
        let (scale, most) = (mean[0], samples_max(crew));
        // A mean of whole numbers below 2^53, times their number, is off by less than a half.
        let counts = mean[1..=crew].iter().map(|share| (share * contributors as f64).round());
        // Whatever is no number is in no range.
        let is_beyond = |(_, taken): &(usize, f64)| !(0.0..=most as f64).contains(taken);
        let beyond = counts.clone().enumerate().find(is_beyond);
        let weightless = !(scale.is_finite() && scale > 0.0);
        let void = match beyond {
            Some((place, taken)) => Some(VoidStep::Samples { place, taken, most }),
            None => weightless.then_some(VoidStep::Weights),
        };
        let factor = (void.is_none() && (scale - 1.0).abs() > NEGLIGIBLE).then(|| 1.0 / scale);
        let taken = counts.map(|taken| if beyond.is_some() { 0 } else { taken as u64 }).collect();
        Told { factor, taken, void, mean: scale }
    }

    /// That was committed.
    pub fn commit(&mut self, told: &Told) {
        self.ledger = self.ledger.committed(&told.taken);
        let reference = self.reference * told.mean;
        if told.void.is_none() && reference.is_normal() && reference > 0.0 {
            self.reference = reference;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reduces as a ring does: the mean, in `f64`.
    fn reduced(tallies: &[Vec<f64>]) -> Vec<f64> {
        let sum = |at: usize| tallies.iter().map(|tally| tally[at]).sum::<f64>();
        (0..tallies[0].len()).map(|at| sum(at) / tallies.len() as f64).collect()
    }

    /// One step of members with these weights and gradients; the mean that they get.
    fn step(chronicle: &mut Chronicle, members: &[(f64, f64, u64)]) -> f64 {
        let scales: Vec<_> = members.iter().map(|member| chronicle.scale(member.0).unwrap()).collect();
        let tallies: Vec<_> = members
            .iter()
            .enumerate()
            .map(|(place, member)| Chronicle::tally(scales[place], member.2, place, members.len()))
            .collect();
        let told = Chronicle::told(&reduced(&tallies), members.len(), members.len());
        assert_eq!(told.taken, members.iter().map(|member| member.2).collect::<Vec<_>>());
        chronicle.commit(&told);
        let sum: f64 = scales.iter().zip(members).map(|(scale, member)| scale * member.1).sum();
        sum / members.len() as f64 * told.factor.unwrap_or(1.0)
    }

    #[test]
    fn means_are_weighted_and_equal_weights_cost_nothing() {
        let mut chronicle = Chronicle::new(Vec::new());
        assert!(
            (step(&mut chronicle, &[(64.0, 1.0, 64), (64.0, 3.0, 64), (64.0, 5.0, 64)]) - 3.0).abs() < 1e-12
        );
        // From the second step on nothing is multiplied.
        assert_eq!(chronicle.scale(64.0), Ok(1.0));
        assert_eq!(Chronicle::told(&[1.0, 0.0], 1, 3).factor, None);
        assert!((step(&mut chronicle, &[(64.0, 1.0, 3), (16.0, 6.0, 0)]) - 2.0).abs() < 1e-12);
        assert!((step(&mut chronicle, &[(0.0, 1e300, 3), (16.0, 6.0, 9)]) - 6.0).abs() < 1e-12);
        for weight in [0.1, 1e-9, 7.3e12] {
            step(&mut chronicle, &[(weight, 1.0, 1); 3]);
            assert_eq!(chronicle.scale(weight), Ok(1.0), "{weight}");
        }
    }

    #[test]
    fn weights_that_mean_nothing_are_refused_and_all_zero_is_void() {
        let mut chronicle = Chronicle::new(Vec::new());
        for weight in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(matches!(chronicle.scale(weight), Err(InvalidStep::Weight(_))));
        }
        let told = Chronicle::told(&[0.0, 1.0, 1.0], 2, 2);
        assert_eq!((told.void, told.factor), (Some(VoidStep::Weights), None));
        chronicle.commit(&told);
        assert_eq!(
            (chronicle.reference, chronicle.ledger.consumed()),
            (1.0, 4),
            "the samples were looked at"
        );
        assert_eq!(Chronicle::told(&[f64::INFINITY, 0.0], 1, 2).void, Some(VoidStep::Weights));
    }

    /// One faulty member's count made every contributor write down a hole for nearly each number below it, after the
    /// commit and beyond every deadline, until there was no memory left.
    #[test]
    fn a_tally_beyond_what_a_step_may_take_is_void() {
        let (crew, most) = (3, HOLES_MAX as u64 / 3);
        let reduced_with = |claim: f64| {
            let mut tallies: Vec<_> = (0..crew).map(|place| Chronicle::tally(2.0, 4, place, crew)).collect();
            tallies[1][2] = claim;
            Chronicle::told(&reduced(&tallies), crew, crew)
        };
        for claim in [most as f64 + 1.0, 1e15, 1e300, f64::MAX, f64::INFINITY, f64::NAN, -1.0, -1e300] {
            let told = reduced_with(claim);
            let Some(VoidStep::Samples { place: 1, most: told_most, .. }) = told.void else {
                panic!("{claim}: {told:?}")
            };
            assert_eq!((told_most, told.factor, &told.taken[..]), (most, None, &[0; 3][..]), "{claim}");
            let mut chronicle = Chronicle::new(b"mine".to_vec());
            chronicle.commit(&told);
            assert_eq!(
                chronicle,
                Chronicle::new(b"mine".to_vec()),
                "{claim}: nothing is used, no weight is usual"
            );
        }
        // As much as a step may take is none of it, nor is who was lost and who took nothing.
        for honest in [0.0, most as f64] {
            let told = reduced_with(honest);
            assert_eq!((told.void, &told.taken[..]), (None, &[4, honest as u64, 4][..]));
        }
        let text = reduced_with(1e15).void.expect("it is void").to_string();
        assert!(
            text.contains("place 1") && text.contains("1000000000000000") && text.contains("21845"),
            "{text}"
        );
    }

    #[test]
    fn who_was_lost_leaves_holes() {
        let mut chronicle = Chronicle::new(Vec::new());
        // Three took two each; the one in the middle was lost before the commit.
        let tallies = [Chronicle::tally(1.0, 2, 0, 3), Chronicle::tally(1.0, 2, 2, 3)];
        let told = Chronicle::told(&reduced(&tallies), 3, 2);
        assert_eq!(told.taken, [2, 0, 2]);
        chronicle.commit(&told);
        assert_eq!(chronicle.ledger.samples(0, 1, 0, 3), [1, 4, 6]);
    }

    #[test]
    fn it_travels_and_a_programs_bytes_begin_one() {
        let mut written = b"of the step before".to_vec();
        let mut encode = |chronicle: &Chronicle| {
            chronicle.encode_to(&mut written);
            written.clone()
        };
        let mut chronicle = Chronicle::of(b"mine").unwrap();
        assert_eq!(chronicle, Chronicle::new(b"mine".to_vec()));
        step(&mut chronicle, &[(64.0, 1.0, 5), (32.0, 1.0, 2)]);
        assert_eq!(Chronicle::of(&encode(&chronicle)), Ok(chronicle.clone()));
        let mut broken = encode(&chronicle);
        broken.truncate(broken.len() - 1);
        assert_eq!(Chronicle::of(&broken), Err(InvalidLedger));
        let zero = Chronicle { reference: 0.0, ..chronicle };
        assert_eq!(Chronicle::of(&encode(&zero)), Err(InvalidLedger));
    }

    #[test]
    fn a_tally_is_whole_cache_lines_and_only_the_crew_is_counted() {
        for (crew, numbers) in [(1, 8), (7, 8), (8, 16), (4_096, 4_104)] {
            let tally = Chronicle::tally(1.0, 3, crew - 1, crew);
            assert_eq!((tally.len(), Chronicle::told(&tally, crew, 1).taken.len()), (numbers, crew));
        }
    }

    #[test]
    fn a_step_takes_no_more_than_can_be_told_apart() {
        assert_eq!(Chronicle::check_samples(HOLES_MAX as u64 / 4, 4), Ok(()));
        let error = Chronicle::check_samples(HOLES_MAX as u64 / 4 + 1, 4).unwrap_err();
        assert!(error.to_string().contains("each may take 16384"), "{error}");
        // The worst case: every other member of many is lost.
        let crew = 64;
        let taken: Vec<_> =
            (0..crew).map(|place| if place % 2 == 0 { HOLES_MAX as u64 / 64 } else { 0 }).collect();
        let ledger = Ledger::default().committed(&taken);
        assert_eq!(Ledger::decode(&ledger.encode()), Ok(ledger));
    }
}
