//! Multiplying tensors of floating-point numbers, wherever they lie.
//!
//! Kernels add and divide; weights that differ between members need a product as well. It is needed only for members whose
//! weight is not the usual one, on a copy, so that the caller's tensor is untouched until the step is committed.

use crate::communicator::{DataType, Error};
use half::{bf16, f16};

/// A copy is multiplied piece by piece, each while it is in the cache.
const PIECE_BYTES: usize = 32 << 10;

/// Refuses what has no mean.
pub(super) fn check(data_type: DataType, at: usize) -> Result<(), Error> {
    if matches!(data_type, DataType::F16 | DataType::BF16 | DataType::F32 | DataType::F64) {
        return Ok(());
    }
    let text =
        format!("tensor {at} is {data_type}: a weighted mean is one of floating-point numbers; convert it");
    Err(Error::InvalidArgument(text))
}

/// Multiplies every element. A factor of zero gives zeros, even where there was none of a number.
pub(super) fn multiply(data_type: DataType, bytes: &mut [u8], factor: f64) {
    if factor == 0.0 {
        return bytes.fill(0);
    }
    let narrow = factor as f32;
    match data_type {
        DataType::F64 => each(bytes, |x: [u8; 8]| (f64::from_ne_bytes(x) * factor).to_ne_bytes()),
        DataType::F32 => each(bytes, |x: [u8; 4]| (f32::from_ne_bytes(x) * narrow).to_ne_bytes()),
        DataType::F16 => {
            each(bytes, |x: [u8; 2]| f16::from_f32(f16::from_ne_bytes(x).to_f32() * narrow).to_ne_bytes());
        }
        DataType::BF16 => {
            each(bytes, |x: [u8; 2]| bf16::from_f32(bf16::from_ne_bytes(x).to_f32() * narrow).to_ne_bytes());
        }
        _ => unreachable!("it was checked"),
    }
}

/// Makes `copy` what `multiply` would make of the bytes.
pub(super) fn copy_multiplied(data_type: DataType, bytes: &[u8], factor: f64, copy: &mut Vec<u8>) {
    copy.clear();
    copy.reserve(bytes.len());
    for piece in bytes.chunks(PIECE_BYTES) {
        let begin = copy.len();
        copy.extend_from_slice(piece);
        multiply(data_type, &mut copy[begin..], factor);
    }
}

fn each<const BYTES: usize>(bytes: &mut [u8], change: impl Fn([u8; BYTES]) -> [u8; BYTES]) {
    let (elements, rest) = bytes.as_chunks_mut::<BYTES>();
    assert!(rest.is_empty(), "whole elements");
    elements.iter_mut().for_each(|element| *element = change(*element));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_every_type_are_multiplied_wherever_they_lie() {
        let mut bytes = vec![0_u8];
        bytes.extend([1.5_f32, -2.0].iter().flat_map(|x| x.to_ne_bytes()));
        multiply(DataType::F32, &mut bytes[1..], 0.5);
        assert_eq!(bytes[1..5], 0.75_f32.to_ne_bytes());
        let mut halves: Vec<u8> = [f16::from_f32(3.0)].iter().flat_map(|x| x.to_ne_bytes()).collect();
        multiply(DataType::F16, &mut halves, 2.0);
        assert_eq!(halves, f16::from_f32(6.0).to_ne_bytes());
        let mut brains: Vec<u8> = [bf16::from_f32(3.0)].iter().flat_map(|x| x.to_ne_bytes()).collect();
        multiply(DataType::BF16, &mut brains, 2.0);
        assert_eq!(brains, bf16::from_f32(6.0).to_ne_bytes());
        let mut doubles: Vec<u8> = [3.0_f64].iter().flat_map(|x| x.to_ne_bytes()).collect();
        multiply(DataType::F64, &mut doubles, 2.0);
        assert_eq!(doubles, 6.0_f64.to_ne_bytes());
    }

    #[test]
    fn a_copy_is_what_multiplying_gives_and_what_was_there_before_does_not_matter() {
        let mut bytes: Vec<u8> = (0..30_000).flat_map(|x| (x as f32).to_ne_bytes()).collect();
        let mut copy = vec![7; 3];
        copy_multiplied(DataType::F32, &bytes, 0.5, &mut copy);
        multiply(DataType::F32, &mut bytes, 0.5);
        assert_eq!(copy, bytes);
    }

    #[test]
    fn a_weight_of_nothing_counts_for_nothing() {
        let mut bytes: Vec<u8> = [f32::NAN, f32::INFINITY].iter().flat_map(|x| x.to_ne_bytes()).collect();
        multiply(DataType::F32, &mut bytes, 0.0);
        assert_eq!(bytes, [0; 8]);
        assert!(check(DataType::I64, 3).unwrap_err().to_string().contains("tensor 3 is i64"));
    }
}
