//! What a collective is, before anybody moves a byte.
//!
//! A collective is a transaction that many peers perform and one decider judges. It is named by an [`OpKey`];
//! two calls are the same call if their [`Fingerprint`]s are equal. Plans (who sends which bytes to whom, in
//! which order) are data; the executor in the runtime joins plan, bytes and arithmetic.

pub mod frame;
pub mod ring;

use crate::id::PeerId;
use crate::limits::{SCOPE_MEMBERS_MAX, TENSORS_MAX};
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
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

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum OpKind {
    /// Nothing but waiting for each other.
    #[n(0)]
    Barrier,
    /// Every member ends with the reduction over all contributions.
    #[n(1)]
    AllReduce,
    /// Several tensors reduced in one transaction (rule 9).
    #[n(2)]
    AllReduceMany,
}

/// What the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum DataType {
    /// 32-bit floating point.
    #[n(0)]
    F32,
    /// 64-bit signed integer.
    #[n(1)]
    I64,
}

impl DataType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::I64 => 8,
        }
    }
}

/// How contributions are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; integers wrap around.
    #[n(0)]
    Sum,
    /// The sum divided by the number of contributors; integers round towards zero.
    #[n(1)]
    Avg,
}

/// What must be equal in the calls of all members (rule 7).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
pub struct Fingerprint {
    /// The operation.
    #[n(0)]
    pub kind: OpKind,
    /// The elements' type.
    #[n(1)]
    pub data_type: DataType,
    /// Elements of each tensor.
    #[n(2)]
    pub counts: Vec<u64>,
    /// How they are joined.
    #[n(3)]
    pub op: ReduceOp,
    /// Whether the call retries by itself (rule 8).
    #[n(4)]
    pub retry: bool,
    /// Fewest members that the caller accepts.
    #[n(5)]
    pub min_world: u32,
}

impl Fingerprint {
    /// Holds the number of tensors against its limit.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("tensors", self.counts.len(), TENSORS_MAX)
    }

    /// A short form for data frames: 64 bits over the encoding (FNV-1a), enough to notice a mistake in a
    /// program. Whether two calls really agree is judged by the decider on the whole fingerprint.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        minicbor::encode(self, &mut bytes).expect("a Vec takes every byte");
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, data_type, counts, op, retry, min_world } = self;
        // Thousands of tensors are possible; a person needs to see the first ones and how many there are.
        let shown = &counts[..counts.len().min(8)];
        let more = counts.len() - shown.len();
        write!(f, "{kind:?}({data_type:?}{shown:?}")?;
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        write!(f, ", {op:?}, retry={retry}, min_world={min_world})")
    }
}
