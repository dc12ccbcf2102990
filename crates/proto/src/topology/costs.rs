//! What each directed link costs a ring, and what a whole ring costs.

/// Stands for a link that cannot be used.
pub const NO_LINK: u64 = u64::MAX;

/// The largest cost of one link. A ring of as many members as a solver takes then adds up without overflow.
pub const COST_MAX: u64 = 1 << 40;

/// The cost of every directed link between `len` members, who are numbered from zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    len: usize,
    cells: Vec<u64>,
}

impl Costs {
    /// Asks `cost` for each pair (from, to). What is above [`COST_MAX`] counts as [`NO_LINK`].
    pub fn new(len: usize, mut cost: impl FnMut(usize, usize) -> u64) -> Self {
        let mut cells = vec![NO_LINK; len * len];
        for from in 0..len {
            for to in (0..len).filter(|to| *to != from) {
                let cost = cost(from, to);
                cells[from * len + to] = if cost > COST_MAX { NO_LINK } else { cost };
            }
        }
        Self { len, cells }
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The cost of one link, [`NO_LINK`] if it cannot be used. Nobody has a link to itself.
    pub fn of(&self, from: usize, to: usize) -> u64 {
        self.cells[from * self.len + to]
    }

    /// The cost of a ring, or none if it uses a link that is not there.
    pub fn ring(&self, ring: &[usize]) -> Option<RingCost> {
        let mut cost = RingCost::default();
        if ring.len() < 2 {
            return Some(cost);
        }
        for (at, from) in ring.iter().enumerate() {
            match self.of(*from, ring[(at + 1) % ring.len()]) {
                NO_LINK => return None,
                link => {
                    cost.slowest = cost.slowest.max(link);
                    cost.sum += link;
                }
            }
        }
        Some(cost)
    }

    /// The same links without those that cost more than `limit`.
    #[must_use]
    pub fn up_to(&self, limit: u64) -> Self {
        let cells = self.cells.iter().map(|cost| if *cost > limit { NO_LINK } else { *cost });
        Self { len: self.len, cells: cells.collect() }
    }

    /// Every cost that occurs, smallest first, each once.
    pub fn distinct(&self) -> Vec<u64> {
        let mut all: Vec<_> = self.cells.iter().copied().filter(|cost| *cost != NO_LINK).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// What a ring costs. A pipelined ring runs at its slowest link, so that one decides; the sum, which is the way
/// of one byte around the ring, decides between rings of equal slowest links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingCost {
    /// The cost of the costliest link.
    pub slowest: u64,
    /// The cost of all links together.
    pub sum: u64,
}

/// What is to be made small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// The slowest link, then the sum: what a ring's time depends on.
    #[default]
    SlowestThenSum,
    /// The sum alone, as in the travelling salesman's problem. For comparisons with published tours.
    Sum,
}

impl Objective {
    /// What rings are compared by.
    pub fn key(self, cost: RingCost) -> (u64, u64) {
        match self {
            Self::SlowestThenSum => (cost.slowest, cost.sum),
            Self::Sum => (0, cost.sum),
        }
    }
}
