//! Two lists of elements become one.

use crate::element::{Element, Reduction};
use crate::level::Kernels;
use crate::loops::{Apart, InPlace};

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

/// Divides each element by `by`, which makes an average of a sum; integers round towards zero.
///
/// # Panics
/// If `by` is zero, the length holds no whole number of elements, or the element
/// [has no average](Element::has_average).
pub fn divide(element: Element, values: &mut [u8], by: u32) {
    assert!(by > 0, "nothing is divided by zero");
    let bytes = values.len();
    assert!(bytes.is_multiple_of(element.size()), "{bytes} bytes are no whole number of {}", element.name());
    assert!(element.has_average(), "{} has no average", element.name());
    Kernels::chosen().divide(element, values, by);
}

#[cfg(test)]
mod tests;
