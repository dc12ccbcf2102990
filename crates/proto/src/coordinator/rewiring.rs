//! Another ring for the same members, in two steps (rule 32).
//!
//! An epoch that a loss or a newcomer makes opens at once, because the one before it cannot go on. A better ring can
//! wait. So it is *prepared*: everybody is told the epoch that may come, makes sure of its link in it, and answers.
//! When all have answered and no collective is in flight the epoch *opens* like every other; ranks stay, and nothing is
//! aborted. If somebody cannot make its link the old ring stays, and the rules that asked for the new one see which
//! it was. If anybody comes or goes meanwhile, what was prepared is dropped, and the ballot is counted again.
//!
//! Nothing of this is remembered across a restart: the votes are, and rules that find the ring as they want it agree.

use super::epochs::Epochs;
use super::groups::Phase;
use crate::collective::Group;
use crate::id::PeerId;
use crate::time::Instant;
use crate::wire::control::{BallotKind, ToPeer};
use std::collections::{BTreeMap, BTreeSet};

/// A ring that is being prepared.
#[derive(Clone, Debug, Hash)]
pub(super) struct Rewiring {
    /// The ballot that asked for it. If that ends without it, it is not opened.
    kind: BallotKind,
    ring: Vec<PeerId>,
    /// Tells the answers to this one from those to one before it.
    number: u64,
    /// Who has not answered.
    unprepared: BTreeSet<PeerId>,
}

impl Epochs<'_> {
    /// Begins to prepare a ring. One that is being prepared already is not disturbed.
    pub(super) fn rewire(&mut self, kind: BallotKind, group: Group, ring: Vec<PeerId>) {
        let Some(state) = self.groups.get_mut(group).filter(|state| matches!(state.phase, Phase::Serving))
        else {
            return;
        };
        let members: BTreeSet<_> = state.roster.iter().copied().collect();
        let wanted: BTreeSet<_> = ring.iter().copied().collect();
        assert!(ring.len() == members.len() && wanted == members, "a ring has every member once");
        if !state.paths.takes(&ring, &state.survey) {
            state.refused_ring = Some(ring);
            self.office.agenda.count_votes();
            return;
        }
        let number = self.office.outbox.number();
        state.phase = Phase::Rewiring(Rewiring { kind, ring, number, unprepared: members });
        let roster = self.groups[group].roster.clone();
        self.tell_prepare(group, &roster);
    }

    /// Tells the epoch that may come to those of `peers` who have not answered.
    pub(super) fn tell_prepare(&mut self, group: Group, peers: &[PeerId]) {
        let Some(state) = self.groups.get(group) else { return };
        let Phase::Rewiring(Rewiring { ring, number, unprepared, .. }) = &state.phase else { return };
        let ranks: BTreeMap<_, _> = state.roster.iter().zip(0u32..).collect();
        let ring = ring.iter().filter_map(|peer| ranks.get(peer).copied()).collect();
        let (number, peers): (_, Vec<_>) =
            (*number, peers.iter().filter(|peer| unprepared.contains(peer)).copied().collect());
        let mut record = self.record(group, Vec::new(), Vec::new());
        (record.epoch, record.ring) = (record.epoch + 1, ring);
        self.office.tell_all(&peers, ToPeer::Prepare { record, number });
    }

    /// A member is sure of its link, or is not.
    pub(super) fn prepared(&mut self, from: PeerId, group: Group, number: u64, well: bool) {
        if !self.office.peers.is_member(from, group) {
            return self
                .office
                .kick(from, &format!("prepared links of group {group}, of which it is no member"));
        }
        let Some(state) = self.groups.get_mut(group) else { return };
        match &mut state.phase {
            Phase::Rewiring(rewiring) if rewiring.number == number => {
                rewiring.unprepared.remove(&from);
                if !well {
                    let ring = std::mem::take(&mut rewiring.ring);
                    state.survey.note_refused(from, &ring, &state.ring);
                    state.refused_ring = Some(ring);
                    state.phase = Phase::Serving;
                }
                self.office.agenda.count_votes();
            }
            Phase::Serving | Phase::Rewiring(_) | Phase::Rebuilding(_) => self.office.count_stale(),
        }
    }

    /// Opens the epochs that everybody is prepared for and nothing stands in the way of.
    pub(super) fn open_prepared(&mut self, now: Instant) {
        let rewiring = self.groups.iter().filter(|(_, state)| matches!(state.phase, Phase::Rewiring(_)));
        for group in rewiring.map(|(group, _)| group).collect::<Vec<_>>() {
            let Some(state) = self.groups.get_mut(group) else { continue };
            let Phase::Rewiring(Rewiring { kind, ring, unprepared, .. }) = &state.phase else { continue };
            if state.ballots.votes(*kind).is_none() {
                state.phase = Phase::Serving; // Nobody waits for it any more.
                continue;
            }
            if !unprepared.is_empty() || !state.operations.is_quiet() {
                continue;
            }
            let ring = ring.clone();
            state.phase = Phase::Serving;
            if !state.paths.takes(&ring, &state.survey) {
                state.refused_ring = Some(ring); // A link of it broke meanwhile.
                continue;
            }
            state.ring = ring;
            let roster = state.roster.clone();
            self.open_epoch(now, group, roster, Vec::new(), Vec::new());
        }
    }
}
