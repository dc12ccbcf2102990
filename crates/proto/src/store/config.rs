//! The times of a store, and what it may take.

use crate::limits::STORE_BYTES_MAX;
use crate::preset::Preset;
use crate::time::Duration;

/// Settings of one member, and of whoever decides on views.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a member answers without having been heard.
    pub view_lease: Duration,
    /// How long a refused member is waited for (rule 20b).
    pub probe_timeout: Duration,
    /// How often the kernel of a silent member is asked.
    pub probe_interval: Duration,
    /// How long a stopped member is waited for if nobody else needs another view.
    pub stall_budget: Duration,
    /// How long a silent one is.
    pub dead_after: Duration,
    /// How long a member whose stream broke may take to come back.
    pub control_grace: Duration,
    /// Newcomers are let in together with those who come within this time.
    pub gathering: Duration,
    /// A request that is not answered is sent again after this time. Nothing is lost as a rule; this is for what was in
    /// the hands of a member that died with it.
    pub resend: Duration,
    /// A link on which nothing was acknowledged for this long does not carry: what is on it goes another way.
    pub link_silent_after: Duration,
    /// How long the others may take to join in a shutdown.
    pub shutdown_wait: Duration,
    /// How long last messages may take before links are closed.
    pub last_words: Duration,
    /// Links to members beside the mesh are made when there is something to say to them.
    pub direct: bool,
    /// Bytes that a member takes before it refuses more.
    pub bytes_max: u64,
}

impl Config {
    /// The settings for one kind of network.
    pub fn preset(preset: Preset) -> Self {
        let times = preset.times();
        Self {
            view_lease: times.view_lease,
            probe_timeout: times.probe_timeout,
            probe_interval: times.probe_interval,
            stall_budget: times.stall_budget,
            dead_after: times.dead_after,
            control_grace: times.control_grace,
            gathering: Duration::from_millis(20),
            resend: Duration::from_secs(1),
            link_silent_after: times.link_silent_after,
            shutdown_wait: Duration::from_secs(2),
            last_words: Duration::from_millis(50),
            direct: true,
            bytes_max: STORE_BYTES_MAX,
        }
    }
}
