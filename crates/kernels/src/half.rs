//! 16-bit floats, one at a time, without a branch.
//!
//! Arithmetic on them is done in 32 bits and rounded back: a sum or a product of two f16 is then rounded once in
//! effect, since 24 bits of fraction hold more than twice 11. The conversions are written as selections instead
//! of branches, so that the compiler can make vectors of them.
//!
//! No step works on a subnormal f32: a caller's thread may have asked its processor to treat those as zero, and
//! its results would differ from its neighbour's.
//!
//! A NaN stays a NaN, is made quiet, and keeps as much of its payload as fits: what F16C does.

#![expect(clippy::inline_always, reason = "the loops are compiled where they are inlined: see `level`")]

const F32_SIGN: u32 = 0x8000_0000;
const F32_INFINITY: u32 = 0x7f80_0000;
const F32_QUIET: u32 = 0x0040_0000;
/// What the exponents of f32 and f16 are apart, in place.
const REBIAS: u32 = (127 - 15) << 23;
/// An f32 whose last bit is worth 2^-24, which is what the last bit of a subnormal f16 is worth.
const HALF: u32 = 0x3f00_0000;

/// The f32 of the same value.
#[inline(always)]
pub(crate) fn widen_f16(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let normal = (magnitude << 13) + REBIAS;
    let special = ((magnitude << 13) + 2 * REBIAS) | if magnitude > 0x7c00 { F32_QUIET } else { 0 };
    // The bits of a subnormal count units of the last place: placed behind one half they are a sum.
    let subnormal = (f32::from_bits(HALF | magnitude) - 0.5).to_bits();
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

/// The nearest f16, of two the even one; infinity from 65520 on.
#[inline(always)]
pub(crate) fn narrow_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits & F32_SIGN) >> 16;
    let magnitude = bits & !F32_SIGN;
    // Less than half of the last place, or exactly half if the last place is odd, carries into it; a carry out
    // of the fraction raises the exponent, up to infinity, as it should.
    let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(0x0fff + ((magnitude >> 13) & 1)) >> 13;
    // Added to one half, the processor rounds at the last place of a subnormal f16.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(HALF);
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let special = if magnitude > F32_INFINITY { 0x7e00 | ((magnitude >> 13) & 0x03ff) } else { 0x7c00 };
    (sign | if magnitude >= 0x4780_0000 { special } else { finite }) as u16
}

/// The f32 of the same value.
#[inline(always)]
pub(crate) fn widen_bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The nearest bf16, of two the even one.
#[inline(always)]
pub(crate) fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // As above. The carry of a NaN could make it a zero, so a NaN is cut off instead.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let nan = bits & !F32_SIGN > F32_INFINITY;
    ((if nan { bits | F32_QUIET } else { rounded }) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of an f16 or bf16 from the definition of the format.
    fn value(half: u16, exponent_bits: u32) -> f64 {
        let fraction_bits = 15 - exponent_bits;
        let bias = (1 << (exponent_bits - 1)) - 1;
        let exponent = i32::from((half & 0x7fff) >> fraction_bits);
        let fraction = f64::from(half & ((1 << fraction_bits) - 1)) / f64::from(1_u32 << fraction_bits);
        let magnitude = match exponent {
            0 => fraction * 2_f64.powi(1 - bias),
            e if e == (1 << exponent_bits) - 1 => {
                if fraction == 0.0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            e => (1.0 + fraction) * 2_f64.powi(e - bias),
        };
        if half & 0x8000 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_half_widens_to_its_value_and_back_to_itself() {
        for half in 0..=u16::MAX {
            for (exponent_bits, wide, back) in [
                (5, widen_f16(half), narrow_f16(widen_f16(half))),
                (8, widen_bf16(half), narrow_bf16(widen_bf16(half))),
            ] {
                let expected = value(half, exponent_bits);
                if expected.is_nan() {
                    let quiet = 1 << (14 - exponent_bits);
                    assert!(wide.is_nan() && back == half | quiet, "{half:#06x}");
                } else {
                    assert_eq!(f64::from(wide).to_bits(), expected.to_bits(), "{half:#06x}");
                    assert_eq!(back, half);
                }
            }
        }
    }

    /// Between two neighbours the middle goes to the even one, and what is beside the middle to the nearer one.
    #[test]
    fn what_lies_between_two_halves_goes_to_the_nearer_or_the_even_one() {
        type Format = (fn(f32) -> u16, fn(u16) -> f32, u16);
        let formats: [Format; 2] = [(narrow_f16, widen_f16, 0x7c00), (narrow_bf16, widen_bf16, 0x7f80)];
        for (narrow, widen, infinity) in formats {
            for low in 0..infinity {
                let high = low + 1;
                // Where infinity stands for rounding: one step beyond the largest.
                let top = if high == infinity {
                    2.0 * f64::from(widen(low)) - f64::from(widen(low - 1))
                } else {
                    f64::from(widen(high))
                };
                let middle = f64::midpoint(f64::from(widen(low)), top) as f32;
                assert_eq!(narrow(middle), if low % 2 == 0 { low } else { high }, "{low:#06x}");
                assert_eq!(narrow(middle.next_down()), low, "{low:#06x}");
                assert_eq!(narrow(middle.next_up()), high, "{low:#06x}");
                assert_eq!(narrow(-middle.next_up()), high | 0x8000, "{low:#06x}");
            }
            assert_eq!(narrow(f32::INFINITY), infinity);
            assert_eq!(narrow(f32::MAX), infinity);
        }
        assert_eq!(narrow_f16(f32::from_bits(1)), 0, "what is far below the smallest is zero");
    }

    #[test]
    fn a_nan_stays_a_nan_whatever_its_payload() {
        for payload in [1, 0x1fff, 0x2000, 0x0001_0000, 0x003f_ffff, 0x0040_0000, 0x007f_ffff] {
            for sign in [0, F32_SIGN] {
                let nan = f32::from_bits(sign | F32_INFINITY | payload);
                assert!(widen_f16(narrow_f16(nan)).is_nan(), "{payload:#x}");
                assert!(widen_bf16(narrow_bf16(nan)).is_nan(), "{payload:#x}");
            }
        }
    }
}
