//! The question that a group puts to the solver: these links, these boundaries, this much work.
//!
//! # The problem
//!
//! Hosts behind one uplink, and processes behind one network card, are no independent ends. Measured one by one their
//! links look fast; a ring that leaves a site twice gets half of each. The solver sees links, and cannot know.
//!
//! # The intuition
//!
//! A ring that crosses each boundary once out and once in shares no uplink with itself, and then the links are as fast as
//! they were measured. So the fewest crossings come first, of sites before those of hosts; then the slowest link; then
//! the sum. A crossing is given a price above that of any ring within, and the solver makes the sum small; the slowest
//! link is found by bisection around that, as everywhere.
//!
//! # What it does not do
//!
//! Where no ring exists that crosses everything once, because links are broken, it crosses as seldom as it can and does not
//! share out what crosses twice.

use super::costs::{COST_MAX, Costs, NO_LINK, Objective, RingCost};
use super::{Answer, Search};

/// What is asked. Equal questions have equal answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// The links.
    pub costs: Costs,
    /// Each member's host and site, by number.
    pub clusters: Vec<(u32, u32)>,
    /// Where chance begins.
    pub seed: u64,
    /// How much work may be done for it.
    pub steps: u64,
}

/// Steps between two looks whether an answer is still wanted: some milliseconds.
const PORTION: u64 = 100_000;

/// What the cost of a link within is scaled to, and the prices of crossing between hosts and between sites. A ring of as
/// many members as there may be costs less than one crossing more, and the largest is within [`COST_MAX`].
const WITHIN_MAX: u64 = 1 << 18;
const HOST_PRICE: u64 = 1 << 28;
const SITE_PRICE: u64 = 1 << 39;

impl Question {
    /// Answers it. `is_off` is asked now and then whether anybody still wants to know; if not, what was found so far is
    /// told.
    pub fn answer(&self, is_off: &dyn Fn() -> bool) -> Answer {
        if !self.has_boundaries() {
            return run(&self.costs, Objective::SlowestThenSum, self.seed, self.steps, is_off);
        }
        let limits = self.costs.distinct();
        let Some(&largest) = limits.last() else {
            return run(&self.costs, Objective::SlowestThenSum, self.seed, self.steps, is_off);
        };
        // One search under every limit that is tried: about as many as the costs have bits.
        let searches = u64::from(usize::BITS - limits.len().leading_zeros()) + 1;
        let ask = |limit: u64| {
            let answer = run(&self.priced(limit), Objective::Sum, self.seed, self.steps / searches, is_off);
            let crossings = answer.ring().map(|ring| self.crossings(ring));
            (answer, crossings)
        };
        let (mut best, Some(fewest)) = ask(largest) else {
            return run(&self.costs, Objective::SlowestThenSum, self.seed, self.steps, is_off);
        };
        let (mut low, mut high) = (0, limits.len() - 1);
        while low < high && !is_off() {
            let aim = low.midpoint(high);
            match ask(limits[aim]) {
                (answer, Some(crossings)) if crossings <= fewest => (best, high) = (answer, aim),
                _ => low = aim + 1,
            }
        }
        best
    }

    /// Whether there is more than one cluster, and one of more than one member.
    fn has_boundaries(&self) -> bool {
        let count = |which: fn(&(u32, u32)) -> u32| {
            self.clusters.iter().map(which).collect::<std::collections::BTreeSet<_>>().len()
        };
        let is_partition = |count: usize| 1 < count && count < self.clusters.len();
        is_partition(count(|(host, _)| *host)) || is_partition(count(|(_, site)| *site))
    }

    /// How often a ring crosses between sites, and between hosts.
    pub fn crossings(&self, ring: &[usize]) -> (usize, usize) {
        let mut crossings = (0, 0);
        for (at, from) in ring.iter().enumerate() {
            let (one, other) = (self.clusters[*from], self.clusters[ring[(at + 1) % ring.len()]]);
            crossings.0 += usize::from(one.1 != other.1);
            crossings.1 += usize::from(one.0 != other.0);
        }
        crossings
    }

    /// The links up to a limit, with the prices of what they cross.
    fn priced(&self, limit: u64) -> Costs {
        Costs::new(self.costs.len(), |from, to| {
            let cost = self.costs.of(from, to);
            if cost > limit || cost == NO_LINK {
                return NO_LINK;
            }
            let scaled = (u128::from(cost) * u128::from(WITHIN_MAX) / u128::from(limit.max(1))) as u64;
            let ((host, site), (other_host, other_site)) = (self.clusters[from], self.clusters[to]);
            let host_price = if host == other_host { 0 } else { HOST_PRICE };
            let site_price = if site == other_site { 0 } else { SITE_PRICE };
            (scaled + host_price + site_price).min(COST_MAX)
        })
    }

