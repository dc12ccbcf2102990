//! Rendezvous under every kind of fault, and each checker proven by a bug that it must find.

use outlast_sim::rendezvous::{Sabotage, scenarios};
use outlast_sim::report::Report;

fn played(name: &str, seed: u64, sabotage: Option<Sabotage>) -> Report {
    let scenario = scenarios::find(name).expect("the scenario exists");
    let mut plan = (scenario.plan)(seed);
    plan.sabotage = sabotage;
    scenarios::run(name, seed, plan, false)
}

fn play(name: &str, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let report = played(name, seed, None);
        assert!(report.passed(), "{report}");
    }
}

/// Some seed of the scenario must show the bug to that checker.
fn assert_found(name: &str, sabotage: Sabotage, checker: &str) {
    let finds = |seed| {
        let report = played(name, seed, Some(sabotage));
        report.violations.iter().any(|violation| violation.checker == checker)
    };
    assert!((0..40).any(finds), "{checker} does not find {sabotage:?}");
}

#[test]
fn nothing_goes_wrong_where_nothing_goes_wrong() {
    play("rendezvous-calm", 0..30);
}

#[test]
fn nodes_that_die_and_return() {
    play("rendezvous-kills", 0..30);
}

#[test]
fn nodes_that_are_stopped() {
    play("rendezvous-stops", 0..30);
}

#[test]
fn connections_that_break_with_answers_on_them() {
    play("rendezvous-breaks", 0..30);
}

#[test]
fn a_register_that_is_restarted() {
    play("rendezvous-restarts", 0..30);
}

#[test]
fn more_nodes_than_places() {
    play("rendezvous-spares", 0..40);
}

/// A thousand: `make sim SCENARIO=rendezvous-thousand SEED=1`.
#[test]
fn a_hundred_nodes() {
    play("rendezvous-hundred", 0..2);
}

#[test]
fn a_register_that_everybody_missed_shares_no_round_with_the_one_before() {
    play("rendezvous-spares", 6_000_038..6_000_039);
}

/// Of a node that was in no call when the register was restarted, and then writes on what it knew.
#[test]
fn a_write_to_a_register_that_listens_is_answered_when_it_has_listened() {
    play("rendezvous-spares", 6_000_051..6_000_052);
}

/// A round was full, those who had waited for it still stood in the wait list until each had written that it is a spare, and
/// the participants met again for them, 120 times.
#[test]
fn a_full_round_is_not_met_again_for_those_who_found_no_place() {
    play("rendezvous-spares", 9_500_224..9_500_225);
}

#[test]
fn one_seed_one_story() {
    let hash = |seed| played("rendezvous-spares", seed, None).trace_hash;
    assert_eq!(hash(3), hash(3));
    assert_ne!(hash(3), hash(4));
}

/// Where each node writes for itself: where one writes for all there are few writes to be taken wrongly.
#[test]
fn agreement_finds_a_register_that_takes_every_write() {
    let scenario = scenarios::find("rendezvous-kills").expect("the scenario exists");
    let finds = |seed| {
        let mut plan = (scenario.plan)(seed);
        (plan.sabotage, plan.keeps_notes) = (Some(Sabotage::AnyToken), false);
        let report = scenarios::run("rendezvous-kills", seed, plan, false);
        report.violations.iter().any(|violation| violation.checker == "agreement")
    };
    assert!((0..40).any(finds), "agreement does not find a register that takes every write");
}

#[test]
fn lease_finds_a_register_that_takes_writes_of_the_lapsed() {
    assert_found("rendezvous-stops", Sabotage::AnyLease, "lease");
}

#[test]
fn liveness_finds_leases_that_never_run_out() {
    assert_found("rendezvous-kills", Sabotage::Immortal, "liveness");
}

#[test]
fn liveness_finds_changes_that_nobody_is_told_of() {
    assert_found("rendezvous-calm", Sabotage::Silence, "liveness");
}

#[test]
fn bounded_writes_finds_a_node_that_writes_without_end() {
    assert_found("rendezvous-calm", Sabotage::Unlucky, "bounded_writes");
}

#[test]
fn survivors_keep_order_finds_a_roster_that_is_turned_around() {
    assert_found("rendezvous-kills", Sabotage::TurnedRoster, "survivors_keep_order");
}

#[test]
fn bounds_finds_a_round_with_one_too_many() {
    assert_found("rendezvous-spares", Sabotage::Crowd, "bounds");
}

#[test]
fn restless_finds_rounds_without_end() {
    assert_found("rendezvous-spares", Sabotage::WaitingSpares, "restless");
}
