//! One peer's part of one attempt: the plan, how far it is, and the memory it works on.
//!
//! An operation does no I/O. Connections ask it where an arriving block should land, tell it when the block is
//! there, and ask it what to send.
//!
//! How much may be under way is settled by credit: see `credit`, and `laps` for rings.
//!
//! The invariant: nothing is written to an output before its old bytes are saved, and nothing is written at
//! all before the sender's fingerprint was compared.

mod credit;

use super::abort::Abort;
use super::arithmetic::Arithmetic;
use super::backlog::Backlog;
use super::lanes::{InLane, Landing, Message, OutLane, Source};
use super::laps::Laps;
use super::slots::{Slot, Slots};
use super::ticket::Ticket;
use super::undo::UndoLog;
use super::{ConnId, Stopped};
use crate::link::Gauge;
use outlast_proto::collective::frame::{FrameKind, Header, OpName};
use outlast_proto::collective::plan::{Block, Duty, Flow, Plan};
use outlast_proto::collective::striping::CALL_BYTES_MIN;
use outlast_proto::id::PeerId;
use std::time::Instant;

/// What an operation is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) name: OpName,
    pub(super) fingerprint: u64,
    pub(super) plan: Plan,
    pub(super) arithmetic: Arithmetic,
    pub(super) deadline: Instant,
    pub(super) abort: Abort,
    /// Bytes that may be under way per link.
    pub(super) window_bytes: usize,
    /// Which end of a transfer this is, if it is one.
    pub(super) end: Option<End>,
}

/// The two ends of a transfer between two members. It is no transaction, so the receiver's word is all that the
/// sender has to go by: it sends nothing before the receiver is ready, and is done when the receiver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Sends,
    Receives,
}

/// See the module's essay.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) parts: Parts,
    pub(super) undo: UndoLog,
    pub(super) outgoing: Vec<OutLane>,
    pub(super) incoming: Vec<InLane>,
    /// How the attempt ended. The engine takes it out then, or as soon as its last bytes are in the kernel.
    pub(super) ending: Option<Result<(), Stopped>>,
    pub(super) bytes_sent: u64,
    pub(super) bytes_received: u64,
    /// Of a ring.
    laps: Option<Laps>,
    /// Blocks that may be under way on a lane.
    window: u32,
    /// The receiver of a transfer has said that all of it is there.
    confirmed: bool,
    /// It is done and leaves at once, whatever the kernel has not taken yet.
    hurried: bool,
    /// When the call was made.
    pub(super) started: Instant,
    /// What the streams to the next member had done by then, if the call is large enough to tell.
    pub(super) readings: Vec<(ConnId, Gauge)>,
    /// What waited on those streams since.
    pub(super) backlog: Backlog,
    /// Fields are dropped in order: whoever waits is told last, when its memory is as it was.
    pub(super) ticket: Ticket,
}

impl Operation {
    pub(super) fn new(parts: Parts, undo: UndoLog, ticket: Ticket) -> Self {
        let plan = &parts.plan;
        let wire_bytes = parts.arithmetic.wire_bytes_bound(plan.block_bytes()).max(1);
        let window = u32::try_from(parts.window_bytes / wire_bytes).unwrap_or(u32::MAX).clamp(2, 4_096);
        let blocks = plan.blocks_per_lane();
        let mut operation = Self {
            undo,
            outgoing: plan.outgoing().iter().map(|peer| OutLane::new(*peer, blocks)).collect(),
            incoming: plan.incoming().iter().map(|peer| InLane::new(*peer, blocks)).collect(),
            ending: None,
            bytes_sent: 0,
            bytes_received: 0,
            laps: match plan.flow() {
                Flow::Ring(ring) => Some(Laps::new(ring, window)),
                Flow::Streams(_) | Flow::Still => None,
            },
            window,
            confirmed: false,
            hurried: false,
            started: Instant::now(),
            readings: Vec::new(),
            backlog: Backlog::default(),
            ticket,
            parts,
        };
        for lane in 0..operation.incoming.len() {
            operation.incoming[lane].allowable = operation.allowable();
        }
        for lane in 0..operation.outgoing.len() {
            operation.refill(lane);
        }
        operation.advance();
        operation
    }

