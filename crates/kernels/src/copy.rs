//! Copies that will not be read soon.

/// Copies `src` to `dst`, which nobody will read soon: where the processor can, past the caches, so that the
/// copy neither fetches the lines it overwrites nor pushes out what is being worked on.
///
/// # Panics
/// If the lengths differ.
pub fn copy_aside(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len(), "a copy has the length of its original");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the feature was just detected, the lengths just compared.
        return unsafe { crate::x86::copy_aside(dst, src) };
    }
    dst.copy_from_slice(src);
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
