//! Two lists of elements become one.
//!
//! The last step of a reduction writes to the caller's memory, keeps what was there in case the operation is
//! undone, and divides if an average is wanted. [`finish`] and [`finish_assign`] do all three on one tile after
//! another, small enough to stay in the nearest cache. Saving and adding in this way is a third faster from memory
//! than one after the other on blocks of 32 KiB, and a seventh slower where everything is in the cache already:
//! they are meant for tensors larger than the cache.

use crate::copy::{copy_unordered, order};
use crate::element::{Element, Reduction};
use crate::level::Kernels;
use crate::loops::{Apart, InPlace};

/// Bytes that are finished at once: a whole number of any element, and three of them fit the nearest cache.
const TILE: usize = 4096;

/// Stops a caller that has lost count.
#[track_caller]
fn assert_operands(element: Element, reduction: Reduction, lengths: [usize; 3]) {
    let [out, a, b] = lengths;
    assert!(out == a && out == b, "operands and result have one length, not {a}, {b} and {out} bytes");
    assert!(out.is_multiple_of(element.size()), "{out} bytes are no whole number of {}", element.name());
    assert!(reduction.supports(element), "there is no {} of {}", reduction.name(), element.name());
}

/// Stores `a` combined with `b` in `out`.
///
/// # Panics
/// If the lengths differ or hold no whole number of elements, or if `reduction` does not
/// [support](Reduction::supports) `element`.
pub fn combine(element: Element, reduction: Reduction, out: &mut [u8], a: &[u8], b: &[u8]) {
    assert_operands(element, reduction, [out.len(), a.len(), b.len()]);
    Kernels::chosen().combine(element, reduction, Apart { out, a, b });
}

/// Combines `into` with `other`.
///
/// # Panics
/// As [`combine`].
pub fn combine_assign(element: Element, reduction: Reduction, into: &mut [u8], other: &[u8]) {
    assert_operands(element, reduction, [into.len(), into.len(), other.len()]);
    Kernels::chosen().combine_assign(element, reduction, InPlace { into, other });
}

/// Stores `a` combined with `b` in `out`, divided by `divisor` if there is one, and first stores what `out` held
/// in `saved` if there is one, [aside](crate::copy_aside).
///
/// # Panics
/// As [`combine`] and [`divide`], and if `saved` has another length.
pub fn finish(
    element: Element,
    reduction: Reduction,
    out: &mut [u8],
    a: &[u8],
    b: &[u8],
    divisor: Option<u32>,
    saved: Option<&mut [u8]>,
) {
    assert_operands(element, reduction, [out.len(), a.len(), b.len()]);
    let operands = a.chunks(TILE).zip(b.chunks(TILE));
    finish_tiles(element, out, divisor, saved, operands, |kernels, out, (a, b)| {
        kernels.combine(element, reduction, Apart { out, a, b });
    });
}

/// [`finish`] with `into` as first operand and result.
///
/// # Panics
/// As [`finish`].
pub fn finish_assign(
    element: Element,
    reduction: Reduction,
    into: &mut [u8],
    other: &[u8],
    divisor: Option<u32>,
    saved: Option<&mut [u8]>,
) {
    assert_operands(element, reduction, [into.len(), into.len(), other.len()]);
    finish_tiles(element, into, divisor, saved, other.chunks(TILE), |kernels, into, other| {
        kernels.combine_assign(element, reduction, InPlace { into, other });
    });
}

/// Saves, combines and divides tile by tile.
fn finish_tiles<T>(
    element: Element,
    out: &mut [u8],
    divisor: Option<u32>,
    saved: Option<&mut [u8]>,
    operands: impl Iterator<Item = T>,
    combine: impl Fn(&Kernels, &mut [u8], T),
) {
    if let Some(saved) = &saved {
        assert_eq!(saved.len(), out.len(), "what is saved has the length of what it was");
    }
    if let Some(by) = divisor {
        assert_divisible(element, out.len(), by);
    }
    let kernels = Kernels::chosen();
    let saves = saved.is_some();
    let mut saved = saved.into_iter().flat_map(|saved| saved.chunks_mut(TILE));
    for (out, operands) in out.chunks_mut(TILE).zip(operands) {
        if let Some(saved) = saved.next() {
            copy_unordered(saved, out);
        }
        combine(kernels, out, operands);
        if let Some(by) = divisor {
            kernels.divide(element, out, by);
        }
    }
    if saves {
        order();
    }
}

/// Divides each element by `by`, which makes an average of a sum; integers round towards zero.
///
/// # Panics
/// If `by` is zero, the length holds no whole number of elements, or the element
/// [has no average](Element::has_average).
pub fn divide(element: Element, values: &mut [u8], by: u32) {
    assert_divisible(element, values.len(), by);
    Kernels::chosen().divide(element, values, by);
}

#[track_caller]
fn assert_divisible(element: Element, bytes: usize, by: u32) {
    assert!(by > 0, "nothing is divided by zero");
    assert!(bytes.is_multiple_of(element.size()), "{bytes} bytes are no whole number of {}", element.name());
    assert!(element.has_average(), "{} has no average", element.name());
}

#[cfg(test)]
mod tests;
