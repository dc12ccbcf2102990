//! Every state of small worlds: runs, a store whose view changes, two coordinators with one lease. Millions of them:
//! `outlast-sim explore --plan soak`, which `make soak` does.

use outlast_sim::explore::planned::explore_whole;
use outlast_sim::explore::plans;

/// Explores the whole of a plan.
fn explore(name: &str) {
    let plan = plans::quick().into_iter().find(|plan| plan.name() == name).expect("the plan exists");
    let report = explore_whole(&*plan).unwrap_or_else(|what| panic!("{what}"));
    println!("{name}: {} states, {} transitions, depth {}", report.states, report.transitions, report.depth);
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
fn a_store_that_somebody_joins() {
    explore("view-join");
}

#[test]
fn a_store_one_of_whose_members_is_killed() {
    explore("view-kill");
}

#[test]
fn a_store_whose_registrar_is_killed() {
    explore("view-restart");
}

#[test]
fn a_store_and_a_broken_stream() {
    explore("view-break");
}

#[test]
fn a_store_one_of_whose_members_is_cut_off() {
    explore("view-cut");
}

#[test]
fn a_store_that_somebody_joins_while_its_registrar_is_killed() {
    explore("view-join-restart");
}

#[test]
fn a_reign_that_is_taken_over() {
    explore("lease-takeover");
}

#[test]
fn every_quick_plan_has_its_test() {
    let text = include_str!("explore.rs");
    for plan in plans::quick() {
        assert!(text.contains(&format!("explore(\"{}\")", plan.name())), "no test explores {}", plan.name());
    }
}
