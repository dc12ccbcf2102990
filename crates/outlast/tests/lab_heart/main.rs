//! The heart on hosts of a lab: workers that reduce, a coordinator, and links that are cut and healed.
//!
//! The workers are those of the kill storm: every element of every result is held against the one right sum
//! over the receipt's contributors, and all who commit are held against each other. Needs root; says SKIPPED
//! otherwise. Each fault is asserted to have fired before its outcome is judged.
#![allow(dead_code, reason = "the storm's herd can do more than is needed here")]
#![allow(clippy::allow_attributes, reason = "an expectation would have to name each unused function")]

#[path = "../real_kill_storm/herd.rs"]
mod herd;
#[path = "../real_kill_storm/roles.rs"]
mod roles;
mod run;
mod streams;
#[path = "../real_kill_storm/work.rs"]
mod work;

use herd::{Herd, PATIENCE};
use outlast_lab::Refusal;
use roles::{ROLE, micros};
use run::{PEERS, SECOND, run};
use std::time::Instant;

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("worker") => roles::worker(),
        Ok("coordinator") => roles::coordinator(),
        _ => {}
    }
}

#[test]
fn a_cut_host_is_left_behind_and_comes_back_on_the_same_object() {
    let Some(mut run) = run("hcut", "lan") else { return };
    run.lab.isolate("d").expect("a cut");
    let cut = micros();
    run.all_commit(&[0, 1, 2], cut, 3);
    let waited = run.first_commits(&[0, 1, 2], cut, |commit| commit.contributors.len() == 3);
    println!("a cut host was left behind after {waited:.1} s");
    assert!(run.cut_packets("d", "k") > 0, "the cut cut nothing");
    run.lab.heal_all().expect("a heal");
    let healed = micros();
    let learned = run.herd.until(PATIENCE, |herd| !herd.outs(3).is_empty());
    assert!(learned, "it never learned that it is out:\n{}", run.status());
    println!("it learned: {:?}", run.herd.outs(3));
    run.all_commit(&[0, 1, 2, 3], healed, PEERS);
    for survivor in 0..3 {
        assert!(run.herd.outs(survivor).is_empty(), "w{survivor}: {:?}", run.herd.outs(survivor));
    }
    run.finish();
}

#[test]
fn a_one_way_cut_between_two_living_peers_is_planned_around() {
    let Some(mut run) = run("hpair", "lan") else { return };
    let (one, other) = run.neighbours();
    run.lab.cut(one, other).expect("a cut");
    let cut = micros();
    let went_around = |herd: &Herd| {
        let retried = |commit: &herd::Commit| commit.at > cut && commit.attempts > 1;
        (0..PEERS).all(|number| herd.commits(number).iter().any(retried))
    };
    assert!(run.herd.until(PATIENCE, went_around), "the link is in nobody's way: {}", run.status());
    assert!(run.cut_packets(one, other) > 0, "the cut cut nothing");
    let waited = run.first_commits(&[0, 1, 2, 3], cut, |commit| commit.attempts > 1);
    println!("planned around after {waited:.1} s: {}", run.status());
    assert!(waited <= 3.0, "a silent path is planned around whatever health says (rule 44): {waited:.1} s");
    // It stays cut, and the run goes on.
    let later = micros();
    run.herd.listen(3 * SECOND);
    run.all_commit(&[0, 1, 2, 3], later + 2_000_000, PEERS);
    run.assert_nobody_out();
    run.finish();
}

