//! Epochs: one agreed membership of one group, and why somebody is no longer in it.

use super::ballot::{BallotKind, Tally};
use crate::collective::{Group, GroupEpoch, RunEpoch};
use crate::id::PeerId;
use crate::limits::{ANCESTORS_MAX, BALLOT_KINDS_MAX, BROKEN_LINKS_MAX, MEMBERS_MAX, ROSTER_BYTES_MAX};
use crate::wire::membership::{DeathReason, MemberInfo};
use crate::wire::unknown::{self, Vague};
use crate::wire::{InvalidMessage, within};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;

/// One agreed membership of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct EpochRecord {
    /// The run's epoch when it was made.
    #[n(0)]
    pub run_epoch: RunEpoch,
    /// The group.
    #[n(1)]
    pub group: Group,
    /// The group's epoch.
    #[n(2)]
    pub epoch: GroupEpoch,
    /// The roster, in the order of ranks.
    #[n(3)]
    pub roster: Vec<MemberInfo>,
    /// The ring, as ranks.
    #[n(4)]
    pub ring: Vec<u32>,
    /// What gives the verdicts.
    #[n(5)]
    pub decider: Decider,
    /// Members of all groups together.
    #[n(6)]
    pub global_world_size: u32,
    /// Who came since the group's last epoch.
    #[n(7)]
    pub joined: Vec<PeerId>,
    /// Who went since the group's last epoch, and why.
    #[cbor(n(8), decode_with = "unknown::vague_pairs")]
    pub left: Vec<(PeerId, LossReason)>,
    /// The group's history, named after the session of its first member ([`SessionId::founder`](super::SessionId::founder)): two groups of one
    /// number that began apart, or went apart since, are told apart by it, even if one peer founded both (rules 41, 45).
    #[n(10)]
    pub founder: PeerId,
    /// Links that cannot be used, as ranks of the end that sends and the end that receives (rule 16). The ring
    /// avoids them; what goes straight between members must go around them.
    #[n(11)]
    #[cbor(default)]
    pub broken: Vec<(u32, u32)>,
    /// How many members, the first in the order of ranks, were in a roster that gave a commit of the whole group
    /// when this was written: they were there first, and newcomers follow them (rule 42).
    #[n(12)]
    #[cbor(default)]
    pub incumbents: u32,
    /// The histories that this one goes on from, the latest last (rule 41).
    #[n(13)]
    #[cbor(default)]
    pub ancestors: Vec<Ancestor>,
    /// How far the group's ballots had come, by kind.
    #[n(14)]
    #[cbor(default)]
    pub ballots: Vec<(BallotKind, Tally)>,
}

/// A history that another one goes on from, because a coordinator was rebuilt without some who may know more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Ancestor {
    /// Its name.
    #[n(0)]
    pub founder: PeerId,
    /// The last of its epochs that belongs to both.
    #[n(1)]
    pub epoch: GroupEpoch,
}

impl Ancestor {
    /// Whether that record is of the part that belongs to both.
    pub fn covers(&self, record: &EpochRecord) -> bool {
        self.founder == record.founder && record.epoch <= self.epoch
    }
}

