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

use super::attendance::Returning;
use super::epochs::Epochs;
use crate::ballot::Known;
use crate::collective::{Group, GroupEpoch};
use crate::id::PeerId;
use crate::wire::control::ToPeer;

impl Epochs<'_> {
    /// A member is back: it hears how attempts ended in epochs that it knows.
    pub(super) fn welcome(&mut self, peer: PeerId, group: Group, knew: GroupEpoch, ballots: Known) {
        let Some(state) = self.groups.get_mut(group) else { return };
        state.attendance.welcome(peer, knew, ballots);
        self.tell_missed(peer, group, |epoch| epoch <= knew);
    }

    /// Those who came back hear the rest: the newest epoch, what was decided since, and how ballots ended.
    pub(super) fn catch_up(&mut self, group: Group) {
        let Some(state) = self.groups.get(group).filter(|state| state.is_served()) else { return };
        let epoch = state.epoch;
        let late = state.attendance.late();
        let behind: Vec<_> =
            late.iter().filter(|(_, returning)| returning.heard < epoch).map(|(peer, _)| *peer).collect();
        if !behind.is_empty() {
            let record = self.record(group, Vec::new(), Vec::new());
            self.office.tell_all(&behind, ToPeer::Epoch(record));
            self.heard_epoch(group);
        }
        for (peer, Returning { knew, ballots, .. }) in late {
            self.tell_missed(peer, group, |epoch| epoch > knew);
            self.calls().tell_missed_ends(peer, group, &ballots);
            if let Some(state) = self.groups.get_mut(group) {
                state.attendance.caught_up(peer);
            }
        }
    }

    /// The group's epoch was told to everybody in it.
    pub(super) fn heard_epoch(&mut self, group: Group) {
        let Some(state) = self.groups.get_mut(group) else { return };
        state.attendance.heard(state.epoch);
    }

    /// Nothing stands in the way any more: whoever waits goes on.
    pub(super) fn release(&mut self, group: Group) {
        self.catch_up(group);
        let Some(state) = self.groups.get_mut(group).filter(|state| state.is_settled()) else { return };
        let epoch = state.epoch;
        let told = state.attendance.release(&state.roster);
        self.office.tell_all(&told, ToPeer::Proceed { group, epoch });
    }

    /// The verdicts in such epochs that a peer has not learned yet, the oldest first.
    fn tell_missed(&mut self, peer: PeerId, group: Group, fits: impl Fn(GroupEpoch) -> bool) {
        let Some(state) = self.groups.get(group) else { return };
        for (key, verdict) in state.operations.unlearned(peer, fits) {
            self.office.tell(peer, ToPeer::Verdict { key, verdict });
        }
    }
}
