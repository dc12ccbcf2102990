//! Who may shake hands now, and who gives way.
//!
//! A handshake costs a descriptor, some memory and a fraction of a millisecond, and it is owed to everybody who
//! knocks: nobody has proved anything yet. So places are few, and what matters is who loses one when there are
//! none left. Refusing whoever comes last is the wrong answer: a stranger who holds the places and says nothing
//! would keep every member out for as long as he likes. Here whoever comes *in* gets a place, and somebody else
//! gives way:
//!
//! 1. who has not said a word yet before who has: our diallers speak at once;
//! 2. among those, who comes from the source that holds the most places: a source crowds out itself first;
//! 3. among those, the oldest: an honest handshake is over in a few round trips.
//!
//! Members' addresses are *known* ([`KnownSources`]): strangers never take a known one's place, and some places
//! are never given to strangers. A source is an IPv4 address or an IPv6 network of 64 bits, because whoever has
//! one address of such a network has them all.
//!
//! The invariant: at most `total` handshakes are under way, at most `total - kept` of them of strangers, at most
//! `per_source` of one strange source.

use super::RefusedConnection;
use crate::sync::{read, write};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::RwLock;

/// Sources that are remembered because somebody proved itself from there; the longest forgotten goes first.
const PROVEN_MAX: usize = 4_096;

/// Where a connection comes from, as far as it matters for fairness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                Self(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

/// Where members are: told by whoever knows the roster, and learned from proofs.
#[derive(Debug, Default)]
pub struct KnownSources(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    expected: BTreeSet<Source>,
    proven: BTreeSet<Source>,
    /// The proven ones in the order in which they are forgotten.
    order: VecDeque<Source>,
}

impl KnownSources {
    /// These addresses are the roster's now; what was said before is forgotten.
    pub fn expect(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let expected = addresses.into_iter().map(Source::of).collect();
        write(&self.0).expected = expected;
    }

    /// Somebody at that address has shown to belong to the run.
    pub fn meet(&self, address: IpAddr) {
        self.prove(Source::of(address));
    }

    /// Somebody who belongs to the run came from there.
    pub(super) fn prove(&self, source: Source) {
        if self.contains(source) {
            return;
        }
        let mut known = write(&self.0);
        if known.order.len() >= PROVEN_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.proven.remove(&oldest);
        }
        if known.proven.insert(source) {
            known.order.push_back(source);
        }
    }

    pub(super) fn contains(&self, source: Source) -> bool {
        let known = read(&self.0);
        known.expected.contains(&source) || known.proven.contains(&source)
    }
}

/// How many places there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    pub(super) total: usize,
    /// Of these, never given to strangers.
    pub(super) kept: usize,
    /// Of one strange source.
    pub(super) per_source: usize,
}

/// Names one handshake under way. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
struct Taken {
    source: Source,
    known: bool,
    silent: bool,
}

/// The handshakes under way.
#[derive(Debug)]
pub(super) struct Places {
    capacity: Capacity,
    next: u64,
    taken: BTreeMap<Ticket, Taken>,
}

/// What became of somebody who came in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entered {
    pub(super) ticket: Ticket,
    /// Who gave way, and why.
    pub(super) displaced: Option<(Ticket, RefusedConnection)>,
}

impl Places {
    pub(super) fn new(capacity: Capacity) -> Self {
        let total = capacity.total.max(1);
        let capacity = Capacity {
            total,
            kept: capacity.kept.min(total - 1),
            per_source: capacity.per_source.clamp(1, total),
        };
        Self { capacity, next: 0, taken: BTreeMap::new() }
    }

    /// Somebody knocks. It always gets a place.
    pub(super) fn enter(&mut self, source: Source, known: bool) -> Entered {
        let displaced = self.make_room(source, known);
        if let Some((ticket, _)) = &displaced {
            self.taken.remove(ticket);
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.taken.insert(ticket, Taken { source, known, silent: true });
        Entered { ticket, displaced }
    }

    /// Its first byte came.
    pub(super) fn spoke(&mut self, ticket: Ticket) {
        if let Some(taken) = self.taken.get_mut(&ticket) {
            taken.silent = false;
        }
    }

    /// The handshake is over, or its place was taken: then nothing happens.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.taken.remove(&ticket);
    }

    /// Everybody who has not said a word gives way: descriptors are short.
    pub(super) fn drop_silent(&mut self) -> Vec<Ticket> {
        let silent: Vec<_> =
            self.taken.iter().filter(|(_, taken)| taken.silent).map(|(ticket, _)| *ticket).collect();
        self.taken.retain(|_, taken| !taken.silent);
        silent
    }

    pub(super) fn len(&self) -> usize {
        self.taken.len()
    }

    fn make_room(&self, source: Source, known: bool) -> Option<(Ticket, RefusedConnection)> {
        let Capacity { total, kept, per_source } = self.capacity;
        let count = |which: &dyn Fn(&Taken) -> bool| self.taken.values().filter(|taken| which(taken)).count();
        let is_strange = |taken: &Taken| !taken.known;
        if !known && count(&|taken| taken.source == source && is_strange(taken)) >= per_source {
            let victim = self.victim(&|taken| taken.source == source && is_strange(taken));
            return victim.map(|ticket| (ticket, RefusedConnection::TooManyFromSource));
        }
        let strangers_full = !known && count(&is_strange) >= total - kept;
        if !strangers_full && self.taken.len() < total {
            return None;
        }
        // A member's place goes to a stranger never, a stranger's to a member first.
        let victim = self.victim(&is_strange).or_else(|| self.victim(&|_| known));
        victim.map(|ticket| (ticket, RefusedConnection::TooMany))
    }

