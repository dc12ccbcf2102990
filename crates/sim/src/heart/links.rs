//! The data links of processes: connections as numbers, under the table that decides about real ones.
//!
//! Each process has the [`Links`](outlast_proto::collective::links::Links) that an engine has, and does what it says: it
//! dials, which takes time and may fail; it takes the newest connection for the link; it tells its session of links that
//! come and go. A connection has two ends, and each learns at its own time that it broke. What that means to an
//! attempt which used it is said by [`after_loss`], and nobody else.
//!
//! Left out are bytes: whether blocks of an attempt were on a link is drawn as long as not all have made the call, and
//! certain from then on. What is done stays done, so that nothing is lost in a kernel after the other end had it.

use super::data::{Lane, TransferId};
use super::fault::Sabotage;
use super::world::{Event, World};
use outlast_proto::collective::BrokenLink;
use outlast_proto::collective::links::{
    AfterLoss, Change, Direction, Links, LostLane, Roster, Wanted, after_loss,
};
use outlast_proto::coordinator;
use outlast_proto::id::PeerId;
use outlast_proto::membership::Preset;
use outlast_proto::retry::{self, AfterDial, DialFailure};
use outlast_proto::session::{CallId, PerformResult};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::EpochRecord;

/// How long a link from the predecessor may be missing after it broke; the production setting.
const LINK_GRACE: Duration = Duration::from_secs(1);
/// How long a path stays silent before its end is noticed.
pub(super) const SILENCE: Duration = Duration::from_secs(2);
/// Until the end of a process is seen at the other ends of its connections.
pub(super) const CLOSING: Duration = Duration::from_millis(20);

/// How long a link is dialled that is refused.
fn dial_timeout() -> Duration {
    coordinator::Config::preset(Preset::Local).control_grace
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// One of its ends closed it.
    Closed,
    /// Nothing comes through any more.
    Silent,
}

/// One connection between two processes. Blocks go from the first end to the second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    ends: [End; 2],
    broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    process: usize,
    /// As whom it takes part.
    peer: PeerId,
    /// Whether it still has its end.
    holds: bool,
}

impl Connection {
    /// Which of its ends is that process's, if it holds it.
    fn end_of(&self, process: usize) -> Option<usize> {
        self.ends.iter().position(|end| end.process == process && end.holds)
    }
}

impl World {
    // ---- epochs ----

    /// A process opens an epoch: links of the ring are made, and those to strangers closed.
    pub(super) fn open_links(&mut self, process: usize, record: &EpochRecord) {
        let members = record.ring.iter().map(|rank| &record.roster[*rank as usize]);
        let ring: Vec<_> = members.map(|info| (info.id, info.address)).collect();
        if ring.len() == 1 {
            self.processes[process].session.handle_links_up(record.epoch);
        }
        let links = &self.processes[process].links;
        if !links.may_open(record.group, record.epoch) {
            return;
        }
        let roster = links.roster_of(record.epoch, ring);
        let (successor, predecessor) = (roster.successor(), roster.predecessor());
        // Links that closed while they rested are found before the epoch counts.
        self.probe(process, Direction::Towards, successor);
        self.probe(process, Direction::From, predecessor);
        let before = self.processes[process].links.open(record.group, roster);
        self.drop_strangers(process, before);
        if let Some(peer) = successor
            && self.want_link(process, peer).is_some()
        {
            self.processes[process].session.handle_links_up(record.epoch);
        }
    }

    /// A process joins anew: whatever was before has no say any more.
    pub(super) fn forget_links(&mut self, process: usize) {
        let group = self.processes[process].group;
        let before = self.processes[process].links.close(group);
        self.drop_strangers(process, before);
    }

    /// A process takes part as another peer: all that it had is closed.
    pub(super) fn close_all_links(&mut self, process: usize, new_id: PeerId) {
        self.forget_links(process);
        let held = self.connections.iter().filter(|(_, connection)| connection.end_of(process).is_some());
        for link in held.map(|(link, _)| *link).collect::<Vec<_>>() {
            self.lose_link(process, link);
        }
        self.processes[process].links = Links::new(new_id);
    }

