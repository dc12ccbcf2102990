use super::*;
use crate::rng::Rng;

fn without(vertices: usize, missing: impl IntoIterator<Item = (usize, usize)>) -> Graph {
    let mut graph = Graph::complete(vertices);
    missing.into_iter().for_each(|(from, to)| graph.remove(from, to));
    graph
}

fn found(graph: &Graph) -> Vec<usize> {
    match find(graph, Budget::FIRST) {
        Answer::Ring(ring) => ring,
        other => panic!("{other:?} instead of a ring"),
    }
}

fn pairs(vertices: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..vertices)
        .flat_map(move |from| (0..vertices).map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
}

/// Each arc is missing with that probability.
fn random(rng: &mut Rng, vertices: usize, missing: f64) -> Graph {
    without(vertices, pairs(vertices).filter(|_| rng.unit() < missing).collect::<Vec<_>>())
}

/// Tries every order.
fn has_ring(graph: &Graph) -> bool {
    fn from_here(graph: &Graph, ring: &mut Vec<usize>) -> bool {
        if ring.len() == graph.vertices() {
            return graph.is_ring(ring);
        }
        for next in 1..graph.vertices() {
            if !ring.contains(&next) && graph.has(ring[ring.len() - 1], next) {
                ring.push(next);
                if from_here(graph, ring) {
                    return true;
                }
                ring.pop();
            }
        }
        false
    }
    from_here(graph, &mut vec![0])
}

#[test]
fn every_graph_of_four_vertices_is_answered_as_by_trying_every_order() {
    let all: Vec<_> = pairs(4).collect();
    for mask in 0..1u32 << all.len() {
        let graph = without(4, (0..all.len()).filter(|bit| mask >> bit & 1 == 1).map(|bit| all[bit]));
        let exists = has_ring(&graph);
        assert_eq!(matches!(find(&graph, Budget::FIRST), Answer::Ring(_)), exists, "{graph:?}");
        // Each search for itself: what the others would have hidden.
        assert_eq!(matches!(exact::find(&graph), Answer::Ring(_)), exists, "{graph:?}");
        assert_eq!(matches!(search::find(&graph, Budget::FIRST), Answer::Ring(_)), exists, "{graph:?}");
        assert!(!proofs::none(&graph) || !exists, "{graph:?}");
    }
}

#[test]
fn the_exact_table_and_the_search_agree_on_random_graphs() {
    let mut rng = Rng::from_seed(1);
    let (mut rings, mut none) = (0, 0);
    for number in 0..400 {
        let vertices = 5 + number % 5;
        let missing = 0.3 + 0.5 * rng.unit();
        let graph = random(&mut rng, vertices, missing);
        let exists = has_ring(&graph);
        *if exists { &mut rings } else { &mut none } += 1;
        for answer in
            [exact::find(&graph), search::find(&graph, Budget { steps: u64::MAX, tries: number as u32 })]
        {
            match answer {
                Answer::Ring(ring) => {
                    assert!(exists && graph.is_ring(&ring) && ring.len() == vertices, "{graph:?}");
                }
                Answer::None => assert!(!exists, "{graph:?}"),
                Answer::Unknown => panic!("the budget is without end: {graph:?}"),
            }
        }
        assert!(!proofs::none(&graph) || !exists, "{graph:?}");
    }
    assert!(rings > 50 && none > 50, "{rings} rings, {none} without");
}

#[test]
fn a_vertex_that_only_one_other_reaches_is_passed_in_graphs_of_all_sizes() {
    for vertices in (4..=40).chain([200, 1_000]) {
        // Vertex 1 alone reaches vertex 0: 0, 2, 3, .., 1.
        let graph = without(vertices, (2..vertices).map(|from| (from, 0)));
        let ring = found(&graph);
        assert_eq!((ring[0], ring[vertices - 1]), (0, 1), "{vertices}");
    }
}

