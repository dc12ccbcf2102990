//! Finding a ring that avoids broken links (rule 16).
//!
//! The order so far is kept as far as possible, because every changed neighbour is a link to dial. A search
//! with a bounded number of steps is enough: broken links are few, and where they are many no ring is worth
//! having.

use crate::id::PeerId;
use std::collections::BTreeSet;

/// Steps after which the search gives up.
const STEPS_MAX: usize = 20_000;

/// A ring over `members` (whose order is preferred) that uses no link in `broken`.
pub(super) fn plan(members: &[PeerId], broken: &BTreeSet<(PeerId, PeerId)>) -> Option<Vec<PeerId>> {
    let fits = |ring: &[PeerId]| {
        ring.len() < 2 || (0..ring.len()).all(|at| !broken.contains(&(ring[at], ring[(at + 1) % ring.len()])))
    };
    if fits(members) {
        return Some(members.to_vec());
    }
    let (first, rest) = members.split_first()?;
    let mut steps = STEPS_MAX;
    let mut ring = vec![*first];
    let mut left: Vec<_> = rest.to_vec();
    extend(&mut ring, &mut left, broken, &mut steps).then_some(ring)
}

fn extend(
    ring: &mut Vec<PeerId>,
    left: &mut Vec<PeerId>,
    broken: &BTreeSet<(PeerId, PeerId)>,
    steps: &mut usize,
) -> bool {
    let last = ring[ring.len() - 1];
    if left.is_empty() {
        return !broken.contains(&(last, ring[0]));
    }
    for at in 0..left.len() {
        if *steps == 0 {
            return false;
        }
        *steps -= 1;
        if broken.contains(&(last, left[at])) {
            continue;
        }
        let next = left.remove(at);
        ring.push(next);
        if extend(ring, left, broken, steps) {
            return true;
        }
        ring.pop();
        left.insert(at, next);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(count: u8) -> Vec<PeerId> {
        (1..=count).map(|number| PeerId::from_bytes([number; 16])).collect()
    }

    #[test]
    fn a_ring_without_broken_links_keeps_its_order() {
        let members = peers(5);
        assert_eq!(plan(&members, &BTreeSet::new()), Some(members));
    }

    #[test]
    fn a_broken_link_is_avoided_in_its_direction_only() {
        let members = peers(4);
        let broken = BTreeSet::from([(members[1], members[2])]);
        let ring = plan(&members, &broken).unwrap();
        assert!((0..4).all(|at| !broken.contains(&(ring[at], ring[(at + 1) % 4]))), "{ring:?}");
        let three = peers(3);
        let one_way = BTreeSet::from([(three[0], three[1])]);
        assert_eq!(plan(&three, &one_way), Some(vec![three[0], three[2], three[1]]));
    }

    #[test]
    fn where_no_ring_exists_none_is_found() {
        let members = peers(3);
        let broken: BTreeSet<_> = [(0, 1), (1, 0)].map(|(a, b)| (members[a], members[b])).into();
        assert_eq!(plan(&members, &broken), None);
        assert_eq!(plan(&peers(2), &BTreeSet::from([(peers(2)[0], peers(2)[1])])), None);
    }

    #[test]
    fn a_large_group_gives_up_in_bounded_time() {
        let members = peers(200);
        // Nobody reaches the last one: no ring, and no search through all orders either.
        let broken = members.iter().map(|from| (*from, members[199])).collect();
        assert_eq!(plan(&members, &broken), None);
    }
}
