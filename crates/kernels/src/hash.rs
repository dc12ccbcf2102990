//! Hashes of memory, at the speed of memory.
//!
//! XXH3-128 needs fewer cycles per byte than memory does, so hashing a megabyte in one go takes as long as reading it.
//! Nothing is to be gained by asking for lines ahead: the processor does that itself, and `outlast bench hash` showed a
//! quarter less speed with it.

use twox_hash::XxHash3_128;

/// XXH3-128 of `bytes`.
pub fn hash128(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// Reads `bytes` and does next to nothing with them: what no hash can be faster than.
pub fn read_through(bytes: &[u8]) -> u64 {
    let (head, words, tail) = as_words(bytes);
    let mut lanes = [0_u64; 8];
    for block in words.chunks_exact(8) {
        lanes.iter_mut().zip(block).for_each(|(lane, word)| *lane ^= word);
    }
    let rest = words.chunks_exact(8).remainder();
    let edges = head.iter().chain(tail).fold(0, |sum, byte| sum ^ u64::from(*byte));
    lanes.iter().chain(rest).fold(edges, |sum, word| sum ^ word)
}

fn as_words(bytes: &[u8]) -> (&[u8], &[u64], &[u8]) {
    // SAFETY: every pattern of eight bytes is a number.
    unsafe { bytes.align_to::<u64>() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_read(length in 1_usize..500, at in 0_usize..500, shift in 0_usize..9) {
            let mut bytes = vec![0; length + shift];
            bytes[shift + at % length] = 1;
            prop_assert_ne!(read_through(&bytes[shift..]), 0);
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(hash128(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
    }
}
