//! The loops over pairs of elements, written once for every level.
//!
//! Everything here is inlined into the functions that [`level`](crate::level) writes out, because only there do
//! the compiler's vectors have the level's width.
//!
//! Operations on floats that are no arithmetic (`min`, `max`) work on the bits: a float's bits, with those of
//! negative numbers turned round, are ordered as the numbers are, also −0 below +0.

#![expect(clippy::inline_always, reason = "the loops are compiled where they are inlined: see `level`")]

use crate::element::{Element, Reduction};
use crate::half;
use crate::level::Level;

/// Two lists of elements and where the results go.
pub(crate) trait Pairs: Sized {
    /// Applies `wide` to groups of bytes, and `one` to what is left of less than a group.
    fn each_group<const WIDE: usize, const ONE: usize>(
        self,
        wide: impl Fn([u8; WIDE], [u8; WIDE]) -> [u8; WIDE],
        one: impl Fn([u8; ONE], [u8; ONE]) -> [u8; ONE],
    );

    /// Applies `one` to each pair.
    #[inline(always)]
    fn each<const ONE: usize>(self, one: impl Fn([u8; ONE], [u8; ONE]) -> [u8; ONE]) {
        // A group of one leaves no rest.
        self.each_group::<ONE, ONE>(&one, &one);
    }
}

/// The results go to other memory. All are of one length.
#[derive(Debug)]
pub(crate) struct Apart<'a> {
    pub(crate) out: &'a mut [u8],
    pub(crate) a: &'a [u8],
    pub(crate) b: &'a [u8],
}

impl Pairs for Apart<'_> {
    #[inline(always)]
    fn each_group<const WIDE: usize, const ONE: usize>(
        self,
        wide: impl Fn([u8; WIDE], [u8; WIDE]) -> [u8; WIDE],
        one: impl Fn([u8; ONE], [u8; ONE]) -> [u8; ONE],
    ) {
        let (out, out_rest) = self.out.as_chunks_mut::<WIDE>();
        let (a, a_rest) = self.a.as_chunks::<WIDE>();
        let (b, b_rest) = self.b.as_chunks::<WIDE>();
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = wide(*a, *b);
        }
        let rest = out_rest.as_chunks_mut::<ONE>().0.iter_mut();
        for ((out, a), b) in rest.zip(a_rest.as_chunks::<ONE>().0).zip(b_rest.as_chunks::<ONE>().0) {
            *out = one(*a, *b);
        }
    }
}

/// The results replace the first list. Both are of one length.
#[derive(Debug)]
pub(crate) struct InPlace<'a> {
    pub(crate) into: &'a mut [u8],
    pub(crate) other: &'a [u8],
}

impl Pairs for InPlace<'_> {
    #[inline(always)]
    fn each_group<const WIDE: usize, const ONE: usize>(
        self,
        wide: impl Fn([u8; WIDE], [u8; WIDE]) -> [u8; WIDE],
        one: impl Fn([u8; ONE], [u8; ONE]) -> [u8; ONE],
    ) {
        let (into, into_rest) = self.into.as_chunks_mut::<WIDE>();
        let (other, other_rest) = self.other.as_chunks::<WIDE>();
        for (into, other) in into.iter_mut().zip(other) {
            *into = wide(*into, *other);
        }
        let rest = into_rest.as_chunks_mut::<ONE>().0.iter_mut();
        for (into, other) in rest.zip(other_rest.as_chunks::<ONE>().0) {
            *into = one(*into, *other);
        }
    }
}

/// Each pair through an expression on numbers of a type.
macro_rules! each {
    ($pairs:ident, $type:ty, |$x:ident, $y:ident| $result:expr) => {
        $pairs.each(|x, y| {
            let ($x, $y) = (<$type>::from_le_bytes(x), <$type>::from_le_bytes(y));
            let result: $type = $result;
            result.to_le_bytes()
        })
    };
}

/// The smaller or larger of floats of any width, by their bits.
macro_rules! extreme {
    ($name:ident, $unsigned:ty, $signed:ty) => {
        /// The one of `a` and `b` that comes first (or last, if `largest`); `nan` if either is above `infinity`
        /// without its sign.
        #[inline(always)]
        fn $name(
            a: $unsigned,
            b: $unsigned,
            largest: bool,
            infinity: $unsigned,
            nan: $unsigned,
        ) -> $unsigned {
            const SIGN: u32 = <$unsigned>::BITS - 1;
            let magnitude = <$unsigned>::MAX >> 1;
            // Among negative numbers more bits are less: turn all but the sign round.
            let order = |bits: $unsigned| (bits ^ ((bits as $signed >> SIGN) as $unsigned >> 1)) as $signed;
            let first = if (order(a) < order(b)) != largest { a } else { b };
            if (a & magnitude > infinity) | (b & magnitude > infinity) { nan } else { first }
        }
    };
}

