//! Groups: what is known of each, and the phase that it is in.
//!
//! A loss makes a smaller epoch at once, without anybody's vote; newcomers come in by a vote only. How the next epoch comes
//! about is said in [`epochs`](super::epochs). The ring avoids the links that count as broken; which those are, and what
//! happens if no ring avoids them, is said in [`paths`](super::paths).

use super::attendance::Attendance;
use super::holders::Holders;
use super::operations::{Op, Operations};
use super::paths::Paths;
use super::rebuild::Rebuild;
use super::rewiring::Rewiring;
use super::survey::Survey;
use crate::ballot::{Ballots, sync};
use crate::collective::{Group, GroupEpoch, OpKey, RunEpoch, Scope};
use crate::id::PeerId;
use crate::limits::REVISIONS_MAX;
use crate::state::Revision;
use crate::wire::control::{Ancestor, Decider, EpochRecord, LossReason};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

/// What a group is in, besides its collectives and ballots.
#[derive(Clone, Debug, Hash)]
pub(super) enum Phase {
    /// The epoch's record is what its members agreed on.
    Serving,
    /// The same, and its members prepare the next epoch, with another ring. Next: that epoch, or as it was.
    Rewiring(Rewiring),
    /// Members tell a coordinator that was restarted how things stand. Next: `Serving`.
    Rebuilding(Box<Rebuild>),
}

/// Which members have not reported their link of an epoch yet.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Linking {
    unconfirmed: BTreeSet<PeerId>,
    /// Whether newcomers came with this epoch.
    grew: bool,
}

impl Linking {
    pub(super) fn new(members: BTreeSet<PeerId>, grew: bool) -> Self {
        Self { unconfirmed: members, grew }
    }

    /// Whether all links are up.
    pub(super) fn is_done(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Whether that member's link is waited for.
    pub(super) fn awaits(&self, peer: PeerId) -> bool {
        self.unconfirmed.contains(&peer)
    }

    /// Whether newcomers came with this epoch.
    pub(super) fn grew(&self) -> bool {
        self.grew
    }

    /// A member's link is up. True if it was the last.
    pub(super) fn confirm(&mut self, peer: PeerId) -> bool {
        self.unconfirmed.remove(&peer) && self.unconfirmed.is_empty()
    }

    pub(super) fn forget(&mut self, gone: &BTreeSet<PeerId>) {
        self.unconfirmed.retain(|peer| !gone.contains(peer));
    }
}

/// One group.
#[derive(Clone, Debug, Hash)]
pub(super) struct GroupState {
    pub(super) epoch: GroupEpoch,
    /// What gives its verdicts in this epoch.
    pub(super) decider: Decider,
    /// The name of its history, and of those that it goes on from (rule 41).
    pub(super) founder: PeerId,
    pub(super) ancestors: Vec<Ancestor>,
    /// In the order of ranks.
    pub(super) roster: Vec<PeerId>,
    /// How many of them, the first ones, were in a roster that gave a commit of the whole group (rule 42).
    pub(super) incumbents: usize,
    pub(super) ring: Vec<PeerId>,
    /// Which members are here.
    pub(super) attendance: Attendance,
    /// Which of them hold what it has agreed on last.
    pub(super) holders: Holders,
    /// What its members vote on besides collectives.
    pub(super) ballots: Ballots,
    /// Whose links of this epoch are up.
    pub(super) linking: Linking,
    /// Which links count as broken, and what is done about it.
    pub(super) paths: Paths,
    pub(super) operations: Operations,
    /// The size of the whole run that its members were told last.
    pub(super) world_told: u32,
    /// Whether it is known from its members' resumes.
    pub(super) rebuilt: bool,
    pub(super) phase: Phase,
    /// A ring that could not be prepared, while the ballot that asked for it goes on.
    pub(super) refused_ring: Option<Vec<PeerId>>,
    /// What is known of its links.
    pub(super) survey: Survey,
}

impl GroupState {
    pub(super) fn new(founder: PeerId, epoch: GroupEpoch) -> Self {
        Self {
            epoch,
            decider: Decider::Coordinator,
            founder,
            ancestors: Vec::new(),
            roster: Vec::new(),
            incumbents: 0,
            ring: Vec::new(),
            attendance: Attendance::default(),
            holders: Holders::default(),
            ballots: Ballots::default(),
            linking: Linking::default(),
            paths: Paths::default(),
            operations: Operations::default(),
            world_told: 0,
            rebuilt: false,
            phase: Phase::Serving,
            refused_ring: None,
            survey: Survey::default(),
        }
    }

