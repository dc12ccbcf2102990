//! What nodes say to a register, and what it answers.
//!
//! One stream per node and register; it keeps order, so what is told last is what holds. Answers come in the order of
//! the questions; in between the register tells of every change by itself, the newest only. A change of leases and notes
//! alone may be told a moment later: nobody waits for it.

use super::{InvalidMessage, Message, printable, within};
use crate::limits::{
    COUNT_MAX, FRAME_BYTES_MAX, HOLDER_BYTES_MAX, LEASE_MS_MAX, LEASES_MAX, NOTE_BYTES_MAX,
    REGISTER_BYTES_MAX, REGISTER_NAME_BYTES_MAX, TEXT_BYTES_MAX,
};
use minicbor::bytes::ByteVec;
use minicbor::{CborLen, Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Which write a value came from. A register that was rebuilt begins a new era, so no two values ever share a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct Token {
    /// How often the register was rebuilt.
    #[n(0)]
    pub era: u64,
    /// How many writes there were. Zero: nothing was ever written.
    #[n(1)]
    pub revision: u64,
}

/// What the holder of a lease leaves beside it, for the others to read.
pub type Note = ByteVec;

/// A register as it is at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Snapshot {
    /// What was written last.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub value: Option<Vec<u8>>,
    /// The write that it came from.
    #[n(1)]
    pub token: Token,
    /// Whose lease lasts.
    #[n(2)]
    pub alive: BTreeSet<String>,
    /// What holders left beside their leases, for the others to read; who left nothing is not listed.
    #[cbor(n(3), with = "notes", has_nil)]
    pub notes: BTreeMap<String, Note>,
}

/// What holders left, if anybody did: a register that keeps no notes says nothing of them.
mod notes {
    use super::{BTreeMap, Note};
    use minicbor::data::Type;
    use minicbor::decode::Error as DecodeError;
    use minicbor::encode::{Error as EncodeError, Write};
    use minicbor::{CborLen, Decoder, Encoder};

    type Notes = BTreeMap<String, Note>;

    pub(super) fn encode<C, W: Write>(
        notes: &Notes,
        encoder: &mut Encoder<W>,
        context: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.encode_with(notes, context)?;
        Ok(())
    }

    pub(super) fn decode<C>(decoder: &mut Decoder<'_>, context: &mut C) -> Result<Notes, DecodeError> {
        if decoder.datatype()? == Type::Null {
            decoder.skip()?;
            return Ok(Notes::new());
        }
        decoder.decode_with(context)
    }

    #[expect(clippy::unnecessary_wraps, reason = "the codec asks for it in this form")]
    pub(super) fn nil() -> Option<Notes> {
        Some(Notes::new())
    }

    pub(super) fn is_nil(notes: &Notes) -> bool {
        notes.is_empty()
    }

    pub(super) fn cbor_len<C>(notes: &Notes, context: &mut C) -> usize {
        notes.cbor_len(context)
    }
}

/// From a node to a register.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum ToRegister {
    /// The first words: which register, and who speaks. Answered with a snapshot, as soon as there is one.
    #[n(0)]
    Open {
        /// The register's name within the run.
        #[n(0)]
        register: String,
        /// Who holds the lease; empty if the speaker has none and its writes need none.
        #[n(1)]
        holder: String,
        /// How long its lease lasts unless it is renewed; zero if it does not begin yet.
        #[n(2)]
        lease_ms: u32,
        /// What it last knew, for a register that has forgotten.
        #[n(3)]
        brought: Option<Snapshot>,
        /// What it leaves beside its lease, if anything.
        #[n(4)]
        note: Option<Note>,
    },
    /// How is it now? Answered with a snapshot.
    #[n(1)]
    Read,
    /// Answered with `Written`.
    #[n(2)]
    Write {
        /// What the writer takes for the last write.
        #[n(0)]
        expected: Token,
        /// What to write.
        #[cbor(n(1), with = "minicbor::bytes")]
        value: Vec<u8>,
    },
    /// The holder lives. Answered with `Beaten`; if the note changed, a snapshot that has it comes first.
    #[n(3)]
    Beat {
        /// How long its lease lasts from now on.
        #[n(0)]
        lease_ms: u32,
        /// What it leaves beside its lease, if anything, in place of what it left before.
        #[n(1)]
        note: Option<Note>,
    },
    /// The holder is done; its lease ends. Not answered.
    #[n(4)]
    Release,
}

/// From a register to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum FromRegister {
    /// How it is.
    #[n(0)]
    Told(#[n(0)] Snapshot),
    /// How a write ended.
    #[n(1)]
    Written(#[n(0)] Fate, #[n(1)] Snapshot),
    /// The lease was renewed.
    #[n(2)]
    Beaten,
    /// It cannot be had; the stream is closed.
    #[n(3)]
    Refused(#[n(0)] String),
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub enum Fate {
    /// It is the last write now.
    #[n(0)]
    Accepted,
    /// Somebody else wrote first.
    #[n(1)]
    Lost,
    /// The writer's lease had run out.
    #[n(2)]
    Lapsed,
}

impl Snapshot {
    fn check(&self) -> Result<(), InvalidMessage> {
        within("value", self.value.as_ref().map_or(0, Vec::len), REGISTER_BYTES_MAX)?;
        within("leases", self.alive.len(), LEASES_MAX)?;
        // Whatever is counted on from a token that somebody brings does not overflow.
        within("token", self.token.era.max(self.token.revision) as usize, COUNT_MAX as usize)?;
        within("notes", self.notes.len(), LEASES_MAX)?;
        self.notes.values().try_for_each(|note| check_note(note))?;
        self.alive.iter().chain(self.notes.keys()).try_for_each(|holder| check_holder(holder))
    }
}

fn check_holder(holder: &str) -> Result<(), InvalidMessage> {
    within("holder", holder.len(), HOLDER_BYTES_MAX)?;
    printable("holder", holder)
}

fn check_note(note: &[u8]) -> Result<(), InvalidMessage> {
    within("note", note.len(), NOTE_BYTES_MAX)
}

impl Message for ToRegister {
    const BYTES_MAX: usize = FRAME_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Open { register, holder, lease_ms, brought, note } => {
                within("register", register.len(), REGISTER_NAME_BYTES_MAX)?;
                printable("register", register)?;
                check_holder(holder)?;
                within("lease_ms", *lease_ms as usize, LEASE_MS_MAX as usize)?;
                note.as_ref().map_or(Ok(()), |note| check_note(note))?;
                brought.as_ref().map_or(Ok(()), Snapshot::check)
            }
            Self::Write { value, .. } => within("value", value.len(), REGISTER_BYTES_MAX),
            Self::Beat { lease_ms, note } => {
                within("lease_ms", *lease_ms as usize, LEASE_MS_MAX as usize)?;
                note.as_ref().map_or(Ok(()), |note| check_note(note))
            }
            Self::Read | Self::Release => Ok(()),
        }
    }
}

impl Message for FromRegister {
    const BYTES_MAX: usize = FRAME_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        match self {
            Self::Told(snapshot) | Self::Written(_, snapshot) => snapshot.check(),
            Self::Beaten => Ok(()),
            Self::Refused(text) => within("text", text.len(), TEXT_BYTES_MAX),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.era, self.revision)
    }
}
