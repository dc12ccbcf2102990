//! What it costs to lose one of four: how soon it is noticed, how soon the others go on, how soon they are four again.
//!
//! Four workers on four hosts of a lab reduce for ever; one is lost, the others go on, it comes back or another takes
//! its place, and the next trial begins. Every element of every result is checked on the way (see `real_kill_storm`).
//! `bench/faults` makes the table of `bench/RESULTS.md` from many rounds; a few of them are a test. Needs root;
//! says SKIPPED otherwise.
#![allow(dead_code, reason = "the storm's herd can do more than is needed here")]
#![allow(clippy::allow_attributes, reason = "an expectation would have to name each unused function")]

#[path = "../real_kill_storm/herd.rs"]
mod herd;
#[path = "../real_kill_storm/roles.rs"]
mod roles;
#[path = "../lab_heart/run.rs"]
mod run;
#[path = "../real_kill_storm/work.rs"]
mod work;

use herd::Herd;
use roles::{BYTES_MAX, BYTES_MIN, Dice, ROLE, STALL_MS, TIMEOUT_MS, micros};
use run::{HOSTS, PEERS, Run, run_with};
use std::time::Duration;

/// How long a trial may take until its survivors go on, and until all are there again: far beyond every budget.
const PATIENCE: Duration = Duration::from_mins(2);
/// What is reduced: 1 MiB of f32, one tensor or four at once.
const BYTES: usize = 1 << 20;

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("worker") => roles::worker(),
        Ok("coordinator") => roles::coordinator(),
        _ => {}
    }
}

/// How a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGKILL.
    Kill,
    /// `_exit(0)`, without a goodbye.
    Exit,
    /// SIGSTOP until the others have gone on, which is when the stall budget is over; then SIGCONT.
    Stop,
    /// Its host is cut off until the others have gone on; then it is healed.
    Cut,
}

impl Fault {
    fn of(word: &str) -> Self {
        match word {
            "kill" => Self::Kill,
            "exit" => Self::Exit,
            "stop" => Self::Stop,
            "cut" => Self::Cut,
            other => panic!("no fault {other:?}: kill, exit, stop or cut"),
        }
    }
}

/// What one trial showed. Times in seconds.
#[derive(Debug)]
struct Trial {
    /// From the fault until the last survivor gave up the attempt that waited for the lost one.
    detected: f64,
    /// From the fault until the last survivor's first commit without it.
    resumed: f64,
    /// From the start of a replacement, SIGCONT or the heal until everybody's first commit by four.
    back: f64,
    /// Survivors that went on, of three.
    went_on: usize,
    /// Members that were put out beside the lost one.
    false_positives: u64,
}

/// A run, and which worker sits on which host.
struct Table {
    run: Run,
    seats: [usize; PEERS],
    dice: Dice,
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to a child that we have not waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal {signal} to {pid}");
}

impl Table {
    fn new(label: &str, preset: &str, stall_budget: Option<Duration>, seed: u64) -> Option<Self> {
        let mut settings = vec![
            (BYTES_MIN, BYTES.to_string()),
            (BYTES_MAX, BYTES.to_string()),
            (TIMEOUT_MS, PATIENCE.as_millis().to_string()),
        ];
        settings.extend(stall_budget.map(|budget| (STALL_MS, budget.as_millis().to_string())));
        let run = run_with(label, preset, |_| {}, &settings)?;
        Some(Self { run, seats: [0, 1, 2, 3], dice: Dice::new(seed) })
    }

