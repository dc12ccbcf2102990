//! The engine's streams: more than one for a link that one does not fill.
//!
//! A link is one authenticated connection, and everything that must be in order goes over it: what is sent before
//! the other end's call, credits, transfers, chains. A large ring may use more streams of the same link for its
//! blocks. How many is for [`Striping`] to say, from what the kernel measured while calls ran; links within a host
//! are never measured, so they cost nothing and stay as they are.
//!
//! A link is as good as each of its streams. One that breaks breaks the link, which is reported and dialled again
//! with one stream: so an abort, a retry and a report mean the same with one stream as with eight. The sending
//! end closes streams that it does not want any more between calls, after everything that they carried; a stream
//! that ends between two frames is therefore no loss to the receiving end.

use super::super::abort::Strain;
use super::super::conn::{Broken, Conn};
use super::super::operation::Operation;
use super::super::{ConnId, Direction, LinkEvent};
use super::{Engine, Output};
use crate::clock;
use crate::link::Wire;
use outlast_proto::collective::striping::{STREAMS_MAX, Sample, Striping};
use outlast_proto::id::PeerId;
use outlast_proto::topology::Carried;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What may wait in the kernel per stream, where there are several: enough for the line while we look elsewhere,
/// and little enough that a stream that stands still does not swallow what others could carry.
const QUEUE_BYTES: u32 = 256 << 10;
/// The fastest that a way to another host is expected to be, in bytes per second: what is under way covers a
/// round trip at that speed..
const SPEED_MAX: u128 = 1_000_000_000;
/// ..up to this much.
const WINDOW_MAX: usize = 32 << 20;

/// The streams of one outgoing link beyond the first.
#[derive(Debug)]
pub(super) struct Stripes {
    pub(super) conns: Vec<ConnId>,
    dialling: u8,
    policy: Striping,
}

impl Stripes {
    fn new(streams_max: u8) -> Self {
        Self { conns: Vec::new(), dialling: 0, policy: Striping::new(streams_max) }
    }
}

impl Engine {
    /// A link was made: it may be measured, and its way may be long.
    pub(super) fn linked(&mut self, peer: PeerId, direction: Direction) {
        if direction == Direction::Towards {
            let measurable =
                self.links.link(direction, peer).and_then(|id| self.conns.get(&id)?.gauge()).is_some();
            match self.stripes.get_mut(&peer) {
                Some(stripes) => (stripes.conns, stripes.dialling) = (Vec::new(), 0),
                None if measurable => drop(self.stripes.insert(peer, Stripes::new(self.streams_max))),
                None => {}
            }
        }
        self.measure_ways();
    }

    /// Fits what operations have under way to the longest way to another host.
    fn measure_ways(&self) {
        let ways = self.conns.values().filter_map(|conn| Some(conn.gauge()?.round_trip));
        let longest = ways.max().unwrap_or(Duration::ZERO);
        let bytes = usize::try_from(longest.as_nanos() * SPEED_MAX / 1_000_000_000).unwrap_or(WINDOW_MAX);
        self.window.store(bytes.min(WINDOW_MAX).max(self.window_min), Ordering::Relaxed);
    }

    /// Looks at what waits on the streams of calls that are large enough to tell.
    pub(super) fn watch_backlogs(&mut self, now: Instant) {
        for (_, operation) in self.desk.iter_mut() {
            if !operation.readings.is_empty() && operation.backlog.is_due(now) {
                let gauges = operation.readings.iter().filter_map(|(id, _)| self.conns.get(id)?.gauge());
                let waiting = gauges.map(|gauge| gauge.waiting).sum();
                operation.backlog.note(now, waiting);
            }
        }
    }

