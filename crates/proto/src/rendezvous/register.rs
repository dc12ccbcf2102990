//! A register with compare-and-set and leases, as the coordinator serves it.
//!
//! One value, the token of the write that it came from, and the leases of those who use it. A write counts only if its
//! writer names the last token and its own lease lasts, by the clock of whoever drives this machine; so a process that
//! was stopped for longer than its lease cannot write what it decided before. Beside its lease a holder may leave a note
//! for the others; it lasts as long as the lease, and changes no token.
//!
//! The register lives in memory. A coordinator that takes over an address may have been another before, so it first
//! listens for as long as the control grace: whoever comes back brings the last snapshot that it saw, and the one with
//! the highest token is taken. Then a new era begins: tokens of the old one that nobody brought match nothing. Eras are
//! numbered by the time of day, so that they grow even if all who knew the last one were away for the whole of the grace.
//!
//! The invariant: two values never share a token, and tokens only grow.
//!
//! What it does not do: it knows nothing of rendezvous, and nothing of connections.

use crate::limits::LEASES_MAX;
use crate::time::{Duration, Instant};
pub use crate::wire::register::Fate as Written;
use crate::wire::register::{Snapshot, Token};
use minicbor::bytes::ByteVec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A register.
#[derive(Clone, Debug)]
pub struct Register {
    value: Option<Vec<u8>>,
    token: Token,
    leases: BTreeMap<String, Lease>,
    /// Until when others may bring what they know.
    listens_until: Option<Instant>,
    /// The era that begins when it has listened.
    era: u64,
    /// How often anything changed that a watcher should hear of.
    changes: u64,
}

#[derive(Clone, Debug)]
struct Lease {
    until: Instant,
    note: Vec<u8>,
}

impl Register {
    /// A register that nobody can have known before.
    pub fn fresh() -> Self {
        Self {
            value: None,
            token: Token::default(),
            leases: BTreeMap::new(),
            listens_until: None,
            era: 0,
            changes: 0,
        }
    }

    /// A register that may have been elsewhere before, and of which nobody has brought anything in time. `era` is larger
    /// than any that was given before, wherever that was: microseconds of the time of day.
    pub fn anew(era: u64) -> Self {
        Self { era, ..Self::fresh() }
    }

    /// A register that may have been elsewhere before: it answers nothing until then. `era` as above.
    pub fn listening(until: Instant, era: u64) -> Self {
        Self { listens_until: Some(until), ..Self::anew(era) }
    }

    /// Somebody brings the last snapshot that it saw. It counts while the register listens. Whose lease lasted then has
    /// as long again from now: how long ago it was nobody knows. Notes are brought by none but their holders: what
    /// somebody wanted a while ago it may not want any more.
    pub fn handle_brought(&mut self, now: Instant, brought: Snapshot, lease: Duration) {
        self.handle_timeout(now);
        if self.listens_until.is_none() {
            return;
        }
        for holder in brought.alive {
            self.renew(now, holder, lease, None);
        }
        if brought.token > self.token {
            self.token = brought.token;
            self.value = brought.value;
        }
    }

    /// A holder lives, and leaves that note in place of the last. False if there are too many.
    pub fn handle_beat(&mut self, now: Instant, holder: &str, lease: Duration, note: Vec<u8>) -> bool {
        self.handle_timeout(now);
        self.renew(now, holder.to_owned(), lease, Some(note))
    }

    /// A holder is done.
    pub fn handle_release(&mut self, now: Instant, holder: &str) {
        self.handle_timeout(now);
        if self.leases.remove(holder).is_some() {
            self.changes += 1;
        }
    }

    /// Compare and set. `holder` is who must hold a lease for it; empty if none is needed. `None` while it listens.
    pub fn handle_write(
        &mut self,
        now: Instant,
        holder: &str,
        expected: Token,
        value: Vec<u8>,
    ) -> Option<Written> {
        self.handle_timeout(now);
        if self.listens_until.is_some() {
            return None;
        }
        if !holder.is_empty() && !self.leases.contains_key(holder) {
            return Some(Written::Lapsed);
        }
        if expected != self.token {
            return Some(Written::Lost);
        }
        if self.value.is_none() {
            // Others may know another first value, from before.
            self.token.era = self.token.era.max(self.era);
        }
        self.value = Some(value);
        self.token.revision += 1;
        self.changes += 1;
        Some(Written::Accepted)
    }

