//! The data plane as a model: who contributed what to which result.

use outlast_proto::collective::{Fingerprint, OpKey};
use outlast_proto::id::PeerId;
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
}

/// Who has put what in.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// By process.
    pub(super) inputs: BTreeMap<usize, Input>,
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
}
