//! Quantised blocks: 128 numbers, one scale.
//!
//! **Layout.** The scale as an f32, then the codes. `int8`: a byte each. `int4`: byte *j* holds number *j* in its
//! low half and number *j* + ⌈n/2⌉ in its high half, so that a vector of bytes opens into two vectors of
//! neighbours. The last block of a list may be short; it is packed the same way.
//!
//! **Scale.** The largest magnitude over the largest code, 127 or 7, but at least the smallest normal f32: then
//! its reciprocal is finite, a block of zeros needs no case of its own, and no subnormal ever comes out. If the
//! largest code would stand for infinity, the next scale below is taken. Codes are symmetric: −128 and −8 are not
//! used, so that negating the numbers negates the codes.
//!
//! **Rounding** is to nearest, ties to even, by adding 1.5 · 2^23: there the last place of an f32 is worth one,
//! so the processor's own rounding of the sum is the one wanted, and the code stands in its low bits. This is the
//! same on every processor and needs no instruction that only some have.
//!
//! **Not a number.** Integers order as magnitudes of floats do, with infinity and NaN on top. A block whose
//! largest is one of these gets the canonical NaN as its scale and zeros as codes, and opens to NaN everywhere.
//! So does a block that arrives with any scale that is not finite.

#![expect(clippy::inline_always, reason = "the loops are compiled where they are inlined: see `level`")]

use crate::half;
use crate::level::Level;

/// Numbers that share a scale.
pub(crate) const BLOCK: usize = 128;
/// Numbers that a level packs at once.
const GROUP: usize = 32;
/// Bytes of a scale.
pub(crate) const SCALE_BYTES: usize = 4;

/// 1.5 · 2^23. See the essay.
const ROUNDER: f32 = 12_582_912.0;
const INFINITY_BITS: u32 = 0x7f80_0000;
const CANONICAL_NAN: f32 = f32::from_bits(0x7fc0_0000);

/// How numbers become codes.
pub(crate) trait Codes {
    /// The largest code.
    const LARGEST: f32;
    /// Bytes of the codes of so many numbers.
    fn bytes(numbers: usize) -> usize;
    /// Writes the codes of `values` over the scale whose reciprocal is `inverse`.
    fn pack(level: impl Level, values: &[f32], inverse: f32, codes: &mut [u8]);
    /// Writes the numbers that `codes` stand for.
    fn unpack(codes: &[u8], scale: f32, values: &mut [f32]);
}

/// The bits of `value` rounded to an integer; exact in as many low bits as a code has.
#[inline(always)]
pub(crate) fn code(value: f32, inverse: f32) -> u32 {
    (value * inverse + ROUNDER).to_bits()
}

pub(crate) struct Int8;

impl Codes for Int8 {
    const LARGEST: f32 = 127.0;

    #[inline(always)]
    fn bytes(numbers: usize) -> usize {
        numbers
    }

    #[inline(always)]
    fn pack(level: impl Level, values: &[f32], inverse: f32, codes: &mut [u8]) {
        let (groups, rest) = values.as_chunks::<GROUP>();
        let (codes, codes_rest) = codes.as_chunks_mut::<GROUP>();
        for (codes, group) in codes.iter_mut().zip(groups) {
            *codes = level.codes(group, inverse);
        }
        for (byte, value) in codes_rest.iter_mut().zip(rest) {
            *byte = code(*value, inverse) as u8;
        }
    }

    #[inline(always)]
    fn unpack(codes: &[u8], scale: f32, values: &mut [f32]) {
        for (byte, value) in codes.iter().zip(values) {
            *value = f32::from(*byte as i8) * scale;
        }
    }
}

pub(crate) struct Int4;

impl Codes for Int4 {
    const LARGEST: f32 = 7.0;

    #[inline(always)]
    fn bytes(numbers: usize) -> usize {
        numbers.div_ceil(2)
    }

