//! Search that goes on for as long as one likes, and always has its best ring at hand.
//!
//! A local search ends where no small change helps. So the ring is *shaken*, by a change that small ones do not undo,
//! and mended again where it was shaken; what is no worse than before is kept, everything else is taken back
//! (iterated local search: Martin, Otto and Felten, 1991). Shaking three neighbouring short stretches keeps the work
//! local: a step costs the same in a ring of a thousand as in one of a hundred. Where nothing has helped for long, a
//! change for the worse is kept and the search goes on from there; the best ring so far is not forgotten.
//!
//! For the slowest link the same search answers a question instead: under the limit in hand, links that cost more
//! are *unwanted*, so dear that none is used where there is another way. A ring without them answers "yes" and moves
//! the limit down; a question that was worked on for long enough moves it up. When the limits meet, the search turns to
//! the sum, and later asks again with more patience.

use super::assignment::{UNWANTED, Weights, first_ring};
use super::costs::{Costs, NO_LINK, Objective, RingCost};
use super::tour::Tour;
use super::{Answer, EXACT_MAX, MEMBERS_MAX, bound, exact};
use crate::rng::Rng;

/// Steps that the first questions about the slowest link may take, per member.
const PATIENCE: u64 = 2_000;

/// Steps in vain, per member, after which the search leaves where it is and looks elsewhere.
const STUCK_AFTER: u64 = 50;

/// Members in each of the three stretches that are shaken, at the most.
const STRETCH_MAX: usize = 30;

/// A search for the best ring.
///
/// Calling contract: [`run`](Search::run) it for some steps, look at the [`answer`](Search::answer), and go on or not.
pub struct Search {
    costs: Costs,
    objective: Objective,
    rng: Rng,
    /// What no ring can beat, where the slowest link matters; none if there is no ring.
    bound: Option<u64>,
    /// The costs that occur, smallest first: what a limit can be.
    limits: Vec<u64>,
    stage: Stage,
    patience: u64,
    weights: Weights,
    tour: Tour,
    /// What the tour costs by `weights`.
    tour_cost: i64,
    /// Steps since the tour in hand last got better.
    in_vain: u64,
    best: Option<(RingCost, Vec<usize>)>,
    /// Whether the best ring, or that there is none, is proved.
    proved: bool,
}

/// What is being asked.
enum Stage {
    /// Is there a ring under `limits[aim]`? Below `low` it was asked in vain; from `high` on there is one.
    Narrow { low: usize, aim: usize, high: usize, until: u64 },
    /// Which ring under the limit in hand has the smallest sum?
    Shorten { until: u64 },
    /// There is nothing to search.
    Over,
}

impl Search {
    /// Takes a first look, of about n^3 steps. Up to [`EXACT_MAX`] members that is all: the answer is proved.
    ///
    /// # Panics
    /// If there are more than [`MEMBERS_MAX`] members.
    pub fn new(costs: Costs, objective: Objective, seed: u64) -> Self {
        let exact = (costs.len() <= EXACT_MAX).then(|| exact::best(&costs, objective));
        let mut search = Self::unproved(costs, objective, seed);
        if let Some(best) = exact {
            search.best = best.and_then(|ring| Some((search.costs.ring(&ring)?, ring)));
            search.proved = true;
            search.stage = Stage::Over;
        }
        search
    }

    /// Searches even where an exact answer could be had.
    pub(super) fn unproved(costs: Costs, objective: Objective, seed: u64) -> Self {
        assert!(costs.len() <= MEMBERS_MAX, "{} members are too many to search", costs.len());
        let limits = costs.distinct();
        let bound = match objective {
            Objective::SlowestThenSum => bound::slowest(&costs, &limits),
            // Only whether there may be a ring matters, which takes one look and not one for each limit that is tried.
            Objective::Sum => limits.last().copied().filter(|_| bound::may_have_ring(&costs)),
        };
        let weights = Weights::new(&costs, NO_LINK - 1);
        let ring = first_ring(&weights);
        let tour = Tour::new(&weights, &ring);
        let tour_cost = weights.ring(&ring);
        let patience = PATIENCE * costs.len() as u64;
        let rng = Rng::from_seed(seed);
        let stage = Stage::Over;
        let (best, proved) = (None, bound.is_none());
        let mut search = Self {
            costs,
            objective,
            rng,
            bound,
            limits,
            stage,
            patience,
            weights,
            tour,
            tour_cost,
            in_vain: 0,
            best,
            proved,
        };
        if !search.proved {
            search.mend();
            search.begin();
        }
        search
    }

    /// Searches on for that many steps.
    pub fn run(&mut self, steps: u64) {
        let until = self.tour.looks.saturating_add(steps);
        while self.tour.looks < until && !matches!(self.stage, Stage::Over) {
            self.shake();
            self.review();
        }
    }

    /// What is known so far.
    pub fn answer(&self) -> Answer {
        match &self.best {
            Some((_, ring)) if self.proved => Answer::Best(ring.clone()),
            Some((_, ring)) => Answer::Found(ring.clone()),
            None if self.proved => Answer::None,
            None => Answer::Unknown,
        }
    }

