//! What travels: one file per family of messages, CBOR with numbered fields.
//!
//! Nothing is believed because it decoded: each message has a `check` that holds every count and length
//! against [`crate::limits`], and [`decode`] is the only way in.
//!
//! # How it changes
//!
//! A run is updated member by member, so for a while two versions talk. Three things keep that from going wrong:
//!
//! - *Fields* have numbers that never change their meaning. An older reader skips what it does not know; a newer one
//!   fills in what is missing (`default`), so a new field is optional or has a default that means "as before".
//! - *Versions.* The first words on a stream ([`hello`]) agree on one that both speak, or part with an error that names
//!   both ranges. [`encode_for`] is the way out on such a stream: a message says since when it exists
//!   ([`Message::since`]), and one that the other side cannot know is not sent to it. Whoever decides asks first.
//! - *Variants* that a reader does not know say something it cannot guess. Each enum that travels has a policy
//!   (`unknown.rs`): *skip* the item that holds it and take the rest, where a loss is harmless (the health plane); read
//!   it as *vague*, where it only gives a reason; or *part*: refuse the message ([`InvalidMessage::Newer`]) and end the
//!   session in words, where it says what to do. An enum without a policy does not pass the tests.
//!
//! The table of policies is `docs/protocol/wire.md`. The tests (`evolution/`) keep every message of every version, and
//! try messages of the future.

pub mod control;
pub mod frame;
pub mod hatch;
pub mod hello;
pub mod inspect;
pub mod lateness;
pub mod membership;
pub mod register;
pub mod replay;
pub mod store;
pub(crate) mod unknown;

#[cfg(test)]
mod evolution;

use hello::Version;
use minicbor::{CborLen, Decode, Encode};

/// Why bytes are not a message. The state of the receiver has not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// The message is longer than its kind may be.
    #[error("message of {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// How long it was.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The bytes are not CBOR of the expected shape.
    #[error("undecodable message: {0}")]
    Malformed(String),
    /// The bytes say something that only a later version knows. The two sides part: what is not understood may be what
    /// matters.
    #[error("it holds what version {ours} does not know ({0}); update the older side", ours = Version::CURRENT)]
    Newer(String),
    /// Bytes follow the message.
    #[error("{0} bytes follow the message")]
    TrailingBytes(usize),
    /// A count or a length in the message breaks a limit.
    #[error("{field} is {value}, the limit is {limit}")]
    OverLimit {
        /// Which field.
        field: &'static str,
        /// What it held.
        value: usize,
        /// What it may hold.
        limit: usize,
    },
    /// A text that people are shown holds a character that a terminal obeys or hides.
    #[error("{field} holds the character {character:?}; use printable ones only")]
    Unprintable {
        /// Which field.
        field: &'static str,
        /// The first such character.
        character: char,
    },
    /// A field holds a value that has no meaning.
    #[error("{field} has no meaning here: {value}")]
    Meaningless {
        /// Which field.
        field: &'static str,
        /// What it held.
        value: String,
    },
}

/// A message with a limit on its encoded length and a check of its contents.
pub trait Message: Encode<()> + CborLen<()> + for<'b> Decode<'b, ()> {
    /// Longest encoding.
    const BYTES_MAX: usize;
    /// The version that this very message came with.
    fn since(&self) -> Version {
        Version::FIRST
    }
    /// Holds every count and length against its limit.
    fn check(&self) -> Result<(), InvalidMessage>;
}

/// Encodes `message`. Whatever keeps the limits has an encoding that the other side takes (rule 40); only a test build
/// stops at one that does not.
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(minicbor::len(message));
    minicbor::encode(message, &mut bytes).expect("a Vec takes every byte");
    debug_assert!(
        bytes.len() <= M::BYTES_MAX,
        "built a message of {} bytes, the limit is {}",
        bytes.len(),
        M::BYTES_MAX
    );
    bytes
}

/// Encodes `message` for a reader that agreed on `version`; none if it came later, and then it must not be sent.
pub fn encode_for<M: Message>(message: &M, version: Version) -> Option<Vec<u8>> {
    (message.since() <= version).then(|| encode(message))
}

/// Decodes and checks one message that fills `bytes` exactly.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, InvalidMessage> {
    if bytes.len() > M::BYTES_MAX {
        return Err(InvalidMessage::TooLong { bytes: bytes.len(), limit: M::BYTES_MAX });
    }
    let mut decoder = minicbor::Decoder::new(bytes);
    let message: M = decoder.decode().map_err(|error| {
        let text = error.to_string();
        if unknown::is_of_the_future(&error) {
            InvalidMessage::Newer(text)
        } else {
            InvalidMessage::Malformed(text)
        }
    })?;
    let rest = bytes.len() - decoder.position();
    if rest > 0 {
        return Err(InvalidMessage::TrailingBytes(rest));
    }
    message.check()?;
    Ok(message)
}

/// `Ok` if a terminal shows every character of `text` and obeys none.
pub(crate) fn printable(field: &'static str, text: &str) -> Result<(), InvalidMessage> {
    match crate::text::first_unprintable(text) {
        Some(character) => Err(InvalidMessage::Unprintable { field, character }),
        None => Ok(()),
    }
}

/// As much of a text as fits into that many bytes.
pub fn clip(text: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

/// `Ok` if `value` is within `limit`, otherwise the error that names the field.
pub(crate) fn within(field: &'static str, value: usize, limit: usize) -> Result<(), InvalidMessage> {
    if value <= limit { Ok(()) } else { Err(InvalidMessage::OverLimit { field, value, limit }) }
}
