//! A session's times.

use crate::membership::Preset;
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
        let ms = Duration::from_millis;
        let (grace, lost) = match preset {
            Preset::Local => (ms(5_000), ms(10_000)),
            Preset::Lan => (ms(10_000), ms(30_000)),
            Preset::Wan => (ms(30_000), ms(60_000)),
        };
        Self { verdict_grace: grace, control_lost_after: lost, redial: (ms(20), ms(500)) }
    }
}
