//! Hashes of memory, at the speed of memory.
//!
//! XXH3-128 needs fewer cycles per byte than memory does, so what is left to do is to keep memory busy. A core's own
//! prefetcher stops at the end of a page and starts again slowly; asking for lines some kilobytes ahead keeps it going.

use twox_hash::XxHash3_128;

/// How far ahead of the hash lines are asked for: a page, where the processor stops by itself.
const AHEAD_BYTES: usize = 4 << 10;
/// Bytes that are hashed between two rounds of asking.
const STRIDE_BYTES: usize = 4 << 10;

/// XXH3-128 of `bytes`.
pub fn hash128(bytes: &[u8]) -> u128 {
    if bytes.len() <= AHEAD_BYTES {
        return XxHash3_128::oneshot(bytes);
    }
    let mut hasher = XxHash3_128::new();
    for start in (0..bytes.len()).step_by(STRIDE_BYTES) {
        let end = (start + STRIDE_BYTES).min(bytes.len());
        let ahead = (start + AHEAD_BYTES).min(bytes.len());
        prefetch(&bytes[ahead..(ahead + STRIDE_BYTES).min(bytes.len())]);
        hasher.write(&bytes[start..end]);
    }
    hasher.finish_128()
}

/// Asks for these bytes; they need not be there when it returns.
fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        // SAFETY: a hint about an address of ours; every processor of this architecture takes it.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast::<i8>());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
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
        fn it_is_xxh3_at_any_length_and_alignment(length in 0_usize..20_000, shift in 0_usize..64, seed: u8) {
            let bytes: Vec<u8> = (0..length + shift).map(|at| (at as u8).wrapping_mul(seed)).collect();
            prop_assert_eq!(hash128(&bytes[shift..]), XxHash3_128::oneshot(&bytes[shift..]));
        }

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
        let leaf = vec![7; 1 << 20];
        assert_eq!(hash128(&leaf), XxHash3_128::oneshot(&leaf));
    }
}
