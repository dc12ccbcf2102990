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
#[path = "../real_kill_storm/work.rs"]
mod work;

use herd::{Herd, PATIENCE, spawn_by};
use outlast::coordinator::ask_status;
use outlast::security::RunSecret;
use outlast_lab::{Lab, LabError, Refusal};
use roles::{ADDRESS, LISTEN, PRESET, ROLE, SECRET, micros};
use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

const PEERS: usize = 4;
/// Hosts of the workers, by number; the coordinator lives on `k`.
const HOSTS: [&str; PEERS] = ["a", "b", "c", "d"];
const SECOND: Duration = Duration::from_secs(1);
const BYTES_MAX: usize = 1 << 20;

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("worker") => roles::worker(),
        Ok("coordinator") => roles::coordinator(),
        _ => {}
    }
}

/// A run of four workers on four hosts, and its coordinator on a fifth.
struct Run {
    // Fields are dropped from top to bottom: the lab goes last.
    herd: Herd,
    coordinator: Child,
    secret: RunSecret,
    address: String,
    lab: Lab,
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.coordinator.kill();
        let _ = self.coordinator.wait();
    }
}

fn run(label: &str, preset: &str) -> Option<Run> {
    let lab = match Lab::new(label, HOSTS.into_iter().chain(["k"])) {
        Err(LabError::NotRoot) => {
            eprintln!("SKIPPED {label}: the lab needs root");
            return None;
        }
        lab => lab.expect("a lab"),
    };
    let program = std::env::current_exe().expect("this program");
    let command = |host: &str| lab.host(host).expect("a host").command(&program);
    let address = format!("{}:29400", lab.host("k").expect("a host").address());
    let secret = RunSecret::generate();
    let common = [(PRESET, preset.to_owned()), (SECRET, secret.to_text())];
    let settings = [&common[..], &[(ADDRESS, address.clone())]].concat();
    let mut coordinator = spawn_by(command("k"), "coordinator", &settings);
    let mut lines = BufReader::new(coordinator.stdout.take().expect("its output")).lines();
    let ready = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("@ready"));
    assert!(ready, "a coordinator that starts");
    // Whatever else it prints is read, so that it never waits for us.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    let mut herd = Herd::new(address.clone(), secret.to_text(), BYTES_MAX);
    herd.set(PRESET, preset);
    for host in HOSTS {
        let listen = format!("{}:7000", lab.host(host).expect("a host").address());
        herd.spawn_by(command(host), PEERS as u32, &[(LISTEN, listen)]);
    }
    let mut run = Run { herd, coordinator, secret, address, lab };
    run.all_commit(&[0, 1, 2, 3], 0, PEERS);
    Some(run)
}

impl Run {
    /// What the coordinator says, from its own host.
    fn status(&self) -> String {
        let run = "default".parse().expect("a run id");
        let (address, secret) = (&self.address, &self.secret);
        let ask = || ask_status(address, secret, &run, 5 * SECOND);
        format!("{:?}", self.lab.host("k").expect("a host").enter(ask))
    }

    /// Waits until these have committed since that moment in a world of that many.
    fn all_commit(&mut self, who: &[usize], since: u64, world: usize) {
        let committed = |herd: &Herd, number: &usize| {
            let commits = herd.commits(*number);
            commits.last().is_some_and(|commit| commit.at > since && commit.contributors.len() == world)
        };
        let all = |herd: &Herd| !herd.faults.is_empty() || who.iter().all(|number| committed(herd, number));
        let happened = self.herd.until(PATIENCE, all);
        self.herd.check("while waiting for commits");
        assert!(happened, "no commit in a world of {world}:\n{}\n{}", self.herd.describe(), self.status());
    }

    /// Seconds from `since` to the last of their first commits that fit.
    fn first_commits(&self, who: &[usize], since: u64, fits: impl Fn(&herd::Commit) -> bool) -> f64 {
        let first = |number: &usize| {
            let found = self.herd.commits(*number).iter().find(|commit| commit.at > since && fits(commit));
            found.map_or(u64::MAX, |commit| commit.at)
        };
        (who.iter().map(first).max().unwrap_or(since) - since) as f64 / 1e6
    }

    /// The hosts of two workers, the second of which follows the first in the ring.
    fn neighbours(&self) -> (&'static str, &'static str) {
        let status = self.status();
        let (_, ring) = status.split_once(r#"\"ring\":["#).expect("a ring");
        let (ring, _) = ring.split_once(']').expect("its end");
        let worker = |word: &str| word.trim_matches(['\\', '"']).strip_prefix('w')?.parse::<usize>().ok();
        let numbers: Vec<_> = ring.split(',').filter_map(worker).collect();
        assert_eq!(numbers.len(), PEERS, "{ring}");
        (HOSTS[numbers[0]], HOSTS[numbers[1]])
    }

    fn assert_nobody_out(&self) {
        for number in self.herd.alive() {
            let outs = self.herd.outs(number);
            assert!(outs.is_empty(), "w{number} was thrown out: {outs:?}\n{}", self.status());
        }
    }

    fn finish(mut self) {
        self.herd.finish();
        self.herd.check("at the end");
    }

    /// Packets that were lost between two hosts because of a cut.
    fn cut_packets(&self, one: &str, other: &str) -> u64 {
        let count = |from: &str, to: &str| self.lab.counters(from, to).expect("counters").cut;
        count(one, other) + count(other, one)
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
    // It stays cut, and the run goes on.
    let later = micros();
    run.herd.listen(3 * SECOND);
    run.all_commit(&[0, 1, 2, 3], later + 2_000_000, PEERS);
    run.assert_nobody_out();
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
