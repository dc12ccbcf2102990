//! What one asks a peer about itself, and what it answers. One question and one answer on a stream of their own.

use super::{InvalidMessage, Message};
use crate::limits::FRAME_BYTES_MAX;
use minicbor::{CborLen, Decode, Encode};

/// A question to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum Inspect {
    /// How does the run stand, as you see it?
    #[n(0)]
    View,
    /// What did you do lately?
    #[n(1)]
    Flight,
}

/// A peer's answer, for people and their tools; nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum Inspected {
    /// One JSON object.
    #[n(0)]
    View(#[n(0)] String),
    /// JSON lines: its flight record.
    #[n(1)]
    Flight(#[n(0)] String),
    /// It does not tell, and why.
    #[n(2)]
    Refused(#[n(0)] String),
}

impl Message for Inspect {
    const BYTES_MAX: usize = 64;
    fn check(&self) -> Result<(), InvalidMessage> {
        Ok(())
    }
}

impl Message for Inspected {
    const BYTES_MAX: usize = FRAME_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        Ok(())
    }
}
