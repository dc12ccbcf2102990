//! Which hosts are at one site, where nobody has said so.
//!
//! # The problem
//!
//! Hosts behind one uplink share it, so a ring must cross it once each way and not three times. Whoever starts the hosts can
//! say what belongs together (`site=`); mostly nobody does.
//!
//! # The intuition
//!
//! Distance tells. Within a site a round trip takes a fraction of one to anywhere else, and links are faster. If the round
//! trips between hosts are of two kinds with a wide gap between them, and whoever is near to one host of a site is near to all
//! of them, then what is near is a site:
//!
//! ```text
//!       a --0.3-- b                d --0.2-- e         round trips in ms, sorted:
//!        \       /                  \       /           0.2 0.2 0.3 0.3 0.3 0.4 | 8 8 8 9 9 9 ..
//!        0.3   0.4   ---- 8 ----    0.2   0.3                                near | far
//!          \   /                      \   /             sites: a b c, d e f
//!            c                          f
//! ```
//!
//! Of several gaps the lowest counts that divides the hosts so: two buildings of a town are two sites, whatever is overseas.
//!
//! # The invariant
//!
//! When in doubt there are no sites. They are told only if nothing that was measured speaks against them: no pair within one
//! is far, every two have been measured with each other, everybody with enough others, and no link between them is more
//! than half as fast as the middle one within.
//!
//! # What it does not do
//!
//! It does not find out whether two ways really share a limit ([decision 51]); it takes what is near and fast for one place.
//! Where somebody has named a site, only names count.
//!
//! [decision 51]: ../../../../docs/decisions/0051-who-measures-with-whom.md

use super::links::Links;
use super::schedule::{Place, SAMPLE};
use crate::id::PeerId;
use crate::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// What is far takes at least so many times as long as what is near.
const GAP: u32 = 4;
/// Round trips below this are all alike: what they differ by is how busy hosts are. So nothing is far below four times that.
const NEAR_MIN: Duration = Duration::from_micros(250);
/// The fastest link between sites is slower than the middle one within by at least this factor.
const SLOWER: u64 = 2;

/// What was measured between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Between {
    /// The shortest round trip.
    round_trip: Duration,
    /// The rates of the slower and of the faster direction.
    rates: (u64, u64),
}

