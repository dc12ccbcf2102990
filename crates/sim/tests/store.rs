//! The store under every kind of fault, and each checker proven by a bug that it must find.

use outlast_sim::report::Report;
use outlast_sim::store::{Sabotage, World, cost, scenarios};

/// Keys that programs use.
const KEYS: u64 = 4;

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
    assert_found_among(0..30, name, sabotage, checker);
}

fn assert_found_among(seeds: std::ops::Range<u64>, name: &str, sabotage: Sabotage, checker: &str) {
    let finds = |seed| {
        let report = played(name, seed, Some(sabotage));
        report.violations.iter().any(|violation| violation.checker == checker)
    };
    let mut seeds = seeds;
    assert!(seeds.any(finds), "{checker} does not find {sabotage:?}");
}

#[test]
fn nothing_goes_wrong_where_nothing_goes_wrong() {
    play("store-calm", 0..4);
}

#[test]
fn members_that_die_and_come_back_with_nothing() {
    play("store-kills", 0..8);
}

#[test]
fn members_that_are_stopped() {
    play("store-stops", 0..8);
}

#[test]
fn members_that_cannot_reach_each_other() {
    play("store-cuts", 0..8);
}

#[test]
fn a_registrar_that_is_restarted() {
    play("store-restarts", 0..8);
}

#[test]
fn members_that_leave() {
    play("store-leaves", 0..6);
}

#[test]
fn messages_that_pass_many_hands() {
    // The longest worlds of all: `make soak` has more of them.
    play("store-routed", 0..3);
    // Most of its calls were too hard to judge once.
    play("store-routed", 4..5);
    // Each of these found a fault once.
    [31_000_162, 31_000_163, 31_000_252].into_iter().for_each(|seed| play("store-routed", seed..seed + 1));
}

#[test]
fn all_faults() {
    play("store-mixed", 0..8);
}

#[test]
fn programs_that_wait_and_list_and_write_long_values() {
    play("store-waits", 0..8);
}

#[test]
fn who_is_cut_off_for_a_moment_while_the_other_one_leaves_takes_over() {
    play("store-mixed", 7_700_081..7_700_082);
}

/// After a stop the others' links to it were given up; when they were back nothing on them was ever acknowledged, so they
/// were given up every second, and what was on them went another way, twice as much each time.
#[test]
fn a_stop_costs_no_storm_of_messages() {
    let report = played("store-stops", 7_700_055, None);
    assert!(report.passed(), "{report}");
    assert!(report.events < 50_000, "{} events, where nine thousand are usual", report.events);
}

/// Worlds that must pass, to be looked into.
fn worlds(name: &str, seeds: std::ops::Range<u64>) -> impl Iterator<Item = World> {
    let scenario = scenarios::find(name).expect("the scenario exists");
    seeds.map(move |seed| {
        let mut world = World::new((scenario.plan)(seed), seed);
        world.play();
        assert!(world.violations.is_empty(), "{} {seed}: {:?}", scenario.name, world.violations);
        world
    })
}

#[test]
fn a_second_death_before_the_first_is_mended_loses_what_just_those_two_held() {
    let (mut deaths, mut lost) = (0, 0);
    for world in worlds("store-twice", 0..8) {
        (deaths, lost) = (deaths + world.second_deaths, lost + world.keys_lost);
    }
    // It did happen, some keys may be lost, and most may not.
    assert!(deaths > 0 && (1..deaths * KEYS / 2).contains(&lost), "{deaths} second deaths, {lost} keys");
}

#[test]
fn members_that_die_while_others_are_cut_off_or_stopped_for_a_moment() {
    let kills: u64 = worlds("store-kills-in-cuts", 0..8).map(|world| world.kills_in_trouble).sum();
    assert!(kills >= 8, "{kills} of the kills were in a cut or a stop");
}

