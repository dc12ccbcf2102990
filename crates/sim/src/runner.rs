//! Plays a script: safety, then liveness.

use crate::checkers::{self, Convergence, Phase, Suite};
use crate::nodes::Candidate;
use crate::report::{Report, Violation};
use crate::script::Script;
use crate::world::{Fault, World};
use outlast_proto::time::{Duration, Instant};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How often checkers look at the world.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Violations after which a run is broken off: the first ones tell the story.
const VIOLATIONS_MAX: usize = 8;

/// Plays `script` with `N`'s processes. A panic inside a machine is a violation like any other.
pub fn run<N: Candidate>(scenario: &str, seed: u64, script: &Script, timeline: bool) -> Report {
    run_with::<N>(scenario, seed, script, timeline, N::recipe(&script.config, &script.founding))
}

/// Plays `script` with processes of another recipe; planted bugs come in here.
pub fn run_with<N: Candidate>(
    scenario: &str,
    seed: u64,
    script: &Script,
    timeline: bool,
    recipe: impl FnMut(crate::world::Birth) -> N + 'static,
) -> Report {
    let mut world = World::new(seed, script.conditions.clone(), recipe);
    let mut suite = Suite::for_script(script);
    let mut converged_after = None;
    let played = catch_unwind(AssertUnwindSafe(|| {
        play(&mut world, &mut suite, script, timeline, &mut converged_after);
    }));
    let mut violations = suite.into_violations();
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
        tally: world.tally().clone(),
        converged_after,
        timeline: world.trace().lines().map(str::to_owned).collect(),
    }
}

fn play<N: Candidate>(
    world: &mut World<N>,
    suite: &mut Suite<N>,
    script: &Script,
    timeline: bool,
    converged_after: &mut Option<Duration>,
) {
    if timeline {
        world.keep_timeline();
    }
    world.add_hosts(script.members);
    let mut faults = script.faults.clone();
    faults.sort_by_key(|(at, _)| *at);
    let mut faults = faults.into_iter().peekable();

    let heal_at = Instant::ORIGIN + script.safety;
    let mut look_at = Instant::ORIGIN + LOOK_EVERY;
    while look_at <= heal_at && suite.violations() < VIOLATIONS_MAX {
        while let Some((at, fault)) = faults.next_if(|(at, _)| Instant::ORIGIN + *at <= look_at) {
            world.run_until(Instant::ORIGIN + at);
            world.inject(&fault);
        }
        world.run_until(look_at);
        suite.look(world, Phase::Safety);
        look_at += LOOK_EVERY;
    }

    world.inject(&Fault::HealAll);
    suite.healed(world);
    let deadline = world.now() + script.converge_within;
    let mut disagreement = None;
    while world.now() < deadline && suite.violations() < VIOLATIONS_MAX {
        world.run_until(world.now() + LOOK_EVERY);
        suite.look(world, Phase::Liveness);
        disagreement = Convergence::disagreement(world);
        if disagreement.is_none() {
            *converged_after = Some(world.now().since(heal_at));
            break;
        }
    }
    if let Some(why) = disagreement.filter(|_| converged_after.is_none()) {
        suite.report(world.now(), checkers::CONVERGENCE, why);
    }
    // Agreement must last: whatever was still under way comes out within a few more rounds.
    let until = world.now() + Duration::from_secs(5);
    while world.now() < until && suite.violations() < VIOLATIONS_MAX {
        world.run_until(world.now() + LOOK_EVERY);
        suite.look(world, Phase::Liveness);
    }
    if converged_after.is_some()
        && let Some(why) = Convergence::disagreement(world)
    {
        suite.report(world.now(), checkers::CONVERGENCE, format!("agreement did not last: {why}"));
    }
    suite.finish(world);
    for effect in &script.must_fire {
        if world.tally().count(*effect) == 0 {
            suite.report(
                world.now(),
                "faults_fired",
                format!("the script claims {effect:?}, and it never happened"),
            );
        }
    }
}