    fn drop_strangers(&mut self, process: usize, before: Option<Roster>) {
        for peer in before.into_iter().flat_map(Roster::into_members) {
            for link in self.processes[process].links.drop_stranger(peer).into_iter().flatten() {
                self.lose_link(process, link);
            }
        }
    }

    // ---- links that come ----

    /// The link towards a peer, if it is up. Otherwise whoever waits for it gets it when it is dialled, or is stopped.
    fn want_link(&mut self, process: usize, peer: PeerId) -> Option<u64> {
        match self.processes[process].links.want(peer) {
            Wanted::Use(link) => return Some(link),
            Wanted::Dial { serial, .. } => {
                let (delay, failure) = self.try_dial(process, peer);
                let by = self.now + dial_timeout();
                self.after(delay, Event::LinkDialled(process, peer, serial, by, failure));
            }
            Wanted::UnderWay => {}
            Wanted::NoAddress => self.unreachable(process, peer),
        }
        None
    }

    /// The session wants a link of its epoch once more.
    pub(super) fn relink(&mut self, process: usize, peer: PeerId) {
        if self.want_link(process, peer).is_some()
            && let Some(epoch) = self.processes[process].session.record().map(|record| record.epoch)
        {
            self.processes[process].session.handle_links_up(epoch);
        }
    }

    /// How long a dial takes, and why it fails if it does.
    pub(super) fn try_dial(&mut self, process: usize, to: PeerId) -> (Duration, Option<DialFailure>) {
        let failure = self.dial_failure(process, to);
        let delay = match failure {
            // Nobody answers; that takes its time to notice.
            Some(DialFailure::Silent) => Duration::from_secs(1),
            _ => self.some(Duration::from_millis(20)),
        };
        (delay, failure)
    }

    fn dial_failure(&self, process: usize, to: PeerId) -> Option<DialFailure> {
        let there = &self.processes[*self.by_id.get(&to)?];
        match self.link_trouble(self.processes[process].id, to) {
            Some(Broken::Closed) => Some(DialFailure::Refused),
            Some(Broken::Silent) => Some(DialFailure::Silent),
            None if there.stopped.is_some() => Some(DialFailure::Silent),
            // Somebody else answers there by now.
            None => (there.id != to).then_some(DialFailure::Unfit),
        }
    }

    /// Whether a link cannot work now, and how that shows.
    fn link_trouble(&self, from: PeerId, to: PeerId) -> Option<Broken> {
        let (a, b) = (*self.by_id.get(&from)?, *self.by_id.get(&to)?);
        let (from, to) = (&self.processes[a], &self.processes[b]);
        let cut = self.cut_links.get(&(a, b)).is_some_and(|until| self.now < *until);
        if from.killed.is_some() || to.killed.is_some() {
            Some(Broken::Closed)
        } else if cut || from.is_isolated(self.now) || to.is_isolated(self.now) {
            Some(Broken::Silent)
        } else {
            None
        }
    }

    /// A link was dialled, or cannot be made, or is dialled once more.
    pub(super) fn link_dialled(
        &mut self,
        process: usize,
        peer: PeerId,
        serial: u64,
        by: Instant,
        failure: Option<DialFailure>,
    ) {
        // Whoever answered may be gone by now, or the way to it.
        let failure = failure.or_else(|| self.dial_failure(process, peer));
        if let Some(failure) = failure
            && let AfterDial::Again(at) = retry::after_dial(self.now, failure, by)
        {
            let (delay, failure) = self.try_dial(process, peer);
            let again = Event::LinkDialled(process, peer, serial, by, failure);
            return self.after(at.since(self.now) + delay, again);
        }
        if !self.processes[process].links.handle_dialled(peer, serial) {
            return;
        }
        match (failure, self.by_id.get(&peer).copied()) {
            (None, Some(to)) => {
                self.next_connection += 1;
                let link = self.next_connection;
                let end = |process, peer| End { process, peer, holds: true };
                let ends = [end(process, self.processes[process].id), end(to, peer)];
                self.connections.insert(link, Connection { ends, broken: None });
                let delay = self.some(self.settings.latency_max);
                self.after(delay, Event::LinkAccepted(to, link));
                self.link_up(process, Direction::Towards, peer, link);
            }
            (failure, _) => {
                let silent = failure == Some(DialFailure::Silent);
                self.report_link(process, Direction::Towards, peer, Some(silent));
                self.unreachable(process, peer);
            }
        }
        self.drain_peer(process);
    }

