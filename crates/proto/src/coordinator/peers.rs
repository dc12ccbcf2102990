//! Peers: registration, sessions, goodbyes.

use super::rebuild::UNKNOWN_SESSION;
use super::run::{Action, ConnectionId, Note, Run, Timer};
use crate::collective::Group;
use crate::id::PeerId;
use crate::limits::MEMBERS_MAX;
use crate::time::Instant;
use crate::wire::control::{KickReason, LossReason, Registration, SessionId, ToCoordinator, ToPeer};
use crate::wire::membership::{DeathReason, MemberInfo};

/// What the health plane says of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It answers; the moment is its last ack.
    Alive {
        /// When it last answered.
        acked: Option<Instant>,
    },
    /// Its kernel answers, the process does not.
    Stalled,
    /// Nothing answers.
    Suspect,
    /// It was declared dead.
    Dead(DeathReason),
}

/// Which port a connect tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knock {
    /// The peer's own, while it lives: it must accept before its refusal is believed (rule 22).
    TrialPort,
    /// One where nobody listens: it must refuse.
    TrialClosed,
    /// The peer's own, after its connection closed.
    Lost,
}

/// How far a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Connected, not yet admitted.
    Registered,
    /// In the roster of its group.
    Accepted,
}

/// A standing vote for newcomers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopologyVote {
    pub(super) min_world: u32,
    pub(super) since: Instant,
}

/// One peer.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) info: MemberInfo,
    pub(super) group: Group,
    pub(super) phase: Phase,
    pub(super) session: SessionId,
    pub(super) generation: u32,
    pub(super) age: u64,
    pub(super) connection: Option<ConnectionId>,
    pub(super) vote: Option<TopologyVote>,
    /// Since when it has no connection.
    pub(super) lost_since: Option<Instant>,
    /// When its port refused, after its connection closed.
    pub(super) refused_at: Option<Instant>,
    /// Whether port and closed port behaved while it lived.
    pub(super) accepts: Option<bool>,
    pub(super) refuses: Option<bool>,
    /// When it last sent anything.
    pub(super) heard: Instant,
    pub(super) sign: Sign,
    pub(super) sign_since: Instant,
    /// What it last called, and when.
    pub(super) last_call: (String, Instant),
    /// Messages held back while the coordinator is being rebuilt.
    pub(super) held: Vec<ToCoordinator>,
}

impl Peer {
    pub(super) fn new(now: Instant, registration: &Registration, age: u64) -> Self {
        Self {
            info: registration.info.clone(),
            group: registration.group,
            phase: Phase::Registered,
            session: registration.session,
            generation: 0,
            age,
            connection: None,
            vote: None,
            lost_since: None,
            refused_at: None,
            accepts: None,
            refuses: None,
            heard: now,
            sign: Sign::Alive { acked: None },
            sign_since: now,
            last_call: ("connect".to_owned(), now),
            held: Vec::new(),
        }
    }

    pub(super) fn kernel_trusted(&self) -> bool {
        self.accepts == Some(true) && self.refuses == Some(true)
    }

    pub(super) fn health_word(&self) -> &'static str {
        match self.sign {
            Sign::Alive { .. } => "alive",
            Sign::Stalled => "stalled",
            Sign::Suspect => "suspect",
            Sign::Dead(_) => "dead",
        }
    }
}

