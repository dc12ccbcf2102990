//! Whether somebody who will not let us in ever will.
//!
//! Another version, another run or another secret does not change by itself, so whoever joins says so at once. Without a
//! coordinator there is one case more: where the member of rank 0 is to be, that of an earlier job may still be closing. What
//! it says is true, and passes; so the same is to be heard for a while.

use crate::time::{Duration, Instant};

/// Answers of whoever decides on views, one after the other.
#[derive(Clone, Debug, Hash)]
pub struct Refusals {
    patience: Duration,
    since: Option<Instant>,
}

impl Refusals {
    /// They count once nothing else was heard for so long.
    pub fn new(patience: Duration) -> Self {
        Self { patience, since: None }
    }

    /// Something was heard. Whether it will stay like that.
    pub fn hear(&mut self, now: Instant, is_refusal: bool) -> bool {
        if !is_refusal {
            self.since = None;
            return false;
        }
        now >= *self.since.get_or_insert(now) + self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ORIGIN + Duration::from_millis(millis)
    }

    #[test]
    fn a_coordinator_is_believed_at_once() {
        let mut refusals = Refusals::new(Duration::ZERO);
        assert!(!refusals.hear(at(10), false));
        assert!(refusals.hear(at(20), true));
    }

    #[test]
    fn a_refusal_that_may_pass_counts_when_nothing_else_was_heard_for_long() {
        let mut refusals = Refusals::new(Duration::from_secs(6));
        assert!(!refusals.hear(at(0), true) && !refusals.hear(at(5_999), true));
        // The earlier job is gone, and there is another one.
        assert!(!refusals.hear(at(6_000), false));
        assert!(!refusals.hear(at(7_000), true) && !refusals.hear(at(12_999), true));
        assert!(refusals.hear(at(13_000), true));
    }
}