    /// The other end of a dial has its end, too.
    pub(super) fn link_accepted(&mut self, process: usize, link: u64) {
        let Some(connection) = self.connections.get(&link) else { return };
        let [dialler, acceptor] = connection.ends;
        if connection.broken.is_some() || !acceptor.holds {
            return;
        }
        self.link_up(process, Direction::From, dialler.peer, link);
        self.drain_peer(process);
    }

    fn link_up(&mut self, process: usize, direction: Direction, peer: PeerId, link: u64) {
        if let Some(old) = self.processes[process].links.handle_up(direction, peer, link) {
            self.lose_link(process, old);
        }
        self.report_link(process, direction, peer, None);
        for (call, _) in self.lanes(process, direction, |lane| lane.peer == peer && lane.link.is_none()) {
            self.bind(process, call, direction, link);
        }
    }

    /// Nobody can be reached there: whoever waits for the link is stopped.
    fn unreachable(&mut self, process: usize, peer: PeerId) {
        let waiting = |lane: &Lane| lane.peer == peer && lane.link.is_none();
        for (call, serial) in self.lanes(process, Direction::Towards, waiting) {
            self.stop_lane(process, call, serial, Direction::Towards, peer);
        }
    }

    // ---- links that go ----

    /// Something befell the connections that `struck` names. Each end learns of it at its own time.
    pub(super) fn break_links(
        &mut self,
        how: Broken,
        notice_max: Duration,
        struck: impl Fn(usize, usize) -> bool,
    ) {
        let whole = self.connections.iter_mut().filter(|(_, connection)| connection.broken.is_none());
        let mut ends = Vec::new();
        for (link, connection) in whole.filter(|(_, held)| struck(held.ends[0].process, held.ends[1].process))
        {
            connection.broken = Some(how);
            ends.extend(connection.ends.iter().map(|end| (end.process, *link)));
        }
        for (process, link) in ends {
            let delay = self.some(notice_max);
            self.after(delay, Event::LinkLost(process, link));
        }
    }

    /// A process finds its end of a connection broken.
    pub(super) fn link_lost(&mut self, process: usize, link: u64) {
        self.lose_link(process, link);
        self.drain_peer(process);
    }

    /// A connection that the other end has closed is found closed by whoever looks.
    fn probe(&mut self, process: usize, direction: Direction, peer: Option<PeerId>) {
        let link = peer.and_then(|peer| self.processes[process].links.link(direction, peer));
        let closed = |link: &u64| {
            let connection = self.connections.get(link);
            connection.is_some_and(|connection| connection.broken == Some(Broken::Closed))
        };
        if let Some(link) = link.filter(closed) {
            self.lose_link(process, link);
        }
    }

