//! A session's times.

use crate::preset::{Preset, Times};
use crate::time::Duration;

/// Settings of one session; the table in `docs/protocol/RULES.md` under *Times*.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// After its deadline a call that voted Complete waits this long for the verdict (rule 5).
    pub verdict_grace: Duration,
    /// Without a coordinator for this long, the session is over.
    pub control_lost_after: Duration,
    /// First and longest pause between two attempts to reach the coordinator.
    pub redial: (Duration, Duration),
}

impl Config {
    /// The settings of `preset`.
    pub fn preset(preset: Preset) -> Self {
        let Times { verdict_grace, control_lost_after, .. } = preset.times();
        let redial = (Duration::from_millis(20), Duration::from_millis(500));
        Self { verdict_grace, control_lost_after, redial }
    }
}