    /// What each member sends on average, which this one did not quite: the last lap may have fewer blocks than members.
    pub(super) fn mean_sent(&self) -> u64 {
        match self.parts.plan.flow() {
            Flow::Ring(ring) => ring.mean_sent(self.bytes_sent, |block| self.wire_bytes(block) as u64),
            Flow::Streams(_) | Flow::Still => self.bytes_sent,
        }
    }

    // ---- sending ----

    /// The lane that goes out over `conn`.
    pub(super) fn lane_towards(&self, conn: ConnId) -> Option<usize> {
        self.outgoing.iter().position(|lane| lane.stream(conn).is_some())
    }

    /// The lane on which this peer is sent to.
    pub(super) fn lane_to(&self, peer: PeerId) -> Option<usize> {
        self.outgoing.iter().position(|lane| lane.peer == peer)
    }

    /// The lane on which this peer sends.
    pub(super) fn lane_from(&self, peer: PeerId) -> Option<usize> {
        self.incoming.iter().position(|lane| lane.peer == peer)
    }

    /// Takes the next block from the input, where blocks begin here and leave in order.
    fn refill(&mut self, lane: usize) {
        let Flow::Streams(streams) = self.parts.plan.flow() else { return };
        let out = &mut self.outgoing[lane];
        if streams.begins_here() && out.next < streams.blocks() {
            out.ready.push_back(Message { lane, lap: out.next, step: 0, source: Source::Input });
            out.next += 1;
        }
    }

    fn wire_bytes(&self, block: &Block) -> usize {
        self.parts.arithmetic.wire_bytes(block)
    }

    fn sends(&self, message: &Message) -> Block {
        self.parts.plan.sends(message.lane, message.lap, message.step)
    }

    /// Whether more streams than one may carry it: laps do not depend on each other, and a small call gains
    /// nothing.
    pub(super) fn is_worth_stripes(&self) -> bool {
        self.laps.is_some() && self.parts.plan.link_bytes_bound() >= CALL_BYTES_MIN
    }

    /// The place in the lane's queue of what this stream sends next.
    fn next_for(&self, lane: usize, conn: ConnId) -> Option<usize> {
        let out = &self.outgoing[lane];
        match &self.laps {
            Some(laps) if !out.stripes.is_empty() => {
                let stream = out.stream(conn)?;
                out.ready.iter().position(|message| laps.fits(message, stream))
            }
            _ => (!out.ready.is_empty()).then_some(0),
        }
    }

    /// Whether the lane's next block for this stream may go: `eager_left` is what may go without credit.
    pub(super) fn may_send(&self, lane: usize, conn: ConnId, eager_left: usize) -> bool {
        let out = &self.outgoing[lane];
        let Some(message) = self.next_for(lane, conn).and_then(|place| out.ready.get(place)) else {
            return false;
        };
        match out.granted {
            None if self.parts.end.is_some() => false,
            // Who has not made its call knows the link, not its streams.
            None if out.conn != Some(conn) => false,
            None => self.wire_bytes(&self.sends(message)) <= eager_left,
            Some(_) if self.laps.is_some() => true,
            Some(limit) => message.lap < limit,
        }
    }

    /// Whether the lane's next block is sent on the eager allowance.
    pub(super) fn is_eager(&self, lane: usize) -> bool {
        self.outgoing[lane].granted.is_none()
    }

