//! One connection: bytes into frames, frames into bytes.
//!
//! A connection belongs to one edge of a ring. Blocks go from who dialled it to who accepted it, credits the
//! other way. The reader is always either between frames or inside one payload whose sink it knows; the writer
//! has at most one frame begun. That is what makes an operation detachable at any byte: a payload that is being
//! received is drained into nothing from then on, and a frame that was begun is finished from a copy, so the
//! link and everybody else's frames on it live on (rule 15).
//!
//! The invariant: a sink or a source that refers to an operation is resolved anew for each system call, and is
//! replaced before that operation leaves the desk.

use super::desk::{DRAIN_BYTES, Desk, OpId};
use super::lanes::{Landing, Message, Source};
use super::parking::{EagerAccount, Parked, Parking};
use super::routing::{self, Route};
use super::{ConnId, Direction};
use crate::link::{Gauge, Wire};
use outlast_proto::collective::frame::{BadFrame, FrameKind, HEADER_BYTES, Header, OpName};
use outlast_proto::id::PeerId;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

/// What is read beyond a header when nothing is known about the next frame: small frames come whole.
const STAGE_BYTES: usize = 16 << 10;
/// Bytes that one connection may read before the others get their turn.
const READ_TURN_BYTES: usize = 1 << 20;
/// Why a connection cannot go on. It is closed and reported; nobody is condemned for it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("closed by the other side")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    BadFrame(#[from] BadFrame),
    #[error("{0}")]
    Misbehaved(String),
}

impl Broken {
    /// Whether the other host acknowledged nothing any more: what was sent last is lost.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::TimedOut)
    }
}

/// Where a payload goes.
#[derive(Debug)]
pub(super) enum Sink {
    Operation(OpId, Landing),
    /// Nobody here has made this call yet.
    Park(Vec<u8>),
    /// It can have no effect any more.
    Drain,
}

#[derive(Debug)]
struct Receiving {
    header: Header,
    got: usize,
    sink: Sink,
}

#[derive(Debug)]
enum Sending {
    Block {
        op: OpId,
        message: Message,
        header: [u8; HEADER_BYTES],
        length: usize,
        sent: usize,
    },
    Signal {
        header: [u8; HEADER_BYTES],
        sent: usize,
    },
    /// The rest of a block whose operation is gone.
    Rest {
        bytes: Vec<u8>,
        sent: usize,
    },
}

/// See the module's essay.
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) peer: PeerId,
    pub(super) direction: Direction,
    /// The connection that makes the link, if this is one more stream of it.
    pub(super) primary: Option<ConnId>,
    wire: Box<dyn Wire>,
    stage: Box<[u8; STAGE_BYTES]>,
    staged: std::ops::Range<usize>,
    receiving: Option<Receiving>,
    sending: Option<Sending>,
    words: VecDeque<[u8; HEADER_BYTES]>,
    /// The wire took bytes that the kernel has not.
    unflushed: bool,
    /// The kernel had no room; poll says when it has.
    pub(super) write_blocked: bool,
    /// Poll said that there is something to read, or nobody asked yet.
    pub(super) maybe_readable: bool,
    /// There was nothing more to read, and nobody has asked since.
    is_drained: bool,
    last_sender: Option<OpId>,
    pub(super) parking: Parking,
    pub(super) eager: EagerAccount,
}

impl Conn {
    pub(super) fn new(id: ConnId, peer: PeerId, direction: Direction, wire: Box<dyn Wire>) -> Self {
        Self {
            id,
            peer,
            direction,
            primary: None,
            wire,
            stage: Box::new([0; STAGE_BYTES]),
            staged: 0..0,
            receiving: None,
            sending: None,
            words: VecDeque::new(),
            unflushed: false,
            write_blocked: false,
            maybe_readable: true,
            is_drained: false,
            last_sender: None,
            parking: Parking::default(),
            eager: EagerAccount::default(),
        }
    }

    /// The connection that operations know the link by.
    pub(super) fn link(&self) -> ConnId {
        self.primary.unwrap_or(self.id)
    }

    /// Whether it is between frames, so that an end now is no loss.
    pub(super) fn is_between_frames(&self) -> bool {
        self.receiving.is_none() && self.staged.is_empty() && self.sending.is_none() && self.words.is_empty()
    }

    /// See [`Wire::gauge`].
    pub(super) fn gauge(&self) -> Option<Gauge> {
        self.wire.gauge()
    }

