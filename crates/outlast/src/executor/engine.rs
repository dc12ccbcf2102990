//! Everything that one data plane holds, driven by one thread at a time.
//!
//! The engine is a value, not a thread: connections, operations and open epochs. Whoever drives makes it
//! [`pump`](Engine::pump), and waits for what it [awaits](Engine::awaited) (see `driver`). It never waits by itself, so
//! all it needs from the outside comes as [`Command`]s and all it wants from the outside leaves as [`Output`]s.
//!
//! Which connection is a link, what is dialled and what follows from a loss is decided by
//! [`Links`](outlast_proto::collective::links::Links); the engine has the wires, lanes and bytes. How it comes by its
//! connections is in `links` and `stripes`, how epochs end in `epochs`; here is its turn.

mod epochs;
mod links;
mod stripes;

use super::conn::{Broken, Conn};
use super::desk::{Desk, OpId};
use super::operation::{End, Operation};
use super::plane::DataSettings;
use super::routing::check_credit;
use super::ticket;
use super::{ConnId, Direction, LinkEvent, Stopped};
use crate::link::Wire;
use outlast_proto::collective::links::{Links, may_change_links};
use outlast_proto::collective::{BrokenLink, Group, GroupEpoch};
use outlast_proto::id::PeerId;
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stripes::Stripes;

/// What the outside tells the engine.
pub(super) enum Command {
    Join(Box<Operation>),
    OpenEpoch { group: Group, epoch: GroupEpoch, ring: Vec<(PeerId, SocketAddr)> },
    CloseEpoch { group: Group, epoch: GroupEpoch },
    LeaveGroup { group: Group },
    ForgetGroup { group: Group },
    WantLink { group: Group, peer: PeerId },
    Accepted { peer: PeerId, wire: Box<dyn Wire> },
    AcceptedStripe { peer: PeerId, wire: Box<dyn Wire> },
    Dialled { peer: PeerId, serial: u64, result: io::Result<Box<dyn Wire>> },
    DialledStripe { peer: PeerId, primary: ConnId, result: io::Result<Box<dyn Wire>> },
    Look,
    Shutdown,
}

/// What the engine wants from the outside.
#[derive(Debug)]
pub(super) enum Output {
    Event(LinkEvent),
    Dial { peer: PeerId, address: SocketAddr, serial: u64 },
    DialStripe { peer: PeerId, address: SocketAddr, primary: ConnId },
}

/// See the module's essay.
pub(super) struct Engine {
    me: PeerId,
    /// How long a link from the predecessor may be missing after it broke.
    link_grace: Duration,
    desk: Desk,
    conns: BTreeMap<ConnId, Conn>,
    /// Which of them are links, what is dialled, and which rosters are open.
    links: Links<ConnId>,
    /// The streams of outgoing links to other hosts.
    stripes: BTreeMap<PeerId, Stripes>,
    streams_max: u8,
    /// Bytes that an operation should have under way, by the longest way to a neighbour.
    window: Arc<AtomicUsize>,
    window_min: usize,
    next_id: u64,
    outputs: Vec<Output>,
    closed: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("me", &self.me).field("desk", &self.desk).finish_non_exhaustive()
    }
}

impl Engine {
    pub(super) fn new(me: PeerId, settings: &DataSettings, window: Arc<AtomicUsize>) -> Self {
        Self {
            streams_max: settings.streams_max,
            stripes: BTreeMap::new(),
            window_min: window.load(Ordering::Relaxed),
            window,
            me,
            link_grace: settings.link_grace,
            desk: Desk::new(),
            conns: BTreeMap::new(),
            links: Links::new(me),
            next_id: 0,
            outputs: Vec::new(),
            closed: false,
        }
    }

    pub(super) fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    pub(super) fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Whether an operation is under way. While none is, nobody needs to look at the links.
    pub(super) fn is_busy(&self) -> bool {
        self.desk.iter().next().is_some()
    }

