//! The machine's state, its face and its timers; what it decides is in the files beside it.

use super::Config;
use super::groups::GroupState;
use super::peers::{Peer, Sign};
use crate::collective::{Group, RunEpoch};
use crate::id::PeerId;
use crate::membership::{ConnectOutcome, ConnectToken};
use crate::time::{Duration, Instant};
use crate::wire::control::{KickReason, LossReason, Term, ToCoordinator, ToPeer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// One control connection, numbered by the driver; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What the driver is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a message.
    Send(ConnectionId, ToPeer),
    /// Close a connection once what was sent before is on its way.
    Close(ConnectionId),
    /// Try a TCP connect, close it at once if it succeeds, report through `handle_connect`.
    Connect {
        /// To be returned with the outcome.
        token: ConnectToken,
        /// Where to.
        to: SocketAddr,
        /// After this long the outcome is `Silent`.
        timeout: Duration,
    },
    /// Tell the health plane that this peer is out.
    Evict(PeerId),
    /// Tell whoever watches.
    Note(Note),
}

/// What happened, for logs and the dashboard.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A peer registered.
    Registered(PeerId),
    /// A peer was admitted.
    Accepted(PeerId),
    /// A peer's control connection closed without a goodbye.
    Disconnected(PeerId),
    /// A peer resumed its session.
    Resumed(PeerId),
    /// A peer is out of the run.
    Lost(PeerId, LossReason),
    /// A group has a new epoch of that many members.
    Epoch(Group, u64, usize),
    /// A peer was kicked.
    Kicked(PeerId, KickReason, String),
    /// Everything was rebuilt from the peers' resumes.
    Rebuilt(Group, u64),
    /// Resumes contradict each other; that peer must have lied (rule 17).
    Contradiction(PeerId),
    /// Most peers fell silent at once; evictions for silence are frozen (rule 21).
    Frozen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A collective's deadline, or the end of collecting differing calls, may have come.
    Ops(Group),
    /// A peer without a connection must be looked at.
    Lost(PeerId),
    /// The ends of a broken link had their time.
    LinkSettle(Group),
    /// Members of a run that we do not know had their time to come back.
    Fresh,
}

/// The coordinator of one run.
///
/// Calling contract: hand in messages of one connection in their order, and `handle_closed` after the last.
/// Drain `poll_action` after every call.
#[derive(Debug)]
pub struct Run {
    pub(super) config: Config,
    pub(super) term: Term,
    pub(super) run_epoch: RunEpoch,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    pub(super) connections: BTreeMap<ConnectionId, PeerId>,
    pub(super) groups: BTreeMap<Group, GroupState>,
    /// Older peers have lower numbers; ties are broken by age.
    pub(super) next_age: u64,
    /// Whose connects are under way, and which port they try.
    pub(super) knocks: BTreeMap<u64, (PeerId, super::peers::Knock)>,
    pub(super) next_token: u64,
    pub(super) frozen_until: Option<Instant>,
    /// Until then this may be an old run whose members are still on their way.
    pub(super) fresh_after: Option<Instant>,
    pub(super) counters: Counters,
    timers: BTreeSet<(Instant, Timer)>,
    actions: VecDeque<Action>,
}

/// What happened how often since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Committed collectives.
    pub commits: u64,
    /// Aborted attempts.
    pub aborts: u64,
    /// Evicted peers.
    pub evictions: u64,
    /// Kicked peers.
    pub kicks: u64,
    /// Messages that came too late to matter.
    pub stale: u64,
}

