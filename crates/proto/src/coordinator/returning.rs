//! What a member that came back hears, and in which order (rule 43).
//!
//! It was away while attempts were decided and epochs opened. Its calls must end as the others' did, so it hears
//! everything that it would have heard: verdicts in epochs that it knows, then the newest epoch, then the verdicts
//! that fell since, then how ballots ended. A connection may break after any of these, and at every
//! such point what the member knows must be something that a member can know: never a verdict in an epoch of which
//! it has not heard, never an epoch before the verdicts in those that it knew. Only then is it told to go on.
//!
//! A group may be between two epochs, with a roster that no epoch has told yet because no ring was found for it.
//! Then there is nothing newer to tell: whoever came back waits until there is.

use super::run::Run;
use crate::ballot::Known;
use crate::collective::{Group, GroupEpoch};
use crate::id::PeerId;
use crate::wire::control::ToPeer;

/// A member that came back and was not told to go on yet.
#[derive(Clone, Debug, Hash)]
pub(super) struct Returning {
    /// The newest epoch that it knew when it came.
    knew: GroupEpoch,
    /// The last ballots that it knew the end of.
    ballots: Known,
    /// The newest epoch that it has been told since.
    heard: GroupEpoch,
    /// Whether it has been told everything else that it missed.
    caught_up: bool,
}

impl Returning {
    pub(super) fn new(knew: GroupEpoch, ballots: Known) -> Self {
        Self { knew, ballots, heard: knew, caught_up: false }
    }
}

impl Run {
    /// A member is back: it hears how attempts ended in epochs that it knows.
    pub(super) fn welcome(&mut self, peer: PeerId, group: Group, knew: GroupEpoch, ballots: Known) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        state.returning.insert(peer, Returning::new(knew, ballots));
        self.tell_missed(peer, group, |epoch| epoch <= knew);
    }

    /// Those who came back hear the rest: the newest epoch, what was decided since, and how ballots ended.
    pub(super) fn catch_up(&mut self, group: Group) {
        let Some(state) = self.groups.get(&group).filter(|state| state.is_served()) else { return };
        let epoch = state.epoch;
        let late: Vec<_> = state
            .returning
            .iter()
            .filter(|(_, returning)| !returning.caught_up)
            .map(|(peer, returning)| (*peer, returning.clone()))
            .collect();
        let behind: Vec<_> =
            late.iter().filter(|(_, returning)| returning.heard < epoch).map(|(peer, _)| *peer).collect();
        if !behind.is_empty() {
            let record = self.record(group, Vec::new(), Vec::new());
            self.office.tell_all(&behind, ToPeer::Epoch(record));
            self.heard_epoch(group);
        }
        for (peer, Returning { knew, ballots, .. }) in late {
            self.tell_missed(peer, group, |epoch| epoch > knew);
            self.tell_missed_ends(peer, group, &ballots);
            let returning = self.groups.get_mut(&group).and_then(|state| state.returning.get_mut(&peer));
            if let Some(returning) = returning {
                returning.caught_up = true;
            }
        }
    }

    /// The group's epoch was told to everybody in it.
    pub(super) fn heard_epoch(&mut self, group: Group) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        for returning in state.returning.values_mut() {
            returning.heard = state.epoch;
        }
    }

    /// Nothing stands in the way any more: whoever waits goes on.
    pub(super) fn release(&mut self, group: Group) {
        self.catch_up(group);
        let Some(state) = self.groups.get_mut(&group).filter(|state| state.is_settled()) else { return };
        let epoch = state.epoch;
        let returned: Vec<_> = std::mem::take(&mut state.returning).into_keys().collect();
        let told = if state.take_waiting() { state.roster.clone() } else { returned };
        self.office.tell_all(&told, ToPeer::Proceed { group, epoch });
    }

    /// The verdicts in such epochs that a peer has not learned yet, the oldest first.
    fn tell_missed(&mut self, peer: PeerId, group: Group, fits: impl Fn(GroupEpoch) -> bool) {
        let Some(state) = self.groups.get(&group) else { return };
        for (key, verdict) in state.operations.unlearned(peer, fits) {
            self.office.tell(peer, ToPeer::Verdict { key, verdict });
        }
    }

    /// Those of `peers` who know the group's epoch, and so may hear what is decided in it.
    pub(super) fn listening(&self, group: Group, mut peers: Vec<PeerId>) -> Vec<PeerId> {
        if let Some(state) = self.groups.get(&group) {
            peers.retain(|peer| state.returning.get(peer).is_none_or(|returning| returning.caught_up));
        }
        peers
    }
}
