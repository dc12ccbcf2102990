//! What is played, by name.

use super::world::{Plan, World};
use crate::report::Report;
use outlast_proto::preset::Preset;
use outlast_proto::rng::Rng;
use outlast_proto::store::Config;
use outlast_proto::time::Duration;

/// One kind of world; the seed draws the rest.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// The plan that belongs to a seed.
    pub plan: fn(u64) -> Plan,
}

/// Every scenario.
pub fn all() -> Vec<Scenario> {
    let scenario = |name, about, plan| Scenario { name, about, plan };
    vec![
        scenario("store-calm", "nothing goes wrong", quick),
        scenario("store-kills", "members die and come back with nothing", |seed| {
            with(seed, [0.4, 0.0, 0.0, 0.0, 0.5, 0.0])
        }),
        scenario("store-stops", "members are stopped, also past their lease", |seed| {
            with(seed, [0.1, 0.5, 0.0, 0.0, 0.0, 0.0])
        }),
        scenario("store-cuts", "members cannot reach each other, or the registrar", |seed| {
            let mut plan = with(seed, [0.0, 0.0, 0.5, 0.3, 1.0, 0.0]);
            // Also for so long that they are given up, and others take their places.
            plan.lasts = Duration::from_secs(if seed % 2 == 0 { 3 } else { 12 });
            plan.readers = plan.members.div_ceil(2);
            plan
        }),
        scenario("store-restarts", "the registrar is restarted", |seed| {
            with(seed, [0.1, 0.1, 0.0, 0.0, 0.3, 0.1])
        }),
        scenario("store-leaves", "members leave and come back", |seed| Plan {
            leaves: 0.3,
            ..with(seed, [0.1, 0.0, 0.0, 0.0, 0.3, 0.0])
        }),
        scenario("store-routed", "no link beside the mesh, and all faults", |seed| {
            let mut plan = with(seed, [0.2, 0.2, 0.2, 0.1, 0.5, 0.0]);
            plan.members = 5 + (seed % 8) as usize;
            plan.config.direct = false;
            plan
        }),
        scenario("store-waits", "programs also wait, list keys and write long values; all faults", |seed| {
            Plan { waits: true, leaves: 0.05, ..with(seed, [0.2, 0.2, 0.2, 0.1, 0.5, 0.03]) }
        }),
        scenario("store-twice", "a second member dies before the first death is mended", |seed| {
            let plan = with(seed, [0.3, 0.0, 0.0, 0.0, 0.2, 0.0]);
            Plan { members: plan.members.max(3), second_deaths: true, ..plan }
        }),
        scenario("store-clients", "clients that are no members; all faults", |seed| Plan {
            clients: 4,
            ..with(seed, [0.4, 0.1, 0.1, 0.1, 0.3, 0.02])
        }),
        scenario(
            "store-kills-in-cuts",
            "members die while others are cut off or stopped for a moment",
            |seed| Plan {
                lasts: Duration::from_millis([400, 800, 1_500][(seed % 3) as usize]),
                kills_in_cuts: true,
                ..with(seed, [0.5, 0.6, 0.6, 0.3, 0.3, 0.0])
            },
        ),
        scenario("store-broadcasts", "programs tell all others something; all faults", |seed| Plan {
            leaves: 0.05,
            broadcasts: true,
            ..with(seed, [0.2, 0.2, 0.2, 0.1, 0.5, 0.03])
        }),
        scenario("store-mixed", "all faults", |seed| Plan {
            leaves: 0.05,
            ..with(seed, [0.2, 0.2, 0.2, 0.1, 0.5, 0.03])
        }),
    ]
}

/// The scenario of that name.
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.name == name)
}

/// Plays one seed of a plan.
pub fn run(name: &str, seed: u64, plan: Plan, timeline: bool) -> Report {
    let mut world = World::new(plan, seed);
    if timeline {
        world.trace.keep_lines();
    }
    let converged_after = world.play();
    let summary = format!(
        "{} calls answered, {} not; slowest {:?}; faults {:?}{}",
        world.answered.0,
        world.answered.1,
        world.slowest,
        world.struck,
        world.extra()
    );
    let now = outlast_proto::time::Instant::ORIGIN;
    world.trace.line(now, &summary);
    Report::of_trace(name, seed, &world.trace, world.violations, converged_after)
}

fn quick(seed: u64) -> Plan {
    let mut rng = Rng::from_seed(seed ^ 0x57_0e);
    let members = 2 + rng.below(7);
    Plan {
        members,
        hosts: 1 + rng.below(members),
        config: Config { resend: Duration::from_millis(700), ..Config::preset(Preset::Local) },
        storm: Duration::from_secs(15),
        calm: Duration::from_secs(40),
        delay: Duration::from_micros(200 + rng.below(3_000) as u64),
        every: Duration::from_millis(60),
        faults: [0.0; 6],
        lasts: Duration::from_secs(3),
        disorder: if rng.chance(0.5) { 0.02 } else { 0.0 },
        leaves: 0.0,
        readers: 0,
        waits: false,
        second_deaths: false,
        kills_in_cuts: false,
        broadcasts: false,
        clients: 0,
        sabotage: None,
    }
}

fn with(seed: u64, faults: [f64; 6]) -> Plan {
    Plan { faults, ..quick(seed) }
}
