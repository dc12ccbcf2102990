//! The one clock of the health plane.
//!
//! `CLOCK_MONOTONIC`, so that neither an operator nor NTP can make a member look late. And not
//! `CLOCK_BOOTTIME`, which also counts the time during which the whole machine was suspended: a suspended
//! member would wake to find every one of its timers minutes late and every other member minutes silent.
//! On the monotonic clock a suspension did not happen: what lies between two readings is time in which this
//! machine could have received an answer. The others, who were awake, know that it was gone.

use outlast_proto::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Now. The origin is the operating system's and means nothing outside this machine.
pub fn now() -> Instant {
    read(ClockId::Monotonic)
}

/// Now, by a clock that goes on while the whole machine is suspended: leases that others count run out meanwhile (rule
/// 19). Its moments mean nothing beside those of [`now`].
pub fn boot_now() -> Instant {
    read(ClockId::Boottime)
}

fn read(clock: ClockId) -> Instant {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_forward() {
        let first = now();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while now() <= first {
            assert!(std::time::Instant::now() < deadline, "the clock stands still");
        }
    }
}