    /// A call ended well: what does it say about the link to the next member?
    pub(super) fn learn_from(&mut self, operation: &Operation) {
        let Some((peer, carried)) = self.gauged(operation) else { return };
        let Carried { bytes, elapsed, busy, held_up, round_trip, .. } = carried;
        let strain = Strain { peer, bytes, busy: busy.saturating_sub(held_up), elapsed };
        operation.parts.abort.note_strain(strain);
        if let Some(figure) = carried.figure() {
            tracing::debug!(%peer, ?carried, ?figure, "what a link carried");
            self.outputs.push(Output::Event(LinkEvent::Carried { peer, figure, round_trip }));
        }
        let Some(stripes) = self.stripes.get_mut(&peer) else { return };
        let sample = Sample { bytes, elapsed, busy };
        if let Some(decision) = stripes.policy.handle_call(clock::now(), sample) {
            tracing::debug!(%peer, ?decision, "the streams of a link");
        }
        self.fit_streams(peer);
    }

    /// A call did not end well: was it the link to the next member that it waited for?
    pub(super) fn explain(&self, operation: &Operation) {
        if let Some((peer, Carried { bytes, elapsed, busy, held_up, .. })) = self.gauged(operation) {
            let busy = busy.saturating_sub(held_up);
            operation.parts.abort.note_strain(Strain { peer, bytes, busy, elapsed });
        }
    }

    /// What the streams to the next member did since a call began; `None` if they were not read then.
    fn gauged(&self, operation: &Operation) -> Option<(PeerId, Carried)> {
        let lane = operation.outgoing.first().filter(|_| !operation.readings.is_empty())?;
        let mut carried = Carried {
            bytes: 0,
            elapsed: operation.started.elapsed(),
            busy: Duration::ZERO,
            held_up: Duration::ZERO,
            round_trip: Duration::MAX,
            block_bytes: operation.parts.plan.block_bytes() as u64,
            backlog: operation.backlog.mean(),
        };
        for (id, before) in &operation.readings {
            let now = self.conns.get(id).and_then(Conn::gauge)?;
            carried.bytes += now.acknowledged.saturating_sub(before.acknowledged);
            carried.busy = carried.busy.max(now.busy.saturating_sub(before.busy));
            carried.held_up = carried.held_up.max(now.held_up.saturating_sub(before.held_up));
            carried.round_trip = carried.round_trip.min(now.round_trip);
        }
        Some((lane.peer, carried))
    }

    /// Opens streams that are wanted, and closes those that are not wanted any more and rest.
    fn fit_streams(&mut self, peer: PeerId) {
        let Some(stripes) = self.stripes.get_mut(&peer) else { return };
        let Some(primary) = self.links.link(Direction::Towards, peer) else { return };
        let wanted = usize::from(stripes.policy.streams()) - 1;
        let address = self.links.address(peer);
        while let Some(address) = address
            && stripes.conns.len() + usize::from(stripes.dialling) < wanted
        {
            stripes.dialling += 1;
            self.outputs.push(Output::DialStripe { peer, address, primary });
        }
        let surplus = stripes.conns.split_off(stripes.conns.len().min(wanted));
        for id in surplus {
            let in_use = self.desk.iter().any(|(_, operation)| operation.lane_towards(id).is_some());
            // A frame that was begun is finished (the receiver would take its end for a broken link).
            let rests = self.conns.get(&id).is_none_or(|conn| conn.is_between_frames() && conn.is_flushed());
            if in_use || !rests {
                // Looked at again when the next call ends.
                stripes.conns.push(id);
            } else {
                self.conns.remove(&id);
            }
        }
        let limit = if stripes.conns.is_empty() { None } else { Some(QUEUE_BYTES) };
        let conns = stripes.conns.iter().chain([&primary]);
        for conn in conns.filter_map(|id| self.conns.get(id)) {
            // Without it streams are used less evenly, and that is all.
            let _ = conn.limit_queue(limit);
        }
    }