    /// See [`Wire::limit_queue`].
    pub(super) fn limit_queue(&self, bytes: Option<u32>) -> io::Result<()> {
        self.wire.limit_queue(bytes)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wire.descriptor()
    }

    /// Sends a frame without payload before the next block: that our call is made, that more may come, or that
    /// a transfer is over.
    pub(super) fn queue_header(&mut self, header: &Header) {
        self.words.push_back(self.sealed(*header, &[]));
    }

    /// Whether everything that the wire took is in the kernel.
    pub(super) fn is_flushed(&self) -> bool {
        !self.unflushed
    }

    /// Whether a frame without payload waits to be sent.
    pub(super) fn owes_words(&self) -> bool {
        !self.words.is_empty() || matches!(self.sending, Some(Sending::Signal { .. }))
    }

    /// Whether a frame of this operation is being sent. None of it may be on the wire yet, but it is no longer
    /// among those that could be sent elsewhere.
    pub(super) fn is_sending(&self, id: OpId) -> bool {
        matches!(&self.sending, Some(Sending::Block { op, .. }) if *op == id)
    }

    // ---- receiving ----

    /// Whether to read although poll has not said that there is anything: it saves asking, unless there was nothing the
    /// last time.
    pub(super) fn is_worth_a_try(&self) -> bool {
        self.maybe_readable || !self.is_drained
    }

    /// Poll said that there is something to read, or somebody begins to wait for it.
    pub(super) fn look_again(&mut self) {
        self.is_drained = false;
    }

