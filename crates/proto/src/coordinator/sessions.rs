//! Sessions: how peers come, come back and go.
//!
//! What begins or ends a session concerns almost everything that is known: the lists of peers, their groups, when they
//! may be let in, what is held against them and whose claims wait. So this handler borrows all of these, and passes on to
//! the narrower ones what is theirs: a peer's fate ([`Inquiry`]), collectives and votes ([`Calls`]), epochs and links
//! ([`Epochs`]). Coming back has files of its own: whose word counts is in [`claims`](super::claims), and what a
//! coordinator that was restarted makes of it in [`rebuild`](super::rebuild).
//!
//! The invariant: between two calls to the machine a peer is accepted exactly if the roster of its group lists it.

use super::Config;
use super::admission::Gate;
use super::calls::Calls;
use super::claims::{Claims, Terms};
use super::epochs::Epochs;
use super::eviction::{Evidence, Inquiry};
use super::groups::Groups;
use super::office::Office;
use super::outbox::Timer;
use super::peers::{Phase, UNKNOWN_SESSION, other_encryption};
use super::run::{Action, ConnectionId, Note};
use crate::collective::Group;
use crate::id::PeerId;
use crate::limits::{MEMBERS_MAX, ROSTER_BYTES_MAX};
use crate::time::Instant;
use crate::wire::control::{KickReason, LossReason, Registration, ToPeer};
use std::collections::{BTreeMap, BTreeSet};

/// Handles the beginnings and ends of sessions.
pub(super) struct Sessions<'a> {
    pub(super) config: &'a Config,
    pub(super) office: &'a mut Office,
    pub(super) groups: &'a mut Groups,
    pub(super) gate: &'a mut Gate,
    pub(super) evidence: &'a mut Evidence,
    pub(super) claims: &'a mut Claims,
}

