//! Processes that are killed while they reduce (rules 4 to 8, 15, 20): the product's promise, held against
//! real SIGKILLs. No result is wrong, nobody disagrees, nobody hangs, nobody who lives is thrown out.

#[expect(dead_code, reason = "tests in a lab ask it for more")]
mod herd;
mod ledger_tests;
mod roles;
mod scene;
mod stops;
mod work;

use herd::{Herd, PATIENCE, spawn_role};
use roles::{ADDRESS, Dice, FORK, ROLE, SECRET, TYPES, micros};
use scene::{Scene, all_commit, status_of};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};
use work::Flavour;

const PEERS: u32 = 4;

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("worker") => roles::worker(),
        Ok("coordinator") => roles::coordinator(),
        _ => {}
    }
}

fn seed() -> u64 {
    let seed = std::env::var("OUTLAST_STORM_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| micros() % 1_000_000);
    println!("OUTLAST_STORM_SEED={seed}");
    seed
}

/// Milliseconds from each kill to the last survivor's abort, and to its first commit without the victim.
#[derive(Default)]
struct Times {
    abort: Vec<f64>,
    commit: Vec<f64>,
    /// For the last survivor's commit: how long it took, and the shape of the collective.
    shapes: Vec<(f64, (u32, u64))>,
}

impl Times {
    fn take(&mut self, herd: &Herd, killed: u64, victim: &str, survivors: &[usize]) {
        let first_abort = |number: &usize| herd.aborts(*number).iter().copied().find(|at| *at > killed);
        let first_commit = |number: &usize| {
            let without = |commit: &&herd::Commit| {
                commit.at > killed && !commit.contributors.iter().any(|id| id == victim)
            };
            herd.commits(*number).iter().find(without).map(|commit| (commit.at, commit.shape))
        };
        let since = |at: u64| (at - killed) as f64 / 1e3;
        let commits: Option<Vec<_>> = survivors.iter().map(first_commit).collect();
        let last = commits.and_then(|commits| commits.into_iter().max());
        self.shapes.extend(last.map(|(at, shape)| (since(at), shape)));
        let commits = last.map(|(at, _)| since(at));
        self.commit.extend(commits);
        let aborts: Option<Vec<_>> = survivors.iter().map(first_abort).collect();
        let aborts = aborts.and_then(|aborts| aborts.into_iter().max()).map(since);
        // A survivor without an abort was between two collectives; what it aborts later is another story.
        self.abort.extend(aborts.filter(|at| commits.is_some_and(|commit| *at <= commit)));
    }
}

/// Holds each recovery against the target: 1.3 x a healthy collective of the same shape, and 250 ms.
fn judge(herd: &Herd, shapes: &[(f64, (u32, u64))]) {
    let mut healthy: BTreeMap<(u32, u64), Vec<f64>> = BTreeMap::new();
    for number in herd.everybody() {
        for commit in herd.commits(number).iter().filter(|commit| commit.attempts == 1) {
            healthy.entry(commit.shape).or_default().push((commit.at - commit.began) as f64 / 1e3);
        }
    }
    let (mut met, mut missed) = (0, Vec::new());
    for (took, shape) in shapes {
        let Some(times) = healthy.get_mut(shape) else { continue };
        times.sort_by(f64::total_cmp);
        let usual = times[times.len() / 2];
        if *took <= 1.3 * usual + 250.0 {
            met += 1;
        } else {
            missed.push(format!("{took:.0} ms where {usual:.0} ms is usual"));
        }
    }
    println!(
        "1.3 x a healthy collective of that shape + 250 ms: {met} met it, {} did not {missed:?}",
        missed.len()
    );
}

fn describe(what: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let place = values.len().saturating_sub(1) * percent / 100;
        values.get(place).copied().unwrap_or(f64::NAN)
    };
    println!(
        "{what}: median {:.1} ms, p99 {:.1} ms, max {:.1} ms ({} samples)",
        at(50),
        at(99),
        at(100),
        values.len()
    );
}

