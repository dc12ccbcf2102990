//! The levels of processor that the loops are compiled for, and the choice among them.
//!
//! A level is a token: whoever holds one may use what it stands for, and it is made where that was checked. The
//! loops take the token by value and are inlined into one function per entry and level, which the macro at the
//! end writes out; the table of those functions is chosen once.
//!
//! All of it is `inline(always)`: a function that is called instead of inlined is compiled without the level's
//! features, and its vectors are narrow.
//!
//! There is no level of 512-bit vectors: the loops are bound by memory, and AVX-512 lowers some clocks.

#![expect(clippy::inline_always, reason = "see the essay")]

use crate::blocks;
use crate::element::{Element, Reduction};
use crate::half;
use crate::loops::{self, Apart, InPlace};
use crate::quantise::Quantisation;
use std::sync::LazyLock;

/// What the compiler does not find by itself, eight lanes at a time.
pub(crate) trait Level: Copy {
    /// See [`half::widen_f16`].
    fn widen_f16(self, halves: [u16; 8]) -> [f32; 8];
    /// See [`half::narrow_f16`].
    fn narrow_f16(self, values: [f32; 8]) -> [u16; 8];
    /// The low byte of each [`blocks::code`]. The compiler shortens 32 bits to 8 in more steps than it takes, at
    /// half the speed of the whole packing.
    fn codes(self, values: &[f32; 32], inverse: f32) -> [u8; 32];
}

/// What every processor can.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Level for Portable {
    #[inline(always)]
    fn widen_f16(self, halves: [u16; 8]) -> [f32; 8] {
        halves.map(half::widen_f16)
    }

    #[inline(always)]
    fn narrow_f16(self, values: [f32; 8]) -> [u16; 8] {
        values.map(half::narrow_f16)
    }

    #[inline(always)]
    fn codes(self, values: &[f32; 32], inverse: f32) -> [u8; 32] {
        values.map(|value| blocks::code(value, inverse) as u8)
    }
}

/// Proof that the processor has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The compiler lets only functions that are compiled for these features call it without `unsafe`.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn here() -> Self {
        Self(())
    }
}

#[cfg(target_arch = "x86_64")]
impl Level for Avx2 {
    #[inline(always)]
    fn widen_f16(self, halves: [u16; 8]) -> [f32; 8] {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut values = [0.0; 8];
        // SAFETY: the token proves the features; both arrays have the size of their vector.
        unsafe {
            let wide = _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast()));
            _mm256_storeu_ps(values.as_mut_ptr(), wide);
        }
        values
    }

    #[inline(always)]
    fn narrow_f16(self, values: [f32; 8]) -> [u16; 8] {
        use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128};
        use std::arch::x86_64::{_mm256_cvtps_ph, _mm256_loadu_ps};
        let mut halves = [0; 8];
        // SAFETY: as above.
        unsafe {
            let wide = _mm256_loadu_ps(values.as_ptr());
            let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
            _mm_storeu_si128(halves.as_mut_ptr().cast(), narrow);
        }
        halves
    }

    #[inline(always)]
    fn codes(self, values: &[f32; 32], inverse: f32) -> [u8; 32] {
        use std::arch::x86_64::{_mm256_cvtps_epi32, _mm256_loadu_ps, _mm256_mul_ps, _mm256_packs_epi16};
        use std::arch::x86_64::{_mm256_packs_epi32, _mm256_permutevar8x32_epi32, _mm256_set1_ps};
        use std::arch::x86_64::{_mm256_setr_epi32, _mm256_storeu_si256};
        let mut codes = [0; 32];
        // SAFETY: the token proves the features; `values` are four vectors, `codes` are one.
        unsafe {
            let inverse = _mm256_set1_ps(inverse);
            // The conversion rounds as the sum in `code` does: by the mode that the processor is in.
            let at = values.as_ptr();
            let a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(at), inverse));
            let b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(at.add(8)), inverse));
            let c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(at.add(16)), inverse));
            let d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(at.add(24)), inverse));
            // Packing works on each half of the vectors by itself: fours of numbers come out as
            // a b c d a b c d, and are put in order as 32-bit units. No code is large enough to be clipped.
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            _mm256_storeu_si256(codes.as_mut_ptr().cast(), _mm256_permutevar8x32_epi32(bytes, order));
        }
        codes
    }
}

/// The level that the kernels run at on this processor, for reports: `portable` or `avx2`.
pub fn level() -> &'static str {
    Kernels::chosen().name
}