    pub(super) fn footprint(&self) -> usize {
        self.roster.len()
            + self.operations.footprint()
            + self.paths.footprint()
            + self.ballots.footprint()
            + self.survey.footprint()
    }

    /// All links of the ring carried a collective to its end.
    pub(super) fn forgive_links(&mut self) {
        self.paths.forgive(&self.ring);
    }

    /// Whether that record is of this group's history, or of one that it goes on from.
    pub(super) fn is_of_history(&self, record: &EpochRecord) -> bool {
        self.founder == record.founder || self.ancestors.iter().any(|before| before.covers(record))
    }

    /// Members who were there first, of those whom a scope involves (rule 42).
    pub(super) fn incumbents_in(&self, scope: &Scope) -> BTreeSet<PeerId> {
        self.roster.iter().take(self.incumbents).copied().filter(|peer| scope.involves(*peer)).collect()
    }

    /// What the resumes have told so far, if it is being rebuilt.
    pub(super) fn rebuild(&self) -> Option<&Rebuild> {
        if let Phase::Rebuilding(rebuild) = &self.phase { Some(rebuild) } else { None }
    }

    pub(super) fn rebuild_mut(&mut self) -> Option<&mut Rebuild> {
        if let Phase::Rebuilding(rebuild) = &mut self.phase { Some(rebuild) } else { None }
    }

    /// Ends a rebuild.
    pub(super) fn take_rebuild(&mut self) -> Option<Rebuild> {
        if !self.is_rebuilding() {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Serving) {
            Phase::Rebuilding(rebuild) => Some(*rebuild),
            Phase::Serving | Phase::Rewiring(_) => None,
        }
    }

    pub(super) fn is_rebuilding(&self) -> bool {
        self.rebuild().is_some()
    }

    /// Whether the epoch's record is what its members agreed on.
    pub(super) fn is_served(&self) -> bool {
        !self.is_rebuilding()
    }

    /// Whether attempts can succeed, for all that is known.
    pub(super) fn is_settled(&self) -> bool {
        self.is_served() && self.attendance.is_full() && !self.paths.is_settling() && !self.paths.is_stuck()
    }
}

/// The groups of a run.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Groups {
    states: BTreeMap<Group, GroupState>,
    run_epoch: RunEpoch,
    /// A group that is founded begins above the last epoch of any that ended, so that no number comes twice.
    floor: GroupEpoch,
    /// How far the state of each group had come, by its committed steps and syncs. Kept beyond the deaths of all
    /// members, so that nobody begins below it.
    revisions: BTreeMap<Group, Revision>,
}

impl Groups {
    pub(super) fn get(&self, group: Group) -> Option<&GroupState> {
        self.states.get(&group)
    }

