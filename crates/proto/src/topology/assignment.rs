//! A good first ring: the cheapest set of cycles, patched together.
//!
//! Give every member one successor and one predecessor at the lowest total cost, without asking that it be one
//! ring: that is the assignment problem, solved exactly by shortest augmenting paths in at most n^3 steps (Jonker
//! and Volgenant, 1987). On asymmetric costs the answer is often a few long cycles that cost nearly as much as the
//! best ring, and never more. Then the two cycles that are cheapest to join are joined until one is left (Karp, 1979).
//! Asymmetric instances that defeat local search, because their links are mostly one-way, are often solved by this
//! alone.

use super::costs::Costs;

/// Costs as local search and assignment see them: every link has a finite cost, and those that are missing or
/// unwanted cost so much that they are used only where there is no other way.
pub(super) struct Weights {
    len: usize,
    cells: Vec<i64>,
}

/// What an unwanted link costs on top: more than any ring of wanted ones.
pub(super) const UNWANTED: i64 = 1 << 51;

impl Weights {
    /// Links that cost more than `limit` are unwanted.
    pub(super) fn new(costs: &Costs, limit: u64) -> Self {
        let len = costs.len();
        let mut cells = vec![0; len * len];
        for from in 0..len {
            for to in (0..len).filter(|to| *to != from) {
                let cost = costs.of(from, to);
                cells[from * len + to] = if cost <= limit { cost as i64 } else { UNWANTED };
            }
        }
        Self { len, cells }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn of(&self, from: usize, to: usize) -> i64 {
        self.cells[from * self.len + to]
    }

    pub(super) fn ring(&self, ring: &[usize]) -> i64 {
        (0..ring.len()).map(|at| self.of(ring[at], ring[(at + 1) % ring.len()])).sum()
    }
}

/// A ring made of the cheapest cycles.
pub(super) fn first_ring(weights: &Weights) -> Vec<usize> {
    let mut next = successors(weights);
    patch(weights, &mut next);
    let mut ring = Vec::with_capacity(weights.len());
    let mut at = 0;
    for _ in 0..weights.len() {
        ring.push(at);
        at = next[at];
    }
    ring
}

/// The cheapest choice of one successor for everybody such that nobody is chosen twice.
fn successors(weights: &Weights) -> Vec<usize> {
    const NOBODY: usize = usize::MAX;
    let len = weights.len();
    // Itself is never a choice: it costs more than any number of unwanted links could save.
    let itself = UNWANTED.saturating_mul(4);
    let cost = |row: usize, column: usize| if row == column { itself } else { weights.of(row, column) };
    let (mut row_price, mut column_price) = (vec![0i64; len], vec![0i64; len]);
    let mut chosen_by = vec![NOBODY; len];
    let mut distance = vec![0i64; len];
    let mut came_from = vec![0usize; len];
    let mut done = vec![false; len];
    for start in 0..len {
        // The cheapest chain of changes that ends in a column which nobody has chosen (Dijkstra over columns).
        distance.iter_mut().enumerate().for_each(|(column, distance)| {
            *distance = cost(start, column) - row_price[start] - column_price[column];
        });
        came_from.fill(start);
        done.fill(false);
        let (free, reached) = loop {
            let nearest = (0..len).filter(|column| !done[*column]).min_by_key(|column| distance[*column]);
            let Some(column) = nearest else { unreachable!("there are as many columns as rows") };
            let reached = distance[column];
            done[column] = true;
            let row = chosen_by[column];
            if row == NOBODY {
                break (column, reached);
            }
            for other in (0..len).filter(|other| !done[*other]) {
                let through = reached + cost(row, other) - row_price[row] - column_price[other];
                if through < distance[other] {
                    distance[other] = through;
                    came_from[other] = row;
                }
            }
        };
        row_price[start] += reached;
        for column in (0..len).filter(|column| done[*column] && *column != free) {
            row_price[chosen_by[column]] += reached - distance[column];
            column_price[column] -= reached - distance[column];
        }
        // Follow the chain back: each row on it takes the column that it came through.
        let mut column = free;
        loop {
            let row = came_from[column];
            let before = chosen_by.iter().position(|by| *by == row);
            chosen_by[column] = row;
            match before {
                Some(before) if row != start => column = before,
                _ => break,
            }
        }
    }
    let mut next = vec![0; len];
    chosen_by.iter().enumerate().for_each(|(column, row)| next[*row] = column);
    next
}

/// Joins cycles, two at a time, where that costs least.
fn patch(weights: &Weights, next: &mut [usize]) {
    loop {
        let mut cycle_of = vec![usize::MAX; next.len()];
        let mut sizes = Vec::new();
        for start in 0..next.len() {
            if cycle_of[start] == usize::MAX {
                let (mut at, mut size) = (start, 0);
                while cycle_of[at] == usize::MAX {
                    cycle_of[at] = sizes.len();
                    size += 1;
                    at = next[at];
                }
                sizes.push(size);
            }
        }
        if sizes.len() <= 1 {
            return;
        }
        // The largest cycle takes in the one that is cheapest to take in.
        let largest = (0..sizes.len()).max_by_key(|cycle| sizes[*cycle]).unwrap_or(0);
        let mut best = (i64::MAX, 0, 0);
        for a in (0..next.len()).filter(|a| cycle_of[*a] == largest) {
            for b in (0..next.len()).filter(|b| cycle_of[*b] != largest) {
                let more = weights.of(a, next[b]) + weights.of(b, next[a])
                    - weights.of(a, next[a])
                    - weights.of(b, next[b]);
                best = best.min((more, a, b));
            }
        }
        next.swap(best.1, best.2);
    }
}
