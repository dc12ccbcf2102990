//! Which samples a training has used: every number once, none left out, whoever dies.
//!
//! The numbers 0, 1, 2, .. stand for samples. The ledger says which were consumed by committed steps: all below `next`
//! except the *holes*. It is part of the state, so all members hold the same one, and each finds its own numbers without
//! asking: the pool is the holes in their order and then `next`, `next + 1`, .., and of W members the one of rank r takes
//! the pool's places r, r + W, r + 2 W, ..
//!
//! A step that commits tells all members how many numbers each contributor took; those are consumed, and whatever lies
//! before the last of them and was not consumed is a hole that the next step hands out first. A step that does not commit
//! consumes nothing, and the same numbers are handed out again.

use crate::limits::COUNT_MAX;
use minicbor::{CborLen, Decode, Encode};

/// Runs of holes that a ledger keeps apart. Holes are handed out first, so there are never more than one step handed out;
/// a step that would hand out more numbers is refused
/// ([`Chronicle::check_samples`](super::chronicle::Chronicle::check_samples)).
pub const HOLES_MAX: usize = 1 << 16;

/// Consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
struct Run {
    #[n(0)]
    first: u64,
    #[n(1)]
    count: u64,
}

/// Which numbers are left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Ledger {
    /// Nobody was handed this number or a later one.
    #[n(0)]
    next: u64,
    /// Numbers below that were handed out and not consumed, in their order.
    #[n(1)]
    holes: Vec<Run>,
}

/// Why bytes are no ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not a ledger of samples")]
pub struct InvalidLedger;

