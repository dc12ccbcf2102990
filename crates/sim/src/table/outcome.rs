//! Scenarios whose outcome is the point: what was declared, when, and whether all agreed again.

use crate::checkers::Convergence;
use crate::nodes::Candidate;
use crate::scenarios;
use crate::script::Script;
use crate::world::{Fault, HostId, What, World};
use outlast_proto::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// The scenarios of the outcome table, and whom they strike.
pub const SCENARIOS: [(&str, &[u32]); 10] = [
    ("two-alone-cut", &[1]),
    ("two-alone-kill", &[1]),
    ("six-of-eight", &[2, 3, 4, 5, 6, 7]),
    ("partition", &[5, 6, 7]),
    ("deaf", &[3]),
    ("mute", &[3]),
    ("reject-tcp", &[3]),
    ("reject-all", &[3]),
    ("proxy", &[3]),
    ("udp-blocked", &[3]),
];

/// What came of a scenario, over several seeds.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How often a member that was not struck declared a struck one dead, counted once per pair.
    pub declared: usize,
    /// How many such pairs there are.
    pub pairs: usize,
    /// The earliest and the latest declaration, counted from the fault.
    pub earliest: Option<Duration>,
    /// The latest declaration.
    pub latest: Option<Duration>,
    /// Members that were not struck and were declared dead by others that were not.
    pub bystanders: usize,
    /// Runs in which all agreed after the heal, and the slowest.
    pub agreed: usize,
    /// How long the slowest took.
    pub agreed_after: Duration,
    /// Runs.
    pub runs: usize,
}

/// Plays a scenario of [`SCENARIOS`] with several seeds.
///
/// # Panics
/// If there is no such scenario.
pub fn outcome<N: Candidate>(name: &str, seeds: u64) -> Outcome {
    let scenario = scenarios::find(name).expect("the table names scenarios that exist");
    let (_, struck) = SCENARIOS.iter().find(|(known, _)| *known == name).expect("and that it lists");
    let struck: BTreeSet<HostId> = struck.iter().copied().map(HostId).collect();
    let mut outcome = Outcome::default();
    for seed in 1..=seeds {
        play::<N>(&mut outcome, &(scenario.script)(seed), seed, &struck);
    }
    outcome
}

fn play<N: Candidate>(outcome: &mut Outcome, script: &Script, seed: u64, struck: &BTreeSet<HostId>) {
    let recipe = N::recipe(&script.config, &script.founding);
    let mut world: World<N> = World::new(seed, script.conditions.clone(), recipe);
    world.add_hosts(script.members);
    let strikes = |(at, fault): &(Duration, Fault)| {
        (*at > Duration::ZERO && !matches!(fault, Fault::Loss(_))).then_some(*at)
    };
    let struck_at = Instant::ORIGIN + script.faults.iter().filter_map(strikes).min().unwrap_or_default();
    for (at, fault) in &script.faults {
        world.run_until(Instant::ORIGIN + *at);
        world.inject(fault);
    }
    world.run_until(Instant::ORIGIN + script.safety);
    let mut declared = BTreeMap::new();
    for (at, observer, notice) in world.take_notices() {
        if matches!(notice.what, What::Died(_)) && !struck.contains(&observer) {
            declared.entry((observer, notice.subject.host)).or_insert(at);
        }
    }
    let (about_struck, bystanders): (BTreeMap<_, _>, BTreeMap<_, _>) =
        declared.into_iter().partition(|((_, subject), _)| struck.contains(subject));
    outcome.declared += about_struck.len();
    outcome.pairs += struck.len() * (script.members as usize - struck.len());
    let after = about_struck.values().map(|at| at.since(struck_at));
    outcome.earliest = after.clone().chain(outcome.earliest).min();
    outcome.latest = after.chain(outcome.latest).max();
    outcome.bystanders += bystanders.keys().map(|(_, subject)| subject).collect::<BTreeSet<_>>().len();

    world.inject(&Fault::HealAll);
    let healed = world.now();
    outcome.runs += 1;
    while world.now().since(healed) < Duration::from_secs(60) {
        world.run_until(world.now() + Duration::from_millis(100));
        if Convergence::disagreement(&world).is_none() {
            outcome.agreed += 1;
            outcome.agreed_after = outcome.agreed_after.max(world.now().since(healed));
            break;
        }
    }
}
