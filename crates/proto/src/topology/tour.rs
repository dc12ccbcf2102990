//! A ring that is improved by exchanging two neighbouring stretches of it.
//!
//! Links have directions, so no stretch may be turned around. The smallest change that keeps all directions takes
//! out three links and swaps the two stretches between them:
//!
//! ```text
//!   before   .. a | a' .. b | b' .. c | c' ..        links taken out   a->a'  b->b'  c->c'
//!   after    .. a | b' .. c | a' .. b | c' ..        links put in      a->b'  c->a'  b->c'
//! ```
//!
//! Moving a short stretch elsewhere (Or-opt) is the case in which one of the two is short. The search follows gains:
//! it looks for a cheap new link from a, then for a cheap new link from b, only as long as what was saved so far
//! exceeds what was spent (Lin and Kernighan, 1973), and only among each member's nearest successors. Members whose
//! links have not changed since they were last looked at in vain are not looked at again.

use super::assignment::Weights;

/// How many of a member's nearest successors are tried.
const NEAR_MAX: usize = 12;

pub(super) struct Tour {
    /// The ring.
    at: Vec<u32>,
    /// Where in the ring each member is.
    place: Vec<u32>,
    /// Each member's nearest successors, nearest first, `near_len` for each.
    near: Vec<u32>,
    near_len: usize,
    /// Members to be looked at, and whether each is in the list.
    open: Vec<u32>,
    is_open: Vec<bool>,
    /// The changes since the last [`Tour::commit`], so that they can be taken back.
    log: Vec<Swap>,
    /// What was looked at, all in all: the search's clock.
    pub(super) looks: u64,
    buffer: Vec<u32>,
}

/// Two neighbouring stretches, from `start` on, of that many members each.
#[derive(Clone, Copy)]
struct Swap {
    start: usize,
    first: usize,
    second: usize,
}

impl Tour {
    pub(super) fn new(weights: &Weights, ring: &[usize]) -> Self {
        let len = ring.len();
        let mut tour = Self {
            at: ring.iter().map(|member| *member as u32).collect(),
            place: vec![0; len],
            near: Vec::new(),
            near_len: NEAR_MAX.min(len.saturating_sub(1)),
            open: Vec::new(),
            is_open: vec![false; len],
            log: Vec::new(),
            looks: 0,
            buffer: Vec::new(),
        };
        ring.iter().enumerate().for_each(|(place, member)| tour.place[*member] = place as u32);
        tour.aim(weights);
        tour
    }

    /// Takes new weights into account: who is near, and everybody is to be looked at.
    pub(super) fn aim(&mut self, weights: &Weights) {
        let len = self.at.len();
        self.near.clear();
        let mut others: Vec<u32> = Vec::with_capacity(len);
        for from in 0..len {
            others.clear();
            others.extend((0..len as u32).filter(|to| *to as usize != from));
            let nearest = |to: &u32| (weights.of(from, *to as usize), *to);
            if self.near_len < others.len() {
                others.select_nth_unstable_by_key(self.near_len, nearest);
            }
            others.truncate(self.near_len);
            others.sort_unstable_by_key(nearest);
            self.near.extend_from_slice(&others);
        }
        (0..len).for_each(|member| self.reopen(member));
    }