impl Ledger {
    /// Reads one that travelled.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidLedger> {
        minicbor::decode::<Self>(bytes).map_err(|_| InvalidLedger)?.checked()
    }

    /// The same, if it can be one.
    pub(super) fn checked(self) -> Result<Self, InvalidLedger> {
        // No training uses so many; what is added to them in one step must not be beyond counting.
        if self.next > COUNT_MAX {
            return Err(InvalidLedger);
        }
        let mut end = 0;
        for run in &self.holes {
            let after = run.first.checked_add(run.count).ok_or(InvalidLedger)?;
            if run.count == 0 || run.first < end || after > self.next || self.holes.len() > HOLES_MAX {
                return Err(InvalidLedger);
            }
            end = after;
        }
        Ok(self)
    }

    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("a Vec takes every byte")
    }

    /// How many numbers were consumed.
    pub fn consumed(&self) -> u64 {
        self.next - self.open()
    }

    /// How many holes there are.
    pub fn open(&self) -> u64 {
        self.holes.iter().map(|run| run.count).sum()
    }

    /// The number at that place of the pool.
    fn at(&self, mut place: u64) -> u64 {
        for run in &self.holes {
            if place < run.count {
                return run.first + place;
            }
            place -= run.count;
        }
        self.next + place
    }

    /// The numbers from `begin` on, counted in places of its own, of the member of that rank.
    pub fn samples(&self, rank: usize, world: usize, begin: u64, count: u64) -> Vec<u64> {
        let place = |own: u64| own * world as u64 + rank as u64;
        (begin..begin + count).map(|own| self.at(place(own))).collect()
    }

    /// The ledger after a step in which the member of rank r took `taken[r]` numbers.
    #[must_use]
    pub fn committed(&self, taken: &[u64]) -> Self {
        let world = taken.len() as u64;
        let last =
            |(rank, count): (usize, &u64)| count.checked_sub(1).map(|own| own * world + rank as u64 + 1);
        let frontier = taken.iter().enumerate().filter_map(last).max().unwrap_or(0);
        let mut after = Self { next: self.next + frontier.saturating_sub(self.open()), holes: Vec::new() };
        // In whole passes everybody has taken its number, or the same members have not: look at each place before the
        // frontier only where somebody took fewer than others.
        let even = taken.iter().copied().min().unwrap_or(0);
        for place in (even * world).min(frontier)..frontier {
            let (own, rank) = (place / world, (place % world) as usize);
            if own >= taken[rank] {
                after.push(self.at(place), 1);
            }
        }
        // Holes that nobody reached.
        let mut passed = 0;
        for run in &self.holes {
            let kept = (passed + run.count).saturating_sub(frontier.max(passed)).min(run.count);
            if kept > 0 {
                after.push(run.first + run.count - kept, kept);
            }
            passed += run.count;
        }
        after.holes.sort_unstable_by_key(|run| run.first);
        after.join();
        after
    }

    fn push(&mut self, first: u64, count: u64) {
        self.holes.push(Run { first, count });
    }

    /// Joins runs that touch.
    fn join(&mut self) {
        let mut joined: Vec<Run> = Vec::with_capacity(self.holes.len());
        for run in self.holes.drain(..) {
            match joined.last_mut() {
                Some(before) if before.first + before.count == run.first => before.count += run.count,
                _ => joined.push(run),
            }
        }
        self.holes = joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_are_interleaved_by_rank() {
        let ledger = Ledger::default();
        assert_eq!(ledger.samples(0, 3, 0, 3), [0, 3, 6]);
        assert_eq!(ledger.samples(2, 3, 0, 2), [2, 5]);
        assert_eq!(ledger.samples(0, 3, 2, 2), [6, 9], "a second helping goes on where the first ended");
        let after = ledger.committed(&[2, 2, 2]);
        assert_eq!((after.consumed(), after.open(), after.samples(0, 1, 0, 1)), (6, 0, vec![6]));
    }

    #[test]
    fn what_was_passed_over_comes_first_next_time() {
        // The second of three took nothing, the third one more than the first.
        let after = Ledger::default().committed(&[1, 0, 2]);
        assert_eq!((after.consumed(), after.open()), (3, 3));
        assert_eq!(after.samples(0, 1, 0, 5), [1, 3, 4, 6, 7]);
        let after = after.committed(&[2]);
        assert_eq!(after.samples(0, 1, 0, 3), [4, 6, 7]);
        assert_eq!(Ledger::decode(&after.encode()), Ok(after));
    }

    #[test]
    fn a_step_that_took_nothing_changes_nothing() {
        let ledger = Ledger::default().committed(&[0, 3]);
        assert_eq!(ledger.committed(&[0, 0, 0]), ledger);
    }

    #[test]
    fn every_number_is_used_once_and_none_is_left_out() {
        for seed in 0..300 {
            let mut rng = Rng::from_seed(seed);
            let (mut ledger, mut used) = (Ledger::default(), BTreeSet::new());
            for _ in 0..60 {
                let world = 1 + rng.below(5);
                let taken: Vec<u64> = (0..world).map(|_| rng.below(7) as u64).collect();
                let numbers: Vec<_> = taken
                    .iter()
                    .enumerate()
                    .flat_map(|(rank, count)| ledger.samples(rank, world, 0, *count))
                    .collect();
                // One step in three does not commit.
                if rng.below(3) > 0 {
                    for number in numbers {
                        assert!(used.insert(number), "seed {seed}: {number} is used twice");
                    }
                    ledger = ledger.committed(&taken);
                    assert_eq!(ledger.consumed(), used.len() as u64, "seed {seed}");
                    assert_eq!(Ledger::decode(&ledger.encode()), Ok(ledger.clone()), "seed {seed}");
                }
            }
            // At the end somebody takes what is left: then all below the end are used.
            let rest = ledger.open();
            for number in ledger.samples(0, 1, 0, rest) {
                assert!(used.insert(number));
            }
            ledger = ledger.committed(&[rest]);
            assert_eq!((ledger.open(), used.len() as u64), (0, ledger.next), "seed {seed}: none is left out");
        }
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let run = |first, count| Run { first, count };
        for holes in [vec![run(0, 0)], vec![run(5, 2)], vec![run(2, 2), run(3, 1)], vec![run(u64::MAX, 2)]] {
            assert_eq!(Ledger::decode(&Ledger { next: 6, holes }.encode()), Err(InvalidLedger));
        }
        let beyond = Ledger { next: COUNT_MAX + 1, holes: Vec::new() };
        assert_eq!(
            Ledger::decode(&beyond.encode()),
            Err(InvalidLedger),
            "the next samples could not be counted"
        );
        assert_eq!(Ledger::decode(b"nonsense"), Err(InvalidLedger));
    }
}