    #[inline(always)]
    fn pack(level: impl Level, values: &[f32], inverse: f32, codes: &mut [u8]) {
        let (low, high) = values.split_at(values.len().div_ceil(2));
        let ((low, low_rest), (high, high_rest)) = (low.as_chunks::<GROUP>(), high.as_chunks::<GROUP>());
        let (codes, codes_rest) = codes.split_at_mut(high.len() * GROUP);
        for ((codes, low), high) in codes.as_chunks_mut::<GROUP>().0.iter_mut().zip(low).zip(high) {
            let (low, high) = (level.codes(low, inverse), level.codes(high, inverse));
            for ((byte, low), high) in codes.iter_mut().zip(low).zip(high) {
                *byte = low & 0x0f | high << 4;
            }
        }
        // Of an odd number, the one in the middle has no partner.
        let low_rest = low.iter().skip(high.len()).flatten().chain(low_rest);
        let high_rest = high_rest.iter().copied().chain(std::iter::once(0.0));
        for ((byte, low), high) in codes_rest.iter_mut().zip(low_rest).zip(high_rest) {
            *byte = (code(*low, inverse) & 0x0f | code(high, inverse) << 4) as u8;
        }
    }

    #[inline(always)]
    fn unpack(codes: &[u8], scale: f32, values: &mut [f32]) {
        let (low, high) = values.split_at_mut(values.len().div_ceil(2));
        for (byte, low) in codes.iter().zip(low) {
            // The low half's sign is pushed to the top and drawn down again.
            *low = ((i32::from(*byte) << 28) >> 28) as f32 * scale;
        }
        for (byte, high) in codes.iter().zip(high) {
            *high = (i32::from(*byte as i8) >> 4) as f32 * scale;
        }
    }
}

/// Numbers of a caller, to and from f32.
pub(crate) trait Numbers {
    /// Bytes of one.
    const SIZE: usize;
    fn load(level: impl Level, bytes: &[u8], values: &mut [f32]);
    fn store(level: impl Level, values: &[f32], bytes: &mut [u8]);
}

/// The ones that convert one by one.
macro_rules! numbers {
    ($name:ident, $type:ty, |$number:ident| $load:expr, |$value:ident| $store:expr) => {
        pub(crate) struct $name;

        impl Numbers for $name {
            const SIZE: usize = size_of::<$type>();

            #[inline(always)]
            fn load(_: impl Level, bytes: &[u8], values: &mut [f32]) {
                for (bytes, value) in bytes.as_chunks().0.iter().zip(values) {
                    let $number = <$type>::from_le_bytes(*bytes);
                    *value = $load;
                }
            }

            #[inline(always)]
            fn store(_: impl Level, values: &[f32], bytes: &mut [u8]) {
                for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                    let $value = *value;
                    let number: $type = $store;
                    *bytes = number.to_le_bytes();
                }
            }
        }
    };
}

numbers!(AsF32, f32, |number| number, |value| value);
numbers!(AsF64, f64, |number| number as f32, |value| f64::from(value));
numbers!(AsBF16, u16, |number| half::widen_bf16(number), |value| half::narrow_bf16(value));
// The rest of the ones that a level converts by eight.
numbers!(OneF16, u16, |number| half::widen_f16(number), |value| half::narrow_f16(value));

pub(crate) struct AsF16;

impl Numbers for AsF16 {
    const SIZE: usize = 2;

    #[inline(always)]
    fn load(level: impl Level, bytes: &[u8], values: &mut [f32]) {
        let (groups, rest) = bytes.as_chunks::<16>();
        let (wide, wide_rest) = values.as_chunks_mut::<8>();
        for (group, wide) in groups.iter().zip(wide) {
            *wide = level.widen_f16(crate::loops::halves(*group));
        }
        OneF16::load(level, rest, wide_rest);
    }

    #[inline(always)]
    fn store(level: impl Level, values: &[f32], bytes: &mut [u8]) {
        let (groups, rest) = bytes.as_chunks_mut::<16>();
        let (wide, wide_rest) = values.as_chunks::<8>();
        for (group, wide) in groups.iter_mut().zip(wide) {
            *group = crate::loops::half_bytes(level.narrow_f16(*wide));
        }
        OneF16::store(level, wide_rest, rest);
    }
}

