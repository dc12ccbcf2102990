//! No call outlives its deadline plus `verdict_grace` (invariant 1). Time in which the process did not run does
//! not count, and stopping an executor takes a few milliseconds.

use super::{Checker, Fact, World};
use outlast_proto::membership::Preset;
use outlast_proto::session::Config;
use outlast_proto::time::{Duration, Instant};

const SLACK: Duration = Duration::from_millis(20);

/// See above.
pub struct Deadlines;

impl Checker for Deadlines {
    fn name(&self) -> &'static str {
        "deadlines"
    }

    fn hear(&mut self, _world: &World, at: Instant, fact: &Fact) -> Result<(), String> {
        let Fact::Finished { process, deadline, stopped, outcome, .. } = fact else { return Ok(()) };
        let limit = *deadline + Config::preset(Preset::Local).verdict_grace + SLACK + *stopped;
        if at > limit {
            let late = at.since(limit);
            return Err(format!("a call of process {process} ended {late:?} too late with {outcome:?}"));
        }
        Ok(())
    }

    fn finish(&mut self, world: &World) -> Result<(), String> {
        let grace = Config::preset(Preset::Local).verdict_grace + SLACK;
        for (index, process) in world.processes.iter().enumerate().filter(|(_, process)| process.lives()) {
            for call in process.calls.values() {
                let stopped = process.stopped_for(world.now()).saturating_sub(call.stopped_before);
                if process.stopped.is_none() && world.now() > call.deadline + grace + stopped {
                    return Err(format!("a call of process {index} is open long after its deadline"));
                }
            }
        }
        Ok(())
    }
}
