//! How often what decides for a run may break before the run is given up.
//!
//! # The problem
//!
//! A machine that hits an assert of ours is dropped, and its run is rebuilt by its peers, as after a restart of the
//! coordinator (rule 17). Most faults need an order of events that does not come twice, so that mends it. But one that comes
//! back with what the peers bring would go round for ever: a rebuild, a panic, a rebuild, and no word to anybody.
//!
//! # The rule
//!
//! A run may break [`STRIKES_MAX`] times within [`WINDOW`]. With the last of them it is given up: whoever comes is told why,
//! until the first of them is that long ago. Then it is tried once more. So what is paid for a fault that stays is one
//! rebuild in some minutes, and whoever restarts the program sooner hears the reason and not a silence.

use outlast_proto::id::RunId;
use outlast_proto::limits::RUNS_MAX;
use outlast_proto::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// The last of so many costs the run its place.
pub(super) const STRIKES_MAX: usize = 3;
/// How long a strike counts: longer than that many rebuilds take with the longest control grace of a preset.
const WINDOW: Duration = Duration::from_mins(5);

/// When which run broke.
#[derive(Debug, Default)]
pub(super) struct Strikes {
    by_run: BTreeMap<RunId, VecDeque<Instant>>,
}

impl Strikes {
    /// It broke now. Whether it is given up.
    pub(super) fn strike(&mut self, now: Instant, run: &RunId) -> bool {
        self.by_run.retain(|_, strikes| strikes.back().is_some_and(|last| now.since(*last) < WINDOW));
        if self.by_run.len() >= RUNS_MAX && !self.by_run.contains_key(run) {
            let oldest = self.by_run.iter().min_by_key(|(_, strikes)| strikes.back().copied());
            if let Some(oldest) = oldest.map(|(run, _)| run.clone()) {
                self.by_run.remove(&oldest);
            }
        }
        let strikes = self.by_run.entry(run.clone()).or_default();
        strikes.push_back(now);
        if strikes.len() > STRIKES_MAX {
            strikes.pop_front();
        }
        self.given_up_for(now, run).is_some()
    }

    /// For how much longer it is given up, if it is.
    pub(super) fn given_up_for(&self, now: Instant, run: &RunId) -> Option<Duration> {
        let strikes = self.by_run.get(run).filter(|strikes| strikes.len() >= STRIKES_MAX)?;
        let until = *strikes.front()? + WINDOW;
        (now < until).then(|| until.since(now))
    }

    /// When it broke last, if it did not long ago.
    pub(super) fn last(&self, now: Instant, run: &RunId) -> Option<Instant> {
        self.by_run.get(run)?.back().copied().filter(|last| now.since(*last) < WINDOW)
    }
}

/// What whoever comes to a run hears that is given up.
pub(super) fn reason(run: &RunId, left: Duration) -> String {
    format!(
        "run {run} is given up: what decides for it broke {STRIKES_MAX} times within {} minutes, which is a bug in outlast; the \
         coordinator's log has it, please report it. Use another run id, or connect again in {} s",
        WINDOW.as_secs() / 60,
        left.as_secs() + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(1_000 + seconds)
    }

    #[test]
    fn a_run_that_breaks_three_times_is_given_up_until_the_first_is_long_ago() {
        let (mut strikes, run, other) = (Strikes::default(), "r".parse().unwrap(), "o".parse().unwrap());
        assert!(!strikes.strike(at(0), &run) && !strikes.strike(at(60), &run));
        assert_eq!(strikes.last(at(61), &run), Some(at(60)));
        assert!(strikes.strike(at(120), &run));
        assert_eq!(strikes.given_up_for(at(121), &run), Some(Duration::from_secs(179)));
        assert_eq!(strikes.given_up_for(at(121), &other), None);
        assert!(!strikes.strike(at(122), &other), "every run has its own");
        // Once more, and one more fault is one too many again.
        assert_eq!(strikes.given_up_for(at(300), &run), None);
        assert!(strikes.strike(at(301), &run));
        assert_eq!(strikes.given_up_for(at(302), &run), Some(Duration::from_secs(58)));
        let text = reason(&run, Duration::from_secs(58));
        assert!(text.contains("broke 3 times within 5 minutes") && text.contains("again in 59 s"), "{text}");
    }

    #[test]
    fn a_run_that_breaks_now_and_then_is_rebuilt_each_time_and_what_is_old_is_forgotten() {
        let (mut strikes, run) = (Strikes::default(), "r".parse().unwrap());
        for round in 0..20 {
            assert!(!strikes.strike(at(160 * round), &run), "round {round}");
        }
        assert_eq!(strikes.last(at(160 * 20 + 300), &run), None);
        for number in 0..2 * RUNS_MAX {
            strikes.strike(at(10_000), &format!("run-{number}").parse().unwrap());
        }
        assert_eq!(strikes.by_run.len(), RUNS_MAX);
        assert!(!strikes.by_run.contains_key(&run));
    }
}
