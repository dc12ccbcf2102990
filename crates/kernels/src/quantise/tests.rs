//! Packing against its definition, and its error against the bound.

use super::*;
use proptest::prelude::*;

const FLOATS: [Element; 4] = [Element::F16, Element::BF16, Element::F32, Element::F64];

/// `values` as bytes of `element`.
fn bytes_of(element: Element, values: &[f32]) -> Vec<u8> {
    let bytes = |value: &f32| match element {
        Element::F16 => crate::half::narrow_f16(*value).to_le_bytes().to_vec(),
        Element::BF16 => crate::half::narrow_bf16(*value).to_le_bytes().to_vec(),
        Element::F32 => value.to_le_bytes().to_vec(),
        _ => f64::from(*value).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn values_of(element: Element, bytes: &[u8]) -> Vec<f32> {
    let value = |one: &[u8]| match (element, one) {
        (Element::F16, &[a, b]) => crate::half::widen_f16(u16::from_le_bytes([a, b])),
        (Element::BF16, &[a, b]) => crate::half::widen_bf16(u16::from_le_bytes([a, b])),
        (Element::F32, _) => f32::from_le_bytes(one.try_into().unwrap()),
        _ => f64::from_le_bytes(one.try_into().unwrap()) as f32,
    };
    bytes.chunks_exact(element.size()).map(value).collect()
}

/// The packed form, from the description of the layout.
fn packed_by_definition(quantisation: Quantisation, values: &[f32]) -> Vec<u8> {
    let mut packed = Vec::new();
    for block in values.chunks(Quantisation::BLOCK) {
        if block.iter().any(|value| !value.is_finite()) {
            packed.extend(0x7fc0_0000_u32.to_le_bytes());
            packed.resize(packed.len() + quantised_len(quantisation, block.len()) - 4, 0);
            continue;
        }
        let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let code_max = quantisation.largest_code();
        let mut scale = (largest / code_max).max(f32::MIN_POSITIVE);
        if (scale * code_max).is_infinite() {
            scale = scale.next_down();
        }
        packed.extend(scale.to_le_bytes());
        let code = |value: &f32| (value * (1.0 / scale)).round_ties_even() as i8;
        let codes: Vec<i8> = block.iter().map(code).collect();
        assert!(codes.iter().all(|code| f32::from(code.abs()) <= code_max));
        match quantisation {
            Quantisation::Int8 => packed.extend(codes.iter().map(|code| *code as u8)),
            Quantisation::Int4 => {
                let half = codes.len().div_ceil(2);
                let nibble = |index: usize| codes.get(index).map_or(0, |code| *code as u8 & 0x0f);
                packed.extend((0..half).map(|index| nibble(index) | nibble(index + half) << 4));
            }
        }
    }
    packed
}

/// Lists of any length whose blocks have any magnitude, now and then with what is special.
fn lists() -> impl Strategy<Value = Vec<f32>> {
    let ordinary = (-1.0_f32..1.0, -130_i32..128);
    let special = prop::sample::select(vec![
        0.0,
        -0.0,
        f32::MAX,
        f32::MIN,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
    ]);
    (0_usize..600, -130_i32..128, 0_u32..3).prop_flat_map(move |(count, magnitude, kind)| {
        let near = (-1.0_f32..1.0).prop_map(move |value| value * 2_f32.powi(magnitude));
        let wild = ordinary.clone().prop_map(|(value, exponent)| value * 2_f32.powi(exponent));
        match kind {
            0 => prop::collection::vec(near, count).boxed(),
            1 => prop::collection::vec(wild, count).boxed(),
            _ => prop::collection::vec(prop_oneof![200 => near, 1 => special.clone()], count).boxed(),
        }
    })
}

fn shifted(bytes: &[u8], shift: usize) -> Vec<u8> {
    [vec![0; shift], bytes.to_vec()].concat()
}

proptest! {
    #[test]
    fn every_level_packs_and_opens_as_defined(values in lists(), shift in 0_usize..9) {
        for element in FLOATS {
            let bytes = shifted(&bytes_of(element, &values), shift);
            let values = values_of(element, &bytes[shift..]);
            for quantisation in Quantisation::ALL {
                let expected = packed_by_definition(quantisation, &values);
                let mut opened_by_first = None;
                for kernels in Kernels::available() {
                    let case = format!("{} {} {}", kernels.name, quantisation.name(), element.name());
                    let mut packed = vec![0xaa; expected.len() + shift];
                    kernels.quantise(quantisation, element, &bytes[shift..], &mut packed[shift..]);
                    prop_assert_eq!(&packed[shift..], &expected[..], "{}", case);
                    let mut opened = vec![0xaa; bytes.len()];
                    kernels.dequantise(quantisation, element, &packed[shift..], &mut opened[shift..]);
                    let first = opened_by_first.get_or_insert_with(|| opened.clone());
                    prop_assert_eq!(&opened, &*first, "{}", case);
                }
            }
        }
    }

    /// One packing errs by half a scale, and a hair for the rounding of f32.
    #[test]
    fn one_packing_errs_by_half_a_scale(values in lists()) {
        for quantisation in Quantisation::ALL {
            let mut packed = vec![0; quantised_len(quantisation, values.len())];
            quantise(quantisation, Element::F32, &bytes_of(Element::F32, &values), &mut packed);
            let mut opened = vec![0; values.len() * 4];
            dequantise(quantisation, Element::F32, &packed, &mut opened);
            let opened = values_of(Element::F32, &opened);
            for (block, opened) in values.chunks(BLOCK).zip(opened.chunks(BLOCK)) {
                if block.iter().any(|value| !value.is_finite()) {
                    prop_assert!(opened.iter().all(|value| value.to_bits() == 0x7fc0_0000));
                    continue;
                }
                let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                let scale = (f64::from(largest) / f64::from(quantisation.largest_code())).max(f64::from(f32::MIN_POSITIVE));
                for (value, opened) in block.iter().zip(opened) {
                    let error = (f64::from(*value) - f64::from(*opened)).abs();
                    prop_assert!(error <= scale * 0.5001, "{value} opened to {opened}, scale {scale}");
                }
            }
        }
    }

    #[test]
    fn accumulating_is_opening_adding_and_packing(
        (first, second) in (lists(), lists()),
        divisor in prop::option::of(1_u32..9),
        shift in 0_usize..9,
    ) {
        let count = first.len().min(second.len());
        for element in FLOATS {
            let own = shifted(&bytes_of(element, &second[..count]), shift);
            for quantisation in Quantisation::ALL {
                let packed = packed_by_definition(quantisation, &first[..count]);
                let mut opened = vec![0; count * 4];
                dequantise(quantisation, Element::F32, &packed, &mut opened);
                let opened = values_of(Element::F32, &opened);
                let sum = opened.iter().zip(values_of(element, &own[shift..])).map(|(a, b)| match divisor {
                    Some(divisor) => (a + b) / divisor as f32,
                    None => a + b,
                });
                let expected = packed_by_definition(quantisation, &sum.collect::<Vec<_>>());
                for kernels in Kernels::available() {
                    let mut packed = shifted(&packed, 8 - shift);
                    kernels.accumulate(quantisation, element, &mut packed[8 - shift..], &own[shift..], divisor);
                    prop_assert_eq!(&packed[8 - shift..], &expected[..], "{} {}", kernels.name, element.name());
                }
            }
        }
    }

    /// The documented bound, over a chain of members, against sums in f64.
    #[test]
    fn a_chain_of_members_errs_within_the_bound(
        seeds in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 300), 1..9),
        average in any::<bool>(),
    ) {
        let members = seeds.len();
        let divisor = average.then_some(members as u32);
        for quantisation in Quantisation::ALL {
            let mut exact: Vec<f64> = seeds[0].iter().copied().map(f64::from).collect();
            let mut largest = exact.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
            let mut packed = packed_by_definition(quantisation, &seeds[0]);
            for (index, own) in seeds.iter().enumerate().skip(1) {
                let divisor = divisor.filter(|_| index == members - 1);
                accumulate(quantisation, Element::F32, &mut packed, &bytes_of(Element::F32, own), divisor);
                for (sum, own) in exact.iter_mut().zip(own) {
                    *sum += f64::from(*own);
                    largest = largest.max(sum.abs());
                }
            }
            let mut opened = vec![0; 300 * 4];
            dequantise(quantisation, Element::F32, &packed, &mut opened);
            // The partial sums that were packed hold earlier errors: their largest is the exact one and those.
            let step = 0.5 / f64::from(quantisation.largest_code());
            let mut bound = 0.0;
            for _ in 0..members {
                bound += (largest + bound) * step;
            }
            for (exact, opened) in exact.iter().zip(values_of(Element::F32, &opened)) {
                let exact = exact / divisor.map_or(1.0, f64::from);
                let error = (exact - f64::from(opened)).abs();
                prop_assert!(error <= bound * 1.001, "{} of {members}: {error} above {bound}", quantisation.name());
            }
        }
    }

    /// What is rounded away comes back: after any number of rounds the total that was sent is off by what is
    /// still owed, and that is half a scale.
    #[test]
    fn error_feedback_owes_no_more_than_one_round(
        rounds in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, 131), 1..30),
        element in prop::sample::select(FLOATS.to_vec()),
    ) {
        for quantisation in Quantisation::ALL {
            for kernels in Kernels::available() {
                let mut residual = vec![0; 131 * element.size()];
                let (mut wanted, mut sent) = (vec![0.0_f64; 131], vec![0.0_f64; 131]);
                for round in &rounds {
                    let mut values = bytes_of(element, round);
                    for (wanted, value) in wanted.iter_mut().zip(values_of(element, &values)) {
                        *wanted += f64::from(value);
                    }
                    kernels.error_feedback(quantisation, element, &mut values, &mut residual);
                    for (sent, value) in sent.iter_mut().zip(values_of(element, &values)) {
                        *sent += f64::from(value);
                    }
                }
                // Values and what they are owed stay below 1.1. In 16 bits, what is sent is rounded once more, by
                // less than 2^-8 of it, and so is what is owed, in each round.
                let owed = 0.5 / f64::from(quantisation.largest_code()) * 1.1;
                let slack = if element.size() == 2 {
                    (1.1 + owed * rounds.len() as f64) / 256.0
                } else {
                    1e-5
                };
                for (wanted, sent) in wanted.iter().zip(&sent) {
                    prop_assert!((wanted - sent).abs() <= owed + slack, "{} {}", kernels.name, element.name());
                }
            }
        }
    }
}

