//! One link: what was sent over it, what has come.
//!
//! A connection may break with bytes on the way, and nobody knows which of them arrived. So frames are numbered, the
//! other side says up to where it has them, and what it does not have is sent again over the next connection. A frame
//! that came twice is dropped. Should there be no next connection soon, what was not acknowledged is handed back and
//! goes another way; then it may come twice to its reader, who must be able to tell (calls have names, replication has
//! numbers, broadcasts too).
//!
//! Long messages come in pieces that wait in a queue of their own: only so many of them are under way at once that a
//! small message that comes later waits for a fraction of a millisecond.
//!
//! The invariant: over one link every frame is given to its reader at most once, and once if the link ever carries again
//! before it is given up.

use crate::limits::STORE_PIECE_BYTES;
use crate::time::Instant;
use crate::wire::store::MemberId;
use crate::wire::store::mesh::{Envelope, Hop};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of pieces that are under way on one link at once.
const PIECES_UNDER_WAY: usize = 8 * STORE_PIECE_BYTES;
/// Frames after which they are acknowledged though there is nothing else to say.
const UNACKNOWLEDGED_MAX: u64 = 64;

/// One end of a link.
#[derive(Clone, Debug, Hash)]
pub struct HopLink {
    me: MemberId,
    other: MemberId,
    /// Whether a connection is there, and both have said how far they are.
    state: State,
    since: Instant,
    /// It carried once.
    was_up: bool,
    /// When something was last acknowledged, or the first of what is not was sent.
    progress: Instant,
    /// Our numbers belong to this count, theirs to that one. Either side may have forgotten the link and begun anew.
    count: u64,
    others_count: u64,
    sent: u64,
    unacknowledged: VecDeque<(u64, Envelope)>,
    /// Pieces that wait for their turn.
    pieces: VecDeque<Envelope>,
    pieces_under_way: usize,
    /// Everything up to there has come, and of what is behind it, these.
    received: u64,
    beyond: BTreeSet<u64>,
    /// What the other was told about that.
    told: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Down,
    /// Connected; the other's greeting has not come.
    Greeting,
    Up,
}

impl HopLink {
    /// A link that has carried nothing yet.
    pub fn new(now: Instant, me: MemberId, other: MemberId) -> Self {
        Self {
            me,
            other,
            state: State::Down,
            since: now,
            was_up: false,
            progress: now,
            count: now.as_nanos().max(1),
            others_count: 0,
            sent: 0,
            unacknowledged: VecDeque::new(),
            pieces: VecDeque::new(),
            pieces_under_way: 0,
            received: 0,
            beyond: BTreeSet::new(),
            told: 0,
        }
    }

    /// Whether it carries.
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether there is a connection, though it may not carry yet.
    pub fn is_connected(&self) -> bool {
        self.state != State::Down
    }

    /// Since when that is so.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Whether it ever carried.
    pub fn was_up(&self) -> bool {
        self.was_up
    }

    /// Frames that are not acknowledged, and pieces that wait.
    pub fn pending(&self) -> usize {
        self.unacknowledged.len() + self.pieces.len()
    }

    /// Whether pieces of an own message with that number are still to be sent or acknowledged.
    pub fn holds_pieces(&self, number: u64) -> bool {
        let is_one = |piece: &Envelope| piece.pieces > 1 && piece.number == number && piece.from == self.me;
        self.pieces.iter().any(is_one) || self.unacknowledged.iter().any(|(_, piece)| is_one(piece))
    }

    /// Since when the other side has acknowledged nothing of what is pending; nothing if nothing is.
    pub fn silent_since(&self) -> Option<Instant> {
        (!self.unacknowledged.is_empty()).then_some(self.progress)
    }

    /// There is a connection: what to say first.
    #[must_use]
    pub fn handle_connected(&mut self, now: Instant) -> Hop {
        (self.state, self.since) = (State::Greeting, now);
        self.told = self.received;
        let (from, to, received) = (self.me, self.other, self.received);
        Hop::Greeting { from, to, received, count: self.count, others_count: self.others_count }
    }

    /// The connection is gone.
    pub fn handle_disconnected(&mut self, now: Instant) {
        if self.state != State::Down {
            (self.state, self.since) = (State::Down, now);
        }
    }

    /// Sends that, or keeps it until the link carries.
    pub fn send(&mut self, now: Instant, envelope: Envelope, out: &mut Vec<Hop>) {
        if envelope.pieces > 1 {
            self.pieces.push_back(envelope);
            self.push_pieces(now, out);
        } else {
            self.carry(now, envelope, out);
        }
    }

