//! The active list: everybody who is in the group, except ourselves.
//!
//! Tables are large (every member holds every other), so an entry is small: what is known of all members at
//! all times is here; what is known only of members in doubt lives in a [`super::case::Case`]. Entries are
//! kept in the order of their ids, and probed in a shuffled sweep, so that every member is probed once per
//! sweep and its detection time is bounded (SWIM §4.3).

use super::Path;
use crate::id::PeerId;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::wire::membership::MemberInfo;
use std::sync::Arc;

/// Whether a member's kernel may be believed when it speaks for the process (rule 22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelTrust {
    /// Not tried yet, so not believed; the count says how often trying gave no answer.
    Untried(u8),
    /// Its port accepted, and its closed port refused.
    Trusted,
    /// Something between us answers for others, or refuses for the living.
    Untrusted,
}

/// Whether a member is where it is said to be. A port belongs to one process, and anybody may say that it is at another's
/// address, so only who speaks from there has it (rule 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is said to be there. It may have spoken from there before somebody else was said to be there, too.
    Said,
    /// It spoke from there, and nobody else is said to be there since.
    Proven,
    /// Another member spoke from there since: what the kernel says there is not about this one.
    Replaced,
}

/// What is known of every member at all times.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) info: Arc<MemberInfo>,
    pub(super) incarnation: u32,
    /// Milliseconds of the last ack on our clock, plus one; zero if it never answered us.
    acked_ms: u32,
    /// Microseconds of the last round trip; zero if there was none.
    round_trip_us: u32,
    pub(super) path: Path,
    pub(super) kernel: KernelTrust,
    pub(super) presence: Presence,
}

impl Entry {
    pub(super) fn new(info: Arc<MemberInfo>, incarnation: u32) -> Self {
        Self {
            info,
            incarnation,
            acked_ms: 0,
            round_trip_us: 0,
            path: Path::Datagram,
            kernel: KernelTrust::Untried(0),
            presence: Presence::Said,
        }
    }

    pub(super) fn id(&self) -> PeerId {
        self.info.id
    }

    pub(super) fn note_ack(&mut self, now: Instant, round_trip: Option<Duration>) {
        self.acked_ms = (now.as_millis() as u32).wrapping_add(1).max(1);
        if let Some(round_trip) = round_trip {
            self.round_trip_us = round_trip.as_micros().clamp(1, u128::from(u32::MAX)) as u32;
        }
    }

    /// The last ack, as a moment on our clock. The stored value wraps after 49 days; an age does not.
    pub(super) fn acked(&self, now: Instant) -> Option<Instant> {
        (self.acked_ms != 0).then(|| {
            let age_ms = (now.as_millis() as u32).wrapping_add(1).wrapping_sub(self.acked_ms);
            now - Duration::from_millis(u64::from(age_ms))
        })
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        (self.round_trip_us != 0).then(|| Duration::from_micros(u64::from(self.round_trip_us)))
    }
}

/// The active list and its probe sweep.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    /// Positions in `entries` that are still to be probed in this sweep, last one first.
    sweep: Vec<u32>,
}

