//! What the ends of a lane say to each other: how much may come, and how a transfer ends (rule 14).
//!
//! A ring grants a number of laps, once (see `laps`). A lane of its own grants block numbers: all of them
//! where they land in the output, a window that moves on where they wait in scratch to be passed on. The two ends
//! of a transfer say more, because nobody votes on it (see `transfer`).

use super::super::lanes::{InLane, OutLane};
use super::super::{ConnId, Stopped};
use super::{End, Operation};
use outlast_proto::collective::frame::{FrameKind, Header, OpName, Signal};
use outlast_proto::collective::plan::{Duty, Flow};
use outlast_proto::limits::EAGER_BYTES_MAX;

/// The step of an empty block with which the sender of a transfer says that it gave up: there is no such step.
const GIVEN_UP: u16 = u16::MAX;

impl Operation {
    /// Whether a credit travels for this operation without being asked for: not if the eager limit covers all of a ring on every link,
    /// because who completes a ring knows that everybody has made the call. Where bytes go one way only, the
    /// credit is the one sign that what was sent eagerly is not parked any more.
    pub(in crate::executor) fn needs_credit(&self) -> bool {
        !self.proves_calls() || self.parts.plan.link_bytes_bound() > EAGER_BYTES_MAX as u64
    }

    /// Whether who completes it knows that every other member has made its call.
    pub(in crate::executor) fn proves_calls(&self) -> bool {
        self.laps.is_some()
    }

    /// Whether any of the lanes to `conn` waits for the other end's word.
    pub(in crate::executor) fn awaits_credit(&self, conn: ConnId) -> bool {
        let more_to_come =
            |limit: u32| self.laps.is_none() && u64::from(limit) < self.parts.plan.blocks_per_lane();
        let waits = |lane: &OutLane| lane.unsent > 0 && lane.granted.is_none_or(more_to_come);
        let waits = |lane: usize| match self.parts.end {
            None => waits(&self.outgoing[lane]),
            Some(_) => !self.confirmed,
        };
        let comes = |lane: usize| self.needs_credit() || self.outgoing[lane].asked;
        self.lane_towards(conn).is_some_and(|lane| comes(lane) && waits(lane))
    }

    /// The question with which the lane's other end is asked for credit that does not come by itself, if the lane
    /// is stuck for lack of it: `eager_left` is what may go without. Once.
    pub(in crate::executor) fn ask(
        &mut self,
        lane: usize,
        conn: ConnId,
        eager_left: usize,
    ) -> Option<Header> {
        let out = &self.outgoing[lane];
        let waits = out.granted.is_none() && !out.asked && !out.ready.is_empty();
        if !waits || self.ending.is_some() || self.needs_credit() || self.may_send(lane, conn, eager_left) {
            return None;
        }
        self.outgoing[lane].asked = true;
        Some(self.header(FrameKind::Ask, 0, 0, 0))
    }

    /// Whether blocks are still to come from `conn`.
    pub(in crate::executor) fn awaits_blocks(&self, conn: ConnId) -> bool {
        self.incoming.iter().any(|lane| lane.conn == Some(conn) && lane.outstanding > 0)
    }

    /// What this member could allow the other end of an incoming lane now.
    pub(super) fn allowable(&self) -> u32 {
        match (&self.laps, self.parts.plan.flow()) {
            (Some(laps), _) => laps.window(),
            (None, Flow::Streams(streams)) if streams.duty() == Duty::CombineAndPassOn => {
                let unsent = self.outgoing.first().map_or(0, |lane| lane.unsent);
                let sent = u64::from(streams.blocks()) - unsent;
                u32::try_from(sent).unwrap_or(u32::MAX).saturating_add(self.window)
            }
            _ => u32::MAX,
        }
    }

    /// The credit that this member gives the other end of an incoming lane.
    pub(in crate::executor) fn credit(&mut self, lane: usize) -> Header {
        let lane = &mut self.incoming[lane];
        lane.allowed = lane.allowable;
        let allowed = lane.allowed;
        self.header(FrameKind::Credit, 0, allowed, Signal::Ready.step())
    }

    /// What this end of a transfer has to say to the other when it ends, and on which connection. Once.
    pub(in crate::executor) fn last_word(&mut self) -> Option<(ConnId, Header)> {
        if self.confirmed {
            return None;
        }
        let done = self.ending.as_ref()?.is_ok();
        match self.parts.end? {
            End::Receives => {
                self.confirmed = true;
                let word = if done { Signal::Received } else { Signal::Withdrawn };
                let conn = self.incoming[0].conn?;
                Some((conn, self.header(FrameKind::Credit, 0, 0, word.step())))
            }
            // Who never heard of a number has nobody to tell.
            End::Sends => {
                self.confirmed = true;
                let conn = self.outgoing[0].conn.filter(|_| self.outgoing[0].granted.is_some())?;
                Some((conn, self.header(FrameKind::Block, 0, 0, GIVEN_UP)))
            }
        }
    }

    /// Whether this frame says that the sender of a transfer gave up.
    pub(in crate::executor) fn is_given_up(&self, header: &Header) -> bool {
        self.parts.end.is_some() && header.step == GIVEN_UP && header.length == 0
    }

    /// The receiver of a transfer said something about the number in `name`.
    fn hear(&mut self, lane: usize, word: Signal, name: &OpName) {
        let begun = self.outgoing[lane].frames_sent > 0 || self.outgoing[lane].granted.is_some();
        match word {
            Signal::Ready if !begun || self.parts.name == *name => {
                self.parts.name = *name;
                self.grant(lane, u32::MAX);
            }
            // Another number while we send under this one: the receiver has given this one up.
            Signal::Ready => self.give_up("the receiver waits for another one by now"),
            Signal::Withdrawn if self.parts.name == *name => {
                let untouched = self.outgoing[lane].ready.front().is_some_and(|next| next.lap == 0);
                if untouched {
                    self.outgoing[lane].granted = None;
                } else {
                    self.give_up("the receiver gave up while it was on its way");
                }
            }
            Signal::Received if self.parts.name == *name => {
                self.confirmed = true;
                self.advance();
            }
            Signal::Withdrawn | Signal::Received => {}
        }
    }

    fn give_up(&mut self, why: &'static str) {
        self.ending.get_or_insert(Err(Stopped::GivenUp(why)));
    }

    /// Whether nothing more is to come over the outgoing lane, in either direction.
    pub(in crate::executor) fn is_done_sending(&self, lane: usize) -> bool {
        self.outgoing[lane].unsent == 0 && (self.parts.end.is_none() || self.confirmed)
    }

    /// A lane whose other end should hear that it may send more.
    pub(in crate::executor) fn credit_due(&self) -> Option<usize> {
        let due = |lane: &InLane| {
            lane.conn.is_some() && lane.allowable.saturating_sub(lane.allowed) >= self.window / 2
        };
        if self.ending.is_some() || !self.needs_credit() {
            return None;
        }
        self.incoming.iter().position(|lane| lane.allowed > 0 && lane.outstanding > 0 && due(lane))
    }

    /// A credit came.
    pub(in crate::executor) fn credited(&mut self, lane: usize, header: &Header) {
        if self.parts.end.is_some() {
            self.hear(lane, Signal::of(header), &header.op);
        } else {
            self.grant(lane, header.lap);
        }
    }

    /// The other end's call is made, and takes so many laps at a time, or blocks up to that number.
    fn grant(&mut self, lane: usize, allowed: u32) {
        let granted = &mut self.outgoing[lane].granted;
        *granted = Some(granted.unwrap_or(1).max(allowed));
        self.advance();
    }
}
