//! Names of things: peers, their boots, runs.

use crate::limits::RUN_ID_BYTES_MAX;
use minicbor::{CborLen, Decode, Encode};
use std::fmt;
use std::str::FromStr;

/// One process that takes part in a run: 128 random bits, kept across reconnects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct PeerId(#[cbor(with = "minicbor::bytes")] [u8; 16]);

impl PeerId {
    /// The id made of these bytes. Fresh ids are 16 random bytes from the operating system.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id as bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The first eight hexadecimal digits: enough for a person to tell peers apart.
    pub fn short(&self) -> String {
        format!("{self}")[..8].to_owned()
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.short())
    }
}

/// Why a text is not a peer id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a peer id is 32 hexadecimal digits")]
pub struct PeerIdError;

impl FromStr for PeerId {
    type Err = PeerIdError;
    fn from_str(text: &str) -> Result<Self, PeerIdError> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(PeerIdError);
        }
        u128::from_str_radix(text, 16).map(|number| Self(number.to_be_bytes())).map_err(|_| PeerIdError)
    }
}

/// One start of a process. A peer that restarts under its old id has a new boot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct BootId(#[n(0)] pub u64);

/// The name of one training job. Letters, digits, `.`, `_` and `-`, at most 64 of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RunId(String);

/// Why a text is not a run id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunIdError {
    /// The text is empty or too long.
    #[error("run id {0:?} has {1} bytes; use 1 to {RUN_ID_BYTES_MAX}")]
    Length(String, usize),
    /// The text holds a character that is not allowed.
    #[error("run id {0:?} contains {1:?}; use letters, digits, '.', '_' and '-'")]
    Character(String, char),
}

impl RunId {
    /// The run id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunId {
    type Err = RunIdError;
    fn from_str(text: &str) -> Result<Self, RunIdError> {
        if text.is_empty() || text.len() > RUN_ID_BYTES_MAX {
            return Err(RunIdError::Length(text.chars().take(80).collect(), text.len()));
        }
        match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
            Some(odd) => Err(RunIdError::Character(text.to_owned(), odd)),
            None => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_ids_are_read_as_they_are_written() {
        let id = PeerId::from_bytes(*b"0123456789abcdef");
        assert_eq!(id.to_string().parse(), Ok(id));
        for odd in ["", "12", "+1234567890123456789012345678901", &"g".repeat(32), &"0".repeat(33)] {
            assert_eq!(odd.parse::<PeerId>(), Err(PeerIdError), "{odd}");
        }
    }

    #[test]
    fn run_ids_are_checked() {
        assert!("llama-70b_2.1".parse::<RunId>().is_ok());
        assert!(matches!("".parse::<RunId>(), Err(RunIdError::Length(_, 0))));
        assert!(matches!("a".repeat(65).parse::<RunId>(), Err(RunIdError::Length(_, 65))));
        assert!(matches!("a b".parse::<RunId>(), Err(RunIdError::Character(_, ' '))));
    }
}
