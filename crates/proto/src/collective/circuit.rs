//! Is there a ring through all vertices of a directed graph, and if so, which?
//!
//! The question costs peers their places when it is answered wrongly (rule 16), so there are three answers, not
//! two: a ring; a proof that there is none; or neither within the budget, which obliges the caller to ask again
//! with a larger one. The question is hard in general (it is Hamilton's), but the graphs here are not general:
//! almost everybody reaches almost everybody.
//!
//! # The intuition
//!
//! Four searches, each for what the one before it is bad at:
//! 1. *In order*: depth first, keeping the order of the vertices. Where few arcs are missing it ends at once, and
//!    the ring that it finds changes the fewest neighbours.
//! 2. *Exact*, up to [`EXACT_MAX`] vertices: which vertices can begin a path through this set that ends at vertex
//!    0? Sets are bits, so all of them fit a table (Held and Karp, without the costs). Ring or proof, always.
//! 3. *Proofs* for larger graphs: a vertex set that cannot be left, or so many vertices that share so few
//!    successors that not all of them can have one of their own.
//! 4. *Most constrained first*, up to the budget: whoever has the fewest arcs left chooses first; as soon as
//!    nobody who is left misses an arc that matters, the rest is joined in order.
//!
//! # The invariant
//!
//! The answer is a pure function of graph and budget: equal questions get equal rings on every machine. A
//! ring that is returned passes each vertex once and uses only arcs of the graph. `None` is returned only after
//! the whole space was searched or one of the two proofs holds.
//!
//! # What it does not do
//!
//! It knows no costs and no peers; [`around`](super::around) knows the peers.

mod exact;
mod inorder;
mod proofs;
mod search;
#[cfg(test)]
mod tests;

/// Up to this many vertices the answer is always exact, whatever the budget.
pub const EXACT_MAX: usize = 16;

/// A directed graph, kept as what is missing from the complete one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// For each vertex, sorted: whom it does not reach, and who does not reach it.
    not_to: Vec<Vec<u32>>,
    not_from: Vec<Vec<u32>>,
}

impl Graph {
    /// Every vertex of `0..vertices` reaches every other.
    pub fn complete(vertices: usize) -> Self {
        assert!(u32::try_from(vertices).is_ok(), "{vertices} vertices are more than a graph may have");
        Self { not_to: vec![Vec::new(); vertices], not_from: vec![Vec::new(); vertices] }
    }

    /// How many vertices there are.
    pub fn vertices(&self) -> usize {
        self.not_to.len()
    }

    /// Takes one arc away.
    ///
    /// # Panics
    /// If one of the ends is no vertex.
    pub fn remove(&mut self, from: usize, to: usize) {
        for (list, other) in [(&mut self.not_to[from], to as u32), (&mut self.not_from[to], from as u32)] {
            if let Err(place) = list.binary_search(&other) {
                list.insert(place, other);
            }
        }
    }

    /// Whether there is an arc.
    pub fn has(&self, from: usize, to: usize) -> bool {
        from != to && self.not_to[from].binary_search(&(to as u32)).is_err()
    }

    /// Whether that order of the vertices is a ring of this graph. One vertex alone is a ring without arcs.
    pub fn is_ring(&self, order: &[usize]) -> bool {
        order.len() < 2 || (0..order.len()).all(|at| self.has(order[at], order[(at + 1) % order.len()]))
    }

    fn missing(&self) -> usize {
        self.not_to.iter().map(Vec::len).sum()
    }
}

/// How long to search where the answer is not found at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// About how many arcs may be looked at.
    pub steps: u64,
    /// How often the question was asked before: each try takes the arcs in another order.
    pub tries: u32,
}

impl Budget {
    /// What is worth spending without thinking: some milliseconds.
    pub const FIRST: Self = Self { steps: 1 << 19, tries: 0 };
    /// What one question may cost at most, so that whoever asks is not away for long.
    const STEPS_MAX: u64 = 1 << 21;

    /// The first budget in another order, for whoever has the rest of the work done elsewhere.
    #[must_use]
    pub fn again(self) -> Self {
        Self { steps: Self::FIRST.steps, tries: self.tries.wrapping_add(1) }
    }

    /// The budget for asking again: twice as much, in another order.
    #[must_use]
    pub fn next(self) -> Self {
        Self { steps: (2 * self.steps).min(Self::STEPS_MAX), tries: self.tries.wrapping_add(1) }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A ring: each vertex once, in this order, and back to the first.
    Ring(Vec<usize>),
    /// There is none; that is proved.
    None,
    /// Neither a ring nor a proof was found within the budget.
    Unknown,
}

/// Looks for a ring through all vertices. The order of the vertices is kept where that is easy.
pub fn find(graph: &Graph, budget: Budget) -> Answer {
    let count = graph.vertices();
    let order: Vec<_> = (0..count).collect();
    if graph.is_ring(&order) {
        return Answer::Ring(order);
    }
    let mut answer = inorder::find(graph);
    if answer == Answer::Unknown {
        answer = match count {
            ..=EXACT_MAX => exact::find(graph),
            _ if proofs::none(graph) => Answer::None,
            _ => search::find(graph, budget),
        };
    }
    if let Answer::Ring(ring) = &mut answer {
        let first = ring.iter().position(|vertex| *vertex == 0).unwrap_or(0);
        ring.rotate_left(first);
        assert!(ring.len() == count && graph.is_ring(ring), "a ring uses only what is there: {ring:?}");
    }
    answer
}