    /// What the best ring costs, if one was found.
    pub fn cost(&self) -> Option<RingCost> {
        self.best.as_ref().map(|(cost, _)| *cost)
    }

    /// Whether searching on changes nothing: the answer is proved.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// How many steps were taken.
    pub fn steps(&self) -> u64 {
        self.tour.looks
    }

    /// Turns to the first question.
    fn begin(&mut self) {
        self.stage = match (self.objective, self.bound) {
            (Objective::Sum, _) => Stage::Shorten { until: u64::MAX },
            (Objective::SlowestThenSum, Some(bound)) => {
                let low = self.limits.partition_point(|limit| *limit < bound);
                let high = self.high();
                // The bound itself first: it is nearly always reached.
                self.ask(low, low, high)
            }
            (Objective::SlowestThenSum, None) => Stage::Over,
        };
    }

    /// From which limit on there is a ring, as far as is known.
    fn high(&self) -> usize {
        match &self.best {
            Some((cost, _)) => self.limits.partition_point(|limit| *limit < cost.slowest),
            None => self.limits.len(),
        }
    }

    fn ask(&mut self, low: usize, aim: usize, high: usize) -> Stage {
        if low >= high {
            return self.shorten();
        }
        self.set_limit(self.limits[aim], true);
        Stage::Narrow { low, aim, high, until: self.tour.looks + self.patience }
    }

    fn shorten(&mut self) -> Stage {
        let Some((cost, ring)) = self.best.clone() else {
            // Nothing was found under any limit: begin again, with more patience.
            self.patience = self.patience.saturating_mul(2);
            let last = self.limits.len() - 1;
            self.set_limit(self.limits[last], true);
            return Stage::Narrow {
                low: last,
                aim: last,
                high: last + 1,
                until: self.tour.looks + self.patience,
            };
        };
        self.tour = self.tour.with(&ring);
        self.set_limit(cost.slowest, false);
        let proved = self.bound == Some(cost.slowest);
        let time = self.patience.saturating_mul(4);
        Stage::Shorten { until: if proved { u64::MAX } else { self.tour.looks.saturating_add(time) } }
    }

    /// Judges links by another limit. `afresh`: begin with the better of the tour in hand and a ring of the
    /// cheapest cycles.
    fn set_limit(&mut self, limit: u64, afresh: bool) {
        self.weights = Weights::new(&self.costs, limit);
        let ring: Vec<_> = self.tour.ring().collect();
        self.tour_cost = self.weights.ring(&ring);
        if afresh {
            let patched = first_ring(&self.weights);
            let cost = self.weights.ring(&patched);
            if cost < self.tour_cost {
                self.tour = self.tour.with(&patched);
                self.tour_cost = cost;
            }
            self.tour.looks += (self.costs.len() * self.costs.len()) as u64;
        }
        self.tour.aim(&self.weights);
        self.mend();
    }

    /// Improves wherever something has changed, and keeps the result.
    fn mend(&mut self) {
        self.tour_cost -= self.tour.improve(&self.weights);
        self.tour.commit();
        self.remember();
    }

    /// One step: shakes the ring somewhere, mends it, and keeps it if it is no worse.
    fn shake(&mut self) {
        // Even a step that finds nothing to look at counts.
        self.tour.looks += 8;
        let len = self.costs.len();
        let longest = ((len - 1) / 3).min(STRETCH_MAX);
        if longest == 0 {
            return;
        }
        let lengths = [0; 3].map(|_: usize| 1 + self.rng.below(longest));
        let start = self.rng.below(len);
        let worse = self.tour.shake(&self.weights, start, lengths);
        let change = worse - self.tour.improve(&self.weights);
        self.in_vain += 1;
        let stuck = self.in_vain > STUCK_AFTER * len as u64;
        if change > 0 && !stuck {
            self.tour.take_back();
            return;
        }
        self.tour.commit();
        self.tour_cost += change;
        if change != 0 {
            self.in_vain = 0;
        }
        if change < 0 {
            self.remember();
        }
    }

    /// Keeps the ring in hand if it is the best so far.
    fn remember(&mut self) {
        if self.tour_cost >= UNWANTED {
            return;
        }
        let ring: Vec<_> = self.tour.ring().collect();
        if let Some(cost) = self.costs.ring(&ring)
            && self.best.as_ref().is_none_or(|(best, _)| self.objective.key(cost) < self.objective.key(*best))
        {
            self.best = Some((cost, ring));
        }
    }

    /// Whether the question in hand is answered or was worked on for long enough.
    fn review(&mut self) {
        match self.stage {
            Stage::Narrow { low, high, .. } if self.tour_cost < UNWANTED => {
                let high = high.min(self.high());
                self.stage = self.ask(low, low.midpoint(high), high);
            }
            Stage::Narrow { aim, high, until, .. } if self.tour.looks >= until => {
                let low = aim + 1;
                self.stage = self.ask(low, low.midpoint(high), high);
            }
            Stage::Shorten { until } if self.tour.looks >= until => {
                self.patience = self.patience.saturating_mul(2);
                self.begin();
            }
            _ => {}
        }
    }
}