/// Also those whose short last block is as long as a whole one when packed.
#[test]
fn every_length_is_packed_and_opened() {
    for count in 0..=2 * BLOCK + 1 {
        let values: Vec<f32> = (0..count).map(|index| (index % 15) as f32 - 7.0).collect();
        for quantisation in Quantisation::ALL {
            let mut packed = vec![0; quantised_len(quantisation, count)];
            quantise(quantisation, Element::F32, &bytes_of(Element::F32, &values), &mut packed);
            assert_eq!(packed, packed_by_definition(quantisation, &values), "{count}");
            let mut opened = vec![0; count * 4];
            dequantise(quantisation, Element::F32, &packed, &mut opened);
            let near = |(value, opened): (&f32, f32)| (value - opened).abs() < 0.51;
            assert!(values.iter().zip(values_of(Element::F32, &opened)).all(near), "{count}");
        }
    }
}

#[test]
fn lengths_and_factors_are_as_documented() {
    assert_eq!(quantised_len(Quantisation::Int8, 0), 0);
    assert_eq!(quantised_len(Quantisation::Int8, 1), 5);
    assert_eq!(quantised_len(Quantisation::Int8, 129), 132 + 5);
    assert_eq!(quantised_len(Quantisation::Int4, 1), 5);
    assert_eq!(quantised_len(Quantisation::Int4, 131), 68 + 6);
    let factor = |quantisation| 4.0 * 1280.0 / quantised_len(quantisation, 1280) as f64;
    assert!(factor(Quantisation::Int8) > 3.87 && factor(Quantisation::Int4) > 7.5);
}

