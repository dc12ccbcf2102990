//! Four peers on two hosts that add up numbers without pause, and check every sum: this very test program again, once on
//! each host.

use crate::hosts::Site;
use crate::{PATIENCE, until};
use outlast::Communicator;
use outlast::communicator::Call;
use outlast::membership::Preset;
use outlast::sync::{lock, owned};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Set for the peers of a host: the number of the first, and where they listen.
const ROLE: &str = "OUTLAST_TEST_ADDS_FROM";
const LISTEN: &str = "OUTLAST_TEST_ADDS_AT";
const PEERS: i64 = 4;
pub(crate) const HOSTS: [&str; 2] = ["p", "q"];
const PER_HOST: i64 = PEERS / HOSTS.len() as i64;
/// A step and the next; a run without a pause would leave nothing of two processors to coordinators and etcds.
const BREATH: Duration = Duration::from_millis(5);

/// The peers of one host. They stop when their input ends.
#[test]
fn adds() {
    let Ok(first) = std::env::var(ROLE) else { return };
    let first: i64 = first.parse().expect("a number");
    let listen = std::env::var(LISTEN).expect("an address");
    let stop = Arc::<AtomicBool>::default();
    let peers: Vec<_> = (first..first + PER_HOST)
        .map(|number| {
            let comm = Communicator::builder()
                .listen(listen.parse().expect("an address"))
                .preset(Preset::Local)
                .control_lost_after(Duration::from_mins(1))
                .timeout(PATIENCE);
            let (comm, stop) = (comm.start().expect("a communicator"), Arc::clone(&stop));
            std::thread::spawn(move || add(&comm, number, &stop))
        })
        .collect();
    let ends = Arc::clone(&stop);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {}
        ends.store(true, Ordering::Relaxed);
    });
    for peer in peers {
        peer.join().expect("a peer saw what it must not see");
    }
    println!("\ndone");
}

fn add(comm: &Communicator, number: i64, stop: &AtomicBool) {
    comm.connect(u32::try_from(PEERS).expect("few")).expect("admitted");
    for step in 0.. {
        let stops = i64::from(stop.load(Ordering::Relaxed));
        let mut sums: Vec<i64> = vec![stops, 1 << (16 * number), step * (number + 1)];
        let receipt = comm.all_reduce(&mut sums, &Call::sum()).expect("a commit");
        assert_eq!(receipt.contributors.len() as i64, PEERS, "a live peer was lost at step {step}");
        // Everybody's number once, and everybody at the same step.
        assert_eq!(sums[1], (0..PEERS).map(|peer| 1 << (16 * peer)).sum::<i64>(), "wrong at step {step}");
        assert_eq!(sums[2], step * (1..=PEERS).sum::<i64>(), "wrong at step {step}");
        if number == 0 {
            println!("\ncommit");
        }
        if sums[0] > 0 {
            return;
        }
        std::thread::sleep(BREATH);
    }
}

pub(crate) struct Run {
    processes: Mutex<Vec<Child>>,
    inputs: Vec<ChildStdin>,
    /// When the first peer's calls committed, as it is heard of here.
    commits: Arc<Mutex<Vec<Instant>>>,
}

impl Run {
    pub(crate) fn start(site: &Site) -> Self {
        let program = std::env::current_exe().expect("this program");
        let commits = Arc::<Mutex<Vec<Instant>>>::default();
        let (mut processes, mut inputs) = (Vec::new(), Vec::new());
        for (place, name) in HOSTS.iter().enumerate() {
            let host = site.lab.host(name).expect("a host");
            let mut command = host.command(&program);
            command
                .args(["--exact", "peers::adds", "--nocapture"])
                .env(ROLE, (place as i64 * PER_HOST).to_string())
                .env(LISTEN, format!("{}:0", host.address()))
                .env("OUTLAST_COORDINATOR", site.addresses())
                .env("OUTLAST_SECRET", site.secret.to_text())
                .env_remove("OUTLAST_SECRET_FILE")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut process = command.spawn().expect("the program starts");
            inputs.push(process.stdin.take().expect("its input"));
            let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
            let sink = Arc::clone(&commits);
            std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    if line == "commit" {
                        lock(&sink).push(Instant::now());
                    } else if line.contains("panicked") {
                        println!("{line}");
                    }
                }
            });
            processes.push(process);
        }
        let run = Self { processes: Mutex::new(processes), inputs, commits };
        run.goes_on("the first commits");
        run
    }

    fn commits(&self) -> Vec<Instant> {
        lock(&self.commits).clone()
    }

    fn count(&self) -> usize {
        lock(&self.commits).len()
    }

    /// Waits until twenty more calls have committed.
    pub(crate) fn goes_on(&self, what: &str) {
        let then = self.count();
        until(what, || {
            let mut processes = lock(&self.processes);
            for process in processes.iter_mut() {
                let ended = process.try_wait().expect("its state");
                assert!(ended.is_none(), "peers failed ({ended:?}): {what}");
            }
            (self.count() >= then + 20).then_some(())
        });
    }

    /// How long after that moment the first call committed that nobody can have decided before it.
    pub(crate) fn first_commit_after(&self, moment: Instant) -> Duration {
        let settled = moment + Duration::from_millis(50);
        let first = self.commits().into_iter().find(|commit| *commit > settled).expect("a commit");
        first.duration_since(moment)
    }

    /// The longest time between two commits since that moment.
    pub(crate) fn longest_pause_since(&self, moment: Instant) -> Duration {
        let commits = self.commits();
        let first = commits.partition_point(|at| *at <= moment);
        let later: Vec<_> = std::iter::once(moment).chain(commits[first..].iter().copied()).collect();
        later.windows(2).map(|pair| pair[1].duration_since(pair[0])).max().unwrap_or_default()
    }

    /// Ends it after the same step for all. How many calls committed.
    pub(crate) fn finish(mut self) -> usize {
        for mut input in self.inputs.drain(..) {
            let _ = input.flush();
        }
        let mut processes = std::mem::take(&mut *lock(&self.processes));
        for process in &mut processes {
            let ended = until("the peers end", || process.try_wait().expect("its state"));
            assert!(ended.success(), "a peer saw what it must not see");
        }
        self.count()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let processes = owned(&mut self.processes);
        for process in processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
