//! One peer's part of one attempt: the plan, how far it is, and the memory it works on.
//!
//! An operation does no I/O. Connections ask it where an arriving block should land, tell it when the block is
//! there, and ask it what to send. Rounds run side by side within a window; a new one is opened when the oldest
//! is complete. That window is all the flow control there is after the first credit, and it is enough for a
//! place to be there for every byte. Let w be the window that this member grants its predecessor, and i the oldest
//! round that it has not completed. It has not opened round i + w, so nobody has all contributions to that round,
//! so the predecessor has not completed it and, by the window it was granted, has not opened round i + 2w. What
//! arrives belongs to the rounds from i to i + 2w.
//!
//! The invariant: nothing is written to an output before its old bytes are saved, and nothing is written at
//! all before the sender's fingerprint was compared.

use super::seat::Seat;
use super::slots::{Slot, Slots};
use super::undo::UndoLog;
use super::wakeup::Abort;
use super::{ConnId, Stopped};
use outlast_kernels::Element;
use outlast_proto::collective::frame::{FrameKind, Header, OpName};
use outlast_proto::collective::ring::{Duty, RingPlan};
use outlast_proto::id::PeerId;
use outlast_proto::limits::EAGER_BYTES_MAX;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A block that can be sent.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) round: u32,
    pub(super) step: u32,
    /// Where its bytes are, unless they lie in one of the tensors.
    pub(super) slot: Option<Slot>,
}

/// Where an arriving block is put.
#[derive(Debug)]
pub(super) enum Landing {
    /// Into the output itself, whose old bytes are saved.
    Output,
    /// Into scratch.
    Slot(Slot),
}

/// How far one round is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    received: u32,
    sent: u32,
}

/// What an operation is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) name: OpName,
    pub(super) fingerprint: u64,
    pub(super) plan: RingPlan,
    pub(super) element: Element,
    /// Divide the sum by this, once.
    pub(super) divisor: Option<u32>,
    pub(super) successor: PeerId,
    pub(super) predecessor: PeerId,
    pub(super) deadline: Instant,
    pub(super) abort: Abort,
    pub(super) seat: Arc<Seat>,
    /// Bytes that may be under way per link.
    pub(super) window_bytes: usize,
}

/// See the module's essay.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) parts: Parts,
    pub(super) undo: UndoLog,
    /// The connections it uses, as soon as they are there.
    pub(super) outgoing: Option<ConnId>,
    pub(super) incoming: Option<ConnId>,
    /// How the attempt ended; the engine takes it out then.
    pub(super) ending: Option<Result<(), Stopped>>,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// Frames that went out, and frames that began to come in; after the first, a new connection is no help.
    pub(super) frames_sent: u64,
    pub(super) frames_begun: u64,
    /// How often a connection that broke before it was of use may be dialled again.
    pub(super) redials_left: u8,
    /// The link from the predecessor broke before it was of use, and must be back by then.
    pub(super) link_wanted_by: Option<Instant>,
    /// Rounds that the successor allows, once its own call is made.
    granted: Option<u32>,
    window: u32,
    /// Progress of the rounds from `base` on, by round modulo its length.
    progress: Vec<Progress>,
    /// The oldest round that is not complete.
    base: u32,
    /// The next round to open.
    opened: u32,
    ready: VecDeque<Message>,
    /// Blocks of rounds that this member has not opened: the predecessor is ahead. They wait, so that the
    /// steps of a round leave in order.
    held: VecDeque<Message>,
    /// Block frames that have not arrived.
    outstanding: u64,
}

impl Operation {
    pub(super) fn new(parts: Parts, undo: UndoLog) -> Self {
        let rounds = parts.plan.rounds();
        let blocks = parts.window_bytes / parts.plan.block_bytes().max(1);
        // Two rounds at least: eager frames may belong to two (a plan of several rounds has blocks of 32 KiB
        // and more).
        let window = u32::try_from(blocks).unwrap_or(u32::MAX).clamp(2, 4_096);
        let rounds_max = (2 * window).min(rounds.max(1)) as usize;
        let outstanding = u64::from(rounds) * u64::from(parts.plan.steps());
        let mut operation = Self {
            undo,
            outgoing: None,
            incoming: None,
            ending: None,
            bytes_sent: 0,
            bytes_received: 0,
            frames_sent: 0,
            frames_begun: 0,
            redials_left: 2,
            link_wanted_by: None,
            granted: None,
            window,
            progress: vec![Progress::default(); rounds_max],
            base: 0,
            opened: 0,
            ready: VecDeque::with_capacity(rounds_max.min(64)),
            held: VecDeque::new(),
            outstanding,
            parts,
        };
        operation.open_rounds();
        operation
    }

