//! What a peer says to the coordinator.

use super::annals::{self, Incident};
use super::session::{Registration, Resume};
use super::{BallotId, ProcessName, Refusal, Term, text};
use crate::collective::{Fingerprint, Group, GroupEpoch, OpKey};
use crate::id::PeerId;
use crate::limits::{CONTROL_BYTES_MAX, WISH_BYTES_MAX};
use crate::wire::{InvalidMessage, Message, unknown, within};
use minicbor::{CborLen, Decode, Encode};

/// What a link carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct LinkSpeed {
    /// The end that receives.
    #[n(0)]
    pub to: PeerId,
    /// Bytes per second.
    #[n(1)]
    pub rate: u64,
    /// There and back, in microseconds.
    #[n(2)]
    pub round_trip_us: u32,
}

/// From a peer to the coordinator.
#[expect(clippy::large_enum_variant, reason = "messages are handled one at a time and never kept in numbers")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum ToCoordinator {
    /// A new peer wants to take part. The number counts the connections of its session, so that a stream that
    /// was given up cannot speak for the one that replaced it (rule 18); then the highest term it has obeyed.
    #[n(0)]
    Register(#[n(0)] Registration, #[n(1)] u32, #[n(2)] Term),
    /// A known peer is back, perhaps at a coordinator that knows nothing.
    #[n(1)]
    Resume(#[n(0)] Resume),
    /// The peer's link to its successor in the ring of that epoch is up.
    #[n(3)]
    Connected {
        /// The group.
        #[n(0)]
        group: Group,
        /// The epoch.
        #[n(1)]
        epoch: GroupEpoch,
    },
    /// A data link broke or could not be made. It reports and condemns nobody (rule 20).
    #[n(4)]
    LinkBroken {
        /// The group.
        #[n(0)]
        group: Group,
        /// The epoch whose ring uses it.
        #[n(1)]
        epoch: GroupEpoch,
        /// The end that sends.
        #[n(2)]
        from: PeerId,
        /// The end that receives.
        #[n(3)]
        to: PeerId,
        /// Whether it could not even be made, or the other host has acknowledged nothing for long: it counts as broken
        /// at once (rule 44).
        #[n(4)]
        dialling: bool,
        /// What the system said.
        #[n(5)]
        error: String,
    },
    /// The peer's program made this call; its bytes are on their way already.
    #[n(5)]
    Initiate {
        /// The attempt.
        #[n(0)]
        key: OpKey,
        /// The call.
        #[n(1)]
        fingerprint: Fingerprint,
        /// What is left of its deadline.
        #[n(2)]
        timeout_ms: u64,
    },
    /// The peer holds the result. Having said so it returns only with a verdict (rule 5).
    #[n(6)]
    Complete {
        /// The attempt.
        #[n(0)]
        key: OpKey,
    },
    /// The peer gives the attempt up, before having said Complete.
    #[n(7)]
    Refuse {
        /// The attempt.
        #[n(0)]
        key: OpKey,
        /// Why.
        #[cbor(n(1), decode_with = "unknown::vague")]
        reason: Refusal,
    },
    /// The verdict has arrived; nobody needs to keep it for this peer (rule 18).
    #[n(8)]
    Acknowledge {
        /// The attempt.
        #[n(0)]
        key: OpKey,
    },
    /// Goodbye. Not a failure.
    #[n(9)]
    Leave {
        /// Whether the peer's training is over: what its group had reached need not outlive the last one who says so. Not
        /// so if it may come back, or does not know; and of older software, which does not say.
        #[cbor(n(0), default)]
        for_good: bool,
    },
    /// How does the run stand? Answered to anybody who holds the run secret, also without registering.
    #[n(10)]
    AskStatus,
    /// The peer has heard of a higher term, and refuses lower ones from now on. What it told in its resume is
    /// heard only then: before, it might still obey another coordinator (rule 17).
    #[n(12)]
    Promise {
        /// The term.
        #[n(0)]
        term: Term,
    },
    /// How a dial ended that the coordinator had asked for with `Redial`.
    #[n(13)]
    Redialled {
        /// The group.
        #[n(0)]
        group: Group,
        /// Who was dialled.
        #[n(1)]
        to: PeerId,
        /// What the system said, if it did not go well.
        #[n(2)]
        error: Option<String>,
    },
    /// The peer's link in an epoch that may come is sure, or cannot be made: the answer to `Prepare`.
    #[n(17)]
    Prepared {
        /// The group.
        #[n(0)]
        group: Group,
        /// Which question.
        #[n(1)]
        number: u64,
        /// What the system said, if it did not go well.
        #[n(2)]
        error: Option<String>,
    },
    /// What the peer's link to another member of that group carried in a collective of late (rule 32).
    #[n(24)]
    LinkSpeed(#[n(0)] Group, #[n(1)] LinkSpeed),
    /// What the peer remembers of what happened to the run, for a coordinator that may have forgotten it. Said after
    /// each resume; answered with what the peer lacks.
    #[n(26)]
    Remembered(#[n(0)] Vec<Incident>),
    /// The peer votes in a ballot, and waits for its end.
    #[n(14)]
    Vote {
        /// Which.
        #[n(0)]
        ballot: BallotId,
        /// What it asks for, in the kind's own words.
        #[n(1)]
        #[cbor(with = "minicbor::bytes")]
        wish: Vec<u8>,
    },
    /// The peer no longer waits in that ballot: its vote does not stand.
    #[n(15)]
    TakeBack {
        /// Which.
        #[n(0)]
        ballot: BallotId,
    },
    /// The deadline of the peer's vote passed: the ballot is over for its whole group (rule 6).
    #[n(16)]
    Expired {
        /// Which.
        #[n(0)]
        ballot: BallotId,
    },
    /// An agent, which is no peer, watches this process of its own (rule 20a).
    #[n(18)]
    Watch {
        /// Which.
        #[n(0)]
        process: ProcessName,
    },
    /// A process that this agent watches has ended.
    #[n(19)]
    Exited {
        /// Which.
        #[n(0)]
        process: ProcessName,
    },
}

impl Message for ToCoordinator {
    const BYTES_MAX: usize = CONTROL_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Register(registration, ..) => registration.info.check(),
            Self::Resume(resume) => resume.check(),
            Self::LinkBroken { error, .. }
            | Self::Redialled { error: Some(error), .. }
            | Self::Prepared { error: Some(error), .. } => text("error", error),
            Self::Initiate { key, fingerprint, .. } => {
                key.scope.check()?;
                fingerprint.check()
            }
            Self::Complete { key } | Self::Acknowledge { key } => key.scope.check(),
            Self::Refuse { key, reason } => {
                key.scope.check()?;
                match reason {
                    Refusal::Link { error, .. } => text("error", error),
                    _ => Ok(()),
                }
            }
            Self::Remembered(incidents) => annals::check(incidents),
            Self::Vote { wish, .. } => within("wish", wish.len(), WISH_BYTES_MAX),
            Self::TakeBack { .. }
            | Self::Expired { .. }
            | Self::Promise { .. }
            | Self::LinkSpeed(..)
            | Self::Connected { .. }
            | Self::Redialled { error: None, .. }
            | Self::Prepared { error: None, .. }
            | Self::Leave { .. }
            | Self::Watch { .. }
            | Self::Exited { .. }
            | Self::AskStatus => Ok(()),
        }
    }
}
