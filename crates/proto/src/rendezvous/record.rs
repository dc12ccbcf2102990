//! A register that is kept in a store: what its one key holds, and how that changes.
//!
//! A store compares and sets whole values, and knows neither tokens nor leases. So one key holds the whole register: its
//! [`Snapshot`], and in front of it how often it changed and a number that its writer drew. Whoever wants to change
//! something reads the record, makes the next one and asks the store to put it in the place of the one that was read. If
//! the store says no, somebody else changed it: decide again.
//!
//! A lease is a name in the record. Taking it away is a change like any other, so a write that was decided while the
//! lease lasted does not find the record that it was decided on. *When* a lease is over is for [`Sentry`] to say.
//!
//! The invariant: no two records are equal, because no two writers draw the same number; so whoever finds its own record
//! in the store was the one that put it there. Tokens only grow.
//!
//! What it does not do: it asks no store.
//!
//! [`Sentry`]: super::Sentry

use crate::limits::LEASES_MAX;
use crate::wire::register::{Fate, FromRegister, Snapshot, Token};
use crate::wire::{InvalidMessage, decode, encode};

/// How often it changed, and by whom last.
const HEAD_BYTES: usize = 16;

/// What the key of a register holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// How often anything changed, leases included.
    pub changes: u64,
    /// A number that whoever changed it last drew for this change.
    pub writer: u64,
    /// The register.
    pub snapshot: Snapshot,
}

/// Numbers that are drawn for one change.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Of the writer: differs from any that was ever drawn.
    pub writer: u64,
    /// Larger than any era that was given before: microseconds of the time of day.
    pub era: u64,
}

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// They begin with something else, or end too soon.
    #[error("{0} bytes are too few")]
    Short(usize),
    /// What follows is no snapshot.
    #[error(transparent)]
    Snapshot(#[from] InvalidMessage),
    /// What follows is another message of a register.
    #[error("they hold another message")]
    Other,
}

impl Record {
    /// What a key holds; nothing, if it is empty: nobody has written yet.
    pub fn from_bytes(bytes: &[u8]) -> Result<Option<Self>, RecordError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let short = || RecordError::Short(bytes.len());
        let (changes, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let (writer, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
        match decode::<FromRegister>(rest)? {
            FromRegister::Told(snapshot) => Ok(Some(Self {
                changes: u64::from_be_bytes(*changes),
                writer: u64::from_be_bytes(*writer),
                snapshot,
            })),
            _ => Err(RecordError::Other),
        }
    }

    /// As a key holds it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let snapshot = encode(&FromRegister::Told(self.snapshot.clone()));
        let mut bytes = Vec::with_capacity(HEAD_BYTES + snapshot.len());
        bytes.extend(self.changes.to_be_bytes());
        bytes.extend(self.writer.to_be_bytes());
        bytes.extend(snapshot);
        bytes
    }

    /// The record after a write, or why there is none. `holder` is who must hold a lease for it; empty if none is needed.
    pub fn written(
        before: Option<&Self>,
        holder: &str,
        expected: Token,
        value: Vec<u8>,
        draw: Draw,
    ) -> Result<Self, Fate> {
        let mut next = Self::after(before, draw);
        if !holder.is_empty() && !next.snapshot.alive.contains(holder) {
            return Err(Fate::Lapsed);
        }
        if expected != next.snapshot.token {
            return Err(Fate::Lost);
        }
        if next.snapshot.value.is_none() {
            // Others may know another first value, from a store that is no more.
            next.snapshot.token.era = draw.era;
        }
        next.snapshot.token.revision += 1;
        next.snapshot.value = Some(value);
        Ok(next)
    }

    /// The record with a lease and a note beside it; none if there is nothing to change, or there are too many.
    pub fn with_lease(before: Option<&Self>, holder: &str, note: &[u8], draw: Draw) -> Option<Self> {
        let mut next = Self::after(before, draw);
        let Snapshot { alive, notes, .. } = &mut next.snapshot;
        let is_new = !alive.contains(holder);
        if is_new && alive.len() >= LEASES_MAX {
            return None;
        }
        alive.insert(holder.to_owned());
        let last = if note.is_empty() {
            notes.remove(holder)
        } else {
            notes.insert(holder.to_owned(), note.to_vec().into())
        };
        let is_other = last.as_ref().map_or(&[][..], |last| last.as_slice()) != note;
        (is_new || is_other).then_some(next)
    }

    /// The record without a lease and its note; none if there is nothing to change.
    pub fn without_lease(before: Option<&Self>, holder: &str, draw: Draw) -> Option<Self> {
        let mut next = Self::after(before, draw);
        next.snapshot.notes.remove(holder);
        next.snapshot.alive.remove(holder).then_some(next)
    }