#[test]
fn what_is_not_a_number_poisons_its_block_and_no_other() {
    let mut values = vec![1.0_f32; 3 * BLOCK];
    values[BLOCK + 5] = f32::NEG_INFINITY;
    for quantisation in Quantisation::ALL {
        let mut packed = vec![0; quantised_len(quantisation, values.len())];
        quantise(quantisation, Element::F32, &bytes_of(Element::F32, &values), &mut packed);
        accumulate(quantisation, Element::F32, &mut packed, &bytes_of(Element::F32, &values), None);
        let mut opened = vec![0; values.len() * 2];
        dequantise(quantisation, Element::BF16, &packed, &mut opened);
        let opened = values_of(Element::BF16, &opened);
        assert!(opened[BLOCK..2 * BLOCK].iter().all(|value| value.is_nan()));
        assert!(
            opened[..BLOCK]
                .iter()
                .chain(&opened[2 * BLOCK..])
                .all(|value| value.to_bits() == 2.0_f32.to_bits())
        );
        // A scale that no honest packing writes is answered in the same way.
        packed[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        let mut opened = vec![0; values.len() * 4];
        dequantise(quantisation, Element::F32, &packed, &mut opened);
        assert!(values_of(Element::F32, &opened)[..BLOCK].iter().all(|value| value.to_bits() == 0x7fc0_0000));
    }
}

#[test]
fn a_block_that_is_not_finite_owes_nothing() {
    let mut values = bytes_of(Element::F32, &[1.0, f32::NAN]);
    let mut residual = bytes_of(Element::F32, &[0.25, 0.25]);
    error_feedback(Quantisation::Int4, Element::F32, &mut values, &mut residual);
    assert!(values_of(Element::F32, &values).iter().all(|value| value.is_nan()));
    assert_eq!(values_of(Element::F32, &residual), [0.0, 0.0]);
}

#[test]
#[should_panic(expected = "int8 does not quantise i32")]
fn integers_are_not_quantised() {
    quantise(Quantisation::Int8, Element::I32, &[0; 4], &mut [0; 5]);
}
