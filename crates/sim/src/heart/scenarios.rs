//! Every scenario of the heart by its name.

use super::fault::Fault;
use super::program::Habits;
use super::runner::Script;
use super::world::Settings;
use outlast_proto::rng::Rng;
use outlast_proto::time::Duration;

/// A named way to make a script from a seed.
pub struct Scenario {
    /// What `make sim SCENARIO=..` takes.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// Its script.
    pub script: fn(u64) -> Script,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A storm: `kinds` are drawn with their weights, `count` times within `safety`.
fn storm(seed: u64, peers: (u32, u32), count: usize, safety: Duration, kinds: &[(u32, Kind)]) -> Script {
    let mut rng = Rng::from_seed(seed ^ 0x5eed_0000);
    let peers = peers.0 + rng.below((peers.1 - peers.0 + 1) as usize) as u32;
    let mut settings = Settings::new(seed, peers);
    settings.groups = if peers >= 4 && rng.chance(0.3) { 2 } else { 1 };
    settings.latency_max = ms([1, 5, 50][rng.below(3)]);
    settings.transfer_max = ms([2, 30, 300][rng.below(3)]);
    settings.flush_max = ms([10, 300, 30_000][rng.below(3)]);
    settings.think_max = ms([2, 20, 100][rng.below(3)]);
    settings.kernels_trusted = rng.chance(0.8);
    let groups = settings.groups;
    let total: u32 = kinds.iter().map(|(weight, _)| weight).sum();
    let mut faults = Vec::new();
    for _ in 0..=rng.below(count) {
        let at = ms(300) + safety.saturating_sub(ms(300)).mul_f64(rng.unit());
        let mut drawn = rng.below(total as usize) as u32;
        let kind = kinds.iter().find(|(weight, _)| {
            let here = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            here
        });
        if let Some((_, kind)) = kind {
            faults.push((at, kind(&mut rng, groups)));
        }
    }
    Script { settings, faults, safety, converge_within: Duration::from_secs(150), untouched: None }
}

type Kind = fn(&mut Rng, u32) -> Fault;

const KILL: Kind =
    |rng, _| Fault::Kill { group: None, respawn: rng.chance(0.7).then(|| ms(rng.below(3_000) as u64)) };
const STOP: Kind = |rng, _| Fault::Stop(ms([200, 2_000, 15_000][rng.below(3)]));
const CUT_CONTROL: Kind = |rng, _| Fault::CutControl(ms([10, 1_000, 4_000, 15_000][rng.below(4)]));
const ISOLATE: Kind = |rng, _| Fault::Isolate(ms([1_000, 4_000, 15_000][rng.below(3)]));
const CUT_LINK: Kind = |rng, _| Fault::CutLink(ms([100, 2_000, 20_000][rng.below(3)]));
const RESTART: Kind = |rng, _| Fault::RestartCoordinator(ms([1, 100, 1_500][rng.below(3)]));
const NEWCOMER: Kind = |rng, groups| Fault::Newcomer { group: rng.below(groups as usize) as u32 };
const LEAVE: Kind = |_, _| Fault::Leave;

fn two_terms(seed: u64) -> Script {
    let mut rng = Rng::from_seed(seed);
    let mut script = storm(seed, (2, 5), 2, Duration::from_secs(20), &[(1, KILL), (1, NEWCOMER)]);
    let at = |from: u64, rng: &mut Rng| ms(from + rng.below(2_000) as u64);
    script.faults.push((at(1_000, &mut rng), Fault::Depose));
    script.faults.push((at(5_000, &mut rng), Fault::Relapse(ms(rng.below(3_000) as u64))));
    script.faults.push((at(10_000, &mut rng), Fault::Depose));
    script
}

/// A storm of everything, in the shape of `heart-mixed`.
fn mixed(seed: u64) -> Script {
    let kinds: &[(u32, Kind)] = &[
        (4, KILL),
        (2, STOP),
        (3, CUT_CONTROL),
        (2, ISOLATE),
        (2, CUT_LINK),
        (3, RESTART),
        (2, NEWCOMER),
        (1, LEAVE),
    ];
    storm(seed, (2, 8), 16, Duration::from_secs(30), kinds)
}

/// From this seed on `heart-mixed` also draws what its programs do and as whom its processes come back. Seeds below it are
/// pinned in tests and tell the stories that they told before.
const DRAWN_FROM: u64 = 100_000_000;

/// A storm of everything over programs of which some do all that those of `heart-programs` do, and some come back under
/// their own ids.
fn mixed_programs(seed: u64) -> Script {
    if seed < DRAWN_FROM {
        return mixed(seed);
    }
    let mut rng = Rng::from_seed(seed ^ 0x0d2a_3713);
    let mut script = if rng.chance(0.4) { programs(seed) } else { mixed(seed) };
    script.settings.rejoins = rng.chance(0.4);
    script
}

/// Programs that do more than reduce, and move on after an error.
fn programs(seed: u64) -> Script {
    let mut script = mixed(seed);
    let habits = &mut script.settings.habits;
    (habits.kinds, habits.moves_on) = (true, true);
    (habits.cancels, habits.mismatches) = (0.02, 0.01);
    habits.timeout.0 = ms(500);
    script
}

/// A storm of everything over programs that vote in ballots about nothing.
fn ballots(seed: u64) -> Script {
    let mut script = mixed(seed);
    script.settings.habits.ballots = true;
    script
}

/// Three peers and a newcomer; the coordinator dies after its n-th message.
fn crash_points(seed: u64) -> Script {
    let mut settings = Settings::new(seed / 400, 3);
    settings.crash_after_sends = Some(1 + seed % 400);
    settings.latency_max = ms(3);
    settings.habits.timeout.0 = Duration::from_secs(15);
    let mut faults = vec![(ms(400), Fault::Newcomer { group: 0 })];
    if (seed / 400).is_multiple_of(2) {
        faults.push((ms(500), Fault::Kill { group: None, respawn: Some(ms(300)) }));
    }
    let (safety, converge_within) = (Duration::from_secs(3), Duration::from_mins(1));
    Script { settings, faults, safety, converge_within, untouched: None }
}

/// Whoever is out comes back under its own id.
fn rejoin(seed: u64) -> Script {
    let kinds: &[(u32, Kind)] =
        &[(3, CUT_CONTROL), (3, ISOLATE), (3, STOP), (2, RESTART), (1, KILL), (1, NEWCOMER)];
    let mut script = storm(seed, (2, 6), 12, Duration::from_secs(30), kinds);
    script.settings.rejoins = true;
    script
}

/// The membership machine says who is alive.
fn health(seed: u64) -> Script {
    let mut script = mixed(seed);
    (script.settings.health, script.settings.rejoins) = (true, true);
    script.settings.datagram_loss = [0.0, 0.02][(seed % 2) as usize];
    script
}

/// Group 1 suffers and the coordinator dies; group 0 loses nobody and fails no call.
fn bystanders(seed: u64) -> Script {
    let mut rng = Rng::from_seed(seed);
    let mut settings = Settings::new(seed, 6);
    (settings.groups, settings.bystander) = (2, Some(0));
    settings.habits.timeout.0 = Duration::from_secs(8);
    settings.think_max = ms([2, 20, 100][rng.below(3)]);
    let mut faults = Vec::new();
    for _ in 0..=rng.below(8) {
        let at = ms(500) + ms(rng.below(14_000) as u64);
        faults.push((
            at,
            match rng.below(5) {
                0 | 1 => Fault::RestartCoordinator(ms([1, 100, 1_500][rng.below(3)])),
                2 => Fault::Newcomer { group: 1 },
                _ => Fault::Kill {
                    group: Some(1),
                    respawn: rng.chance(0.7).then(|| ms(rng.below(2_000) as u64)),
                },
            },
        ));
    }
    let (safety, converge_within) = (Duration::from_secs(16), Duration::from_mins(1));
    Script { settings, faults, safety, converge_within, untouched: None }
}

/// Scenarios that find faults which are not mended yet: played when they are asked for by their full name.
pub fn waiting() -> Vec<Scenario> {
    Vec::new()
}

/// All scenarios.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "heart-calm",
            about: "nothing goes wrong, newcomers come",
            script: |seed| storm(seed, (1, 8), 3, Duration::from_secs(5), &[(1, NEWCOMER)]),
        },
        Scenario {
            name: "heart-kills",
            about: "a storm of kills, with and without respawn",
            script: |seed| {
                storm(seed, (2, 7), 12, Duration::from_secs(15), &[(3, KILL), (1, NEWCOMER), (1, LEAVE)])
            },
        },
        Scenario {
            name: "heart-cuts",
            about: "control connections break",
            script: |seed| {
                storm(
                    seed,
                    (2, 6),
                    10,
                    Duration::from_secs(15),
                    &[(4, CUT_CONTROL), (1, KILL), (1, NEWCOMER)],
                )
            },
        },
        Scenario {
            name: "heart-links",
            about: "data links break between the living",
            script: |seed| {
                storm(seed, (2, 6), 6, Duration::from_secs(15), &[(4, CUT_LINK), (1, KILL), (1, NEWCOMER)])
            },
        },
        Scenario {
            name: "heart-stops",
            about: "processes are stopped, within the budget and beyond",
            script: |seed| {
                storm(seed, (2, 6), 6, Duration::from_secs(25), &[(4, STOP), (1, KILL), (1, NEWCOMER)])
            },
        },
        Scenario {
            name: "heart-coordinator",
            about: "the coordinator is killed and started again",
            script: |seed| {
                let kinds: &[(u32, Kind)] = &[(5, RESTART), (1, KILL), (1, NEWCOMER), (1, LEAVE)];
                storm(seed, (2, 6), 10, Duration::from_secs(15), kinds)
            },
        },
        Scenario {
            name: "heart-kept",
            about: "the coordinator is killed and started again with the facts that it kept",
            script: |seed| {
                let kinds: &[(u32, Kind)] =
                    &[(5, RESTART), (2, KILL), (1, CUT_CONTROL), (2, NEWCOMER), (1, LEAVE)];
                let mut script = storm(seed, (1, 6), 12, Duration::from_secs(20), kinds);
                script.settings.keeps_facts = true;
                script
            },
        },
        Scenario {
            name: "heart-kept-crash-points",
            about: "the crash points, of a coordinator that keeps facts",
            script: |seed| {
                let mut script = crash_points(seed);
                script.settings.keeps_facts = true;
                script
            },
        },
        Scenario { name: "heart-mixed", about: "a storm of everything", script: mixed_programs },
        Scenario {
            name: "heart-programs",
            about: "barriers, broadcasts, cancels and mismatches; programs move on after an error",
            script: programs,
        },
        Scenario {
            name: "heart-bystanders",
            about: "group 1 suffers, the coordinator dies, group 0 loses nobody and fails no call",
            script: bystanders,
        },
        Scenario {
            name: "heart-large",
            about: "a storm of everything over a large group",
            script: |seed| {
                let kinds: &[(u32, Kind)] =
                    &[(6, KILL), (2, CUT_CONTROL), (1, RESTART), (1, STOP), (2, NEWCOMER)];
                let mut script = storm(seed, (100, 300), 12, Duration::from_secs(6), kinds);
                script.settings.habits = Habits { tags_max: 2, scopes: false, ..Habits::default() };
                script
            },
        },
        Scenario {
            name: "heart-groups",
            about: "group 1 suffers, group 0 notices nothing",
            script: |seed| {
                let mut rng = Rng::from_seed(seed);
                let mut settings = Settings::new(seed, 6);
                settings.groups = 2;
                settings.habits.timeout.0 = Duration::from_secs(15);
                let kill = |rng: &mut Rng| {
                    let at = ms(500) + ms(rng.below(8_000) as u64);
                    (at, Fault::Kill { group: Some(1), respawn: Some(ms(rng.below(2_000) as u64)) })
                };
                let faults = (0..6).map(|_| kill(&mut rng)).collect();
                let (safety, converge_within) = (Duration::from_secs(10), Duration::from_mins(1));
                Script { settings, faults, safety, converge_within, untouched: Some(0) }
            },
        },
        Scenario {
            name: "heart-two-terms",
            about: "a deposed coordinator lives on and has its address back",
            script: |seed| {
                let mut script = two_terms(seed);
                script.settings.groups = 1;
                script
            },
        },
        Scenario {
            name: "heart-two-terms-groups",
            about: "the same, with two groups: one of them rebuilt makes the other's old state look new",
            script: two_terms,
        },
        Scenario {
            name: "heart-rejoin",
            about: "whoever is out comes back under its own id",
            script: rejoin,
        },
        Scenario {
            name: "heart-health",
            about: "the membership machine says who is alive; whoever is out comes back under its own id",
            script: health,
        },
        Scenario {
            name: "heart-crash-points",
            about: "three peers; the coordinator dies after its n-th message, n being the seed modulo 400",
            script: crash_points,
        },
        Scenario {
            name: "heart-ballots",
            about: "a storm of everything over programs that vote in ballots about nothing",
            script: ballots,
        },
        Scenario {
            name: "heart-training",
            about: "a storm of everything over training loops: syncs, heals, commits that change the state",
            script: |seed| {
                let mut script = mixed(seed);
                let habits = &mut script.settings.habits;
                (habits.trains, habits.gives_syncs_up) = (true, 0.05);
                script
            },
        },
        Scenario {
            name: "heart-training-crash-points",
            about: "the crash points, with training loops, which say less: n is the seed modulo 200",
            script: |seed| {
                let mut script = crash_points(seed);
                script.settings.habits.trains = true;
                script.settings.crash_after_sends = Some(1 + seed % 200);
                script
            },
        },
        Scenario {
            name: "heart-ballot-crash-points",
            about: "the crash points, with programs that vote in ballots about nothing: n is the seed modulo 300",
            script: |seed| {
                let mut script = crash_points(seed);
                script.settings.habits.ballots = true;
                script.settings.crash_after_sends = Some(1 + seed % 300);
                script
            },
        },
    ]
}

/// The scenario of that name.
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().chain(waiting()).find(|scenario| scenario.name == name)
}
