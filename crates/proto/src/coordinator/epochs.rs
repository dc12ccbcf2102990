//! Epochs, and all that changes them: losses, newcomers, links that break, better rings, the end of a ballot.
//!
//! An epoch fixes roster, ring and decider (rule 1). Whatever makes another one necessary or possible ends here, in
//! [`Epochs::open_epoch`]: it aborts what is in flight, plans the ring, tells everybody and lets those go on who wait. So
//! whoever decides *that* there is another epoch works with the same parts, and is a method of the same handler, in the
//! file of its own matter: [`paths`](super::paths) (links), [`rewiring`](super::rewiring) (a better ring, in two steps),
//! [`returning`](super::returning) (members that missed something), [`ballots`](super::ballots) (what a vote leads to) and
//! [`admission`](super::admission).
//!
//! It cannot touch evidence, claims or witnesses: who is dead, or believed, is decided elsewhere.

use super::Config;
use super::admission::Gate;
use super::calls::Calls;
use super::groups::{Groups, Linking, Phase};
use super::office::Office;
use super::outbox::Timer;
use super::run::{Action, Note};
use super::states::no_member;
use crate::collective::{BrokenLink, Group, GroupEpoch};
use crate::id::PeerId;
use crate::limits::{ANCESTORS_MAX, BROKEN_LINKS_MAX, MEMBERS_MAX};
use crate::text::printable;
use crate::time::Instant;
use crate::wire::control::{AbortReason, Ancestor, Decider, EpochRecord, LossReason, ToCoordinator, ToPeer};
use std::collections::{BTreeMap, BTreeSet};

/// The epochs of a history that goes on from another begin above the next multiple of this. So many would have to be
/// opened within one coordinator's life, unknown to all who come back to the next, before a number came twice.
const HISTORY_EPOCHS: GroupEpoch = 1_000;

/// The epoch that is to come: its members, and how they differ from those of the one before.
struct NextEpoch {
    roster: Vec<PeerId>,
    joined: Vec<PeerId>,
    left: Vec<(PeerId, LossReason)>,
}

/// Handles what changes a group's epoch, its ring or its links. It puts nobody out at once.
pub(super) struct Epochs<'a> {
    pub(super) config: &'a Config,
    pub(super) office: &'a mut Office,
    pub(super) groups: &'a mut Groups,
    pub(super) gate: &'a mut Gate,
}

