//! Rings on links of a lab: does the ring that is chosen run as fast as it can, and as fast as was promised?
//!
//! Needs root; says SKIPPED otherwise. The figures that it prints are those of `bench/RESULTS.md`.

#[path = "../real_topology/workers.rs"]
mod workers;

use outlast::security::RunSecret;
use outlast_lab::{Lab, LabError, Rate, Rule};
use outlast_proto::topology::{Costs, Objective, solve};
use serde_json::{Value, json};
use std::time::Duration;
use workers::{Worker, all, median};

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    workers::be_one();
}

struct Run {
    workers: Vec<Worker>,
    // The lab goes last.
    coordinator: Worker,
    lab: Lab,
}

const HOSTS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Workers on the first hosts, of these sites, over links that `prepare` makes; the coordinator is on a host of its own.
fn run(label: &str, sites: &[&str], prepare: impl FnOnce(&Lab)) -> Option<Run> {
    let hosts = &HOSTS[..sites.len()];
    let lab = match Lab::new(label, hosts.iter().copied().chain(["k"])) {
        Err(LabError::NotRoot) => {
            eprintln!("SKIPPED {label}: the lab needs root");
            return None;
        }
        lab => lab.expect("a lab"),
    };
    prepare(&lab);
    let listen = format!("{}:29400", lab.host("k").expect("a host").address());
    let program = std::env::current_exe().expect("this program");
    let secret = RunSecret::generate().to_text();
    let settings = json!({"serves": true, "listen": &listen, "secret": &secret, "name": "k"});
    let coordinator = Worker::spawn(lab.host("k").expect("a host").command(&program), &settings);
    assert_eq!(coordinator.answer(), json!(&listen), "it is ready");
    let mut workers = Vec::new();
    for (host, site) in hosts.iter().zip(sites) {
        let host = lab.host(host).expect("a host");
        let settings = json!({
            "coordinator": &listen,
            "secret": &secret,
            "listen": format!("{}:7000", host.address()),
            "name": host.name(),
            "site": site,
            "preset": "lan",
        });
        workers.push(Worker::spawn(host.command(&program), &settings));
    }
    let world = workers.len();
    for answer in all(&mut workers, &format!("connect {world}")) {
        assert_eq!(answer["world"], json!(world), "{answer}");
    }
    Some(Run { workers, coordinator, lab })
}

impl Run {
    /// Median seconds of an all-reduce of that many bytes, and what was predicted for it.
    fn reduce(&mut self, bytes: usize, times: u64) -> (f64, Option<f64>) {
        let answers = all(&mut self.workers, &format!("reduce {bytes} {times}"));
        let each = |answer: &Value| {
            let seconds = answer["seconds"].as_array().unwrap_or_else(|| panic!("{answer}"));
            median(seconds.iter().filter_map(Value::as_f64).collect())
        };
        let slowest = answers.iter().map(each).fold(0.0, f64::max);
        (slowest, answers[0]["predicted"].as_f64())
    }

    /// What is known of links, by names, in bits per second.
    fn links(&mut self) -> Vec<(String, String, f64)> {
        self.coordinator.tell("status");
        let status = self.coordinator.answer();
        let links = status["groups"][0]["links"].as_array().unwrap_or_else(|| panic!("{status}")).clone();
        let text = |value: &Value| value.as_str().expect("a name").to_owned();
        let bits = |link: &Value| link["rate"].as_f64().expect("a rate") * 8.0;
        links.iter().map(|link| (text(&link["from"]), text(&link["to"]), bits(link))).collect()
    }

    /// Optimises until nothing is left to be measured: on a machine that is busy with other things a measurement may fail,
    /// and the next call makes up for it. How many pairs that were, and the last report.
    fn optimise(&mut self) -> (u64, Value) {
        let mut pairs = 0;
        loop {
            let answers = all(&mut self.workers, "optimise");
            let report = answers[0].clone();
            assert!(report["ring"].is_array(), "{report}");
            match report["measured_pairs"].as_u64() {
                Some(0) | None => return (pairs, report),
                Some(more) => pairs += more,
            }
        }
    }
}

