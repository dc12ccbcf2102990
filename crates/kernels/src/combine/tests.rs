//! Every level against arithmetic that shares no code with it: integers in 128 bits, floats in 64.

use super::*;
use crate::half;
use proptest::prelude::*;

/// An integer's value, whatever its width.
fn integer(element: Element, bytes: &[u8]) -> i128 {
    let mut raw = [0; 16];
    raw[..bytes.len()].copy_from_slice(bytes);
    let unsigned = i128::from_le_bytes(raw);
    let bits = 8 * bytes.len();
    let signed = matches!(element, Element::I8 | Element::I16 | Element::I32 | Element::I64);
    if signed && unsigned >> (bits - 1) == 1 { unsigned - (1 << bits) } else { unsigned }
}

/// A float's value, whatever its width.
fn float(element: Element, bytes: &[u8]) -> f64 {
    match (element, bytes) {
        (Element::F16, &[a, b]) => f64::from(half::widen_f16(u16::from_le_bytes([a, b]))),
        (Element::BF16, &[a, b]) => f64::from(half::widen_bf16(u16::from_le_bytes([a, b]))),
        (Element::F32, _) => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        (Element::F64, _) => f64::from_le_bytes(bytes.try_into().unwrap()),
        _ => unreachable!("a float"),
    }
}

/// A float's bytes; 16-bit floats go through 32 bits, as documented.
fn float_bytes(element: Element, value: f64) -> Vec<u8> {
    match element {
        Element::F16 => half::narrow_f16(value as f32).to_le_bytes().to_vec(),
        Element::BF16 => half::narrow_bf16(value as f32).to_le_bytes().to_vec(),
        Element::F32 => (value as f32).to_le_bytes().to_vec(),
        Element::F64 => value.to_le_bytes().to_vec(),
        _ => unreachable!("a float"),
    }
}

/// What one pair is combined to, by definition.
fn expected(element: Element, reduction: Reduction, a: &[u8], b: &[u8]) -> Vec<u8> {
    if element == Element::Bool {
        let (a, b) = (a[0] != 0, b[0] != 0);
        let truth = match reduction {
            Reduction::Sum | Reduction::Max | Reduction::Or => a || b,
            Reduction::Prod | Reduction::Min | Reduction::And => a && b,
            Reduction::Xor => a != b,
        };
        return vec![u8::from(truth)];
    }
    if element.is_float() {
        let (a, b) = (float(element, a), float(element, b));
        let ordered = |first: f64, last: f64| if first.total_cmp(&last).is_le() { first } else { last };
        let value = match reduction {
            Reduction::Sum => a + b,
            Reduction::Prod => a * b,
            Reduction::Min | Reduction::Max if a.is_nan() || b.is_nan() => f64::NAN,
            Reduction::Min => ordered(a, b),
            Reduction::Max => -ordered(-a, -b),
            _ => unreachable!("bits of floats"),
        };
        return float_bytes(element, value);
    }
    let (a, b) = (integer(element, a), integer(element, b));
    let value = match reduction {
        Reduction::Sum => a + b,
        Reduction::Prod => a.wrapping_mul(b),
        Reduction::Min => a.min(b),
        Reduction::Max => a.max(b),
        Reduction::And => a & b,
        Reduction::Or => a | b,
        Reduction::Xor => a ^ b,
    };
    value.to_le_bytes()[..element.size()].to_vec()
}

/// The bytes, with every NaN replaced by one if sums and products made them: which payload survives those is
/// the processor's affair, and only one member makes each.
fn comparable(element: Element, reduction: Option<Reduction>, bytes: &[u8]) -> Vec<u8> {
    let exact = matches!(reduction, Some(Reduction::Min | Reduction::Max)) || !element.is_float();
    let elements = bytes.chunks_exact(element.size()).map(|one| {
        if !exact && float(element, one).is_nan() { float_bytes(element, f64::NAN) } else { one.to_vec() }
    });
    elements.flatten().collect()
}

/// Any bytes, and more often than chance would have it what is special about floats and bools.
fn list(element: Element, count: usize) -> impl Strategy<Value = Vec<u8>> {
    let specials =
        [0.0, -0.0, 1.0, -1.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 6e-8, -65504.0, 1e-42];
    let any_bytes = prop::collection::vec(any::<u8>(), element.size());
    let one = (any_bytes, 0_usize..4 * specials.len()).prop_map(move |(bytes, special)| {
        match specials.get(special) {
            Some(special) if element.is_float() => float_bytes(element, *special),
            Some(special) if element == Element::Bool => vec![u8::from(*special > 0.0)],
            _ => bytes,
        }
    });
    prop::collection::vec(one, count).prop_map(|elements| elements.concat())
}

/// Two lists of one element, and how far they lie off alignment.
fn operands() -> impl Strategy<Value = (Element, Vec<u8>, Vec<u8>, usize)> {
    (prop::sample::select(Element::ALL.to_vec()), 0_usize..150, 0_usize..9).prop_flat_map(
        |(element, count, shift)| (Just(element), list(element, count), list(element, count), Just(shift)),
    )
}

