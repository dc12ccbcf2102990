//! What can be asked of a key, and what the answer is.

use super::{Blob, InvalidMessage};
use crate::limits::{STORE_KEY_BYTES_MAX, STORE_PIECE_BYTES, STORE_VALUE_BYTES_MAX};
use crate::wire::within;
use minicbor::{CborLen, Decode, Encode};
use std::fmt;

/// Values and queues have names of their own: a queue and a value of one name are two things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub enum Space {
    /// One value.
    #[n(0)]
    Values,
    /// A queue of values.
    #[n(1)]
    Queues,
}

/// A key: any bytes, none included.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct Key {
    /// What it names.
    #[n(0)]
    pub space: Space,
    /// Its name.
    #[n(1)]
    pub name: Blob,
}

/// What is asked of one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Operation {
    /// Give it this value.
    #[n(0)]
    Set(#[n(0)] Blob),
    /// Its value, as soon as it has one.
    #[n(1)]
    Get,
    /// Whether it has a value.
    #[n(2)]
    Check,
    /// Wait until it has a value, or the queue has an element.
    #[n(3)]
    Await,
    /// Add to the number that it holds as decimal text; nothing counts as zero.
    #[n(4)]
    Add(#[n(0)] i64),
    /// Give it the second value if it has the first; a key without a value counts as having the empty one.
    #[n(5)]
    CompareSet(#[n(0)] Blob, #[n(1)] Blob),
    /// Write behind its value.
    #[n(6)]
    Append(#[n(0)] Blob),
    /// Take its value away.
    #[n(7)]
    Delete,
    /// Put behind the last element.
    #[n(8)]
    Push(#[n(0)] Blob),
    /// Take the first element, if there is one.
    #[n(9)]
    Pop,
    /// How many elements there are.
    #[n(10)]
    Length,
    /// Its value now, if it has one.
    #[n(11)]
    Look,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Answer {
    /// It is done.
    #[n(0)]
    Done,
    /// A value.
    #[n(1)]
    Value(#[n(0)] Blob),
    /// There is none.
    #[n(2)]
    Nothing,
    /// A number.
    #[n(3)]
    Number(#[n(0)] i64),
    /// Yes or no.
    #[n(4)]
    Truth(#[n(0)] bool),
    /// It cannot be done; nothing was changed.
    #[n(5)]
    Refused(#[n(0)] Objection),
    /// Keys, and whether the list goes on behind the last of them.
    #[n(6)]
    Keys(#[n(0)] Vec<Blob>, #[n(1)] bool),
}

/// Why an owner does not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Objection {
    /// The value is not a whole number of 64 bits, as decimal text.
    #[n(0)]
    NotANumber,
    /// The sum does not fit 64 bits.
    #[n(1)]
    Overflow,
    /// The value would be longer than a value may be, or all elements of the queue together than they may be.
    #[n(2)]
    TooLong,
    /// The owner holds as much as it may.
    #[n(3)]
    Full,
    /// As many wait at the owner as may.
    #[n(4)]
    TooManyWait,
}

impl Key {
    /// The key of a value.
    pub fn value(name: impl Into<Vec<u8>>) -> Self {
        Self { space: Space::Values, name: name.into().into() }
    }

    /// The key of a queue.
    pub fn queue(name: impl Into<Vec<u8>>) -> Self {
        Self { space: Space::Queues, name: name.into().into() }
    }

    pub(crate) fn check(&self) -> Result<(), InvalidMessage> {
        within("key", self.name.len(), STORE_KEY_BYTES_MAX)
    }
}

impl Operation {
    /// Whether it may change anything. Such a call is done once, however often it is asked for.
    pub fn changes(&self) -> bool {
        match self {
            Self::Set(_)
            | Self::Add(_)
            | Self::CompareSet(..)
            | Self::Append(_)
            | Self::Delete
            | Self::Push(_)
            | Self::Pop => true,
            Self::Get | Self::Check | Self::Await | Self::Length | Self::Look => false,
        }
    }

    /// Whether it is answered only when there is something.
    pub fn waits(&self) -> bool {
        matches!(self, Self::Get | Self::Await)
    }

    /// Whether its request takes long to send, or its answer long to come.
    pub(crate) fn is_long(&self) -> bool {
        match self {
            Self::Get | Self::Await => true,
            Self::Set(value) | Self::Append(value) | Self::Push(value) => value.len() > STORE_PIECE_BYTES,
            Self::CompareSet(one, two) => one.len() + two.len() > STORE_PIECE_BYTES,
            _ => false,
        }
    }

    /// The name that a person knows it by.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Set(_) => "set",
            Self::Get => "get",
            Self::Check => "check",
            Self::Await => "wait",
            Self::Add(_) => "add",
            Self::CompareSet(..) => "compare_set",
            Self::Append(_) => "append",
            Self::Delete => "delete_key",
            Self::Push(_) => "queue_push",
            Self::Pop => "queue_pop",
            Self::Length => "queue_len",
            Self::Look => "get",
        }
    }

    pub(crate) fn check_limits(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Set(value) | Self::Append(value) | Self::Push(value) => {
                within("value", value.len(), STORE_VALUE_BYTES_MAX)
            }
            Self::CompareSet(expected, desired) => {
                within("expected", expected.len(), STORE_VALUE_BYTES_MAX)?;
                within("value", desired.len(), STORE_VALUE_BYTES_MAX)
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotANumber => "its value is not a whole number of 64 bits in decimal text",
            Self::Overflow => "the sum does not fit a whole number of 64 bits",
            Self::TooLong => {
                "it would hold more than one key may: a value has 1 GiB at most, a queue with all its elements 2 GiB"
            }
            Self::Full => "the key's owner holds as many bytes as it may; delete keys, or raise its limit",
            Self::TooManyWait => "as many calls wait at the key's owner as may",
        })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.space == Space::Queues { "queue " } else { "" };
        write!(f, "{space}{:?}", self.name)
    }
}
