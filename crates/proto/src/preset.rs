//! One table of times for each kind of network. Every plane's settings are made from it, so that no two of them
//! disagree about what is long.
//!
//! Each is a setting of its own later on; the rows are under *Times* in `docs/protocol/RULES.md`.

use crate::time::Duration;

/// Ready-made settings for one kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// One machine: loopback, round trips below a millisecond.
    Local,
    /// One site: round trips of a few milliseconds.
    Lan,
    /// The internet: round trips up to 300 ms, now and then a lost second.
    Wan,
}

/// The times of one preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How often the health plane looks at somebody.
    pub probe_interval: Duration,
    /// How long a probe waits for its ack.
    pub probe_timeout: Duration,
    /// Corroborated silence must last this long.
    pub suspicion_min: Duration,
    /// A stalled process is given up after this long.
    pub stall_budget: Duration,
    /// Silence for this long is a death whoever testified.
    pub dead_after: Duration,
    /// How long a peer may take to come back while the health plane does not call it alive.
    pub control_grace: Duration,
    /// How long it may take whatever the health plane says; and how long a session goes on without a coordinator.
    pub control_lost_after: Duration,
    /// How long a call that voted Complete waits for the verdict after its deadline.
    pub verdict_grace: Duration,
    /// How long a data link may go without an acknowledgement of what was sent. Kernels acknowledge within a round trip
    /// whatever the processes do; a few lost packets in a row must not matter.
    pub link_silent_after: Duration,
    /// How long a member of the store answers for its keys without having been heard (rule 28).
    pub view_lease: Duration,
    /// How long a coordinator among several reigns without having renewed its lease (rule 19).
    pub reign_lease: Duration,
}

impl Preset {
    /// Its times.
    pub const fn times(self) -> Times {
        // probe interval and timeout, suspicion, stall, dead; control grace, control lost; verdict grace; silent link; view lease;
        // reign lease
        let millis: [u64; 11] = match self {
            Self::Local => [100, 50, 500, 10_000, 5_000, 2_000, 10_000, 5_000, 1_000, 1_000, 2_000],
            Self::Lan => [200, 100, 1_000, 15_000, 10_000, 5_000, 30_000, 10_000, 2_000, 2_000, 5_000],
            Self::Wan => [1_000, 500, 5_000, 30_000, 30_000, 15_000, 60_000, 30_000, 8_000, 10_000, 10_000],
        };
        let [interval, timeout, suspicion, stall, dead, grace, lost, verdict, silent, view, reign] = millis;
        Times {
            probe_interval: Duration::from_millis(interval),
            probe_timeout: Duration::from_millis(timeout),
            suspicion_min: Duration::from_millis(suspicion),
            stall_budget: Duration::from_millis(stall),
            dead_after: Duration::from_millis(dead),
            control_grace: Duration::from_millis(grace),
            control_lost_after: Duration::from_millis(lost),
            verdict_grace: Duration::from_millis(verdict),
            link_silent_after: Duration::from_millis(silent),
            view_lease: Duration::from_millis(view),
            reign_lease: Duration::from_millis(reign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_outlast_what_does_so_in_every_preset() {
        for preset in [Preset::Local, Preset::Lan, Preset::Wan] {
            let times = preset.times();
            assert!(
                2 * times.probe_timeout <= times.probe_interval,
                "{preset:?}: an ack before the next probe"
            );
            assert!(times.suspicion_min < times.dead_after, "{preset:?}: accusers before silence alone");
            assert!(times.dead_after <= times.stall_budget, "{preset:?}: who is stopped is given more time");
            assert!(
                times.link_silent_after < times.control_grace,
                "{preset:?}: a path before a place (rule 44)"
            );
            assert!(times.control_grace < times.control_lost_after, "{preset:?}: rule 20c");
            assert!(times.verdict_grace <= times.control_lost_after, "{preset:?}: rule 5");
            assert!(
                times.view_lease < times.dead_after,
                "{preset:?}: a lease ends before its holder is given up"
            );
            assert!(
                2 * times.reign_lease < times.control_lost_after,
                "{preset:?}: the next one reigns before sessions end (rule 19)"
            );
        }
    }
}