    fn carry(&mut self, now: Instant, envelope: Envelope, out: &mut Vec<Hop>) {
        self.sent += 1;
        if self.unacknowledged.is_empty() {
            self.progress = now;
        }
        if self.is_up() {
            out.push(Hop::Carry { number: self.sent, received: self.received, envelope: envelope.clone() });
            self.told = self.received;
        }
        self.unacknowledged.push_back((self.sent, envelope));
    }

    fn push_pieces(&mut self, now: Instant, out: &mut Vec<Hop>) {
        while self.pieces_under_way < PIECES_UNDER_WAY
            && self.is_up()
            && let Some(piece) = self.pieces.pop_front()
        {
            self.pieces_under_way += piece.contents.len();
            self.carry(now, piece, out);
        }
    }

    /// A frame has come. What is in it, if it is new.
    pub fn handle(&mut self, now: Instant, hop: Hop, out: &mut Vec<Hop>) -> Option<Envelope> {
        if !self.is_up() && !matches!(hop, Hop::Greeting { .. }) {
            // It is about an earlier connection, and its numbers may be of another count. It is sent again.
            return None;
        }
        match hop {
            // A copy. What it says of our numbers was so before we took it the first time.
            Hop::Greeting { count, .. } if self.is_up() && count == self.others_count => None,
            Hop::Greeting { received, count, others_count, .. } => {
                (self.state, self.since, self.was_up) = (State::Up, now, true);
                self.progress = now;
                if count != self.others_count {
                    (self.others_count, self.received, self.told) = (count, 0, 0);
                    self.beyond.clear();
                }
                if others_count == self.count {
                    self.acknowledged(now, received);
                } else {
                    self.number_anew();
                }
                for (number, envelope) in &self.unacknowledged {
                    let envelope = envelope.clone();
                    out.push(Hop::Carry { number: *number, received: self.received, envelope });
                }
                self.push_pieces(now, out);
                None
            }
            Hop::Received(received) => {
                self.acknowledged(now, received);
                self.push_pieces(now, out);
                None
            }
            Hop::Carry { number, received, envelope } => {
                self.acknowledged(now, received);
                self.push_pieces(now, out);
                let is_new = number > self.received && self.beyond.insert(number);
                while self.beyond.remove(&(self.received + 1)) {
                    self.received += 1;
                }
                let is_piece = envelope.pieces > 1;
                let waiting = self.received - self.told;
                if waiting >= UNACKNOWLEDGED_MAX || (is_piece && waiting >= 4) {
                    out.extend(self.acknowledge());
                }
                is_new.then_some(envelope)
            }
        }
    }

    /// Whether something has come that the other was not told of.
    pub fn owes(&self) -> bool {
        self.is_up() && self.told < self.received
    }

    /// Tells the other what has come, if it does not know.
    pub fn acknowledge(&mut self) -> Option<Hop> {
        self.owes().then(|| {
            self.told = self.received;
            Hop::Received(self.received)
        })
    }

    /// The other side knows nothing of our numbers: they begin at one.
    fn number_anew(&mut self) {
        self.sent = self.unacknowledged.len() as u64;
        self.unacknowledged.iter_mut().zip(1..).for_each(|((number, _), anew)| *number = anew);
    }

    fn acknowledged(&mut self, now: Instant, received: u64) {
        while self.unacknowledged.front().is_some_and(|(number, _)| *number <= received) {
            self.progress = now;
            if let Some((_, envelope)) = self.unacknowledged.pop_front()
                && envelope.pieces > 1
            {
                self.pieces_under_way -= envelope.contents.len();
            }
        }
    }

    /// The connection is gone and the link is given up for now: what it still holds goes another way. The next connection
    /// counts anew: what went another way never comes over this one, and the other side, which acknowledges what it has
    /// without a gap, would never acknowledge anything again.
    pub fn hand_back(&mut self) -> Vec<Envelope> {
        if self.is_connected() {
            return Vec::new();
        }
        (self.count, self.sent, self.pieces_under_way) = (self.count + 1, 0, 0);
        let held = self.unacknowledged.drain(..).map(|(_, envelope)| envelope);
        held.chain(self.pieces.drain(..)).collect()
    }
}

/// The links of one member.
pub type HopLinks = BTreeMap<MemberId, HopLink>;
