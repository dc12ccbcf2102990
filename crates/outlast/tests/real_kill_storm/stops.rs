//! Processes that are stopped while they reduce: waited for within the stall budget, left behind after it, and
//! never taken for the dead. What a stop looks like from outside (a port that accepts and says nothing, a window
//! that is closed) must not look like anything worse.

use crate::PEERS;
use crate::herd::{self, Herd, PATIENCE};
use crate::roles::{STALL_MS, TIMEOUT_MS, micros};
use crate::scene::{Scene, builder};
use std::time::Duration;

const BYTES_MAX: usize = 1 << 18;

fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to a child that we have not waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal {signal} to {pid}");
}

#[test]
fn a_stopped_peer_is_waited_for_within_its_stall_budget() {
    let mut scene = Scene::new(BYTES_MAX);
    scene.all_come();
    scene.all_commit(0, PEERS as usize);
    let pid = scene.herd.pid(1);
    signal(pid, libc::SIGSTOP);
    let stopped = micros();
    scene.herd.listen(Duration::from_secs(3));
    signal(pid, libc::SIGCONT);
    let resumed = micros();
    scene.all_commit(resumed, PEERS as usize);
    for number in scene.herd.alive() {
        let meanwhile = |commit: &&herd::Commit| commit.at > stopped;
        let lonely =
            scene.herd.commits(number).iter().filter(meanwhile).find(|commit| commit.contributors.len() != 4);
        assert!(lonely.is_none(), "w{number} went on without the stopped one: {lonely:?}");
        assert!(scene.herd.outs(number).is_empty(), "w{number} is out: {:?}", scene.herd.outs(number));
    }
    scene.finish();
}

#[test]
fn a_peer_stopped_for_longer_is_left_behind_and_comes_back() {
    let budget = Duration::from_secs(2);
    let mut scene = Scene::of(builder().stall_budget(budget), BYTES_MAX);
    scene.herd.set(STALL_MS, budget.as_millis());
    scene.all_come();
    scene.all_commit(0, PEERS as usize);
    let pid = scene.herd.pid(1);
    signal(pid, libc::SIGSTOP);
    let stopped = micros();
    let id = scene.herd.id(1).to_owned();
    let went_on = |herd: &Herd, number: usize| {
        herd.commits(number).iter().find(|commit| !commit.contributors.contains(&id)).map(|commit| commit.at)
    };
    let happened =
        scene.herd.until(PATIENCE, |herd| [0, 2, 3].iter().all(|number| went_on(herd, *number).is_some()));
    assert!(happened, "the others never went on:\n{}\n{}", scene.herd.describe(), scene.status());
    let waited = went_on(&scene.herd, 0).map_or(0, |at| at - stopped);
    println!("the others went on after {:.1} s", waited as f64 / 1e6);
    assert!(waited > 1_500_000, "a stall budget of 2 s was cut to {waited} us");
    signal(pid, libc::SIGCONT);
    let resumed = micros();
    let out = scene.herd.until(PATIENCE, |herd| !herd.outs(1).is_empty());
    assert!(out, "it never learned that it is out:\n{}\n{}", scene.herd.describe(), scene.status());
    scene.all_commit(resumed, PEERS as usize);
    println!("after SIGCONT: {:?}", scene.herd.outs(1));
    scene.finish();
}

#[test]
fn a_peer_that_is_stopped_while_others_die_keeps_its_place() {
    // The one that is left needs a link to the stopped one, and nobody can make it: that must not condemn it.
    let mut scene = Scene::new(BYTES_MAX);
    scene.all_come();
    scene.all_commit(0, PEERS as usize);
    let stopped = scene.herd.pid(1);
    signal(stopped, libc::SIGSTOP);
    scene.herd.listen(Duration::from_millis(200));
    // A first ring has the order of ranks, and contributors are named in it.
    let ranks = scene.herd.commits(0).last().map(|commit| commit.contributors.clone()).unwrap_or_default();
    let place = ranks.iter().position(|id| id == scene.herd.id(1)).expect("it contributes");
    for neighbour in [place + 1, place + ranks.len() - 1] {
        let id = &ranks[neighbour % ranks.len()];
        let number =
            scene.herd.alive().into_iter().find(|number| scene.herd.id(*number) == id).expect("a worker");
        scene.herd.kill(number);
    }
    // Longer than a dial may take, and shorter than the stall budget of 10 s.
    scene.herd.listen(Duration::from_secs(7));
    signal(stopped, libc::SIGCONT);
    let resumed = micros();
    scene.all_commit(resumed, PEERS as usize - 2);
    for number in scene.herd.alive() {
        assert!(
            scene.herd.outs(number).is_empty(),
            "w{number} is out: {:?}\n{}",
            scene.herd.outs(number),
            scene.status()
        );
    }
    scene.finish();
}

#[test]
fn a_call_that_times_out_names_the_stopped_peer_its_health_and_its_last_call() {
    let mut scene = Scene::new(BYTES_MAX);
    scene.herd.set(TIMEOUT_MS, 3_000);
    scene.all_come();
    scene.all_commit(0, PEERS as usize);
    signal(scene.herd.pid(1), libc::SIGSTOP);
    let timed_out = |herd: &Herd, number: usize| {
        // The call, its tag and its time come first.
        let said = format!("w{number}: error all_reduce(");
        let waited = |fault: &&String| fault.starts_with(&said) && fault.contains(": timed out waiting for ");
        herd.faults.iter().find(waited).cloned()
    };
    let all = |herd: &Herd| [0, 2, 3].iter().all(|number| timed_out(herd, *number).is_some());
    assert!(scene.herd.until(PATIENCE, all), "{:?}\n{}", scene.herd.faults, scene.status());
    for number in [0, 2, 3] {
        let text = timed_out(&scene.herd, number).unwrap_or_default();
        println!("{text}");
        let named = text.find("w1 ").map(|at| &text[at..]).unwrap_or_default();
        let words = named.split(')').next().unwrap_or_default();
        assert!(words.contains("(stalled, last called all_reduce(f32["), "{text}");
        assert!(named.contains(" ms ago"), "{text}");
    }
}

#[test]
#[ignore = "long: make soak"]
fn a_process_that_stood_still_beyond_every_deadline_learns_how_its_call_ended() {
    let mut scene = Scene::new(BYTES_MAX);
    scene.herd.set(TIMEOUT_MS, 1_000);
    scene.all_come();
    scene.all_commit(0, PEERS as usize);
    let pid = scene.herd.pid(1);
    signal(pid, libc::SIGSTOP);
    // The call's time, the verdict's grace and the last resort together are 16 s.
    scene.herd.listen(Duration::from_secs(20));
    signal(pid, libc::SIGCONT);
    let ended = |herd: &Herd| {
        !herd.outs(1).is_empty() || herd.faults.iter().any(|fault| fault.starts_with("w1: error"))
    };
    assert!(scene.herd.until(PATIENCE, ended), "{:?}\n{}", scene.herd.faults, scene.status());
    println!("{:?} {:?}", scene.herd.outs(1), scene.herd.faults);
    assert!(
        !scene.herd.faults.iter().any(|fault| fault.contains("a bug in Outlast")),
        "{:?}",
        scene.herd.faults
    );
}