    pub(super) fn get_mut(&mut self, group: Group) -> Option<&mut GroupState> {
        self.states.get_mut(&group)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Group, &GroupState)> {
        self.states.iter().map(|(group, state)| (*group, state))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &GroupState> {
        self.states.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut GroupState> {
        self.states.values_mut()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The group, which is founded now if there is none.
    pub(super) fn found(&mut self, group: Group, founder: PeerId) -> &mut GroupState {
        let floor = self.floor;
        self.states.entry(group).or_insert_with(|| GroupState::new(founder, floor))
    }

    /// The group as a record tells of it, if nothing is known of it.
    pub(super) fn recall(&mut self, group: Group, record: &EpochRecord) -> &mut GroupState {
        self.run_epoch = self.run_epoch.max(record.run_epoch);
        self.states.entry(group).or_insert_with(|| GroupState::new(record.founder, record.epoch))
    }

    /// Nobody is left in a group. Should it be founded again, its numbers go on; and so does its state, unless these, the
    /// last ones, have ended its training: then another may begin.
    pub(super) fn end(&mut self, group: Group, last: &[(PeerId, LossReason)]) {
        let Some(state) = self.states.remove(&group) else { return };
        self.floor = self.floor.max(state.epoch);
        if state.holders.is_over(last) {
            self.revisions.remove(&group);
        } else if self.revision(group).is_none()
            && let Some(revision) = state.ballots.agreed(sync::KIND).and_then(sync::last)
        {
            self.set_revision(group, revision);
        }
    }

    /// A group has agreed on that revision of its state, by a step of all of its members.
    pub(super) fn set_revision_of_all(&mut self, group: Group, revision: Revision) {
        if let Some(state) = self.get_mut(group) {
            state.holders.agreed_by_all();
        }
        self.set_revision(group, revision);
    }

    /// The same, by those of `roster` whom `took_part` tells.
    pub(super) fn set_revision_of(
        &mut self,
        group: Group,
        revision: Revision,
        roster: &[PeerId],
        took_part: impl Fn(PeerId) -> bool,
    ) {
        if let Some(state) = self.get_mut(group) {
            state.holders.agreed_by(roster, took_part);
        }
        self.set_revision(group, revision);
    }

    /// It may be a lower one, where a training goes on from its checkpoint because nobody is left who remembers more.
    fn set_revision(&mut self, group: Group, revision: Revision) {
        if self.revisions.len() < REVISIONS_MAX || self.revisions.contains_key(&group) {
            self.revisions.insert(group, revision);
        }
    }

    /// The last revision that a group is known to have agreed on, sync or no sync.
    pub(super) fn revision(&self, group: Group) -> Option<Revision> {
        self.revisions.get(&group).copied()
    }

    /// What we hold of a group does not count.
    pub(super) fn remove(&mut self, group: Group) -> Option<GroupState> {
        self.states.remove(&group)
    }

    /// Somebody was admitted or lost, anywhere in the run (rule 1).
    pub(super) fn next_run_epoch(&mut self) {
        self.run_epoch += 1;
    }

    /// No group that ended had a later epoch.
    pub(super) fn floor(&self) -> GroupEpoch {
        self.floor
    }

    /// Counts on from where an earlier reign stopped.
    pub(super) fn go_on_from(&mut self, run_epoch: RunEpoch, floor: GroupEpoch) {
        (self.run_epoch, self.floor) = (self.run_epoch.max(run_epoch), self.floor.max(floor));
    }

    pub(super) fn run_epoch(&self) -> RunEpoch {
        self.run_epoch
    }

    /// How many members all groups have together.
    pub(super) fn world_size(&self) -> u32 {
        self.states.values().map(|group| group.roster.len() as u32).sum()
    }

    /// The members of a group that a scope involves.
    pub(super) fn members_in(&self, group: Group, scope: &Scope) -> Vec<PeerId> {
        let Some(state) = self.get(group) else { return Vec::new() };
        state.roster.iter().copied().filter(|peer| scope.involves(*peer)).collect()
    }

    /// Those of `peers` who know the group's epoch, and so may hear what is decided in it.
    pub(super) fn listening(&self, group: Group, mut peers: Vec<PeerId>) -> Vec<PeerId> {
        if let Some(state) = self.get(group) {
            peers.retain(|peer| state.attendance.listens(*peer));
        }
        peers
    }

    /// Whether a link of the group was reported broken, and nothing was concluded from it yet.
    pub(super) fn is_settling(&self, group: Group) -> bool {
        self.get(group).is_some_and(|state| state.paths.is_settling())
    }

    /// The open attempts of a group that fit.
    pub(super) fn open_keys(&self, group: Group, fits: impl Fn(&Scope, &Op) -> bool) -> Vec<OpKey> {
        let state = self.get(group);
        state.map_or_else(Vec::new, |state| state.operations.keys(group, state.epoch, fits))
    }
}

impl Index<Group> for Groups {
    type Output = GroupState;

    fn index(&self, group: Group) -> &GroupState {
        &self.states[&group]
    }
}
