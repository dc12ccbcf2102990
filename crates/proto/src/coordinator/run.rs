//! The machine's state, its face and its timers; what it decides is in the files beside it.

use super::Config;
use super::admission::Gate;
use super::agenda::Chore;
use super::calls::Calls;
use super::claims::Claims;
use super::epochs::Epochs;
use super::eviction::{Evidence, Inquiry};
use super::facts::GroupFacts;
use super::groups::{GroupState, Groups};
use super::office::Office;
use super::outbox::Timer;
use super::peers::{Peer, Phase, Sign};
use super::sessions::Sessions;
use super::survey::SolveToken;
use super::witnesses::Witnesses;
use crate::collective::Group;
use crate::id::PeerId;
use crate::membership::{ConnectOutcome, ConnectToken};
use crate::text::printable;
use crate::time::{Duration, Instant};
use crate::topology::Question;
use crate::wire::InvalidMessage;
use crate::wire::control::{KickReason, LossReason, Term, ToCoordinator, ToPeer};
use crate::wire::membership::MemberInfo;
use std::net::SocketAddr;

/// One control connection, numbered by the driver; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What the driver is asked to do.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Action {
    /// Send a message.
    Send(ConnectionId, ToPeer),
    /// Send one message to many: encode it once.
    SendAll(Vec<ConnectionId>, ToPeer),
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
        /// Whom the question is about, where somebody else says to be there, too. Then whoever accepts is asked to prove
        /// who it is: if that is another peer, the outcome is `Refused`, because this one does not listen there (rule
        /// 45). Without a proof it is what the kernel said.
        disputed: Option<PeerId>,
    },
    /// Tell the health plane that this peer is out.
    Evict(PeerId),
    /// Tell the health plane that this peer has just registered: it lives, and what was held against it is about an
    /// earlier session (rule 45).
    Renew(MemberInfo),
    /// Ask the health plane to probe this peer now: there is evidence that its answer could outweigh.
    Look(PeerId),
    /// Look for a ring, on a thread that nobody waits for; answer with `handle_solved`.
    Solve {
        /// To be returned with the answer.
        token: SolveToken,
        /// What is asked.
        question: Question,
    },
    /// Nobody waits for that answer any more.
    CallOff(SolveToken),
    /// Tell whoever watches.
    Note(Note),
}

/// What happened, for logs and the dashboard.
#[derive(Clone, Debug, PartialEq, Hash)]
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
    /// A link of the ring carries much less than when the ring was made, in bytes per second.
    LinkSlowed {
        /// The end that sends.
        from: PeerId,
        /// The end that receives.
        to: PeerId,
        /// Then.
        before: u64,
        /// Now.
        rate: u64,
    },
    /// Most peers fell silent at once; evictions for silence are frozen (rule 21).
    Frozen,
    /// A peer obeys that higher term: another coordinator reigned since, and what this one held is void (rule 17).
    SteppedDown(Term),
}

/// The coordinator of one run.
///
/// Calling contract: hand in messages of one connection in their order, and `handle_closed` after the last,
/// also when it was closed because of an [`Action::Close`]. Drain `poll_action` after every call.
#[derive(Clone, Debug, Hash)]
pub struct Run {
    pub(super) config: Config,
    pub(super) office: Office,
    pub(super) evidence: Evidence,
    pub(super) claims: Claims,
    pub(super) gate: Gate,
    pub(super) groups: Groups,
    pub(super) witnesses: Witnesses,
    /// Who was in when the last reign ended, until they had their time to come back.
    pub(super) inherited: Vec<GroupFacts>,
}