impl Run {
    /// A run that nobody has joined.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            term: 1,
            run_epoch: 0,
            peers: BTreeMap::new(),
            connections: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_age: 0,
            knocks: BTreeMap::new(),
            next_token: 0,
            frozen_until: None,
            fresh_after: None,
            counters: Counters::default(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// A coordinator that was started a moment ago may have been restarted: until then a run of which nobody
    /// spoke is not begun afresh, because its old members would have to throw the new ones out.
    pub fn expect_old_members(&mut self, until: Instant) {
        self.fresh_after = Some(until);
        self.schedule(until, Timer::Fresh);
    }

    /// A message arrived on a connection whose other end is proven to be `from`.
    pub fn handle_message(&mut self, now: Instant, at: ConnectionId, from: PeerId, message: ToCoordinator) {
        match message {
            ToCoordinator::AskStatus => {
                let status = self.status(now).to_json();
                return self.act(Action::Send(at, ToPeer::Status(status)));
            }
            ToCoordinator::Register(registration) => return self.register(now, at, from, registration),
            ToCoordinator::Resume(resume) => return self.resume(now, at, from, resume),
            _ => {}
        }
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.connection == Some(at)) else {
            // Either it never registered here, or its session goes on elsewhere, or it was evicted.
            return self.turn_away(at, KickReason::Evicted, "not a peer of this run any more: connect again");
        };
        peer.heard = now;
        peer.refused_at = None;
        if self.hold_while_rebuilding(from, &message) {
            return;
        }
        self.handle_settled_message(now, from, message);
    }

    pub(super) fn handle_settled_message(&mut self, now: Instant, from: PeerId, message: ToCoordinator) {
        match message {
            ToCoordinator::VoteTopology { min_world } => self.vote_topology(now, from, min_world),
            ToCoordinator::Connected { group, epoch } => self.link_up(now, from, group, epoch),
            ToCoordinator::LinkBroken { group, epoch, from: a, to: b, dialling, error } => {
                self.link_broken(now, from, group, epoch, (a, b), dialling, &error);
            }
            ToCoordinator::Initiate { key, fingerprint, timeout_ms } => {
                self.initiate(now, from, key, fingerprint, timeout_ms);
            }
            ToCoordinator::Complete { key } => self.complete(now, from, &key),
            ToCoordinator::Refuse { key, reason } => self.refuse(now, from, &key, reason),
            ToCoordinator::Acknowledge { key } => self.acknowledge(from, &key),
            ToCoordinator::Leave => self.leave(now, from),
            ToCoordinator::Register(_) | ToCoordinator::Resume(_) | ToCoordinator::AskStatus => {}
        }
    }

    /// A connection is gone.
    pub fn handle_closed(&mut self, now: Instant, at: ConnectionId) {
        if let Some(peer) = self.connections.remove(&at) {
            self.disconnected(now, peer, at);
        }
    }

    /// The health plane says how a peer is.
    pub fn handle_health(&mut self, now: Instant, peer: PeerId, sign: Sign) {
        self.note_sign(now, peer, sign);
    }

    /// A connect attempt ended.
    pub fn handle_connect(&mut self, now: Instant, token: ConnectToken, outcome: ConnectOutcome) {
        if let Some((peer, knock)) = self.knocks.remove(&token.0) {
            self.knocked(now, peer, knock, outcome);
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(due, timer)) = self.timers.first().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, timer));
            match timer {
                Timer::Ops(group) => self.review_ops(now, group),
                Timer::Lost(peer) => self.review_lost(now, peer),
                Timer::LinkSettle(group) => self.settle(now, group),
                Timer::Fresh => self.try_topology(now),
            }
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call `handle_timeout`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// What happened how often.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether nobody is or was here lately: the driver may forget the run.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(super) fn schedule(&mut self, at: Instant, timer: Timer) {
        self.timers.insert((at, timer));
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn note(&mut self, note: Note) {
        self.act(Action::Note(note));
    }

    /// Sends to a peer if it is connected; what it misses it learns when it resumes.
    pub(super) fn tell(&mut self, peer: PeerId, message: ToPeer) {
        if let Some(at) = self.peers.get(&peer).and_then(|peer| peer.connection) {
            self.act(Action::Send(at, message));
        }
    }

    /// Refuses a connection that belongs to no peer.
    pub(super) fn turn_away(&mut self, at: ConnectionId, reason: KickReason, text: &str) {
        self.act(Action::Send(at, ToPeer::Kicked { reason, text: text.to_owned() }));
        self.act(Action::Close(at));
    }
}
