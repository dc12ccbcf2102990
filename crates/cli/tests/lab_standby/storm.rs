//! Random faults, one after the other, for as long as is asked.

use crate::hosts::{COUNT, Site};
use crate::peers::{HOSTS, Run};
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
    /// The leader is cut off from etcd.
    CutFromEtcd,
    /// The leader is cut off from all peers.
    CutFromPeers,
    /// The leader is cut off from half of the peers.
    CutFromSome,
    /// The leader's host is cut off from everybody.
    CutOff,
    /// One that stands by is killed, and started again.
    KillStandby,
    /// The leader is killed, and its successor right after it reigns.
    KillTwice,
    /// The leader of etcd itself is killed, and started again.
    KillEtcd,
    /// Etcd is without a majority for a moment.
    NoMajority,
    /// Etcd is without a majority for half a minute.
    NoMajorityForLong,
}

/// And how often, of a hundred.
const FAULTS: [(Fault, usize); 13] = [
    (Fault::Kill, 14),
    (Fault::Goodbye, 6),
    (Fault::Stop, 10),
    (Fault::Blink, 8),
    (Fault::CutFromEtcd, 10),
    (Fault::CutFromPeers, 10),
    (Fault::CutFromSome, 8),
    (Fault::CutOff, 10),
    (Fault::KillStandby, 5),
    (Fault::KillTwice, 5),
    (Fault::KillEtcd, 7),
    (Fault::NoMajority, 5),
    (Fault::NoMajorityForLong, 2),
];

fn draw(rng: &mut Rng) -> Fault {
    let mut left = rng.below(FAULTS.iter().map(|(_, weight)| weight).sum());
    for (fault, weight) in FAULTS {
        if left < weight {
            return fault;
        }
        left -= weight;
    }
    unreachable!("the weights were added up")
}

fn do_to(site: &mut Site, fault: Fault, leader: usize, rng: &mut Rng) {
    let pause = |rng: &mut Rng, least: usize, most: usize| {
        std::thread::sleep(Duration::from_millis((least + rng.below(most - least)) as u64));
    };
    match fault {
        Fault::Kill | Fault::Goodbye => {
            site.end(leader, if fault == Fault::Kill { Signal::KILL } else { Signal::TERM });
            pause(rng, 0, 3_000);
            site.launch(leader);
        }
        Fault::Stop | Fault::Blink => {
            site.signal(leader, Signal::STOP);
            let (least, most) = if fault == Fault::Stop { (3_000, 5_000) } else { (50, 2_500) };
            pause(rng, least, most);
            site.signal(leader, Signal::CONT);
        }
        Fault::CutFromEtcd => {
            site.cut_from_etcd(leader, true);
            pause(rng, 500, 5_000);
            site.cut_from_etcd(leader, false);
        }
        Fault::CutFromPeers | Fault::CutFromSome => {
            let hosts = if fault == Fault::CutFromPeers { &HOSTS[..] } else { &HOSTS[rng.below(2)..][..1] };
            site.cut_between(leader, hosts, true);
            pause(rng, 500, 6_000);
            site.cut_between(leader, hosts, false);
        }
        Fault::CutOff => {
            site.isolate(leader, true);
            pause(rng, 500, 5_000);
            site.isolate(leader, false);
        }
        Fault::KillStandby => {
            let other = (leader + 1 + rng.below(2)) % COUNT;
            site.end(other, Signal::KILL);
            site.launch(other);
        }
        Fault::KillTwice => {
            site.end(leader, Signal::KILL);
            let (next, _) = site.leader();
            pause(rng, 0, 50);
            site.end(next, Signal::KILL);
            site.launch(leader);
            site.launch(next);
        }
        Fault::KillEtcd => {
            let member = site.etcd_leader();
            site.kill_etcd(member);
            pause(rng, 0, 2_000);
            site.launch_etcd(member);
        }
        Fault::NoMajority | Fault::NoMajorityForLong => {
            let first = rng.below(COUNT);
            let members = [first, (first + 1) % COUNT];
            members.iter().for_each(|member| site.kill_etcd(*member));
            if fault == Fault::NoMajority {
                pause(rng, 500, 4_000);
            } else {
                std::thread::sleep(Duration::from_secs(30));
            }
            members.iter().for_each(|member| site.launch_etcd(*member));
        }
    }
}

fn storm(label: &str, faults: u64, seed: u64) {
    let Some(mut site) = Site::start(label) else { return };
    let mut rng = Rng::from_seed(seed);
    let run = Run::start(&site);
    let (began_at, mut pauses, mut last) = (Instant::now(), BTreeMap::<Fault, Vec<Duration>>::new(), 0);
    for number in 0..faults {
        let fault = draw(&mut rng);
        let (leader, term) = site.leader();
        assert!(term >= last, "the term only grows: {term} after {last}");
        last = term;
        let began = Instant::now();
        do_to(&mut site, fault, leader, &mut rng);
        let lasted = began.elapsed();
        run.goes_on(&format!("fault {number} of seed {seed}: {fault:?}"));
        let pause = run.longest_pause_since(began);
        println!(
            "{:7.1} s  fault {number} of {faults}, seed {seed}: {fault:?} to c{leader}, term {term}, for {lasted:.1?}: \
             longest pause {pause:.2?}",
            began_at.elapsed().as_secs_f64()
        );
        pauses.entry(fault).or_default().push(pause);
    }
    println!("seed {seed}: {faults} faults, {} commits, last term {last}", run.finish());
    for (fault, mut pauses) in pauses {
        pauses.sort();
        let (median, longest) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
        println!("{fault:?}: {} times, pause {median:.2?} (median), {longest:.2?} (longest)", pauses.len());
    }
}

/// `OUTLAST_FAULTS` says how many, `OUTLAST_SEED` which. Pieces of forty take about five minutes each.
#[test]
#[ignore = "minutes long: make soak"]
fn a_run_on_several_hosts_outlasts_two_hundred_random_faults() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    storm("storm", number("OUTLAST_FAULTS").unwrap_or(200), number("OUTLAST_SEED").unwrap_or(1));
}
