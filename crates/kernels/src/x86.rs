//! The same meaning with 256-bit vectors.
//!
//! Wider vectors gain nothing here: the loops are bound by memory, and AVX-512 lowers some clocks.

#![expect(
    clippy::cast_ptr_alignment,
    reason = "loads and stores here ask for no alignment, or make sure of it first"
)]

use std::arch::x86_64::{
    __m256i, _mm_sfence, _mm256_add_epi64, _mm256_add_ps, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_div_ps, _mm256_loadu_si256, _mm256_set1_ps, _mm256_storeu_si256, _mm256_stream_si256,
};

/// Bytes of one vector.
const WIDTH: usize = 32;

/// A loop over whole vectors of raw pointers, with the rest left to the scalar form.
macro_rules! vectors {
    ($bytes:expr, |$at:ident| $body:block) => {{
        let whole = $bytes / WIDTH * WIDTH;
        let mut $at = 0;
        while $at < whole {
            $body
            $at += WIDTH;
        }
        whole
    }};
}

macro_rules! adders {
    ($add:ident, $add_assign:ident, $scalar_add:path, $scalar_assign:path, |$x:ident, $y:ident| $sum:expr) => {
        /// # Safety
        /// The processor has AVX2, and `a` and `b` are as long as `dst`.
        #[target_feature(enable = "avx2")]
        pub(crate) unsafe fn $add(dst: &mut [u8], a: &[u8], b: &[u8]) {
            let done = vectors!(dst.len(), |at| {
                // SAFETY: `at + WIDTH` is at most the length of all three (the caller's promise); the loads
                // and stores ask for no alignment.
                unsafe {
                    let $x = _mm256_loadu_si256(a.as_ptr().add(at).cast::<__m256i>());
                    let $y = _mm256_loadu_si256(b.as_ptr().add(at).cast::<__m256i>());
                    _mm256_storeu_si256(dst.as_mut_ptr().add(at).cast::<__m256i>(), $sum);
                }
            });
            $scalar_add(&mut dst[done..], &a[done..], &b[done..]);
        }

        /// # Safety
        /// The processor has AVX2, and `other` is as long as `acc`.
        #[target_feature(enable = "avx2")]
        pub(crate) unsafe fn $add_assign(acc: &mut [u8], other: &[u8]) {
            let done = vectors!(acc.len(), |at| {
                // SAFETY: as above.
                unsafe {
                    let $x = _mm256_loadu_si256(acc.as_ptr().add(at).cast::<__m256i>());
                    let $y = _mm256_loadu_si256(other.as_ptr().add(at).cast::<__m256i>());
                    _mm256_storeu_si256(acc.as_mut_ptr().add(at).cast::<__m256i>(), $sum);
                }
            });
            $scalar_assign(&mut acc[done..], &other[done..]);
        }
    };
}

adders!(add_f32, add_assign_f32, crate::scalar::add_f32, crate::scalar::add_assign_f32, |x, y| {
    _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(y)))
});
adders!(add_i64, add_assign_i64, crate::scalar::add_i64, crate::scalar::add_assign_i64, |x, y| {
    _mm256_add_epi64(x, y)
});

/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn divide_f32(values: &mut [u8], by: u32) {
    let divisor = _mm256_set1_ps(by as f32);
    let done = vectors!(values.len(), |at| {
        // SAFETY: `at + WIDTH` is at most the length; no alignment is asked for.
        unsafe {
            let place = values.as_mut_ptr().add(at).cast::<__m256i>();
            let quotient = _mm256_div_ps(_mm256_castsi256_ps(_mm256_loadu_si256(place)), divisor);
            _mm256_storeu_si256(place, _mm256_castps_si256(quotient));
        }
    });
    crate::scalar::divide_f32(&mut values[done..], by);
}

/// Copies past the caches.
///
/// # Safety
/// The processor has AVX, and `dst` is as long as `src`.
#[target_feature(enable = "avx")]
pub(crate) unsafe fn copy_aside(dst: &mut [u8], src: &[u8]) {
    // Streaming stores ask for alignment of the destination: lead in byte-wise.
    let lead = dst.as_ptr().align_offset(WIDTH).min(dst.len());
    dst[..lead].copy_from_slice(&src[..lead]);
    let (dst, src) = (&mut dst[lead..], &src[lead..]);
    let done = vectors!(dst.len(), |at| {
        // SAFETY: `at + WIDTH` is at most the length of both; `dst` is aligned now.
        unsafe {
            let value = _mm256_loadu_si256(src.as_ptr().add(at).cast::<__m256i>());
            _mm256_stream_si256(dst.as_mut_ptr().add(at).cast::<__m256i>(), value);
        }
    });
    // Streaming stores are weakly ordered: nobody may learn that the copy is done before it is.
    _mm_sfence();
    dst[done..].copy_from_slice(&src[done..]);
}