impl EpochRecord {
    /// Holds roster and ring against their limits and each other.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("roster", self.roster.len(), MEMBERS_MAX)?;
        within("joined", self.joined.len(), MEMBERS_MAX)?;
        within("left", self.left.len(), MEMBERS_MAX)?;
        self.roster.iter().try_for_each(MemberInfo::check)?;
        within("bytes of the roster", self.roster.iter().map(minicbor::len).sum(), ROSTER_BYTES_MAX)?;
        within("broken links", self.broken.len(), BROKEN_LINKS_MAX)?;
        within("kinds of ballots", self.ballots.len(), BALLOT_KINDS_MAX)?;
        within("incumbents", self.incumbents as usize, self.roster.len())?;
        within("ancestors", self.ancestors.len(), ANCESTORS_MAX)?;
        let members = self.roster.len();
        let is_rank = |rank: u32| (rank as usize) < members;
        if let Some((from, to)) = self.broken.iter().find(|(from, to)| !is_rank(*from) || !is_rank(*to)) {
            let value = format!("{from} -> {to} among {members} members");
            return Err(InvalidMessage::Meaningless { field: "broken links", value });
        }
        let mut places = vec![false; self.roster.len()];
        let fits = self.ring.len() == places.len()
            && self.ring.iter().all(|rank| {
                places.get_mut(*rank as usize).is_some_and(|seen| !std::mem::replace(seen, true))
            });
        if fits {
            Ok(())
        } else {
            let value = format!("{:?} for {} members", self.ring, self.roster.len());
            Err(InvalidMessage::Meaningless { field: "ring", value })
        }
    }

    /// The links that cannot be used, by their ends.
    pub fn broken_links(&self) -> impl Iterator<Item = (PeerId, PeerId)> {
        let end = |rank: u32| self.roster.get(rank as usize).map(|info| info.id);
        self.broken.iter().filter_map(move |(from, to)| Some((end(*from)?, end(*to)?)))
    }

    /// Whether the ring leads from the one to the other.
    pub fn is_ring_link(&self, from: PeerId, to: PeerId) -> bool {
        let peer = |at: usize| self.roster.get(*self.ring.get(at)? as usize).map(|info| info.id);
        let next = |at: usize| peer((at + 1) % self.ring.len());
        (0..self.ring.len()).any(|at| peer(at) == Some(from) && next(at) == Some(to))
    }

    /// Whether both are of one history: of the same, or the one of what the other's goes on from.
    pub fn is_akin(&self, other: &Self) -> bool {
        let descends = |newer: &Self, older: &Self| newer.ancestors.iter().any(|before| before.covers(older));
        self.group == other.group
            && (self.founder == other.founder || descends(self, other) || descends(other, self))
    }

    /// How far the group's ballots of that kind had come.
    pub fn tally(&self, kind: BallotKind) -> Tally {
        self.ballots.iter().find(|(known, _)| *known == kind).map_or_else(Tally::default, |(_, tally)| *tally)
    }

    /// Who follows a member in the ring; none if it is alone.
    pub fn successor_of(&self, peer: PeerId) -> Option<&MemberInfo> {
        let rank = self.rank_of(peer)?;
        let place = self.ring.iter().position(|at| *at as usize == rank)?;
        let next = self.ring[(place + 1) % self.ring.len()];
        self.roster.get(next as usize).filter(|info| info.id != peer)
    }

    /// The rank of a member.
    pub fn rank_of(&self, peer: PeerId) -> Option<usize> {
        self.roster.iter().position(|info| info.id == peer)
    }
}

/// What gives a group's verdicts in one epoch (rule 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum Decider {
    /// The coordinator counts the votes.
    #[n(0)]
    Coordinator,
}

/// Why a member is no longer in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum LossReason {
    /// It said goodbye.
    #[n(0)]
    Left,
    /// Its control connection is closed; it may still come back.
    #[n(1)]
    Disconnected,
    /// Its control connection closed, its port refuses, and nothing came from it since (rule 20b).
    #[n(2)]
    Killed,
    /// It did not resume within its grace, and the health plane does not call it alive (rule 20c).
    #[n(3)]
    NotResumed,
    /// The health plane declared it dead (rules 20d, 20e).
    #[n(4)]
    Dead(#[n(0)] DeathReason),
    /// It broke the protocol (rule 20f).
    #[n(5)]
    Kicked,
    /// No ring can reach it (rules 16, 20g).
    #[n(6)]
    Unreachable,
    /// It is new, and its first call differs from that of those who were there before it (rules 20h, 42).
    #[n(7)]
    Deviated,
    /// A reason that only a later version knows. It is gone all the same.
    #[n(8)]
    NotKnown,
}

impl Vague for LossReason {
    const UNKNOWN: Self = Self::NotKnown;
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("it said goodbye"),
            Self::Disconnected => f.write_str("its control connection closed"),
            Self::Killed => f.write_str("its connection closed and its port refuses"),
            Self::NotResumed => f.write_str("it did not come back within its grace"),
            Self::Dead(reason) => write!(f, "{reason}"),
            Self::Kicked => f.write_str("it broke the protocol"),
            Self::Unreachable => f.write_str("no ring can reach it"),
            Self::Deviated => {
                f.write_str("it is new, and its first call differs from that of those who were there before")
            }
            Self::NotKnown => f.write_str("for a reason that this version does not know"),
        }
    }
}