extreme!(extreme_16, u16, i16);
extreme!(extreme_32, u32, i32);
extreme!(extreme_64, u64, i64);

/// Combines each pair. The caller asserted that `reduction` supports `element`.
#[inline(always)]
pub(crate) fn combine(level: impl Level, element: Element, reduction: Reduction, pairs: impl Pairs) {
    use Element::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    use Reduction::{And, Max, Min, Or, Prod, Sum, Xor};
    match (element, reduction) {
        (Bool, Sum | Max | Or) => each!(pairs, u8, |x, y| u8::from(x | y != 0)),
        (Bool, Prod | Min | And) => each!(pairs, u8, |x, y| u8::from(x.min(y) != 0)),
        (Bool, Xor) => each!(pairs, u8, |x, y| u8::from((x != 0) ^ (y != 0))),

        (F16 | BF16 | F32 | F64, And | Or | Xor) => unreachable!("asserted by the caller"),
        (_, And) => each!(pairs, u8, |x, y| x & y),
        (_, Or) => each!(pairs, u8, |x, y| x | y),
        (_, Xor) => each!(pairs, u8, |x, y| x ^ y),

        // Wrapping sums and products have the same bits with and without a sign.
        (U8 | I8, Sum) => each!(pairs, u8, |x, y| x.wrapping_add(y)),
        (U16 | I16, Sum) => each!(pairs, u16, |x, y| x.wrapping_add(y)),
        (U32 | I32, Sum) => each!(pairs, u32, |x, y| x.wrapping_add(y)),
        (U64 | I64, Sum) => each!(pairs, u64, |x, y| x.wrapping_add(y)),
        (U8 | I8, Prod) => each!(pairs, u8, |x, y| x.wrapping_mul(y)),
        (U16 | I16, Prod) => each!(pairs, u16, |x, y| x.wrapping_mul(y)),
        (U32 | I32, Prod) => each!(pairs, u32, |x, y| x.wrapping_mul(y)),
        (U64 | I64, Prod) => each!(pairs, u64, |x, y| x.wrapping_mul(y)),

        (U8, Min) => each!(pairs, u8, |x, y| x.min(y)),
        (I8, Min) => each!(pairs, i8, |x, y| x.min(y)),
        (U16, Min) => each!(pairs, u16, |x, y| x.min(y)),
        (I16, Min) => each!(pairs, i16, |x, y| x.min(y)),
        (U32, Min) => each!(pairs, u32, |x, y| x.min(y)),
        (I32, Min) => each!(pairs, i32, |x, y| x.min(y)),
        (U64, Min) => each!(pairs, u64, |x, y| x.min(y)),
        (I64, Min) => each!(pairs, i64, |x, y| x.min(y)),
        (U8, Max) => each!(pairs, u8, |x, y| x.max(y)),
        (I8, Max) => each!(pairs, i8, |x, y| x.max(y)),
        (U16, Max) => each!(pairs, u16, |x, y| x.max(y)),
        (I16, Max) => each!(pairs, i16, |x, y| x.max(y)),
        (U32, Max) => each!(pairs, u32, |x, y| x.max(y)),
        (I32, Max) => each!(pairs, i32, |x, y| x.max(y)),
        (U64, Max) => each!(pairs, u64, |x, y| x.max(y)),
        (I64, Max) => each!(pairs, i64, |x, y| x.max(y)),

        (F16, Min) => each!(pairs, u16, |x, y| extreme_16(x, y, false, 0x7c00, 0x7e00)),
        (BF16, Min) => each!(pairs, u16, |x, y| extreme_16(x, y, false, 0x7f80, 0x7fc0)),
        (F32, Min) => each!(pairs, u32, |x, y| extreme_32(x, y, false, 0xff << 23, 0x1ff << 22)),
        (F64, Min) => each!(pairs, u64, |x, y| extreme_64(x, y, false, 0x7ff << 52, 0xfff << 51)),
        (F16, Max) => each!(pairs, u16, |x, y| extreme_16(x, y, true, 0x7c00, 0x7e00)),
        (BF16, Max) => each!(pairs, u16, |x, y| extreme_16(x, y, true, 0x7f80, 0x7fc0)),
        (F32, Max) => each!(pairs, u32, |x, y| extreme_32(x, y, true, 0xff << 23, 0x1ff << 22)),
        (F64, Max) => each!(pairs, u64, |x, y| extreme_64(x, y, true, 0x7ff << 52, 0xfff << 51)),

        (F32, Sum) => each!(pairs, f32, |x, y| x + y),
        (F64, Sum) => each!(pairs, f64, |x, y| x + y),
        (F32, Prod) => each!(pairs, f32, |x, y| x * y),
        (F64, Prod) => each!(pairs, f64, |x, y| x * y),
        (BF16, Sum) => each!(pairs, u16, |x, y| half::narrow_bf16(half::widen_bf16(x) + half::widen_bf16(y))),
        (BF16, Prod) => {
            each!(pairs, u16, |x, y| half::narrow_bf16(half::widen_bf16(x) * half::widen_bf16(y)));
        }
        (F16, Sum) => combine_f16(level, pairs, |x, y| x + y),
        (F16, Prod) => combine_f16(level, pairs, |x, y| x * y),
    }
}