/// Runs a block of code with the types that a quantisation and an element stand for.
macro_rules! for_types {
    ($quantisation:expr, $element:expr, |$codes:ident, $numbers:ident| $body:block) => {{
        macro_rules! with {
            ($c:ty, $n:ty) => {{
                type $codes = $c;
                type $numbers = $n;
                $body
            }};
        }
        match ($quantisation, $element) {
            (Quantisation::Int8, Element::F32) => with!(blocks::Int8, blocks::AsF32),
            (Quantisation::Int8, Element::F64) => with!(blocks::Int8, blocks::AsF64),
            (Quantisation::Int8, Element::F16) => with!(blocks::Int8, blocks::AsF16),
            (Quantisation::Int8, Element::BF16) => with!(blocks::Int8, blocks::AsBF16),
            (Quantisation::Int4, Element::F32) => with!(blocks::Int4, blocks::AsF32),
            (Quantisation::Int4, Element::F64) => with!(blocks::Int4, blocks::AsF64),
            (Quantisation::Int4, Element::F16) => with!(blocks::Int4, blocks::AsF16),
            (Quantisation::Int4, Element::BF16) => with!(blocks::Int4, blocks::AsBF16),
            _ => unreachable!("asserted by the caller"),
        }
    }};
}
pub(crate) use for_types;

/// Writes `values` as a block: scale and codes. Says whether they were finite.
#[inline(always)]
fn pack<C: Codes>(level: impl Level, values: &[f32], packed: &mut [u8]) -> bool {
    let (scale_bytes, codes) = packed.split_at_mut(SCALE_BYTES);
    let largest = values.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & 0x7fff_ffff));
    if largest >= INFINITY_BITS {
        scale_bytes.copy_from_slice(&CANONICAL_NAN.to_le_bytes());
        codes.fill(0);
        return false;
    }
    let mut scale = (f32::from_bits(largest) / C::LARGEST).max(f32::MIN_POSITIVE);
    if scale * C::LARGEST > f32::MAX {
        scale = scale.next_down();
    }
    scale_bytes.copy_from_slice(&scale.to_le_bytes());
    C::pack(level, values, 1.0 / scale, codes);
    true
}

/// Reads a block into `values`.
#[inline(always)]
fn unpack<C: Codes>(packed: &[u8], values: &mut [f32]) {
    let (scale, codes) = packed.split_at(SCALE_BYTES);
    let scale = scale.first_chunk().map_or(CANONICAL_NAN, |bytes| f32::from_le_bytes(*bytes));
    if scale.is_finite() {
        C::unpack(codes, scale, values);
    } else {
        values.fill(CANONICAL_NAN);
    }
}

/// Bytes of the whole blocks in `values` bytes of numbers: (numbers, packed). A short block may be as long as a
/// whole one when packed (127 numbers in halves of bytes), so only the numbers can tell where the last begins.
#[inline(always)]
fn whole<C: Codes, N: Numbers>(values: usize) -> (usize, usize) {
    let blocks = values / (BLOCK * N::SIZE);
    (blocks * BLOCK * N::SIZE, blocks * (SCALE_BYTES + C::bytes(BLOCK)))
}

/// Numbers as blocks.
#[inline(always)]
pub(crate) fn quantise<L: Level, C: Codes, N: Numbers>(level: L, values: &[u8], packed: &mut [u8]) {
    let mut wide = [0.0; BLOCK];
    let (values_end, packed_end) = whole::<C, N>(values.len());
    let (values, last) = values.split_at(values_end);
    let (packed, packed_last) = packed.split_at_mut(packed_end);
    let packed_blocks = packed.chunks_exact_mut(SCALE_BYTES + C::bytes(BLOCK));
    for (values, packed) in values.chunks_exact(BLOCK * N::SIZE).zip(packed_blocks) {
        N::load(level, values, &mut wide);
        pack::<C>(level, &wide, packed);
    }
    if !last.is_empty() {
        let wide = &mut wide[..last.len() / N::SIZE];
        N::load(level, last, wide);
        pack::<C>(level, wide, packed_last);
    }
}

/// Blocks as numbers.
#[inline(always)]
pub(crate) fn dequantise<L: Level, C: Codes, N: Numbers>(level: L, packed: &[u8], values: &mut [u8]) {
    let mut wide = [0.0; BLOCK];
    let (values_end, packed_end) = whole::<C, N>(values.len());
    let (values, last) = values.split_at_mut(values_end);
    let (packed, packed_last) = packed.split_at(packed_end);
    let packed_blocks = packed.chunks_exact(SCALE_BYTES + C::bytes(BLOCK));
    for (values, packed) in values.chunks_exact_mut(BLOCK * N::SIZE).zip(packed_blocks) {
        unpack::<C>(packed, &mut wide);
        N::store(level, &wide, values);
    }
    if !last.is_empty() {
        let wide = &mut wide[..last.len() / N::SIZE];
        unpack::<C>(packed_last, wide);
        N::store(level, wide, last);
    }
}

