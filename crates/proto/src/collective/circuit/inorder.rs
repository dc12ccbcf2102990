//! Depth first, in the order of the vertices, for a bounded number of steps.
//!
//! Without recursion: a ring may be longer than a stack is deep.

use super::{Answer, Graph};

/// Steps per vertex: a few arcs that are missing are found a way around in one or two.
const STEPS_PER_VERTEX: usize = 8;

pub(super) fn find(graph: &Graph) -> Answer {
    // `ring[..at]` is placed; `choice[at]` says how many of the rest were tried in its place.
    let mut ring: Vec<_> = (0..graph.vertices()).collect();
    let mut choice = vec![0; ring.len()];
    let mut at = 1;
    for _ in 0..STEPS_PER_VERTEX * ring.len() {
        if at == ring.len() {
            if graph.has(ring[at - 1], ring[0]) {
                return Answer::Ring(ring);
            }
        } else if let Some(next) =
            (at + choice[at]..ring.len()).find(|next| graph.has(ring[at - 1], ring[*next]))
        {
            choice[at] = next - at;
            // The rest keeps its order.
            ring[at..=next].rotate_right(1);
            at += 1;
            if at < ring.len() {
                choice[at] = 0;
            }
            continue;
        }
        if at == 1 {
            return Answer::None; // Every order was tried.
        }
        at -= 1;
        // What was chosen last goes back to where it was.
        ring[at..=at + choice[at]].rotate_left(1);
        choice[at] += 1;
    }
    Answer::Unknown
}