    /// How many members were put out so far.
    fn evictions(&self) -> u64 {
        let status = self.run.status();
        let (_, rest) = status.split_once(r#"\"evictions\":"#).expect("a count of evictions");
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("a number")
    }

    /// When a worker committed first after that moment in a world of that many.
    fn committed(herd: &Herd, number: usize, since: u64, world: usize) -> Option<u64> {
        let fits = |commit: &&herd::Commit| commit.at > since && commit.contributors.len() == world;
        herd.commits(number).iter().find(fits).map(|commit| commit.at)
    }

    fn all_commit(&mut self, who: &[usize], since: u64, world: usize) -> bool {
        let all = |herd: &Herd| {
            !herd.faults.is_empty()
                || who.iter().all(|number| Self::committed(herd, *number, since, world).is_some())
        };
        let happened = self.run.herd.until(PATIENCE, all);
        self.run.herd.check("a member told of a fault");
        happened
    }

    fn try_out(&mut self, fault: Fault, seat: usize) -> Trial {
        let everybody = self.seats;
        let begin = micros();
        assert!(self.all_commit(&everybody, begin, PEERS), "four at work:\n{}", self.run.herd.describe());
        let pause = Duration::from_millis(self.dice.below(300));
        self.run.herd.listen(pause);
        let evictions = self.evictions();
        let victim = self.seats[seat];
        let survivors: Vec<_> = everybody.into_iter().filter(|number| *number != victim).collect();
        let outs: usize = survivors.iter().map(|number| self.run.herd.outs(*number).len()).sum();
        let struck = match fault {
            Fault::Kill => self.run.herd.kill(victim),
            Fault::Exit => self.run.herd.exit(victim),
            Fault::Stop => {
                let at = micros();
                signal(self.run.herd.pid(victim), libc::SIGSTOP);
                at
            }
            Fault::Cut => {
                let at = micros();
                self.run.lab.isolate(HOSTS[seat]).expect("a cut");
                at
            }
        };
        self.all_commit(&survivors, struck, PEERS - 1);
        let herd = &self.run.herd;
        let resumed: Vec<_> =
            survivors.iter().filter_map(|number| Self::committed(herd, *number, struck, PEERS - 1)).collect();
        // Who was between two calls gave none up, and learned of it by the next one's commit.
        let detected = survivors.iter().filter_map(|number| {
            let commit = Self::committed(herd, *number, struck, PEERS - 1)?;
            let abort = herd.aborts(*number).iter().copied().find(|at| *at > struck);
            Some(abort.map_or(commit, |abort| abort.min(commit)))
        });
        let seconds = |from: u64, to: Option<u64>| to.map_or(f64::NAN, |to| (to - from) as f64 / 1e6);
        let (went_on, detected) = (resumed.len(), seconds(struck, detected.max()));
        let resumed = seconds(struck, resumed.into_iter().max());
        let restored = micros();
        match fault {
            Fault::Kill | Fault::Exit => self.seats[seat] = self.run.spawn(HOSTS[seat], 1),
            Fault::Stop => signal(self.run.herd.pid(victim), libc::SIGCONT),
            Fault::Cut => self.run.lab.heal_all().expect("a heal"),
        }
        let everybody = self.seats;
        assert!(
            self.all_commit(&everybody, restored, PEERS),
            "four again after {fault:?}:\n{}\n{}",
            self.run.herd.describe(),
            self.run.status()
        );
        let herd = &self.run.herd;
        let back =
            everybody.iter().filter_map(|number| Self::committed(herd, *number, restored, PEERS)).max();
        let thrown_out: usize = survivors.iter().map(|number| herd.outs(*number).len()).sum::<usize>() - outs;
        let evicted = (self.evictions() - evictions).saturating_sub(1);
        let false_positives = evicted.max(thrown_out as u64);
        Trial { detected, resumed, back: seconds(restored, back), went_on, false_positives }
    }
}

/// One trial of each: the loss costs nobody else its place, and the others go on in time.
#[test]
fn whoever_of_four_is_lost_the_others_go_on_and_are_four_again() {
    let budget = Duration::from_secs(2);
    let Some(mut table) = Table::new("flt", "local", Some(budget), 1) else { return };
    for (seat, fault) in [Fault::Kill, Fault::Exit, Fault::Stop, Fault::Cut].into_iter().enumerate() {
        let trial = table.try_out(fault, seat);
        println!("{fault:?}: {trial:?}");
        assert_eq!((trial.went_on, trial.false_positives), (PEERS - 1, 0), "{fault:?}: {trial:?}");
        assert!(trial.detected <= trial.resumed, "{fault:?}: {trial:?}");
        if fault == Fault::Stop {
            assert!(trial.resumed > 1.5, "a stall budget of 2 s was cut short: {trial:?}");
        }
    }
    table.run.finish();
}

/// Rounds for `bench/faults`, as the environment says; a line of JSON for each.
#[test]
#[ignore = "a measurement: bench/faults"]
fn table() {
    let setting = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}: see bench/faults"));
    let (word, preset) = (setting("OUTLAST_FAULTS_FAULT"), setting("OUTLAST_FAULTS_PRESET"));
    let rounds = setting("OUTLAST_FAULTS_ROUNDS").parse::<usize>().expect("a number of rounds");
    let first = setting("OUTLAST_FAULTS_FIRST").parse::<usize>().expect("the number of the first trial");
    let mut table = Table::new("flt", &preset, None, first as u64).expect("a lab: root is needed");
    for number in first..first + rounds {
        // Whoever is lost takes turns: the first rank is as good as any.
        let Trial { detected, resumed, back, went_on, false_positives } =
            table.try_out(Fault::of(&word), number % PEERS);
        println!(
            "\n@round {{\"fault\":\"{word}\",\"preset\":\"{preset}\",\"number\":{number},\"detected\":{detected:.6},\
             \"resumed\":{resumed:.6},\"back\":{back:.6},\"went_on\":{went_on},\
             \"false_positives\":{false_positives}}}"
        );
    }
    table.run.finish();
}
