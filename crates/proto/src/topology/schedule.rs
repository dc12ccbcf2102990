//! Who measures with whom, and when.
//!
//! # The problem
//!
//! Two measurements that share a network card measure each other. All pairs of a large group take too long, and most of
//! them tell nothing new: two processes on one host have the same way to a third, and two hosts behind one uplink share
//! it.
//!
//! # The intuition
//!
//! Members are grouped by *host*, which is where their address is, and hosts by *site*, which is what their operators call
//! them. The first member of a host speaks for it to other hosts of its site; the first host of a site speaks for it to
//! other sites. So the way between two hosts is measured once, and the limit that a site shares is too.
//!
//! ```text
//!    site a                      site b
//!   +-----------------+        +----------------+
//!   |  h1: 1 2 3      |--------|  h3: 6         |     1-2 1-3 (within h1)   1-4 (h1, h2)
//!   |  h2: 4 5        |        |  h4: 7         |     4-5 (within h2)       6-7 (h3, h4)   1-6 (a, b)
//!   +-----------------+        +----------------+
//! ```
//!
//! Every measurement at a host has that host's first member at one end. So it is enough that a member does one thing at
//! a time, and each member can see to that by itself: it goes through its own measurements in their order. The order is
//! one for all (*heats*), so nobody waits for somebody who waits for it.
//!
//! Among more than [`ALL_PAIRS_MAX`] hosts of a site, or sites, each is measured with [`SAMPLE`] others to either side,
//! at distances that grow, and with its neighbours in the ring that they have. A ring over links that were measured
//! nearly always exists among so many.
//!
//! # The invariant
//!
//! In one heat no host occurs twice. Only pairs of which a direction is missing or stale are in it.

use super::links::{Link, Links, STALE_AFTER};
use crate::id::PeerId;
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Among more hosts than this not all pairs are measured (rule 32).
pub const ALL_PAIRS_MAX: usize = 16;

/// With so many others each is measured then.
pub const SAMPLE: usize = 8;

/// A member, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Who.
    pub peer: PeerId,
    /// The host.
    pub host: IpAddr,
    /// The site; empty if nobody has named one.
    pub site: String,
}

/// Who speaks for whom.
#[derive(Clone, Debug)]
pub struct Map<'a> {
    places: &'a [Place],
    /// The members of each host, by site and address, in the order of `places`.
    sites: BTreeMap<&'a str, BTreeMap<IpAddr, Vec<usize>>>,
}

impl<'a> Map<'a> {
    /// Of members in the order of ranks.
    pub fn new(places: &'a [Place]) -> Self {
        let mut sites: BTreeMap<&str, BTreeMap<IpAddr, Vec<usize>>> = BTreeMap::new();
        for (at, place) in places.iter().enumerate() {
            sites.entry(&place.site).or_default().entry(place.host).or_default().push(at);
        }
        Self { places, sites }
    }

    /// The hosts of a site, each with the members on it; who speaks for the site comes first.
    fn hosts(&self, site: &str) -> Vec<&Vec<usize>> {
        let mut hosts: Vec<_> = self.sites.get(site).into_iter().flat_map(BTreeMap::values).collect();
        hosts.sort_unstable_by_key(|members| members.first().copied());
        hosts
    }

