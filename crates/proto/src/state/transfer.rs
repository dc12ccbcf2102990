//! Who is asked for which leaf: a receiver's plan, made while it goes.
//!
//! What a link carries is known when it has carried something, and it changes. So the plan is not made beforehand: every
//! stream to a donor *asks for work* when it has room, and gets the next leaf that nobody was asked for. A donor that
//! is twice as fast asks twice as often. Two things keep the end from waiting for the slowest:
//!
//! - What a donor may have under way is at most its share of what is left, by what it has delivered so far.
//! - When nothing is left to ask for, a leaf that has been under way for long is asked of another donor as well. The
//!   first answer counts. So a donor that stands still delays a heal by moments, not until somebody calls it dead.
//!
//! A donor that dies, lies, or has changed its tensors is dropped, with its reason, and what it owed goes back to the
//! others. A donor that is *busy* with other receivers is not: what it was asked for goes back, and it is asked again later.
//! Nor is one that is *slow*: every byte that comes is a sign of life, and only silence is none, because over a thin link
//! one leaf may take longer than any patience. Who is dialled at first depends on the receiver's rank, so that many
//! receivers do not all begin with the same donor; the rest are a reserve that replaces the dropped.
//!
//! The invariant: every wanted leaf is delivered exactly once, or the plan says that it is hopeless. It moves no byte
//! and checks no hash: whoever does tells it what came of it.

use crate::id::PeerId;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Donors that one receiver pulls from at once. More would fill no link that eight do not.
pub const DONORS_AT_ONCE: usize = 8;
/// Leaves under way from one donor at most: 16 MiB, what a gigabit holds at 130 ms.
pub const WINDOW: usize = 16;
/// A leaf that is under way for this long is asked of another donor as well, if that one has nothing else to do.
pub const LATE: Duration = Duration::from_millis(750);
/// A donor of which not a byte came for this long, though it owes something, has stalled.
pub const STALLED: Duration = Duration::from_secs(5);

/// Why a donor was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It cannot be reached, or its stream broke.
    Gone(String),
    /// It owes something, and nothing comes.
    Stalled,
    /// What it sent is not what was elected.
    Corrupt,
    /// It says itself that its tensors changed during the sync (rule 27).
    Mutated,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(why) => write!(f, "its stream broke: {why}"),
            Self::Stalled => f.write_str("it delivered nothing for too long"),
            Self::Corrupt => f.write_str("it sent bytes that are not the elected ones"),
            Self::Mutated => f.write_str("its tensors changed during the sync"),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Donor {
    /// What it was asked for and has not delivered, and since when.
    owes: BTreeMap<usize, Instant>,
    delivered: u64,
    /// How many bytes of it have come, of whole leaves and of others.
    bytes: u64,
    /// Since when it owes and nothing has come.
    quiet_since: Option<Instant>,
}

/// A receiver's plan.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Wanted, and nobody was asked.
    free: VecDeque<usize>,
    /// Wanted, asked for or not.
    missing: BTreeSet<usize>,
    reserve: VecDeque<PeerId>,
    donors: BTreeMap<PeerId, Donor>,
    dropped: Vec<(PeerId, Fault)>,
    delivered: BTreeMap<PeerId, u64>,
}

impl Transfer {
    /// A plan to get these leaves from these donors. `rank` spreads receivers over donors.
    pub fn new(wanted: impl IntoIterator<Item = usize>, donors: &[PeerId], rank: usize) -> Self {
        let mut reserve: VecDeque<_> = donors.iter().copied().collect();
        reserve.rotate_left(rank % donors.len().max(1));
        let free: VecDeque<_> = wanted.into_iter().collect();
        let missing = free.iter().copied().collect();
        let (donors, dropped) = (BTreeMap::new(), Vec::new());
        Self { free, missing, reserve, donors, dropped, delivered: BTreeMap::new() }
    }

    /// A donor to dial now, if another is to be engaged.
    pub fn engage(&mut self) -> Option<PeerId> {
        if self.donors.len() >= DONORS_AT_ONCE || self.missing.is_empty() {
            return None;
        }
        let peer = self.reserve.pop_front()?;
        self.donors.insert(peer, Donor::default());
        Some(peer)
    }

    /// The next leaf to ask that donor for, if it should be asked for one more now.
    pub fn next(&mut self, now: Instant, peer: PeerId) -> Option<usize> {
        let allowed = self.allowed(peer)?;
        let donor = self.donors.get(&peer)?;
        if donor.owes.len() >= allowed {
            return None;
        }
        let leaf = match self.free.pop_front() {
            Some(leaf) => leaf,
            None => self.late(now, peer)?,
        };
        let donor = self.donors.get_mut(&peer)?;
        donor.owes.insert(leaf, now);
        donor.quiet_since.get_or_insert(now);
        Some(leaf)
    }