/// Gives places that have no site the one that the measurements tell of, if they do and nobody has named any.
pub(crate) fn name(places: &mut [Place], links: &Links) {
    if places.iter().any(|place| !place.site.is_empty()) {
        return;
    }
    let mut hosts: Vec<_> = places.iter().map(|place| place.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let host_of = |place: &Place| hosts.binary_search(&place.host).ok();
    let number: BTreeMap<PeerId, usize> =
        places.iter().filter_map(|place| Some((place.peer, host_of(place)?))).collect();
    let mut known: BTreeMap<(usize, usize), Between> = BTreeMap::new();
    for (from, to, link) in links.iter() {
        let (Some(&one), Some(&other)) = (number.get(&from), number.get(&to)) else { continue };
        if one != other {
            let new = Between { round_trip: link.round_trip, rates: (link.rate, link.rate) };
            let cell = known.entry((one.min(other), one.max(other))).or_insert(new);
            cell.round_trip = cell.round_trip.min(link.round_trip);
            cell.rates = (cell.rates.0.min(link.rate), cell.rates.1.max(link.rate));
        }
    }
    let Some(sites) = infer(hosts.len(), &known) else { return };
    for place in places {
        if let Ok(host) = hosts.binary_search(&place.host) {
            // No name that a person would give.
            place.site = format!("site-{}", sites[host] + 1);
        }
    }
}

/// The site of each host, by number, if it can be told. Hosts are numbered from zero, and of a pair the lower comes first.
fn infer(hosts: usize, known: &BTreeMap<(usize, usize), Between>) -> Option<Vec<usize>> {
    let mut measured = vec![0; hosts];
    for (one, other) in known.keys() {
        measured[*one] += 1;
        measured[*other] += 1;
    }
    if hosts < 3 || measured.iter().any(|others| *others < SAMPLE.min(hosts - 1)) {
        return None;
    }
    let mut trips: Vec<_> = known.values().map(|between| between.round_trip.max(NEAR_MIN)).collect();
    trips.sort_unstable();
    trips.dedup();
    let gaps = trips.windows(2).filter(|trips| trips[1] >= GAP * trips[0]);
    gaps.into_iter().find_map(|trips| {
        let is_near = |between: &Between| between.round_trip <= trips[0];
        let sites = together(hosts, known.iter().filter(|(_, it)| is_near(it)).map(|(ends, _)| *ends));
        is_sound(&sites, known, is_near).then_some(sites)
    })
}

/// Numbers hosts so that those which a chain of pairs joins have one number.
fn together(hosts: usize, pairs: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut first: Vec<usize> = (0..hosts).collect();
    let root = |first: &[usize], mut host: usize| {
        while first[host] != host {
            host = first[host];
        }
        host
    };
    for (one, other) in pairs {
        let (one, other) = (root(&first, one), root(&first, other));
        first[one.max(other)] = one.min(other);
    }
    let firsts: Vec<_> = (0..hosts).map(|host| root(&first, host)).collect();
    let order: BTreeSet<_> = firsts.iter().copied().collect();
    let number: BTreeMap<_, _> = order.into_iter().zip(0..).collect();
    firsts.iter().map(|first| number[first]).collect()
}

/// Whether nothing that was measured speaks against these sites.
fn is_sound(
    sites: &[usize],
    known: &BTreeMap<(usize, usize), Between>,
    is_near: impl Fn(&Between) -> bool,
) -> bool {
    let count = sites.iter().copied().max().map_or(0, |last| last + 1);
    if count < 2 || count == sites.len() {
        return false; // One site, or one for each: nothing is gained by it.
    }
    let (mut within, mut across, mut met) = (Vec::new(), 0, BTreeSet::new());
    for ((one, other), it) in known {
        let (here, there) = (sites[*one], sites[*other]);
        if here == there {
            if !is_near(it) {
                return false;
            }
            within.push(it.rates.0);
        } else {
            met.insert((here.min(there), here.max(there)));
            across = it.rates.1.max(across);
        }
    }
    within.sort_unstable();
    let is_slower =
        within.get(within.len() / 2).is_some_and(|inside| across.saturating_mul(SLOWER) <= *inside);
    met.len() == count * (count - 1) / 2 && is_slower
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use crate::topology::Link;
    use std::net::IpAddr;

    /// The cases of `testdata/sites.txt`: hosts, what was measured between them, and the sites that follow.
    #[test]
    fn sites_follow_from_what_was_measured_or_there_are_none() {
        let mut cases = 0;
        for case in include_str!("testdata/sites.txt").split("\ncase ").skip(1) {
            let (title, lines) = case.split_once('\n').expect("a title and lines");
            let (mut hosts, mut known, mut expected) = (Vec::new(), BTreeMap::new(), None);
            for line in lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
            {
                let words: Vec<_> = line.split_whitespace().collect();
                match words[..] {
                    ["hosts", ..] => hosts = words[1..].to_vec(),
                    ["sites", ..] => expected = Some(words[1..].to_vec()),
                    [ones, others, millis, mbit] => {
                        let at = |name: char| {
                            let name = name.to_string();
                            hosts.iter().position(|host| *host == name).expect("a host of the case")
                        };
                        let pairs =
                            ones.chars().flat_map(|one| others.chars().map(move |other| (one, other)));
                        for (one, other) in pairs.map(|(one, other)| (at(one), at(other))) {
                            let millis: f64 = millis.parse().expect("milliseconds");
                            let (slow, fast) = mbit.split_once('-').unwrap_or((mbit, mbit));
                            let rate = |text: &str| text.parse::<u64>().expect("Mbit/s") * 125_000;
                            let rates = (rate(slow), rate(fast));
                            let round_trip = Duration::from_secs_f64(millis / 1_000.0);
                            if one != other {
                                known.insert((one.min(other), one.max(other)), Between { round_trip, rates });
                            }
                        }
                    }
                    _ => panic!("{title}: {line}"),
                }
            }
            let found = infer(hosts.len(), &known).map_or_else(Vec::new, |sites| {
                let count = sites.iter().max().expect("a host") + 1;
                let members = |site: usize| {
                    hosts.iter().zip(&sites).filter(|(_, at)| **at == site).map(|(host, _)| *host).collect()
                };
                (0..count).map(members).collect::<Vec<String>>()
            });
            let expected = expected.unwrap_or_else(|| panic!("{title}: no expectation"));
            let expected: Vec<_> = expected.into_iter().filter(|word| *word != "none").collect();
            assert_eq!(found, expected, "{title}");
            cases += 1;
        }
        assert!(cases >= 10, "{cases} cases were read");
    }

    fn places(sites: [&str; 4]) -> Vec<Place> {
        let place = |(at, site): (u8, &str)| Place {
            peer: PeerId::from_bytes([at; 16]),
            host: IpAddr::from([10, 0, 0, at / 2]),
            site: site.to_owned(),
        };
        (0..4).zip(sites).map(place).collect()
    }

    #[test]
    fn a_name_counts_more_than_any_measurement_and_two_hosts_need_no_sites() {
        let mut links = Links::default();
        let link = Link { rate: 1, round_trip: Duration::from_millis(50), at: Instant::ORIGIN };
        links.note(PeerId::from_bytes([0; 16]), PeerId::from_bytes([2; 16]), link);
        for sites in [["", "", "", "x"], [""; 4]] {
            let mut named = places(sites);
            name(&mut named, &links);
            assert_eq!(named, places(sites));
        }
    }
}