impl Epochs<'_> {
    /// What handles calls: it needs the same parts, and opens no epoch.
    pub(super) fn calls(&mut self) -> Calls<'_> {
        let Self { config, office, groups, gate } = self;
        Calls { config, office, groups, gate }
    }

    /// A member of a group that is served said something.
    pub(super) fn handle_message(&mut self, now: Instant, from: PeerId, message: ToCoordinator) {
        match message {
            ToCoordinator::Prepared { group, number, error } => {
                self.prepared(from, group, number, error.is_none());
            }
            ToCoordinator::Vote { ballot, wish } => self.calls().vote(now, from, ballot, wish),
            ToCoordinator::TakeBack { ballot } => self.calls().take_back_vote(now, from, ballot),
            ToCoordinator::Expired { ballot } => self.calls().ballot_expired(now, from, ballot),
            ToCoordinator::Connected { group, epoch } => self.link_up(from, group, epoch),
            ToCoordinator::LinkBroken { group, epoch, from: a, to: b, dialling, error } => {
                let broken = BrokenLink { from: a, to: b, error: printable(&error).into_owned() };
                self.link_broken(now, from, (group, epoch), broken, dialling);
            }
            ToCoordinator::Redialled { group, to, error } => {
                self.redialled(now, from, group, to, error.is_none());
            }
            ToCoordinator::Initiate { key, fingerprint, timeout_ms } => {
                self.calls().initiate(now, from, key, fingerprint, timeout_ms);
            }
            ToCoordinator::Complete { key } => self.calls().complete(from, &key),
            ToCoordinator::Refuse { key, reason } => {
                let blamed = self.calls().refuse(now, from, &key, reason);
                if let Some(broken) = blamed {
                    self.link_broken(now, from, (key.group, key.epoch), broken, false);
                }
            }
            ToCoordinator::Acknowledge { key } => self.calls().acknowledge(from, &key),
            ToCoordinator::LinkSpeed(group, speed) => self.note_speed(now, group, from, speed),
            ToCoordinator::Leave { for_good } => {
                let group = self.office.peers.get(from).map(|peer| peer.group).filter(|_| for_good);
                let group = group.filter(|group| self.office.peers.is_member(from, *group));
                if let Some(state) = group.and_then(|group| self.groups.get_mut(group)) {
                    state.holders.leaves_for_good(from);
                }
                self.office.lose(from, LossReason::Left);
            }
            // These are not said to a group.
            ToCoordinator::Promise { .. }
            | ToCoordinator::Remembered(_)
            | ToCoordinator::Register(..)
            | ToCoordinator::Resume(_)
            | ToCoordinator::Watch { .. }
            | ToCoordinator::Exited { .. }
            | ToCoordinator::AskStatus => {}
        }
    }

    /// What follows is a history of its own: members that were not heard may know more of the one so far than we do,
    /// and what we call its next epoch they may know as another (rule 41). Frames carry epochs and no names, so the
    /// numbers differ as well.
    pub(super) fn begin_history(&mut self, group: Group) {
        let Some(state) = self.groups.get_mut(group) else { return };
        let Some(first) = state.roster.first().and_then(|first| self.office.peers.get(*first)) else {
            return;
        };
        state.ancestors.push(Ancestor { founder: state.founder, epoch: state.epoch });
        state.ancestors.drain(..state.ancestors.len().saturating_sub(ANCESTORS_MAX));
        state.founder = first.session.founder(first.info.id, first.generation);
        state.epoch = (state.epoch / HISTORY_EPOCHS + 1) * HISTORY_EPOCHS;
    }

    /// Ends the group's epoch and begins the next. Survivors keep their relative order (rule 3).
    ///
    /// Who is in is told at once, even if no ring avoids the broken links: then the epoch has a ring that does not,
    /// and its collectives wait until there is a better one ([`paths`](super::paths)).
    pub(super) fn open_epoch(
        &mut self,
        now: Instant,
        group: Group,
        roster: Vec<PeerId>,
        joined: Vec<PeerId>,
        left: Vec<(PeerId, LossReason)>,
    ) {
        let next = NextEpoch { roster, joined, left };
        // An epoch is closed before the next begins: no verdict falls in it any more (rule 12).
        match self.groups.get(group).map_or(Decider::Coordinator, |state| state.decider) {
            // Nobody but us gives verdicts, so it is closed as soon as we have written those that are missing.
            Decider::Coordinator => {
                self.close_epoch(group, &next);
                self.begin_epoch(now, group, next);
            }
        }
    }

    /// No attempt of the group's epoch can be committed any more.
    fn close_epoch(&mut self, group: Group, next: &NextEpoch) {
        let lost = &next.left;
        let reason = if lost.is_empty() { AbortReason::Void } else { AbortReason::PeersLost(lost.clone()) };
        self.calls().abort_all(group, &reason);
    }

    /// Begins an epoch. The one before it is closed.
    fn begin_epoch(&mut self, now: Instant, group: Group, NextEpoch { roster, joined, left }: NextEpoch) {
        let Some(&first) = roster.first() else {
            if let Some(state) = self.groups.get_mut(group) {
                state.survey.note_members(&mut self.office.outbox, &BTreeSet::new());
                let off = state.paths.end_search();
                off.into_iter().for_each(|token| self.office.outbox.act(Action::CallOff(token)));
            }
            self.groups.end(group, &left); // Nobody is left to tell.
            self.office.agenda.tell_world();
            return;
        };
        // A peer that founds a group again, in a later session, begins another history.
        let founder =
            self.office.peers.get(first).map_or(first, |peer| peer.session.founder(first, peer.generation));
        let state = self.groups.found(group, founder);
        left.iter().for_each(|(peer, _)| state.operations.forget(*peer));
        state.holders.next_epoch(&joined, &left);
        // The order of the ring is kept for those who stay; newcomers come last.
        let members: BTreeSet<_> = roster.iter().copied().collect();
        let placed: BTreeSet<_> = state.ring.iter().copied().collect();
        let mut order: Vec<_> = state.ring.iter().copied().filter(|peer| members.contains(peer)).collect();
        order.extend(roster.iter().copied().filter(|peer| !placed.contains(peer)));
        // Whoever stays keeps its place before whoever comes, so the incumbents remain a prefix (rule 42).
        state.incumbents =
            state.roster[..state.incumbents].iter().filter(|peer| members.contains(peer)).count();
        state.operations.next_epoch();
        let changed = !joined.is_empty() || !left.is_empty();
        state.epoch += 1;
        state.decider = Decider::Coordinator; // A word needs a segment that the whole roster has mapped (rule 11).
        state.roster = roster;
        state.ring = state.paths.begin(now, order, changed, &state.survey);
        state.survey.note_ring(&state.ring);
        let off = state.paths.end_search();
        off.into_iter().for_each(|token| self.office.outbox.act(Action::CallOff(token)));
        state.linking = Linking::new(members, !joined.is_empty());
        state.attendance.begin_epoch();
        // Whatever was prepared was prepared for other members.
        state.phase = Phase::Serving;
        let (epoch, size) = (state.epoch, state.roster.len());
        if changed {
            let members = state.roster.iter().copied().collect();
            state.survey.note_members(&mut self.office.outbox, &members);
        }
        self.office.outbox.note(Note::Epoch(group, epoch, size));
        let record = self.record(group, joined, left);
        if let Some(state) = self.groups.get_mut(group) {
            state.world_told = record.global_world_size;
        }
        let roster = self.groups[group].roster.clone();
        self.office.tell_all(&roster, ToPeer::Epoch(record));
        self.heard_epoch(group);
        self.release(group);
        self.watch_paths(now, group);
        self.office.agenda.tell_world();
    }

    /// Tells the members of groups that stay as they are how large the run is now. Without it they would learn it only
    /// from the next epoch of their own, or from a vote. A coordinator that was just started may not know all groups
    /// yet: what its members knew counts, until the others have had their time to come back, which is at `known_by`.
    pub(super) fn tell_world(&mut self, now: Instant, known_by: Instant) {
        let (run_epoch, global_world_size) = (self.groups.run_epoch(), self.groups.world_size());
        let (mut told, mut later) = (Vec::new(), false);
        for state in self.groups.values_mut().filter(|state| state.is_served()) {
            if state.rebuilt && global_world_size < state.world_told && now < known_by {
                later = true;
            } else if std::mem::replace(&mut state.world_told, global_world_size) != global_world_size {
                told.extend_from_slice(&state.roster);
            }
        }
        if later {
            self.office.outbox.schedule(known_by, Timer::World);
        }
        self.office.tell_all(&told, ToPeer::World { run_epoch, global_world_size });
    }

    /// The group's epoch as it is told to a member.
    pub(super) fn record(
        &self,
        group: Group,
        mut joined: Vec<PeerId>,
        mut left: Vec<(PeerId, LossReason)>,
    ) -> EpochRecord {
        let state = &self.groups[group];
        joined.truncate(MEMBERS_MAX);
        left.truncate(MEMBERS_MAX);
        let rank: BTreeMap<_, _> =
            state.roster.iter().enumerate().map(|(rank, peer)| (*peer, rank as u32)).collect();
        EpochRecord {
            run_epoch: self.groups.run_epoch(),
            group,
            epoch: state.epoch,
            roster: state
                .roster
                .iter()
                .filter_map(|peer| Some(self.office.peers.get(*peer)?.info.clone()))
                .collect(),
            ring: state.ring.iter().map(|peer| rank[peer]).collect(),
            decider: state.decider,
            global_world_size: self.groups.world_size(),
            joined,
            left,
            founder: state.founder,
            broken: state
                .paths
                .told()
                .iter()
                .filter_map(|(from, to)| Some((*rank.get(from)?, *rank.get(to)?)))
                .take(BROKEN_LINKS_MAX)
                .collect(),
            incumbents: state.incumbents as u32,
            ancestors: state.ancestors.clone(),
            ballots: state.ballots.tallies(),
        }
    }

    /// A member's link to its successor is up.
    pub(super) fn link_up(&mut self, peer: PeerId, group: Group, epoch: GroupEpoch) {
        if !self.office.peers.is_member(peer, group) {
            return self
                .office
                .kick(peer, &no_member(self.office, self.groups, peer, "reported links of", group));
        }
        let Some(state) = self.groups.get_mut(group).filter(|state| state.epoch == epoch) else {
            self.office.count_stale();
            return;
        };
        // It answers the epoch, so it has everything that was said before the epoch.
        if state.attendance.hears_in_order(peer) {
            state.operations.learned_before(peer, epoch);
        }
        if state.linking.confirm(peer) {
            self.office.agenda.count_votes();
        }
    }
}
