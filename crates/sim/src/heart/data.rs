//! The data plane as a model: who contributed what to which result.

use outlast_proto::collective::OpKey;
use outlast_proto::id::PeerId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tensor: how often each (peer, step) is in it. A step of `None` is a newcomer's, who does not know it yet. All
/// members of a large group hold the same result, and share it.
pub type Buffer = Arc<BTreeMap<(PeerId, Option<u64>), u32>>;

/// One ring at work on one attempt. Attempts of one key in two lineages have different rings.
pub(super) type TransferId = (OpKey, Vec<PeerId>);

/// Who has put what in.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// By process: its call's serial and its contribution.
    pub(super) inputs: BTreeMap<usize, (u64, Buffer)>,
    /// All bytes have been exchanged; nobody's death stops it any more.
    pub(super) moved: bool,
    result: Option<Buffer>,
}

impl Transfer {
    /// The sum over all contributions, which do not change any more.
    pub(super) fn sum(&mut self) -> Buffer {
        let inputs = &self.inputs;
        let sum = self.result.get_or_insert_with(|| {
            let mut sum = BTreeMap::new();
            for (contribution, count) in inputs.values().flat_map(|(_, buffer)| &**buffer) {
                *sum.entry(*contribution).or_default() += count;
            }
            Arc::new(sum)
        });
        Arc::clone(sum)
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