    /// How much that donor may owe: its share of what is left, at least one leaf and at most a window.
    fn allowed(&self, peer: PeerId) -> Option<usize> {
        let donor = self.donors.get(&peer)?;
        let total: u64 = self.donors.values().map(|donor| donor.delivered + 1).sum();
        let share = self.missing.len() as u64 * (donor.delivered + 1) / total.max(1);
        Some((share as usize).clamp(1, WINDOW))
    }

    /// A leaf that another donor owes for too long and this one was not asked for: the one that waits longest.
    fn late(&self, now: Instant, peer: PeerId) -> Option<usize> {
        let ours = &self.donors.get(&peer)?.owes;
        let others = self.donors.iter().filter(|(other, _)| **other != peer);
        let late = others
            .flat_map(|(_, donor)| donor.owes.iter())
            .filter(|(leaf, since)| now.since(**since) >= LATE && !ours.contains_key(leaf))
            .filter(|(leaf, _)| self.missing.contains(leaf));
        late.min_by_key(|(leaf, since)| (**since, **leaf)).map(|(leaf, _)| *leaf)
    }

    /// A leaf came from that donor, and its hash is right. Whether it is the first time: then it is to be kept.
    pub fn delivered(&mut self, now: Instant, peer: PeerId, leaf: usize) -> bool {
        if let Some(donor) = self.donors.get_mut(&peer)
            && donor.owes.remove(&leaf).is_some()
        {
            donor.delivered += 1;
            donor.quiet_since = (!donor.owes.is_empty()).then_some(now);
        }
        let first = self.missing.remove(&leaf);
        if first {
            *self.delivered.entry(peer).or_default() += 1;
        }
        first
    }

    /// So many bytes have come from that donor until now, in all, of whole leaves and of others. More than last time are
    /// a sign of life.
    pub fn heard(&mut self, now: Instant, peer: PeerId, bytes: u64) {
        let Some(donor) = self.donors.get_mut(&peer).filter(|donor| bytes > donor.bytes) else { return };
        donor.bytes = bytes;
        donor.quiet_since = donor.quiet_since.map(|_| now);
    }

    /// That donor will not deliver these, because it is busy or one of its streams broke; it stays engaged.
    pub fn hand_back(&mut self, peer: PeerId, leaves: impl IntoIterator<Item = usize>) {
        let Some(donor) = self.donors.get_mut(&peer) else { return };
        let back: BTreeSet<_> = leaves.into_iter().filter(|leaf| donor.owes.remove(leaf).is_some()).collect();
        if donor.owes.is_empty() {
            donor.quiet_since = None;
        }
        self.release(back);
    }

    /// That donor is of no use any more. What it owed is free again.
    pub fn drop_donor(&mut self, peer: PeerId, fault: Fault) {
        let Some(donor) = self.donors.remove(&peer) else { return };
        self.release(donor.owes.into_keys().collect());
        self.dropped.push((peer, fault));
    }

    /// Nobody was asked for these, unless another donor was as well.
    fn release(&mut self, leaves: BTreeSet<usize>) {
        let asked = |leaf: &usize| self.donors.values().any(|donor| donor.owes.contains_key(leaf));
        let back: Vec<_> =
            leaves.into_iter().filter(|leaf| self.missing.contains(leaf) && !asked(leaf)).collect();
        // In front and in their order: they were wanted first.
        back.into_iter().rev().for_each(|leaf| self.free.push_front(leaf));
    }

    /// Whether that donor is being asked.
    pub fn is_engaged(&self, peer: PeerId) -> bool {
        self.donors.contains_key(&peer)
    }

    /// This process stood still until now (stopped, or starved). Nobody is to blame for what it did not hear meanwhile.
    pub fn handle_stood_still(&mut self, now: Instant) {
        for donor in self.donors.values_mut() {
            donor.quiet_since = donor.quiet_since.map(|_| now);
        }
    }

    /// Donors that stand still; the driver drops them.
    pub fn stalled(&self, now: Instant) -> Vec<PeerId> {
        let still = |donor: &Donor| donor.quiet_since.is_some_and(|since| now.since(since) >= STALLED);
        self.donors.iter().filter(|(_, donor)| still(donor)).map(|(peer, _)| *peer).collect()
    }

    /// When to look again at who is late or stands still; none if nothing is owed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let late = |donor: &Donor| donor.owes.values().min().map(|since| *since + LATE);
        let stalled = |donor: &Donor| donor.quiet_since.map(|since| since + STALLED);
        self.donors.values().flat_map(|donor| [late(donor), stalled(donor)]).flatten().min()
    }

    /// Whether all that was wanted is here.
    pub fn is_done(&self) -> bool {
        self.missing.is_empty()
    }

    /// Whether something is missing and nobody is left to ask.
    pub fn is_hopeless(&self) -> bool {
        !self.is_done() && self.donors.is_empty() && self.reserve.is_empty()
    }

    /// How many leaves are missing.
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Leaves that were kept, by donor.
    pub fn kept(&self) -> &BTreeMap<PeerId, u64> {
        &self.delivered
    }

    /// Who was dropped, and why.
    pub fn dropped(&self) -> &[(PeerId, Fault)] {
        &self.dropped
    }
}
