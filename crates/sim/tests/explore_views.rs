//! Every order of events while the store's view changes, with three members; and bugs that this must find.

use outlast_sim::explore::search::{self, Limits};
use outlast_sim::explore::views::{self, Budget, Sabotage, ViewModel};

const NOTHING: Budget = Budget { joins: 0, leaves: 0, kills: 0, restarts: 0, calls: 1, jumps: 0 };

fn explore(name: &str) {
    let plan = views::quick().into_iter().find(|plan| plan.name == name).expect("the plan exists");
    let explored = search::explore(&plan.model, plan.limits, |_, _, _| ());
    if let Some(failure) = explored.failure {
        let replayed = search::replay(&plan.model, &failure.schedule).expect("a schedule replays");
        panic!("{name}: {}\n{}", failure.violation, replayed.story.join("\n"));
    }
    println!(
        "{name}: {} states, {} transitions, depth {}, all of them: {}",
        explored.states, explored.transitions, explored.depth, explored.whole
    );
}

#[test]
fn somebody_comes() {
    explore("views-join");
}

#[test]
fn somebody_leaves() {
    explore("views-leave");
}

#[test]
fn somebody_is_killed() {
    explore("views-kill");
}

#[test]
fn the_registrar_is_killed() {
    explore("views-restart");
}

/// The bug is found by that checker, by a schedule that replays and is harmless without the bug.
fn assert_found(members: usize, budget: Budget, sabotage: Sabotage, checker: &str) {
    let honest = ViewModel::new(members, budget);
    let spoiled = honest.clone().with(sabotage);
    let limits = Limits { depth: 60, states: 60_000 };
    let failure = search::explore(&spoiled, limits, |_, _, _| ()).failure;
    let failure = failure.unwrap_or_else(|| panic!("{checker} does not find {sabotage:?}"));
    assert_eq!(failure.violation.checker, checker, "{}", failure.violation);
    let again = search::replay(&spoiled, &failure.schedule).expect("a schedule replays");
    assert_eq!(again.violation, Some(failure.violation));
    if let Ok(replayed) = search::replay(&honest, &failure.schedule) {
        assert_eq!(replayed.violation, None, "without the bug");
    }
}

#[test]
fn a_view_that_begins_although_nobody_froze_anything_is_found() {
    assert_found(2, Budget { joins: 1, ..NOTHING }, Sabotage::NoFreeze, "one_owner");
}

#[test]
fn a_fetch_that_brings_nothing_is_found() {
    assert_found(2, Budget { joins: 1, ..NOTHING }, Sabotage::EmptyFetch, "nothing_lost");
}

#[test]
fn an_order_that_never_arrives_is_found() {
    assert_found(2, Budget { joins: 1, calls: 0, ..NOTHING }, Sabotage::DropActivate, "no_hang");
}
