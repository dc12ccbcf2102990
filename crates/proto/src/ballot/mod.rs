//! Ballots: steps that members take together and that are no collectives.
//!
//! # The problem
//!
//! Letting newcomers in, wiring a better ring, making everybody's state the same: each is a vote, and every vote meets
//! the same troubles. A voter dies, or loses its connection and does not hear the end. The coordinator is restarted
//! after it has told some of the end. A deadline passes. Others make another call instead. A kind of vote that answers
//! these by itself answers one of them wrong.
//!
//! # The intuition
//!
//! One ballot for all kinds. It has a *kind* and, within its group, a *number*; a vote carries a *wish*, which is bytes
//! that only the kind understands, and an end that was agreed on carries an *outcome*, bytes as well. All that is about
//! votes, voters and ends is written once:
//!
//! | trouble | what happens |
//! |---|---|
//! | a voter is lost | the votes are counted again without it (rule 4) |
//! | a voter's connection breaks | its vote stands; when it resumes it hears the end of what it waited in (rule 43) |
//! | a voter's deadline passes | `Expired`: the ballot is over for its whole group, and says who was waited for (rule 6) |
//! | a voter gives up alone | `TakeBack`: its vote no longer stands |
//! | a voter gives up between two turns | `TakeBack`: the ballot is over for its whole group, and says who it was |
//! | members of a group make different calls | one judge for ballots of all kinds and collectives (rules 7, 42) |
//! | the coordinator is restarted | members bring what they voted and the last end that they heard, with its outcome (rule 17) |
//! | nobody who is left has heard the outcome | the end is void for everybody, and their calls vote again by themselves |
//!
//! ```text
//!   program        session                        coordinator
//!   call --------> Vote(kind, number, wish) ----> stands, judged, counted
//!                                                 Rules::count: wait | admit | rewire | agree
//!   outcome <----- BallotEnded(number, end) <---- numbered, kept for whoever did not hear it
//! ```
//!
//! # The invariant
//!
//! Of one ballot (a group's history, a kind, a number) nobody hears two different outcomes, and nobody hears one without
//! every member's vote; also across a restart. A member has at most one vote standing. Numbers grow, and the record of
//! every epoch tells how far, so a newcomer knows which ballot it is in.
//!
//! # How to add a kind
//!
//! 1. One file here with a type that implements `Rules`: its number on the wire (never used before), what it is called,
//!    what a wish must look like, whose votes it takes (`Reach`), and what they agree on (`Rules::outcome`). The
//!    wish's and the outcome's types belong into that file, too. `dummy` is the smallest there can be; `admission`
//!    and `dummy_ring` do more than agree.
//! 2. One line in `KINDS`.
//! 3. The call itself: `Session::handle_ballot_call(now, kind, wish, deadline)`, which ends with `Done::Ballot` and the
//!    outcome, or with an error that a collective could have had.
//!
//! *Wishes and outcomes* are bounded by [`WISH_BYTES_MAX`](crate::limits::WISH_BYTES_MAX) and
//! [`OUTCOME_BYTES_MAX`](crate::limits::OUTCOME_BYTES_MAX). One outcome goes to all voters of a group. A part for each
//! voter is found in it by the voter's id: what only one has heard, nobody could tell again after a restart.
//!
//! *Turns.* A call that needs a second vote, "finished" after "begin", makes another ballot of the same kind; its wish
//! says which turn it is for, and the rules see all wishes side by side. Who was lost in between is not waited for, and
//! wishes of different turns side by side show that somebody must begin again. Whoever voted in the first turn *owes* the
//! second (`Rules::goes_on`): it belongs to the ballot right after the first, and who comes to it when that ballot is over
//! is told how it ended. A program that gives its call up in between says so, and the others stop waiting at once
//! ([decision 69](../../../../docs/decisions/0069-a-turn-that-is-owed.md)).
//!
//! *Effects* on the run are steps of `Step`, carried out by the coordinator. Rules decide and change nothing.
//!
//! # What it does not do
//!
//! It is not for what must never wait behind a collective. A ballot of the whole run is still numbered, ended and rebuilt
//! group by group: where a restart finds it ended in one group only, the other groups' members wait for that group's next
//! vote or their deadline.

pub mod admission;
#[cfg(any(test, feature = "dummy-ballot"))]
pub mod dummy;
#[cfg(any(test, feature = "dummy-ballot"))]
pub mod dummy_ring;
mod hall;
mod lobby;
pub mod optimise;
mod standing;
pub mod sync;
#[cfg(test)]
mod tests;

pub(crate) use hall::{Hall, Seats};
pub(crate) use lobby::Lobby;
pub(crate) use standing::{Ballots, Known, known};