    /// The next block, ready to be read with [`Operation::payload`], and its header without checksum.
    pub(super) fn take_message(
        &mut self,
        lane: usize,
        conn: ConnId,
        slots: &mut Slots,
    ) -> Option<(Message, Header)> {
        let place = self.next_for(lane, conn)?;
        let mut message = self.outgoing[lane].ready.remove(place)?;
        if let (Some(laps), Some(stream)) = (&mut self.laps, self.outgoing[lane].stream(conn)) {
            laps.taken(&message, stream);
        }
        self.refill(lane);
        let block = self.sends(&message);
        let length = self.wire_bytes(&block);
        let region = &mut self.undo.region;
        match message.source {
            Source::Input if self.parts.arithmetic.packs() => {
                let mut slot = slots.take();
                self.parts.arithmetic.pack(region, &block, slot.bytes_mut(length), slots);
                message.source = Source::Slot(slot);
            }
            Source::Input if region.input(&block.inputs()).is_none() => {
                let mut slot = slots.take();
                region.gather_input(&block.inputs(), slot.bytes_mut(length));
                message.source = Source::Slot(slot);
            }
            Source::Output if region.output(&block.outputs()).is_none() => {
                let mut slot = slots.take();
                region.gather_output(&block.outputs(), slot.bytes_mut(length));
                message.source = Source::Slot(slot);
            }
            Source::Input | Source::Output | Source::Slot(_) => {}
        }
        let header = self.header(FrameKind::Block, length as u32, message.lap, message.step as u16);
        Some((message, header))
    }

    /// The bytes of a message that was taken.
    pub(super) fn payload<'a>(&'a self, message: &'a Message) -> &'a [u8] {
        let block = self.sends(message);
        match &message.source {
            Source::Slot(slot) => slot.bytes(self.wire_bytes(&block)),
            Source::Input => self.undo.region.input(&block.inputs()).expect("it lies in one tensor"),
            Source::Output => self.undo.region.output(&block.outputs()).expect("it lies in one tensor"),
        }
    }

    /// A message that was taken is in the kernel, or on its way there from a copy.
    pub(super) fn sent(&mut self, message: Message, slots: &mut Slots) {
        self.bytes_sent += self.wire_bytes(&self.sends(&message)) as u64;
        let lane = &mut self.outgoing[message.lane];
        lane.frames_sent += 1;
        lane.unsent -= 1;
        if let Source::Slot(slot) = message.source {
            slots.give(slot);
        }
        if let Some(laps) = &mut self.laps {
            laps.sent(message.lap);
        } else {
            let allowable = self.allowable();
            self.incoming.iter_mut().for_each(|lane| lane.allowable = allowable);
        }
        self.advance();
    }

    // ---- receiving ----

    fn receives(&self, lane: usize, header: &Header) -> Block {
        self.parts.plan.receives(lane, header.lap, u32::from(header.step))
    }

    /// Whether the plan has a place for this block now.
    pub(super) fn expects(&self, lane: usize, header: &Header) -> bool {
        let (lap, step) = (header.lap, u32::from(header.step));
        let in_order = if let Some(laps) = &self.laps {
            laps.expects(lap, step)
        } else {
            let lane = &self.incoming[lane];
            step == 0 && lane.outstanding > 0 && lap == lane.next
        };
        in_order && header.length as usize == self.wire_bytes(&self.receives(lane, header))
    }

    /// Where the block of an expected header lands. Saves what it will overwrite.
    pub(super) fn landing(&mut self, lane: usize, header: &Header, slots: &mut Slots) -> Landing {
        self.incoming[lane].frames_begun += 1;
        if let Some(laps) = &mut self.laps {
            laps.begun(header.lap);
        }
        let duty = self.parts.plan.duty(u32::from(header.step));
        if duty.combines() || self.parts.arithmetic.packs() {
            return Landing { lane, slot: Some(slots.take()) };
        }
        let range = self.receives(lane, header).outputs();
        self.undo.save(&range);
        let lies_whole = self.undo.region.output(&range).is_some();
        Landing { lane, slot: if lies_whole { None } else { Some(slots.take()) } }
    }

    /// The memory of a landing.
    pub(super) fn landing_bytes<'a>(&'a mut self, header: &Header, landing: &'a mut Landing) -> &'a mut [u8] {
        if let Some(slot) = &mut landing.slot {
            return slot.bytes_mut(header.length as usize);
        }
        let range = self.receives(landing.lane, header).outputs();
        self.undo.region.output_mut(&range).expect("it lies in one tensor")
    }