    /// Reads what there is, up to one turn's share. `Ok(true)` if anything came.
    pub(super) fn receive(&mut self, desk: &mut Desk) -> Result<bool, Broken> {
        let mut total = 0;
        self.maybe_readable = false;
        loop {
            self.consume_staged(desk)?;
            if total >= READ_TURN_BYTES {
                self.maybe_readable = true;
                return Ok(true);
            }
            match self.read_some(desk) {
                Ok((0, _)) => return Err(Broken::Closed),
                Ok((bytes, is_all)) => {
                    total += bytes;
                    if is_all && self.wire.is_drained() {
                        self.is_drained = true;
                        self.consume_staged(desk)?;
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_drained = self.wire.is_drained();
                    return Ok(total > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One system call: into the payload's sink and the next header behind it, or, between frames, into the
    /// stage. How many bytes came, and whether there would have been room for more.
    fn read_some(&mut self, desk: &mut Desk) -> io::Result<(usize, bool)> {
        let Some(receiving) = &mut self.receiving else {
            if self.staged.is_empty() {
                self.staged = 0..0;
            } else {
                self.stage.copy_within(self.staged.clone(), 0);
                self.staged = 0..self.staged.len();
            }
            let room = &mut self.stage[self.staged.end..];
            let all = room.len();
            let bytes = self.wire.receive(&mut [IoSliceMut::new(room)])?;
            self.staged.end += bytes;
            return Ok((bytes, bytes < all));
        };
        debug_assert!(self.staged.is_empty(), "staged bytes come before the wire's");
        let length = receiving.header.length as usize;
        let (target, whole) = match &mut receiving.sink {
            Sink::Operation(op, landing) => {
                let operation = desk.get_mut(*op).expect("a sink is replaced before its operation leaves");
                (&mut operation.landing_bytes(&receiving.header, landing)[receiving.got..], true)
            }
            Sink::Park(bytes) => (&mut bytes[receiving.got..], true),
            Sink::Drain => {
                let left = length - receiving.got;
                (&mut desk.drain[..left.min(DRAIN_BYTES)], left <= DRAIN_BYTES)
            }
        };
        let room = target.len();
        let bytes = if whole {
            let next_header = &mut self.stage[..HEADER_BYTES];
            self.wire.receive(&mut [IoSliceMut::new(target), IoSliceMut::new(next_header)])?
        } else {
            self.wire.receive(&mut [IoSliceMut::new(target)])?
        };
        receiving.got += bytes.min(room);
        self.staged = 0..bytes.saturating_sub(room);
        Ok((bytes, bytes < if whole { room + HEADER_BYTES } else { room }))
    }

    /// Works off staged bytes: headers, and payloads that came with them.
    fn consume_staged(&mut self, desk: &mut Desk) -> Result<(), Broken> {
        loop {
            if let Some(receiving) = &mut self.receiving {
                let left = receiving.header.length as usize - receiving.got;
                let taken = left.min(self.staged.len());
                if taken > 0 {
                    let bytes = &self.stage[self.staged.start..self.staged.start + taken];
                    let place = receiving.got..receiving.got + taken;
                    match &mut receiving.sink {
                        Sink::Operation(op, landing) => {
                            let operation = desk.get_mut(*op).expect("replaced before its operation leaves");
                            operation.landing_bytes(&receiving.header, landing)[place].copy_from_slice(bytes);
                        }
                        Sink::Park(parked) => parked[place].copy_from_slice(bytes),
                        Sink::Drain => {}
                    }
                    receiving.got += taken;
                    self.staged.start += taken;
                }
                if taken < left {
                    return Ok(());
                }
                self.finish_frame(desk)?;
            } else {
                let bytes = &self.stage[self.staged.clone()];
                let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(()) };
                let header = Header::parse(header)?;
                self.staged.start += HEADER_BYTES;
                self.begin_frame(desk, header)?;
            }
        }
    }

    fn begin_frame(&mut self, desk: &mut Desk, header: Header) -> Result<(), Broken> {
        let sink =
            match routing::route(desk, self.link(), self.peer, self.direction, &mut self.parking, &header)? {
                Route::Into(op, landing) => Sink::Operation(op, landing),
                // What is sent before our call comes over the link itself.
                Route::Park if self.primary.is_some() => {
                    let what = format!("a block of {:?} over a second stream before our call", header.op);
                    return Err(Broken::Misbehaved(what));
                }
                Route::Park => Sink::Park(vec![0; header.length as usize]),
                Route::Drain => Sink::Drain,
                Route::Credit(op, lane) => {
                    // A credit has no payload to check, so its checksum is checked at once.
                    verify(&header, &[])?;
                    if let Some(operation) = desk.get_mut(op) {
                        operation.credited(lane, &header);
                    }
                    Sink::Drain
                }
                Route::Ask(op, lane) => {
                    verify(&header, &[])?;
                    if let Some(operation) = desk.get_mut(op) {
                        let credit = operation.credit(lane);
                        self.queue_header(&credit);
                    }
                    Sink::Drain
                }
            };
        if header.kind == FrameKind::Credit {
            // Whatever became of our call, the receiver has made its own and parks nothing of it.
            self.eager.release(&header.op);
        }
        self.receiving = Some(Receiving { header, got: 0, sink });
        Ok(())
    }

    fn finish_frame(&mut self, desk: &mut Desk) -> Result<(), Broken> {
        let Some(Receiving { header, sink, .. }) = self.receiving.take() else { return Ok(()) };
        match sink {
            Sink::Drain => Ok(()),
            Sink::Operation(op, mut landing) => {
                let (operation, slots) = desk.parts_mut(op).expect("replaced before its operation leaves");
                verify(&header, operation.landing_bytes(&header, &mut landing))?;
                operation.landed(&header, landing, slots);
                Ok(())
            }
            Sink::Park(bytes) => {
                verify(&header, &bytes)?;
                let parked = Parked { header, bytes };
                // The call may have been made while the payload came in.
                if desk.find(&header.op).is_some() {
                    routing::deliver(desk, self.id, self.peer, parked)
                } else {
                    self.parking.park(parked);
                    Ok(())
                }
            }
        }
    }

    /// Gives parked blocks of `name` to the operation that has just been made.
    pub(super) fn deliver_parked(&mut self, desk: &mut Desk, name: &OpName) -> Result<(), Broken> {
        for parked in self.parking.take(name) {
            routing::deliver(desk, self.id, self.peer, parked)?;
        }
        Ok(())
    }

    // ---- sending ----

    /// Whether there is anything to send that may be sent.
    pub(super) fn has_work(&self, desk: &Desk) -> bool {
        let begun = self.unflushed || self.sending.is_some() || !self.words.is_empty();
        !self.write_blocked && (begun || self.next_sender(desk).is_some())
    }

    fn next_sender(&self, desk: &Desk) -> Option<OpId> {
        desk.next_after(self.last_sender, |operation| {
            let lane = operation.lane_towards(self.id).filter(|_| operation.ending.is_none());
            lane.is_some_and(|lane| operation.may_send(lane, self.id, self.eager.left(&operation.parts.name)))
        })
    }

    /// Sends until nothing is ready or the kernel has no room. `Ok(true)` if anything went.
    pub(super) fn send(&mut self, desk: &mut Desk) -> Result<bool, Broken> {
        let mut progress = false;
        loop {
            if self.sending.is_none() && !self.begin_sending(desk) {
                break;
            }
            match self.send_some(desk) {
                Ok(()) => progress = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.write_blocked = true;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.wire.flush() {
            Ok(()) => self.unflushed = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.unflushed = true;
                self.write_blocked = true;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(progress)
    }

    fn begin_sending(&mut self, desk: &mut Desk) -> bool {
        if let Some(header) = self.words.pop_front() {
            self.sending = Some(Sending::Signal { header, sent: 0 });
            return true;
        }
        let Some(op) = self.next_sender(desk) else { return false };
        let Some((operation, slots)) = desk.parts_mut(op) else { return false };
        let Some(lane) = operation.lane_towards(self.id) else { return false };
        let eager = operation.is_eager(lane);
        let Some((message, header)) = operation.take_message(lane, self.id, slots) else { return false };
        let length = header.length as usize;
        if eager {
            self.eager.spend(header.op, length);
        }
        let header = self.sealed(header, operation.payload(&message));
        self.last_sender = Some(op);
        self.sending = Some(Sending::Block { op, message, header, length, sent: 0 });
        true
    }

    fn send_some(&mut self, desk: &mut Desk) -> io::Result<()> {
        let Some(sending) = &mut self.sending else { return Ok(()) };
        let complete = match sending {
            Sending::Signal { header, sent } => {
                *sent += self.wire.send(&[IoSlice::new(&header[*sent..])])?;
                *sent == HEADER_BYTES
            }
            Sending::Rest { bytes, sent } => {
                *sent += self.wire.send(&[IoSlice::new(&bytes[*sent..])])?;
                *sent == bytes.len()
            }
            Sending::Block { op, message, header, length, sent } => {
                let operation = desk.get_mut(*op).expect("a source is replaced before its operation leaves");
                let payload = operation.payload(message);
                *sent += if *sent < HEADER_BYTES {
                    self.wire.send(&[IoSlice::new(&header[*sent..]), IoSlice::new(payload)])?
                } else {
                    self.wire.send(&[IoSlice::new(&payload[*sent - HEADER_BYTES..])])?
                };
                *sent == HEADER_BYTES + *length
            }
        };
        if complete
            && let Some(Sending::Block { op, message, .. }) = self.sending.take()
            && let Some((operation, slots)) = desk.parts_mut(op)
        {
            operation.sent(message, slots);
        }
        Ok(())
    }

    /// Lets go of an operation: from here on nothing on this connection refers to it.
    pub(super) fn detach(&mut self, desk: &mut Desk, id: OpId) {
        if let Some(Receiving { sink, .. }) = &mut self.receiving
            && matches!(sink, Sink::Operation(op, _) if *op == id)
            && let Sink::Operation(_, Landing { slot: Some(slot), .. }) = std::mem::replace(sink, Sink::Drain)
        {
            desk.slots.give(slot);
        }
        if matches!(&self.sending, Some(Sending::Block { op, .. }) if *op == id)
            && let Some(Sending::Block { message, header, sent, .. }) = self.sending.take()
            && let Some((operation, slots)) = desk.parts_mut(id)
        {
            if sent > 0 {
                let payload = operation.payload(&message);
                let rest = [&header[sent.min(HEADER_BYTES)..], &payload[sent.saturating_sub(HEADER_BYTES)..]];
                self.sending = Some(Sending::Rest { bytes: rest.concat(), sent: 0 });
            }
            if let Source::Slot(slot) = message.source {
                slots.give(slot);
            }
        }
    }

    /// The header's bytes, with a checksum if the wire wants one.
    fn sealed(&self, mut header: Header, payload: &[u8]) -> [u8; HEADER_BYTES] {
        if self.wire.wants_checksums() {
            header.checksum = Some(checksum(&header, payload));
        }
        header.to_bytes()
    }
}

/// CRC-32 over the header with an empty checksum field, then the payload.
fn checksum(header: &Header, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&Header { checksum: Some(0), ..*header }.to_bytes());
    hasher.update(payload);
    hasher.finalize()
}

fn verify(header: &Header, payload: &[u8]) -> Result<(), BadFrame> {
    let Some(found) = header.checksum else { return Ok(()) };
    let computed = checksum(header, payload);
    if found == computed { Ok(()) } else { Err(BadFrame::Checksum { found, computed }) }
}