    pub(super) fn apply(&mut self, command: Command) {
        match command {
            Command::Join(operation) => self.join(operation),
            Command::OpenEpoch { group, epoch, ring } => self.open_epoch(group, epoch, ring),
            Command::CloseEpoch { group, epoch } => self.close_epoch(group, epoch),
            Command::LeaveGroup { group } => self.leave_epochs_before(group, GroupEpoch::MAX),
            Command::ForgetGroup { group } => self.forget_group(group),
            Command::WantLink { group, peer } => self.link_successor(group, peer),
            Command::Accepted { peer, wire } => self.accepted(peer, wire),
            Command::AcceptedStripe { peer, wire } => self.accepted_stripe(peer, wire),
            Command::Dialled { peer, serial, result } => self.dialled(peer, serial, result),
            Command::DialledStripe { peer, primary, result } => self.dialled_stripe(peer, primary, result),
            Command::Look => self.conns.keys().copied().collect::<Vec<_>>().into_iter().for_each(|conn| {
                self.probe(Some(conn));
            }),
            Command::Shutdown => self.shut_down(),
        }
    }

    // ---- operations ----

    fn join(&mut self, operation: Box<Operation>) {
        let name = operation.parts.name;
        let outgoing: Vec<_> = operation.outgoing.iter().map(|lane| lane.peer).collect();
        let incoming: Vec<_> = operation.incoming.iter().map(|lane| lane.peer).collect();
        // A link that closed while it rested must not look like one that broke in use; and what it brought
        // meanwhile, such as a word that was taken back, came before this call.
        for peer in &outgoing {
            self.probe(self.links.link(Direction::Towards, *peer));
            self.probe_stripes(*peer);
        }
        // The kernel may have made room while nobody drove: what earlier calls left behind goes first.
        self.conns.values_mut().for_each(|conn| conn.write_blocked = false);
        let id = self.desk.add(operation);
        let is_open = self.links.roster(name.group).is_some_and(|open| {
            let mut peers = outgoing.iter().chain(&incoming);
            open.epoch() == name.epoch || (name.is_transfer() && peers.all(|peer| open.contains(*peer)))
        });
        if self.closed || !is_open || self.desk.is_stale(&name) {
            return self.desk.stop(id, if self.closed { Stopped::Closed } else { Stopped::Stale });
        }
        for peer in outgoing {
            if let Some(conn) = self.want_link(peer) {
                self.bind_outgoing(conn, id);
            }
        }
        for peer in incoming {
            if let Some(conn) = self.links.link(Direction::From, peer) {
                self.bind_incoming(conn, id);
            }
        }
    }

    fn bind_outgoing(&mut self, conn_id: ConnId, id: OpId) {
        let (Some(conn), Some(operation)) = (self.conns.get(&conn_id), self.desk.get_mut(id)) else {
            return;
        };
        let Some(lane) = operation.lane_to(conn.peer) else { return };
        if !may_change_links(operation.outgoing[lane].frames_sent > 0, operation.parts.end.is_some()) {
            let error = "it broke with blocks on the way, and was made anew";
            return operation.stop(Stopped::LinkBroken(BrokenLink::towards(self.me, conn.peer, error)));
        }
        operation.outgoing[lane].conn = Some(conn.id);
        operation.outgoing[lane].asked = false;
        operation.outgoing[lane].stripes.clear();
        if operation.is_worth_stripes()
            && let Some(stripes) = self.stripes.get(&conn.peer)
        {
            operation.outgoing[lane].stripes.clone_from(&stripes.conns);
            operation.readings.clear();
            operation.readings.extend(conn.gauge().map(|gauge| (conn.id, gauge)));
            let readings = stripes.conns.iter().filter_map(|id| Some((*id, self.conns.get(id)?.gauge()?)));
            operation.readings.extend(readings);
        }
        let Some(conn) = self.conns.get_mut(&conn_id) else { return };
        let name = operation.parts.name;
        let any_number = operation.parts.end.is_some();
        // Earlier numbers under this name are settled, here as there.
        if let Some(credit) = conn.parking.take_credit(&name, any_number) {
            match check_credit(&mut self.desk, id, conn.peer, &credit) {
                Ok(Some(lane)) => {
                    if let Some(operation) = self.desk.get_mut(id) {
                        operation.credited(lane, &credit);
                    }
                    conn.eager.release(&name);
                }
                Ok(None) => {}
                Err(broken) => {
                    let conn = conn.id;
                    self.lost(conn, &broken);
                }
            }
        }
    }

