//! Which members of a group are here: who has no connection, who came back and was not told to go on yet, and whether all
//! were told to wait.

use crate::ballot::Known;
use crate::collective::GroupEpoch;
use crate::id::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// A member that came back and was not told to go on yet.
#[derive(Clone, Debug, Hash)]
pub(super) struct Returning {
    /// The newest epoch that it knew when it came.
    pub(super) knew: GroupEpoch,
    /// The last ballots that it knew the end of.
    pub(super) ballots: Known,
    /// The newest epoch that it has been told since.
    pub(super) heard: GroupEpoch,
    /// Whether it has been told everything else that it missed.
    caught_up: bool,
}

/// Which members of a group are here.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Attendance {
    /// Members without a connection.
    away: BTreeSet<PeerId>,
    /// Members that came back and were not told to go on yet (rule 43).
    returning: BTreeMap<PeerId, Returning>,
    /// Members that came back, until they vote, or an epoch opens that they hear of after everything else. That they know the present
    /// one does not prove that they have heard what was decided before it: they were told that behind it.
    unproven: BTreeSet<PeerId>,
    /// Whether members were told to wait after an abort.
    waiting: bool,
}

impl Attendance {
    /// Whether nobody is away.
    pub(super) fn is_full(&self) -> bool {
        self.away.is_empty()
    }

    /// Those who are away.
    pub(super) fn away(&self) -> impl Iterator<Item = &PeerId> {
        self.away.iter()
    }

    /// A rebuild expects these.
    pub(super) fn expect(&mut self, away: BTreeSet<PeerId>) {
        self.away = away;
    }

    /// A member lost its connection.
    pub(super) fn went(&mut self, peer: PeerId) {
        self.away.insert(peer);
        self.returning.remove(&peer);
    }

    /// A member has a connection again.
    pub(super) fn came(&mut self, peer: PeerId) {
        self.away.remove(&peer);
    }

    /// These are members no more.
    pub(super) fn forget(&mut self, gone: &BTreeSet<PeerId>) {
        self.away.retain(|peer| !gone.contains(peer));
        self.returning.retain(|peer, _| !gone.contains(peer));
        self.unproven.retain(|peer| !gone.contains(peer));
    }

    /// A member is back that knows that epoch and those ballots: it is told what it missed, and then to go on.
    pub(super) fn welcome(&mut self, peer: PeerId, knew: GroupEpoch, ballots: Known) {
        self.returning.insert(peer, Returning { knew, ballots, heard: knew, caught_up: false });
        self.unproven.insert(peer);
    }

    /// Those who were not told everything that they missed.
    pub(super) fn late(&self) -> Vec<(PeerId, Returning)> {
        let late = self.returning.iter().filter(|(_, returning)| !returning.caught_up);
        late.map(|(peer, returning)| (*peer, returning.clone())).collect()
    }

    /// That epoch was told to everybody.
    pub(super) fn heard(&mut self, epoch: GroupEpoch) {
        self.returning.values_mut().for_each(|returning| returning.heard = epoch);
    }

    /// A member was told everything that it missed.
    pub(super) fn caught_up(&mut self, peer: PeerId) {
        if let Some(returning) = self.returning.get_mut(&peer) {
            returning.caught_up = true;
        }
    }

    /// Whether a member knows the group's epoch, and so may hear what is decided in it.
    pub(super) fn listens(&self, peer: PeerId) -> bool {
        self.returning.get(&peer).is_none_or(|returning| returning.caught_up)
    }

    /// A member votes in the group's epoch. One that came back does that only once it was told to go on, which is told last:
    /// so it has heard everything that was decided before.
    pub(super) fn votes(&mut self, peer: PeerId) -> bool {
        !self.returning.contains_key(&peer) && self.unproven.remove(&peer)
    }

    /// Whether a member that knows the group's epoch has heard everything that was decided before it.
    pub(super) fn hears_in_order(&self, peer: PeerId) -> bool {
        !self.unproven.contains(&peer)
    }

    /// After such an abort all wait until they are told to go on, or a new epoch begins.
    pub(super) fn hold(&mut self) {
        self.waiting = true;
    }

    /// A new epoch begins, which nobody waits in.
    pub(super) fn begin_epoch(&mut self) {
        self.waiting = false;
        self.unproven.retain(|peer| self.returning.contains_key(peer));
    }

    /// Nothing stands in the way any more: who of the roster is to be told so.
    pub(super) fn release(&mut self, roster: &[PeerId]) -> Vec<PeerId> {
        let returned = std::mem::take(&mut self.returning).into_keys().collect();
        if std::mem::take(&mut self.waiting) { roster.to_vec() } else { returned }
    }
}