#[test]
fn sixteen_vertices_with_one_ring_only_have_it_found() {
    // Only the arcs of one ring, shuffled: whoever guesses is lost.
    let mut rng = Rng::from_seed(7);
    for vertices in [EXACT_MAX, 24] {
        let mut order: Vec<_> = (1..vertices).collect();
        rng.shuffle(&mut order);
        order.insert(0, 0);
        let arcs: Vec<_> = (0..vertices).map(|at| (order[at], order[(at + 1) % vertices])).collect();
        let graph = without(vertices, pairs(vertices).filter(|arc| !arcs.contains(arc)));
        assert_eq!(found(&graph), order);
    }
}

#[test]
fn that_there_is_none_is_proved_where_the_reason_is_simple() {
    for vertices in [17, 40, 300] {
        let half = vertices / 2;
        let cases = [
            (
                "nobody reaches the last",
                without(vertices, (0..vertices - 1).map(|from| (from, vertices - 1))),
            ),
            ("cut in two", without(vertices, pairs(vertices).filter(|(a, b)| (*a < half) != (*b < half)))),
            ("a one-way cut", without(vertices, pairs(vertices).filter(|(a, b)| *a < half && *b >= half))),
            // More than half cannot reach each other, as behind translated addresses.
            (
                "most reach few",
                without(vertices, pairs(vertices).filter(|(a, b)| *a > half - 2 && *b > half - 2)),
            ),
        ];
        for (name, graph) in cases {
            assert_eq!(find(&graph, Budget::FIRST), Answer::None, "{name}, {vertices}");
        }
    }
}

#[test]
fn what_is_neither_found_nor_disproved_is_said_to_be_unknown() {
    // Three crowds that meet in two vertices only: a ring would have to pass one of the two twice. No simple proof
    // sees it, and the search has too many ways through each crowd.
    let (crowd, gates) = (8, 2);
    let of = |vertex: usize| vertex.checked_sub(gates).map(|vertex| vertex / crowd);
    let apart = |(a, b): &(usize, usize)| matches!((of(*a), of(*b)), (Some(a), Some(b)) if a != b);
    let vertices = gates + 3 * crowd;
    let graph = without(vertices, pairs(vertices).filter(apart));
    let tight = Budget { steps: 20_000, tries: 0 };
    assert_eq!(find(&graph, tight), Answer::Unknown);
    assert_eq!(find(&graph, tight.next()), Answer::Unknown);
    assert_eq!((tight.next().steps, tight.next().tries), (40_000, 1));
    // The same in the small is proved.
    let small = without(5, pairs(5).filter(|(a, b)| *a >= 2 && *b >= 2));
    assert_eq!(find(&small, tight), Answer::None);
}

#[test]
fn sparse_random_graphs_beyond_the_table_are_answered_within_the_first_budget() {
    let mut rng = Rng::from_seed(11);
    for number in 0..60 {
        let vertices = 17 + 4 * number;
        let missing = 0.6 * rng.unit();
        let graph = random(&mut rng, vertices, missing);
        assert_ne!(find(&graph, Budget::FIRST), Answer::Unknown, "{vertices} vertices, {missing} missing");
    }
}

#[test]
fn equal_questions_get_equal_answers_and_another_round_is_another_search() {
    let mut rng = Rng::from_seed(3);
    let graph = random(&mut rng, 30, 0.5);
    let (first, second) = (Budget::FIRST, Budget::FIRST.next());
    assert_eq!(search::find(&graph, first), search::find(&graph, first));
    assert_ne!(search::find(&graph, first), search::find(&graph, second));
}

#[test]
fn a_ring_of_thousands_is_mended_without_recursion() {
    let vertices = 16_000;
    let ring = found(&without(vertices, [(7, 8), (vertices - 1, 0)]));
    assert_eq!((ring.len(), &ring[..8]), (vertices, &[0, 1, 2, 3, 4, 5, 6, 7][..]));
}