/// What happened how often since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
            office: Office::new(),
            evidence: Evidence::default(),
            claims: Claims::default(),
            gate: Gate::default(),
            groups: Groups::default(),
            witnesses: Witnesses::default(),
            inherited: Vec::new(),
        }
    }

    /// What handles calls.
    pub(super) fn calls(&mut self) -> Calls<'_> {
        let Self { config, office, groups, gate, .. } = self;
        Calls { config, office, groups, gate }
    }

    /// What handles epochs and links.
    pub(super) fn epochs(&mut self) -> Epochs<'_> {
        let Self { config, office, groups, gate, .. } = self;
        Epochs { config, office, groups, gate }
    }

    /// What handles the beginnings and ends of sessions.
    pub(super) fn sessions(&mut self) -> Sessions<'_> {
        let Self { config, office, groups, gate, evidence, claims, .. } = self;
        Sessions { config, office, groups, gate, evidence, claims }
    }

    /// What inquires into a peer's fate.
    pub(super) fn inquiry(&mut self) -> Inquiry<'_> {
        Inquiry { config: &self.config, office: &mut self.office, evidence: &mut self.evidence }
    }

    /// A coordinator that was started a moment ago may have been restarted. Until then nobody is admitted: a group
    /// that is founded is served, and members of before who came later would be strangers to it (rule 41).
    pub fn expect_old_members(&mut self, until: Instant) {
        self.gate.close(until);
        self.office.outbox.schedule(until, Timer::Fresh);
    }

    /// A message arrived on a connection whose other end is proven to be `from`.
    pub fn handle_message(&mut self, now: Instant, at: ConnectionId, from: PeerId, message: ToCoordinator) {
        self.claims.begin(now);
        match message {
            ToCoordinator::AskStatus => {
                let status = self.status(now).to_json();
                self.office.outbox.act(Action::Send(at, ToPeer::Status(status)));
            }
            ToCoordinator::Register(registration, generation, term) => {
                self.sessions().meet_term(term);
                self.sessions().register(now, at, from, registration, generation);
                self.lose_if_exited(from);
            }
            ToCoordinator::Resume(resume) => {
                self.sessions().resume(now, at, from, resume);
                self.lose_if_exited(from);
            }
            ToCoordinator::Watch { process } => self.watch(at, from, process),
            ToCoordinator::Exited { process } => self.exited(at, from, process),
            message => self.handle_member_message(now, at, from, message),
        }
        self.finish(now);
    }

    /// What arrived on a connection of `from` is no message. Whatever it was may have mattered, and would come again
    /// with every resume: the peer is out, and is told why (rule 20f).
    pub fn handle_unreadable(
        &mut self,
        now: Instant,
        at: ConnectionId,
        from: PeerId,
        error: &InvalidMessage,
    ) {
        let error = error.to_string();
        let text = format!("the coordinator cannot read what this peer said: {}", printable(&error));
        if self.office.peers.speaks_on(from, at) {
            self.office.kick(from, &text);
        } else {
            self.office.turn_away(at, KickReason::Breach, &text);
        }
        self.finish(now);
    }

    fn handle_member_message(
        &mut self,
        now: Instant,
        at: ConnectionId,
        from: PeerId,
        message: ToCoordinator,
    ) {
        let Some(peer) = self.office.peers.get_mut(from).filter(|peer| peer.connection == Some(at)) else {
            // Either it never registered here, or its session goes on elsewhere, or it was evicted.
            return self.office.turn_away(
                at,
                KickReason::Evicted,
                "not a peer of this run any more: connect again",
            );
        };
        peer.heard = now;
        peer.refused_at = None;
        match message {
            ToCoordinator::Promise { term } => self.sessions().promised(now, from, term),
            // Heard even during a rebuild: that is when people look.
            ToCoordinator::Remembered(incidents) => self.office.remembered(now, from, incidents),
            message if self.sessions().hold_while_rebuilding(from, &message) => {}
            message => self.epochs().handle_message(now, from, message),
        }
    }

    /// A connection is gone.
    pub fn handle_closed(&mut self, now: Instant, at: ConnectionId) {
        if let Some(peer) = self.office.peers.hang_up(at) {
            self.sessions().disconnected(now, peer, at);
        }
        self.sessions().hang_up_rival(now, at);
        self.witnesses.closed(at);
        self.finish(now);
    }

    /// The health plane says how a peer is.
    pub fn handle_health(&mut self, now: Instant, peer: PeerId, sign: Sign) {
        self.handle_health_since(now, peer, sign, now);
    }

    /// The same, with the moment since when it is so. What began before a peer's session is about an earlier one, and
    /// is not held against this one (rule 45).
    pub fn handle_health_since(&mut self, now: Instant, peer: PeerId, sign: Sign, since: Instant) {
        let earlier = |record: &Peer| since < record.registered;
        if matches!(sign, Sign::Alive { .. }) || !self.office.peers.get(peer).is_some_and(earlier) {
            self.inquiry().note_sign(now, peer, sign);
            // A broken link may have waited for this.
            let group = self.office.peers.get(peer).map(|record| record.group);
            if let Some(group) = group.filter(|group| self.groups.is_settling(*group))
                && matches!(sign, Sign::Alive { .. })
            {
                self.epochs().settle(now, group);
            }
        }
        self.finish(now);
    }

    /// The health plane had an answer from a peer at that moment, however the peer is now. Told before its sign: from the
    /// first answer on it can be missed there.
    pub fn handle_answer(&mut self, peer: PeerId, acked: Instant) {
        self.inquiry().note_answer(peer, acked);
    }

    /// A connect attempt ended.
    pub fn handle_connect(&mut self, now: Instant, token: ConnectToken, outcome: ConnectOutcome) {
        if let Some((peer, knock)) = self.evidence.take_answered(token) {
            self.inquiry().knocked(now, peer, knock, outcome);
        }
        self.finish(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.office.outbox.take_due(now) {
            match timer {
                Timer::Ops(group) => self.calls().review_ops(now, group),
                Timer::Lost(peer) => self.inquiry().review_lost(now, peer),
                Timer::LinkSettle(group) => self.epochs().settle(now, group),
                Timer::World => self.office.agenda.tell_world(),
                Timer::Paths(group) => self.epochs().review_paths(now, group),
                Timer::Admissible(peer) => {
                    if self.office.peers.make_admissible(peer) {
                        self.office.agenda.count_votes();
                    }
                }
                Timer::Claims(group) => self.sessions().weigh_claims(now, group),
                Timer::Annals => self.office.cry(now),
                Timer::Fresh => {
                    self.inherited.clear();
                    self.gate.open();
                    self.office.agenda.count_votes();
                }
            }
        }
        self.finish(now);
    }

    /// Does what the call at hand has led to.
    pub(super) fn finish(&mut self, now: Instant) {
        while let Some(chore) = self.office.agenda.next() {
            match chore {
                Chore::Remove(doomed) => {
                    self.sessions().remove_peers(now, &doomed);
                    self.office.agenda.count_votes();
                }
                Chore::CountVotes => self.epochs().count_votes(now),
                Chore::Knock(peers) => peers.into_iter().for_each(|peer| self.inquiry().try_path(peer)),
                Chore::TellWorld => {
                    let known_by = self.claims.known_by(now, &self.config);
                    self.epochs().tell_world(now, known_by);
                }
            }
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.office.outbox.next_action()
    }

    /// When to call `handle_timeout`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.office.outbox.next_alarm()
    }

    /// The number of this coordinator's reign.
    pub fn term(&self) -> Term {
        self.office.term
    }

    /// What happened how often.
    pub fn counters(&self) -> Counters {
        self.office.counters
    }

    /// How many things are held, all in all: what must stay bounded whatever peers do.
    pub fn footprint(&self) -> usize {
        let groups: usize = self.groups.values().map(GroupState::footprint).sum();
        let evidence = self.gate.footprint() + self.evidence.footprint() + self.claims.footprint();
        let evidence = evidence + self.witnesses.footprint();
        self.office.peers.footprint() + self.office.outbox.alarms() + groups + evidence
    }

    /// Whether that peer is registered or a member.
    pub fn knows(&self, peer: PeerId) -> bool {
        self.office.peers.knows(peer)
    }

    /// Accepted peers that no group's roster lists, though the group is not being rebuilt. There must never be any:
    /// nothing would ever reach such a peer, and nobody would tell it.
    pub fn unlisted(&self) -> Vec<PeerId> {
        let listed = |id: PeerId, peer: &Peer| {
            self.groups
                .get(peer.group)
                .is_some_and(|group| group.is_rebuilding() || group.roster.contains(&id))
        };
        let unlisted = |(id, peer): &(PeerId, &Peer)| peer.phase == Phase::Accepted && !listed(*id, peer);
        self.office.peers.iter().filter(unlisted).map(|(id, _)| id).collect()
    }

    /// Whether a peer that is known here is accepted, and whether the roster of its group lists it. Between two calls
    /// both are true or neither is.
    pub fn standing(&self, peer: PeerId) -> Option<(bool, bool)> {
        let known = self.office.peers.get(peer)?;
        let listed = self.groups.get(known.group).is_some_and(|state| state.roster.contains(&peer));
        Some((known.phase == Phase::Accepted, listed))
    }

    /// How many peers are registered or in.
    pub fn world_size(&self) -> usize {
        self.office.peers.len()
    }

    /// Whether nobody is or was here lately: the driver may forget the run.
    pub fn is_empty(&self) -> bool {
        self.office.peers.is_empty() && self.claims.is_empty()
    }

    /// How many alarms are set.
    #[cfg(test)]
    pub(super) fn timers(&self) -> usize {
        self.office.outbox.alarms()
    }

    /// How many connections are held.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.office.peers.connections()
    }
}