    fn victim(&self, may_go: &dyn Fn(&Taken) -> bool) -> Option<Ticket> {
        let mut held: BTreeMap<Source, usize> = BTreeMap::new();
        for taken in self.taken.values().filter(|taken| may_go(taken)) {
            *held.entry(taken.source).or_default() += 1;
        }
        let candidates = self.taken.iter().filter(|(_, taken)| may_go(taken));
        let first = candidates.min_by_key(|(ticket, taken)| {
            (!taken.silent, Reverse(held.get(&taken.source).copied()), **ticket)
        });
        first.map(|(ticket, _)| *ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    fn places(total: usize, kept: usize, per_source: usize) -> Places {
        Places::new(Capacity { total, kept, per_source })
    }

    fn enter(places: &mut Places, from: &str) -> Ticket {
        let entered = places.enter(source(from), false);
        assert_eq!(entered.displaced, None, "there is room for {from}");
        entered.ticket
    }

    #[test]
    fn the_oldest_silent_one_gives_way_and_who_spoke_stays() {
        let mut places = places(3, 0, 3);
        let spoke = enter(&mut places, "10.0.0.1");
        places.spoke(spoke);
        let silent = enter(&mut places, "10.0.0.1");
        let younger = enter(&mut places, "10.0.0.1");
        places.spoke(younger);
        let entered = places.enter(source("10.0.0.9"), false);
        assert_eq!(entered.displaced, Some((silent, RefusedConnection::TooMany)));
        assert_eq!(places.len(), 3);
    }

    #[test]
    fn a_source_crowds_out_itself_before_others() {
        let mut places = places(4, 0, 4);
        let lonely = enter(&mut places, "10.0.0.1");
        let first = enter(&mut places, "10.0.0.2");
        enter(&mut places, "10.0.0.2");
        enter(&mut places, "10.0.0.2");
        for _ in 0..2 {
            let entered = places.enter(source("10.0.0.2"), false);
            assert_ne!(entered.displaced.as_ref().map(|(ticket, _)| *ticket), Some(lonely));
        }
        assert!(!places.taken.contains_key(&first), "the oldest of the source that holds the most");
        // The same if nobody is silent any more: who trickles bytes is no better.
        let tickets: Vec<_> = places.taken.keys().copied().collect();
        tickets.into_iter().for_each(|ticket| places.spoke(ticket));
        places.enter(source("10.0.0.3"), false);
        assert!(places.taken.contains_key(&lonely));
    }

    #[test]
    fn strangers_never_take_a_known_ones_place_nor_the_kept_ones() {
        let mut places = places(4, 2, 4);
        for number in 0..100 {
            places.enter(source(&format!("10.0.1.{number}")), false);
            assert!(places.len() <= 2, "two places are kept");
        }
        let member = places.enter(source("10.0.0.1"), true);
        assert_eq!(member.displaced, None, "a kept place");
        places.enter(source("10.0.0.1"), true);
        let third = places.enter(source("10.0.0.2"), true);
        assert!(third.displaced.is_some(), "a stranger gives way to a member");
        for number in 0..100 {
            places.enter(source(&format!("10.0.1.{number}")), false);
            assert!(places.taken.contains_key(&member.ticket) && places.len() <= 4);
        }
        for _ in 0..10 {
            places.enter(source("10.0.0.2"), true);
            assert!(places.len() <= 4, "members give way to members");
        }
    }

    #[test]
    fn one_strange_source_has_a_share_of_its_own() {
        let mut places = places(8, 0, 2);
        enter(&mut places, "10.0.0.1");
        enter(&mut places, "10.0.0.1");
        let third = places.enter(source("10.0.0.1"), false);
        assert!(matches!(third.displaced, Some((_, RefusedConnection::TooManyFromSource))));
        assert_eq!(places.len(), 2);
    }

    #[test]
    fn ipv6_is_counted_by_network_and_mapped_ipv4_by_address() {
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
    }

    #[test]
    fn known_sources_are_bounded_and_the_roster_is_replaced() {
        let known = KnownSources::default();
        let address = |number: usize| IpAddr::from(std::net::Ipv4Addr::from(u32::try_from(number).unwrap()));
        known.expect([address(1)]);
        known.expect([address(2)]);
        assert!(!known.contains(Source::of(address(1))) && known.contains(Source::of(address(2))));
        for number in 10..10 + PROVEN_MAX + 5 {
            known.prove(Source::of(address(number)));
        }
        assert!(!known.contains(Source::of(address(10))) && known.contains(Source::of(address(15))));
    }

    #[test]
    fn when_descriptors_are_short_all_silent_ones_go() {
        let mut places = places(4, 0, 4);
        let silent = enter(&mut places, "10.0.0.1");
        let spoke = enter(&mut places, "10.0.0.1");
        places.spoke(spoke);
        assert_eq!(places.drop_silent(), [silent]);
        assert_eq!(places.len(), 1);
    }
}
