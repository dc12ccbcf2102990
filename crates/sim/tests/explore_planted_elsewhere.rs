//! Bugs in a change of the store's view, and in a takeover by another coordinator, that the explorer must find, each by a
//! schedule that replays.

use outlast_sim::explore::planned::{Exploration as _, Planned};
use outlast_sim::explore::reign::{Budget as Faults, Judge, ReignModel};
use outlast_sim::explore::search::{Limits, Model};
use outlast_sim::explore::views::{Budget, Sabotage, ViewModel};
use std::str::FromStr;

const CALL: Budget =
    Budget { joins: 0, leaves: 0, kills: 0, restarts: 0, breaks: 0, severs: 0, cuts: 0, calls: 1, jumps: 0 };
const JOIN: Budget = Budget { joins: 1, ..CALL };
const LIMITS: Limits = Limits { depth: 100, states: 200_000 };

/// The bug is found by that checker, and its schedule replays.
fn assert_found<M: Model>(spoiled: M, honest: M, checker: &str)
where
    M::Event: PartialEq + FromStr<Err = String>,
{
    let spoiled = Planned::new("spoiled", spoiled, LIMITS);
    let report = spoiled.explore(&mut |_, _, _| ());
    let failure =
        report.failure.unwrap_or_else(|| panic!("{checker} finds nothing in {} states", report.states));
    let story = failure.story.join("\n");
    println!("{} states, {}\n{story}\n{}", report.states, failure.violation, failure.schedule);
    assert_eq!(failure.violation.checker, checker, "{}\n{story}", failure.violation);
    let again = spoiled.replay(&failure.schedule).expect("a schedule replays");
    assert_eq!(again.violation, Some(failure.violation), "{story}");
    // Without the bug the same schedule, as far as it can happen, is fine.
    if let Ok(replayed) = Planned::new("honest", honest, LIMITS).replay(&failure.schedule) {
        assert_eq!(replayed.violation, None, "{story}");
    }
}

fn assert_view_bug_found(members: u8, budget: Budget, sabotage: Sabotage, checker: &str) {
    let honest = ViewModel::new(members, budget);
    assert_found(honest.clone().with(sabotage), honest, checker);
}

#[test]
fn one_owner_finds_a_view_that_goes_on_beside_the_next() {
    assert_view_bug_found(2, Budget { calls: 0, ..JOIN }, Sabotage::OldViewGoesOn, "one_owner");
}

#[test]
fn nothing_lost_finds_a_fetch_that_brings_nothing() {
    assert_view_bug_found(2, JOIN, Sabotage::EmptyFetch, "nothing_lost");
}

#[test]
fn counted_once_finds_a_fetch_that_forgets_which_calls_were_done() {
    assert_view_bug_found(2, JOIN, Sabotage::ForgottenCalls, "counted_once");
}

#[test]
fn no_hang_finds_an_order_that_never_arrives() {
    assert_view_bug_found(2, Budget { calls: 0, ..JOIN }, Sabotage::DropActivate, "no_hang");
}

#[test]
fn nothing_lost_finds_a_replica_that_has_nothing() {
    let budget = Budget { kills: 1, jumps: 1, ..CALL };
    assert_view_bug_found(3, budget, Sabotage::HollowReplica, "nothing_lost");
}

#[test]
fn one_owner_finds_a_lease_that_outlasts_what_the_registrar_counts() {
    let honest = ViewModel::new(3, Budget { cuts: 1, calls: 0, jumps: 12, ..CALL }).with_patience();
    assert_found(honest.clone().with(Sabotage::LongLease), honest, "one_owner");
}

#[test]
fn nobody_put_out_finds_a_kernel_that_refuses_for_the_living() {
    let budget = Budget { breaks: 1, calls: 0, jumps: 1, ..CALL };
    assert_view_bug_found(3, budget, Sabotage::FalseDeath, "nobody_put_out");
}

#[test]
fn one_decides_finds_who_counts_a_lease_from_its_answer_or_not_at_all() {
    for judge in [Judge::FromTheAnswer, Judge::WithoutAClock] {
        let honest = ReignModel::takeover(9);
        assert_found(honest.clone().judged_by(judge), honest, "one_decides");
    }
}

#[test]
fn key_is_there_finds_who_reigns_on_when_its_key_is_gone_and_nobody_else_reigns_yet() {
    let honest = ReignModel::election(6, Faults::default());
    assert_found(honest.clone().judged_by(Judge::WithoutAClock), honest, "key_is_there");
}

#[test]
fn appeal_finds_one_that_names_a_term_that_is_over() {
    let honest = ReignModel::election(3, Faults { breaks: 0, appeals: 1 });
    assert_found(honest.clone().with_late_appeals(), honest, "appeal");
}

#[test]
fn one_verdict_finds_peers_that_keep_no_promise_to_a_leader_that_decides_late() {
    let honest = ReignModel::takeover(7).judged_by(Judge::AFifthLate);
    assert_found(honest.clone().without_promises(), honest, "one_verdict");
}

#[test]
fn one_verdict_finds_peers_that_keep_no_promise_and_hear_late() {
    let honest = ReignModel::takeover(7);
    assert_found(honest.clone().without_promises(), honest, "one_verdict");
}

#[test]
fn an_election_is_explored_from_nothing() {
    let model = ReignModel::election(3, Faults { breaks: 0, appeals: 1 });
    let report = Planned::new("election", model, LIMITS).explore(&mut |_, _, _| ());
    assert!(report.failure.is_none() && report.whole, "{report:?}");
}

/// Rule 19: leases keep two from deciding, promises make it harmless if they do.
#[test]
fn promises_make_a_late_decision_harmless() {
    let model = ReignModel::takeover(6).judged_by(Judge::AFifthLate);
    let report = Planned::new("late", model, LIMITS).explore(&mut |_, _, _| ());
    assert!(report.failure.is_none() && report.whole, "{report:?}");
}
