//! What is known of the links between members: how fast each direction is, how long a round trip takes, and since when.
//!
//! A link is measured in both directions, because they differ: at home one comes in ten times as fast as one goes out.
//! Everything has an age. What is old is measured again, and what a member that is gone knew goes with it.
//!
//! The coordinator holds one of these for each group, and it holds nothing that could not be told again: every member
//! remembers what it measured itself and brings it along with its vote, so a coordinator that was restarted knows after
//! the next vote what the one before it knew.

use crate::id::PeerId;
use crate::limits::LINKS_MAX;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// A link that was measured longer ago than this is measured again.
pub const STALE_AFTER: Duration = Duration::from_mins(30);

/// What is known of one directed link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Bytes per second that arrive.
    pub rate: u64,
    /// There and back, without queues.
    pub round_trip: Duration,
    /// When it was measured.
    pub at: Instant,
}

impl Link {
    /// Whether it is worth being measured again.
    pub fn is_stale(&self, now: Instant) -> bool {
        now.since(self.at) >= STALE_AFTER
    }
}

/// What is known of all links of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Links {
    cells: BTreeMap<(PeerId, PeerId), Link>,
    /// The same, the oldest first.
    by_age: BTreeSet<(Instant, (PeerId, PeerId))>,
}

impl Links {
    /// Takes down what was measured; what is known to be newer stays. At most [`LINKS_MAX`] links are remembered: the
    /// oldest goes.
    pub fn note(&mut self, from: PeerId, to: PeerId, link: Link) {
        let ends = (from, to);
        let known = self.cells.get(&ends).map(|known| known.at);
        if from == to || known.is_some_and(|at| at > link.at) {
            return;
        }
        if let Some(at) = known {
            self.by_age.remove(&(at, ends));
        }
        self.cells.insert(ends, link);
        self.by_age.insert((link.at, ends));
        if self.cells.len() > LINKS_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.cells.remove(&oldest);
        }
    }

    /// One link, if it was measured.
    pub fn of(&self, from: PeerId, to: PeerId) -> Option<&Link> {
        self.cells.get(&(from, to))
    }

    /// Whether both directions of a pair are known and not stale.
    pub fn is_fresh(&self, now: Instant, one: PeerId, other: PeerId) -> bool {
        let fresh = |from, to| self.of(from, to).is_some_and(|link| !link.is_stale(now));
        fresh(one, other) && fresh(other, one)
    }

    /// All links that are known.
    pub fn iter(&self) -> impl Iterator<Item = (PeerId, PeerId, &Link)> {
        self.cells.iter().map(|((from, to), link)| (*from, *to, link))
    }

    /// Forgets the links of everybody for whom this is false.
    pub fn keep(&mut self, is_here: impl Fn(PeerId) -> bool) {
        self.cells.retain(|(from, to), _| is_here(*from) && is_here(*to));
        self.by_age.retain(|(_, ends)| self.cells.contains_key(ends));
    }

    /// How many links are known.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId::from_bytes([number; 16])
    }

    fn link(rate: u64, at: u64) -> Link {
        Link { rate, round_trip: Duration::from_millis(1), at: Instant::ORIGIN + Duration::from_secs(at) }
    }

    #[test]
    fn the_two_directions_are_two_links_and_the_newest_counts() {
        let mut links = Links::default();
        links.note(peer(1), peer(2), link(10, 5));
        links.note(peer(2), peer(1), link(90, 5));
        links.note(peer(1), peer(2), link(20, 4));
        assert_eq!(
            (links.of(peer(1), peer(2)), links.of(peer(2), peer(1))),
            (Some(&link(10, 5)), Some(&link(90, 5)))
        );
        links.note(peer(1), peer(2), link(30, 6));
        assert_eq!(links.of(peer(1), peer(2)).map(|link| link.rate), Some(30));
        links.note(peer(1), peer(1), link(1, 9));
        assert_eq!(links.len(), 2, "nobody has a link to itself");
    }

    #[test]
    fn what_is_old_or_known_one_way_only_is_not_fresh() {
        let mut links = Links::default();
        let now = |seconds| Instant::ORIGIN + Duration::from_secs(seconds);
        links.note(peer(1), peer(2), link(10, 5));
        assert!(!links.is_fresh(now(6), peer(1), peer(2)));
        links.note(peer(2), peer(1), link(10, 5));
        assert!(links.is_fresh(now(6), peer(1), peer(2)) && links.is_fresh(now(6), peer(2), peer(1)));
        assert!(!links.is_fresh(now(5) + STALE_AFTER, peer(1), peer(2)));
    }

    #[test]
    fn where_there_is_no_room_the_oldest_goes() {
        let mut links = Links::default();
        let far = |number: usize| PeerId::from_bytes((number as u128).to_be_bytes());
        for number in 1..=LINKS_MAX {
            links.note(far(0), far(number), link(10, 5 + number as u64));
        }
        // The oldest is measured again: now another one is.
        links.note(far(0), far(1), link(10, 1 << 20));
        links.note(far(1), far(0), link(10, 1 << 20));
        assert_eq!(links.len(), LINKS_MAX);
        assert!(links.of(far(1), far(0)).is_some() && links.of(far(0), far(1)).is_some());
        assert!(links.of(far(0), far(2)).is_none() && links.of(far(0), far(3)).is_some());
        links.note(far(2), far(0), link(10, 1));
        assert!(links.of(far(2), far(0)).is_none(), "older than all that is known");
        links.keep(|peer| peer != far(1));
        (0..3).for_each(|number| links.note(far(9), far(10 + number), link(10, 1 << 21)));
        assert_eq!(links.len(), LINKS_MAX, "who is gone takes no room");
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let mut links = Links::default();
        links.note(peer(1), peer(2), link(10, 5));
        links.note(peer(2), peer(3), link(10, 5));
        links.keep(|id| id != peer(3));
        assert_eq!(links.iter().map(|(from, to, _)| (from, to)).collect::<Vec<_>>(), [(peer(1), peer(2))]);
    }
}
