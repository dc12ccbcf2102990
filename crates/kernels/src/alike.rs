//! The same bits on every processor.
//!
//! Usually one member computes an element and the others are sent its result. Where each computes it for itself, two things
//! could make results differ that nobody meant to differ. A thread may flush subnormal numbers to zero or round otherwise,
//! because some library has told its processor to. And which NaN comes of a sum depends on the processor. So such work is
//! done [plainly](plainly), and its NaNs are [made alike](make_nans_alike) afterwards.

use crate::element::Element;

/// Runs `work` with the floating-point arithmetic of IEEE 754: rounded to nearest even, subnormal numbers kept. How the thread
/// was set before is put back, by a panic too.
pub fn plainly<R>(work: impl FnOnce() -> R) -> R {
    struct PutBack(Option<mode::Mode>);
    impl Drop for PutBack {
        fn drop(&mut self) {
            if let Some(mode) = self.0 {
                mode::set(mode);
            }
        }
    }
    let before = mode::get();
    let _put_back = PutBack((before != mode::PLAIN).then_some(before));
    if before != mode::PLAIN {
        mode::set(mode::PLAIN);
    }
    work()
}

/// Makes every NaN the canonical one, as `min` and `max` give it. Elements that are no floats are left alone.
///
/// # Panics
/// If there is no whole number of elements.
pub fn make_nans_alike(element: Element, bytes: &mut [u8]) {
    macro_rules! each {
        ($bits:ty, $infinity:expr, $nan:expr) => {{
            const SIZE: usize = size_of::<$bits>();
            assert!(bytes.len().is_multiple_of(SIZE), "{} bytes of {}", bytes.len(), element.name());
            for bytes in bytes.as_chunks_mut::<SIZE>().0 {
                let bits = <$bits>::from_le_bytes(*bytes);
                let is_nan = bits & (<$bits>::MAX >> 1) > $infinity;
                *bytes = (if is_nan { $nan } else { bits }).to_le_bytes();
            }
        }};
    }
    match element {
        Element::F16 => each!(u16, 0x7c00, 0x7e00),
        Element::BF16 => each!(u16, 0x7f80, 0x7fc0),
        Element::F32 => each!(u32, 0x7f80_0000, 0x7fc0_0000),
        Element::F64 => each!(u64, 0x7ff0_0000_0000_0000, 0x7ff8_0000_0000_0000),
        _ => {}
    }
}

#[cfg(target_arch = "x86_64")]
mod mode {
    use std::arch::asm;

    pub(super) type Mode = u32;
    /// As a process begins: all exceptions masked, nothing else set.
    pub(super) const PLAIN: Mode = 0x1f80;
    /// Exceptions that happened: they say nothing about how numbers are computed.
    const HAPPENED: Mode = 0x3f;

    pub(super) fn get() -> Mode {
        let mut mode: Mode = 0;
        // SAFETY: it stores the register to a place of its size.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags)) };
        mode & !HAPPENED
    }

    pub(super) fn set(mode: Mode) {
        // SAFETY: the value is the plain one or one that the register held: no reserved bit is set, and no exception is unmasked
        // that was not before.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod mode {
    use std::arch::asm;

    pub(super) type Mode = u64;
    /// As a process begins.
    pub(super) const PLAIN: Mode = 0;

    pub(super) fn get() -> Mode {
        let mode: Mode;
        // SAFETY: it reads a register that every thread has.
        unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nostack, preserves_flags)) };
        mode
    }

    pub(super) fn set(mode: Mode) {
        // SAFETY: the value is the plain one or one that the register held.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod mode {
    pub(super) type Mode = ();
    pub(super) const PLAIN: Mode = ();
    pub(super) fn get() -> Mode {}
    pub(super) fn set((): Mode) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reduction, combine_assign};

    #[test]
    fn nans_become_one_and_nothing_else_changes() {
        let mut bytes: Vec<u8> =
            [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-42, f32::from_bits(0x7f80_0001)]
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
        make_nans_alike(Element::F32, &mut bytes);
        let bits: Vec<u32> =
            bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let nan = 0x7fc0_0000;
        assert_eq!(bits, [nan, nan, 0x7f80_0000, 0xff80_0000, 0x8000_0000, 1e-42_f32.to_bits(), nan]);
        for (element, given, expected) in [
            (Element::F16, &[0x01, 0xfc, 0x00, 0x7c][..], &[0x00, 0x7e, 0x00, 0x7c][..]),
            (Element::BF16, &[0x81, 0xff, 0x80, 0x7f], &[0xc0, 0x7f, 0x80, 0x7f]),
            (Element::F64, &[1, 0, 0, 0, 0, 0, 0xf0, 0xff], &[0, 0, 0, 0, 0, 0, 0xf8, 0x7f]),
            (Element::U16, &[0xff, 0xff], &[0xff, 0xff]),
        ] {
            let mut bytes = given.to_vec();
            make_nans_alike(element, &mut bytes);
            assert_eq!(bytes, expected, "{}", element.name());
        }
    }

    /// What a library compiled for speed does to the thread that loads it.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_thread_that_flushes_small_numbers_computes_as_the_others_do() {
        const FLUSHES: mode::Mode = mode::PLAIN | 0x8040;
        let sum = || {
            let mut sum = 1e-42_f32.to_le_bytes();
            combine_assign(Element::F32, Reduction::Sum, &mut sum, &1e-42_f32.to_le_bytes());
            f32::from_le_bytes(sum)
        };
        mode::set(FLUSHES);
        let (flushed, plain, still) = (sum(), plainly(sum), mode::get());
        let thrown = std::panic::catch_unwind(|| plainly(|| panic!("on purpose")));
        let after = mode::get();
        mode::set(mode::PLAIN);
        assert!(thrown.is_err());
        assert_eq!((still, after), (FLUSHES, FLUSHES), "the thread is as it was");
        assert_eq!(flushed.to_bits(), 0, "otherwise this test shows nothing");
        assert_eq!(plain.to_bits(), 2 * 1e-42_f32.to_bits());
    }
}
