//! Ballots: votes of members on what is no collective. What they are is said in [`crate::ballot`].

use super::Waiting;
use crate::limits::{NAMED_MAX, OUTCOME_BYTES_MAX, TEXT_BYTES_MAX, WISH_BYTES_MAX};
use crate::wire::{InvalidMessage, within};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;

/// What a ballot is about, by its number: kinds that a build does not know pass through it, and are refused by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct BallotKind(#[n(0)] pub u32);

/// One ballot of a group. Those of a kind are numbered from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct BallotId {
    /// What it is about.
    #[n(0)]
    pub kind: BallotKind,
    /// Which of the group's ballots of that kind: for a voter, one more than the last that it knows the end of.
    #[n(1)]
    pub number: u64,
}

impl fmt::Display for BallotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ballot {} of kind {}", self.number, self.kind.0)
    }
}

/// How a ballot ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum BallotEnd {
    /// Everybody voted, and this is what they agreed on: the same bytes for all voters of the group.
    #[n(0)]
    Agreed(
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        Vec<u8>,
    ),
    /// The first deadline of a voter passed; it is over for the whole group (rule 6). Who had not voted is named.
    #[n(1)]
    TimedOut(#[n(0)] Vec<Waiting>),
    /// Everybody agreed, and nobody who is left knows on what: a coordinator was restarted, and those who had heard it
    /// are gone. Whoever waits in it votes again.
    #[n(2)]
    Void,
    /// For this voter alone: others of its group make another call (rule 7). The ballot itself is not over.
    #[n(3)]
    Mismatch {
        /// What they do, in words.
        #[n(0)]
        others: String,
    },
    /// For this voter alone: the coordinator does not know such ballots.
    #[n(4)]
    Unknown,
    /// A member gave its call up between two turns, so the second one can have no agreement: it is over for the whole
    /// group.
    #[n(5)]
    GivenUp(#[n(0)] Waiting),
}

impl BallotEnd {
    /// Holds what it carries against the limits.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Agreed(outcome) => within("outcome", outcome.len(), OUTCOME_BYTES_MAX),
            Self::TimedOut(waiting) => within("peers that were waited for", waiting.len(), NAMED_MAX),
            Self::Mismatch { others } => within("others", others.len(), TEXT_BYTES_MAX),
            Self::Void | Self::Unknown | Self::GivenUp(_) => Ok(()),
        }
    }
}

/// How far a group's ballots of one kind have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Tally {
    /// The last one that ended.
    #[n(0)]
    pub ended: u64,
    /// The last one that was agreed on; those after it timed out.
    #[n(1)]
    pub agreed: u64,
}

impl Tally {
    /// Knowing what either knows.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { ended: self.ended.max(other.ended), agreed: self.agreed.max(other.agreed) }
    }
}

/// What one member knows of its group's ballots of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct BallotReport {
    /// Which kind.
    #[n(0)]
    pub kind: BallotKind,
    /// The last ones that it knows the end of.
    #[n(1)]
    pub tally: Tally,
    /// What the last agreement was, if it heard that.
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub outcome: Option<Vec<u8>>,
    /// What it asks for, if it waits in the ballot after those.
    #[n(3)]
    #[cbor(with = "minicbor::bytes")]
    pub wish: Option<Vec<u8>>,
}

impl BallotReport {
    /// Holds wish and outcome against the limits.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("outcome", self.outcome.as_ref().map_or(0, Vec::len), OUTCOME_BYTES_MAX)?;
        within("wish", self.wish.as_ref().map_or(0, Vec::len), WISH_BYTES_MAX)
    }
}
