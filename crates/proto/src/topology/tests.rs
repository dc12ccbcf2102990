//! The solver against brute force, against itself, and on rings that are hidden in bad company.

use super::{Answer, COST_MAX, Costs, EXACT_MAX, NO_LINK, Objective, Search, exact, solve};
use crate::rng::Rng;
use std::collections::BTreeSet;

const BOTH: [Objective; 2] = [Objective::SlowestThenSum, Objective::Sum];

/// Random costs; each link is missing with that probability.
fn random(rng: &mut Rng, len: usize, largest: usize, missing: f64) -> Costs {
    Costs::new(len, |_, _| if rng.chance(missing) { NO_LINK } else { 1 + rng.below(largest) as u64 })
}

/// The smallest key of any ring, by trying all orders.
fn by_trying_all(costs: &Costs, objective: Objective) -> Option<(u64, u64)> {
    fn go(costs: &Costs, objective: Objective, ring: &mut Vec<usize>, best: &mut Option<(u64, u64)>) {
        if ring.len() == costs.len() {
            if let Some(cost) = costs.ring(ring) {
                let key = objective.key(cost);
                *best = Some(best.map_or(key, |best| best.min(key)));
            }
            return;
        }
        for next in 1..costs.len() {
            if !ring.contains(&next) {
                ring.push(next);
                go(costs, objective, ring, best);
                ring.pop();
            }
        }
    }
    let mut best = None;
    go(costs, objective, &mut vec![0], &mut best);
    best
}

/// What the answer costs; asserts that it is a ring of everybody over links that exist.
fn key(costs: &Costs, objective: Objective, answer: &Answer) -> Option<(u64, u64)> {
    let ring = answer.ring()?;
    let members: BTreeSet<_> = ring.iter().collect();
    assert!(members.len() == costs.len() && ring.len() == costs.len(), "{ring:?} leaves somebody out");
    Some(objective.key(costs.ring(ring).expect("it uses links that exist")))
}

#[test]
fn the_exact_answer_is_what_trying_all_orders_finds() {
    let mut rng = Rng::from_seed(1);
    for number in 0..300 {
        let missing = [0.0, 0.3, 0.6][number % 3];
        let len = 1 + rng.below(7);
        let costs = random(&mut rng, len, 12, missing);
        for objective in BOTH {
            let answer = solve(&costs, objective, 1, 0);
            assert!(matches!(answer, Answer::Best(_) | Answer::None), "{answer:?}");
            assert_eq!(key(&costs, objective, &answer), by_trying_all(&costs, objective), "{costs:?}");
        }
    }
}

#[test]
fn five_hundred_random_matrices_of_up_to_thirteen_are_solved_to_the_proved_best() {
    let mut rng = Rng::from_seed(2);
    for _ in 0..500 {
        let len = 4 + rng.below(10);
        let costs = random(&mut rng, len, 1_000_000, 0.0);
        let answer = solve(&costs, Objective::SlowestThenSum, 1, 0);
        assert!(matches!(answer, Answer::Best(_)));
        let found = key(&costs, Objective::SlowestThenSum, &answer).unwrap();
        // Nobody does better: not the search either, and a ring below the slowest link does not exist.
        let mut search = Search::unproved(costs.clone(), Objective::SlowestThenSum, 7);
        search.run(2_000);
        assert!(key(&costs, Objective::SlowestThenSum, &search.answer()).unwrap() >= found);
        assert!(exact::best(&costs.up_to(found.0 - 1), Objective::Sum).is_none());
    }
}

#[test]
fn the_search_nearly_always_reaches_the_proved_best() {
    let mut rng = Rng::from_seed(3);
    let (mut worlds, mut reached) = (0, 0);
    for _ in 0..30 {
        let len = 9 + rng.below(EXACT_MAX - 8);
        let costs = random(&mut rng, len, 10_000, 0.2);
        for objective in BOTH {
            let mut search = Search::unproved(costs.clone(), objective, 1);
            search.run(300_000);
            let best = key(&costs, objective, &solve(&costs, objective, 1, 0));
            worlds += 1;
            reached += u32::from(key(&costs, objective, &search.answer()) == best);
        }
    }
    // It proves nothing and promises nothing, but it is rarely beaten.
    assert!(reached * 10 >= worlds * 9, "{reached} of {worlds}");
}