impl Run {
    pub(super) fn register(
        &mut self,
        now: Instant,
        at: ConnectionId,
        from: PeerId,
        registration: Registration,
    ) {
        if registration.info.id != from {
            let text = format!("registered as {} over a connection of {from}", registration.info.id);
            return self.turn_away(at, KickReason::Breach, &text);
        }
        if let Some(known) = self.peers.get(&from) {
            let same = known.session == registration.session || known.session == UNKNOWN_SESSION;
            if known.connection == Some(at) || !same {
                let text = format!("{from} is registered already: every process needs a PeerId of its own");
                return self.turn_away(at, KickReason::Duplicate, &text);
            }
            // The same session starts again from the beginning: whatever it was in before is over.
            self.remove_peer(now, from, LossReason::Left);
        }
        if self.peers.len() >= MEMBERS_MAX {
            let text = format!("this run has {MEMBERS_MAX} peers, which is the limit");
            return self.turn_away(at, KickReason::Limit, &text);
        }
        let mut peer = Peer::new(now, &registration, self.next_age);
        self.next_age += 1;
        peer.vote = Some(TopologyVote { min_world: registration.min_world.max(1), since: now });
        self.peers.insert(from, peer);
        self.attach(from, at);
        self.note(Note::Registered(from));
        self.tell(from, ToPeer::Registered { term: self.term });
        self.try_kernel(from);
        self.try_topology(now);
    }

    /// Binds a connection to a peer; an older one of the same peer is closed.
    pub(super) fn attach(&mut self, peer: PeerId, at: ConnectionId) {
        let Some(record) = self.peers.get_mut(&peer) else { return };
        let old = record.connection.replace(at);
        record.lost_since = None;
        record.refused_at = None;
        self.connections.insert(at, peer);
        if let Some(old) = old {
            self.connections.remove(&old);
            self.act(Action::Close(old));
        }
    }

    /// A connection closed without a goodbye: everything that waits for this peer is aborted at once, and
    /// whether it is dead is another question (rules 4 and 20).
    pub(super) fn disconnected(&mut self, now: Instant, peer: PeerId, at: ConnectionId) {
        let Some(record) = self.peers.get_mut(&peer).filter(|record| record.connection == Some(at)) else {
            return;
        };
        record.connection = None;
        if record.phase == Phase::Registered {
            // It was in nothing yet; it registers again when it comes back.
            self.peers.remove(&peer);
            self.note(Note::Lost(peer, LossReason::Disconnected));
            return;
        }
        record.lost_since = Some(now);
        let group = record.group;
        self.note(Note::Disconnected(peer));
        self.abort_ops_without(now, group, peer, LossReason::Disconnected);
        self.knock_lost(now, peer);
        self.schedule(now + self.config.control_grace, Timer::Lost(peer));
        self.schedule(now + self.config.control_lost_after, Timer::Lost(peer));
    }

    pub(super) fn leave(&mut self, now: Instant, peer: PeerId) {
        self.lose(now, peer, LossReason::Left);
    }

    /// A breach: the peer is told why and is out; nobody else is disturbed beyond its absence (rule 20f).
    pub(super) fn kick(&mut self, now: Instant, peer: PeerId, text: &str) {
        self.counters.kicks += 1;
        self.note(Note::Kicked(peer, KickReason::Breach, text.to_owned()));
        self.tell(peer, ToPeer::Kicked { reason: KickReason::Breach, text: text.to_owned() });
        self.lose(now, peer, LossReason::Kicked);
    }

    /// Takes a peer out of the run for good, and its group to the next epoch.
    pub(super) fn lose(&mut self, now: Instant, peer: PeerId, reason: LossReason) {
        if !matches!(reason, LossReason::Left | LossReason::Kicked) {
            self.counters.evictions += 1;
            let text = format!("evicted: {reason}");
            self.tell(peer, ToPeer::Kicked { reason: KickReason::Evicted, text });
        }
        if self.peers.contains_key(&peer) {
            self.act(Action::Evict(peer));
        }
        self.remove_peer(now, peer, reason);
        self.try_topology(now);
    }

    fn remove_peer(&mut self, now: Instant, peer: PeerId, reason: LossReason) {
        let Some(record) = self.peers.remove(&peer) else { return };
        if let Some(at) = record.connection {
            self.connections.remove(&at);
            self.act(Action::Close(at));
        }
        self.note(Note::Lost(peer, reason));
        if record.phase == Phase::Accepted {
            self.run_epoch += 1;
            self.shrink_group(now, record.group, &[(peer, reason)]);
        }
    }
}