#[test]
fn a_cut_between_two_living_hosts_holds_a_step_up_for_three_seconds_at_most_and_heals() {
    let Some(mut run) = run("hpath", "lan") else { return };
    let (one, other) = run.neighbours();
    run.lab.cut_both(one, other).expect("a cut");
    let cut = micros();
    let went_around = |herd: &Herd| {
        let retried = |commit: &herd::Commit| commit.at > cut && commit.attempts > 1;
        (0..PEERS).all(|number| herd.commits(number).iter().any(retried))
    };
    assert!(run.herd.until(PATIENCE, went_around), "the link is in nobody's way: {}", run.status());
    assert!(run.cut_packets(one, other) > 0, "the cut cut nothing");
    let waited = run.first_commits(&[0, 1, 2, 3], cut, |commit| commit.attempts > 1);
    println!("planned around after {waited:.1} s: {}", run.status());
    assert!(waited <= 3.0, "a silent path is planned around whatever health says (rule 44): {waited:.1} s");
    // It is dialled again, and forgiven when it carries (rule 16).
    run.lab.heal_all().expect("a heal");
    let healed = Instant::now();
    let forgiven = |status: String| status.contains(r#"\"broken_links\":[]"#);
    while !forgiven(run.status()) {
        assert!(healed.elapsed() < PATIENCE, "the link never heals: {}", run.status());
        run.herd.listen(SECOND / 5);
    }
    println!("forgiven after {:.1} s", healed.elapsed().as_secs_f64());
    run.all_commit(&[0, 1, 2, 3], micros(), PEERS);
    run.assert_nobody_out();
    run.finish();
}

#[test]
fn a_host_that_was_cut_for_long_is_out_once_and_comes_back_at_once() {
    let Some(mut run) = run("hflap", "lan") else { return };
    run.lab.isolate("d").expect("a cut");
    let until = Instant::now() + 14 * SECOND;
    run.herd.until(14 * SECOND, |_| Instant::now() >= until);
    assert!(run.cut_packets("d", "k") > 0, "the cut cut nothing");
    run.lab.heal_all().expect("a heal");
    let healed = micros();
    run.all_commit(&[0, 1, 2, 3], healed, PEERS);
    let back = run.first_commits(&[3], healed, |commit| commit.contributors.len() == PEERS);
    println!("back after {back:.1} s: {:?}", run.herd.outs(3));
    assert!(back <= 3.0, "it comes back at once: {back:.1} s");
    // What was held against its session of before does not touch the next (rule 45).
    assert_eq!(run.herd.outs(3).len(), 1, "{:?}", run.herd.outs(3));
    for survivor in 0..3 {
        assert!(run.herd.outs(survivor).is_empty(), "w{survivor}: {:?}", run.herd.outs(survivor));
    }
    run.finish();
}

#[test]
fn a_control_connection_cut_for_two_seconds_costs_nobody_its_place() {
    let Some(mut run) = run("hctrl", "lan") else { return };
    run.lab.cut_both("d", "k").expect("a cut");
    let until = Instant::now() + 2 * SECOND;
    run.herd.until(2 * SECOND, |_| Instant::now() >= until);
    run.lab.heal_all().expect("a heal");
    let healed = micros();
    assert!(run.cut_packets("d", "k") > 0, "the cut cut nothing");
    run.all_commit(&[0, 1, 2, 3], healed, PEERS);
    println!("after the heal: {:.1} s", run.first_commits(&[0, 1, 2, 3], healed, |_| true));
    run.assert_nobody_out();
    let status = run.status();
    assert!(status.contains(r#"\"evictions\":0"#), "{status}");
    run.finish();
}

#[test]
fn connections_that_are_reset_are_resumed_and_nobody_is_evicted() {
    let Some(mut run) = run("hreset", "lan") else { return };
    // Everything that reaches the host is answered with a reset: its connections break and new ones fail.
    run.lab.reject("d", Some(Refusal::tcp())).expect("a firewall");
    let until = Instant::now() + 2 * SECOND;
    run.herd.until(2 * SECOND, |_| Instant::now() >= until);
    run.lab.reject("d", None).expect("no firewall");
    let healed = micros();
    assert!(run.lab.counters("k", "d").expect("counters").refused > 0, "the firewall refused nothing");
    run.all_commit(&[0, 1, 2, 3], healed, PEERS);
    println!("after the heal: {:.1} s", run.first_commits(&[0, 1, 2, 3], healed, |_| true));
    run.assert_nobody_out();
    run.finish();
}

#[test]
fn a_cut_coordinator_is_given_up_in_time_and_found_again() {
    let Some(mut run) = run("hcoord", "local") else { return };
    run.lab.isolate("k").expect("a cut");
    let cut = Instant::now();
    let all_out = |herd: &Herd| (0..PEERS).all(|number| !herd.outs(number).is_empty());
    let happened = run.herd.until(PATIENCE, all_out);
    assert!(happened, "somebody hangs without a coordinator:\n{}", run.herd.describe());
    // control_lost_after is 10 s; what was sent before the cut may have been answered a moment later.
    let waited = cut.elapsed();
    println!("the coordinator was given up after {:.1} s: {:?}", waited.as_secs_f64(), run.herd.outs(0));
    assert!(waited < 25 * SECOND, "given up only after {waited:?}");
    assert!(run.cut_packets("a", "k") > 0, "the cut cut nothing");
    run.herd.forget_ledger();
    run.lab.heal_all().expect("a heal");
    let healed = micros();
    run.all_commit(&[0, 1, 2, 3], healed, PEERS);
    run.finish();
}