/// Between 5 and 65 Mbit/s, each direction by itself: a ring by rank has some slow link, and a good one has none.
fn mbit(from: usize, to: usize) -> u64 {
    let mixed = (from as u64 * 2_654_435_761 + to as u64 * 40_503 + 12_345) % 1_009;
    5 + mixed * 60 / 1_009
}

fn rule(mbit: u64) -> Rule {
    Rule::perfect().rate(Rate::mbit(mbit)).delay(Duration::from_millis(1)).queue(Duration::from_millis(100))
}

/// The slowest link of a ring by names, in bits per second, and of the best ring that there is.
fn bounds(rates: &dyn Fn(usize, usize) -> u64, size: usize, ring: &[usize]) -> (u64, u64) {
    let slowest = |ring: &[usize]| {
        (0..size).map(|at| rates(ring[at], ring[(at + 1) % size])).min().expect("members") * 1_000_000
    };
    let costs = Costs::new(size, |from, to| 1_000_000_000 / rates(from, to));
    let best = solve(&costs, Objective::SlowestThenSum, 1, 0).ring().expect("a ring").to_vec();
    (slowest(ring), slowest(&best))
}

/// What an all-reduce must take if its slowest link carries that many bits per second, of which this much is payload.
fn bound(bytes: usize, size: usize, bits: u64) -> f64 {
    2.0 * (size - 1) as f64 / size as f64 * bytes as f64 * 8.0 / bits as f64
}

fn place(name: &str) -> usize {
    HOSTS.iter().position(|host| name.starts_with(host)).expect("a host")
}

fn ring_of(report: &Value) -> Vec<usize> {
    report["ring"]
        .as_array()
        .expect("a ring")
        .iter()
        .map(|name| place(name.as_str().expect("a name")))
        .collect()
}

#[test]
#[ignore = "minutes long: make soak"]
fn eight_hosts_get_the_best_ring_and_what_it_promised() {
    const BYTES: usize = 4 << 20;
    let set_links = |lab: &Lab| {
        for (from, one) in HOSTS.iter().enumerate() {
            for (to, other) in HOSTS.iter().enumerate().filter(|(to, _)| *to != from) {
                lab.set(one, other, rule(mbit(from, to))).expect("a rule");
            }
        }
    };
    let Some(mut run) = run("ring8", &[""; 8], set_links) else { return };
    let (before, _) = run.reduce(BYTES, 3);
    let (pairs, report) = run.optimise();
    assert_eq!(pairs, 28, "{report}");
    let known = run.links();
    let share = |(from, to, bits): &(String, String, f64)| bits / 1e6 / mbit(place(from), place(to)) as f64;
    let mut shares: Vec<_> = known.iter().map(share).collect();
    shares.sort_by(f64::total_cmp);
    let near = shares.iter().filter(|share| (0.9..=1.1).contains(*share)).count();
    println!(
        "{} of {} links measured within 10 %, the worst {:.2?}",
        near,
        shares.len(),
        [shares[0], shares[55]]
    );
    let (after, predicted) = run.reduce(BYTES, 5);
    let ring = ring_of(&report);
    let (chosen, best) = bounds(&mbit, 8, &ring);
    let (by_rank, _) = bounds(&mbit, 8, &(0..8).collect::<Vec<_>>());
    let predicted = predicted.expect("measured");
    println!(
        "8 hosts, {} MiB: before {before:.3} s (slowest link {} Mbit/s), after {after:.3} s ({} Mbit/s), predicted \
         {predicted:.3} s, best ring's bound {:.3} s ({} Mbit/s), ring {ring:?}",
        BYTES >> 20,
        by_rank / 1_000_000,
        chosen / 1_000_000,
        bound(BYTES, 8, best),
        best / 1_000_000
    );
    assert!(chosen * 100 >= best * 90, "the slowest link carries {chosen}, the best ring's {best}");
    assert!(after < before, "{before} s became {after} s");
    // Links change while it runs: the links of this ring are slow now. Passive measurements notice, and so does the next call.
    for at in 0..8 {
        let (from, to) = (ring[at], ring[(at + 1) % 8]);
        run.lab.set(HOSTS[from], HOSTS[to], rule(8)).expect("a rule");
    }
    all(&mut run.workers, "events 0");
    let (slow, _) = run.reduce(BYTES / 2, 3);
    for answer in all(&mut run.workers, "events 5") {
        let told = answer.as_array().unwrap_or_else(|| panic!("{answer}"));
        assert!(told.iter().any(|event| event.as_str().is_some_and(|it| it.contains("MB/s"))), "{answer}");
    }
    let (_, again) = run.optimise();
    let (mended, _) = run.reduce(BYTES / 2, 3);
    println!("links changed: {slow:.3} s, replanned: {mended:.3} s, {again}");
    assert_ne!(again["ring"], report["ring"], "another ring: {again}");
    assert!(mended < slow, "{slow} s became {mended} s");
}