/// The f16 in two bytes each.
#[inline(always)]
pub(crate) fn halves(bytes: [u8; 16]) -> [u16; 8] {
    let mut halves = [0; 8];
    for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *half = u16::from_le_bytes(*bytes);
    }
    halves
}

/// The bytes of f16.
#[inline(always)]
pub(crate) fn half_bytes(halves: [u16; 8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (bytes, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
        *bytes = half.to_le_bytes();
    }
    bytes
}

#[inline(always)]
fn combine_f16(level: impl Level, pairs: impl Pairs, f: impl Fn(f32, f32) -> f32) {
    let wide = |a, b| {
        let mut values = level.widen_f16(halves(a));
        for (value, other) in values.iter_mut().zip(level.widen_f16(halves(b))) {
            *value = f(*value, other);
        }
        half_bytes(level.narrow_f16(values))
    };
    let one = |a, b| {
        let [a, b] = [a, b].map(|half| half::widen_f16(u16::from_le_bytes(half)));
        half::narrow_f16(f(a, b)).to_le_bytes()
    };
    pairs.each_group::<16, 2>(wide, one);
}

/// Replaces each value by `f` of it.
#[inline(always)]
fn map<const SIZE: usize>(values: &mut [u8], f: impl Fn([u8; SIZE]) -> [u8; SIZE]) {
    for value in values.as_chunks_mut::<SIZE>().0 {
        *value = f(*value);
    }
}

/// Quotients of integers. There is no vector division of them, so there is nothing to gain by trying.
macro_rules! divide_integers {
    ($values:ident, $type:ty, $wide:ty, $by:ident) => {
        map($values, |value| {
            // The quotient of two is never longer than the first.
            ((<$wide>::from(<$type>::from_le_bytes(value)) / <$wide>::from($by)) as $type).to_le_bytes()
        })
    };
}

/// Divides each value by `by`, which is not zero; the caller asserted that the element has an average.
#[inline(always)]
pub(crate) fn divide(level: impl Level, element: Element, values: &mut [u8], by: u32) {
    let by_f32 = by as f32;
    match element {
        Element::U8 => divide_integers!(values, u8, u32, by),
        Element::I8 => divide_integers!(values, i8, i64, by),
        Element::U16 => divide_integers!(values, u16, u32, by),
        Element::I16 => divide_integers!(values, i16, i64, by),
        Element::U32 => divide_integers!(values, u32, u32, by),
        Element::I32 => divide_integers!(values, i32, i64, by),
        Element::U64 => divide_integers!(values, u64, u64, by),
        Element::I64 => divide_integers!(values, i64, i64, by),
        Element::Bool => unreachable!("asserted by the caller"),
        Element::F16 => {
            let (groups, rest) = values.as_chunks_mut::<16>();
            for group in groups {
                let mut wide = level.widen_f16(halves(*group));
                for value in &mut wide {
                    *value /= by_f32;
                }
                *group = half_bytes(level.narrow_f16(wide));
            }
            map(rest, |half| {
                half::narrow_f16(half::widen_f16(u16::from_le_bytes(half)) / by_f32).to_le_bytes()
            });
        }
        Element::BF16 => map(values, |half| {
            half::narrow_bf16(half::widen_bf16(u16::from_le_bytes(half)) / by_f32).to_le_bytes()
        }),
        Element::F32 => map(values, |value| (f32::from_le_bytes(value) / by_f32).to_le_bytes()),
        Element::F64 => map(values, |value| (f64::from_le_bytes(value) / f64::from(by)).to_le_bytes()),
    }
}
