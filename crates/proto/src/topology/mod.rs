//! Which ring is best: a directed travelling salesman's problem, solved for the slowest link first.
//!
//! # The problem
//!
//! A ring's all-reduce sends every byte over every link, all links at once, so it runs at the pace of the slowest
//! one. Between far-apart machines links differ by a factor of a hundred, and in the two directions of one pair
//! too. Nobody knows the best order by looking, and there are (n - 1)! of them.
//!
//! # The intuition
//!
//! Cost is time per byte. The first question is about the slowest link alone: *is there a ring of links that cost
//! no more than this?* It is asked by bisection, between what no ring can beat (everybody needs one link in and one
//! out) and what was found already. Among rings with the same slowest link the sum decides, which is the ordinary
//! asymmetric travelling salesman's problem.
//!
//! | members | answer | file |
//! |---|---|---|
//! | up to [`EXACT_MAX`] | the best ring, or a proof that there is none | `exact` |
//! | up to [`MEMBERS_MAX`] | the cheapest cycles patched into a ring, then local search that is shaken and mended for as long as one likes | `assignment`, `tour`, `search` |
//!
//! # The invariant
//!
//! Whatever is returned is a ring of links that exist, and one that is called the best is. One seed and one number
//! of steps give one answer, on every machine: steps are counted, not seconds, so that the simulator can run it.
//!
//! # Around it
//!
//! | question | file |
//! |---|---|
//! | what is known of the links, and since when? | `links` |
//! | who measures with whom, without disturbing each other? | `schedule` |
//! | which hosts are at one site, if nobody has said so? | `sites` |
//! | what do the two say to each other? | `probe` |
//! | which ring crosses the fewest boundaries, and is the fastest of those? | `question` |
//! | how long will a collective take on it? | `forecast` |
//! | and what does one that ran say about its link? | `carried` |
//!
//! # What it does not do
//!
//! It measures nothing, and the solver does not know what a member or a byte is: it sees a square of numbers. It does not
//! decide when to search: a quick answer and a long search in the background are the same [`Search`], run for fewer
//! or more steps.

mod assignment;
mod bound;
mod carried;
mod costs;
mod exact;
mod forecast;
mod links;
pub mod probe;
mod question;
pub mod schedule;
mod search;
mod sites;
#[cfg(test)]
mod tests;
mod tour;

pub use carried::{Carried, Figure};
pub use costs::{COST_MAX, Costs, NO_LINK, Objective, RingCost};
pub use exact::EXACT_MAX;
pub use forecast::Forecast;
pub use links::{Link, Links, STALE_AFTER};
pub use question::Question;
pub use search::Search;
pub(crate) use sites::name as name_sites;

/// The most members whose ring is searched for. The square of costs for them takes eight megabytes.
pub const MEMBERS_MAX: usize = 1_024;

/// What is known about the best ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// This ring, and there is none better.
    Best(Vec<usize>),
    /// This ring; perhaps there is a better one.
    Found(Vec<usize>),
    /// There is no ring: proved.
    None,
    /// No ring was found, and it was not proved that there is none: search on.
    Unknown,
}

impl Answer {
    /// The ring, if there is one.
    pub fn ring(&self) -> Option<&[usize]> {
        match self {
            Self::Best(ring) | Self::Found(ring) => Some(ring),
            Self::None | Self::Unknown => None,
        }
    }
}

/// The answer after that many steps; fewer are taken where the answer is proved sooner.
///
/// # Panics
/// If there are more than [`MEMBERS_MAX`] members.
pub fn solve(costs: &Costs, objective: Objective, seed: u64, steps: u64) -> Answer {
    let mut search = Search::new(costs.clone(), objective, seed);
    search.run(steps);
    search.answer()
}