    pub(super) fn dialled_stripe(
        &mut self,
        peer: PeerId,
        primary: ConnId,
        result: io::Result<Box<dyn Wire>>,
    ) {
        // The link it was for may be gone, and with it the streams that were wanted.
        if self.closed || self.links.link(Direction::Towards, peer) != Some(primary) {
            return;
        }
        let Some(stripes) = self.stripes.get_mut(&peer) else { return };
        stripes.dialling = stripes.dialling.saturating_sub(1);
        match result {
            Ok(wire) => {
                let id = self.add_stripe(peer, Direction::Towards, primary, wire);
                if let Some(stripes) = self.stripes.get_mut(&peer) {
                    stripes.conns.push(id);
                }
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "one more stream could not be made");
                stripes.policy.handle_lost(clock::now(), stripes.conns.len() as u8 + 1);
            }
        }
        self.fit_streams(peer);
    }

    /// The previous member opens one more stream of its link to us.
    pub(super) fn accepted_stripe(&mut self, peer: PeerId, wire: Box<dyn Wire>) {
        let Some(primary) = self.links.link(Direction::From, peer) else { return };
        let open = self.conns.values().filter(|conn| conn.primary == Some(primary)).count();
        if !self.closed && open + 1 < usize::from(STREAMS_MAX) {
            self.add_stripe(peer, Direction::From, primary, wire);
        }
    }

    fn add_stripe(
        &mut self,
        peer: PeerId,
        direction: Direction,
        primary: ConnId,
        wire: Box<dyn Wire>,
    ) -> ConnId {
        self.next_id += 1;
        let id = ConnId(self.next_id);
        let mut conn = Conn::new(id, peer, direction, wire);
        conn.primary = Some(primary);
        self.conns.insert(id, conn);
        id
    }

    /// One stream of a link is gone.
    pub(super) fn lost_stripe(&mut self, conn: Conn, primary: ConnId, broken: &Broken) {
        // A stream that is dropped says no goodbye of TLS. Whoever cut it short between two frames cut it at the
        // sending end too, which breaks the link.
        let rests = !self.desk.awaits_blocks(primary);
        let ended = match broken {
            Broken::Closed => true,
            // A firewall may forget a stream that rests; what was lost on one in use breaks the link.
            Broken::Io(error) => error.kind() == io::ErrorKind::UnexpectedEof || rests,
            Broken::BadFrame(_) | Broken::Misbehaved(_) => false,
        };
        if conn.direction == Direction::From && ended && conn.is_between_frames() {
            return;
        }
        let (id, peer) = (conn.id, conn.peer);
        let is_outgoing = conn.direction == Direction::Towards;
        // What it carried is let go of together with the link.
        self.conns.insert(id, conn);
        if is_outgoing && let Some(stripes) = self.stripes.get_mut(&peer) {
            stripes.policy.handle_lost(clock::now(), 1);
        }
        let error = format!("one of its streams broke: {broken}");
        self.lost(primary, &Broken::Io(io::Error::other(error)));
    }

    /// A stream that closed while it rested must not look like one that broke in use.
    pub(super) fn probe_stripes(&mut self, peer: PeerId) {
        let conns = self.stripes.get(&peer).map_or_else(Vec::new, |stripes| stripes.conns.clone());
        for conn in conns {
            self.probe(Some(conn));
        }
    }

    /// The streams of a link that is gone.
    pub(super) fn take_stripes(&mut self, link: &Conn) -> Vec<Conn> {
        let of_link = |conn: &Conn| conn.primary == Some(link.id);
        let ids: Vec<_> = self.conns.values().filter(|conn| of_link(conn)).map(|conn| conn.id).collect();
        if link.direction == Direction::Towards
            && let Some(stripes) = self.stripes.get_mut(&link.peer)
        {
            (stripes.conns, stripes.dialling) = (Vec::new(), 0);
        }
        ids.into_iter().filter_map(|id| self.conns.remove(&id)).collect()
    }

    /// Streams to members that are no longer next in any ring are closed.
    pub(super) fn close_needless_stripes(&mut self) {
        let successors: Vec<_> = self.links.successors().collect();
        let needless: Vec<_> =
            self.stripes.keys().filter(|peer| !successors.contains(peer)).copied().collect();
        for peer in needless {
            if let Some(stripes) = self.stripes.get_mut(&peer) {
                stripes.policy = Striping::new(self.streams_max);
            }
            self.fit_streams(peer);
            if self.links.link(Direction::Towards, peer).is_none() {
                self.stripes.remove(&peer);
            }
        }
    }
}
