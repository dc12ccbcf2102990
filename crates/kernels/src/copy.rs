//! Copies that will not be read soon.

/// Copies `src` to `dst`, which nobody will read soon: where the processor can, past the caches, so that the
/// copy neither fetches the lines it overwrites nor pushes out what is being worked on.
///
/// # Panics
/// If the lengths differ.
pub fn copy_aside(dst: &mut [u8], src: &[u8]) {
    copy_unordered(dst, src);
    order();
}

/// [`copy_aside`] without its end: nobody else may learn of the copy before [`order`].
pub(crate) fn copy_unordered(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len(), "a copy has the length of its original");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the feature was just detected, the lengths just compared.
        return unsafe { stream(dst, src) };
    }
    dst.copy_from_slice(src);
}

/// Streaming stores are weakly ordered: whatever is stored after this is seen after them.
pub(crate) fn order() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    };
}

/// Copies past the caches, in no order.
///
/// # Safety
/// The processor has AVX, and `dst` is as long as `src`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[expect(clippy::cast_ptr_alignment, reason = "loads ask for no alignment, and stores make sure of it first")]
unsafe fn stream(dst: &mut [u8], src: &[u8]) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    const WIDTH: usize = size_of::<__m256i>();
    // Streaming stores ask for alignment of the destination: lead in byte-wise.
    let lead = dst.as_ptr().align_offset(WIDTH).min(dst.len());
    dst[..lead].copy_from_slice(&src[..lead]);
    let (dst, src) = (&mut dst[lead..], &src[lead..]);
    let whole = dst.len() / WIDTH * WIDTH;
    for at in (0..whole).step_by(WIDTH) {
        // SAFETY: `at + WIDTH` is at most the length of both; `dst` is aligned now.
        unsafe {
            let value = _mm256_loadu_si256(src.as_ptr().add(at).cast::<__m256i>());
            _mm256_stream_si256(dst.as_mut_ptr().add(at).cast::<__m256i>(), value);
        }
    }
    dst[whole..].copy_from_slice(&src[whole..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_copy_is_a_copy_at_any_alignment(bytes in prop::collection::vec(any::<u8>(), 0..500), shift in 0_usize..64) {
            let mut place = vec![0xaa; bytes.len() + shift + 8];
            let end = shift + bytes.len();
            copy_aside(&mut place[shift..end], &bytes);
            prop_assert_eq!(&place[shift..end], &bytes[..]);
            prop_assert!(place[end..].iter().all(|byte| *byte == 0xaa));
        }
    }
}
