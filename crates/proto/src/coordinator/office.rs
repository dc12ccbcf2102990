//! Who is on the line, what is said to them, and what is still to be done: what every handler needs.
//!
//! To put somebody out is decided here and done later ([`Agenda`]): it is told at once, and whoever goes on deciding
//! sees that it is doomed.

use super::agenda::Agenda;
use super::crier::Crier;
use super::directory::Directory;
use super::outbox::Outbox;
use super::run::{Action, ConnectionId, Counters, Note};
use crate::id::PeerId;
use crate::wire::control::{KickReason, LossReason, Term, ToPeer};

/// What every handler needs.
#[derive(Clone, Debug, Hash)]
pub(super) struct Office {
    /// The number of this coordinator's reign.
    pub(super) term: Term,
    pub(super) peers: Directory,
    pub(super) outbox: Outbox,
    pub(super) agenda: Agenda,
    pub(super) counters: Counters,
    pub(super) crier: Crier,
}

impl Office {
    /// One that nobody has called at.
    pub(super) fn new() -> Self {
        Self {
            term: 1,
            peers: Directory::default(),
            outbox: Outbox::default(),
            agenda: Agenda::default(),
            counters: Counters::default(),
            crier: Crier::default(),
        }
    }

    /// Sends to a peer if it is connected; what it misses it learns when it resumes.
    pub(super) fn tell(&mut self, peer: PeerId, message: ToPeer) {
        if let Some(at) = self.peers.connection(peer) {
            self.outbox.act(Action::Send(at, message));
        }
    }

    /// Sends one message to all of these who are connected.
    pub(super) fn tell_all<'a>(&mut self, peers: impl IntoIterator<Item = &'a PeerId>, message: ToPeer) {
        let connections: Vec<_> = peers.into_iter().filter_map(|peer| self.peers.connection(*peer)).collect();
        match connections[..] {
            [] => {}
            [at] => self.outbox.act(Action::Send(at, message)),
            _ => self.outbox.act(Action::SendAll(connections, message)),
        }
    }

    /// Refuses a connection that belongs to no peer.
    pub(super) fn turn_away(&mut self, at: ConnectionId, reason: KickReason, text: &str) {
        self.outbox.turn_away(at, reason, text, self.term);
    }

    /// Decides that a peer is out; what follows from it is done before the call at hand returns.
    pub(super) fn lose(&mut self, peer: PeerId, reason: LossReason) {
        if !self.peers.knows(peer) || self.agenda.is_doomed(peer) {
            return;
        }
        if !matches!(reason, LossReason::Left | LossReason::Kicked) {
            self.counters.evictions += 1;
            self.tell_kicked(peer, KickReason::Evicted, format!("evicted: {reason}"));
        }
        self.outbox.act(Action::Evict(peer));
        self.agenda.remove(peer, reason);
    }

    /// A breach: the peer is told why and is out; nobody else is disturbed beyond its absence (rule 20f).
    pub(super) fn kick(&mut self, peer: PeerId, text: &str) {
        if !self.peers.knows(peer) || self.agenda.is_doomed(peer) {
            return;
        }
        self.counters.kicks += 1;
        self.outbox.note(Note::Kicked(peer, KickReason::Breach, text.to_owned()));
        self.tell_kicked(peer, KickReason::Breach, text.to_owned());
        self.lose(peer, LossReason::Kicked);
    }

    /// Strikes peers out whose group is not what they think.
    pub(super) fn dismiss(&mut self, peers: &[PeerId], reason: KickReason, text: &str) {
        for peer in peers {
            self.tell_kicked(*peer, reason, text.to_owned());
            self.strike_out(*peer);
        }
    }

    /// Strikes a peer out and closes its connection: without a word to it, nor to anybody else.
    pub(super) fn strike_out(&mut self, peer: PeerId) -> Option<super::peers::Peer> {
        let record = self.peers.remove(peer)?;
        if let Some(at) = record.connection {
            self.outbox.act(Action::Close(at));
        }
        Some(record)
    }

    fn tell_kicked(&mut self, peer: PeerId, reason: KickReason, text: String) {
        let term = self.term;
        self.tell(peer, ToPeer::Kicked { reason, text, term });
    }

    /// A message that came too late to matter.
    pub(super) fn count_stale(&mut self) {
        self.counters.stale += 1;
    }
}