    /// An expected block has landed: do what the plan says.
    pub(super) fn landed(&mut self, header: &Header, landing: Landing, slots: &mut Slots) {
        let (lap, step) = (header.lap, u32::from(header.step));
        let block = self.receives(landing.lane, header);
        let duty = self.parts.plan.duty(step);
        let source = match landing.slot {
            Some(slot) => self.settle(duty, &block, slot, slots),
            None => Source::Output,
        };
        if duty.passes_on() {
            let out = &mut self.outgoing[0].ready;
            match &mut self.laps {
                Some(laps) => {
                    laps.pass_on(Message { lane: 0, lap, step: step + 1, source }, out);
                }
                None => out.push_back(Message { lane: 0, lap, step: 0, source }),
            }
        } else if let Source::Slot(slot) = source {
            slots.give(slot);
        }
        self.bytes_received += u64::from(header.length);
        let lane = &mut self.incoming[landing.lane];
        lane.outstanding -= 1;
        lane.next += 1;
        if let Some(laps) = &mut self.laps {
            laps.received(lap);
        }
        self.advance();
    }

    /// Does a duty with a block in scratch; says where the bytes to pass on are.
    fn settle(&mut self, duty: Duty, block: &Block, mut slot: Slot, slots: &mut Slots) -> Source {
        let arithmetic = &self.parts.arithmetic;
        let length = arithmetic.wire_bytes(block);
        if duty == Duty::CombineAndPassOn {
            arithmetic.join(&self.undo.region, block, slot.bytes_mut(length), slots);
            return Source::Slot(slot);
        }
        self.undo.save(&block.outputs());
        let region = &mut self.undo.region;
        if arithmetic.packs() {
            // Everybody keeps what the owner's bytes open to, the owner too.
            if duty.combines() {
                arithmetic.join_last(region, block, slot.bytes_mut(length), slots);
            }
            arithmetic.unpack(region, block, slot.bytes(length), slots);
            return Source::Slot(slot);
        }
        if duty.combines() {
            arithmetic.finish(region, block, slot.bytes(length));
        } else {
            region.store(&block.outputs(), slot.bytes(length));
        }
        slots.give(slot);
        Source::Output
    }

    // ---- the end ----

    /// Opens what may be opened, and notices the end.
    fn advance(&mut self) {
        if let (Some(laps), Some(lane)) = (&mut self.laps, self.outgoing.first_mut()) {
            laps.advance(lane.granted, &mut lane.ready);
        }
        let done = (0..self.outgoing.len()).all(|lane| self.is_done_sending(lane))
            && self.incoming.iter().all(|lane| lane.outstanding == 0);
        if done && self.ending.is_none() {
            self.ending = Some(Ok(()));
        }
    }

    /// Ends it now. The first reason counts.
    ///
    /// A collective that is done and waits for the kernel to take its last bytes has no result either: whoever
    /// needs those bytes may never get them, so it must not be said to be complete. A transfer is different,
    /// for nobody votes on it: what was received whole stays received, and what is left to say leaves with the
    /// next call.
    pub(super) fn stop(&mut self, why: Stopped) {
        match self.ending {
            Some(Err(_)) => {}
            Some(Ok(())) if self.parts.end.is_some() => self.hurried = true,
            None | Some(Ok(())) => self.ending = Some(Err(why)),
        }
    }

    /// Whether it is done and waits for nothing any more. Who sent a transfer has the receiver's word, and no
    /// bytes of its own are left on the way.
    pub(super) fn is_hurried(&self) -> bool {
        self.hurried || self.parts.end == Some(End::Sends)
    }

    /// Gives all scratch back; the operation is over.
    pub(super) fn clear(&mut self, slots: &mut Slots) {
        let ready = self.outgoing.iter_mut().flat_map(|lane| lane.ready.drain(..));
        for message in ready.chain(self.laps.iter_mut().flat_map(Laps::drain)) {
            if let Source::Slot(slot) = message.source {
                slots.give(slot);
            }
        }
    }

    fn header(&self, kind: FrameKind, length: u32, lap: u32, step: u16) -> Header {
        let Parts { name, fingerprint, .. } = self.parts;
        Header { kind, length, op: name, fingerprint, lap, step, checksum: None }
    }
}
