//! What the processes of the demo tell the director: one JSON line each, on their standard output.
//!
//! The director believes nothing else. It has no view into a worker, so whatever it shows was told by the worker
//! that did it, with the time on the clock that all processes of a machine share.

use serde::{Deserialize, Serialize};
use std::io::Write as _;

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub(crate) enum Said {
    /// The coordinator listens.
    Listening { address: String },
    /// A worker has its port and its id, and asks to be let in.
    Ready { id: String },
    /// A worker has the others' state.
    CaughtUp { at: u64, step: u64, from: String, bytes: usize, micros: u64 },
    /// A worker has committed a step.
    Committed(Commit),
    /// A worker cannot go on.
    Failed { why: String },
    /// A worker has finished, with everybody else.
    Done { step: u64, digest: String, accuracy: f32 },
}

/// A committed step: what the receipt said, and what came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Commit {
    /// When the call returned.
    pub(crate) at: u64,
    /// Steps done with this one.
    pub(crate) step: u64,
    pub(crate) epoch: u64,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    /// Whose gradients are in the mean.
    pub(crate) contributors: Vec<String>,
    pub(crate) attempts: u32,
    /// The receipt's hash of the averaged gradients.
    pub(crate) hash: String,
    /// Payload bytes that this worker sent.
    pub(crate) bytes_sent: u64,
    /// Mean over the contributors.
    pub(crate) loss: f32,
    /// On the test images; not after every step.
    pub(crate) accuracy: Option<f32>,
    /// Hash of the replica after the step.
    pub(crate) digest: String,
}

/// Microseconds on the machine's monotonic clock.
pub(crate) fn micros() -> u64 {
    outlast::clock::now().as_nanos() / 1_000
}

/// Tells the director.
pub(crate) fn say(said: &Said) {
    let Ok(line) = serde_json::to_string(said) else { return };
    let mut out = std::io::stdout().lock();
    // If nobody listens any more there is nobody to tell.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