    fn bind_incoming(&mut self, conn: ConnId, id: OpId) {
        let (Some(conn), Some(operation)) = (self.conns.get_mut(&conn), self.desk.get_mut(id)) else {
            return;
        };
        let Some(lane) = operation.lane_from(conn.peer) else { return };
        operation.incoming[lane].conn = Some(conn.id);
        operation.incoming[lane].wanted_by = None;
        operation.incoming[lane].allowed = 0;
        let is_asked = conn.parking.take_ask(&operation.parts.name);
        if is_asked || operation.needs_credit() {
            let credit = operation.credit(lane);
            conn.queue_header(&credit);
        }
        let name = operation.parts.name;
        if let Err(broken) = conn.deliver_parked(&mut self.desk, &name) {
            let conn = conn.id;
            self.lost(conn, &broken);
        }
    }

    /// Ends what was aborted from outside.
    pub(super) fn check_aborts(&mut self) {
        for (_, operation) in self.desk.iter_mut() {
            if operation.parts.abort.is_triggered() || operation.ticket.is_withdrawn() {
                operation.stop(Stopped::Aborted);
            }
        }
    }

    fn check_deadlines(&mut self, now: Instant) {
        for (_, operation) in self.desk.iter_mut() {
            if operation.parts.deadline <= now {
                operation.stop(Stopped::Deadline);
            } else if let Some(lane) =
                operation.incoming.iter().find(|lane| lane.wanted_by.is_some_and(|by| by <= now))
            {
                let peer = lane.peer;
                let error = "it closed and was not made again";
                operation.stop(Stopped::LinkBroken(BrokenLink::back_from(self.me, peer, error)));
            }
        }
    }

    /// Sends and receives what can be sent and received now. `true` if anything moved.
    pub(super) fn pump(&mut self, now: Instant) -> bool {
        self.check_deadlines(now);
        self.watch_backlogs(now);
        self.allow_more();
        self.ask_where_stuck();
        let mut progress = false;
        let mut lost = Vec::new();
        for (id, conn) in &mut self.conns {
            let mut work = || -> Result<bool, Broken> {
                let mut moved = false;
                if conn.has_work(&self.desk) {
                    moved |= conn.send(&mut self.desk)?;
                }
                let wanted = match conn.direction {
                    Direction::From => self.desk.awaits_blocks(conn.link()),
                    // Credit comes over the link itself.
                    Direction::Towards => conn.primary.is_none() && self.desk.awaits_credit(*id),
                };
                if (wanted || conn.maybe_readable) && conn.is_worth_a_try() {
                    moved |= conn.receive(&mut self.desk)?;
                }
                Ok(moved)
            };
            match work() {
                Ok(moved) => progress |= moved,
                Err(broken) => lost.push((*id, broken)),
            }
        }
        progress |= !lost.is_empty();
        for (id, broken) in lost {
            self.lost(id, &broken);
        }
        progress
    }

    /// Tells those who wait for it that they may send more.
    fn allow_more(&mut self) {
        for (_, operation) in self.desk.iter_mut() {
            while let Some(lane) = operation.credit_due() {
                let credit = operation.credit(lane);
                let conn = operation.incoming[lane].conn;
                if let Some(conn) = conn.and_then(|conn| self.conns.get_mut(&conn)) {
                    conn.queue_header(&credit);
                }
            }
        }
    }

    /// Asks for credit that does not come by itself, where too much is on the wire without (rule 14).
    fn ask_where_stuck(&mut self) {
        if !self.conns.values().any(|conn| conn.eager.is_tight()) {
            return;
        }
        for (_, operation) in self.desk.iter_mut() {
            for lane in 0..operation.outgoing.len() {
                let conn = operation.outgoing[lane].conn.and_then(|conn| self.conns.get_mut(&conn));
                let Some(conn) = conn.filter(|conn| conn.eager.is_tight()) else { continue };
                let left = conn.eager.left(&operation.parts.name);
                if let Some(ask) = operation.ask(lane, conn.id, left) {
                    conn.queue_header(&ask);
                }
            }
        }
    }

