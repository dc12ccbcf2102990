//! What a collective is, before anybody moves a byte.
//!
//! A collective is a transaction that many peers perform and one decider judges. It is named by an [`OpKey`];
//! two calls are the same call if their [`Fingerprint`]s are equal. Plans (who sends which bytes to whom, in
//! which order) are data; the executor in the runtime joins plan, bytes and arithmetic.

pub mod around;
mod attempt;
mod broken_link;
pub mod circuit;
pub mod detour;
mod fingerprint;
pub mod frame;
pub mod links;
pub mod plan;
pub mod ring;
mod sections;
pub mod stream;
pub mod striping;
mod types;
mod whole;

pub use attempt::Attempt;
pub use broken_link::BrokenLink;
pub use fingerprint::{Fingerprint, IllegalCall, Layout, OpKind};
pub use sections::Section;
pub use types::{DataType, IllegalReduction, Quantisation, ReduceOp, UnknownName, legal};
pub use whole::whole;

use crate::id::PeerId;
use crate::limits::SCOPE_MEMBERS_MAX;
use crate::wire::{InvalidMessage, within};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;

/// A group's number; collectives and state sync involve the peers of one group only.
pub type Group = u32;
/// The number of one agreed roster, ring and decider of a group.
pub type GroupEpoch = u64;
/// The number of one agreed membership of the whole run.
pub type RunEpoch = u64;
/// The name of one of several concurrent collectives.
pub type Tag = u64;
/// The running number within (group epoch, scope, tag).
pub type Seq = u64;

/// Whom a collective involves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub enum Scope {
    /// Every member of the group.
    #[n(0)]
    Whole,
    /// These members, sorted, at least one (torch's subgroups).
    #[n(1)]
    Members(#[n(0)] Vec<PeerId>),
}

impl Scope {
    /// Whether `peer`, a member of the group, takes part.
    pub fn involves(&self, peer: PeerId) -> bool {
        match self {
            Self::Whole => true,
            Self::Members(members) => members.binary_search(&peer).is_ok(),
        }
    }

    /// How many members it lists.
    pub fn listed(&self) -> usize {
        match self {
            Self::Whole => 0,
            Self::Members(members) => members.len(),
        }
    }

    /// Holds the list against its limit and its order.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        let Self::Members(members) = self else { return Ok(()) };
        within("scope members", members.len(), SCOPE_MEMBERS_MAX)?;
        if members.is_empty() || !members.is_sorted_by(|a, b| a < b) {
            let value = "an empty or unsorted list, or one with doubles".to_owned();
            return Err(InvalidMessage::Meaningless { field: "scope", value });
        }
        Ok(())
    }
}

/// The name of one attempt at one collective (rule 2).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct OpKey {
    /// The group.
    #[n(0)]
    pub group: Group,
    /// The agreed membership it runs under.
    #[n(1)]
    pub epoch: GroupEpoch,
    /// Whom it involves.
    #[n(2)]
    pub scope: Scope,
    /// Its name.
    #[n(3)]
    pub tag: Tag,
    /// Its number under that name; every verdict consumes one.
    #[n(4)]
    pub seq: Seq,
}

impl fmt::Display for OpKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} epoch {} tag {} seq {}", self.group, self.epoch, self.tag, self.seq)?;
        match &self.scope {
            Scope::Whole => Ok(()),
            Scope::Members(members) => write!(f, " among {} members", members.len()),
        }
    }
}