/// Two sites of three hosts, each behind an uplink of so many Mbit/s, with five times as much within. What an all-reduce took
/// before and after, what was predicted, and what no ring can beat. Where nobody names the sites they are found.
fn two_sites(label: &str, mbit: u64, bytes: usize, are_named: bool) -> Option<[f64; 4]> {
    // In the order of names a ring would cross six times; the first one follows the order in which members came.
    let sites = ["x", "y", "x", "y", "x", "y"];
    let uplinks = |lab: &Lab| {
        let within = Rule::perfect().rate(Rate::mbit(5 * mbit)).delay(Duration::from_micros(200));
        lab.set_all(within).expect("a rule");
        let uplink = Rule::perfect().rate(Rate::mbit(mbit)).delay(Duration::from_millis(2));
        lab.uplink(["a", "c", "e"], uplink).expect("an uplink");
        lab.uplink(["b", "d", "f"], uplink).expect("an uplink");
    };
    let names = if are_named { sites } else { [""; 6] };
    let mut run = run(label, &names, uplinks)?;
    let (before, _) = run.reduce(bytes, 2);
    let (pairs, report) = run.optimise();
    // Three in each site, and one between them; all, where nobody says what belongs together. What collectives carried while
    // the ring crossed often is not believed.
    assert_eq!(pairs, if are_named { 7 } else { 15 }, "{report}");
    let ring = ring_of(&report);
    let crossings = (0..6).filter(|at| sites[ring[*at]] != sites[ring[(at + 1) % 6]]).count();
    assert_eq!(crossings, 2, "{report}");
    let (after, predicted) = run.reduce(bytes, 4);
    let (predicted, least) = (predicted.expect("measured"), bound(bytes, 6, mbit * 1_000_000));
    println!(
        "two sites behind {mbit} Mbit/s, {} MiB: before {before:.3} s, after {after:.3} s, predicted {predicted:.3} s, \
         bound {least:.3} s",
        bytes >> 20
    );
    // A ring that crosses three times each way cannot take less than three times the bound. Where the first one took less, it
    // crossed less often, and there is little to gain.
    if before >= 3.0 * least {
        assert!(after < before * 0.6, "three crossings each way became one: {before} s, then {after} s");
    }
    Some([before, after, predicted, least])
}

#[test]
fn two_sites_of_three_are_crossed_once_each_way() {
    two_sites("sites", 200, 16 << 20, true);
}

#[test]
#[ignore = "half a minute: make soak"]
fn two_sites_that_nobody_named_are_found_and_crossed_once_each_way() {
    two_sites("found", 50, 4 << 20, false);
}

/// A quarter of the rate and of the bytes: the same time for a quarter of the processor's work.
#[test]
#[ignore = "figures that need a quiet machine: make soak"]
fn two_slow_sites_take_what_their_uplink_allows() {
    let Some([_, after, predicted, least]) = two_sites("slow", 50, 4 << 20, true) else { return };
    assert!(after < least * 1.25, "{after} s where {least} s are possible");
    assert!((0.9..=1.1).contains(&(after / predicted)), "{after} s where {predicted} s were predicted");
}
