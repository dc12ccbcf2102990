//! The coordinator's times.

use crate::preset::{Preset, Times};
use crate::time::Duration;

/// Settings of one run's coordinator; the table in `docs/protocol/RULES.md` under *Times*.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How often the health plane looks at somebody.
    pub probe_interval: Duration,
    /// How long nothing may come from a peer whose port refused before it is evicted (rule 20b).
    pub probe_timeout: Duration,
    /// How long a peer may take to reconnect and resume while the health plane does not call it alive.
    pub control_grace: Duration,
    /// How long it may take whatever the health plane says (rule 20c).
    pub control_lost_after: Duration,
    /// For how long evictions for silence are frozen when most peers fall silent at once (rule 21).
    pub dead_after: Duration,
    /// After a link was reported broken: how long to wait for news of its ends before going on.
    pub link_settle: Duration,
    /// How long differing calls are collected before it is judged who deviates.
    pub mismatch_settle: Duration,
    /// Work for a quick search for a better ring, and for one in the background, in steps: about a tenth of a second, and
    /// ten seconds, of one core.
    pub ring_steps: (u64, u64),
    /// Whether a restarted coordinator has the same key, so that its peers know it again (rule 39).
    pub key_is_kept: bool,
}

impl Config {
    /// The settings of `preset`.
    pub fn preset(preset: Preset) -> Self {
        let Times { probe_interval, probe_timeout, control_grace, control_lost_after, dead_after, .. } =
            preset.times();
        Self {
            probe_interval,
            probe_timeout,
            control_grace,
            control_lost_after,
            dead_after,
            link_settle: probe_timeout / 2,
            mismatch_settle: probe_timeout * 2,
            ring_steps: (3_000_000, 300_000_000),
            key_is_kept: false,
        }
    }
}
