//! The few facts that outlive a coordinator.
//!
//! Peers can tell a coordinator that knows nothing almost everything again (rule 17). What they cannot tell is that there
//! was nobody: a coordinator without a memory has to wait for members of before who may never have been (rule 41), and
//! counts its reigns by what those who come have obeyed. So a coordinator that has somewhere to keep them writes these
//! down *before* anybody hears of them: whatever a peer can know, the next reign knows it happened.
//!
//! The invariant: no peer ever obeyed a term, or was in an epoch, above what is written.

use super::run::Run;
use crate::collective::{Group, GroupEpoch, RunEpoch};
use crate::id::PeerId;
use crate::limits::COUNT_MAX;
use crate::time::Instant;
use crate::wire::control::Term;
use minicbor::{Decode, Encode};

/// What is written down of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Facts {
    /// The last reign.
    #[n(0)]
    pub term: Term,
    /// The run's epoch.
    #[n(1)]
    pub run_epoch: RunEpoch,
    /// No group had a later epoch.
    #[n(2)]
    pub floor: GroupEpoch,
    /// Who was in, group by group. Their names follow from their keys (rule 39).
    #[n(3)]
    pub groups: Vec<GroupFacts>,
}

/// What is written down of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct GroupFacts {
    /// Its number.
    #[n(0)]
    pub group: Group,
    /// Its epoch.
    #[n(1)]
    pub epoch: GroupEpoch,
    /// Its members, by rank.
    #[n(2)]
    pub roster: Vec<PeerId>,
    /// The same in the order of the ring.
    #[n(3)]
    pub ring: Vec<PeerId>,
}

/// What was kept cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what was kept of a run cannot be read: {0}")]
pub struct FactsError(String);

impl Facts {
    /// As it is kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to a vector cannot fail.
        let _ = minicbor::encode(self, &mut bytes);
        bytes
    }

    /// Reads what was kept.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FactsError> {
        minicbor::decode(bytes).map_err(|error| FactsError(error.to_string()))
    }
}

/// Tells apart what was written down at different times.
pub type FactsStamp = (Term, RunEpoch, u64);

impl Run {
    /// Changes whenever [`Self::facts`] do. Cheap: it is asked for with every message.
    pub fn facts_stamp(&self) -> FactsStamp {
        let epochs = self.groups.values().fold(0, |sum: u64, state| sum.wrapping_add(state.epoch));
        (self.office.term, self.groups.run_epoch(), epochs)
    }

    /// What to write down before anything that is asked for is done.
    pub fn facts(&self) -> Facts {
        let groups = self.groups.iter().map(|(group, state)| GroupFacts {
            group,
            epoch: state.epoch,
            roster: state.roster.clone(),
            ring: state.ring.clone(),
        });
        // Whoever was in before and has not come yet must not be forgotten by the reign after this one.
        let away = self.inherited.iter().filter(|heir| self.groups.get(heir.group).is_none()).cloned();
        let groups: Vec<_> = groups.chain(away).collect();
        let floor = groups.iter().map(|group| group.epoch).fold(self.groups.floor(), GroupEpoch::max);
        Facts { term: self.office.term, run_epoch: self.groups.run_epoch(), floor, groups }
    }

    /// Begins the reign after the one that wrote these facts. To be called before anything else. Whoever was a member then
    /// is waited for until `until`; if nobody was, newcomers are admitted at once.
    pub fn succeed(&mut self, facts: &Facts, until: Instant) {
        self.office.term = facts.term.saturating_add(1).min(COUNT_MAX);
        self.groups.go_on_from(facts.run_epoch, facts.floor);
        if facts.groups.iter().any(|group| !group.roster.is_empty()) {
            self.inherited.clone_from(&facts.groups);
            self.expect_old_members(until);
        }
    }

    /// Reigns under a term that was given from outside, and is higher than every one before it (rule 19). To be called
    /// after [`Self::succeed`], and before anything else.
    pub fn reign_under(&mut self, term: Term) {
        self.office.term = self.office.term.max(term.min(COUNT_MAX));
    }
}
