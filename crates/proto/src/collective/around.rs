//! Finding a ring of peers that avoids broken links (rule 16).
//!
//! The coordinator plans a group's ring, and every member plans the ring of a part of the group, from the same
//! list of broken links: equal lists give equal rings. The order so far is kept where that is easy, because every
//! changed neighbour is a link to dial. How it is searched: [`circuit`]; where that gives up, the solver that orders rings
//! for speed is asked ([`crate::topology`]), with all links alike, so that a ring that exists is found. A member asks it
//! within the same call. The coordinator's clerk has others to serve: it only [looks](look), and has the [question] answered
//! elsewhere.

use super::circuit::{self, Answer, Budget, Graph};
use crate::id::PeerId;
use crate::topology::{self, Costs, NO_LINK, Objective, Question};
use std::collections::{BTreeMap, BTreeSet};

/// What a search for a ring came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// A ring that uses no broken link.
    Ring(Vec<PeerId>),
    /// There is none; that is proved.
    None,
    /// Neither was found within the budget: ask again with the next one.
    Unknown,
}

/// Looks for a ring over `members` (whose order is preferred) that uses no link in `broken`.
pub fn search(members: &[PeerId], broken: &BTreeSet<(PeerId, PeerId)>, budget: Budget) -> Plan {
    match look(members, broken, budget) {
        Plan::Unknown => by_solver(members, broken, budget),
        plan => plan,
    }
}

/// The same without the solver: some milliseconds.
pub fn look(members: &[PeerId], broken: &BTreeSet<(PeerId, PeerId)>, budget: Budget) -> Plan {
    let usable = |at: usize| !broken.contains(&(members[at], members[(at + 1) % members.len()]));
    if broken.is_empty() || members.len() < 2 || (0..members.len()).all(usable) {
        return Plan::Ring(members.to_vec()); // As a rule there is nothing to search for.
    }
    match circuit::find(&graph(members, broken), budget) {
        Answer::Ring(ring) => Plan::Ring(ring.into_iter().map(|place| members[place]).collect()),
        Answer::None => Plan::None,
        Answer::Unknown => Plan::Unknown,
    }
}

/// The same as a question to the solver, with every link alike. Each seed searches in its own order.
pub fn question(
    members: &[PeerId],
    broken: &BTreeSet<(PeerId, PeerId)>,
    (seed, steps): (u64, u64),
) -> Question {
    let apart = (0..members.len() as u32).map(|host| (host, 0)).collect();
    Question { costs: costs(members, broken), clusters: apart, seed, steps }
}

fn graph(members: &[PeerId], broken: &BTreeSet<(PeerId, PeerId)>) -> Graph {
    let place: BTreeMap<_, _> = members.iter().enumerate().map(|(place, peer)| (*peer, place)).collect();
    let mut graph = Graph::complete(members.len());
    for (from, to) in broken {
        if let (Some(from), Some(to)) = (place.get(from), place.get(to)) {
            graph.remove(*from, *to);
        }
    }
    graph
}

fn costs(members: &[PeerId], broken: &BTreeSet<(PeerId, PeerId)>) -> Costs {
    let graph = graph(members, broken);
    Costs::new(members.len(), |from, to| if graph.has(from, to) { 1 } else { NO_LINK })
}

/// Most members for whom the solver is asked: its first look takes the third power of their number in steps, and whoever
/// asks has other things to do.
const SOLVER_MAX: usize = 128;

/// The solver's answer, with every link alike.
fn by_solver(members: &[PeerId], broken: &BTreeSet<(PeerId, PeerId)>, budget: Budget) -> Plan {
    if members.len() > SOLVER_MAX {
        return Plan::Unknown;
    }
    let seed = u64::from(budget.tries) + 1;
    match topology::solve(&costs(members, broken), Objective::SlowestThenSum, seed, budget.steps) {
        topology::Answer::Best(ring) | topology::Answer::Found(ring) => {
            Plan::Ring(ring.into_iter().map(|place| members[place]).collect())
        }
        topology::Answer::None => Plan::None,
        topology::Answer::Unknown => Plan::Unknown,
    }
}

/// A ring over `members` that uses no link in `broken`, if one is found within the first budget.
pub fn plan(members: &[PeerId], broken: &BTreeSet<(PeerId, PeerId)>) -> Option<Vec<PeerId>> {
    match search(members, broken, Budget::FIRST) {
        Plan::Ring(ring) => Some(ring),
        Plan::None | Plan::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

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
    fn where_no_ring_exists_that_is_proved() {
        let members = peers(3);
        let broken: BTreeSet<_> = [(0, 1), (1, 0)].map(|(a, b)| (members[a], members[b])).into();
        assert_eq!(search(&members, &broken, Budget::FIRST), Plan::None);
        let two = peers(2);
        assert_eq!(search(&two, &BTreeSet::from([(two[0], two[1])]), Budget::FIRST), Plan::None);
    }

    #[test]
    fn a_member_that_only_one_other_reaches_has_a_ring() {
        for size in 4..=40 {
            let members = peers(size);
            let broken: BTreeSet<_> = members[2..].iter().map(|from| (*from, members[0])).collect();
            let found = plan(&members, &broken);
            assert!(found.is_some(), "{size} members: 1 -> 3 -> .. -> {size} -> 2 -> 1 is a ring");
        }
    }

    #[test]
    fn where_the_search_here_gives_up_the_solver_finds_the_ring() {
        // One ring of everybody, hidden among two random links for each, and no budget to speak of.
        let members = peers(40);
        let mut rng = Rng::from_seed(2);
        let mut hidden: Vec<_> = (0..40).collect();
        rng.shuffle(&mut hidden);
        let mut links: BTreeSet<_> = (0..40).map(|at| (hidden[at], hidden[(at + 1) % 40])).collect();
        (0..40).for_each(|at| links.extend([(at, rng.below(40)), (at, rng.below(40))]));
        let all = (0..40).flat_map(|from| (0..40).map(move |to| (from, to)));
        let missing = all.filter(|(from, to)| from != to && !links.contains(&(*from, *to)));
        let broken: BTreeSet<_> = missing.map(|(from, to)| (members[from], members[to])).collect();
        let mut budget = Budget { steps: 1 << 21, tries: 0 };
        let found = (0..20).any(|_| {
            let plan = search(&members, &broken, budget);
            budget = budget.next();
            let Plan::Ring(ring) = plan else { return false };
            assert!((0..40).all(|at| !broken.contains(&(ring[at], ring[(at + 1) % 40]))), "{ring:?}");
            true
        });
        assert!(found, "a ring that exists is found");
    }

    #[test]
    fn links_of_strangers_do_not_matter() {
        let (members, all) = (peers(3), peers(5));
        let broken = BTreeSet::from([(all[3], all[0]), (all[0], all[4])]);
        assert_eq!(plan(&members, &broken), Some(members));
    }
}