    /// The record that begins anew from the last one that was seen, in a store that knows none any more. Its era is a new
    /// one: tokens that nobody brought match nothing. Notes are brought by none but their holders.
    pub fn brought(last: &Self, draw: Draw) -> Self {
        let mut next = Self::after(Some(last), draw);
        next.snapshot.notes.clear();
        if next.snapshot.value.is_some() {
            next.snapshot.token.era = draw.era.max(last.snapshot.token.era + 1);
        }
        next
    }

    fn after(before: Option<&Self>, draw: Draw) -> Self {
        let (changes, snapshot) =
            before.map_or((0, Snapshot::default()), |record| (record.changes, record.snapshot.clone()));
        Self { changes: changes.wrapping_add(1), writer: draw.writer, snapshot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn draw(writer: u64) -> Draw {
        Draw { writer, era: 100 }
    }

    #[test]
    fn a_write_counts_on_the_last_token_and_with_a_lease() {
        let none = Token::default();
        assert_eq!(Record::written(None, "a", none, vec![1], draw(1)), Err(Fate::Lapsed));
        let held = Record::with_lease(None, "a", b"", draw(1)).expect("a lease");
        assert_eq!(held.snapshot.token, none, "a lease is no write");
        assert_eq!(Record::with_lease(Some(&held), "a", b"", draw(2)), None);
        let first = Record::written(Some(&held), "a", none, vec![1], draw(2)).expect("accepted");
        assert_eq!((first.changes, first.snapshot.token), (2, Token { era: 100, revision: 1 }));
        assert_eq!(Record::written(Some(&first), "a", none, vec![2], draw(3)), Err(Fate::Lost));
        let alone = Record::without_lease(Some(&first), "a", draw(3)).expect("it was there");
        assert_eq!((alone.changes, alone.snapshot.token), (3, first.snapshot.token));
        assert_eq!(Record::without_lease(Some(&alone), "a", draw(4)), None);
        let token = first.snapshot.token;
        assert_eq!(Record::written(Some(&alone), "a", token, vec![2], draw(4)), Err(Fate::Lapsed));
        let second = Record::written(Some(&alone), "", token, Vec::new(), draw(4)).expect("accepted");
        assert!(second.snapshot.token > token);
        assert_eq!(second.snapshot.value, Some(Vec::new()), "an empty value is one");
    }

    #[test]
    fn two_writers_of_the_same_value_make_different_records() {
        let write = |writer| Record::written(None, "", Token::default(), vec![7], draw(writer));
        assert_ne!(write(1).expect("accepted").to_bytes(), write(2).expect("accepted").to_bytes());
    }

    #[test]
    fn a_note_goes_with_its_lease_and_only_another_one_is_a_change() {
        let noted = Record::with_lease(None, "a", b"wish", draw(1)).expect("a lease");
        assert_eq!(noted.snapshot.notes["a"].as_slice(), b"wish");
        assert_eq!(Record::with_lease(Some(&noted), "a", b"wish", draw(2)), None);
        let other = Record::with_lease(Some(&noted), "a", b"other", draw(2)).expect("another note");
        assert_eq!(other.snapshot.notes["a"].as_slice(), b"other");
        let none = Record::with_lease(Some(&noted), "a", b"", draw(2)).expect("it is taken back");
        assert!(none.snapshot.notes.is_empty() && none.snapshot.alive.contains("a"));
        let gone = Record::without_lease(Some(&noted), "a", draw(2)).expect("it was there");
        assert!(gone.snapshot.notes.is_empty());
        assert!(Record::brought(&noted, draw(2)).snapshot.notes.is_empty());
    }

    #[test]
    fn what_is_brought_is_newer_than_all_that_was() {
        let last = Record::written(None, "", Token::default(), vec![1], Draw { writer: 1, era: 500 });
        let last = last.expect("accepted");
        let brought = Record::brought(&last, draw(2));
        assert!(brought.snapshot.token > last.snapshot.token, "also where a clock went back");
        assert_eq!(brought.snapshot.value, last.snapshot.value);
        assert_eq!(
            Record::written(Some(&brought), "", last.snapshot.token, vec![2], draw(3)),
            Err(Fate::Lost)
        );
    }

    #[test]
    fn a_record_survives_its_bytes_and_others_are_refused() {
        let record = Record::with_lease(None, "a", b"a note", draw(9)).expect("a lease");
        assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(Some(record)));
        assert_eq!(Record::from_bytes(b""), Ok(None));
        assert_eq!(Record::from_bytes(b"hello"), Err(RecordError::Short(5)));
        assert!(matches!(Record::from_bytes(&[0; 40]), Err(RecordError::Snapshot(_))));
        let other = [&[0; HEAD_BYTES][..], &encode(&FromRegister::Beaten)].concat();
        assert_eq!(Record::from_bytes(&other), Err(RecordError::Other));
    }
}