/// One block of [`accumulate`].
#[inline(always)]
fn accumulate_block<L: Level, C: Codes, N: Numbers>(
    level: L,
    packed: &mut [u8],
    own: &[u8],
    by: Option<u32>,
    [sum, wide]: [&mut [f32]; 2],
) {
    unpack::<C>(packed, sum);
    N::load(level, own, wide);
    for (sum, own) in sum.iter_mut().zip(&*wide) {
        *sum += *own;
    }
    if let Some(by) = by {
        for sum in sum.iter_mut() {
            *sum /= by as f32;
        }
    }
    pack::<C>(level, sum, packed);
}

/// Adds numbers to blocks, in f32, and divides if asked to.
#[inline(always)]
pub(crate) fn accumulate<L: Level, C: Codes, N: Numbers>(
    level: L,
    packed: &mut [u8],
    own: &[u8],
    by: Option<u32>,
) {
    let (mut sum, mut wide) = ([0.0; BLOCK], [0.0; BLOCK]);
    let (own_end, packed_end) = whole::<C, N>(own.len());
    let (own, last) = own.split_at(own_end);
    let (packed, packed_last) = packed.split_at_mut(packed_end);
    let packed_blocks = packed.chunks_exact_mut(SCALE_BYTES + C::bytes(BLOCK));
    for (own, packed) in own.chunks_exact(BLOCK * N::SIZE).zip(packed_blocks) {
        accumulate_block::<L, C, N>(level, packed, own, by, [&mut sum, &mut wide]);
    }
    if !last.is_empty() {
        let numbers = last.len() / N::SIZE;
        let scratch = [&mut sum[..numbers], &mut wide[..numbers]];
        accumulate_block::<L, C, N>(level, packed_last, last, by, scratch);
    }
}

/// One block of [`error_feedback`].
#[inline(always)]
fn feedback_block<L: Level, C: Codes, N: Numbers>(
    level: L,
    values: &mut [u8],
    residual: &mut [u8],
    [wanted, wide]: [&mut [f32]; 2],
) {
    N::load(level, values, wanted);
    N::load(level, residual, wide);
    for (wanted, residual) in wanted.iter_mut().zip(&*wide) {
        *wanted += *residual;
    }
    let mut packed = [0; SCALE_BYTES + BLOCK];
    let packed = &mut packed[..SCALE_BYTES + C::bytes(wanted.len())];
    let finite = pack::<C>(level, wanted, packed);
    unpack::<C>(packed, wide);
    N::store(level, wide, values);
    // What the caller will send is what its type can hold.
    N::load(level, values, wide);
    for (wanted, sent) in wanted.iter_mut().zip(&*wide) {
        *wanted -= *sent;
    }
    if !finite {
        wanted.fill(0.0);
    }
    N::store(level, wanted, residual);
}

/// Adds what is owed to the values, rounds them to what codes can say, and notes what is owed now.
#[inline(always)]
pub(crate) fn error_feedback<L: Level, C: Codes, N: Numbers>(
    level: L,
    values: &mut [u8],
    residual: &mut [u8],
) {
    let (mut wanted, mut wide) = ([0.0; BLOCK], [0.0; BLOCK]);
    let mut blocks = values.chunks_exact_mut(BLOCK * N::SIZE);
    let mut residuals = residual.chunks_exact_mut(BLOCK * N::SIZE);
    for (values, residual) in blocks.by_ref().zip(residuals.by_ref()) {
        feedback_block::<L, C, N>(level, values, residual, [&mut wanted, &mut wide]);
    }
    let (values, residual) = (blocks.into_remainder(), residuals.into_remainder());
    if !values.is_empty() {
        let numbers = values.len() / N::SIZE;
        let scratch = [&mut wanted[..numbers], &mut wide[..numbers]];
        feedback_block::<L, C, N>(level, values, residual, scratch);
    }
}
