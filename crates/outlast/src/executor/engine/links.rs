//! The engine's connections: made, bound to lanes, and lost. What is decided about them is decided in
//! `outlast_proto::collective::links`.
//!
//! Links report and never condemn: a broken connection ends the attempts that had bytes on it and is told to
//! the caller's listener, nothing more. An attempt that had none simply gets a new connection.

use super::super::conn::{Broken, Conn};
use super::super::desk::OpId;
use super::super::operation::Operation;
use super::super::{ConnId, Direction, LinkEvent, Stopped};
use super::{Engine, Output};
use crate::link::Wire;
use outlast_proto::collective::links::{AfterLoss, Change, LostLane, Wanted, after_loss};
use outlast_proto::collective::{BrokenLink, Group, GroupEpoch};
use outlast_proto::id::PeerId;
use std::io;
use std::time::Instant;

/// Reads of a connection that rested; who sends on and on meanwhile is there.
const PROBES_MAX: usize = 4;

impl Engine {
    fn add_conn(&mut self, peer: PeerId, direction: Direction, wire: Box<dyn Wire>) -> ConnId {
        self.next_id += 1;
        let id = ConnId(self.next_id);
        self.conns.insert(id, Conn::new(id, peer, direction, wire));
        if let Some(old) = self.links.handle_up(direction, peer, id) {
            self.lost(old, &Broken::Misbehaved("replaced by a newer connection".to_owned()));
        }
        self.linked(peer, direction);
        self.report(peer, direction, None, false);
        id
    }

    pub(super) fn accepted(&mut self, peer: PeerId, wire: Box<dyn Wire>) {
        if self.closed {
            return;
        }
        let conn = self.add_conn(peer, Direction::From, wire);
        let waits = |op: &Operation| {
            op.ending.is_none() && op.lane_from(peer).is_some_and(|lane| op.incoming[lane].conn.is_none())
        };
        for id in self.desk.ids(waits) {
            self.bind_incoming(conn, id);
        }
    }

    /// The link towards `peer`, if it is up. Otherwise whoever waits for it gets it when it is dialled, or is stopped.
    pub(super) fn want_link(&mut self, peer: PeerId) -> Option<ConnId> {
        match self.links.want(peer) {
            Wanted::Use(conn) => return Some(conn),
            Wanted::Dial { address, serial } => self.outputs.push(Output::Dial { peer, address, serial }),
            Wanted::UnderWay => {}
            Wanted::NoAddress => self.unreachable(peer, "it has no address in any open epoch"),
        }
        None
    }

    pub(super) fn dialled(&mut self, peer: PeerId, serial: u64, result: io::Result<Box<dyn Wire>>) {
        if self.closed || !self.links.handle_dialled(peer, serial) {
            return;
        }
        match result {
            Ok(wire) => {
                let conn = self.add_conn(peer, Direction::Towards, wire);
                for id in self.waiting_for_link_to(peer) {
                    self.bind_outgoing(conn, id);
                }
            }
            Err(error) => {
                let silent = error.kind() == io::ErrorKind::TimedOut;
                let error = format!("cannot connect: {error}");
                self.report(peer, Direction::Towards, Some(&error), silent);
                self.unreachable(peer, &error);
            }
        }
    }

    fn waiting_for_link_to(&self, peer: PeerId) -> Vec<OpId> {
        self.desk.ids(|op| {
            op.ending.is_none() && op.lane_to(peer).is_some_and(|lane| op.outgoing[lane].conn.is_none())
        })
    }

    fn unreachable(&mut self, peer: PeerId, error: &str) {
        for id in self.waiting_for_link_to(peer) {
            self.desk.stop(id, Stopped::LinkBroken(BrokenLink::towards(self.me, peer, error)));
        }
    }