impl Sessions<'_> {
    /// What handles calls.
    pub(super) fn calls(&mut self) -> Calls<'_> {
        let Self { config, office, groups, gate, .. } = self;
        Calls { config, office, groups, gate }
    }

    /// What handles epochs.
    pub(super) fn epochs(&mut self) -> Epochs<'_> {
        let Self { config, office, groups, gate, .. } = self;
        Epochs { config, office, groups, gate }
    }

    /// What inquires into a peer's fate.
    pub(super) fn inquiry(&mut self) -> Inquiry<'_> {
        let Self { config, office, evidence, .. } = self;
        Inquiry { config, office, evidence }
    }

    /// A peer comes for the first time, or begins again.
    pub(super) fn register(
        &mut self,
        now: Instant,
        at: ConnectionId,
        from: PeerId,
        registration: Registration,
        generation: u32,
    ) {
        if registration.info.id != from {
            let text = format!("registered as {} over a connection of {from}", registration.info.id);
            return self.office.turn_away(at, KickReason::Breach, &text);
        }
        self.forget_rival(now, from);
        if let Some(known) = self.office.peers.get(from) {
            if known.connection == Some(at) {
                return self.office.kick(from, "registered twice on one connection");
            }
            // Of a member that a rebuild expects only the id is known: it says itself that it is in nothing.
            let expected = known.session == UNKNOWN_SESSION;
            let same = known.session == registration.session && known.generation < generation
                || registration.session.succeeds(known.session);
            if !expected && !same {
                let text = format!("{from} is registered already: every process needs a PeerId of its own");
                return self.office.turn_away(at, KickReason::Duplicate, &text);
            }
            // The same process starts again from the beginning: whatever it was in before is over.
            self.remove_peers(now, &[(from, LossReason::Left)]);
        }
        if self.office.peers.len() >= MEMBERS_MAX {
            let text = format!("this run has {MEMBERS_MAX} peers, which is the limit");
            return self.office.turn_away(at, KickReason::Limit, &text);
        }
        if !self.office.peers.roster_fits(&registration.info) {
            let text = format!(
                "names and metadata of this run's {} peers take {ROSTER_BYTES_MAX} bytes, which is the limit: use \
                 shorter ones",
                self.office.peers.len()
            );
            return self.office.turn_away(at, KickReason::Limit, &text);
        }
        let wanted = registration.encryption;
        if let Err(agreed) = self.office.peers.ask_encryption(wanted) {
            let text = other_encryption(wanted, agreed);
            return self.office.turn_away(at, KickReason::Encryption, &text);
        }
        let peer = self.office.peers.enter(now, &registration);
        peer.generation = generation;
        peer.terms = Terms::new(self.office.term);
        self.attach(from, at);
        self.office.outbox.note(Note::Registered(from));
        self.office.outbox.act(Action::Renew(registration.info));
        self.office.tell(from, ToPeer::Registered { term: self.office.term });
        match self.gate.backoff(self.config, from).filter(|until| *until > now) {
            // It was evicted lately, perhaps again and again: the others are not disturbed before that (rule 45).
            Some(until) => self.office.outbox.schedule(until, Timer::Admissible(from)),
            None => {
                self.office.peers.make_admissible(from);
            }
        }
        self.inquiry().try_kernel(from);
        self.office.agenda.count_votes();
    }

    /// Binds a connection to a peer; an older one of the same peer is closed.
    pub(super) fn attach(&mut self, peer: PeerId, at: ConnectionId) {
        let old = self.office.peers.attach(peer, at);
        let group = self.office.peers.get(peer).map(|record| record.group);
        if let Some(state) = group.and_then(|group| self.groups.get_mut(group)) {
            state.attendance.came(peer);
        }
        if let Some(old) = old {
            self.office.outbox.act(Action::Close(old));
        }
    }

    /// A connection closed without a goodbye: everything that waits for this peer is aborted at once, and
    /// whether it is dead is another question (rules 4 and 20).
    pub(super) fn disconnected(&mut self, now: Instant, peer: PeerId, at: ConnectionId) {
        let Some(record) = self.office.peers.get_mut(peer).filter(|record| record.connection == Some(at))
        else {
            return;
        };
        record.connection = None;
        if record.phase == Phase::Registered {
            // It was in nothing yet; it registers again when it comes back.
            self.office.agenda.count_votes();
            return self.remove_peers(now, &[(peer, LossReason::Disconnected)]);
        }
        record.lost_since = Some(now);
        record.knock_at = Some(now);
        let group = record.group;
        if let Some(state) = self.groups.get_mut(group) {
            state.attendance.went(peer);
        }
        self.office.outbox.note(Note::Disconnected(peer));
        self.office.outbox.act(Action::Look(peer));
        self.calls().abort_ops_without(group, peer, LossReason::Disconnected);
        self.inquiry().review_lost(now, peer);
    }

    /// Takes peers out of the run for good, and their groups to the next epoch: one for all who go together.
    pub(super) fn remove_peers(&mut self, now: Instant, gone: &[(PeerId, LossReason)]) {
        let mut shrinking: BTreeMap<Group, Vec<(PeerId, LossReason)>> = BTreeMap::new();
        for (peer, reason) in gone {
            let Some(record) = self.office.strike_out(*peer) else { continue };
            self.evidence.forget(*peer);
            if !matches!(reason, LossReason::Left | LossReason::Kicked | LossReason::Disconnected) {
                self.gate.note_eviction(now, *peer);
            }
            self.office.outbox.note(Note::Lost(*peer, *reason));
            if record.phase == Phase::Accepted {
                shrinking.entry(record.group).or_default().push((*peer, *reason));
            }
        }
        if !shrinking.is_empty() {
            self.groups.next_run_epoch();
        }
        for (group, gone) in shrinking {
            self.shrink_group(now, group, gone);
        }
    }

    /// Members of a group went; the rest goes on in a new epoch.
    fn shrink_group(&mut self, now: Instant, group: Group, left: Vec<(PeerId, LossReason)>) {
        let Some(state) = self.groups.get_mut(group) else { return };
        self.office.agenda.tell_world();
        let gone: BTreeSet<_> = left.iter().map(|(peer, _)| *peer).collect();
        let roster: Vec<_> = state.roster.iter().copied().filter(|peer| !gone.contains(peer)).collect();
        state.attendance.forget(&gone);
        state.ballots.forget(|peer| gone.contains(peer));
        state.linking.forget(&gone);
        state.paths.forget(&gone);
        if let Some(rebuild) = state.rebuild_mut() {
            // Nothing is decided before everybody has resumed or gone; then one epoch says it all.
            rebuild.without(left);
            state.roster = roster;
            return self.try_finish_rebuild(now, group);
        }
        self.epochs().open_epoch(now, group, roster, Vec::new(), left);
    }
}