    /// Hands ended operations back to their callers.
    pub(super) fn settle(&mut self) {
        self.say_last_words();
        while let Some(id) = self.next_ended() {
            for conn in self.conns.values_mut() {
                conn.detach(&mut self.desk, id);
            }
            let Some(mut operation) = self.desk.remove(id) else { return };
            operation.clear(&mut self.desk.slots);
            let name = operation.parts.name;
            self.desk.note_end(&name);
            let ending = operation.ending.take().unwrap_or(Err(Stopped::Aborted));
            if ending.is_ok() {
                self.learn_from(&operation);
            } else {
                self.explain(&operation);
            }
            for conn in self.conns.values_mut() {
                conn.parking.forget(&name);
                if ending.is_ok() && operation.proves_calls() {
                    conn.eager.release(&name);
                }
            }
            ticket::hand_back(operation, ending);
        }
    }

    /// Who ends a transfer tells the other end, at once: nobody may be driving a moment later.
    fn say_last_words(&mut self) {
        let said = self.desk.iter_mut().filter_map(|(_, operation)| operation.last_word());
        for (id, header) in said.collect::<Vec<_>>() {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.queue_header(&header);
            if let Err(broken) = conn.send(&mut self.desk) {
                self.lost(id, &broken);
            }
        }
    }

    fn next_ended(&self) -> Option<OpId> {
        let conn = |conn: Option<ConnId>| conn.and_then(|conn| self.conns.get(&conn));
        let in_kernel = |lane: Option<ConnId>| conn(lane).is_none_or(Conn::is_flushed);
        let is_said = |lane: Option<ConnId>| conn(lane).is_none_or(|c| c.is_flushed() && !c.owes_words());
        let ended = |operation: &Operation| match operation.ending {
            None => false,
            Some(Ok(())) if operation.is_hurried() => true,
            Some(Ok(())) if operation.parts.end == Some(End::Receives) => {
                operation.incoming.iter().all(|lane| is_said(lane.conn))
            }
            Some(Ok(())) => {
                operation.outgoing.iter().all(|lane| lane.streams().all(|conn| in_kernel(Some(conn))))
            }
            Some(Err(_)) => true,
        };
        self.desk.iter().find(|(_, operation)| ended(operation)).map(|(id, _)| id)
    }

    /// When an operation has waited long enough for something.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let wanted = |operation: &Operation| {
            let links = operation.incoming.iter().filter_map(|lane| lane.wanted_by);
            links.fold(operation.parts.deadline, Instant::min)
        };
        self.desk.iter().map(|(_, operation)| wanted(operation)).min()
    }

    /// What to wait for, connection by connection.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.conns.values().map(|conn| {
            let room = if conn.write_blocked { PollFlags::OUT } else { PollFlags::empty() };
            (conn.descriptor(), PollFlags::IN | room)
        })
    }

    /// What a wait found, in the order of [`Self::awaited`].
    pub(super) fn note_ready(&mut self, ready: &[PollFlags]) {
        for (conn, ready) in self.conns.values_mut().zip(ready) {
            if ready.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP) {
                conn.write_blocked = false;
            }
            if ready.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP) {
                conn.maybe_readable = true;
                conn.look_again();
            }
        }
    }

    fn shut_down(&mut self) {
        self.closed = true;
        for id in self.desk.ids(|_| true) {
            self.desk.stop(id, Stopped::Closed);
        }
        self.settle();
        self.conns.clear();
        self.stripes.clear();
        self.links = Links::new(self.me);
    }
}

impl Drop for Engine {
    /// No caller is left waiting for an operation that nobody drives.
    fn drop(&mut self) {
        for id in self.desk.ids(|_| true) {
            if let Some(operation) = self.desk.remove(id) {
                ticket::hand_back(operation, Err(Stopped::Closed));
            }
        }
    }
}
