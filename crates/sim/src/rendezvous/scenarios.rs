//! What is played, by name.

use super::world::{Plan, World};
use crate::report::Report;
use outlast_proto::rendezvous::Settings;
use outlast_proto::rng::Rng;
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
    /// It takes minutes: played only when it is asked for by its full name.
    pub is_slow: bool,
}

/// Every scenario.
pub fn all() -> Vec<Scenario> {
    let quick = |name, about, plan| Scenario { name, about, plan, is_slow: false };
    vec![
        quick("rendezvous-calm", "nothing goes wrong", calm),
        quick("rendezvous-kills", "nodes die and return", kills),
        quick("rendezvous-stops", "nodes are stopped, also past their lease", stops),
        quick("rendezvous-breaks", "connections break with answers on them", breaks),
        quick("rendezvous-restarts", "the register is restarted", restarts),
        quick("rendezvous-spares", "more nodes than places, and all faults", spares),
        quick("rendezvous-hundred", "a hundred nodes join, die and return", |seed| crowd(seed, 100)),
        Scenario {
            name: "rendezvous-thousand",
            about: "a thousand nodes join, die and return",
            plan: |seed| crowd(seed, 1_000),
            is_slow: true,
        },
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
    let (most, all, operations) = world.checkers.writes;
    let mean = all as f64 / operations.max(1) as f64;
    let summary = format!("{operations} operations, {mean:.1} writes each, at most {most}");
    world.trace.line(world.now, &summary);
    Report::of_trace(name, seed, &world.trace, world.checkers.violations, converged_after)
}

/// Quick times, so that much happens in a minute.
fn quick(seed: u64) -> Plan {
    let mut rng = Rng::from_seed(seed ^ 0x7e9d);
    let nodes = 2 + rng.below(11);
    let settings = Settings {
        join: Duration::from_mins(1),
        last_call: Duration::from_millis(500),
        heartbeat: Duration::from_secs(1),
        keep_alive_interval: Duration::from_secs(1),
        ..Settings::new(1 + rng.below(nodes), nodes)
    };
    Plan {
        nodes,
        settings,
        starts_within: Duration::from_secs(1 + rng.below(3) as u64),
        storm: Duration::from_secs(30),
        calm: Duration::from_mins(1),
        delay: Duration::from_micros(100 + rng.below(5_000) as u64),
        news_delay: Duration::from_micros(rng.below(20_000) as u64),
        kills: 0.0,
        stops: 0.0,
        breaks: 0.0,
        restarts: 0.0,
        keeps_notes: !seed.is_multiple_of(4),
        sabotage: None,
    }
}

fn calm(seed: u64) -> Plan {
    quick(seed)
}

fn kills(seed: u64) -> Plan {
    Plan { kills: 0.3, ..quick(seed) }
}

fn stops(seed: u64) -> Plan {
    Plan { stops: 0.5, ..quick(seed) }
}

fn breaks(seed: u64) -> Plan {
    Plan { breaks: 2.0, ..quick(seed) }
}

fn restarts(seed: u64) -> Plan {
    Plan { restarts: 0.07, breaks: 0.2, ..quick(seed) }
}

fn spares(seed: u64) -> Plan {
    let mut plan = Plan { kills: 0.2, stops: 0.2, breaks: 0.3, restarts: 0.04, ..quick(seed) };
    plan.settings.max_nodes = plan.nodes.div_ceil(2);
    plan.settings.min_nodes = plan.settings.min_nodes.min(plan.settings.max_nodes);
    plan
}

/// The times of production, and news that take a moment to reach so many.
fn crowd(seed: u64, nodes: usize) -> Plan {
    let settings = Settings { last_call: Duration::from_secs(5), ..Settings::new(nodes * 9 / 10, nodes) };
    Plan {
        nodes,
        settings,
        starts_within: Duration::from_secs(2),
        storm: Duration::from_secs(30),
        calm: Duration::from_mins(2),
        delay: Duration::from_millis(1),
        news_delay: Duration::from_secs(1),
        kills: 0.1,
        stops: 0.04,
        breaks: 0.2,
        ..quick(seed)
    }
}
