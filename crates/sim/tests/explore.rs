//! Every state of small runs. Millions of them: `outlast-sim explore --plan soak`, which `make soak` does.

use outlast_sim::explore::plans;
use outlast_sim::explore::run::{RunModel, write_schedule};
use outlast_sim::explore::search;

/// Explores the whole of a plan.
fn explore(name: &str) {
    let plan = plans::quick().into_iter().find(|plan| plan.name == name).expect("the plan exists");
    let explored = search::explore(&RunModel::new(plan.setup), plan.limits, |_, _, _| ());
    if let Some(failure) = explored.failure {
        let schedule = write_schedule(&failure.schedule);
        panic!(
            "{name}: {}\nagain: outlast-sim explore --plan {name} --replay \"{schedule}\"",
            failure.violation
        );
    }
    assert!(explored.whole, "{name} has more states than its limits allow");
    println!(
        "{name}: {} states, {} transitions, depth {}",
        explored.states, explored.transitions, explored.depth
    );
}

#[test]
fn two_peers_when_nothing_goes_wrong() {
    explore("two-calm");
}

#[test]
fn two_peers_and_a_broken_connection() {
    explore("two-break");
}

#[test]
fn two_peers_whose_calls_do_not_retry_and_a_broken_connection() {
    explore("two-break-once");
}

#[test]
fn two_peers_one_of_which_is_killed() {
    explore("two-kill");
}

#[test]
fn two_peers_and_a_coordinator_that_is_killed() {
    explore("two-restart");
}

#[test]
fn two_peers_whose_calls_do_not_retry_and_a_coordinator_that_is_killed() {
    explore("two-restart-once");
}

#[test]
fn two_peers_and_a_broken_link() {
    explore("two-sever");
}

#[test]
fn two_peers_that_leave_and_a_broken_connection() {
    explore("two-leave");
}

#[test]
fn two_peers_that_call_different_things_and_a_coordinator_that_is_killed() {
    explore("two-differ");
}

#[test]
fn two_peers_one_of_which_gives_a_call_up() {
    explore("two-cancel");
}

#[test]
fn two_peers_whose_deadline_passes() {
    explore("two-deadline");
}

#[test]
fn a_peer_and_a_newcomer_and_a_broken_connection() {
    explore("two-newcomer");
}

#[test]
fn three_peers_two_of_which_reduce_alone_first() {
    explore("three-scope");
}

#[test]
fn three_peers_when_nothing_goes_wrong() {
    explore("three-calm");
}

#[test]
fn every_quick_plan_has_its_test() {
    let text = include_str!("explore.rs");
    for plan in plans::quick() {
        assert!(text.contains(&format!("explore(\"{}\")", plan.name)), "no test explores {}", plan.name);
    }
}
