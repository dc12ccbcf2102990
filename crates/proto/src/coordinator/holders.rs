//! Who holds what a group has agreed on last, and when that may be forgotten (rule 25).
//!
//! How far a group's state has come outlives its members, so that nobody begins below it: that is the *floor*. It ends with
//! the training, and a training ends when whoever is left of it says so. Three things look like that and are not:
//!
//! - A goodbye of somebody that means to come back, or does not know: a loop that reconnects, a session that fences itself,
//!   a process that registers anew, an object that is dropped while its program fails.
//! - A goodbye of somebody that never held what it says goodbye to: it was let in and has not synced yet, or stands apart.
//! - The silence of the last ones.
//!
//! So the floor is forgotten only if the last ones all said goodbye for good, and one of them held it
//! ([decision 89](../../../../docs/decisions/0089-a-goodbye-for-good.md)).

use crate::id::PeerId;
use crate::wire::control::LossReason;
use std::collections::BTreeSet;

/// Which members of a group hold its floor. All who took part in what set it do; kept are those who did not, because as a
/// rule there are none.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Holders {
    /// Members who came since, or stood apart.
    without: BTreeSet<PeerId>,
    /// Members who said goodbye for good.
    leaving: BTreeSet<PeerId>,
}

impl Holders {
    /// Everybody took part.
    pub(super) fn agreed_by_all(&mut self) {
        self.without.clear();
    }

    /// Those of `roster` took part whom `took_part` tells.
    pub(super) fn agreed_by(&mut self, roster: &[PeerId], took_part: impl Fn(PeerId) -> bool) {
        self.without = roster.iter().copied().filter(|peer| !took_part(*peer)).collect();
    }

    /// A member goes, and its training is over.
    pub(super) fn leaves_for_good(&mut self, peer: PeerId) {
        self.leaving.insert(peer);
    }

    /// The next epoch begins: who comes holds nothing yet.
    pub(super) fn next_epoch(&mut self, joined: &[PeerId], left: &[(PeerId, LossReason)]) {
        for (peer, _) in left {
            self.without.remove(peer);
            self.leaving.remove(peer);
        }
        self.without.extend(joined);
    }

    /// Whether the training is over, if those are the last ones.
    pub(super) fn is_over(&self, last: &[(PeerId, LossReason)]) -> bool {
        let all_leave = last.iter().all(|(peer, _)| self.leaving.contains(peer));
        all_leave && last.iter().any(|(peer, _)| !self.without.contains(peer))
    }
}