    /// A process has its end of a connection no more, whether it found it broken or closes it.
    fn lose_link(&mut self, process: usize, link: u64) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        let Some(end) = connection.end_of(process) else { return };
        connection.ends[end].holds = false;
        let (other, direction) =
            (connection.ends[1 - end], if end == 0 { Direction::Towards } else { Direction::From });
        let is_silent = connection.broken == Some(Broken::Silent);
        if connection.broken.is_none() {
            connection.broken = Some(Broken::Closed);
            let delay = self.some(self.settings.latency_max);
            self.after(delay, Event::LinkLost(other.process, link));
        } else if !other.holds || self.processes[other.process].killed.is_some() {
            self.connections.remove(&link);
        }
        let kept = self.settings.sabotage == Some(Sabotage::KeepLostLinks);
        if !kept && self.processes[process].links.handle_lost(direction, other.peer, link) {
            self.report_link(process, direction, other.peer, Some(is_silent));
        }
        for (call, serial) in self.lanes(process, direction, |lane| lane.link == Some(link)) {
            self.lane_lost(process, (call, serial), direction, is_silent);
        }
    }

    /// An attempt had the link that is gone.
    fn lane_lost(
        &mut self,
        process: usize,
        (call, serial): (CallId, u64),
        direction: Direction,
        is_silent: bool,
    ) {
        let is_begun = self.is_begun(process, call, direction);
        let is_done = direction == Direction::From && self.is_moved(process, call);
        let Some(lane) = self.lane_mut(process, call, direction) else { return };
        lane.link = None;
        let (peer, redials_left) = (lane.peer, lane.redials_left);
        let present = self.processes[process].links.link(direction, peer);
        let lost =
            LostLane { direction, is_transfer: false, is_done, is_begun, is_silent, redials_left, present };
        let after = after_loss(&lost);
        let by = self.now + LINK_GRACE;
        if let Some(lane) = self.lane_mut(process, call, direction) {
            lane.redials_left -= u8::from(after.takes_a_redial());
            lane.wanted_by = (after == AfterLoss::AwaitWithinGrace).then_some(by);
        }
        match after {
            AfterLoss::Nothing | AfterLoss::Await => {}
            AfterLoss::Stop => self.stop_lane(process, call, serial, direction, peer),
            AfterLoss::Use(link) => self.bind(process, call, direction, link),
            AfterLoss::Dial => {
                if let Some(link) = self.want_link(process, peer) {
                    self.bind(process, call, direction, link);
                }
            }
            AfterLoss::AwaitWithinGrace => self.after(LINK_GRACE, Event::LinkMissed(process, call, serial)),
        }
    }

    /// The predecessor had its time to dial again.
    pub(super) fn link_missed(&mut self, process: usize, call: CallId, serial: u64) {
        let now = self.now;
        let missed = |lane: &Lane| lane.wanted_by.is_some_and(|by| by <= now);
        if self.lanes(process, Direction::From, missed).contains(&(call, serial))
            && let Some(lane) = self.lane_mut(process, call, Direction::From)
        {
            let peer = lane.peer;
            self.stop_lane(process, call, serial, Direction::From, peer);
        }
    }

    /// Tells the session about a link, for every epoch that hears of it: it is up, or down, and then whether in silence.
    fn report_link(&mut self, process: usize, direction: Direction, peer: PeerId, down: Option<bool>) {
        let change = if down.is_some() { Change::Down } else { Change::Up };
        let state = &mut self.processes[process];
        for (_, epoch) in state.links.hearers(direction, peer, change) {
            match (direction, down) {
                (Direction::Towards, None) => state.session.handle_links_up(epoch),
                (Direction::From, None) => {}
                (_, Some(silent)) => {
                    let broken = broken_link(direction, state.id, peer);
                    state.session.handle_link_broken(epoch, broken, silent);
                }
            }
        }
        if let Some(silent) = down {
            self.line(|| {
                format!("process {process}: no link {direction:?} {}, silent: {silent}", peer.short())
            });
        }
    }

    // ---- lanes ----

    /// An attempt begins: it wants its links.
    pub(super) fn attach(&mut self, process: usize, call: CallId) {
        let Some(lane) = self.lane_mut(process, call, Direction::Towards) else { return };
        let next = lane.peer;
        // A link that closed while it rested must not look like one that broke in use.
        self.probe(process, Direction::Towards, Some(next));
        if let Some(link) = self.want_link(process, next) {
            self.bind(process, call, Direction::Towards, link);
        }
        let Some(lane) = self.lane_mut(process, call, Direction::From) else { return };
        let before = lane.peer;
        if let Some(link) = self.processes[process].links.link(Direction::From, before) {
            self.bind(process, call, Direction::From, link);
        }
    }

    fn bind(&mut self, process: usize, call: CallId, direction: Direction, link: u64) {
        let Some(lane) = self.lane_mut(process, call, direction) else { return };
        (lane.link, lane.wanted_by) = (Some(link), None);
        // Small calls send what they have before anybody else has made the call (rule 14).
        let eager = direction == Direction::Towards && self.rng.chance(0.5);
        if let Some(executing) = self.processes[process].executing(call)
            && let Some(held) = self.transfers.get_mut(&executing.transfer)
            && let Some(input) = held.inputs.get_mut(&process)
        {
            input.eager |= eager;
        }
    }

    /// Whether all that is between the members of a ring carries: each sends on the link on which the next receives.
    pub(super) fn is_linked(&self, transfer: &TransferId) -> bool {
        let held = &self.transfers[transfer];
        let lane = |process: usize, direction: Direction| {
            let at_work = self.processes[process].calls.values().filter_map(|state| state.executing.as_ref());
            at_work.filter(|at| at.transfer == *transfer).find_map(|at| at.lane(direction)?.link)
        };
        let mut towards: Vec<_> =
            held.inputs.keys().map(|process| lane(*process, Direction::Towards)).collect();
        let mut from: Vec<_> = held.inputs.keys().map(|process| lane(*process, Direction::From)).collect();
        let carries = |link: &Option<u64>| {
            let connection = link.and_then(|link| self.connections.get(&link));
            connection.is_some_and(|connection| connection.broken.is_none())
        };
        towards.sort_unstable();
        from.sort_unstable();
        transfer.1.len() == 1 || (towards == from && towards.iter().all(carries))
    }

    /// Whether blocks of an attempt were on its link: certainly once all have made the call.
    fn is_begun(&self, process: usize, call: CallId, direction: Direction) -> bool {
        let Some(executing) = self.processes[process].executing(call) else { return false };
        let Some(held) = self.transfers.get(&executing.transfer) else { return false };
        let sender = match direction {
            Direction::Towards => Some(process),
            Direction::From => executing.lane(direction).and_then(|lane| self.by_id.get(&lane.peer).copied()),
        };
        held.begun || sender.and_then(|sender| held.inputs.get(&sender)).is_some_and(|input| input.eager)
    }

    fn is_moved(&self, process: usize, call: CallId) -> bool {
        let executing = self.processes[process].executing(call);
        executing.and_then(|at| self.transfers.get(&at.transfer)).is_some_and(|transfer| transfer.moved)
    }

    fn lane_mut(&mut self, process: usize, call: CallId, direction: Direction) -> Option<&mut Lane> {
        self.processes[process].calls.get_mut(&call)?.executing.as_mut()?.lane_mut(direction)
    }

    /// The attempts of a process, but for those that are being stopped, whose lane is `such`.
    fn lanes(
        &self,
        process: usize,
        direction: Direction,
        such: impl Fn(&Lane) -> bool,
    ) -> Vec<(CallId, u64)> {
        let calls = self.processes[process].calls.iter();
        let found = calls.filter_map(|(call, state)| {
            let executing = state.executing.as_ref().filter(|executing| !executing.aborting)?;
            executing.lane(direction).filter(|lane| such(lane)).map(|_| (*call, executing.serial))
        });
        found.collect()
    }

    fn stop_lane(&mut self, process: usize, call: CallId, serial: u64, direction: Direction, peer: PeerId) {
        let broken = broken_link(direction, self.processes[process].id, peer);
        let result = PerformResult::LinkBroken(broken);
        self.after(Duration::ZERO, Event::Performed(process, call, serial, result));
    }
}

fn broken_link(direction: Direction, me: PeerId, peer: PeerId) -> BrokenLink {
    let error = "broken in the simulation";
    match direction {
        Direction::Towards => BrokenLink::towards(me, peer, error),
        Direction::From => BrokenLink::back_from(me, peer, error),
    }
}
