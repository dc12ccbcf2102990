//! All sets of vertices at once, for graphs of at most [`EXACT_MAX`](super::EXACT_MAX) vertices.
//!
//! `begins[set]` holds, as bits, the vertices with which a path can begin that passes each vertex of `set` once and
//! from whose end an arc leads to vertex 0. A path through a larger set is one more vertex in front of a path
//! through a smaller one. From vertex 0 on the first vertex is taken that leaves a path for the rest, so the ring
//! is the first in the order of the vertices.

use super::{Answer, EXACT_MAX, Graph};

pub(super) fn find(graph: &Graph) -> Answer {
    let count = graph.vertices();
    assert!((2..=EXACT_MAX).contains(&count), "{count} vertices do not fit the table");
    // Vertex 0 is in no set; bit v - 1 stands for vertex v.
    let others = count - 1;
    let reaches: Vec<u16> = (0..count)
        .map(|from| (1..count).filter(|to| graph.has(from, *to)).fold(0, |bits, to| bits | 1 << (to - 1)))
        .collect();
    let mut begins = vec![0u16; 1 << others];
    for set in 1..begins.len() {
        for vertex in (0..others).filter(|vertex| set >> vertex & 1 == 1) {
            let rest = set & !(1 << vertex);
            let ends =
                if rest == 0 { graph.has(vertex + 1, 0) } else { begins[rest] & reaches[vertex + 1] != 0 };
            begins[set] |= u16::from(ends) << vertex;
        }
    }
    let (mut ring, mut left) = (vec![0], begins.len() - 1);
    while left != 0 {
        let next = begins[left] & reaches[ring[ring.len() - 1]];
        if next == 0 {
            assert_eq!(ring.len(), 1, "a path that can be begun can be ended");
            return Answer::None;
        }
        let vertex = next.trailing_zeros() as usize;
        ring.push(vertex + 1);
        left &= !(1 << vertex);
    }
    Answer::Ring(ring)
}
