//! Most constrained first: arcs are fixed one by one, and fixed arcs form paths that grow together.
//!
//! In each step the vertex that has the fewest arcs left, to leave by or to be entered by, gets its next arc; one
//! that has none sends the search back. As soon as no arc is missing between the end of one path and the
//! beginning of another, the paths are joined in their order, and the ring is there. So the depth is about the
//! number of vertices that miss an arc, not the number of vertices.

use super::{Answer, Budget, Graph};

/// A vertex and the side on which it needs an arc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Leave(usize),
    Enter(usize),
}

struct Choice {
    need: Need,
    /// How many of the candidates were tried.
    tried: usize,
    arc: Option<(usize, usize)>,
}

struct Paths<'a> {
    graph: &'a Graph,
    next: Vec<Option<usize>>,
    previous: Vec<Option<usize>>,
    /// Of a path's last vertex, its first; and of its first, its last. Other entries mean nothing.
    first: Vec<usize>,
    last: Vec<usize>,
    count: usize,
    /// Vertices that miss an arc to leave by, and to be entered by.
    leaving: Vec<usize>,
    entering: Vec<usize>,
}

enum Look {
    /// Nothing that is missing matters any more.
    Free,
    /// Somebody has no arc left.
    Stuck,
    Need(Need),
}

impl<'a> Paths<'a> {
    fn new(graph: &'a Graph) -> Self {
        let count = graph.vertices();
        let marked = |lists: &[Vec<u32>]| (0..count).filter(|vertex| !lists[*vertex].is_empty()).collect();
        Self {
            graph,
            next: vec![None; count],
            previous: vec![None; count],
            first: (0..count).collect(),
            last: (0..count).collect(),
            count,
            leaving: marked(&graph.not_to),
            entering: marked(&graph.not_from),
        }
    }

    /// Whether an arc may be fixed now: both sides need one, and it does not close a ring too early.
    fn may(&self, from: usize, to: usize) -> bool {
        self.next[from].is_none()
            && self.previous[to].is_none()
            && (self.first[from] != to || self.count == 1)
            && self.graph.has(from, to)
    }

    fn fix(&mut self, (from, to): (usize, usize)) {
        let (first, last) = (self.first[from], self.last[to]);
        (self.next[from], self.previous[to]) = (Some(to), Some(from));
        (self.first[last], self.last[first]) = (first, last);
        self.count -= 1;
    }

    /// Takes back the arc that was fixed last.
    fn loosen(&mut self, (from, to): (usize, usize)) {
        // What was inside the path is as it was when it was its end.
        let (first, last) = (self.first[from], self.last[to]);
        (self.next[from], self.previous[to]) = (None, None);
        (self.first[last], self.last[first]) = (to, from);
        self.count += 1;
    }

    fn look(&self) -> Look {
        if self.count == 1 {
            return Look::Free;
        }
        let mut fewest: Option<(usize, Need)> = None;
        let leaving = self.leaving.iter().filter(|from| self.next[**from].is_none()).map(|from| {
            let own = self.first[*from];
            let missing = self.graph.not_to[*from].iter().map(|to| *to as usize);
            (Need::Leave(*from), missing.filter(|to| self.previous[*to].is_none() && *to != own).count())
        });
        let entering = self.entering.iter().filter(|to| self.previous[**to].is_none()).map(|to| {
            let own = self.last[*to];
            let missing = self.graph.not_from[*to].iter().map(|from| *from as usize);
            (Need::Enter(*to), missing.filter(|from| self.next[*from].is_none() && *from != own).count())
        });
        for (need, missing) in leaving.chain(entering) {
            // One end and one beginning per path; its own does not count.
            let left = self.count - 1 - missing;
            if left == 0 {
                return Look::Stuck;
            }
            if missing > 0 && fewest.is_none_or(|(fewest, _)| left < fewest) {
                fewest = Some((left, need));
            }
        }
        fewest.map_or(Look::Free, |(_, need)| Look::Need(need))
    }

    /// The arc that is tried as the `tried`-th: the neighbour in order first, then those behind it; where to begin
    /// depends on the tries before.
    fn candidate(&self, need: Need, tried: usize, tries: u32) -> (usize, usize) {
        let all = self.next.len();
        let (Need::Leave(vertex) | Need::Enter(vertex)) = need;
        let turn = (tries as usize).wrapping_mul(0x9E37 + vertex) % all;
        let step = (tried + turn) % all;
        match need {
            Need::Leave(from) => (from, (from + 1 + step) % all),
            Need::Enter(to) => ((to + all - 1 + (all - step)) % all, to),
        }
    }

    /// Joins the paths in the order of their first vertices.
    fn ring(&self) -> Option<Vec<usize>> {
        let begins = (0..self.next.len()).filter(|vertex| self.previous[*vertex].is_none());
        let mut ring = Vec::with_capacity(self.next.len());
        for begin in begins {
            let mut at = Some(begin);
            while let Some(vertex) = at {
                ring.push(vertex);
                at = self.next[vertex];
            }
        }
        self.graph.is_ring(&ring).then_some(ring)
    }
}

pub(super) fn find(graph: &Graph, budget: Budget) -> Answer {
    let mut paths = Paths::new(graph);
    let mut choices: Vec<Choice> = Vec::new();
    // Looking costs what is missing, and a candidate costs one.
    let look = graph.missing() as u64 + 1;
    let mut spent = 0;
    loop {
        spent += look;
        match paths.look() {
            Look::Free => {
                if let Some(ring) = paths.ring() {
                    return Answer::Ring(ring);
                }
            }
            Look::Stuck => {}
            Look::Need(need) => choices.push(Choice { need, tried: 0, arc: None }),
        }
        // The next arc of the last choice that has one.
        loop {
            let Some(choice) = choices.last_mut() else { return Answer::None };
            if let Some(arc) = choice.arc.take() {
                paths.loosen(arc);
            }
            while choice.arc.is_none() && choice.tried < graph.vertices() {
                let (from, to) = paths.candidate(choice.need, choice.tried, budget.tries);
                choice.tried += 1;
                spent += 1;
                choice.arc = paths.may(from, to).then_some((from, to));
            }
            match choice.arc {
                Some(arc) => {
                    paths.fix(arc);
                    break;
                }
                None => {
                    choices.pop();
                }
            }
        }
        if spent > budget.steps {
            return Answer::Unknown;
        }
    }
}