fn shifted(bytes: &[u8], shift: usize) -> Vec<u8> {
    [vec![0; shift], bytes.to_vec()].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_level_combines_as_defined((element, a, b, shift) in operands()) {
        let size = element.size();
        for reduction in Reduction::ALL.into_iter().filter(|reduction| reduction.supports(element)) {
            let pairs = a.chunks_exact(size).zip(b.chunks_exact(size));
            let expected: Vec<u8> = pairs.flat_map(|(a, b)| expected(element, reduction, a, b)).collect();
            let expected = comparable(element, Some(reduction), &expected);
            let (moved_a, moved_b) = (shifted(&a, shift), shifted(&b, 8 - shift));
            for kernels in Kernels::available() {
                let case = format!("{} {} {}", kernels.name, reduction.name(), element.name());
                let mut out = vec![0xaa; a.len() + 9];
                let pairs = Apart { out: &mut out[1..=a.len()], a: &moved_a[shift..], b: &moved_b[8 - shift..] };
                kernels.combine(element, reduction, pairs);
                let found = comparable(element, Some(reduction), &out[1..=a.len()]);
                prop_assert_eq!(&found, &expected, "{} apart", case);
                prop_assert!(out[a.len() + 1..].iter().all(|byte| *byte == 0xaa), "{} wrote beyond its end", case);

                let mut into = moved_a.clone();
                let pairs = InPlace { into: &mut into[shift..], other: &b };
                kernels.combine_assign(element, reduction, pairs);
                let found = comparable(element, Some(reduction), &into[shift..]);
                prop_assert_eq!(&found, &expected, "{} in place", case);
            }
        }
    }

    #[test]
    fn every_level_divides_as_defined((element, a, _, shift) in operands(), by in prop_oneof![1_u32..20, any::<u32>()]) {
        prop_assume!(element.has_average() && by > 0);
        let quotient = |one: &[u8]| {
            if element == Element::F64 {
                float_bytes(element, float(element, one) / f64::from(by))
            } else if element.is_float() {
                // In 32 bits: their quotient is the rounded quotient of 64 bits.
                float_bytes(element, f64::from((float(element, one) / f64::from(by as f32)) as f32))
            } else {
                (integer(element, one) / i128::from(by)).to_le_bytes()[..element.size()].to_vec()
            }
        };
        let expected: Vec<u8> = a.chunks_exact(element.size()).flat_map(quotient).collect();
        for kernels in Kernels::available() {
            let mut values = shifted(&a, shift);
            kernels.divide(element, &mut values[shift..], by);
            let found = comparable(element, None, &values[shift..]);
            prop_assert_eq!(found, comparable(element, None, &expected), "{} {}", kernels.name, element.name());
        }
    }
}

/// Longer than a few tiles and no whole number of them, so that every seam is crossed.
#[test]
fn finishing_is_saving_combining_and_dividing() {
    for element in Element::ALL.into_iter().filter(|element| element.has_average()) {
        let bytes = 2 * TILE + 24;
        let list = |seed: usize| (0..bytes).map(|index| (index * seed % 61) as u8).collect::<Vec<_>>();
        let (old, a, b) = (list(7), list(11), list(13));
        for (divisor, saves) in [(None, true), (Some(3), true), (Some(3), false)] {
            let (mut expected, mut expected_in_place) = (vec![0; bytes], a.clone());
            combine(element, Reduction::Sum, &mut expected, &a, &b);
            combine_assign(element, Reduction::Sum, &mut expected_in_place, &b);
            if let Some(by) = divisor {
                divide(element, &mut expected, by);
                divide(element, &mut expected_in_place, by);
            }

            let (mut out, mut saved) = (old.clone(), vec![0; bytes]);
            finish(element, Reduction::Sum, &mut out, &a, &b, divisor, saves.then_some(&mut saved[..]));
            assert_eq!(out, expected, "{}", element.name());
            assert_eq!(saved == old, saves);

            let (mut into, mut saved) = (a.clone(), vec![0; bytes]);
            finish_assign(element, Reduction::Sum, &mut into, &b, divisor, saves.then_some(&mut saved[..]));
            assert_eq!(into, expected_in_place, "{}", element.name());
            assert_eq!(saved == a, saves);
        }
    }
}

/// Every f16 there is, so that the instruction and the bit trick are known to agree on all of them.
#[test]
fn every_level_sees_the_same_value_in_every_f16() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let minus_zero: Vec<u8> = (0..=u16::MAX).flat_map(|_| 0x8000_u16.to_le_bytes()).collect();
    for kernels in Kernels::available() {
        let mut sum = all.clone();
        let pairs = InPlace { into: &mut sum, other: &minus_zero };
        kernels.combine_assign(Element::F16, Reduction::Sum, pairs);
        for (sum, own) in sum.as_chunks::<2>().0.iter().zip(all.as_chunks::<2>().0) {
            let (sum, own) = (u16::from_le_bytes(*sum), u16::from_le_bytes(*own));
            let quiet = if own & 0x7fff > 0x7c00 { own | 0x0200 } else { own };
            assert_eq!(sum, quiet, "{} {own:#06x}", kernels.name);
        }
    }
}

#[test]
fn integers_wrap_and_round_towards_zero() {
    let mut acc = i64::MAX.to_le_bytes();
    combine_assign(Element::I64, Reduction::Sum, &mut acc, &1_i64.to_le_bytes());
    assert_eq!(i64::from_le_bytes(acc), i64::MIN);
    let mut value = (-7_i64).to_le_bytes();
    divide(Element::I64, &mut value, 2);
    assert_eq!(i64::from_le_bytes(value), -3);
    let mut value = [0x80];
    divide(Element::I8, &mut value, u32::MAX);
    assert_eq!(value, [0]);
}

#[test]
#[should_panic(expected = "there is no xor of f32")]
fn the_bits_of_floats_are_refused() {
    combine_assign(Element::F32, Reduction::Xor, &mut [0; 4], &[0; 4]);
}

#[test]
#[should_panic(expected = "bool has no average")]
fn the_average_of_truths_is_refused() {
    divide(Element::Bool, &mut [1], 2);
}
