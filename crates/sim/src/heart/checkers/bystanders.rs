//! A group that nothing befell loses nobody and fails no call, even while the coordinator dies and is rebuilt beside
//! another group's dead (invariant 8). A coordinator's death costs it attempts, nothing else. Whoever was let in by a
//! coordinator that died before it could say so is no member yet: it is listed as gone, and waits to be let in again.

use super::{Checker, Fact, World};
use outlast_proto::collective::GroupEpoch;
use outlast_proto::id::PeerId;
use outlast_proto::session::CallError;
use outlast_proto::time::Instant;
use std::collections::BTreeMap;

/// See above.
#[derive(Default)]
pub struct Bystanders {
    /// Who has ever known that it is a member, and the first epoch that it opened.
    members: BTreeMap<PeerId, GroupEpoch>,
}

impl Checker for Bystanders {
    fn name(&self) -> &'static str {
        "bystanders"
    }

    fn hear(&mut self, world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        let Some(bystander) = world.settings.bystander else { return Ok(()) };
        let is_one = |process: usize| world.processes[process].group() == bystander;
        if let Fact::Opened { peer, record, .. } = fact {
            self.members.entry(*peer).or_insert(record.epoch);
        }
        match fact {
            Fact::Lost { peer, reason, .. }
                if world.process_of(*peer).is_some_and(|p| p.group() == bystander)
                    && self.members.contains_key(peer) =>
            {
                Err(format!("{} was lost though nothing befell its group: {reason:?}", peer.short()))
            }
            Fact::Out { process, reason, .. } if is_one(*process) => {
                Err(format!("process {process} is out though nothing befell its group: {reason:?}"))
            }
            Fact::Opened { process, record, .. } if is_one(*process) => {
                let knew = |peer: &PeerId| self.members.get(peer).is_some_and(|first| *first < record.epoch);
                match record.left.iter().filter(|(peer, _)| knew(peer)).count() {
                    0 => Ok(()),
                    left => Err(format!(
                        "process {process} opens an epoch that {left} have left, and nothing befell them"
                    )),
                }
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
