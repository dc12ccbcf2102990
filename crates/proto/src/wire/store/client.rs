//! Between a client that is no member and one member: looking must not change the view (rule 31).

use super::mesh::Request;
use super::operation::Answer;
use super::{Blob, CallName};
use crate::limits::{STORE_KEY_BYTES_MAX, STORE_MESSAGE_BYTES_MAX, TEXT_BYTES_MAX};
use crate::wire::{InvalidMessage, Message, within};
use minicbor::{CborLen, Decode, Encode};

/// From a client.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum FromClient {
    /// Have this done.
    #[n(0)]
    Ask(#[n(0)] Request),
    /// Which keys are there? Answered with `Answer::Keys`.
    #[n(1)]
    Keys {
        /// Which call.
        #[n(0)]
        call: CallName,
        /// How they begin.
        #[n(1)]
        prefix: Blob,
        /// For how long it may take.
        #[n(2)]
        patience_ms: u64,
    },
}

/// To a client.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum ToClient {
    /// What became of a call.
    #[n(0)]
    Answered {
        /// Which call.
        #[n(0)]
        call: CallName,
        /// The answer.
        #[n(1)]
        answer: Answer,
    },
    /// A call failed, in words; whether it was done is not known.
    #[n(1)]
    Failed {
        /// Which call.
        #[n(0)]
        call: CallName,
        /// Whether its time was over.
        #[n(1)]
        timed_out: bool,
        /// Why.
        #[n(2)]
        text: String,
    },
}

impl Message for FromClient {
    const BYTES_MAX: usize = STORE_MESSAGE_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Ask(request) => request.check(),
            Self::Keys { prefix, .. } => within("prefix", prefix.len(), STORE_KEY_BYTES_MAX),
        }
    }
}

impl Message for ToClient {
    const BYTES_MAX: usize = STORE_MESSAGE_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Answered { .. } => Ok(()),
            Self::Failed { text, .. } => within("text", text.len(), 8 * TEXT_BYTES_MAX),
        }
    }
}
