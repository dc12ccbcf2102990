//! Every time and count of the health plane, with the reason for its preset.

pub use crate::preset::Preset;
use crate::preset::Times;
use crate::time::Duration;

/// What two members alone do about silence: neither has a third to ask (rule 21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairPolicy {
    /// Silence counts only after `dead_after`.
    Patient,
    /// Silence counts after the suspicion time, as if it had been corroborated.
    Trusting,
}

/// Settings of one member. All members of a group should run the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// One probe starts per interval.
    pub probe_interval: Duration,
    /// A probe without an ack for this long turns to relays and to the kernel.
    pub probe_timeout: Duration,
    /// Corroborated silence must last this long.
    pub suspicion_min: Duration,
    /// With a single accuser, suspicion waits this many times `suspicion_min` for a second one, then lapses.
    pub suspicion_max_factor: u32,
    /// A stalled process is given up after this long.
    pub stall_budget: Duration,
    /// Silence for this long is a death whoever testified.
    pub dead_after: Duration,
    /// What two members alone do about silence.
    pub pair_policy: PairPolicy,
    /// How many relays an unanswered probe asks (SWIM's k).
    pub relays: usize,
    /// To how many members fresh news is pushed at once.
    pub fanout: usize,
    /// News rides on this many packets times log2 of the group's size.
    pub retransmit_factor: u32,
    /// How many connects ask a silent member's kernel; at 10 % loss one or two are not enough.
    pub connects: u32,
    /// How long a voucher's word about a stalled member is passed on and believed, in probe intervals.
    pub vouch_intervals: u32,
    /// How long the failed list remembers.
    pub forget_after: Duration,
}

impl Config {
    /// The settings of `preset`; the table in `docs/protocol/RULES.md` under *Times*.
    pub fn preset(preset: Preset) -> Self {
        let Times { probe_interval, probe_timeout, suspicion_min, stall_budget, dead_after, .. } =
            preset.times();
        Self {
            probe_interval,
            probe_timeout,
            suspicion_min,
            suspicion_max_factor: 4,
            stall_budget,
            dead_after,
            pair_policy: PairPolicy::Patient,
            relays: 3,
            fanout: 4,
            retransmit_factor: 3,
            connects: 3,
            vouch_intervals: 5,
            forget_after: Duration::from_mins(10),
        }
    }

    /// How long that a member answered, or did not, says something of how well we hear.
    pub(super) fn sighting_life(&self) -> Duration {
        self.suspicion_min.max(self.probe_interval * 5)
    }
}
