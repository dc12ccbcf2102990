//! A call does not end: what does each member on its way know?
//!
//! Questions and accounts are small, so that they also fit a datagram: they must arrive when the streams are what broke.

use super::operation::Key;
use super::{CallName, MemberId};
use crate::limits::{STORE_ACCOUNT_LINKS_MAX, STORE_ASKED_KEY_BYTES_MAX, STORE_DATAGRAM_BYTES_MAX};
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
    /// Its key, unless it is too long to be asked about, or it is about all keys.
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
    /// Whether it has the call and may not answer yet.
    #[n(6)]
    pub holds: bool,
    /// How long its lease lasts; none if it has none.
    #[n(7)]
    pub lease_ms: Option<u64>,
    /// A view is being prepared that moves the key.
    #[n(8)]
    pub moving: bool,
    /// Changes of its own that replicas have not acknowledged.
    #[n(9)]
    pub unacknowledged: u64,
    /// To whom it would pass on what goes to the key's owner; nobody if it is the owner, or knows no way.
    #[n(10)]
    pub next: Option<MemberId>,
    /// For how long it has had no stream to whoever decides on views; none if it has one.
    #[n(11)]
    pub registrar_away_ms: Option<u64>,
    /// Its links, those that matter first.
    #[n(12)]
    pub links: Vec<LinkAccount>,
}

/// How one link of a member is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct LinkAccount {
    /// With whom.
    #[n(0)]
    pub to: MemberId,
    /// Whether it carries, and whether it ever did.
    #[n(1)]
    pub carries: bool,
    /// See `carries`.
    #[n(2)]
    pub carried: bool,
    /// For how long that has been so.
    #[n(3)]
    pub since_ms: u64,
    /// Messages on it that were not acknowledged.
    #[n(4)]
    pub pending: u64,
    /// For how long nothing of that was; none if nothing is pending.
    #[n(5)]
    pub silent_ms: Option<u64>,
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

    /// Its link with that member, if it tells of it.
    pub fn link(&self, to: MemberId) -> Option<&LinkAccount> {
        self.links.iter().find(|link| link.to == to)
    }
}

impl Message for Datagram {
    const BYTES_MAX: usize = STORE_DATAGRAM_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Inquire(inquiry) => inquiry.check(),
            Self::Tell(account) => account.check(),
        }
    }
}
