//! Processes that are stopped while they reduce: waited for within the stall budget, left behind after it, and
//! never taken for the dead. What a stop looks like from outside (a port that accepts and says nothing, a window
//! that is closed) must not look like anything worse.

use crate::herd::{self, Herd, PATIENCE};
use crate::roles::{STALL_MS, TIMEOUT_MS, micros};
use crate::{PEERS, all_commit, builder, coordinator};
use std::time::Duration;

fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to a child that we have not waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal {signal} to {pid}");
}

#[test]
fn a_stopped_peer_is_waited_for_within_its_stall_budget() {
    let coordinator = coordinator();
    let mut herd = crate::herd(&coordinator, 1 << 18);
    herd.spawn_all(PEERS);
    let run = "default".parse().expect("a run id");
    let status = || format!("{:?}", coordinator.status(&run));
    all_commit(&mut herd, 0, PEERS as usize, status);
    let pid = herd.pid(1);
    signal(pid, libc::SIGSTOP);
    let stopped = micros();
    herd.listen(Duration::from_secs(3));
    signal(pid, libc::SIGCONT);
    let resumed = micros();
    all_commit(&mut herd, resumed, PEERS as usize, status);
    for number in herd.alive() {
        let meanwhile = |commit: &&herd::Commit| commit.at > stopped;
        let lonely =
            herd.commits(number).iter().filter(meanwhile).find(|commit| commit.contributors.len() != 4);
        assert!(lonely.is_none(), "w{number} went on without the stopped one: {lonely:?}");
        assert!(herd.outs(number).is_empty(), "w{number} is out: {:?}", herd.outs(number));
    }
    herd.finish();
    herd.check("at the end");
}

#[test]
fn a_peer_stopped_for_longer_is_left_behind_and_comes_back() {
    let budget = Duration::from_secs(2);
    let coordinator = builder().stall_budget(budget).start().expect("a coordinator");
    let mut herd = crate::herd(&coordinator, 1 << 18);
    herd.set(STALL_MS, budget.as_millis());
    herd.spawn_all(PEERS);
    let run = "default".parse().expect("a run id");
    let status = || format!("{:?}", coordinator.status(&run));
    all_commit(&mut herd, 0, PEERS as usize, status);
    let pid = herd.pid(1);
    signal(pid, libc::SIGSTOP);
    let stopped = micros();
    let id = herd.id(1).to_owned();
    let went_on = |herd: &Herd, number: usize| {
        herd.commits(number).iter().find(|commit| !commit.contributors.contains(&id)).map(|commit| commit.at)
    };
    let happened =
        herd.until(PATIENCE, |herd| [0, 2, 3].iter().all(|number| went_on(herd, *number).is_some()));
    assert!(happened, "the others never went on:\n{}\n{}", herd.describe(), status());
    let waited = went_on(&herd, 0).map_or(0, |at| at - stopped);
    println!("the others went on after {:.1} s", waited as f64 / 1e6);
    assert!(waited > 1_500_000, "a stall budget of 2 s was cut to {waited} us");
    signal(pid, libc::SIGCONT);
    let resumed = micros();
    let out = herd.until(PATIENCE, |herd| !herd.outs(1).is_empty());
    assert!(out, "it never learned that it is out:\n{}\n{}", herd.describe(), status());
    all_commit(&mut herd, resumed, PEERS as usize, status);
    println!("after SIGCONT: {:?}", herd.outs(1));
    herd.finish();
    herd.check("at the end");
}

#[test]
fn a_peer_that_is_stopped_while_others_die_keeps_its_place() {
    // The one that is left needs a link to the stopped one, and nobody can make it: that must not condemn it.
    let coordinator = coordinator();
    let mut herd = crate::herd(&coordinator, 1 << 18);
    herd.spawn_all(PEERS);
    let run = "default".parse().expect("a run id");
    let status = || format!("{:?}", coordinator.status(&run));
    all_commit(&mut herd, 0, PEERS as usize, status);
    let stopped = herd.pid(1);
    signal(stopped, libc::SIGSTOP);
    herd.listen(Duration::from_millis(200));
    // A first ring has the order of ranks, and contributors are named in it.
    let ranks = herd.commits(0).last().map(|commit| commit.contributors.clone()).unwrap_or_default();
    let place = ranks.iter().position(|id| id == herd.id(1)).expect("it contributes");
    for neighbour in [place + 1, place + ranks.len() - 1] {
        let id = &ranks[neighbour % ranks.len()];
        let number = herd.alive().into_iter().find(|number| herd.id(*number) == id).expect("a worker");
        herd.kill(number);
    }
    // Longer than a dial may take, and shorter than the stall budget of 10 s.
    herd.listen(Duration::from_secs(7));
    signal(stopped, libc::SIGCONT);
    let resumed = micros();
    all_commit(&mut herd, resumed, PEERS as usize - 2, status);
    for number in herd.alive() {
        assert!(herd.outs(number).is_empty(), "w{number} is out: {:?}\n{}", herd.outs(number), status());
    }
    herd.finish();
    herd.check("at the end");
}

#[test]
fn a_call_that_times_out_names_the_stopped_peer_its_health_and_its_last_call() {
    let coordinator = coordinator();
    let mut herd = crate::herd(&coordinator, 1 << 18);
    herd.set(TIMEOUT_MS, 3_000);
    herd.spawn_all(PEERS);
    let run = "default".parse().expect("a run id");
    let status = || format!("{:?}", coordinator.status(&run));
    all_commit(&mut herd, 0, PEERS as usize, status);
    signal(herd.pid(1), libc::SIGSTOP);
    let timed_out = |herd: &Herd, number: usize| {
        let said = format!("w{number}: error timed out waiting for ");
        herd.faults.iter().find(|fault| fault.starts_with(&said)).cloned()
    };
    let all = |herd: &Herd| [0, 2, 3].iter().all(|number| timed_out(herd, *number).is_some());
    assert!(herd.until(PATIENCE, all), "{:?}\n{}", herd.faults, status());
    for number in [0, 2, 3] {
        let text = timed_out(&herd, number).unwrap_or_default();
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
    let coordinator = coordinator();
    let mut herd = crate::herd(&coordinator, 1 << 18);
    herd.set(TIMEOUT_MS, 1_000);
    herd.spawn_all(PEERS);
    let run = "default".parse().expect("a run id");
    let status = || format!("{:?}", coordinator.status(&run));
    all_commit(&mut herd, 0, PEERS as usize, status);
    let pid = herd.pid(1);
    signal(pid, libc::SIGSTOP);
    // The call's time, the verdict's grace and the last resort together are 16 s.
    herd.listen(Duration::from_secs(20));
    signal(pid, libc::SIGCONT);
    let ended = |herd: &Herd| {
        !herd.outs(1).is_empty() || herd.faults.iter().any(|fault| fault.starts_with("w1: error"))
    };
    assert!(herd.until(PATIENCE, ended), "{:?}\n{}", herd.faults, status());
    println!("{:?} {:?}", herd.outs(1), herd.faults);
    assert!(!herd.faults.iter().any(|fault| fault.contains("a bug in Outlast")), "{:?}", herd.faults);
}
