//! Attempts at a collective: votes, verdicts, refusals.

use super::epoch::LossReason;
use crate::collective::{Fingerprint, OpKey};
use crate::id::PeerId;
use crate::wire::unknown::{self, Vague};
use minicbor::{CborLen, Decode, Encode};

/// Commit or abort.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Verdict {
    /// Every member of the roster in the scope holds the result.
    #[n(0)]
    Commit {
        /// How many newcomers a vote would let in: the same number for every member (rule 10).
        #[n(0)]
        pending: u32,
    },
    /// Nobody keeps a result.
    #[n(1)]
    Abort(#[n(0)] AbortReason),
}

/// Why an attempt was aborted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum AbortReason {
    /// Members went, or lost their control connection. Next: a new epoch, or `Proceed`.
    #[n(0)]
    PeersLost(#[cbor(n(0), decode_with = "unknown::vague_pairs")] Vec<(PeerId, LossReason)>),
    /// A data link broke between two members. Next: `Proceed`, or a new epoch with another ring.
    #[n(1)]
    LinkBroken {
        /// The end that sends.
        #[n(0)]
        from: PeerId,
        /// The end that receives.
        #[n(1)]
        to: PeerId,
        /// What the system said.
        #[n(2)]
        error: String,
    },
    /// The first deadline passed; the call is over for all (rule 6).
    #[n(2)]
    Timeout(#[n(0)] Vec<Waiting>),
    /// Calls differ. The deviating members' calls are over; the others' retries wait for them (rule 7).
    #[n(3)]
    Mismatch {
        /// Who deviates.
        #[n(0)]
        deviating: Vec<PeerId>,
        /// What they called, in words.
        #[n(1)]
        theirs: String,
        /// What the others called, in words.
        #[n(2)]
        common: String,
    },
    /// A member gave its call up (Ctrl-C, a dropped handle).
    #[n(4)]
    Cancelled {
        /// Who.
        #[n(0)]
        by: PeerId,
    },
    /// The attempt does not count, for nobody's fault: the epoch ended before it was decided, the coordinator
    /// was restarted before all had completed (rule 17), or a stray frame disturbed it. The call goes on with
    /// the next attempt, whether it retries or not; who has not made the call yet has missed nothing.
    #[n(5)]
    Void,
    /// A link that is known to be broken broke again, and nobody else takes part who could pass things on (rule
    /// 16). The call is over for all: a retry would not differ from what failed.
    #[n(6)]
    NoPath {
        /// The end that sends.
        #[n(0)]
        from: PeerId,
        /// The end that receives.
        #[n(1)]
        to: PeerId,
    },
}

/// Somebody that an attempt waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Waiting {
    /// Who.
    #[n(0)]
    pub peer: PeerId,
    /// Its name.
    #[n(1)]
    pub name: String,
    /// Its health, in a word.
    #[n(2)]
    pub health: String,
    /// What it last called, in words.
    #[n(3)]
    pub last_call: String,
    /// How long ago.
    #[n(4)]
    pub age_ms: u64,
}

/// Why a peer gives an attempt up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum Refusal {
    /// Its deadline passed.
    #[n(0)]
    Deadline,
    /// Its program gave up.
    #[n(1)]
    Cancelled,
    /// A data frame carried another call's fingerprint; the decider will see it in the votes.
    #[n(2)]
    Mismatch {
        /// Whose frame.
        #[n(0)]
        peer: PeerId,
    },
    /// A data link of this attempt broke.
    #[n(3)]
    Link {
        /// The end that sends.
        #[n(0)]
        from: PeerId,
        /// The end that receives.
        #[n(1)]
        to: PeerId,
        /// What the system said.
        #[n(2)]
        error: String,
    },
}

/// One peer's knowledge of one (scope, tag).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct TagReport {
    /// The last verdicts it learned, oldest first; a few, because others may lag by that many.
    #[n(0)]
    pub learned: Vec<(OpKey, Verdict)>,
    /// The attempt it is in.
    #[cbor(n(1), decode_with = "unknown::whole")]
    pub open: Option<OpenVote>,
}

/// One peer's vote in one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct OpenVote {
    /// The attempt.
    #[n(0)]
    pub key: OpKey,
    /// The call.
    #[n(1)]
    pub fingerprint: Fingerprint,
    /// What is left of its deadline.
    #[n(2)]
    pub timeout_ms: u64,
    /// Whether it said Complete.
    #[n(3)]
    pub complete: bool,
}

/// Whatever the reason, the attempt is given up.
impl Vague for Refusal {
    const UNKNOWN: Self = Self::Cancelled;
}
