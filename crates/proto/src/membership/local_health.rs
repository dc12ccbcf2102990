//! Doubting oneself first.
//!
//! A process that was stopped, or that shares its cores with too much work, sees the whole world as silent.
//! Two defences. Lifeguard's *local health multiplier* (§IV-A) rises with every sign that we are the slow
//! one and stretches our timeouts. The *stall guard* watches our own timers: one that fires much too late
//! proves that we were not running, so whatever we concluded from silence in that time is worthless.

use crate::time::{Duration, Instant};

/// Lifeguard's upper bound of the multiplier.
const MULTIPLIER_MAX: u32 = 8;
/// Below this, lateness is ordinary scheduling.
const LATENESS_MIN: Duration = Duration::from_millis(20);

/// How much this member trusts its own clockwork.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalHealth {
    multiplier: u32,
    quiet_until: Option<Instant>,
    /// When we last noticed; the same late timer proves nothing new.
    noticed: Instant,
    stalls: u64,
}

impl LocalHealth {
    /// One for a member in good health; timeouts are multiplied by it.
    pub(super) fn patience(&self) -> u32 {
        1 + self.multiplier
    }

    pub(super) fn worse(&mut self) {
        self.multiplier = (self.multiplier + 1).min(MULTIPLIER_MAX);
    }

    pub(super) fn better(&mut self) {
        self.multiplier = self.multiplier.saturating_sub(1);
    }

    /// At `now` we run again, and a timer was due at `due`. True if that is so long ago that we must have been
    /// stopped.
    pub(super) fn observe_timer(
        &mut self,
        now: Instant,
        due: Instant,
        timeout: Duration,
        quiet: Duration,
    ) -> bool {
        if now.since(due.max(self.noticed)) <= (timeout / 2).max(LATENESS_MIN) {
            return false;
        }
        self.noticed = now;
        self.worse();
        self.stalls += 1;
        self.quiet_until = Some(now + quiet);
        true
    }

    /// Until when we do not testify.
    pub(super) fn quiet_until(&self, now: Instant) -> Option<Instant> {
        self.quiet_until.filter(|&until| now < until)
    }

    /// How often our own timers were late.
    pub(super) fn stalls(&self) -> u64 {
        self.stalls
    }
}