#[test]
fn broadcasts_are_heard_once_by_whoever_is_there_all_the_time() {
    let (mut sent, mut heard) = (0, 0);
    for world in worlds("store-broadcasts", 0..8) {
        (sent, heard) = (sent + world.broadcasts.0, heard + world.broadcasts.1);
    }
    assert!(sent > 100 && heard > sent, "{sent} broadcasts, heard {heard} times");
    // A greeting that came twice made a link begin its numbers anew, and what had them was taken for copies.
    play("store-broadcasts", 160_000_016..160_000_017);
}

#[test]
fn clients_that_are_no_members() {
    let (mut calls, mut again) = (0, 0);
    for world in worlds("store-clients", 0..8) {
        (calls, again) = (calls + world.client_calls.0, again + world.client_calls.1);
    }
    assert!(calls > 1_000 && again > 0, "{calls} calls, {again} of them by another member");
}

#[test]
fn one_seed_one_story() {
    let hash = |seed| played("store-mixed", seed, None).trace_hash;
    assert_eq!(hash(3), hash(3));
    assert_ne!(hash(3), hash(4));
}

#[test]
fn linearizable_finds_leases_that_never_end() {
    // Somebody who only reads must own what it reads, and be given up for long: one seed of forty.
    assert_found_among(100..260, "store-cuts", Sabotage::EndlessLease, "linearizable");
}

#[test]
fn linearizable_finds_a_replica_that_never_got_what_it_acknowledged() {
    assert_found("store-kills", Sabotage::FalseCopy, "linearizable");
}

#[test]
fn broadcasts_finds_one_that_somebody_did_not_hear_and_one_that_was_heard_twice() {
    assert_found("store-broadcasts", Sabotage::LostBroadcast, "broadcasts");
    assert_found("store-broadcasts", Sabotage::RepeatedBroadcast, "broadcasts");
}

#[test]
fn linearizable_finds_a_call_that_is_done_twice() {
    assert_found("store-calm", Sabotage::ForgottenName, "linearizable");
}

#[test]
fn linearizable_finds_a_view_that_begins_with_empty_hands() {
    assert_found("store-kills", Sabotage::EmptyFetch, "linearizable");
}

#[test]
fn linearizable_finds_empty_hands_after_a_second_death_too() {
    assert_found("store-twice", Sabotage::EmptyFetch, "linearizable");
}

#[test]
fn linearizable_finds_a_client_that_asks_again_under_another_name() {
    assert_found_among(0..30, "store-clients", Sabotage::NewNameAgain, "linearizable");
}

/// What was frozen too late is refused by replicas of the next view, so nothing is lost: nothing goes on.
#[test]
fn liveness_finds_a_view_that_begins_though_nobody_froze_anything() {
    assert_found("store-kills", Sabotage::NoFreeze, "liveness");
}

#[test]
fn liveness_finds_answers_that_do_not_come() {
    assert_found("store-calm", Sabotage::LostAnswers, "liveness");
}

#[test]
fn wake_finds_who_is_not_told_that_its_key_was_set() {
    assert_found("store-waits", Sabotage::LostWakeUp, "wake");
}

#[test]
fn deadline_finds_timers_that_ring_a_second_late() {
    assert_found("store-waits", Sabotage::LateTimers, "deadline");
}

#[test]
fn linearizable_finds_a_long_value_that_was_put_together_wrongly() {
    assert_found("store-waits", Sabotage::TornValue, "linearizable");
}

#[test]
fn keys_finds_a_list_that_lacks_one() {
    assert_found("store-waits", Sabotage::ShortList, "keys");
}

/// What `bench/RESULTS.md` says about it.
#[test]
fn an_operation_costs_few_hops_also_among_a_thousand_members() {
    let four = cost::measure(4);
    assert!((four.links - 2.0).abs() < f64::EPSILON && four.hops_max == 2, "{four:?}");
    for (members, hops) in [(16, 3.0), (64, 4.0), (1_000, 7.0)] {
        let cost = cost::measure(members);
        println!("{cost:?}");
        assert!(cost.hops <= hops && cost.links <= 6.0, "{cost:?}");
    }
}