impl Table {
    fn position(&self, id: PeerId) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&id, Entry::id)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, id: PeerId) -> Option<&Entry> {
        self.position(id).ok().map(|at| &self.entries[at])
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut Entry> {
        self.position(id).ok().map(|at| &mut self.entries[at])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut()
    }

    /// The entries whose ids follow `after`, in order.
    pub(super) fn following(&self, after: Option<PeerId>) -> &[Entry] {
        let start = match after {
            None => 0,
            Some(id) => match self.position(id) {
                Ok(at) => at + 1,
                Err(at) => at,
            },
        };
        &self.entries[start..]
    }

    /// Adds a member that is not there yet, at a random place in the current sweep.
    pub(super) fn insert(&mut self, entry: Entry, rng: &mut Rng) {
        let Err(at) = self.position(entry.id()) else { return };
        self.entries.insert(at, entry);
        for position in &mut self.sweep {
            if *position as usize >= at {
                *position += 1;
            }
        }
        let place = rng.below(self.sweep.len() + 1);
        self.sweep.insert(place, at as u32);
    }

    pub(super) fn remove(&mut self, id: PeerId) -> Option<Entry> {
        let at = self.position(id).ok()?;
        self.sweep.retain(|&position| position as usize != at);
        for position in &mut self.sweep {
            if *position as usize > at {
                *position -= 1;
            }
        }
        Some(self.entries.remove(at))
    }

    /// The next member to probe; starts a new shuffled sweep when the old one is through.
    pub(super) fn next_in_sweep(&mut self, rng: &mut Rng) -> Option<PeerId> {
        if self.sweep.is_empty() {
            self.sweep.extend(0..self.entries.len() as u32);
            rng.shuffle(&mut self.sweep);
        }
        self.sweep.pop().map(|position| self.entries[position as usize].id())
    }

    /// Up to `count` different random members for which `fits` holds. Looks at a bounded number of them.
    pub(super) fn sample(&self, count: usize, rng: &mut Rng, fits: impl Fn(&Entry) -> bool) -> Vec<PeerId> {
        let size = self.entries.len();
        let mut chosen = Vec::with_capacity(count);
        if size == 0 {
            return chosen;
        }
        if size <= 4 * count {
            let mut all: Vec<_> = self.entries.iter().filter(|entry| fits(entry)).map(Entry::id).collect();
            rng.shuffle(&mut all);
            all.truncate(count);
            return all;
        }
        for _ in 0..8 * count {
            if chosen.len() == count {
                break;
            }
            let entry = &self.entries[rng.below(size)];
            if fits(entry) && !chosen.contains(&entry.id()) {
                chosen.push(entry.id());
            }
        }
        chosen
    }

    /// Replaces the whole table: every member at once, in any order, without a sweep in progress.
    pub(super) fn fill(&mut self, mut entries: Vec<Entry>) {
        entries.sort_by_key(Entry::id);
        entries.dedup_by_key(|entry| entry.id());
        entries.shrink_to_fit();
        self.entries = entries;
        self.sweep.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u8) -> Entry {
        Entry::new(
            Arc::new(MemberInfo {
                id: PeerId::from_bytes([number; 16]),
                address: ([10, 0, 0, number], 1).into(),
                closed_port: 0,
                name: String::new(),
                meta: Vec::new(),
            }),
            0,
        )
    }

    #[test]
    fn every_member_is_probed_once_per_sweep_also_when_members_come_and_go() {
        let mut rng = Rng::from_seed(1);
        let mut table = Table::default();
        (1..=9).for_each(|number| table.insert(entry(number), &mut rng));
        let mut first: Vec<_> = (0..4).filter_map(|_| table.next_in_sweep(&mut rng)).collect();
        let gone = (1..=9).map(|n| entry(n).id()).find(|id| !first.contains(id)).unwrap();
        table.remove(gone);
        table.insert(entry(20), &mut rng);
        first.extend((0..5).filter_map(|_| table.next_in_sweep(&mut rng)));
        first.sort();
        first.dedup();
        assert_eq!(first.len(), 9, "four before the change, four left over, one newcomer");
        assert!(!first.contains(&gone));
    }

    #[test]
    fn a_sample_has_no_doubles_and_only_who_fits() {
        let mut rng = Rng::from_seed(2);
        let mut table = Table::default();
        (1..=40).for_each(|number| table.insert(entry(number), &mut rng));
        for _ in 0..100 {
            let mut sample = table.sample(3, &mut rng, |entry| entry.info.address.port() == 1);
            sample.sort();
            sample.dedup();
            assert_eq!(sample.len(), 3);
        }
        assert!(table.sample(3, &mut rng, |_| false).is_empty());
    }

    #[test]
    fn an_entry_stays_small_because_there_are_as_many_as_members_squared() {
        assert!(size_of::<Entry>() <= 32, "{}", size_of::<Entry>());
    }
}