    /// What these links say about the ways between hosts and between sites.
    pub fn ways(&self, links: &'a Links) -> Ways<'a> {
        let clusters = self.clusters();
        let at: BTreeMap<_, _> = self.places.iter().map(|place| place.peer).zip(&clusters).collect();
        let known =
            || links.iter().filter_map(|(from, to, link)| Some((*at.get(&from)?, *at.get(&to)?, link)));
        let mut newest = BTreeMap::new();
        for (from, to, link) in known() {
            let at = newest.entry((from.1, to.1)).or_insert(link.at);
            *at = link.at.max(*at);
        }
        let (mut hosts, mut sites) = (BTreeMap::new(), BTreeMap::new());
        let slower = |known: &mut &'a Link, link: &'a Link| {
            if link.rate < known.rate {
                *known = link;
            }
        };
        for (from, to, link) in known() {
            hosts.entry((from.0, to.0)).and_modify(|known| slower(known, link)).or_insert(link);
            let way = (from.1, to.1);
            if from.1 != to.1 && newest[&way].since(link.at) < STALE_AFTER {
                sites.entry(way).and_modify(|known| slower(known, link)).or_insert(link);
            }
        }
        let peers = self.places.iter().map(|place| place.peer).collect();
        Ways { links, peers, clusters, newest, hosts, sites }
    }

    /// For each member the number of its host and of its site.
    pub fn clusters(&self) -> Vec<(u32, u32)> {
        let mut clusters = vec![(0, 0); self.places.len()];
        let mut number = 0;
        for (site, hosts) in (0u32..).zip(self.sites.values()) {
            for members in hosts.values() {
                members.iter().for_each(|at| clusters[*at] = (number, site));
                number += 1;
            }
        }
        clusters
    }

    /// Every pair that is to be known, as places.
    fn pairs(&self, ring: &[PeerId]) -> BTreeSet<(usize, usize)> {
        let mut pairs = BTreeSet::new();
        let mut speakers = Vec::new();
        for site in self.sites.keys() {
            let hosts = self.hosts(site);
            for members in &hosts {
                pairs.extend(members[1..].iter().map(|other| (members[0], *other)));
            }
            let firsts: Vec<_> = hosts.iter().map(|members| members[0]).collect();
            speakers.extend(firsts.first().copied());
            pairs.extend(among(&firsts));
            pairs.extend(self.along(ring, &firsts));
        }
        speakers.sort_unstable();
        pairs.extend(among(&speakers));
        pairs.extend(self.along(ring, &speakers));
        pairs
    }

    /// The pairs of these that follow each other in the ring.
    fn along(&self, ring: &[PeerId], speakers: &[usize]) -> Vec<(usize, usize)> {
        let rank: BTreeMap<_, _> = speakers.iter().map(|at| (self.places[*at].peer, *at)).collect();
        let next = |at: usize| ring[(at + 1) % ring.len()];
        let both = (0..ring.len()).filter_map(|at| Some((*rank.get(&ring[at])?, *rank.get(&next(at))?)));
        both.filter(|(one, other)| one != other)
            .map(|(one, other)| (one.min(other), one.max(other)))
            .collect()
    }
}

type Between<T> = BTreeMap<(u32, u32), T>;

/// What is known of links, measured themselves or by others on the same way.
#[derive(Clone, Debug)]
pub struct Ways<'a> {
    links: &'a Links,
    peers: Vec<PeerId>,
    clusters: Vec<(u32, u32)>,
    /// When anything between two sites was measured last.
    newest: Between<Instant>,
    /// The slowest link between two hosts, and between two sites: several share what limits them.
    hosts: Between<&'a Link>,
    sites: Between<&'a Link>,
}

impl<'a> Ways<'a> {
    /// What is known of a link: measured itself, or between the same hosts, or between the same sites. What a site shares is
    /// measured once, so what one of its links was when it was last measured itself is outdated by a newer figure of another.
    pub fn link(&self, from: usize, to: usize) -> Option<&'a Link> {
        let ((host, site), (other_host, other_site)) = (self.clusters[from], self.clusters[to]);
        let newest = self.newest.get(&(site, other_site)).filter(|_| site != other_site);
        let counts = |link: &&Link| newest.is_none_or(|newest| newest.since(link.at) < STALE_AFTER);
        let own = self.links.of(self.peers[from], self.peers[to]).filter(counts);
        let of_hosts = || self.hosts.get(&(host, other_host)).copied().filter(counts);
        own.or_else(of_hosts).or_else(|| self.sites.get(&(site, other_site)).copied())
    }
}

/// All pairs of these; of many, a sample.
fn among(speakers: &[usize]) -> Vec<(usize, usize)> {
    let len = speakers.len();
    let mut pairs = Vec::new();
    let mut add =
        |a: usize, b: usize| pairs.push((speakers[a].min(speakers[b]), speakers[a].max(speakers[b])));
    if len <= ALL_PAIRS_MAX {
        (0..len).for_each(|a| (a + 1..len).for_each(|b| add(a, b)));
        return pairs;
    }
    for a in 0..len {
        // Distances 1, 2, 4 .. reach everybody in few hops; those in between break the pattern up.
        let mut distances: BTreeSet<_> =
            (0..usize::BITS).map(|power| 1usize << power).filter(|by| *by <= len / 2).collect();
        let mut by = 3;
        while distances.len() < SAMPLE {
            distances.insert(by);
            by += 2;
        }
        distances.into_iter().take(SAMPLE).for_each(|by| add(a, (a + by) % len));
    }
    pairs
}

/// Two members that measure: who dials, and who is dialled, as places.
pub type Pair = (usize, usize);

