//! The best ring, proved, for few members.
//!
//! Both questions are answered over sets of members (Held and Karp, 1962). A path that starts at member 0 is known
//! by the set that it has visited and by its end; how it got there does not matter any more. *Is there a ring?*
//! needs one bit for each (set, end); *which is shortest?* needs one number. The lexicographic cost (slowest, then
//! sum) cannot be had in one pass, because a path with a worse slowest link may still belong to the best ring;
//! so the slowest link is fixed first, by bisection, and then the sum is made small among the links that are left.

use super::costs::{Costs, NO_LINK, Objective};

/// The most members for whom the best ring is proved. Sixteen cost some ten milliseconds and four megabytes, and each member
/// more doubles both.
pub const EXACT_MAX: usize = 16;

/// The best ring of all, or none: then none exists.
///
/// # Panics
/// If there are more than [`EXACT_MAX`] members.
pub(super) fn best(costs: &Costs, objective: Objective) -> Option<Vec<usize>> {
    assert!(costs.len() <= EXACT_MAX, "{} members are too many for an exact answer", costs.len());
    if costs.len() < 2 {
        return Some((0..costs.len()).collect());
    }
    match objective {
        Objective::Sum => shortest(costs),
        Objective::SlowestThenSum => shortest(&costs.up_to(slowest(costs)?)),
    }
}

/// The smallest limit under which a ring exists.
fn slowest(costs: &Costs) -> Option<u64> {
    let limits = costs.distinct();
    let enough = limits.partition_point(|limit| !has_ring(costs, *limit));
    limits.get(enough).copied()
}

/// Whether links that cost no more than `limit` make a ring. `ends[set]` has a bit for each member at which a
/// path from the last member through all of `set` can end.
fn has_ring(costs: &Costs, limit: u64) -> bool {
    let others = costs.len() - 1;
    let into: Vec<u32> = (0..costs.len())
        .map(|to| {
            (0..others).filter(|from| costs.of(*from, to) <= limit).fold(0, |all, from| all | 1 << from)
        })
        .collect();
    let mut ends = vec![0u32; 1 << others];
    for first in (0..others).filter(|first| costs.of(others, *first) <= limit) {
        ends[1 << first] = 1 << first;
    }
    for set in 1..ends.len() {
        let mut open = set as u32;
        while open != 0 {
            let end = open.trailing_zeros() as usize;
            open &= open - 1;
            if ends[set & !(1 << end)] & into[end] != 0 {
                ends[set] |= 1 << end;
            }
        }
    }
    ends[(1 << others) - 1] & into[others] != 0
}

/// The ring with the smallest sum.
fn shortest(costs: &Costs) -> Option<Vec<usize>> {
    let others = costs.len() - 1;
    let full = (1usize << others) - 1;
    // The cheapest way from the last member through all of `set` to `end`, at `set * others + end`.
    let mut way = vec![NO_LINK; (full + 1) * others];
    for first in 0..others {
        way[(1 << first) * others + first] = costs.of(others, first);
    }
    for set in 1..=full {
        for end in (0..others).filter(|end| set >> end & 1 == 1) {
            let before = set & !(1 << end);
            if before != 0 {
                way[set * others + end] =
                    cheapest(costs, &way, before, end).map_or(NO_LINK, |(_, cost)| cost);
            }
        }
    }
    let mut ring = Vec::with_capacity(costs.len());
    let (mut set, mut next) = (full, others);
    while set != 0 {
        let (end, _) = cheapest(costs, &way, set, next)?;
        ring.push(end);
        set &= !(1 << end);
        next = end;
    }
    ring.push(others);
    ring.reverse();
    // Member 0 comes first, as everywhere.
    let zero = ring.iter().position(|member| *member == 0)?;
    ring.rotate_left(zero);
    costs.ring(&ring).map(|_| ring)
}

/// The cheapest way through all of `set` and then to `next`: which end comes before it, and what it costs.
fn cheapest(costs: &Costs, way: &[u64], set: usize, next: usize) -> Option<(usize, u64)> {
    let others = costs.len() - 1;
    let ends = (0..others).filter(|end| set >> end & 1 == 1);
    let sums = ends.filter_map(|end| {
        let (so_far, link) = (way[set * others + end], costs.of(end, next));
        (so_far != NO_LINK && link != NO_LINK).then(|| (end, so_far + link))
    });
    sums.min_by_key(|(_, sum)| *sum)
}
