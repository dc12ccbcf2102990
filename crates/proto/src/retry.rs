//! When to try again.
//!
//! Whoever failed once may succeed in a moment, and whoever fails for long must not be a burden: so pauses double, up to
//! a longest one. That is one rule, here, whether it is the coordinator that is dialled again, a link that counts as
//! broken, or a peer that was put out and comes back. A pause that is longer already, because it carries a grudge, is
//! not shortened by a smaller bound.
//!
//! A data link has a deadline and no time to lose, so it is dialled at an even pace; what the failure was says whether
//! another dial may help (rule 44).

use crate::time::{Duration, Instant};

/// The pause after this one.
#[must_use]
pub fn longer(pause: Duration, longest: Duration) -> Duration {
    pause.saturating_mul(2).min(pause.max(longest))
}

/// The pause after so many failures: `first` after one, then twice as long each time.
#[must_use]
pub fn nth(first: Duration, failures: u32, longest: Duration) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    first.saturating_mul(doubled).min(longest)
}

/// Between two dials of a data link.
const LINK_PAUSE: Duration = Duration::from_millis(50);

/// Why a data link could not be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFailure {
    /// Nobody answered in time: this path carries nothing now.
    Silent,
    /// Refused, or closed at once: the other side may be starting, or full, or behind a firewall for a moment.
    Refused,
    /// Somebody answered who will not take this link, however often it is asked.
    Unfit,
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDial {
    /// Dialled again then.
    Again(Instant),
    /// Given up: the link cannot be made.
    GivenUp,
}

/// What is done about a data link that could not be dialled. Silence is an answer: other paths may carry, and the next
/// ring is not kept waiting. A process that is gone refuses until others find that out and a new epoch does without it.
#[must_use]
pub fn after_dial(now: Instant, failure: DialFailure, deadline: Instant) -> AfterDial {
    match failure {
        DialFailure::Refused if now + LINK_PAUSE < deadline => AfterDial::Again(now + LINK_PAUSE),
        DialFailure::Refused | DialFailure::Silent | DialFailure::Unfit => AfterDial::GivenUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = std::iter::successors(Some(ms(20)), |pause| Some(longer(*pause, ms(500))));
        let millis: Vec<_> = pauses.take(7).map(|pause| pause.as_millis()).collect();
        assert_eq!(millis, [20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(longer(Duration::MAX, Duration::MAX), Duration::MAX);
    }

    #[test]
    fn a_grudge_is_not_shortened() {
        assert_eq!(longer(ms(900), ms(500)), ms(900));
    }

    #[test]
    fn after_so_many_failures_the_pause_is_what_doubling_gives() {
        let millis = |failures| nth(ms(200), failures, ms(5_000)).as_millis();
        assert_eq!(
            [0, 1, 2, 3, 5, 6, 40, u32::MAX].map(millis),
            [200, 200, 400, 800, 3_200, 5_000, 5_000, 5_000]
        );
        assert_eq!(nth(Duration::MAX, 9, Duration::MAX), Duration::MAX);
    }

    #[test]
    fn only_a_refusal_is_worth_another_dial_and_only_before_the_deadline() {
        let (now, deadline) = (Instant::ORIGIN, Instant::ORIGIN + ms(120));
        let mut at = now;
        let mut dials = 1;
        while let AfterDial::Again(next) = after_dial(at, DialFailure::Refused, deadline) {
            (at, dials) = (next, dials + 1);
        }
        assert_eq!((at, dials), (now + ms(100), 3));
        for failure in [DialFailure::Silent, DialFailure::Unfit] {
            assert_eq!(after_dial(now, failure, deadline), AfterDial::GivenUp);
        }
    }
}
