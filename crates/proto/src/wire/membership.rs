//! The health plane's messages.
//!
//! A [`Packet`] is one datagram's content: at most one message between two members ([`Body`]) and any number
//! of [`Record`]s about members, which ride along until everybody has heard them. The sender is not in the
//! packet: the seal around it proves who sent it.
//!
//! Datagrams know no hello, so nobody has agreed on a version: what a newer member says besides is skipped, message by
//! message and record by record, and counts as lost on the way.

use super::{InvalidMessage, Message, printable, unknown, within};
use crate::id::PeerId;
use crate::limits::{ACCUSERS_MAX, META_BYTES_MAX, NAME_BYTES_MAX, PACKET_BYTES_MAX, PACKET_RECORDS_MAX};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// One datagram's content.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub struct Packet {
    /// The message between these two members; none in pure gossip.
    #[cbor(n(0), decode_with = "unknown::absent")]
    pub body: Option<Body>,
    /// News about members.
    #[cbor(n(1), decode_with = "unknown::left_out")]
    pub records: Vec<Record>,
}

/// A message from one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum Body {
    /// Are you there?
    #[n(0)]
    Ping {
        /// Echoed by the answer.
        #[n(0)]
        probe: u64,
        /// The sender joins and asks for the whole table.
        #[n(1)]
        wants_table: bool,
    },
    /// Yes.
    #[n(1)]
    Ack {
        /// The ping's number.
        #[n(0)]
        probe: u64,
    },
    /// Please ping that member for me.
    #[n(2)]
    PingReq {
        /// Echoed by the answer.
        #[n(0)]
        probe: u64,
        /// Whom to ping.
        #[n(1)]
        target: PeerId,
    },
    /// It answered me, or it did not. A relay that says nothing at all is itself in doubt (Lifeguard §IV-A).
    #[n(3)]
    IndirectAck {
        /// The request's number.
        #[n(0)]
        probe: u64,
        /// Whether the target answered.
        #[n(1)]
        answered: bool,
    },
}

/// Who a member is, as it says itself. Shared, because tables hold thousands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct MemberInfo {
    /// The member.
    #[n(0)]
    pub id: PeerId,
    /// Its one port, TCP and UDP.
    #[n(1)]
    pub address: SocketAddr,
    /// A TCP port on its host that is bound but never listens: connects to it must be refused, otherwise
    /// something between us answers for others and its answers prove nothing (rule 22). Zero: none.
    #[n(2)]
    pub closed_port: u16,
    /// A name for people.
    #[n(3)]
    pub name: String,
    /// What the program attached.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub meta: Vec<u8>,
}

/// News about one member, valid for one of its incarnations.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum Record {
    /// The member says of itself that it lives.
    #[n(0)]
    Alive {
        /// Who it is.
        #[cbor(n(0), with = "shared")]
        info: Arc<MemberInfo>,
        /// Raised by the member alone, to refute.
        #[n(1)]
        incarnation: u32,
    },
    /// `accuser` got no sign of life from it.
    #[n(1)]
    Suspect {
        /// The suspect.
        #[n(0)]
        member: PeerId,
        /// Its incarnation.
        #[n(1)]
        incarnation: u32,
        /// Who says so, of its own knowledge.
        #[n(2)]
        accuser: PeerId,
        /// What it saw.
        #[n(3)]
        kind: Silence,
        /// How long ago the accuser saw it, in milliseconds, kept up to date by whoever passes it on: an answer
        /// that is younger refutes it. Who does not say so is taken for fresh.
        #[cbor(n(4), default)]
        age_ms: u32,
    },
    /// `voucher` got a sign of life from it, though others did not.
    #[n(2)]
    Vouch {
        /// The member.
        #[n(0)]
        member: PeerId,
        /// Its incarnation.
        #[n(1)]
        incarnation: u32,
        /// Who says so, of its own knowledge.
        #[n(2)]
        voucher: PeerId,
        /// What it saw.
        #[n(3)]
        kind: SignOfLife,
        /// How long ago the voucher saw it, in milliseconds, kept up to date by whoever passes it on.
        #[n(4)]
        age_ms: u32,
        /// For how long the member's process had been silent when it was seen.
        #[n(5)]
        silent_ms: u32,
    },
    /// It is dead.
    #[n(3)]
    Dead {
        /// The member.
        #[n(0)]
        member: PeerId,
        /// The incarnation that ended.
        #[n(1)]
        incarnation: u32,
        /// Why.
        #[n(2)]
        reason: DeathReason,
        /// Who testified.
        #[n(3)]
        accusers: Vec<PeerId>,
    },
    /// It said goodbye.
    #[n(4)]
    Leave {
        /// The member.
        #[n(0)]
        member: PeerId,
        /// The incarnation that ended.
        #[n(1)]
        incarnation: u32,
    },
    /// Told to the member itself, when it is met again: the sender counted it as dead.
    #[n(5)]
    Out {
        /// The member.
        #[n(0)]
        member: PeerId,
        /// The incarnation that ended.
        #[n(1)]
        incarnation: u32,
        /// Why.
        #[n(2)]
        reason: DeathReason,
        /// For how long, at least.
        #[n(3)]
        age_ms: u32,
    },
}

/// What an accuser saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
pub enum Silence {
    /// Nothing at all: no ack, no relay's ack, and three connects without an answer.
    #[n(0)]
    Silent,
    /// Its kernel refuses connects to its port: the process is gone, or a firewall pretends so.
    #[n(1)]
    Refused,
}

