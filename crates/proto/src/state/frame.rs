//! What a receiver and a donor say to each other: small frames of a fixed size, and bytes.
//!
//! A receiver asks for the list of leaf hashes, for the outline, or for one leaf. Each question names the elected root,
//! so a donor that serves something else says so and nothing is mixed up. The answer says how many bytes follow; how
//! many there may be is known before it comes, so nobody allocates on another's word.

use super::Digest;
use super::tree::LEAF_BYTES;
use crate::limits::{STATE_EXTRA_BYTES_MAX, STATE_LEAVES_MAX, STATE_OUTLINE_BYTES_MAX};
use crate::wire::InvalidMessage;

/// Begins every question and answer.
const MAGIC: [u8; 4] = *b"OSt1";

/// What a receiver asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The hashes of all leaves that are compared, then the extra bytes.
    Hashes,
    /// The outline, encoded: for whoever has another, to be told where it differs.
    Outline,
    /// The bytes of one leaf.
    Leaf(u64),
}

/// A receiver's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The elected root.
    pub root: Digest,
    /// What is asked for.
    pub wanted: Wanted,
}

/// How a donor answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The bytes follow.
    Here,
    /// The tensors are not what they were when the sync began (rule 27).
    Mutated,
    /// It does not serve that root, or no such leaf; now, and so not for this receiver.
    NotServed,
    /// It serves as many streams as it can, or has not heard of the election yet: this one is to be opened again after a
    /// while.
    Busy,
}

/// A donor's answer, before the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether there are any.
    pub status: Status,
    /// How many.
    pub bytes: u64,
}

fn invalid(what: &'static str, value: impl Into<u64>) -> InvalidMessage {
    InvalidMessage::Meaningless { field: what, value: value.into().to_string() }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Wanted {
    /// The most bytes that an answer may have.
    pub const fn bytes_max(self) -> u64 {
        match self {
            Self::Hashes => (STATE_LEAVES_MAX * Digest::BYTES + STATE_EXTRA_BYTES_MAX) as u64,
            Self::Outline => STATE_OUTLINE_BYTES_MAX as u64,
            Self::Leaf(_) => LEAF_BYTES as u64,
        }
    }
}

impl Question {
    /// Bytes of an encoded question.
    pub const BYTES: usize = 32;

    /// As it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (kind, leaf): (u32, u64) = match self.wanted {
            Wanted::Hashes => (1, 0),
            Wanted::Outline => (2, 0),
            Wanted::Leaf(leaf) => (3, leaf),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&leaf.to_le_bytes());
        bytes[16..].copy_from_slice(self.root.as_bytes());
        bytes
    }

    /// What travelled.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, InvalidMessage> {
        let (head, root) = bytes.split_at(16);
        if head[..4] != MAGIC {
            return Err(invalid("the beginning of a question", number(&head[..4])));
        }
        let wanted = match number(&head[4..8]) {
            1 => Wanted::Hashes,
            2 => Wanted::Outline,
            3 => Wanted::Leaf(number(&head[8..])),
            kind => return Err(invalid("the kind of a question", kind)),
        };
        let mut digest = [0; Digest::BYTES];
        digest.copy_from_slice(root);
        Ok(Self { root: Digest::from_bytes(digest), wanted })
    }
}

impl Answer {
    /// Bytes of an encoded answer, without what follows.
    pub const BYTES: usize = 16;

    /// As it travels.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let status: u32 = match self.status {
            Status::Here => 0,
            Status::Mutated => 1,
            Status::NotServed => 2,
            Status::Busy => 3,
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&status.to_le_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// What travelled in answer to that question: never more bytes than it may have.
    pub fn decode(bytes: &[u8; Self::BYTES], to: Wanted) -> Result<Self, InvalidMessage> {
        if bytes[..4] != MAGIC {
            return Err(invalid("the beginning of an answer", number(&bytes[..4])));
        }
        let status = match number(&bytes[4..8]) {
            0 => Status::Here,
            1 => Status::Mutated,
            2 => Status::NotServed,
            3 => Status::Busy,
            status => return Err(invalid("the status of an answer", status)),
        };
        let length = number(&bytes[8..]);
        if length > to.bytes_max() || (status != Status::Here && length > 0) {
            return Err(invalid("the length of an answer", length));
        }
        Ok(Self { status, bytes: length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_travel_and_keep_their_bounds() {
        for wanted in [Wanted::Hashes, Wanted::Outline, Wanted::Leaf(u64::MAX)] {
            let question = Question { root: Digest::of(b"root"), wanted };
            assert_eq!(Question::decode(&question.encode()), Ok(question));
            for status in [Status::Here, Status::Mutated, Status::NotServed, Status::Busy] {
                let answer = Answer { status, bytes: 0 };
                assert_eq!(Answer::decode(&answer.encode(), wanted), Ok(answer));
            }
            let most = Answer { status: Status::Here, bytes: wanted.bytes_max() };
            assert_eq!(Answer::decode(&most.encode(), wanted), Ok(most));
            let more = Answer { bytes: most.bytes + 1, ..most };
            assert!(Answer::decode(&more.encode(), wanted).is_err());
            let odd = Answer { status: Status::Mutated, bytes: 1 };
            assert!(Answer::decode(&odd.encode(), wanted).is_err(), "an excuse has no bytes");
        }
    }

    proptest! {
        #[test]
        fn bytes_from_anywhere_never_panic(question: [u8; 32], answer: [u8; 16]) {
            let _ = Question::decode(&question);
            let _ = Answer::decode(&answer, Wanted::Leaf(0));
        }
    }
}
