//! What the call at hand has led to, and is done before it returns.
//!
//! Losing a peer aborts, opens epochs and counts votes; counting votes opens epochs and ends ballots. None of these is
//! done in the middle of something else, because each must find everything in order. So it is put on the agenda, and
//! whoever put it there goes on.

use crate::id::PeerId;
use crate::wire::control::LossReason;
use std::collections::BTreeSet;

/// One thing that is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chore {
    /// These are out of the run.
    Remove(Vec<(PeerId, LossReason)>),
    /// Somebody voted, or what votes wait for has changed.
    CountVotes,
    /// Some groups may have to be told how large the run is.
    TellWorld,
    /// Find out whether these peers take dials.
    Knock(BTreeSet<PeerId>),
}

/// What is to be done before the call at hand returns.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Agenda {
    doomed: Vec<(PeerId, LossReason)>,
    votes: bool,
    world: bool,
    doors: BTreeSet<PeerId>,
}

impl Agenda {
    pub(super) fn remove(&mut self, peer: PeerId, reason: LossReason) {
        self.doomed.push((peer, reason));
    }

    /// Whether that peer is out already, though what follows from it was not done yet.
    pub(super) fn is_doomed(&self, peer: PeerId) -> bool {
        self.doomed.iter().any(|(doomed, _)| *doomed == peer)
    }

    pub(super) fn count_votes(&mut self) {
        self.votes = true;
    }

    pub(super) fn tell_world(&mut self) {
        self.world = true;
    }

    pub(super) fn knock(&mut self, peers: BTreeSet<PeerId>) {
        self.doors.extend(peers);
    }

    /// The next thing to do: losses first, then the votes, because a vote counts without those who are lost.
    pub(super) fn next(&mut self) -> Option<Chore> {
        if !self.doomed.is_empty() {
            return Some(Chore::Remove(std::mem::take(&mut self.doomed)));
        }
        if std::mem::take(&mut self.votes) {
            return Some(Chore::CountVotes);
        }
        if std::mem::take(&mut self.world) {
            return Some(Chore::TellWorld);
        }
        (!self.doors.is_empty()).then(|| Chore::Knock(std::mem::take(&mut self.doors)))
    }
}