    /// What rings are compared by: crossings of sites, of hosts, the slowest link, the sum. None if it uses a link that is
    /// not there.
    pub fn key(&self, ring: &[usize]) -> Option<((usize, usize), RingCost)> {
        let crossings = if self.has_boundaries() { self.crossings(ring) } else { (0, 0) };
        Some((crossings, self.costs.ring(ring)?))
    }
}

fn run(costs: &Costs, objective: Objective, seed: u64, steps: u64, is_off: &dyn Fn() -> bool) -> Answer {
    let mut search = Search::new(costs.clone(), objective, seed);
    while search.steps() < steps && !search.is_over() && !is_off() {
        search.run(PORTION.min(steps - search.steps()));
    }
    search.answer()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const NEVER: &dyn Fn() -> bool = &|| false;

    fn question(costs: Costs, clusters: &[(u32, u32)]) -> Question {
        Question { costs, clusters: clusters.to_vec(), seed: 1, steps: 2_000_000 }
    }

    /// The best by trying all rings.
    fn brute(question: &Question) -> Option<((usize, usize), RingCost)> {
        fn visit(question: &Question, ring: &mut Vec<usize>, best: &mut Option<((usize, usize), RingCost)>) {
            let len = question.costs.len();
            if ring.len() == len {
                let key = question.key(ring);
                if key.is_some() && (best.is_none() || key < *best) {
                    *best = key;
                }
            }
            for next in (0..len).filter(|next| !ring.contains(next)).collect::<Vec<_>>() {
                ring.push(next);
                visit(question, ring, best);
                ring.pop();
            }
        }
        let mut best = None;
        visit(question, &mut vec![0], &mut best);
        best
    }

    #[test]
    fn each_boundary_is_crossed_the_fewest_times_and_then_the_slowest_link_decides() {
        let mut rng = Rng::from_seed(7);
        for number in 0..30 {
            // Three sites, one of them with a host of two.
            let clusters = [(0, 0), (1, 0), (2, 1), (2, 1), (3, 1), (4, 2), (5, 2)];
            let costs = Costs::new(7, |_, _| 1 + rng.below(50) as u64);
            let question = question(costs, &clusters);
            let found = question.answer(NEVER);
            let key = question.key(found.ring().unwrap()).unwrap();
            let best = brute(&question).unwrap();
            assert_eq!((key.0, key.1.slowest), (best.0, best.1.slowest), "question {number}");
            assert_eq!(key.0, (3, 6));
        }
    }

    #[test]
    fn where_links_are_missing_it_crosses_as_seldom_as_can_be() {
        // Two sites of two; the two of site 0 do not reach each other, so it is left twice.
        let clusters = [(0, 0), (1, 0), (2, 1), (3, 1)];
        let costs = Costs::new(4, |from, to| if from < 2 && to < 2 { NO_LINK } else { 5 });
        let question = question(costs, &clusters);
        let ring = question.answer(NEVER).ring().unwrap().to_vec();
        assert_eq!(question.crossings(&ring), (4, 4));
    }

    #[test]
    fn without_boundaries_it_is_the_solver_s_answer() {
        let mut rng = Rng::from_seed(3);
        let costs = Costs::new(8, |_, _| 1 + rng.below(1_000) as u64);
        let apart: Vec<_> = (0..8).map(|host| (host, 0)).collect();
        let plain = super::super::solve(&costs, Objective::SlowestThenSum, 1, 1_000);
        assert_eq!(question(costs.clone(), &apart).answer(NEVER), plain);
        assert_eq!(question(costs, &[(0, 0); 8]).answer(NEVER), plain, "all on one host");
    }

    #[test]
    fn a_question_that_nobody_wants_answered_any_more_ends_at_once() {
        let mut rng = Rng::from_seed(5);
        let costs = Costs::new(60, |_, _| 1 + rng.below(1_000) as u64);
        let clusters: Vec<_> = (0..60).map(|at| (at / 2, at / 20)).collect();
        let question = Question { costs, clusters, seed: 1, steps: u64::MAX };
        assert!(question.answer(&|| true).ring().is_some());
    }
}