    /// Time has passed: leases run out, listening ends.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.listens_until.is_some_and(|until| now >= until) {
            self.listens_until = None;
            self.changes += 1;
            if self.value.is_some() {
                self.token.era = self.token.era.saturating_add(1).max(self.era);
            }
        }
        let before = self.leases.len();
        self.leases.retain(|_, lease| now < lease.until);
        if self.leases.len() < before {
            self.changes += 1;
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.leases.values().map(|lease| lease.until).chain(self.listens_until).min()
    }

    /// How it is; `None` while it listens.
    pub fn snapshot(&self) -> Option<Snapshot> {
        if self.listens_until.is_some() {
            return None;
        }
        let noted = self.leases.iter().filter(|(_, lease)| !lease.note.is_empty());
        Some(Snapshot {
            value: self.value.clone(),
            token: self.token,
            alive: self.leases.keys().cloned().collect(),
            notes: noted.map(|(holder, lease)| (holder.clone(), ByteVec::from(lease.note.clone()))).collect(),
        })
    }

    /// The write that its value came from.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Grows whenever there is something to tell.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether it waits for what others bring, and answers nothing yet.
    pub fn listens(&self) -> bool {
        self.listens_until.is_some()
    }

    /// Whether anybody's lease lasts.
    pub fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Bytes of its value.
    pub fn bytes(&self) -> usize {
        self.value.as_ref().map_or(0, Vec::len)
    }

    /// Without a note the last one stays.
    fn renew(&mut self, now: Instant, holder: String, lasts: Duration, note: Option<Vec<u8>>) -> bool {
        let until = now + lasts;
        let is_full = self.leases.len() >= LEASES_MAX;
        match self.leases.entry(holder) {
            Entry::Vacant(_) if is_full => return false,
            Entry::Vacant(vacant) => {
                vacant.insert(Lease { until, note: note.unwrap_or_default() });
                self.changes += 1;
            }
            Entry::Occupied(mut occupied) => {
                let lease = occupied.get_mut();
                lease.until = until;
                if let Some(note) = note.filter(|note| *note != lease.note) {
                    lease.note = note;
                    self.changes += 1;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Duration = Duration::from_hours(1);

    fn written(register: &mut Register, now: Instant, value: u8) -> Token {
        register.handle_beat(now, "node", FOREVER, Vec::new());
        let token = register.snapshot().unwrap().token;
        assert_eq!(register.handle_write(now, "node", token, vec![value]), Some(Written::Accepted));
        register.snapshot().unwrap().token
    }

    #[test]
    fn a_register_to_which_nobody_brought_anything_shares_no_token_with_the_one_before() {
        let now = Instant::ORIGIN;
        let mut before = Register::fresh();
        let stale: Vec<_> = (0..3).map(|value| written(&mut before, now, value)).collect();
        // Everybody who knew it was stopped for the whole of the grace.
        let until = now + Duration::from_secs(5);
        for mut after in [Register::listening(until, 77), Register::anew(77)] {
            after.handle_timeout(until);
            assert_eq!(after.snapshot().unwrap().token, Token::default(), "nothing is written yet");
            for value in 10..15 {
                let token = written(&mut after, until, value);
                assert!(!stale.contains(&token) && token > stale[2], "{token:?}");
            }
            for token in &stale {
                assert_eq!(after.handle_write(until, "node", *token, vec![99]), Some(Written::Lost));
            }
        }
    }

    #[test]
    fn the_highest_token_that_is_brought_in_time_is_taken_and_a_new_era_begins() {
        let now = Instant::ORIGIN;
        let mut before = Register::fresh();
        let old = {
            written(&mut before, now, 1);
            before.snapshot().unwrap()
        };
        let last = {
            written(&mut before, now, 2);
            before.snapshot().unwrap()
        };
        let until = now + Duration::from_secs(5);
        let mut after = Register::listening(until, 77);
        after.handle_brought(now, last.clone(), FOREVER);
        after.handle_brought(now, old.clone(), FOREVER);
        assert_eq!(after.snapshot(), None, "it listens");
        after.handle_timeout(until);
        let told = after.snapshot().unwrap();
        assert_eq!(told.value, last.value);
        assert!(told.token > last.token && told.token.era == 77);
        after.handle_brought(until, old, FOREVER);
        assert_eq!(after.snapshot().unwrap(), told, "too late");
    }
    #[test]
    fn a_note_lasts_as_long_as_its_lease_and_is_brought_by_nobody_else() {
        let (now, short) = (Instant::ORIGIN, Duration::from_secs(1));
        let mut register = Register::fresh();
        let (token, changes) = (register.token(), register.changes());
        register.handle_beat(now, "node", short, b"wish".to_vec());
        let told = register.snapshot().unwrap();
        assert_eq!((told.token, told.notes["node"].as_slice()), (token, &b"wish"[..]));
        register.handle_beat(now, "node", short, b"wish".to_vec());
        assert_eq!(register.changes(), changes + 1, "the same note again is no news");
        register.handle_timeout(now + short);
        assert!(register.snapshot().unwrap().notes.is_empty(), "it went with the lease");
        let mut after = Register::listening(now + short, 77);
        after.handle_brought(now, told, FOREVER);
        after.handle_timeout(now + short);
        let told = after.snapshot().unwrap();
        assert!(told.alive.contains("node") && told.notes.is_empty(), "{told:?}");
        after.handle_beat(now + short, "node", FOREVER, b"wish".to_vec());
        after.handle_beat(now + short, "node", FOREVER, Vec::new());
        assert!(after.snapshot().unwrap().notes.is_empty(), "it was taken back");
    }
}