use crate::collective::Group;
use crate::coordinator::ConnectionState;
use crate::id::PeerId;
use crate::state::Revision;
use crate::topology::Question;
use crate::wire::control::BallotKind;
use std::collections::{BTreeMap, BTreeSet};

/// Every kind of ballot.
pub(crate) const KINDS: &[&dyn Rules] = &[
    &admission::Admission,
    &sync::Sync,
    &optimise::Optimise,
    #[cfg(any(test, feature = "dummy-ballot"))]
    &dummy::Dummy,
    #[cfg(any(test, feature = "dummy-ballot"))]
    &dummy_ring::DummyRing,
];

/// The rules of a kind, if this build knows it.
pub(crate) fn rules(kind: BallotKind) -> Option<&'static dyn Rules> {
    KINDS.iter().copied().find(|rules| rules.kind() == kind)
}

/// What ballots of a kind are called, as programs know them.
pub(crate) fn name(kind: BallotKind) -> &'static str {
    rules(kind).map_or("a vote that this version does not know", Rules::name)
}

/// Whose votes a ballot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The group's members: every group for itself.
    Group,
    /// All members of all groups.
    Run,
}

/// What follows from the votes that stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Somebody has not voted, or something must happen first.
    Wait,
    /// These come into their groups, in this order. The ballot goes on with them.
    Admit(BTreeMap<Group, Vec<PeerId>>),
    /// These groups get another ring, in two steps: links first, then the epoch (rule 32). The ballot goes on; when it is
    /// counted again its rules find the ring as they want it, or refused.
    Rewire(BTreeMap<Group, Vec<PeerId>>),
    /// The solver is asked, for each of these groups. The ballot goes on; when it is counted again its rules find the
    /// answer.
    Ask(BTreeMap<Group, Question>),
    /// The ballots of these groups are over, each with its outcome.
    Agree(Vec<(Group, Vec<u8>)>),
}

/// What a group has agreed on about its shared state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) revision: Revision,
    /// Who holds it; empty if they are too many to be listed, and then everybody does.
    pub(crate) holders: BTreeSet<PeerId>,
}

impl Agreement {
    /// Whether that member took part.
    pub(crate) fn is_of(&self, peer: PeerId) -> bool {
        self.holders.is_empty() || self.holders.contains(&peer)
    }
}

/// A kind of ballot: who votes, what agreement means, what happens then. See the module's *How to add a kind*.
pub(crate) trait Rules: Sync {
    /// Its number on the wire.
    fn kind(&self) -> BallotKind;

    /// The call that votes, as programs know it.
    fn name(&self) -> &'static str;

    /// The same with what this voter asks for.
    fn call(&self, _wish: &[u8]) -> String {
        self.name().to_owned()
    }

    /// A voter's connection state.
    fn state(&self, wish: &[u8]) -> ConnectionState;

    /// The state of a member whose vote does not stand, after a ballot agreed on that: between two turns, or after one
    /// that failed.
    fn state_after(&self, _outcome: &[u8]) -> Option<ConnectionState> {
        None
    }

    /// Whether that outcome is only the first turn of a call: everybody who voted owes the next one.
    fn goes_on(&self, _outcome: &[u8]) -> bool {
        false
    }

    /// Whether that is a voter's last word. If not, its vote stands and the others wait for it all the same.
    fn is_final(&self, _wish: &[u8]) -> bool {
        true
    }

    /// Whose votes it takes.
    fn reach(&self) -> Reach;

    /// Whether that is a wish of this kind at all; if not, why. It comes from outside.
    fn check(&self, wish: &[u8]) -> Result<(), String>;

    /// What a group has agreed on about its shared state with that outcome, if it has.
    fn agreement(&self, _outcome: &[u8]) -> Option<Agreement> {
        None
    }

    /// What a group has agreed on, once everybody within reach has voted.
    fn outcome(&self, hall: &Hall<'_>, seats: &Seats<'_>) -> Vec<u8>;

    /// What follows from the votes that stand. Nothing, as long as anybody within reach has not voted, is in a
    /// collective or has no links yet.
    fn count(&self, hall: &Hall<'_>) -> Step {
        let ready = |seats: &&Seats<'_>| seats.is_unanimous() && seats.is_linked;
        let agreed: Vec<_> = match self.reach() {
            Reach::Group => hall.groups().filter(ready).collect(),
            Reach::Run if hall.groups().all(|seats| ready(&seats)) => hall.groups().collect(),
            Reach::Run => Vec::new(),
        };
        match &agreed[..] {
            [] => Step::Wait,
            agreed => {
                Step::Agree(agreed.iter().map(|seats| (seats.group, self.outcome(hall, seats))).collect())
            }
        }
    }
}
