//! What a storm's workers reduce, and how they know that a result is right.
//!
//! Whoever reads a receipt must be able to say what every element of the result has to be, from the contributors'
//! ids alone. So a contribution is made from an id, a place and a step. Whole numbers that are small enough for
//! their type sum exactly, in any order. Quantised sums are not exact, and their bound must still be narrow
//! enough to miss nobody: so each block of numbers that share a scale belongs to one *class*, only peers whose id
//! falls into that class put anything there, and a contribution that is lost or counted twice is an error of
//! several times the bound.
//!
//! The last numbers of every tensor say whether a worker wants to stop: as many as share a scale, so that the
//! very last one shares its scale with nothing else.

use half::{bf16, f16};
use outlast::Communicator;
use outlast::communicator::{Call, Element, Error, Quantisation, Receipt};
use std::sync::Arc;

/// Numbers that share a scale on the wire.
const BLOCK: usize = 128;
/// Blocks go round among this many classes.
const CLASSES: usize = 4;

/// The element types of a storm.
pub(crate) trait Number: Element + PartialEq {
    /// Contributions are whole numbers below this: those of eight peers sum exactly.
    const LIMIT: u64;
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    fn bits(self) -> u64;
}

macro_rules! numbers {
    ($($number:ty, $limit:expr, $of:expr, $value:expr, $bits:expr;)*) => {
        $(impl Number for $number {
            const LIMIT: u64 = $limit;
            fn of(value: f64) -> Self { $of(value) }
            fn value(self) -> f64 { $value(self) }
            fn bits(self) -> u64 { $bits(self) }
        })*
    };
}

numbers! {
    f32, 1 << 20, |x| x as f32, f64::from, |x: f32| u64::from(x.to_bits());
    bf16, 1 << 5, |x| bf16::from_f32(x as f32), |x: bf16| f64::from(x.to_f32()), |x: bf16| u64::from(x.to_bits());
    f16, 1 << 8, |x| f16::from_f32(x as f32), |x: f16| f64::from(x.to_f32()), |x: f16| u64::from(x.to_bits());
    i64, 1 << 40, |x| x as i64, |x: i64| x as f64, |x: i64| x as u64;
}

/// One type of tensor, and how it is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    F32,
    Bf16,
    F16,
    I64,
    Int8,
    Int4,
    Int8OfBf16,
}

impl Flavour {
    pub(crate) const ALL: [Self; 7] =
        [Self::F32, Self::Bf16, Self::F16, Self::I64, Self::Int8, Self::Int4, Self::Int8OfBf16];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::I64 => "i64",
            Self::Int8 => "f32/int8",
            Self::Int4 => "f32/int4",
            Self::Int8OfBf16 => "bf16/int8",
        }
    }

    fn quantisation(self) -> Option<Quantisation> {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 | Self::I64 => None,
            Self::Int8 | Self::Int8OfBf16 => Some(Quantisation::Int8),
            Self::Int4 => Some(Quantisation::Int4),
        }
    }
}

/// One collective of a step.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) flavour: Flavour,
    pub(crate) tag: u64,
    /// Numbers in all tensors together, before those that say stop.
    pub(crate) count: usize,
    /// How many tensors they are cut into, unevenly; more than one are reduced in one transaction.
    pub(crate) tensors: usize,
    /// Makes one step's numbers different from another's.
    pub(crate) step: u64,
}

/// What came of a task.
pub(crate) struct Outcome {
    /// Proof, and the fingerprint of every bit of the result; or why not.
    pub(crate) ended: Result<(Receipt, u64), Error>,
    /// Somebody wants to stop.
    pub(crate) stop: bool,
    /// What must not be: values that no contributor explains, or data that a failed call left changed.
    pub(crate) wrong: Option<String>,
}

impl Task {
    /// Reduces, and judges the result.
    pub(crate) fn perform(&self, comm: &Communicator, stop: bool) -> Outcome {
        match self.flavour {
            Flavour::F32 | Flavour::Int8 | Flavour::Int4 => self.perform_as::<f32>(comm, stop),
            Flavour::Bf16 | Flavour::Int8OfBf16 => self.perform_as::<bf16>(comm, stop),
            Flavour::F16 => self.perform_as::<f16>(comm, stop),
            Flavour::I64 => self.perform_as::<i64>(comm, stop),
        }
    }

