//! Plays a script: safety, then liveness.

use super::checkers::Suite;
use super::fault::Fault;
use super::world::{Settings, World};
use crate::report::{Report, Violation};
use crate::world::Tally;
use outlast_proto::time::{Duration, Instant};
use std::panic::{AssertUnwindSafe, catch_unwind};

const LOOK_EVERY: Duration = Duration::from_millis(50);
const VIOLATIONS_MAX: usize = 4;
/// Commits that every living peer must make after the heal.
const COMMITS_WANTED: u64 = 5;

/// What goes wrong when, in what world.
#[derive(Clone, Debug)]
pub struct Script {
    /// The world.
    pub settings: Settings,
    /// What goes wrong, and when.
    pub faults: Vec<(Duration, Fault)>,
    /// How long faults strike.
    pub safety: Duration,
    /// How long all may take to commit again.
    pub converge_within: Duration,
    /// A group that must not notice anything: its calls need one attempt each, and its epoch stays.
    pub untouched: Option<u32>,
}

/// Plays `script`. A panic inside a machine is a violation like any other.
pub fn run(scenario: &str, seed: u64, script: &Script, timeline: bool) -> Report {
    run_with(scenario, seed, script, timeline, |_, _| {})
}

/// The same with somebody who spoils what was said: planted bugs come in here.
pub fn run_with(
    scenario: &str,
    seed: u64,
    script: &Script,
    timeline: bool,
    mut meddle: impl FnMut(&mut World, &mut Vec<(Instant, super::Fact)>),
) -> Report {
    let mut world = World::new(script.settings.clone());
    let mut suite = Suite::new();
    let mut converged_after = None;
    if timeline {
        world.keep_timeline();
    }
    let played = catch_unwind(AssertUnwindSafe(|| {
        play(&mut world, &mut suite, script, &mut converged_after, &mut meddle);
    }));
    let mut violations = suite.violations().to_vec();
    if let Err(panic) = played {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let what = format!("panicked: {}", what.unwrap_or_default());
        violations.push(Violation { checker: "no_panic", at: world.now(), what });
    }
    Report {
        scenario: scenario.to_owned(),
        seed,
        violations,
        trace_hash: world.trace().hash(),
        events: world.trace().events(),
        tally: Tally::default(),
        converged_after,
        timeline: world.trace().lines().map(str::to_owned).collect(),
    }
}

fn look(
    world: &mut World,
    suite: &mut Suite,
    until: Instant,
    meddle: &mut impl FnMut(&mut World, &mut Vec<(Instant, super::Fact)>),
) {
    while world.now() < until && suite.violations().len() < VIOLATIONS_MAX {
        let next = (world.now() + LOOK_EVERY).min(until);
        world.run_until(next);
        let mut facts = world.take_facts();
        meddle(world, &mut facts);
        for (at, fact) in facts {
            suite.hear(world, at, &fact);
        }
        suite.look(world);
    }
}

fn play(
    world: &mut World,
    suite: &mut Suite,
    script: &Script,
    converged_after: &mut Option<Duration>,
    meddle: &mut impl FnMut(&mut World, &mut Vec<(Instant, super::Fact)>),
) {
    let born = world.now();
    let mut faults = script.faults.clone();
    faults.sort_by_key(|(at, _)| *at);
    for (at, fault) in faults {
        look(world, suite, born + at, meddle);
        world.strike(&fault);
    }
    look(world, suite, born + script.safety, meddle);
    world.heal();
    let healed = world.now();
    let deadline = healed + script.converge_within;
    let before: Vec<_> = world.processes.iter().map(|process| process.commits).collect();
    let behind = |world: &World| {
        let mut processes = world.processes.iter().enumerate().filter(|(_, process)| process.lives());
        processes.position(|(index, process)| {
            process.commits < before.get(index).copied().unwrap_or(0) + COMMITS_WANTED
        })
    };
    while world.now() < deadline && suite.violations().len() < VIOLATIONS_MAX {
        let next = world.now() + LOOK_EVERY;
        look(world, suite, next, meddle);
        if behind(world).is_none() {
            *converged_after = Some(world.now().since(healed));
            break;
        }
    }
    if converged_after.is_none() && suite.violations().is_empty() {
        let what = format!("process {:?} does not get on; {}", behind(world), world.why());
        suite.report(world.now(), "liveness", what);
    }
    if let Some(group) = script.untouched {
        for (index, process) in
            world.processes.iter().enumerate().filter(|(_, process)| process.group() == group)
        {
            if process.extra_attempts > 0 || process.errors > 0 {
                let what = format!(
                    "process {index} of group {group} noticed: {} more attempts, {} errors",
                    process.extra_attempts, process.errors
                );
                suite.report(world.now(), "group_isolation", what);
            }
        }
    }
    suite.finish(world);
    if script.settings.crash_after_sends.is_some() && !world.struck.contains_key("restart coordinator") {
        suite.report(
            world.now(),
            "faults_fired",
            "the coordinator never came to the point of its death".to_owned(),
        );
    }
}

impl World {
    /// What the coordinator says about who waits for whom.
    pub fn why(&self) -> String {
        let status = |at: usize| self.coordinators[at].run.status(self.now).to_json();
        self.at_address.map_or_else(|| "there is no coordinator".to_owned(), status)
    }
}
