//! A group that nothing befell loses nobody and fails no call, even while the coordinator dies and is rebuilt beside
//! another group's dead (invariant 8). A coordinator's death costs it attempts, nothing else.

use super::{Checker, Fact, World};
use outlast_proto::session::CallError;
use outlast_proto::time::Instant;

/// See above.
pub struct Bystanders;

impl Checker for Bystanders {
    fn name(&self) -> &'static str {
        "bystanders"
    }

    fn hear(&mut self, world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        let Some(bystander) = world.settings.bystander else { return Ok(()) };
        let is_one = |process: usize| world.processes[process].group() == bystander;
        match fact {
            Fact::Lost { peer, reason, .. }
                if world.process_of(*peer).is_some_and(|p| p.group() == bystander) =>
            {
                Err(format!("{} was lost though nothing befell its group: {reason:?}", peer.short()))
            }
            Fact::Out { process, reason, .. } if is_one(*process) => {
                Err(format!("process {process} is out though nothing befell its group: {reason:?}"))
            }
            Fact::Opened { process, record, .. } if is_one(*process) && !record.left.is_empty() => {
                let left = record.left.len();
                Err(format!(
                    "process {process} opens an epoch that {left} have left, and nothing befell them"
                ))
            }
            Fact::Finished { process, outcome: Err(error), .. }
                if is_one(*process) && !matches!(error, CallError::Out(_)) =>
            {
                Err(format!("a call of process {process} failed though nothing befell its group: {error}"))
            }
            _ => Ok(()),
        }
    }
}