    pub(super) fn ring(&self) -> impl Iterator<Item = usize> + '_ {
        self.at.iter().map(|member| *member as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    pub(super) fn member(&self, place: usize) -> usize {
        self.at[place % self.at.len()] as usize
    }

    /// Another ring, of the same members; the search's clock goes on.
    pub(super) fn with(&self, ring: &[usize]) -> Self {
        let at: Vec<_> = ring.iter().map(|member| *member as u32).collect();
        let mut place = vec![0; at.len()];
        at.iter().enumerate().for_each(|(at, member)| place[*member as usize] = at as u32);
        Self {
            at,
            place,
            near: self.near.clone(),
            near_len: self.near_len,
            open: Vec::new(),
            is_open: vec![false; ring.len()],
            log: Vec::new(),
            looks: self.looks,
            buffer: Vec::new(),
        }
    }

    /// The changes so far are kept.
    pub(super) fn commit(&mut self) {
        self.log.clear();
    }

    /// The changes since the last commit are taken back.
    pub(super) fn take_back(&mut self) {
        while let Some(Swap { start, first, second }) = self.log.pop() {
            self.swap(Swap { start, first: second, second: first });
        }
        while let Some(member) = self.open.pop() {
            self.is_open[member as usize] = false;
        }
    }

    /// Turns the order of three neighbouring stretches around, each of which keeps its direction: A B C D becomes
    /// A D C B. That changes four links, which no exchange of two stretches undoes. Returns what it costs.
    pub(super) fn shake(&mut self, weights: &Weights, start: usize, lengths: [usize; 3]) -> i64 {
        let [b, c, d] = lengths;
        let len = self.len();
        let cost = |tour: &Self, places: [usize; 4]| -> i64 {
            places.iter().map(|place| weights.of(tour.member(*place), tour.member(place + 1))).sum()
        };
        // The places before which the ring is cut: in front of B, C, D and behind D.
        let cuts = [0, b, b + c, b + c + d].map(|offset| (start + offset + len - 1) % len);
        let old = cost(self, cuts);
        for place in cuts {
            let (one, other) = (self.member(place), self.member(place + 1));
            self.reopen(one);
            self.reopen(other);
        }
        // B C D -> C D B -> D C B.
        self.swap_exactly(Swap { start, first: b, second: c + d });
        self.swap_exactly(Swap { start, first: c, second: d });
        let joints = [0, d, d + c, d + c + b].map(|offset| (start + offset + len - 1) % len);
        cost(self, joints) - old
    }

    /// Improves until nobody who is to be looked at gains anything. Returns what was gained.
    pub(super) fn improve(&mut self, weights: &Weights) -> i64 {
        let mut gained = 0;
        while let Some(member) = self.open.pop() {
            self.is_open[member as usize] = false;
            while let Some((gain, swap)) = self.best_from(weights, member as usize) {
                gained += gain;
                let after = swap.start + swap.first;
                let end = after + swap.second;
                for place in [
                    swap.start + self.len() - 1,
                    swap.start,
                    after + self.len() - 1,
                    after,
                    end + self.len() - 1,
                    end,
                ] {
                    let touched = self.member(place);
                    self.reopen(touched);
                }
                self.apply(swap);
            }
        }
        gained
    }

    fn reopen(&mut self, member: usize) {
        if !std::mem::replace(&mut self.is_open[member], true) {
            self.open.push(member as u32);
        }
    }

    /// The best exchange that takes out the link from `a` to its successor.
    fn best_from(&mut self, weights: &Weights, a: usize) -> Option<(i64, Swap)> {
        let len = self.len();
        let place_a = self.place[a] as usize;
        let a_next = self.member(place_a + 1);
        let out_a = weights.of(a, a_next);
        let mut best: Option<(i64, Swap)> = None;
        for b_next in &self.near[a * self.near_len..(a + 1) * self.near_len] {
            let b_next = *b_next as usize;
            let gain_a = out_a - weights.of(a, b_next);
            if gain_a <= 0 {
                break;
            }
            let place_b = (self.place[b_next] as usize + len - 1) % len;
            let first = (place_b + len - place_a) % len;
            if first == 0 {
                continue;
            }
            let b = self.at[place_b] as usize;
            let gain_b = gain_a + weights.of(b, b_next);
            for c_next in &self.near[b * self.near_len..(b + 1) * self.near_len] {
                let c_next = *c_next as usize;
                let gain = gain_b - weights.of(b, c_next);
                if gain <= 0 {
                    break;
                }
                self.looks += 1;
                let place_c = (self.place[c_next] as usize + len - 1) % len;
                let both = (place_c + len - place_a) % len;
                if both <= first {
                    continue;
                }
                let c = self.at[place_c] as usize;
                let gain = gain + weights.of(c, c_next) - weights.of(c, a_next);
                if gain > best.as_ref().map_or(0, |(best, _)| *best) {
                    best = Some((gain, Swap { start: (place_a + 1) % len, first, second: both - first }));
                }
            }
        }
        best
    }

    fn apply(&mut self, swap: Swap) {
        // On a ring of three stretches, exchanging any two neighbours gives the same ring: take the shortest pair.
        let len = self.len();
        let Swap { start, first, second } = swap;
        let third = len - first - second;
        let swap = if third < first && second >= first.max(third) {
            // The pair without `second`.
            Swap { start: (start + first + second) % len, first: third, second: first }
        } else if third < second && first >= second.max(third) {
            Swap { start: (start + first) % len, first: second, second: third }
        } else {
            swap
        };
        self.swap_exactly(swap);
    }

    /// Exchanges just these two stretches: the places of the others stay.
    fn swap_exactly(&mut self, swap: Swap) {
        self.log.push(swap);
        self.swap(swap);
    }

    fn swap(&mut self, Swap { start, first, second }: Swap) {
        let len = self.len();
        let wrap = |place: usize| if place >= len { place - len } else { place };
        self.buffer.clear();
        self.buffer.extend((0..first).map(|at| self.at[wrap(start + at)]));
        for at in 0..second {
            let member = self.at[wrap(start + first + at)];
            let to = wrap(start + at);
            self.at[to] = member;
            self.place[member as usize] = to as u32;
        }
        for at in 0..first {
            let member = self.buffer[at];
            let to = wrap(start + second + at);
            self.at[to] = member;
            self.place[member as usize] = to as u32;
        }
    }
}
