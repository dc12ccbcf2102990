//! Random faults, one after the other, for as long as is asked.

use crate::coordinators::{Coordinators, until};
use crate::run::Run;
use outlast_proto::rng::Rng;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What happens to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The leader gets SIGKILL, and is started again.
    Kill,
    /// The leader gets SIGTERM, and is started again.
    Goodbye,
    /// The leader is stopped for longer than its lease, and continued.
    Stop,
    /// The leader is stopped for a moment.
    Blink,
    /// The leader is cut off from etcd for longer than its lease.
    Cut,
    /// One that stands by is killed, and started again.
    KillStandby,
    /// The leader is killed, and its successor right after it reigns.
    KillTwice,
    /// The leader of etcd itself is killed, and started again.
    KillEtcd,
    /// Etcd is without a majority for a while.
    NoMajority,
}

const FAULTS: [Fault; 9] = [
    Fault::Kill,
    Fault::Goodbye,
    Fault::Stop,
    Fault::Blink,
    Fault::Cut,
    Fault::KillStandby,
    Fault::KillTwice,
    Fault::KillEtcd,
    Fault::NoMajority,
];

fn do_to(all: &mut Coordinators, fault: Fault, rng: &mut Rng) {
    let leader = all.leader();
    let moment = |rng: &mut Rng, least: usize, most: usize| {
        Duration::from_millis((least + rng.below(most - least)) as u64)
    };
    match fault {
        Fault::Kill | Fault::Goodbye => {
            all.end(leader, if fault == Fault::Kill { Signal::KILL } else { Signal::TERM });
            std::thread::sleep(moment(rng, 0, 3_000));
            all.launch(leader);
        }
        Fault::Stop | Fault::Blink => {
            all.signal(leader, Signal::STOP);
            let (least, most) = if fault == Fault::Stop { (3_000, 6_000) } else { (50, 2_500) };
            std::thread::sleep(moment(rng, least, most));
            all.signal(leader, Signal::CONT);
        }
        Fault::Cut => {
            all.cut(leader, true);
            std::thread::sleep(moment(rng, 500, 5_000));
            all.cut(leader, false);
        }
        Fault::KillStandby => {
            let other = (leader + 1 + rng.below(2)) % 3;
            all.end(other, Signal::KILL);
            all.launch(other);
        }
        Fault::KillTwice => {
            all.end(leader, Signal::KILL);
            let next = all.leader();
            std::thread::sleep(moment(rng, 0, 50));
            all.end(next, Signal::KILL);
            all.launch(leader);
            all.launch(next);
        }
        Fault::KillEtcd => {
            let member = all.etcds.leader();
            all.etcds.kill_member(member);
            std::thread::sleep(moment(rng, 0, 2_000));
            all.etcds.restart_member(member);
        }
        Fault::NoMajority => {
            all.etcds.kill_member(1);
            all.etcds.kill_member(2);
            std::thread::sleep(moment(rng, 500, 4_000));
            all.etcds.launch(1);
            all.etcds.restart_member(2);
        }
    }
}

/// `OUTLAST_FAULTS` says how many, `OUTLAST_SEED` which.
#[test]
#[ignore = "for `make soak`: a quarter of an hour"]
fn a_run_outlasts_two_hundred_random_faults() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (faults, seed) = (number("OUTLAST_FAULTS").unwrap_or(200), number("OUTLAST_SEED").unwrap_or(1));
    let mut rng = Rng::from_seed(seed);
    let mut all = Coordinators::start(3);
    let run = Run::start(&all);
    let (mut pauses, mut terms) = (BTreeMap::<Fault, Vec<Duration>>::new(), vec![0]);
    for number in 0..faults {
        let fault = FAULTS[rng.below(FAULTS.len())];
        let began = Instant::now();
        do_to(&mut all, fault, &mut rng);
        run.goes_on(&format!("fault {number} of seed {seed}: {fault:?}"));
        pauses.entry(fault).or_default().push(run.longest_pause_since(began));
        let term = until("a term", || all.status(&all.addresses())?["term"].as_u64());
        assert!(Some(&term) >= terms.last(), "the term only grows: {term} after {terms:?}");
        terms.push(term);
    }
    println!("seed {seed}: {faults} faults, {} commits, last term {}", run.finish(), terms[terms.len() - 1]);
    for (fault, mut pauses) in pauses {
        pauses.sort();
        let (median, longest) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
        println!("{fault:?}: {} times, pause {median:.1?} (median), {longest:.1?} (longest)", pauses.len());
    }
}
