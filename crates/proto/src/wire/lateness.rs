//! How long was this datagram on its way?
//!
//! A replay window (see [`super::replay`]) refuses copies. It cannot refuse an *original* that somebody caught
//! and lets go later, nor one that was meant for another member and is brought here instead; with a few dozen
//! of those a dead member could be made to look alive for minutes. So each datagram says, under its seal, when
//! it was sent on its sender's own monotonic clock.
//!
//! The clocks of two hosts have nothing in common but their speed. The receiver therefore keeps the smallest
//! difference `arrival - sending` it has seen, which is the fastest trip plus an unknown constant; how much
//! later than that a datagram comes is its lateness, and the constant drops out. Clocks drift apart by some
//! hundred parts in a million, so the smallest difference is allowed to grow by [`DRIFT_PER_MILLION`].
//!
//! The invariant: between two readings that were not too late, a datagram is never taken that was held back
//! for longer than [`LATENESS_MAX`], counted from the fastest trip that the gauge knows.
//!
//! A sender whose clock stood still (a suspended host) looks late from then on. The gauge cannot tell that
//! from an attack; its owner asks for a fresh proof of life (a nonce echo) and starts a new gauge from it.

use crate::time::{Duration, Instant};

/// How much later than its sender's fastest datagram one may come. Longer than datagrams wait in any network's
/// queues or in the socket buffer of a busy host; short enough that the dead cannot be kept alive with it.
pub const LATENESS_MAX: Duration = Duration::from_secs(10);

/// How fast two clocks may drift apart. Twice the 500 ppm by which a clock may be slewed.
pub const DRIFT_PER_MILLION: i64 = 1_000;

/// The lateness of one sender's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatenessGauge {
    /// Smallest `arrival - sending` in microseconds, and when it was last brought up to date.
    fastest_us: i64,
    updated: Instant,
}

impl LatenessGauge {
    /// A gauge that takes a datagram of which we know that it is recent.
    pub fn from_recent(now: Instant, sent_us: u64) -> Self {
        Self { fastest_us: difference(now, sent_us), updated: now }
    }

    /// The lateness of a datagram sent at `sent_us` of its sender's clock. A datagram within
    /// [`LATENESS_MAX`] also brings the gauge up to date.
    pub fn read(&mut self, now: Instant, sent_us: u64) -> Duration {
        let difference = difference(now, sent_us);
        let age_us = i64::try_from(now.since(self.updated).as_micros()).unwrap_or(i64::MAX);
        let fastest_us = self.fastest_us.saturating_add(age_us / 1_000_000 * DRIFT_PER_MILLION);
        let lateness =
            Duration::from_micros(u64::try_from(difference.saturating_sub(fastest_us)).unwrap_or(0));
        if difference < fastest_us {
            *self = Self { fastest_us: difference, updated: now };
        } else if lateness <= LATENESS_MAX && age_us >= 1_000_000 {
            *self = Self { fastest_us, updated: now };
        }
        lateness
    }
}

fn difference(now: Instant, sent_us: u64) -> i64 {
    let now_us = i64::try_from(now.as_nanos() / 1_000).unwrap_or(i64::MAX);
    now_us.saturating_sub(i64::try_from(sent_us).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn lateness_counts_from_the_fastest_trip_whatever_the_clocks_show() {
        // The sender's clock is 900 s ahead; the first datagram took 2 s longer than the second.
        let mut gauge = LatenessGauge::from_recent(at(100), 998 * SECOND_US);
        assert_eq!(gauge.read(at(101), 1_001 * SECOND_US), Duration::ZERO);
        // Three seconds, less the drift that one second allows.
        assert_eq!(gauge.read(at(102), 999 * SECOND_US).as_millis(), 2_999);
    }

    #[test]
    fn a_datagram_held_back_is_late_however_long_the_sender_was_silent() {
        let mut gauge = LatenessGauge::from_recent(at(0), 0);
        assert_eq!(gauge.read(at(11), 0).as_secs(), 10);
        assert!(gauge.read(at(11), 0) > LATENESS_MAX);
        assert!(gauge.read(at(3_600), 5 * SECOND_US) > LATENESS_MAX);
    }

    #[test]
    fn drift_within_the_allowance_is_not_lateness() {
        // The sender's clock is slow by 500 ppm for a week, with one datagram every 10 s.
        let mut gauge = LatenessGauge::from_recent(at(0), 0);
        for step in 1..60_480u64 {
            let sent_us = step * 10 * (SECOND_US - 500);
            assert!(gauge.read(at(step * 10), sent_us) < Duration::from_millis(100), "step {step}");
        }
    }

    #[test]
    fn extreme_clocks_do_not_overflow() {
        let mut gauge = LatenessGauge::from_recent(Instant::from_nanos(u64::MAX), 0);
        let _ = gauge.read(Instant::ORIGIN, u64::MAX);
        let _ = gauge.read(Instant::from_nanos(u64::MAX), 0);
    }
}
