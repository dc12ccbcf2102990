//! How many tags and scopes the members of a group use in one epoch.
//!
//! What a member remembers of them goes into its resume, so it is bounded for each member (rule 40). It is counted for
//! the members, not for the group: parts of a large group that each use few tags are no trouble to anybody. A call for
//! which some member has no room is refused, and nobody is punished for it.

use crate::collective::Scope;
use crate::id::PeerId;
use crate::limits::{SCOPES_MEMBERS_MAX, TAGS_MAX};
use std::collections::BTreeMap;

/// What one member uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Used {
    /// Different (scope, tag).
    pub(super) tags: usize,
    /// Members that their scopes list.
    pub(super) listed: usize,
}

/// What the members of a group use.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Usage {
    /// Tags of the whole group: everybody's.
    whole: usize,
    /// Of parts of it.
    parts: BTreeMap<PeerId, Used>,
}

impl Usage {
    /// What a member uses.
    pub(super) fn of(&self, peer: PeerId) -> Used {
        let part = self.parts.get(&peer).copied().unwrap_or_default();
        Used { tags: self.whole + part.tags, ..part }
    }

    /// The first member that has no room for one more tag of that scope. `caller` answers for the whole group where all
    /// use the same.
    pub(super) fn without_room(&self, caller: PeerId, scope: &Scope) -> Option<PeerId> {
        match scope {
            Scope::Whole => {
                let fullest = self.parts.iter().max_by_key(|(_, used)| used.tags).map(|(peer, _)| *peer);
                let fullest = fullest.unwrap_or(caller);
                (self.of(fullest).tags >= TAGS_MAX).then_some(fullest)
            }
            Scope::Members(listed) => listed.iter().copied().find(|peer| {
                let used = self.of(*peer);
                used.tags >= TAGS_MAX || used.listed + listed.len() > SCOPES_MEMBERS_MAX
            }),
        }
    }

    /// One more tag of that scope is used.
    pub(super) fn add(&mut self, scope: &Scope) {
        match scope {
            Scope::Whole => self.whole += 1,
            Scope::Members(listed) => {
                for peer in listed {
                    let used = self.parts.entry(*peer).or_default();
                    used.tags += 1;
                    used.listed += listed.len();
                }
            }
        }
    }

    pub(super) fn footprint(&self) -> usize {
        self.parts.len()
    }
}
