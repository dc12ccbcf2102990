//! What travels in the store.
//!
//! Four conversations, each on streams of its own kind:
//!
//! - between two members, [`mesh`]: frames that are numbered and acknowledged hop by hop, around whatever is passed on;
//! - between a member and whoever decides on views, [`views`];
//! - between a client that is no member and one member, [`client`];
//! - questions about a call that does not end, [`account`]; they also travel as datagrams.
//!
//! Names that all of them use are here: members, clients, calls, views.

pub mod account;
pub mod client;
pub mod mesh;
pub mod operation;
pub mod views;

use super::{InvalidMessage, printable, within};
use crate::id::PeerId;
use crate::limits::{COUNT_MAX, NAME_BYTES_MAX, STORE_MEMBERS_MAX};
use minicbor::bytes::ByteSlice;
use minicbor::decode::Error as DecodeError;
use minicbor::encode::{Error as EncodeError, Write};
use minicbor::{CborLen, Decode, Decoder, Encode, Encoder};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// One start of one member: random, so a member that comes back after it was given up is another one, and nothing that
/// was said to the first is taken for something said to the second.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct MemberId(#[n(0)] pub u64);

/// One client of the store: a handle in a program, or a command. It keeps its name when its member comes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct ClientId(#[n(0)] pub u64);

/// One call of one client. Asked again it is the same call, and done once (rule 30).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct CallName {
    /// Whose.
    #[n(0)]
    pub client: ClientId,
    /// Its running number.
    #[n(1)]
    pub number: u64,
}

/// Bytes that are shared, not copied.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blob(pub Arc<Vec<u8>>);

/// A member as all others know it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct StoreMember {
    /// This start of it.
    #[n(0)]
    pub id: MemberId,
    /// Who it proves to be in TLS (rule 39).
    #[n(1)]
    pub peer: PeerId,
    /// Its own calls' client.
    #[n(2)]
    pub client: ClientId,
    /// Its number among the members: the rank of a static store, the order of joining otherwise.
    #[n(3)]
    pub rank: u32,
    /// Where it listens.
    #[n(4)]
    pub address: SocketAddr,
    /// A number on its host that refuses connects (rule 22); zero if there is none.
    #[n(5)]
    pub closed_port: u16,
    /// A name for people.
    #[n(6)]
    pub name: String,
    /// Which host it runs on: owner and replica are on two of them where there are two.
    #[n(7)]
    pub host: u64,
    /// The store ends for all when this member is gone without a goodbye.
    #[n(8)]
    pub ends_store: bool,
}

/// The members of the store at one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct View {
    /// Grows with every view of one founder; what carries another one is not obeyed.
    #[n(0)]
    pub epoch: u64,
    /// Whoever decided on the first view. Views of two founders have nothing to do with each other.
    #[n(1)]
    pub founder: u64,
    /// Sorted by id, each once.
    #[n(2)]
    pub members: Vec<StoreMember>,
}

impl View {
    /// Where a member is in the list.
    pub fn place(&self, id: MemberId) -> Option<usize> {
        self.members.binary_search_by_key(&id, |member| member.id).ok()
    }

    /// A member.
    pub fn member(&self, id: MemberId) -> Option<&StoreMember> {
        self.place(id).map(|place| &self.members[place])
    }

    /// Holds counts and order against what is allowed.
    pub(crate) fn check(&self) -> Result<(), InvalidMessage> {
        within("members", self.members.len(), STORE_MEMBERS_MAX)?;
        within("epoch", self.epoch as usize, COUNT_MAX as usize)?;
        self.members.iter().try_for_each(StoreMember::check)?;
        if self.members.windows(2).any(|pair| pair[0].id >= pair[1].id) {
            let value = "out of order, or twice".to_owned();
            return Err(InvalidMessage::Meaningless { field: "members", value });
        }
        Ok(())
    }
}

impl StoreMember {
    /// Holds lengths against what is allowed.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("name", self.name.len(), NAME_BYTES_MAX)?;
        printable("name", &self.name)
    }

    /// How a person is told of it: rank, name and address.
    pub fn words(&self) -> String {
        format!("rank {} ({}, {})", self.rank, self.name, self.address)
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(bytes))
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl std::ops::Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<C> Encode<C> for Blob {
    fn encode<W: Write>(&self, encoder: &mut Encoder<W>, _: &mut C) -> Result<(), EncodeError<W::Error>> {
        encoder.bytes(self)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Blob {
    fn decode(decoder: &mut Decoder<'b>, _: &mut C) -> Result<Self, DecodeError> {
        decoder.bytes().map(Self::from)
    }
}

impl<C> CborLen<C> for Blob {
    fn cbor_len(&self, context: &mut C) -> usize {
        <&ByteSlice>::from(&**self).cbor_len(context)
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len() {
            0..=32 => write!(f, "{:?}", String::from_utf8_lossy(self)),
            length => write!(f, "{:?}.. {length} bytes", String::from_utf8_lossy(&self[..16])),
        }
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{:x}", self.0)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{:x}", self.0)
    }
}