    /// Whether a credit travels for this operation: not if the eager limit covers all of it on every link.
    pub(super) fn needs_credit(&self) -> bool {
        self.parts.plan.link_bytes_bound() > EAGER_BYTES_MAX as u64
    }

    /// Whether blocks wait for the successor's call.
    pub(super) fn awaits_credit(&self) -> bool {
        self.granted.is_none() && self.needs_credit()
    }

    /// Whether blocks are still to come.
    pub(super) fn awaits_blocks(&self) -> bool {
        self.outstanding > 0
    }

    /// The credit that this member gives its predecessor.
    pub(super) fn credit(&self) -> Header {
        self.header(FrameKind::Credit, 0, self.window, 0)
    }

    /// The successor's call is made, and takes `rounds` at a time.
    pub(super) fn grant(&mut self, rounds: u32) {
        self.granted = Some(rounds.max(1));
        self.open_rounds();
    }

    /// Opens as many rounds as the windows of both ends allow.
    fn open_rounds(&mut self) {
        let window = self.granted.map_or(self.window, |granted| granted.min(self.window));
        while self.opened < self.parts.plan.rounds() && self.opened - self.base < window {
            self.ready.push_back(Message { round: self.opened, step: 0, slot: None });
            for _ in 0..self.held.len() {
                let Some(message) = self.held.pop_front() else { break };
                let queue = if message.round == self.opened { &mut self.ready } else { &mut self.held };
                queue.push_back(message);
            }
            self.opened += 1;
        }
    }

    /// Bytes of the next block to send, if one is ready.
    pub(super) fn next_length(&self) -> Option<usize> {
        self.ready.front().map(|message| self.parts.plan.sends(message.round, message.step).len())
    }

    /// Whether credit or nothing else is needed for the next block: `eager_left` is what may go without.
    pub(super) fn may_send(&self, eager_left: usize) -> bool {
        self.next_length().is_some_and(|length| self.granted.is_some() || length <= eager_left)
    }

    /// Whether the next block is sent on the eager allowance.
    pub(super) fn is_eager(&self) -> bool {
        self.granted.is_none()
    }

    /// The next block, ready to be read with [`Operation::payload`], and its header without checksum.
    pub(super) fn take_message(&mut self, slots: &mut Slots) -> Option<(Message, Header)> {
        let mut message = self.ready.pop_front()?;
        let range = self.parts.plan.sends(message.round, message.step);
        let region = &mut self.undo.region;
        if message.slot.is_none() {
            let lies_whole = if message.step == 0 {
                region.input(&range).is_some()
            } else {
                region.output(&range).is_some()
            };
            if !lies_whole {
                let mut slot = slots.take();
                let bytes = slot.bytes_mut(range.len());
                if message.step == 0 {
                    region.gather_input(&range, bytes);
                } else {
                    region.gather_output(&range, bytes);
                }
                message.slot = Some(slot);
            }
        }
        let header = self.header(FrameKind::Block, range.len() as u32, message.round, message.step as u16);
        Some((message, header))
    }

    /// The bytes of a message that was taken.
    pub(super) fn payload<'a>(&'a self, message: &'a Message) -> &'a [u8] {
        let range = self.parts.plan.sends(message.round, message.step);
        match &message.slot {
            Some(slot) => slot.bytes(range.len()),
            None if message.step == 0 => self.undo.region.input(&range).expect("it lies in one tensor"),
            None => self.undo.region.output(&range).expect("it lies in one tensor"),
        }
    }

    /// A message that was taken is in the kernel, or on its way there from a copy.
    pub(super) fn sent(&mut self, message: Message, slots: &mut Slots) {
        self.bytes_sent += self.parts.plan.sends(message.round, message.step).len() as u64;
        self.frames_sent += 1;
        if let Some(slot) = message.slot {
            slots.give(slot);
        }
        let index = message.round as usize % self.progress.len();
        self.progress[index].sent += 1;
        self.advance();
    }

