//! What the coordinator says to a peer.

use super::annals::{self, Incident};
use super::{BallotEnd, BallotId, EpochRecord, KickReason, Term, Verdict};
use crate::collective::{Group, GroupEpoch, OpKey, RunEpoch};
use crate::id::PeerId;
use crate::limits::CONTROL_BYTES_MAX;
use crate::wire::{InvalidMessage, Message, unknown};
use minicbor::{CborLen, Decode, Encode};
use std::net::SocketAddr;

/// From the coordinator to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum ToPeer {
    /// The peer is known and waits to be admitted.
    #[n(0)]
    Registered {
        /// Whose word this is.
        #[n(0)]
        term: Term,
    },
    /// The peer's resume was taken down.
    #[n(1)]
    Resumed {
        /// Whose word this is.
        #[n(0)]
        term: Term,
    },
    /// A new agreed membership of the peer's group.
    #[n(2)]
    Epoch(#[n(0)] EpochRecord),
    /// The one answer to an attempt; written once, never changed (rule 4).
    #[n(4)]
    Verdict {
        /// The attempt.
        #[n(0)]
        key: OpKey,
        /// The answer.
        #[n(1)]
        verdict: Verdict,
    },
    /// What stood in the way of that epoch's collectives is settled, with the same roster: go on.
    #[n(5)]
    Proceed {
        /// The group.
        #[n(0)]
        group: Group,
        /// The epoch.
        #[n(1)]
        epoch: GroupEpoch,
    },
    /// The peer is out.
    #[n(7)]
    Kicked {
        /// Why.
        #[cbor(n(0), decode_with = "unknown::vague")]
        reason: KickReason,
        /// The same in words, with the thing, the value and the remedy.
        #[n(1)]
        text: String,
        /// Whose word this is. A coordinator of the past puts nobody out (rule 17).
        #[n(2)]
        term: Term,
    },
    /// How the run stands, as JSON text for people and tools.
    #[n(8)]
    Status(#[n(0)] String),
    /// A call cannot be had in this epoch, because a member has no room for another tag or scope. Nothing was begun for
    /// it: no verdict follows, and whoever else makes the call is told the same.
    #[n(11)]
    Denied {
        /// The attempt that is not.
        #[n(0)]
        key: OpKey,
        /// Who has no room.
        #[n(1)]
        peer: PeerId,
        /// How many different tags and scopes it uses.
        #[n(2)]
        tags: u32,
        /// How many members those scopes list.
        #[n(3)]
        listed: u32,
    },
    /// Another group has grown or shrunk. That is no epoch of this peer's group (rule 1); its program sees it when its
    /// next call ends (rule 3).
    #[n(10)]
    World {
        /// The run's epoch now.
        #[n(0)]
        run_epoch: RunEpoch,
        /// Members of all groups together.
        #[n(1)]
        global_world_size: u32,
    },
    /// A link of the peer's counts as broken: does it carry again? Dial, say `Redialled`, change nothing (rule 16).
    #[n(12)]
    Redial {
        /// The group.
        #[n(0)]
        group: Group,
        /// Whom to dial.
        #[n(1)]
        to: PeerId,
        /// Where it is.
        #[n(2)]
        address: SocketAddr,
    },
    /// An epoch that may come, with another ring: make sure of its links, change nothing else, say `Prepared` (rule 32).
    #[n(14)]
    Prepare {
        /// What it would be.
        #[n(0)]
        record: EpochRecord,
        /// To be returned with the answer.
        #[n(1)]
        number: u64,
    },
    /// A link of the group's ring carries much less than when the ring was made. Nothing follows from it but news.
    #[n(15)]
    LinkSlowed {
        /// The group.
        #[n(0)]
        group: Group,
        /// The end that sends.
        #[n(1)]
        from: PeerId,
        /// The end that receives.
        #[n(2)]
        to: PeerId,
        /// Bytes per second when the ring was made.
        #[n(3)]
        before: u64,
        /// Bytes per second now.
        #[n(4)]
        rate: u64,
    },
    /// Who made a call last, long after the first. Told before the verdict that commits it; nothing follows from it.
    #[n(19)]
    CalledLast {
        /// The attempt.
        #[n(0)]
        key: OpKey,
        /// Who.
        #[n(1)]
        peer: PeerId,
        /// How long after the first, as the coordinator heard it.
        #[n(2)]
        behind_ms: u64,
    },
    /// What happened to the run, for the peer to remember (see [`crate::annals`]). Nothing follows from it.
    #[n(18)]
    Annals(#[n(0)] Vec<Incident>),
    /// How a ballot ended that the peer may have voted in.
    #[n(13)]
    BallotEnded {
        /// Which.
        #[n(0)]
        ballot: BallotId,
        /// How.
        #[n(1)]
        end: BallotEnd,
        /// The run's epoch now.
        #[n(2)]
        run_epoch: RunEpoch,
        /// Members of all groups together.
        #[n(3)]
        global_world_size: u32,
    },
}

impl Message for ToPeer {
    const BYTES_MAX: usize = CONTROL_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Epoch(record) | Self::Prepare { record, .. } => record.check(),
            Self::BallotEnded { end, .. } => end.check(),
            Self::Annals(incidents) => annals::check(incidents),
            Self::Verdict { key, .. } | Self::Denied { key, .. } | Self::CalledLast { key, .. } => {
                key.scope.check()
            }
            _ => Ok(()),
        }
    }
}
