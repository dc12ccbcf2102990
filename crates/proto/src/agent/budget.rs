//! How often a slot may be filled again, and how soon.
//!
//! A budget is so many restarts within so many seconds: a worker that is killed once a day may be replaced for ever, one
//! that crashes three times in a minute has a fault that starting it again will not mend. A worker that fails as soon as
//! it is started is started again after growing pauses, so that it fills neither disk nor log; one that had worked for
//! a while is replaced at once.

use crate::retry;
use crate::time::{Duration, Instant};
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// A life shorter than this one failed at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The pause after the first life that failed at once; each further one doubles it.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// So many restarts within so long, for each slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Restarts that are allowed.
    pub restarts: u32,
    /// Within any time of this length; `None`: in all.
    pub within: Option<Duration>,
}

/// A budget that nobody can have meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a restart budget: write a number of restarts, as in 3, or of restarts within seconds, as in 3/600"
)]
pub struct BudgetError(String);

impl Default for Budget {
    fn default() -> Self {
        Self { restarts: 3, within: Some(Duration::from_mins(10)) }
    }
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let wrong = || BudgetError(text.to_owned());
        let (restarts, within) = match text.split_once('/') {
            None => (text, None),
            Some((restarts, seconds)) => {
                let seconds: u32 = seconds.parse().map_err(|_| wrong())?;
                let within = Duration::from_secs(seconds.into());
                (restarts, Some(within).filter(|within| !within.is_zero()).ok_or_else(wrong)?.into())
            }
        };
        Ok(Self { restarts: restarts.parse().map_err(|_| wrong())?, within })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.restarts)?;
        self.within.map_or(Ok(()), |within| write!(f, " within {} s", within.as_secs()))
    }
}

/// What one slot has used of its budget.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    /// When it was filled again, as far as that counts still.
    restarts: VecDeque<Instant>,
    /// Lives in a row that failed at once.
    short_lives: u32,
}

impl Account {
    /// A life of that length has failed now: the pause before the next one, or `None` if the budget is used up.
    pub(super) fn spend(&mut self, now: Instant, lasted: Duration, budget: &Budget) -> Option<Duration> {
        if let Some(within) = budget.within {
            self.restarts.retain(|at| now.since(*at) < within);
        }
        if self.restarts.len() >= budget.restarts as usize {
            return None;
        }
        self.restarts.push_back(now);
        self.short_lives = if lasted < SHORT_LIFE { self.short_lives + 1 } else { 0 };
        Some(match self.short_lives {
            0 => Duration::ZERO,
            short => retry::nth(PAUSE, short, PAUSE_MAX),
        })
    }

    /// Restarts that count now.
    pub(super) fn used(&self) -> u32 {
        self.restarts.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn a_budget_is_restarts_or_restarts_within_seconds() {
        let minute = Some(Duration::from_mins(1));
        assert_eq!("5".parse(), Ok(Budget { restarts: 5, within: None }));
        assert_eq!("0".parse(), Ok(Budget { restarts: 0, within: None }));
        assert_eq!("2/60".parse(), Ok(Budget { restarts: 2, within: minute }));
        for odd in ["", "/", "3/", "/60", "-1", "3/0", "3/60/2", "many", "3 / 60", "1e3"] {
            assert_eq!(odd.parse::<Budget>(), Err(BudgetError(odd.to_owned())));
        }
    }

    #[test]
    fn restarts_that_are_long_ago_do_not_count() {
        let budget = Budget { restarts: 2, within: Some(Duration::from_mins(1)) };
        let mut account = Account::default();
        let long = Duration::from_secs(30);
        let spent: Vec<_> = [0, 30, 59, 60, 61, 89, 90]
            .map(|second| account.spend(at(second), long, &budget).is_some())
            .into();
        // 60 is a minute after 0, and 90 a minute after 30.
        assert_eq!(spent, [true, true, false, true, false, false, true]);
    }

    #[test]
    fn without_seconds_they_count_for_ever() {
        let budget = Budget { restarts: 1, within: None };
        let mut account = Account::default();
        assert!(account.spend(at(0), Duration::MAX, &budget).is_some());
        assert!(account.spend(at(1_000_000), Duration::MAX, &budget).is_none());
    }

    #[test]
    fn who_fails_at_once_is_started_after_growing_pauses_until_one_lives_for_a_while() {
        let budget = Budget { restarts: 100, within: None };
        let mut account = Account::default();
        let mut pause = |lasted_ms| {
            let lasted = Duration::from_millis(lasted_ms);
            account.spend(at(0), lasted, &budget).expect("allowed").as_millis()
        };
        let short: Vec<_> = (0..8).map(|_| pause(200)).collect();
        assert_eq!(short, [250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        assert_eq!([pause(5_000), pause(999), pause(1_000)], [0, 250, 0]);
    }
}