/// What is to be measured, heat by heat. `failed` are pairs that could not be measured before: they come last, with the
/// other one dialling, because a retry must differ from what failed (rule 16).
pub fn plan(
    now: Instant,
    places: &[Place],
    ring: &[PeerId],
    links: &Links,
    failed: &BTreeSet<(PeerId, PeerId)>,
) -> Vec<Vec<Pair>> {
    let map = Map::new(places);
    let ways = map.ways(links);
    let missing = map.pairs(ring).into_iter().filter(|(one, other)| {
        let is_known = links.is_fresh(now, places[*one].peer, places[*other].peer);
        !is_known && !is_covered(now, &map, &ways, *one, *other)
    });
    let has_failed = |(dials, dialled): &Pair| failed.contains(&(places[*dials].peer, places[*dialled].peer));
    let (again, first): (Vec<_>, Vec<_>) = missing.partition(has_failed);
    let mut heats = fill(places, first);
    heats.extend(fill(places, again.into_iter().map(|(dials, dialled)| (dialled, dials)).collect()));
    heats
}

/// Whether the way between the hosts of two members is known by others: a speaker that has changed asks nothing again.
fn is_covered(now: Instant, map: &Map<'_>, ways: &Ways<'_>, one: usize, other: usize) -> bool {
    let (here, there) = (&map.places[one], &map.places[other]);
    let fresh = |from, to| ways.link(from, to).is_some_and(|link| !link.is_stale(now));
    (here.host, &here.site) != (there.host, &there.site) && fresh(one, other) && fresh(other, one)
}

