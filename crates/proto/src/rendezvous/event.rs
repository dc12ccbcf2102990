//! What a person should be able to look up afterwards.

use std::fmt;

/// Something that happened in a rendezvous, as one node saw it. The driver adds who and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What kind of thing.
    pub name: EventName,
    /// What happened, in words.
    pub message: String,
    /// The node's rank, if it has one.
    pub rank: Option<u32>,
    /// What went wrong, if anything did.
    pub error: Option<String>,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EventName {
    /// A node began to join.
    Joining,
    /// A round is complete, with this node in it.
    Joined,
    /// This node was put on the wait list, or on the redundancy list.
    Waiting,
    /// Another node's lease ran out.
    NodeLost,
    /// This node's own lease ran out; a write of it was refused.
    LeaseLost,
    /// A heartbeat did not get through; it is tried again.
    KeepAliveFailed,
    /// The rendezvous was closed by this node.
    Closed,
    /// This node left.
    Left,
    /// An operation of this node failed.
    Failed,
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Joining => "joining",
            Self::Joined => "joined",
            Self::Waiting => "waiting",
            Self::NodeLost => "node_lost",
            Self::LeaseLost => "lease_lost",
            Self::KeepAliveFailed => "keep_alive_failed",
            Self::Closed => "closed",
            Self::Left => "left",
            Self::Failed => "failed",
        })
    }
}
