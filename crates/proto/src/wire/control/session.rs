//! Sessions: who a peer is, how it comes back, and why it is out.

use super::attempt::TagReport;
use super::ballot::BallotReport;
use super::epoch::EpochRecord;
use super::witness::Witness;
use crate::collective::{Group, GroupEpoch};
use crate::id::PeerId;
use crate::limits::{BALLOT_KINDS_MAX, LEARNED_MAX, OPEN_TENSORS_MAX, TAGS_MAX};
use crate::state::Revision;
use crate::wire::membership::MemberInfo;
use crate::wire::unknown::Vague;
use crate::wire::{InvalidMessage, within};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;

/// Number of one coordinator's reign.
pub type Term = u64;

/// A peer's proof that it is the one that registered: 96 random bits of its process's own choosing, and the number of
/// the `connect` (rule 45). So whoever connects again is known to be the same process in a later session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct SessionId(#[cbor(with = "minicbor::bytes")] pub [u8; 16]);

impl SessionId {
    fn parts(self) -> ([u8; 12], u32) {
        let [token @ .., a, b, c, d] = self.0;
        (token, u32::from_be_bytes([a, b, c, d]))
    }

    /// The next session of the same process.
    #[must_use]
    pub fn next(self) -> Self {
        let (token, number) = self.parts();
        let mut next = self;
        next.0[..12].copy_from_slice(&token);
        next.0[12..].copy_from_slice(&number.wrapping_add(1).to_be_bytes());
        next
    }

    /// The name of a history that this session of a peer founds over that connection of its: the peer's id with both
    /// numbers mixed in. A connection leads to one coordinator, so no two coordinators give the same name. The random
    /// part of a session is a proof and is told to nobody.
    pub fn founder(self, peer: PeerId, connection: u32) -> PeerId {
        let mut name = *peer.as_bytes();
        let numbers = connection.to_be_bytes().into_iter().chain(self.0[12..].iter().copied());
        name[8..].iter_mut().zip(numbers).for_each(|(byte, number)| *byte ^= number);
        PeerId::from_bytes(name)
    }

    /// Whether this is a later session of the process that `earlier` was a session of. Numbers may wrap.
    pub fn succeeds(self, earlier: Self) -> bool {
        let ((token, number), (before, last)) = (self.parts(), earlier.parts());
        token == before && (1..1 << 31).contains(&number.wrapping_sub(last))
    }
}

/// Who a new peer is and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Registration {
    /// Its id, name and one port.
    #[n(0)]
    pub info: MemberInfo,
    /// Its group.
    #[n(1)]
    pub group: Group,
    /// Proof for later.
    #[n(2)]
    pub session: SessionId,
    /// Members that its group must have before `connect` returns.
    #[n(3)]
    pub min_world: u32,
    /// Whether its data links are encrypted; one run has one setting (rule 34).
    #[n(4)]
    pub encryption: Encryption,
    /// Who is to be believed about the end of this peer's process (rule 20a); none unless an agent started it.
    #[n(5)]
    pub witness: Option<Witness>,
}

/// Whether the data links of a run are encrypted once both ends have proved themselves (rule 34). Votes and
/// verdicts always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Encryption {
    /// TLS to the last byte: the default.
    #[default]
    #[n(0)]
    On,
    /// Asked for: the ends prove themselves in a TLS handshake, then tensors travel in the clear.
    #[n(1)]
    Off,
}

impl Encryption {
    /// The one that it is not.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::On => Self::Off,
            Self::Off => Self::On,
        }
    }
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// All that a coordinator needs to know of a peer to go on with it (rule 17).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Resume {
    /// As registered.
    #[n(0)]
    pub registration: Registration,
    /// Counts the resumes of this session, so that an old stream cannot speak for a new one (rule 18).
    #[n(1)]
    pub generation: u32,
    /// The highest term this peer has obeyed; lower ones it refuses.
    #[n(2)]
    pub term: Term,
    /// The agreed membership as this peer knows it.
    #[n(3)]
    pub record: EpochRecord,
    /// What it voted and learned, per scope and tag.
    #[n(4)]
    pub tags: Vec<TagReport>,
    /// What it knows of its group's ballots, and the vote of its own that stands: one entry for each kind.
    #[n(8)]
    #[cbor(default)]
    pub ballots: Vec<BallotReport>,
    /// Of epochs before this one it may have forgotten how attempts ended.
    #[n(7)]
    pub remembers_from: GroupEpoch,
    /// The last revision of its group's shared state that this peer took part in agreeing on, in this session: by a step that
    /// was committed, or by a sync.
    #[n(9)]
    pub revision: Option<Revision>,
    /// It was being told what it had missed when its last connection broke: of epochs from this one on it may lack
    /// verdicts, though its record is of a later one. None if it lacks none of epochs before its record's.
    #[n(10)]
    pub behind_from: Option<GroupEpoch>,
}

impl Resume {
    /// Holds the record and what is told of tags against their limits.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        self.registration.info.check()?;
        self.record.check()?;
        within("kinds of ballots", self.ballots.len(), BALLOT_KINDS_MAX)?;
        self.ballots.iter().try_for_each(BallotReport::check)?;
        within("tags", self.tags.len(), TAGS_MAX)?;
        let opens = || self.tags.iter().filter_map(|tag| tag.open.as_ref());
        let tensors = opens().map(|open| open.fingerprint.weight()).sum();
        within("tensors in flight", tensors, OPEN_TENSORS_MAX)?;
        self.tags.iter().try_for_each(|tag| {
            within("learned verdicts", tag.learned.len(), LEARNED_MAX + 1)?;
            tag.learned.iter().try_for_each(|(key, _)| key.scope.check())?;
            tag.open.iter().try_for_each(|open| {
                open.key.scope.check()?;
                open.fingerprint.check()
            })
        })
    }
}

/// Why a peer is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum KickReason {
    /// A message that is not legal in its state.
    #[n(0)]
    Breach,
    /// Another process uses this `PeerId`.
    #[n(1)]
    Duplicate,
    /// It was evicted meanwhile; the text says why.
    #[n(2)]
    Evicted,
    /// A limit of the coordinator.
    #[n(3)]
    Limit,
    /// The run that it belongs to was resumed without it.
    #[n(4)]
    Superseded,
    /// It wants its data links encrypted and the run does not, or the other way round (rule 34).
    #[n(5)]
    Encryption,
    /// A reason that only a later version knows; the text says it.
    #[n(6)]
    NotKnown,
}

impl Vague for KickReason {
    const UNKNOWN: Self = Self::NotKnown;
}
