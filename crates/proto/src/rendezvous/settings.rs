//! How many nodes, and how long for what.

use crate::limits::{LEASE_MS_MAX, RENDEZVOUS_NODES_MAX};
use std::time::Duration;

/// What all nodes of a rendezvous should agree on. The defaults are those of torch's dynamic rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Fewest participants of a round.
    pub min_nodes: usize,
    /// Most participants of a round.
    pub max_nodes: usize,
    /// How long a node tries to get into a round.
    pub join: Duration,
    /// How long a round that has enough participants is held open for more.
    pub last_call: Duration,
    /// How long closing may take, and how long leaving.
    pub close: Duration,
    /// How long one heartbeat may take before it counts as failed and is tried again.
    pub heartbeat: Duration,
    /// How often a node says that it is alive.
    pub keep_alive_interval: Duration,
    /// How many of these may be missed.
    pub keep_alive_attempts: u32,
    /// How long a node whose time is up tries to take itself out. If it cannot, its lease runs out.
    pub rollback: Duration,
}

/// Settings with which no round can be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// No round can have so many nodes.
    #[error(
        "min_nodes is {min} and max_nodes {max}; use 1 <= min_nodes <= max_nodes <= {RENDEZVOUS_NODES_MAX}"
    )]
    Nodes {
        /// Fewest.
        min: usize,
        /// Most.
        max: usize,
    },
    /// A time that is too short or too long.
    #[error("{name} is {value:?}; use {least:?} to {most:?}")]
    Time {
        /// Which.
        name: &'static str,
        /// What it is.
        value: Duration,
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
    },
}

/// Nobody waits for a year; and whatever is added to a moment does not overflow.
const LONGEST: Duration = Duration::from_hours(366 * 24);

impl Settings {
    /// The defaults for so many nodes.
    pub const fn new(min_nodes: usize, max_nodes: usize) -> Self {
        Self {
            min_nodes,
            max_nodes,
            join: Duration::from_mins(10),
            last_call: Duration::from_secs(30),
            close: Duration::from_secs(30),
            heartbeat: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_attempts: 3,
            rollback: Duration::from_secs(5),
        }
    }

    /// How long a lease lasts: a node that says nothing for that long is gone.
    pub fn lease(&self) -> Duration {
        self.keep_alive_interval * self.keep_alive_attempts
    }

    /// Whether a round can be with these.
    pub fn check(&self) -> Result<(), SettingsError> {
        let (min, max) = (self.min_nodes, self.max_nodes);
        if min == 0 || min > max || max > RENDEZVOUS_NODES_MAX {
            return Err(SettingsError::Nodes { min, max });
        }
        let lease_most = Duration::from_millis(u64::from(LEASE_MS_MAX));
        let moment = Duration::from_millis(1);
        let attempts = self.keep_alive_attempts.max(1);
        for (name, value, least, most) in [
            ("the join timeout", self.join, moment, LONGEST),
            ("the last call", self.last_call, Duration::ZERO, LONGEST),
            ("the close timeout", self.close, moment, LONGEST),
            ("the heartbeat timeout", self.heartbeat, moment, LONGEST),
            ("the keep-alive interval", self.keep_alive_interval, moment, lease_most / attempts),
            ("the rollback window", self.rollback, Duration::ZERO, LONGEST),
        ] {
            if value < least || value > most {
                return Err(SettingsError::Time { name, value, least, most });
            }
        }
        if self.keep_alive_attempts == 0 {
            let value = Duration::ZERO;
            return Err(SettingsError::Time { name: "the lease", value, least: moment, most: lease_most });
        }
        Ok(())
    }
}
