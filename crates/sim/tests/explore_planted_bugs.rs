//! Each checker of the explorer, proven by a bug that it must find, by a schedule that replays.

use outlast_sim::explore::run::{Budget, RunModel, Sabotage, Setup};
use outlast_sim::explore::search::{self, Limits, parse_schedule, write_schedule};

const NOTHING: Budget = Budget { breaks: 0, kills: 0, restarts: 0, severs: 0, cancels: 0, timers: 0 };
const BREAK: Budget = Budget { breaks: 1, ..NOTHING };
const LIMITS: Limits = Limits { depth: 40, states: 50_000 };

/// The bug is found by that checker, its schedule replays, and without the bug nothing is wrong with it.
fn assert_found(program: &str, budget: Budget, sabotage: Sabotage, checker: &str) {
    let honest = Setup::new(2, program, budget);
    let spoiled = RunModel::new(Setup { sabotage: Some(sabotage), ..honest.clone() });
    let failure = search::explore(&spoiled, LIMITS, |_, _, _| ()).failure;
    let failure = failure.unwrap_or_else(|| panic!("{checker} does not find {sabotage:?}"));
    let schedule = write_schedule(&failure.schedule);
    assert_eq!(failure.violation.checker, checker, "{}: {schedule}", failure.violation);
    let read = parse_schedule(&schedule).expect("a schedule reads back");
    let again = search::replay(&spoiled, &read).expect("a schedule replays");
    assert_eq!(again.violation, Some(failure.violation), "{schedule}");
    // Without the bug the same schedule, as far as it can happen, is fine.
    if let Ok(replayed) = search::replay(&RunModel::new(honest), &read) {
        assert_eq!(replayed.violation, None, "{schedule}");
    }
}

#[test]
fn one_verdict_finds_a_peer_that_is_told_another() {
    assert_found("r", NOTHING, Sabotage::FlipVerdict, "one_verdict");
}

#[test]
fn commit_needs_all_finds_a_commit_without_everybodys_word() {
    assert_found("r", NOTHING, Sabotage::ForgeComplete, "commit_needs_all");
}

#[test]
fn same_outcome_finds_calls_that_do_not_pair() {
    assert_found("oo", BREAK, Sabotage::RepeatFailed, "same_outcome");
}

#[test]
fn exact_values_finds_data_that_was_not_restored() {
    assert_found("r", BREAK, Sabotage::SkipUndo, "exact_values");
}

#[test]
fn nobody_blamed_finds_an_honest_peer_that_is_kicked() {
    assert_found("r", NOTHING, Sabotage::SkipNumbers, "nobody_blamed");
}

#[test]
fn no_false_eviction_finds_a_living_peer_put_out() {
    let budget = Budget { timers: 1, ..BREAK };
    assert_found("r", budget, Sabotage::AccuseTheLiving, "no_false_eviction");
}

#[test]
fn everybody_listed_finds_a_member_that_no_roster_lists() {
    assert_found("r", BREAK, Sabotage::UnlistMember, "everybody_listed");
}

#[test]
fn no_hang_finds_those_who_are_never_told_to_go_on() {
    assert_found("r", BREAK, Sabotage::DropProceed, "no_hang");
}