    /// Whether the plan has a place for this block now.
    pub(super) fn expects(&self, header: &Header) -> bool {
        let (round, step) = (header.round, u32::from(header.step));
        let plan = &self.parts.plan;
        round >= self.base
            && round < plan.rounds()
            && ((round - self.base) as usize) < self.progress.len()
            && step < plan.steps()
            && step == self.progress[round as usize % self.progress.len()].received
            && header.length as usize == plan.receives(round, step).len()
    }

    /// Where the block of an expected header lands. Saves what it will overwrite.
    pub(super) fn landing(&mut self, header: &Header, slots: &mut Slots) -> Landing {
        self.frames_begun += 1;
        let step = u32::from(header.step);
        let range = self.parts.plan.receives(header.round, step);
        match self.parts.plan.duty(step) {
            Duty::AddAndPassOn | Duty::AddAndOwn => Landing::Slot(slots.take()),
            Duty::KeepAndPassOn | Duty::Keep => {
                self.undo.save(&range);
                let lies_whole = self.undo.region.output(&range).is_some();
                if lies_whole { Landing::Output } else { Landing::Slot(slots.take()) }
            }
        }
    }

    /// The memory of a landing.
    pub(super) fn landing_bytes<'a>(&'a mut self, header: &Header, landing: &'a mut Landing) -> &'a mut [u8] {
        match landing {
            Landing::Slot(slot) => slot.bytes_mut(header.length as usize),
            Landing::Output => {
                let range = self.parts.plan.receives(header.round, u32::from(header.step));
                self.undo.region.output_mut(&range).expect("it lies in one tensor")
            }
        }
    }

    /// An expected block has landed: do what the plan says.
    pub(super) fn landed(&mut self, header: &Header, landing: Landing, slots: &mut Slots) {
        let (round, step) = (header.round, u32::from(header.step));
        let range = self.parts.plan.receives(round, step);
        let duty = self.parts.plan.duty(step);
        let passed_on = match (duty, landing) {
            (Duty::AddAndPassOn, Landing::Slot(mut slot)) => {
                self.undo.region.add_input(self.parts.element, &range, slot.bytes_mut(range.len()));
                Some(slot)
            }
            (Duty::AddAndOwn, Landing::Slot(slot)) => {
                self.undo.save(&range);
                let partial = slot.bytes(range.len());
                self.undo.region.finish_sum(self.parts.element, &range, partial, self.parts.divisor);
                slots.give(slot);
                None
            }
            (_, Landing::Slot(slot)) => {
                self.undo.region.store(&range, slot.bytes(range.len()));
                slots.give(slot);
                None
            }
            (_, Landing::Output) => None,
        };
        if duty != Duty::Keep {
            let queue = if round < self.opened { &mut self.ready } else { &mut self.held };
            queue.push_back(Message { round, step: step + 1, slot: passed_on });
        }
        self.bytes_received += range.len() as u64;
        self.outstanding -= 1;
        let index = round as usize % self.progress.len();
        self.progress[index].received += 1;
        self.advance();
    }

    /// Lets go of complete rounds, opens new ones, and notices the end.
    fn advance(&mut self) {
        let steps = self.parts.plan.steps();
        while self.base < self.opened {
            let index = self.base as usize % self.progress.len();
            let Progress { received, sent } = self.progress[index];
            if received < steps || sent < steps {
                break;
            }
            self.progress[index] = Progress::default();
            self.base += 1;
        }
        self.open_rounds();
        if self.base == self.parts.plan.rounds() && self.ending.is_none() {
            self.ending = Some(Ok(()));
        }
    }

    /// Gives all scratch back; the operation is over.
    pub(super) fn clear(&mut self, slots: &mut Slots) {
        self.ready
            .drain(..)
            .chain(self.held.drain(..))
            .filter_map(|message| message.slot)
            .for_each(|slot| slots.give(slot));
    }

    fn header(&self, kind: FrameKind, length: u32, round: u32, step: u16) -> Header {
        let Parts { name, fingerprint, .. } = self.parts;
        Header { kind, length, op: name, fingerprint, round, step, checksum: None }
    }
}
