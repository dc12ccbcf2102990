//! Two reasons why a graph has no ring, each found in little time.

use super::Graph;
use std::collections::{BTreeSet, VecDeque};

/// Whether one of the reasons holds. If not, there may be a ring or not.
pub(super) fn none(graph: &Graph) -> bool {
    let forwards = |from: usize| &graph.not_to[from];
    let backwards = |to: usize| &graph.not_from[to];
    !reaches_all(graph, forwards) || !reaches_all(graph, backwards) || !has_successors(graph)
}

/// Whether every vertex can be reached from the first, by arcs in the direction in which `missing` lists them.
fn reaches_all<'a>(graph: &'a Graph, missing: impl Fn(usize) -> &'a Vec<u32>) -> bool {
    let mut unreached: BTreeSet<_> = (1..graph.vertices() as u32).collect();
    let mut waiting = VecDeque::from([0]);
    while let Some(at) = waiting.pop_front() {
        let missing = missing(at);
        // Each vertex is reached once; what stays behind is in the list of what is missing.
        let reached: Vec<_> =
            unreached.iter().copied().filter(|to| missing.binary_search(to).is_err()).collect();
        for to in reached {
            unreached.remove(&to);
            waiting.push_back(to as usize);
        }
    }
    unreached.is_empty()
}

/// Whether each vertex can have a successor of its own (a perfect matching; Hall's condition). Where many have only
/// the same few successors, no ring can pass all of them.
fn has_successors(graph: &Graph) -> bool {
    let count = graph.vertices();
    let mut of: Vec<Option<usize>> = vec![None; count];
    let mut alone = Vec::new();
    let mut free: BTreeSet<_> = (0..count).collect();
    for from in 0..count {
        // The next in order, which is there almost always, or any.
        let next = (from + 1) % count;
        let found = if free.contains(&next) && graph.has(from, next) {
            Some(next)
        } else {
            free.iter().copied().find(|to| graph.has(from, *to))
        };
        match found {
            Some(to) => {
                free.remove(&to);
                of[to] = Some(from);
            }
            None => alone.push(from),
        }
    }
    alone.into_iter().all(|from| give_way(graph, &mut of, from))
}

/// Finds a successor for `from` by having others take another one. `of` says whose successor a vertex is.
fn give_way(graph: &Graph, of: &mut [Option<usize>], from: usize) -> bool {
    let mut unseen: BTreeSet<_> = (0..of.len()).collect();
    let mut asked_by = vec![usize::MAX; of.len()];
    let mut waiting = VecDeque::from([from]);
    while let Some(at) = waiting.pop_front() {
        let seen: Vec<_> = unseen.iter().copied().filter(|to| graph.has(at, *to)).collect();
        for to in seen {
            unseen.remove(&to);
            asked_by[to] = at;
            let Some(owner) = of[to] else {
                // Everybody on the way takes what it asked for.
                let mut taken = to;
                loop {
                    let by = asked_by[taken];
                    let before = (0..of.len()).find(|vertex| of[*vertex] == Some(by));
                    of[taken] = Some(by);
                    match before {
                        Some(before) if by != from => taken = before,
                        _ => return true,
                    }
                }
            };
            waiting.push_back(owner);
        }
    }
    false
}
