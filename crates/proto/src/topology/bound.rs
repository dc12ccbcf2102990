//! What no ring can beat.
//!
//! In a ring everybody has a successor, nobody is the successor of two, and everybody can reach everybody. The first
//! two make a *matching* of senders to receivers; the third makes the links *strongly connected*. Both are quickly
//! checked, and the smallest limit on costs under which both hold is a bound on the slowest link of any ring. On
//! measured links it is nearly always reached.

use super::costs::{Costs, NO_LINK};

/// The smallest cost such that the links up to it pass both checks; none if all links together do not: then there
/// is no ring. `limits` are the costs that occur, smallest first.
pub(super) fn slowest(costs: &Costs, limits: &[u64]) -> Option<u64> {
    let enough = limits.partition_point(|limit| !possible(costs, *limit));
    limits.get(enough).copied()
}

/// Whether all links together pass both checks; if not, there is no ring.
pub(super) fn may_have_ring(costs: &Costs) -> bool {
    possible(costs, NO_LINK)
}

/// Whether links of at most `limit` pass both checks.
fn possible(costs: &Costs, limit: u64) -> bool {
    let limit = limit.min(NO_LINK - 1);
    reaches_all(costs.len(), |from, to| costs.of(from, to) <= limit)
        && reaches_all(costs.len(), |from, to| costs.of(to, from) <= limit)
        && has_matching(costs, limit)
}

/// Whether everybody is reached from member 0.
fn reaches_all(len: usize, link: impl Fn(usize, usize) -> bool) -> bool {
    let mut reached = vec![false; len];
    let mut open = vec![0];
    reached[0] = true;
    let mut count = 1;
    while let Some(from) = open.pop() {
        for (to, reached) in reached.iter_mut().enumerate() {
            if !*reached && link(from, to) {
                *reached = true;
                count += 1;
                open.push(to);
            }
        }
    }
    count == len
}

/// Whether everybody can be given a successor such that nobody is given twice (augmenting paths, breadth first).
fn has_matching(costs: &Costs, limit: u64) -> bool {
    const NOBODY: usize = usize::MAX;
    let len = costs.len();
    let mut sender_of = vec![NOBODY; len];
    let mut came_from = vec![NOBODY; len];
    let mut open = Vec::with_capacity(len);
    for start in 0..len {
        came_from.fill(NOBODY);
        open.clear();
        open.push(start);
        let mut looked = 0;
        let free = 'search: loop {
            let Some(sender) = open.get(looked).copied() else { return false };
            looked += 1;
            for to in 0..len {
                if came_from[to] == NOBODY && costs.of(sender, to) <= limit {
                    came_from[to] = sender;
                    if sender_of[to] == NOBODY {
                        break 'search to;
                    }
                    open.push(sender_of[to]);
                }
            }
        };
        let mut to = free;
        loop {
            let sender = came_from[to];
            let before = sender_of.iter().position(|other| *other == sender);
            sender_of[to] = sender;
            match before {
                Some(before) => to = before,
                None => break,
            }
        }
    }
    true
}
