//! Fewer bits on the wire, for an error with a bound.
//!
//! A slow link wants fewer bytes, and a sum over many members forgives a small error in each. Numbers are packed
//! in blocks of 128 that share one scale: small enough that one large number coarsens few neighbours, large
//! enough that the scales cost little on the wire. An f32 becomes 8.25 bits with `int8` (3.88 times smaller) and
//! 4.25 bits with `int4` (7.5 times).
//!
//! In a ring, the first member of a chain [quantises](quantise) its numbers, each next one
//! [accumulates](accumulate) its own on top in f32, and the last's bytes go round to all, who
//! [open](dequantise) them, the last one too. So all hold the same bits, and what they hold is not the exact sum:
//! one packing errs by at most half a scale, and N members pack N times.
//!
//! **The bound.** With *m* the largest magnitude that any partial sum of a block reached, earlier errors included,
//! each packing errs by at most *m* / 254 per number with `int8` and *m* / 14 with `int4`, and N members by N times
//! as much; f32's own rounding adds less than a thousandth of that. Errors of different members are unrelated, so
//! expect their sum to grow as √N.
//!
//! What is not a number stays visible: a block with a NaN or an infinity in it, or whose sum overflows, opens
//! to NaN everywhere.
//!
//! This page does not decide who packs what when; it knows blocks, not rings.

use crate::blocks::{BLOCK, Codes, Int4, Int8, SCALE_BYTES};
use crate::element::Element;
use crate::level::Kernels;

/// How many bits a number keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantisation {
    /// Codes from −127 to 127.
    Int8,
    /// Codes from −7 to 7.
    Int4,
}

impl Quantisation {
    /// Every quantisation.
    pub const ALL: [Self; 2] = [Self::Int8, Self::Int4];

    /// Numbers that share a scale. Packed lists can be joined and cut at multiples of it.
    pub const BLOCK: usize = BLOCK;

    /// What users call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Whether it means something for `element`.
    pub const fn supports(self, element: Element) -> bool {
        element.is_float()
    }

    /// The largest code: the bound of one packing's error is the block's largest magnitude over twice this.
    pub const fn largest_code(self) -> f32 {
        match self {
            Self::Int8 => Int8::LARGEST,
            Self::Int4 => Int4::LARGEST,
        }
    }
}

/// Bytes of `elements` numbers when packed.
pub const fn quantised_len(quantisation: Quantisation, elements: usize) -> usize {
    let block = match quantisation {
        Quantisation::Int8 => SCALE_BYTES + BLOCK,
        Quantisation::Int4 => SCALE_BYTES + BLOCK / 2,
    };
    let rest = elements % BLOCK;
    let rest = match quantisation {
        _ if rest == 0 => 0,
        Quantisation::Int8 => SCALE_BYTES + rest,
        Quantisation::Int4 => SCALE_BYTES + rest.div_ceil(2),
    };
    elements / BLOCK * block + rest
}

/// Stops a caller that has lost count.
#[track_caller]
fn assert_lengths(quantisation: Quantisation, element: Element, values: usize, packed: Option<usize>) {
    assert!(quantisation.supports(element), "{} does not quantise {}", quantisation.name(), element.name());
    assert!(
        values.is_multiple_of(element.size()),
        "{values} bytes are no whole number of {}",
        element.name()
    );
    let expected = quantised_len(quantisation, values / element.size());
    assert!(
        packed.is_none_or(|packed| packed == expected),
        "{values} bytes of {} pack into {expected}, not {packed:?}",
        element.name(),
    );
}

/// Packs `values`.
///
/// # Panics
/// If `element` is no float, or `packed` has not the [`quantised_len`] of the number of values.
pub fn quantise(quantisation: Quantisation, element: Element, values: &[u8], packed: &mut [u8]) {
    assert_lengths(quantisation, element, values.len(), Some(packed.len()));
    Kernels::chosen().quantise(quantisation, element, values, packed);
}

/// Opens `packed`; every level of processor gives the same bits.
///
/// # Panics
/// As [`quantise`].
pub fn dequantise(quantisation: Quantisation, element: Element, packed: &[u8], values: &mut [u8]) {
    assert_lengths(quantisation, element, values.len(), Some(packed.len()));
    Kernels::chosen().dequantise(quantisation, element, packed, values);
}

/// Opens `packed`, adds `own` and divides by `divisor` if there is one, in f32, and packs it again: one hop of a
/// ring, in one pass.
///
/// # Panics
/// As [`quantise`], or if `divisor` is zero.
pub fn accumulate(
    quantisation: Quantisation,
    element: Element,
    packed: &mut [u8],
    own: &[u8],
    divisor: Option<u32>,
) {
    assert_lengths(quantisation, element, own.len(), Some(packed.len()));
    assert!(divisor != Some(0), "nothing is divided by zero");
    Kernels::chosen().accumulate(quantisation, element, packed, own, divisor);
}

/// Error feedback, before values are handed to a quantised reduction: adds `residual` to `values`, rounds
/// `values` to what a packing of them says, and leaves in `residual` what that rounding took away, to be added
/// the next time. What is lost now is sent later, so that the sum over many rounds is off by one residual and not
/// by many.
///
/// `values` must become the rounded ones: if the unrounded were sent, what stays behind in `residual` would be
/// sent twice. A block that is not finite becomes NaN and owes nothing.
///
/// # Panics
/// If `element` is no float, or the lengths differ or hold no whole number of elements.
pub fn error_feedback(quantisation: Quantisation, element: Element, values: &mut [u8], residual: &mut [u8]) {
    assert_lengths(quantisation, element, values.len(), None);
    assert_eq!(values.len(), residual.len(), "there is one residual for each value");
    Kernels::chosen().error_feedback(quantisation, element, values, residual);
}

#[cfg(test)]
mod tests;
