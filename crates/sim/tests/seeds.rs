//! A few hundred seeds of storms, every scenario, and the promise that a seed replays.
//!
//! `make soak` runs thousands. A failure prints the command that replays it.

use outlast_sim::nodes::MembershipNode;
use outlast_sim::report::Report;
use outlast_sim::runner;
use outlast_sim::scenarios::{self, Scenario};
use outlast_sim::world::{Effect, Tally};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn play(scenario: &Scenario, seed: u64) -> Report {
    runner::run::<MembershipNode>(scenario.name, seed, &(scenario.script)(seed), false)
}

/// Plays every pair on two threads, and returns what the faults did in all. Panics with every failure.
fn play_all(pairs: &[(&str, u64)]) -> Tally {
    let (next, failures, sum) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, seed)) = pairs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let scenario = scenarios::find(name).expect("a scenario of that name");
                    let report = play(&scenario, *seed);
                    *sum.lock().expect("nobody panics here") += &report.tally;
                    if !report.passed() {
                        failures.lock().expect("nobody panics here").push(report.to_string());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("all threads are done");
    assert!(
        failures.is_empty(),
        "{} of {} runs failed:\n{}",
        failures.len(),
        pairs.len(),
        failures.join("\n")
    );
    sum.into_inner().expect("all threads are done")
}

#[test]
fn storms_kill_nobody_wrongly_and_end_in_agreement() {
    let mut pairs = Vec::new();
    pairs.extend((1..=150).map(|seed| ("gentle", seed)));
    pairs.extend((1..=200).map(|seed| ("mixed", seed)));
    pairs.extend((1..=6).map(|seed| ("mixed-64", seed)));
    // Each of these found a fault once, of the members or of the storm.
    pairs.extend([150_001_592].map(|seed| ("gentle", seed)));
    pairs.extend([161, 711].map(|seed| ("mixed", seed)));
    pairs.extend([18, 96, 110, 237, 256, 20_030, 91_000_055, 150_001_317].map(|seed| ("mixed-64", seed)));
    pairs.extend([31_000_011, 31_000_452, 51_002_521, 51_003_046].map(|seed| ("six-of-eight", seed)));
    pairs.extend([31_000_001].map(|seed| ("reject-all", seed)));
    pairs.extend([61_000_724, 61_001_361].map(|seed| ("cut-off-64", seed)));
    pairs.extend([61_004_737].map(|seed| ("kill-64", seed)));
    let tally = play_all(&pairs);
    // Proxies and full buffers have scenarios of their own; everything else must have struck here.
    for effect in Tally::effects() {
        let elsewhere = matches!(effect, Effect::AcceptedByProxy | Effect::LostToFullBuffer);
        assert!(elsewhere || tally.count(effect) > 0, "no storm ever caused {effect:?}: {tally}");
    }
}

#[test]
fn every_scenario_comes_out_as_it_says() {
    let all = scenarios::all();
    let scripted = all.iter().filter(|scenario| !matches!(scenario.name, "gentle" | "mixed" | "mixed-64"));
    let pairs: Vec<_> = scripted.flat_map(|scenario| (1..=5).map(|seed| (scenario.name, seed))).collect();
    play_all(&pairs);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for name in ["gentle", "mixed", "join"] {
        let scenario = scenarios::find(name).expect("a scenario of that name");
        let mut hashes = Vec::new();
        for seed in [3, 4, 5] {
            let (first, second) = (play(&scenario, seed), play(&scenario, seed));
            assert_eq!(first.trace_hash, second.trace_hash, "{name} seed {seed} did not replay");
            assert_eq!(first.events, second.events);
            hashes.push(first.trace_hash);
        }
        hashes.dedup();
        assert_eq!(hashes.len(), 3, "different seeds of {name} must differ");
    }
}

#[test]
fn keeping_the_timeline_changes_nothing() {
    let scenario = scenarios::find("mixed").expect("a scenario of that name");
    let script = (scenario.script)(9);
    let quiet = runner::run::<MembershipNode>("mixed", 9, &script, false);
    let told = runner::run::<MembershipNode>("mixed", 9, &script, true);
    assert_eq!(quiet.trace_hash, told.trace_hash);
    assert!(quiet.timeline.is_empty());
    assert!(told.timeline.iter().any(|line| line.contains("FAULT")), "the timeline tells the faults");
}