    /// A connection is gone: attempts with bytes on it end, others get another one.
    pub(super) fn lost(&mut self, id: ConnId, broken: &Broken) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        if let Some(primary) = conn.primary {
            return self.lost_stripe(conn, primary, broken);
        }
        let mut stripes = self.take_stripes(&conn);
        let (peer, direction, error) = (conn.peer, conn.direction, broken.to_string());
        tracing::debug!(?peer, ?direction, error, "a data link broke");
        if self.links.handle_lost(direction, peer, id) {
            self.report(peer, direction, Some(&error), broken.is_silence());
        }
        let towards = direction == Direction::Towards;
        let uses = |op: &Operation| {
            if towards {
                op.lane_towards(id).is_some()
            } else {
                op.incoming.iter().any(|lane| lane.conn == Some(id))
            }
        };
        for op in self.desk.ids(uses) {
            let begun = conn.is_sending(op) || stripes.iter().any(|stripe| stripe.is_sending(op));
            conn.detach(&mut self.desk, op);
            stripes.iter_mut().for_each(|stripe| stripe.detach(&mut self.desk, op));
            let Some(operation) = self.desk.get_mut(op) else { continue };
            let is_transfer = operation.parts.end.is_some();
            let (moved, is_done, redials) = if towards {
                let Some(lane) = operation.lane_to(peer) else { continue };
                let is_done = operation.is_done_sending(lane);
                let lane = &mut operation.outgoing[lane];
                lane.conn = None;
                lane.stripes.clear();
                // What was allowed on the old connection must be allowed anew.
                if is_transfer {
                    lane.granted = None;
                }
                (lane.frames_sent, is_done, &mut lane.redials_left)
            } else {
                let Some(lane) = operation.lane_from(peer) else { continue };
                let lane = &mut operation.incoming[lane];
                lane.conn = None;
                (lane.frames_begun, lane.outstanding == 0, &mut lane.redials_left)
            };
            let after = after_loss(&LostLane {
                direction,
                is_transfer,
                is_done,
                is_begun: begun || moved > 0,
                is_silent: broken.is_silence(),
                redials_left: *redials,
                present: self.links.link(direction, peer),
            });
            *redials -= u8::from(after.takes_a_redial());
            match after {
                AfterLoss::Nothing | AfterLoss::Await => {}
                AfterLoss::Stop => {
                    let broken = match direction {
                        Direction::Towards => BrokenLink::towards(self.me, peer, error.as_str()),
                        Direction::From => BrokenLink::back_from(self.me, peer, error.as_str()),
                    };
                    self.desk.stop(op, Stopped::LinkBroken(broken));
                }
                AfterLoss::Use(conn) if towards => self.bind_outgoing(conn, op),
                AfterLoss::Use(conn) => self.bind_incoming(conn, op),
                AfterLoss::Dial => {
                    if let Some(conn) = self.want_link(peer) {
                        self.bind_outgoing(conn, op);
                    }
                }
                AfterLoss::AwaitWithinGrace => {
                    let by = Instant::now() + self.link_grace;
                    if let Some(operation) = self.desk.get_mut(op)
                        && let Some(lane) = operation.lane_from(peer)
                    {
                        operation.incoming[lane].wanted_by = Some(by);
                    }
                }
            }
        }
    }

    /// Tells the listener about a link, for every epoch that hears of it.
    fn report(&mut self, peer: PeerId, direction: Direction, error: Option<&str>, silent: bool) {
        let change = if error.is_some() { Change::Down } else { Change::Up };
        for (group, epoch) in self.links.hearers(direction, peer, change) {
            let event = match error {
                None => link_up(group, epoch, peer, direction),
                Some(error) => {
                    LinkEvent::Down { group, epoch, peer, direction, silent, error: error.to_owned() }
                }
            };
            self.outputs.push(Output::Event(event));
        }
    }

    /// Finds out whether a connection that rested is still there. No poll follows, so what it brought is read up to where
    /// there is nothing: its end may lie behind a last word.
    pub(super) fn probe(&mut self, conn: Option<ConnId>) {
        let Some(conn) = conn.and_then(|conn| self.conns.get_mut(&conn)) else { return };
        for _ in 0..PROBES_MAX {
            match conn.receive(&mut self.desk) {
                Ok(true) => {}
                Ok(false) => return,
                Err(broken) => {
                    let id = conn.id;
                    return self.lost(id, &broken);
                }
            }
        }
    }
}

pub(super) fn link_up(group: Group, epoch: GroupEpoch, peer: PeerId, direction: Direction) -> LinkEvent {
    LinkEvent::Up { group, epoch, peer, direction }
}

#[cfg(test)]
mod tests {
    use super::super::super::DataSettings;
    use super::super::Command;
    use super::*;
    use crate::fork::Guarded;
    use crate::link::{TcpSettings, TcpWire};
    use outlast_proto::collective::frame::{FrameKind, Header, OpName};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// A short read tells that the kernel has no more bytes, and says nothing of an end behind them.
    #[test]
    fn a_link_that_closed_behind_its_last_words_is_found_closed() {
        let (me, other) = (PeerId::from_bytes([1; 16]), PeerId::from_bytes([2; 16]));
        let settings = DataSettings::default();
        let mut engine = Engine::new(me, &settings, Arc::new(AtomicUsize::new(settings.window_bytes)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let there = near.try_clone().unwrap();
        let near = Guarded::new(near).unwrap();
        let wire = TcpWire::new(near, &TcpSettings::default()).unwrap();
        engine.apply(Command::Accepted { peer: other, wire: Box::new(wire) });
        let op = OpName { group: 0, epoch: 1, scope: 0, tag: 0, seq: 0 };
        let block =
            Header { kind: FrameKind::Block, length: 0, op, fingerprint: 0, lap: 0, step: 0, checksum: None };
        far.write_all(&block.to_bytes()).unwrap();
        drop(far);
        // Both have arrived when the end has: then one look must do.
        let mut polled = [PollFd::from_borrowed_fd(there.as_fd(), PollFlags::RDHUP)];
        assert_eq!(poll(&mut polled, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })), Ok(1));
        engine.apply(Command::Look);
        assert!(engine.conns.is_empty(), "its end is found");
    }
}