fn kill_storm(kills: usize, bytes_max: usize, types: bool, long: bool) {
    let mut dice = Dice::new(seed());
    let mut scene = if long { Scene::long(bytes_max) } else { Scene::new(bytes_max) };
    if types {
        scene.herd.set(TYPES, 1);
    }
    scene.all_come();
    let Scene { herd, coordinator } = &mut scene;
    let status = || status_of(coordinator);
    let (mut killed, mut times, began) = (0, Times::default(), Instant::now());
    let mut since = 0;
    while killed < kills {
        all_commit(herd, since, PEERS as usize, status);
        herd.listen(Duration::from_millis(dice.below(60)));
        // Mostly one, sometimes all but one at nearly the same time.
        let victims = [1, 1, 1, 1, 1, 1, 2, 2, 3][dice.below(9) as usize].min(kills - killed);
        let mut last = (0, 0);
        for _ in 0..victims {
            let alive = herd.alive();
            let victim = alive[dice.below(alive.len() as u64) as usize];
            last = (victim, herd.kill(victim));
            killed += 1;
            herd.listen(Duration::from_millis(dice.below(20)));
        }
        since = micros();
        let survivors = herd.alive();
        if victims == 1 {
            let (victim, at) = last;
            let id = herd.id(victim).to_owned();
            let committed = |herd: &Herd, number: &usize| {
                herd.commits(*number)
                    .iter()
                    .any(|commit| commit.at > at && !commit.contributors.contains(&id))
            };
            let all = |herd: &Herd| survivors.iter().all(|number| committed(herd, number));
            // The newcomer starts at the same time as the survivors recover, half of the time.
            let late = dice.below(2) == 0;
            if !late {
                herd.spawn(1);
            }
            let happened = herd.until(herd.patience, all);
            assert!(happened, "survivors hang after kill {killed}:\n{}\n{}", herd.describe(), status());
            times.take(herd, at, &id, &survivors);
            if late {
                herd.spawn(1);
            }
        } else {
            for _ in 0..victims {
                herd.spawn(1);
            }
        }
        for number in survivors {
            let outs = herd.outs(number).to_vec();
            assert!(outs.is_empty(), "w{number} lives and was thrown out: {outs:?}");
        }
    }
    all_commit(herd, since, PEERS as usize, status);
    herd.finish();
    herd.check("at the end");
    let healthy: Vec<_> = herd
        .everybody()
        .flat_map(|number| herd.commits(number).to_vec())
        .filter(|commit| commit.attempts == 1)
        .map(|commit| (commit.at - commit.began) as f64 / 1e3)
        .collect();
    println!("{killed} kills, {} collectives, {:.1} s", herd.collectives(), began.elapsed().as_secs_f64());
    describe("one healthy step", healthy);
    if types {
        count_flavours(herd);
    }
    judge(herd, &times.shapes);
    describe("SIGKILL to the abort on the last survivor", times.abort);
    describe("SIGKILL to the last survivor's commit without the victim", times.commit);
}

/// Every flavour was reduced, and kills hit some: how many of each were done, and how many again.
fn count_flavours(herd: &Herd) {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for commit in herd.everybody().flat_map(|number| herd.commits(number)) {
        let count = counts.entry(&commit.flavour).or_default();
        *count = (count.0 + 1, count.1 + usize::from(commit.attempts > 1));
    }
    println!("commits and retried ones by flavour: {counts:?}");
    for flavour in Flavour::ALL {
        for name in [flavour.name().to_owned(), format!("{}/many", flavour.name())] {
            assert!(counts.contains_key(&*name), "the storm never reduced {name}");
        }
    }
    assert!(counts.values().any(|(_, again)| *again > 0), "no kill hit a collective");
}

#[test]
fn forty_kills_up_to_a_megabyte() {
    kill_storm(40, 1 << 20, false, false);
}

#[test]
fn twenty_five_kills_over_every_type_quantised_and_many_at_once() {
    kill_storm(25, 1 << 19, true, false);
}

#[test]
#[ignore = "long: make soak"]
fn a_thousand_kills_over_every_type_up_to_16_megabytes() {
    kill_storm(1_000, 16 << 20, true, true);
}

#[test]
#[ignore = "long: make soak"]
fn a_thousand_kills_up_to_64_megabytes() {
    kill_storm(1_000, 64 << 20, false, true);
}

/// A coordinator in a process of its own, at one address for the whole run.
struct Service {
    process: Child,
    address: String,
    secret: String,
}

