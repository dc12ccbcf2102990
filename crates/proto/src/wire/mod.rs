//! What travels: one file per family of messages, CBOR with numbered fields.
//!
//! Numbered fields let an older peer skip what it does not know and a newer one fill in what is missing.
//! Nothing is believed because it decoded: each message has a `check` that holds every count and length
//! against [`crate::limits`], and [`decode`] is the only way in.

pub mod control;
pub mod frame;
pub mod hello;
pub mod lateness;
pub mod membership;
pub mod replay;

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

/// Decodes and checks one message that fills `bytes` exactly.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, InvalidMessage> {
    if bytes.len() > M::BYTES_MAX {
        return Err(InvalidMessage::TooLong { bytes: bytes.len(), limit: M::BYTES_MAX });
    }
    let mut decoder = minicbor::Decoder::new(bytes);
    let message: M = decoder.decode().map_err(|error| InvalidMessage::Malformed(error.to_string()))?;
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
pub(crate) fn clip(text: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

/// `Ok` if `value` is within `limit`, otherwise the error that names the field.
pub(crate) fn within(field: &'static str, value: usize, limit: usize) -> Result<(), InvalidMessage> {
    if value <= limit { Ok(()) } else { Err(InvalidMessage::OverLimit { field, value, limit }) }
}
