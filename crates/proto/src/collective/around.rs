//! Finding a ring that avoids broken links (rule 16).
//!
//! The coordinator plans a group's ring, and every member plans the ring of a part of the group, from the same
//! list of broken links: equal lists give equal rings.
//!
//! The order so far is kept as far as possible, because every changed neighbour is a link to dial. A search
//! with a bounded number of steps is enough: broken links are few, and where they are many no ring is worth
//! having.

use crate::id::PeerId;
use std::collections::BTreeSet;

/// Steps after which the search gives up.
const STEPS_MAX: usize = 20_000;

/// A ring over `members` (whose order is preferred) that uses no link in `broken`.
pub fn plan(members: &[PeerId], broken: &BTreeSet<(PeerId, PeerId)>) -> Option<Vec<PeerId>> {
    let fits = |ring: &[PeerId]| {
        ring.len() < 2 || (0..ring.len()).all(|at| !broken.contains(&(ring[at], ring[(at + 1) % ring.len()])))
    };
    if fits(members) {
        return Some(members.to_vec());
    }
    // Depth first, without recursion: a ring may be longer than a stack is deep. `ring[..at]` is placed;
    // `choice[at]` says how many of the rest were tried in its place.
    let mut ring = members.to_vec();
    let mut choice = vec![0; ring.len()];
    let mut at = 1;
    for _ in 0..STEPS_MAX + members.len() {
        if at == ring.len() {
            if !broken.contains(&(ring[at - 1], ring[0])) {
                return Some(ring);
            }
            at -= 1;
            // What was chosen last goes back to where it was.
            ring[at..=at + choice[at]].rotate_left(1);
            choice[at] += 1;
        }
        match (at + choice[at]..ring.len()).find(|next| !broken.contains(&(ring[at - 1], ring[*next]))) {
            Some(next) => {
                choice[at] = next - at;
                // The rest keeps its order.
                ring[at..=next].rotate_right(1);
                at += 1;
                if at < ring.len() {
                    choice[at] = 0;
                }
            }
            None if at == 1 => return None,
            None => {
                at -= 1;
                ring[at..=at + choice[at]].rotate_left(1);
                choice[at] += 1;
            }
        }
    }
    None
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

    #[test]
    fn a_ring_of_thousands_is_mended_without_recursion() {
        let members: Vec<_> =
            (0..16_000u128).map(|number| PeerId::from_bytes(number.to_be_bytes())).collect();
        let broken = BTreeSet::from([(members[7], members[8]), (members[15_999], members[0])]);
        let ring = plan(&members, &broken).unwrap();
        let uses = |at: usize| broken.contains(&(ring[at], ring[(at + 1) % ring.len()]));
        assert!((0..ring.len()).all(|at| !uses(at)));
        assert_eq!(ring.iter().collect::<BTreeSet<_>>().len(), 16_000);
    }

    #[test]
    fn a_ring_is_found_whenever_one_exists() {
        // All graphs of four members: compared with trying every order.
        let members = peers(4);
        let pairs: Vec<_> =
            (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
        let orders = [[0, 1, 2, 3], [0, 1, 3, 2], [0, 2, 1, 3], [0, 2, 3, 1], [0, 3, 1, 2], [0, 3, 2, 1]];
        for mask in 0..1u32 << pairs.len() {
            let chosen = pairs.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
            let broken: BTreeSet<_> = chosen.map(|(_, (a, b))| (members[*a], members[*b])).collect();
            let works = |order: &[usize; 4]| {
                (0..4).all(|at| !broken.contains(&(members[order[at]], members[order[(at + 1) % 4]])))
            };
            let found = plan(&members, &broken);
            assert_eq!(found.is_some(), orders.iter().any(works), "{broken:?}");
            if let Some(ring) = found {
                assert!((0..4).all(|at| !broken.contains(&(ring[at], ring[(at + 1) % 4]))));
            }
        }
    }
}
