//! One operation's lanes: whom it sends to, whom it receives from, and how far each is.
//!
//! A ring has one lane of each kind; a gathering has as many as there are members. A lane belongs to one
//! connection at a time, and a connection serves the lanes of many operations.

use super::ConnId;
use super::slots::Slot;
use outlast_proto::collective::links::REDIALS_MAX;
use outlast_proto::id::PeerId;
use std::collections::VecDeque;
use std::time::Instant;

/// Where the bytes of a message are.
#[derive(Debug)]
pub(super) enum Source {
    Input,
    Output,
    Slot(Slot),
}

/// A block that can be sent.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) lane: usize,
    pub(super) lap: u32,
    pub(super) step: u32,
    pub(super) source: Source,
}

/// Where an arriving block is put.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) lane: usize,
    /// Scratch; none if it is the output itself, whose old bytes are saved.
    pub(super) slot: Option<Slot>,
}

/// Towards another member.
#[derive(Debug)]
pub(super) struct OutLane {
    pub(super) peer: PeerId,
    /// The connection it uses, as soon as that is there.
    pub(super) conn: Option<ConnId>,
    /// More streams of the same link, where this operation is worth them.
    pub(super) stripes: Vec<ConnId>,
    /// Frames that went out; after the first, a new connection is no help.
    pub(super) frames_sent: u64,
    pub(super) redials_left: u8,
    /// What the other end allows, once its own call is made.
    pub(super) granted: Option<u32>,
    /// The other end was asked to say when its own call is made.
    pub(super) asked: bool,
    pub(super) ready: VecDeque<Message>,
    /// The next block to take from the input, where blocks begin here and go straight.
    pub(super) next: u32,
    /// Blocks that have not gone out.
    pub(super) unsent: u64,
}

/// From another member.
#[derive(Debug)]
pub(super) struct InLane {
    pub(super) peer: PeerId,
    pub(super) conn: Option<ConnId>,
    /// Frames that began to come in; after the first, a new connection is no help.
    pub(super) frames_begun: u64,
    pub(super) redials_left: u8,
    /// The connection broke before it was of use, and must be back by then.
    pub(super) wanted_by: Option<Instant>,
    /// Blocks that have not arrived.
    pub(super) outstanding: u64,
    /// The next block, where they come in order.
    pub(super) next: u32,
    /// What this end has allowed, and what it would allow now.
    pub(super) allowed: u32,
    pub(super) allowable: u32,
}

impl OutLane {
    /// All streams of the lane.
    pub(super) fn streams(&self) -> impl Iterator<Item = ConnId> {
        self.conn.into_iter().chain(self.stripes.iter().copied())
    }

    /// The number of a stream of this lane; zero is the link itself.
    pub(super) fn stream(&self, conn: ConnId) -> Option<u8> {
        if self.conn == Some(conn) {
            return Some(0);
        }
        self.stripes.iter().position(|stripe| *stripe == conn).map(|place| place as u8 + 1)
    }

    pub(super) fn new(peer: PeerId, blocks: u64) -> Self {
        Self {
            peer,
            conn: None,
            stripes: Vec::new(),
            frames_sent: 0,
            redials_left: REDIALS_MAX,
            granted: None,
            asked: false,
            ready: VecDeque::new(),
            next: 0,
            unsent: blocks,
        }
    }
}

impl InLane {
    pub(super) fn new(peer: PeerId, blocks: u64) -> Self {
        Self {
            peer,
            conn: None,
            frames_begun: 0,
            redials_left: REDIALS_MAX,
            wanted_by: None,
            outstanding: blocks,
            next: 0,
            allowed: 0,
            allowable: 0,
        }
    }
}
