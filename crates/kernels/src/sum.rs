//! Sums and quotients, each form chosen by element type and processor.

use crate::scalar;
#[cfg(target_arch = "x86_64")]
use crate::x86;

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 64-bit signed integer; sums wrap around.
    I64,
}

impl Element {
    /// Bytes of one.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::I64 => 8,
        }
    }
}

/// Stores `a + b` in `dst`.
///
/// # Panics
/// If the lengths differ or hold no whole number of elements.
pub fn add(element: Element, dst: &mut [u8], a: &[u8], b: &[u8]) {
    assert!(dst.len() == a.len() && dst.len() == b.len() && dst.len().is_multiple_of(element.size()));
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was just detected, the lengths just compared.
        return unsafe {
            match element {
                Element::F32 => x86::add_f32(dst, a, b),
                Element::I64 => x86::add_i64(dst, a, b),
            }
        };
    }
    match element {
        Element::F32 => scalar::add_f32(dst, a, b),
        Element::I64 => scalar::add_i64(dst, a, b),
    }
}

/// Adds `other` to `acc`.
///
/// # Panics
/// If the lengths differ or hold no whole number of elements.
pub fn add_assign(element: Element, acc: &mut [u8], other: &[u8]) {
    assert!(acc.len() == other.len() && acc.len().is_multiple_of(element.size()));
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was just detected, the lengths just compared.
        return unsafe {
            match element {
                Element::F32 => x86::add_assign_f32(acc, other),
                Element::I64 => x86::add_assign_i64(acc, other),
            }
        };
    }
    match element {
        Element::F32 => scalar::add_assign_f32(acc, other),
        Element::I64 => scalar::add_assign_i64(acc, other),
    }
}

/// Divides each element by `by`; integers round towards zero.
///
/// # Panics
/// If `by` is zero or the length holds no whole number of elements.
pub fn divide(element: Element, values: &mut [u8], by: u32) {
    assert!(by > 0 && values.len().is_multiple_of(element.size()));
    match element {
        Element::F32 => {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the feature was just detected.
                return unsafe { x86::divide_f32(values, by) };
            }
            scalar::divide_f32(values, by);
        }
        // There is no vector division of integers.
        Element::I64 => scalar::divide_i64(values, by),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two lists of elements as bytes, and how far they lie off alignment.
    fn operands() -> impl Strategy<Value = (Element, Vec<u8>, Vec<u8>, usize)> {
        (prop::sample::select(vec![Element::F32, Element::I64]), 0_usize..200, 0_usize..9).prop_flat_map(
            |(element, count, shift)| {
                let bytes = count * element.size();
                let list = prop::collection::vec(any::<u8>(), bytes..=bytes);
                (Just(element), list.clone(), list, Just(shift))
            },
        )
    }

    /// Bits, except that a NaN is a NaN: which payload survives an addition is the processor's affair, and
    /// only one member adds each pair.
    fn canonical(element: Element, bytes: &[u8]) -> Vec<u64> {
        match element {
            Element::F32 => {
                let values = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
                values.map(|v| if v.is_nan() { u64::MAX } else { u64::from(v.to_bits()) }).collect()
            }
            Element::I64 => bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect(),
        }
    }

    fn shifted(bytes: &[u8], shift: usize) -> Vec<u8> {
        [vec![0; shift], bytes.to_vec()].concat()
    }

    proptest! {
        #[test]
        fn every_form_of_adding_agrees_with_the_reference((element, a, b, shift) in operands()) {
            let mut expected = vec![0; a.len()];
            match element {
                Element::F32 => scalar::add_f32(&mut expected, &a, &b),
                Element::I64 => scalar::add_i64(&mut expected, &a, &b),
            }
            let expected = canonical(element, &expected);
            let (moved_a, moved_b) = (shifted(&a, shift), shifted(&b, 8 - shift));
            let mut dst = vec![0; a.len() + 1];
            add(element, &mut dst[1..], &moved_a[shift..], &moved_b[8 - shift..]);
            prop_assert_eq!(&canonical(element, &dst[1..]), &expected);
            let mut acc = moved_a;
            add_assign(element, &mut acc[shift..], &b);
            prop_assert_eq!(&canonical(element, &acc[shift..]), &expected);
        }

        #[test]
        fn every_form_of_dividing_agrees_with_the_reference((element, a, _, shift) in operands(), by in 1_u32..=u32::MAX) {
            let mut expected = a.clone();
            match element {
                Element::F32 => scalar::divide_f32(&mut expected, by),
                Element::I64 => scalar::divide_i64(&mut expected, by),
            }
            let mut values = shifted(&a, shift);
            divide(element, &mut values[shift..], by);
            prop_assert_eq!(canonical(element, &values[shift..]), canonical(element, &expected));
        }
    }

    #[test]
    fn integers_wrap_and_round_towards_zero() {
        let mut acc = i64::MAX.to_ne_bytes();
        add_assign(Element::I64, &mut acc, &1_i64.to_ne_bytes());
        assert_eq!(i64::from_ne_bytes(acc), i64::MIN);
        let mut value = (-7_i64).to_ne_bytes();
        divide(Element::I64, &mut value, 2);
        assert_eq!(i64::from_ne_bytes(value), -3);
    }
}