#[test]
fn the_best_sum_may_have_a_slower_slowest_link() {
    let mut rng = Rng::from_seed(4);
    let mut slower = 0;
    for _ in 0..100 {
        let costs = random(&mut rng, 8, 1_000, 0.0);
        let of = |objective| costs.ring(solve(&costs, objective, 1, 0).ring().unwrap()).unwrap();
        let (ours, sum) = (of(Objective::SlowestThenSum), of(Objective::Sum));
        assert!(ours.slowest <= sum.slowest && sum.sum <= ours.sum);
        slower += u32::from(sum.slowest > ours.slowest);
    }
    assert!(slower > 20, "in {slower} of 100 random worlds the sum alone would have cost speed");
}

#[test]
fn a_ring_hidden_among_dead_ends_is_found() {
    // One ring of everybody, and random links of which two per member exist: few rings, many dead ends.
    for (len, seed) in [(20, 1), (40, 2), (64, 3)] {
        let mut rng = Rng::from_seed(seed);
        let mut hidden: Vec<usize> = (0..len).collect();
        rng.shuffle(&mut hidden);
        let mut links = BTreeSet::new();
        for at in 0..len {
            links.insert((hidden[at], hidden[(at + 1) % len]));
            for _ in 0..2 {
                links.insert((at, rng.below(len)));
            }
        }
        let costs = Costs::new(len, |from, to| if links.contains(&(from, to)) { 1 } else { NO_LINK });
        let answer = solve(&costs, Objective::SlowestThenSum, seed, 20_000_000);
        assert!(key(&costs, Objective::SlowestThenSum, &answer).is_some(), "{len} members: {answer:?}");
    }
}

#[test]
fn that_there_is_no_ring_is_proved_where_somebody_has_no_way_in_or_two_share_the_only_one() {
    let len = EXACT_MAX + 10;
    let nobody_reaches_3 = Costs::new(len, |_, to| if to == 3 { NO_LINK } else { 5 });
    assert_eq!(solve(&nobody_reaches_3, Objective::SlowestThenSum, 1, 1_000), Answer::None);
    let share = Costs::new(len, |from, to| if to < 2 && from != 7 { NO_LINK } else { 5 });
    assert_eq!(solve(&share, Objective::Sum, 1, 1_000), Answer::None, "only 7 reaches 0 and 1");
    let halves = Costs::new(len, |from, to| if from < len / 2 && to >= len / 2 { NO_LINK } else { 5 });
    assert_eq!(solve(&halves, Objective::SlowestThenSum, 1, 1_000), Answer::None);
}

#[test]
fn one_seed_and_one_number_of_steps_give_one_answer() {
    let costs = random(&mut Rng::from_seed(5), 40, 1_000, 0.1);
    let once = solve(&costs, Objective::SlowestThenSum, 9, 50_000);
    assert_eq!(once, solve(&costs, Objective::SlowestThenSum, 9, 50_000));
    // Taking the steps in portions changes nothing that a caller could rely on: the answer only gets better.
    let mut search = Search::new(costs.clone(), Objective::SlowestThenSum, 9);
    let mut last = search.cost().map(|cost| (cost.slowest, cost.sum));
    for _ in 0..50 {
        search.run(1_000);
        let now = search.cost().map(|cost| (cost.slowest, cost.sum));
        assert!(last.is_none() || now <= last);
        last = now;
    }
}

#[test]
fn few_members_need_no_search() {
    for len in 0..3 {
        let costs = Costs::new(len, |_, _| 5);
        assert_eq!(solve(&costs, Objective::SlowestThenSum, 1, 10), Answer::Best((0..len).collect()));
    }
    let one_way = Costs::new(2, |from, _| if from == 0 { 5 } else { NO_LINK });
    assert_eq!(solve(&one_way, Objective::SlowestThenSum, 1, 10), Answer::None);
}

#[test]
fn costs_that_are_too_large_count_as_missing_links() {
    let costs = Costs::new(3, |from, to| if (from, to) == (0, 1) { COST_MAX + 1 } else { COST_MAX });
    assert_eq!(costs.of(0, 1), NO_LINK);
    assert_eq!(solve(&costs, Objective::SlowestThenSum, 1, 10), Answer::Best(vec![0, 2, 1]));
}
