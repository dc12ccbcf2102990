//! Blocks, credits and questions that came before our own call.
//!
//! A sender may put a little on the wire before it knows that the receiver has made the same call (rule 14).
//! What arrives early is parked here, bounded per operation and per link; the sender keeps the same account, so
//! an honest one never exceeds the bound. Where nothing more may be sent early, the sender asks to be told of the
//! call, and the question waits here: it costs a header, so calls that nobody answers are never in the way of one
//! that everybody made, however many they are.

use outlast_proto::collective::frame::{Header, OpName, Signal};
use outlast_proto::collective::{Group, GroupEpoch};
use outlast_proto::limits::{
    EAGER_BYTES_MAX, EAGER_LINK_BYTES_MAX, EAGER_LINK_FRAMES_MAX, EARLY_CREDITS_MAX,
};

/// The receiver allows twice what the sender allows itself: the sender forgets an epoch when it opens the
/// next, which may be a moment before the receiver does.
const TOLERANCE: usize = 2;

/// A block whose operation is not here yet.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
}

/// What came early on one connection.
#[derive(Debug, Default)]
pub(super) struct Parking {
    blocks: Vec<Parked>,
    bytes: usize,
    credits: Vec<Header>,
    /// Calls that the other end asks about, the latest of each sequence.
    asks: Vec<OpName>,
}

impl Parking {
    /// Whether a block of this header may be parked.
    pub(super) fn has_room(&self, header: &Header) -> bool {
        let length = header.length as usize;
        let same = self.blocks.iter().filter(|parked| parked.header.op == header.op);
        self.bytes + length <= TOLERANCE * EAGER_LINK_BYTES_MAX
            && self.blocks.len() < TOLERANCE * EAGER_LINK_FRAMES_MAX
            && same.map(|parked| parked.bytes.len()).sum::<usize>() + length <= EAGER_BYTES_MAX
    }

    pub(super) fn park(&mut self, parked: Parked) {
        self.bytes += parked.bytes.len();
        self.blocks.push(parked);
    }

    /// Takes out the blocks of `name`, in the order in which they came.
    pub(super) fn take(&mut self, name: &OpName) -> Vec<Parked> {
        let taken: Vec<_> = self.blocks.extract_if(.., |parked| parked.header.op == *name).collect();
        self.bytes -= taken.iter().map(|parked| parked.bytes.len()).sum::<usize>();
        taken
    }

    /// Remembers a credit, until its receiver withdraws it. `false` if there are too many.
    pub(super) fn park_credit(&mut self, header: Header) -> bool {
        match Signal::of(&header) {
            Signal::Ready => self.credits.push(header),
            Signal::Withdrawn => self.credits.retain(|credit| credit.op != header.op),
            Signal::Received => {}
        }
        self.credits.len() <= EARLY_CREDITS_MAX
    }

    /// Takes out the credit for `name`, or the latest of its sequence if any number will do.
    pub(super) fn take_credit(&mut self, name: &OpName, any_number: bool) -> Option<Header> {
        if any_number {
            let sequence = self.credits.extract_if(.., |credit| credit.op.same_sequence(name));
            return sequence.max_by_key(|credit| credit.op.seq);
        }
        let at = self.credits.iter().position(|credit| credit.op == *name)?;
        Some(self.credits.swap_remove(at))
    }

    /// Remembers that the sender wants to hear of our call `name`. `false` if there are too many.
    pub(super) fn park_ask(&mut self, name: OpName) -> bool {
        self.asks.retain(|ask| !ask.same_sequence(&name));
        self.asks.push(name);
        self.asks.len() <= EARLY_CREDITS_MAX
    }

    /// Whether the sender asked about our call `name`; it will not be remembered.
    pub(super) fn take_ask(&mut self, name: &OpName) -> bool {
        let at = self.asks.iter().position(|ask| ask == name);
        at.map(|at| self.asks.swap_remove(at)).is_some()
    }

    /// Forgets what belongs to `name` or to earlier numbers under it.
    pub(super) fn forget(&mut self, name: &OpName) {
        self.retain(|op| !(op.same_sequence(name) && op.seq <= name.seq));
    }

    /// Forgets what belongs to earlier epochs of `group`.
    pub(super) fn forget_before(&mut self, group: Group, epoch: GroupEpoch) {
        self.retain(|op| op.group != group || op.epoch >= epoch);
    }

    fn retain(&mut self, keep: impl Fn(&OpName) -> bool) {
        self.blocks.retain(|parked| keep(&parked.header.op));
        self.bytes = self.blocks.iter().map(|parked| parked.bytes.len()).sum();
        self.credits.retain(|credit| keep(&credit.op));
        self.asks.retain(keep);
    }
}

/// What a sender has on the wire without credit.
#[derive(Debug, Default)]
pub(super) struct EagerAccount {
    entries: Vec<(OpName, usize)>,
    bytes: usize,
    frames: usize,
}

impl EagerAccount {
    /// What may still be sent for `name` without credit.
    pub(super) fn left(&self, name: &OpName) -> usize {
        if self.frames >= EAGER_LINK_FRAMES_MAX {
            return 0;
        }
        let spent: usize = self.entries.iter().filter(|(op, _)| op == name).map(|(_, bytes)| bytes).sum();
        EAGER_BYTES_MAX.saturating_sub(spent).min(EAGER_LINK_BYTES_MAX.saturating_sub(self.bytes))
    }

    /// Whether so much is on the wire that a call may not get all that it may send without credit.
    pub(super) fn is_tight(&self) -> bool {
        self.bytes + EAGER_BYTES_MAX > EAGER_LINK_BYTES_MAX || self.frames >= EAGER_LINK_FRAMES_MAX
    }

    pub(super) fn spend(&mut self, name: OpName, bytes: usize) {
        self.entries.push((name, bytes));
        self.bytes += bytes;
        self.frames += 1;
    }

    /// The receiver has made the call `name`: it holds nothing of it, nor of earlier numbers under it.
    pub(super) fn release(&mut self, name: &OpName) {
        self.retain(|op| !(op.same_sequence(name) && op.seq <= name.seq));
    }

    /// The receiver will forget earlier epochs of `group`, as we did.
    pub(super) fn forget_before(&mut self, group: Group, epoch: GroupEpoch) {
        self.retain(|op| op.group != group || op.epoch >= epoch);
    }

    fn retain(&mut self, keep: impl Fn(&OpName) -> bool) {
        self.entries.retain(|(op, _)| keep(op));
        self.bytes = self.entries.iter().map(|(_, bytes)| bytes).sum();
        self.frames = self.entries.len();
    }
}