impl Service {
    fn start(address: &str, secret: &str) -> Self {
        let settings = [(ADDRESS, address.to_owned()), (SECRET, secret.to_owned())];
        let mut process = spawn_role("coordinator", &settings);
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("@ready ")?.to_owned()));
        // Whatever else it prints is read, so that it never waits for us.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { process, address: ready.expect("a coordinator that starts"), secret: secret.to_owned() }
    }

    fn kill(&mut self) {
        self.process.kill().expect("a kill");
        self.process.wait().expect("an end");
    }

    fn restart(&mut self, pause: Duration) {
        self.kill();
        std::thread::sleep(pause);
        *self = Self::start(&self.address.clone(), &self.secret.clone());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn coordinator_storm(restarts: usize, bytes_max: usize) {
    let mut dice = Dice::new(seed());
    let secret = outlast::security::RunSecret::generate().to_text();
    let mut service = Service::start("127.0.0.1:0", &secret);
    let mut herd = Herd::new(service.address.clone(), secret, bytes_max);
    herd.spawn_all(PEERS);
    let mut gaps = Vec::new();
    let mut since = 0;
    for _ in 0..restarts {
        all_commit(&mut herd, since, PEERS as usize, String::new);
        herd.listen(Duration::from_millis(dice.below(100)));
        let killed = micros();
        service.restart(Duration::from_millis(dice.below(300)));
        since = micros();
        all_commit(&mut herd, since, PEERS as usize, String::new);
        gaps.push((micros() - killed) as f64 / 1e3);
        let outs: Vec<_> = herd.alive().iter().flat_map(|number| herd.outs(*number).to_vec()).collect();
        assert!(outs.is_empty(), "thrown out by a restart: {outs:?}");
    }
    herd.finish();
    herd.check("at the end");
    println!("{restarts} restarts of the coordinator, {} collectives", herd.collectives());
    describe("SIGKILL of the coordinator to everybody's next commit", gaps);
}

#[test]
fn the_coordinator_is_killed_and_restarted_ten_times() {
    coordinator_storm(10, 1 << 20);
}

#[test]
#[ignore = "long: make soak"]
fn the_coordinator_is_killed_and_restarted_two_hundred_times() {
    coordinator_storm(200, 4 << 20);
}

/// Workers and the coordinator are killed, also at the same time.
fn mixed_storm(rounds: usize, bytes_max: usize) {
    let mut dice = Dice::new(seed());
    let secret = outlast::security::RunSecret::generate().to_text();
    let mut service = Service::start("127.0.0.1:0", &secret);
    let run = "default".parse().expect("a run id");
    let (address, key) = (service.address.clone(), secret.parse().expect("a secret"));
    let status =
        || format!("{:?}", outlast::coordinator::ask_status(&address, &key, &run, Duration::from_secs(5)));
    let mut herd = Herd::new(service.address.clone(), secret, bytes_max);
    herd.spawn_all(PEERS);
    let mut gaps = Vec::new();
    let mut since = 0;
    for _ in 0..rounds {
        all_commit(&mut herd, since, PEERS as usize, status);
        herd.listen(Duration::from_millis(dice.below(60)));
        let alive = herd.alive();
        let victim = alive[dice.below(alive.len() as u64) as usize];
        let killed = micros();
        let order = dice.below(3);
        if order == 0 {
            service.restart(Duration::from_millis(dice.below(100)));
            herd.listen(Duration::from_millis(dice.below(200)));
        }
        herd.kill(victim);
        herd.spawn(1);
        if order > 0 {
            // The newcomer's admission is under way when the coordinator dies.
            herd.listen(Duration::from_millis(dice.below(if order == 1 { 20 } else { 500 })));
            service.restart(Duration::from_millis(dice.below(100)));
        }
        since = micros();
        all_commit(&mut herd, since, PEERS as usize, status);
        gaps.push((micros() - killed) as f64 / 1e3);
        for number in herd.alive() {
            let outs = herd.outs(number);
            assert!(outs.is_empty(), "w{number} lives and was thrown out: {outs:?}");
        }
    }
    herd.finish();
    herd.check("at the end");
    println!("{rounds} kills of a worker and the coordinator, {} collectives", herd.collectives());
    describe("SIGKILL of both to a commit by four again", gaps);
}

#[test]
fn workers_and_the_coordinator_are_killed_together() {
    mixed_storm(10, 1 << 20);
}

#[test]
#[ignore = "long: make soak"]
fn workers_and_the_coordinator_are_killed_together_two_hundred_times() {
    mixed_storm(200, 4 << 20);
}

/// Everybody gives the run up, and the run that they begin afterwards counts its epochs from the start.
#[test]
fn a_coordinator_that_is_away_for_too_long_costs_a_rejoin_and_no_more() {
    let secret = outlast::security::RunSecret::generate().to_text();
    let mut service = Service::start("127.0.0.1:0", &secret);
    let mut herd = Herd::new(service.address.clone(), secret, 1 << 18);
    herd.spawn_all(PEERS);
    for _ in 0..2 {
        // Losses let the old run's epochs grow beyond those of the new one.
        all_commit(&mut herd, 0, PEERS as usize, String::new);
        let victim = herd.alive()[0];
        herd.kill(victim);
        herd.spawn(1);
    }
    let since = micros();
    all_commit(&mut herd, since, PEERS as usize, String::new);
    // And a restart lets its term grow.
    service.restart(Duration::ZERO);
    let since = micros();
    all_commit(&mut herd, since, PEERS as usize, String::new);
    service.kill();
    let alive = herd.alive();
    let happened = herd.until(PATIENCE, |herd| alive.iter().all(|number| !herd.outs(*number).is_empty()));
    assert!(happened, "they never gave up:\n{}", herd.describe());
    herd.forget_ledger();
    service.restart(Duration::ZERO);
    let since = micros();
    all_commit(&mut herd, since, PEERS as usize, String::new);
    herd.finish();
    herd.check("at the end");
}

#[test]
fn a_victim_with_living_children_is_as_dead_as_any() {
    let mut scene = Scene::new(1 << 20);
    scene.herd.set(FORK, 1);
    scene.all_come();
    let (mut since, mut times) = (0, Times::default());
    for _ in 0..5 {
        scene.all_commit(since, PEERS as usize);
        let victim = scene.herd.alive()[0];
        let id = scene.herd.id(victim).to_owned();
        since = scene.herd.kill(victim);
        let survivors = scene.herd.alive();
        scene.all_commit(since, PEERS as usize - 1);
        times.take(&scene.herd, since, &id, &survivors);
        since = micros();
        scene.herd.spawn(1);
    }
    scene.all_commit(since, PEERS as usize);
    scene.finish();
    describe("SIGKILL to the abort on the last survivor, children alive", times.abort);
    describe("SIGKILL to the last survivor's commit, children alive", times.commit);
}