/// Puts pairs into as few heats as is easy. Pairs whose ends have most left to do go first.
fn fill(places: &[Place], mut pairs: Vec<Pair>) -> Vec<Vec<Pair>> {
    let mut heats = Vec::new();
    while !pairs.is_empty() {
        let mut left: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (one, other) in &pairs {
            for at in [one, other] {
                *left.entry(places[*at].host).or_default() += 1;
            }
        }
        let work = |(one, other): &Pair| left[&places[*one].host].max(left[&places[*other].host]);
        // Stable: equal ones keep the order of ranks, rotated by heat so that nobody is always first.
        pairs.sort_by_key(|pair| std::cmp::Reverse(work(pair)));
        let mut busy: BTreeSet<IpAddr> = BTreeSet::new();
        let mut heat = Vec::new();
        pairs.retain(|(one, other)| {
            let (here, there) = (places[*one].host, places[*other].host);
            if busy.contains(&here) || busy.contains(&there) {
                return true;
            }
            busy.extend([here, there]);
            heat.push((*one, *other));
            false
        });
        heats.push(heat);
    }
    heats
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    fn peer(number: usize) -> PeerId {
        PeerId::from_bytes([number as u8; 16])
    }

    /// Members 0.. with these hosts and sites.
    fn places(hosts: &[(u8, &str)]) -> Vec<Place> {
        let place = |(at, (host, site)): (usize, &(u8, &str))| Place {
            peer: peer(at),
            host: IpAddr::from([10, 0, 0, *host]),
            site: (*site).to_owned(),
        };
        hosts.iter().enumerate().map(place).collect()
    }

    fn apart(count: u8) -> Vec<Place> {
        places(&(0..count).map(|host| (host, "")).collect::<Vec<_>>())
    }

    fn heats(places: &[Place], links: &Links) -> Vec<Vec<Pair>> {
        plan(Instant::ORIGIN, places, &[], links, &BTreeSet::new())
    }

    fn measured(places: &[Place], heats: &[Vec<Pair>], links: &mut Links) {
        let link = Link { rate: 1, round_trip: Duration::ZERO, at: Instant::ORIGIN };
        for (one, other) in heats.iter().flatten() {
            links.note(places[*one].peer, places[*other].peer, link);
            links.note(places[*other].peer, places[*one].peer, link);
        }
    }

    fn pairs(heats: &[Vec<Pair>]) -> BTreeSet<Pair> {
        heats.iter().flatten().map(|(a, b)| (*a.min(b), *a.max(b))).collect()
    }

    #[test]
    fn all_pairs_of_few_hosts_and_no_host_twice_in_a_heat() {
        for count in 2..=16u8 {
            let places = apart(count);
            let heats = heats(&places, &Links::default());
            assert_eq!(pairs(&heats).len(), usize::from(count) * (usize::from(count) - 1) / 2);
            for heat in &heats {
                let hosts: Vec<_> = heat.iter().flat_map(|(a, b)| [a, b]).collect();
                assert_eq!(hosts.iter().collect::<BTreeSet<_>>().len(), hosts.len(), "{heat:?}");
            }
            assert!(heats.len() <= 2 * usize::from(count), "{count} hosts take {} heats", heats.len());
        }
        assert_eq!(heats(&apart(8), &Links::default()).len(), 7, "as few as there can be");
    }

    #[test]
    fn only_what_is_missing_is_measured() {
        let mut links = Links::default();
        let eight = apart(8);
        measured(&eight, &heats(&eight, &links), &mut links);
        assert_eq!(heats(&eight, &links), Vec::<Vec<Pair>>::new());
        let nine = apart(9);
        let news = heats(&nine, &links);
        assert_eq!(pairs(&news), (0..8).map(|other| (other, 8)).collect());
    }

    #[test]
    fn one_speaks_for_its_host_and_one_for_its_site() {
        let all = [(1, "a"), (1, "a"), (1, "a"), (2, "a"), (2, "a"), (3, "b"), (4, "b")];
        let places = places(&all);
        let heats = heats(&places, &Links::default());
        assert_eq!(pairs(&heats), BTreeSet::from([(0, 1), (0, 2), (0, 3), (3, 4), (5, 6), (0, 5)]));
        let mut links = Links::default();
        measured(&places, &heats, &mut links);
        let map = Map::new(&places);
        let ways = map.ways(&links);
        for from in 0..all.len() {
            for to in (0..all.len()).filter(|to| *to != from) {
                assert!(ways.link(from, to).is_some(), "{from} -> {to}");
            }
        }
        assert_eq!(map.clusters(), [(0, 0), (0, 0), (0, 0), (1, 0), (1, 0), (2, 1), (3, 1)]);
    }

    #[test]
    fn the_slowest_speaks_for_a_way_and_a_newer_figure_for_what_a_site_shares() {
        let places = places(&[(1, "a"), (2, "a"), (3, "b"), (4, "b")]);
        let mut links = Links::default();
        let link = |rate, at| Link { rate, round_trip: Duration::ZERO, at: Instant::ORIGIN + at };
        links.note(peer(0), peer(2), link(50, Duration::ZERO));
        links.note(peer(1), peer(2), link(30, Duration::ZERO));
        let map = Map::new(&places);
        let rate = |links: &Links, from, to| map.ways(links).link(from, to).map(|link| link.rate);
        assert_eq!((rate(&links, 0, 2), rate(&links, 0, 3), rate(&links, 2, 0)), (Some(50), Some(30), None));
        assert_eq!(rate(&links, 0, 1), None, "nothing is known within");
        // The speakers measure again when it is old; nobody else need.
        links.note(peer(0), peer(2), link(80, STALE_AFTER));
        assert_eq!((rate(&links, 1, 2), rate(&links, 1, 3)), (Some(80), Some(80)));
        // Within a site links share nothing.
        links.note(peer(2), peer(3), link(10, Duration::ZERO));
        assert_eq!(rate(&links, 2, 3), Some(10));
    }

    #[test]
    fn another_speaker_measures_nothing_again() {
        let places_before = places(&[(1, ""), (1, ""), (2, "")]);
        let mut links = Links::default();
        measured(&places_before, &heats(&places_before, &links), &mut links);
        // The second of the host was measured with the other host by a collective, then the first went.
        let link = Link { rate: 1, round_trip: Duration::ZERO, at: Instant::ORIGIN };
        links.note(peer(1), peer(2), link);
        links.note(peer(2), peer(1), link);
        links.keep(|id| id != peer(0));
        let left = places_before[1..].to_vec();
        assert_eq!(heats(&left, &links), Vec::<Vec<Pair>>::new());
    }

    #[test]
    fn of_many_hosts_a_sample_is_measured_and_the_ring_that_they_have() {
        let places = apart(100);
        let ring: Vec<_> = (0..100).map(|at| peer(at * 37 % 100)).collect();
        let heats = plan(Instant::ORIGIN, &places, &ring, &Links::default(), &BTreeSet::new());
        let pairs = pairs(&heats);
        assert!(pairs.len() <= 100 * (SAMPLE + 1), "{}", pairs.len());
        for at in 0..100 {
            let (one, other) = (at * 37 % 100, (at + 1) * 37 % 100);
            assert!(pairs.contains(&(one.min(other), one.max(other))));
        }
        assert!(heats.len() <= 2 * (2 * SAMPLE + 2), "{} heats", heats.len());
    }

    #[test]
    fn a_pair_that_failed_comes_last_and_the_other_way_round() {
        let places = apart(4);
        let failed = BTreeSet::from([(peer(0), peer(1))]);
        let heats = plan(Instant::ORIGIN, &places, &[], &Links::default(), &failed);
        assert_eq!(heats.last(), Some(&vec![(1, 0)]));
        assert_eq!(pairs(&heats).len(), 6);
    }
}