/// What a voucher saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, CborLen)]
pub enum SignOfLife {
    /// It answered a ping: it is alive, whatever others saw.
    #[n(0)]
    Acked,
    /// An authenticated message of its own arrived, though it does not answer: it talks and cannot hear.
    #[n(1)]
    Heard,
    /// Its kernel accepts connects: the process exists and is stopped or busy.
    #[n(2)]
    Kernel,
}

/// Why a member was declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[non_exhaustive]
pub enum DeathReason {
    /// Somebody saw the process exit.
    #[n(0)]
    Exited,
    /// Its kernel refused connects, confirmed, and nothing authenticated came since (rule 20b).
    #[n(1)]
    Refused,
    /// Silence, corroborated by enough accusers for the suspicion time (rules 20e, 21).
    #[n(2)]
    Silent,
    /// Silence for `dead_after`, whoever else heard it or not (rules 20e, 21).
    #[n(3)]
    SilentTooLong,
    /// Its kernel answered and the process did not, for longer than `stall_budget` (rule 20d).
    #[n(4)]
    StalledTooLong,
    /// It talked and did not hear, for `dead_after`: a one-way cut.
    #[n(5)]
    Deaf,
    /// The coordinator evicted it.
    #[n(6)]
    Evicted,
}

impl fmt::Display for DeathReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exited => "its process was seen to exit",
            Self::Refused => "its port refuses connects and nothing came from it since",
            Self::Silent => "silent, confirmed by enough accusers",
            Self::SilentTooLong => "silent for longer than dead_after",
            Self::StalledTooLong => "stalled for longer than the stall budget",
            Self::Deaf => "talks but has not heard anybody for dead_after: a one-way cut",
            Self::Evicted => "evicted by the coordinator",
        })
    }
}

impl Record {
    /// Whom the record is about.
    pub fn member(&self) -> PeerId {
        match self {
            Self::Alive { info, .. } => info.id,
            Self::Suspect { member, .. }
            | Self::Vouch { member, .. }
            | Self::Dead { member, .. }
            | Self::Out { member, .. }
            | Self::Leave { member, .. } => *member,
        }
    }

    /// Which incarnation of that member it is about.
    pub fn incarnation(&self) -> u32 {
        match self {
            Self::Alive { incarnation, .. }
            | Self::Suspect { incarnation, .. }
            | Self::Vouch { incarnation, .. }
            | Self::Dead { incarnation, .. }
            | Self::Out { incarnation, .. }
            | Self::Leave { incarnation, .. } => *incarnation,
        }
    }

    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Alive { info, .. } => info.check(),
            Self::Dead { accusers, .. } => within("accusers", accusers.len(), ACCUSERS_MAX),
            Self::Suspect { .. } | Self::Vouch { .. } | Self::Leave { .. } | Self::Out { .. } => Ok(()),
        }
    }
}

impl MemberInfo {
    /// Holds the name, the metadata and the address against their limits. A name is shown to people on every
    /// member's host, so it has printable characters only.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("name", self.name.len(), NAME_BYTES_MAX)?;
        printable("name", &self.name)?;
        within("meta", self.meta.len(), META_BYTES_MAX)?;
        if self.address.port() == 0 || self.address.ip().is_unspecified() || self.address.ip().is_multicast()
        {
            return Err(InvalidMessage::Meaningless { field: "address", value: self.address.to_string() });
        }
        Ok(())
    }
}

impl Message for Packet {
    const BYTES_MAX: usize = PACKET_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        within("records", self.records.len(), PACKET_RECORDS_MAX)?;
        self.records.iter().try_for_each(Record::check)
    }
}

/// CBOR of a shared value is the CBOR of the value.
mod shared {
    use super::MemberInfo;
    use minicbor::decode::Error as DecodeError;
    use minicbor::encode::{Error as EncodeError, Write};
    use minicbor::{CborLen, Decode, Decoder, Encode, Encoder};
    use std::sync::Arc;

    pub(super) fn encode<C, W: Write>(
        value: &Arc<MemberInfo>,
        encoder: &mut Encoder<W>,
        context: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        (**value).encode(encoder, context)
    }

    pub(super) fn decode<C>(
        decoder: &mut Decoder<'_>,
        context: &mut C,
    ) -> Result<Arc<MemberInfo>, DecodeError> {
        MemberInfo::decode(decoder, context).map(Arc::new)
    }

    pub(super) fn cbor_len<C>(value: &Arc<MemberInfo>, context: &mut C) -> usize {
        (**value).cbor_len(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn a_name_that_a_terminal_would_obey_is_refused_where_it_comes_in() {
        let named = |name: &str| {
            let info = Arc::new(MemberInfo {
                id: PeerId::from_bytes([1; 16]),
                address: SocketAddr::from(([127, 0, 0, 1], 9)),
                closed_port: 0,
                name: name.to_owned(),
                meta: Vec::new(),
            });
            let packet = Packet { body: None, records: vec![Record::Alive { info, incarnation: 0 }] };
            decode::<Packet>(&encode(&packet)).map(drop)
        };
        assert_eq!(named("node-7 größer 节点"), Ok(()));
        for hostile in ["\u{1b}[2J", "a\nrank 0", "\u{7f}", "\u{9b}31m", "\u{202e}9p", "a\u{200b}"] {
            let refused = named(hostile).unwrap_err();
            assert!(matches!(refused, InvalidMessage::Unprintable { field: "name", .. }), "{refused}");
            assert_eq!(crate::text::first_unprintable(&refused.to_string()), None, "{refused}");
        }
    }
}