/// Every entry, compiled for one level. The caller has asserted lengths and types.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) name: &'static str,
    combine: unsafe fn(Element, Reduction, Apart<'_>),
    combine_assign: unsafe fn(Element, Reduction, InPlace<'_>),
    divide: unsafe fn(Element, &mut [u8], u32),
    quantise: unsafe fn(Quantisation, Element, &[u8], &mut [u8]),
    dequantise: unsafe fn(Quantisation, Element, &[u8], &mut [u8]),
    accumulate: unsafe fn(Quantisation, Element, &mut [u8], &[u8], Option<u32>),
    error_feedback: unsafe fn(Quantisation, Element, &mut [u8], &mut [u8]),
}

/// Safe faces for the table's entries.
macro_rules! entries {
    ($($entry:ident($($argument:ident: $type:ty),*);)*) => {
        impl Kernels {
            $(
                #[inline]
                pub(crate) fn $entry(&self, $($argument: $type),*) {
                    // SAFETY: only tables whose features the processor has are handed out (`available`).
                    unsafe { (self.$entry)($($argument),*) }
                }
            )*
        }
    };
}

entries! {
    combine(element: Element, reduction: Reduction, pairs: Apart<'_>);
    combine_assign(element: Element, reduction: Reduction, pairs: InPlace<'_>);
    divide(element: Element, values: &mut [u8], by: u32);
    quantise(quantisation: Quantisation, element: Element, values: &[u8], packed: &mut [u8]);
    dequantise(quantisation: Quantisation, element: Element, packed: &[u8], values: &mut [u8]);
    accumulate(quantisation: Quantisation, element: Element, packed: &mut [u8], own: &[u8], by: Option<u32>);
    error_feedback(quantisation: Quantisation, element: Element, values: &mut [u8], residual: &mut [u8]);
}

impl Kernels {
    /// The best that this processor has; chosen at the first call.
    #[inline]
    pub(crate) fn chosen() -> &'static Self {
        static CHOSEN: LazyLock<&'static Kernels> =
            LazyLock::new(|| Kernels::available().last().copied().unwrap_or(&portable::KERNELS));
        *CHOSEN
    }

    /// All that this processor has, the best last.
    pub(crate) fn available() -> Vec<&'static Self> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
            return vec![&portable::KERNELS, &avx2::KERNELS];
        }
        vec![&portable::KERNELS]
    }
}

/// Writes out every entry for one level: the loops are inlined here and so compiled with its features.
macro_rules! compile_for {
    ($level:ident, $token:expr $(, #[$features:meta])?) => {
        mod $level {
            use super::*;

            $(#[$features])?
            fn combine(element: Element, reduction: Reduction, pairs: Apart<'_>) {
                loops::combine($token, element, reduction, pairs);
            }

            $(#[$features])?
            fn combine_assign(element: Element, reduction: Reduction, pairs: InPlace<'_>) {
                loops::combine($token, element, reduction, pairs);
            }

            $(#[$features])?
            fn divide(element: Element, values: &mut [u8], by: u32) {
                loops::divide($token, element, values, by);
            }

            $(#[$features])?
            fn quantise(quantisation: Quantisation, element: Element, values: &[u8], packed: &mut [u8]) {
                blocks::for_types!(quantisation, element, |C, F| {
                    blocks::quantise::<_, C, F>($token, values, packed);
                });
            }

            $(#[$features])?
            fn dequantise(quantisation: Quantisation, element: Element, packed: &[u8], values: &mut [u8]) {
                blocks::for_types!(quantisation, element, |C, F| {
                    blocks::dequantise::<_, C, F>($token, packed, values);
                });
            }

            $(#[$features])?
            fn accumulate(
                quantisation: Quantisation,
                element: Element,
                packed: &mut [u8],
                own: &[u8],
                by: Option<u32>,
            ) {
                blocks::for_types!(quantisation, element, |C, F| {
                    blocks::accumulate::<_, C, F>($token, packed, own, by);
                });
            }

            $(#[$features])?
            fn error_feedback(
                quantisation: Quantisation,
                element: Element,
                values: &mut [u8],
                residual: &mut [u8],
            ) {
                blocks::for_types!(quantisation, element, |C, F| {
                    blocks::error_feedback::<_, C, F>($token, values, residual);
                });
            }

            pub(super) static KERNELS: Kernels = Kernels {
                name: stringify!($level),
                combine,
                combine_assign,
                divide,
                quantise,
                dequantise,
                accumulate,
                error_feedback,
            };
        }
    };
}

compile_for!(portable, Portable);
#[cfg(target_arch = "x86_64")]
compile_for!(avx2, Avx2::here(), #[target_feature(enable = "avx2,f16c")]);
