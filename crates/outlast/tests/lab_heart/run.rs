//! A run on hosts of a lab: what every test here begins with.

use crate::herd::{self, Herd, PATIENCE, spawn_by};
use crate::roles::{ADDRESS, BYTES_MAX, LISTEN, PRESET, SECRET};
use outlast::coordinator::ask_status;
use outlast::security::RunSecret;
use outlast_lab::{Lab, LabError};
use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::time::Duration;

pub(crate) const PEERS: usize = 4;
/// Hosts of the workers, by number; the coordinator lives on `k`.
pub(crate) const HOSTS: [&str; PEERS] = ["a", "b", "c", "d"];
/// Where every worker listens.
pub(crate) const PORT: u16 = 7000;
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A run of four workers on four hosts, and its coordinator on a fifth.
pub(crate) struct Run {
    // Fields are dropped from top to bottom: the lab goes last.
    pub(crate) herd: Herd,
    coordinator: Child,
    secret: RunSecret,
    address: String,
    pub(crate) lab: Lab,
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.coordinator.kill();
        let _ = self.coordinator.wait();
    }
}

pub(crate) fn run(label: &str, preset: &str) -> Option<Run> {
    run_with(label, preset, |_| {}, &[(BYTES_MAX, (1 << 20).to_string())])
}

/// The same over links that `prepare` makes, with these settings for all.
pub(crate) fn run_with(
    label: &str,
    preset: &str,
    prepare: impl FnOnce(&Lab),
    workers: &[(&'static str, String)],
) -> Option<Run> {
    let lab = match Lab::new(label, HOSTS.into_iter().chain(["k"])) {
        Err(LabError::NotRoot) => {
            eprintln!("SKIPPED {label}: the lab needs root");
            return None;
        }
        lab => lab.expect("a lab"),
    };
    prepare(&lab);
    let program = std::env::current_exe().expect("this program");
    let command = |host: &str| lab.host(host).expect("a host").command(&program);
    let address = format!("{}:29400", lab.host("k").expect("a host").address());
    let secret = RunSecret::generate();
    let common = [(PRESET, preset.to_owned()), (SECRET, secret.to_text())];
    let settings = [&common[..], &[(ADDRESS, address.clone())], workers].concat();
    let mut coordinator = spawn_by(command("k"), "coordinator", &settings);
    let mut lines = BufReader::new(coordinator.stdout.take().expect("its output")).lines();
    let ready = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("@ready"));
    assert!(ready, "a coordinator that starts");
    // Whatever else it prints is read, so that it never waits for us.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    let mut herd = Herd::new(address.clone(), secret.to_text(), 0);
    herd.set(PRESET, preset);
    for (name, value) in workers {
        herd.set(name, value);
    }
    let mut run = Run { herd, coordinator, secret, address, lab };
    for host in HOSTS {
        run.spawn(host, PEERS as u32);
    }
    run.all_commit(&[0, 1, 2, 3], 0, PEERS);
    Some(run)
}

impl Run {
    /// One more worker, on that host; its number.
    pub(crate) fn spawn(&mut self, host: &str, min_world: u32) -> usize {
        let program = std::env::current_exe().expect("this program");
        let host = self.lab.host(host).expect("a host");
        let listen = format!("{}:{PORT}", host.address());
        let command = host.command(&program);
        self.herd.spawn_by(command, min_world, &[(LISTEN, listen)])
    }

    /// What the coordinator says, from its own host.
    pub(crate) fn status(&self) -> String {
        let run = "default".parse().expect("a run id");
        let (address, secret) = (&self.address, &self.secret);
        let ask = || ask_status(address, secret, &run, 5 * SECOND);
        format!("{:?}", self.lab.host("k").expect("a host").enter(ask))
    }

    /// Waits until these have committed since that moment in a world of that many.
    pub(crate) fn all_commit(&mut self, who: &[usize], since: u64, world: usize) {
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
    pub(crate) fn first_commits(
        &self,
        who: &[usize],
        since: u64,
        fits: impl Fn(&herd::Commit) -> bool,
    ) -> f64 {
        let first = |number: &usize| {
            let found = self.herd.commits(*number).iter().find(|commit| commit.at > since && fits(commit));
            found.map_or(u64::MAX, |commit| commit.at)
        };
        (who.iter().map(first).max().unwrap_or(since) - since) as f64 / 1e6
    }

    /// The hosts of two workers, the second of which follows the first in the ring.
    pub(crate) fn neighbours(&self) -> (&'static str, &'static str) {
        let status = self.status();
        let (_, ring) = status.split_once(r#"\"ring\":["#).expect("a ring");
        let (ring, _) = ring.split_once(']').expect("its end");
        let worker = |word: &str| word.trim_matches(['\\', '"']).strip_prefix('w')?.parse::<usize>().ok();
        let numbers: Vec<_> = ring.split(',').filter_map(worker).collect();
        assert_eq!(numbers.len(), PEERS, "{ring}");
        (HOSTS[numbers[0]], HOSTS[numbers[1]])
    }

    pub(crate) fn assert_nobody_out(&self) {
        for number in self.herd.alive() {
            let outs = self.herd.outs(number);
            assert!(outs.is_empty(), "w{number} was thrown out: {outs:?}\n{}", self.status());
        }
    }

    pub(crate) fn finish(mut self) {
        self.herd.finish();
        self.herd.check("at the end");
    }

    /// Packets that were lost between two hosts because of a cut.
    pub(crate) fn cut_packets(&self, one: &str, other: &str) -> u64 {
        let count = |from: &str, to: &str| self.lab.counters(from, to).expect("counters").cut;
        count(one, other) + count(other, one)
    }
}
