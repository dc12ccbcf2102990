//! The data plane as a model: who contributed what to which result.

use outlast_proto::collective::links::{Direction, REDIALS_MAX};
use outlast_proto::collective::{Fingerprint, OpKey};
use outlast_proto::id::PeerId;
use outlast_proto::time::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tensor: how often each (peer, step) is in it. A step of `None` is a newcomer's, who does not know it yet. All
/// members of a large group hold the same result, and share it.
pub type Buffer = Arc<BTreeMap<(PeerId, Option<u64>), u32>>;

/// One ring at work on one attempt, in the history of whoever founded the group: where all were out, numbers begin again.
pub(super) type TransferId = (OpKey, Vec<PeerId>, Option<PeerId>);

/// What one member put in.
#[derive(Debug)]
pub(super) struct Input {
    /// Tells its attempt from others.
    pub(super) serial: u64,
    pub(super) buffer: Buffer,
    /// The call that it made.
    pub(super) call: Fingerprint,
    /// Whether it sent blocks before all had made the call.
    pub(super) eager: bool,
}

/// Who has put what in.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// By process.
    pub(super) inputs: BTreeMap<usize, Input>,
    /// All have made the call: blocks are on every link.
    pub(super) begun: bool,
    /// All bytes have been exchanged; nobody's death stops it any more.
    pub(super) moved: bool,
    result: Option<Buffer>,
}

impl Transfer {
    /// Whether all made the same call.
    pub(super) fn is_one_call(&self) -> bool {
        let mut calls = self.inputs.values().map(|input| &input.call);
        calls.next().is_none_or(|first| calls.all(|call| call == first))
    }

    /// What everybody ends with: the sum over all contributions, or the root's. They do not change any more.
    pub(super) fn result(&mut self) -> Buffer {
        let inputs = &self.inputs;
        let result = self.result.get_or_insert_with(|| {
            let mut sum = BTreeMap::new();
            for input in inputs.values() {
                let theirs = |peer: &PeerId| input.call.root.is_none_or(|root| root == *peer);
                for ((peer, step), count) in input.buffer.iter().filter(|((peer, _), _)| theirs(peer)) {
                    *sum.entry((*peer, *step)).or_default() += count;
                }
            }
            Arc::new(sum)
        });
        Arc::clone(result)
    }
}

/// A call's thread: what it executes, and what it was told meanwhile.
#[derive(Debug)]
pub(super) struct Executing {
    /// Tells this attempt from the call's others.
    pub(super) serial: u64,
    pub(super) transfer: TransferId,
    pub(super) aborting: bool,
    /// It holds the result, and has yet to hand its last bytes to the system.
    pub(super) flushing: bool,
    /// To the next in the ring, and from the one before; none if it is alone.
    lanes: Option<[Lane; 2]>,
}

/// One direction of an attempt.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) peer: PeerId,
    /// The connection that it uses, as soon as that is there.
    pub(super) link: Option<u64>,
    pub(super) redials_left: u8,
    /// It broke before it was of use, and must be back by then.
    pub(super) wanted_by: Option<Instant>,
}

impl Executing {
    pub(super) fn new(me: PeerId, serial: u64, transfer: TransferId) -> Self {
        let ring = &transfer.1;
        let place = ring.iter().position(|peer| *peer == me).filter(|_| ring.len() > 1);
        let lane = |peer: PeerId| Lane { peer, link: None, redials_left: REDIALS_MAX, wanted_by: None };
        let lanes = place.map(|at| [1, ring.len() - 1].map(|step| lane(ring[(at + step) % ring.len()])));
        Self { serial, transfer, aborting: false, flushing: false, lanes }
    }

    pub(super) fn lane(&self, direction: Direction) -> Option<&Lane> {
        self.lanes.as_ref().map(|lanes| &lanes[usize::from(direction == Direction::From)])
    }

    pub(super) fn lane_mut(&mut self, direction: Direction) -> Option<&mut Lane> {
        self.lanes.as_mut().map(|lanes| &mut lanes[usize::from(direction == Direction::From)])
    }
}