    fn perform_as<T: Number>(&self, comm: &Communicator, stop: bool) -> Outcome {
        let me = Contributor::new::<T>(&comm.peer_id().to_string());
        let stop = if stop { 1.0 } else { 0.0 };
        let contribution = || {
            let values = (0..self.count).map(|at| T::of(self.value::<T>(&me, at)));
            values.chain(std::iter::repeat_n(T::of(stop), BLOCK)).collect::<Vec<T>>()
        };
        let mut data = contribution();
        let call = Call::sum().tag(self.tag);
        let call = match self.flavour.quantisation() {
            Some(quantisation) => call.quantise(quantisation),
            None => call,
        };
        let receipt = if self.tensors == 1 {
            comm.all_reduce(&mut data, &call)
        } else {
            comm.all_reduce_many(&mut cut(&mut data, self.tensors), &call)
        };
        match receipt {
            Ok(receipt) => {
                let wrong = self.judge(&data, &receipt);
                let stop = data.last().is_some_and(|flag| flag.value() > 0.5);
                let hash = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, value| {
                    (hash ^ value.bits()).wrapping_mul(0x0100_0000_01b3)
                });
                Outcome { ended: Ok((receipt, hash)), stop, wrong }
            }
            Err(error) => {
                let wrong =
                    (data != contribution()).then(|| format!("the data of a failed call changed ({error})"));
                Outcome { ended: Err(error), stop: false, wrong }
            }
        }
    }

    /// What a peer puts at a place.
    fn value<T: Number>(&self, who: &Contributor, at: usize) -> f64 {
        if self.flavour.quantisation().is_some() && who.class != at / BLOCK % CLASSES {
            return 0.0;
        }
        let shape = (at % 61) as u64 + 64 * self.tag + self.step % 16;
        (who.worth + shape % (T::LIMIT / 2)) as f64
    }

    /// Compares every element with what the contributors explain.
    fn judge<T: Number>(&self, data: &[T], receipt: &Receipt) -> Option<String> {
        let contributors: Vec<_> =
            receipt.contributors.iter().map(|id| Contributor::new::<T>(&id.to_string())).collect();
        let exact = |at: usize| -> f64 { contributors.iter().map(|who| self.value::<T>(who, at)).sum() };
        let (mut wrong, mut first) = (0, None);
        let mut check = |at: usize, right: bool, exact: f64| {
            wrong += usize::from(!right);
            if !right && first.is_none() {
                first = Some((at, data[at].value(), exact));
            }
        };
        if let Some(quantisation) = self.flavour.quantisation() {
            let packings = if quantisation == Quantisation::Int8 { 254.0 } else { 14.0 };
            // The documented bound of one packing, once per contributor; types of 16 bits round the opened
            // number once more. Partial sums of one class never exceed the whole.
            for start in (0..self.count).step_by(BLOCK) {
                let block: Vec<f64> = (start..self.count.min(start + BLOCK)).map(exact).collect();
                let largest = block.iter().copied().fold(0.0, f64::max);
                let bound = 1.1 * largest * (contributors.len() as f64 / packings + 1.0 / 256.0);
                for (at, exact) in (start..).zip(block) {
                    check(at, (data[at].value() - exact).abs() <= bound, exact);
                }
            }
        } else {
            (0..self.count).for_each(|at| check(at, data[at].bits() == T::of(exact(at)).bits(), exact(at)));
        }
        first.map(|first| format!("{wrong} of {} elements, the first {first:?}, in {receipt:?}", data.len()))
    }

    /// All tasks of a step at once, in this order, with what came of each.
    pub(crate) fn perform_all(
        tasks: Vec<Self>,
        comm: &Arc<Communicator>,
        stop: bool,
    ) -> Vec<(Self, Outcome)> {
        if tasks.len() == 1 {
            return tasks.into_iter().map(|task| (task.clone(), task.perform(comm, stop))).collect();
        }
        let threads: Vec<_> = tasks
            .into_iter()
            .map(|task| {
                let comm = Arc::clone(comm);
                std::thread::spawn(move || (task.clone(), task.perform(&comm, stop)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a task's thread")).collect()
    }
}

/// Cuts a list into so many tensors of different sizes; some may be empty.
fn cut<T>(mut rest: &mut [T], tensors: usize) -> Vec<&mut [T]> {
    let mut pieces = Vec::with_capacity(tensors);
    for left in (1..tensors).rev() {
        let (piece, others) = rest.split_at_mut(rest.len() / (2 * left + 1));
        pieces.push(piece);
        rest = others;
    }
    pieces.push(rest);
    pieces
}

/// Whose numbers they are, as far as the numbers show it.
struct Contributor {
    /// Its own part of its contribution: never nothing, and small enough for exact sums.
    worth: u64,
    class: usize,
}

impl Contributor {
    fn new<T: Number>(id: &str) -> Self {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        let quarter = (T::LIMIT / 4).min(50_000);
        Self { worth: quarter + (hash >> 20) % quarter, class: (hash >> 8) as usize % CLASSES }
    }
}
