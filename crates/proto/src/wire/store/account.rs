//! A call does not end: what does each member on its way know?
//!
//! Questions and accounts are small, so that they also fit a datagram: they must arrive when the streams are what broke.

use super::operation::Key;
use super::{CallName, MemberId};
use crate::limits::{PACKET_BYTES_MAX, STORE_ACCOUNT_LINKS_MAX, STORE_ASKED_KEY_BYTES_MAX};
use crate::wire::{InvalidMessage, Message, unknown, within};
use minicbor::{CborLen, Decode, Encode};

/// What do you know of this call?
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Inquiry {
    /// Repeated by the account.
    #[n(0)]
    pub number: u64,
    /// The call.
    #[n(1)]
    pub call: CallName,
    /// Its key, unless it is too long to be asked about.
    #[cbor(n(2), decode_with = "unknown::whole")]
    pub key: Option<Key>,
    /// Who asks.
    #[n(3)]
    pub from: MemberId,
}

/// What a member knows of a call, and how it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Account {
    /// The inquiry's number.
    #[n(0)]
    pub number: u64,
    /// Who tells it.
    #[n(1)]
    pub from: MemberId,
    /// The view that it is in; none while it is in none.
    #[n(2)]
    pub epoch: Option<u64>,
    /// Whether it owns the key in that view.
    #[n(3)]
    pub owns: bool,
    /// Whether the key has a value, or the queue an element; as far as it was asked about the key.
    #[n(4)]
    pub present: Option<bool>,
    /// For how long the call has waited with it.
    #[n(5)]
    pub waits_ms: Option<u64>,
    /// How long its lease lasts; none if it has none.
    #[n(6)]
    pub lease_ms: Option<u64>,
    /// A view is being prepared that moves the key.
    #[n(7)]
    pub moving: bool,
    /// Changes of this key's owner that its replica has not acknowledged.
    #[n(8)]
    pub unacknowledged: u64,
    /// Its links: to whom, whether it carries, and for how long that has been so.
    #[n(9)]
    pub links: Vec<(MemberId, bool, u64)>,
}

/// Either, in a datagram.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Datagram {
    /// A question.
    #[n(0)]
    Inquire(#[n(0)] Inquiry),
    /// An answer.
    #[n(1)]
    Tell(#[n(0)] Account),
}

impl Inquiry {
    pub(crate) fn check(&self) -> Result<(), InvalidMessage> {
        let length = self.key.as_ref().map_or(0, |key| key.name.len());
        within("key", length, STORE_ASKED_KEY_BYTES_MAX)
    }
}

impl Account {
    pub(crate) fn check(&self) -> Result<(), InvalidMessage> {
        within("links", self.links.len(), STORE_ACCOUNT_LINKS_MAX)
    }
}

impl Message for Datagram {
    const BYTES_MAX: usize = PACKET_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Inquire(inquiry) => inquiry.check(),
            Self::Tell(account) => account.check(),
        }
    }
}
