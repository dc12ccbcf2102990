//! Nobody is told to leave without a cause of rule 20 that is its own: that others had trouble is no excuse.
//!
//! A session that ends on its own account (no coordinator, no verdict) needs a reason in what befell this process
//! or the coordinator; an eviction needs a coordinator that lost this very peer, for a reason which
//! `no_false_eviction` judges; two founders of one group need a coordinator that was away or cut off.

use super::{Checker, Fact, World};
use outlast_proto::id::PeerId;
use outlast_proto::session::OutReason;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::{KickReason, LossReason};
use std::collections::BTreeSet;

/// How long after its own trouble a session may end of it: the longest call, its grace, and a last redial.
const AFTERMATH: Duration = Duration::from_secs(40);
/// How long a call that the program gave up waits for its verdict, and a moment.
const AFTER_CANCEL: Duration = Duration::from_millis(500);

/// See above.
#[derive(Default)]
pub struct Causes {
    lost: BTreeSet<PeerId>,
}

impl Checker for Causes {
    fn name(&self) -> &'static str {
        "causes"
    }

    fn hear(&mut self, world: &World, at: Instant, fact: &Fact) -> Result<(), String> {
        let (index, peer, reason) = match fact {
            Fact::Lost { peer, reason, .. } => {
                if !matches!(reason, LossReason::Left | LossReason::Disconnected) {
                    self.lost.insert(*peer);
                }
                return Ok(());
            }
            Fact::Out { process, peer, reason } => (*process, peer, reason),
            _ => return Ok(()),
        };
        let process = &world.processes[index];
        let own = at.since(process.blocked_until) < AFTERMATH || process.stopped.is_some();
        let coordinator = at.since(world.coordinator_trouble_until) < AFTERMATH;
        let fair = match reason {
            OutReason::Kicked(KickReason::Evicted, _) => self.lost.contains(peer),
            OutReason::Kicked(KickReason::Superseded, _) => coordinator,
            OutReason::CoordinatorLost => own || coordinator,
            OutReason::OutcomeUnknown => own || coordinator || at.since(process.cancelled) < AFTER_CANCEL,
            OutReason::Left | OutReason::NotConnected => true,
            _ => false,
        };
        self.lost.remove(peer); // What was held against this session is not held against the next (rule 45).
        if fair {
            Ok(())
        } else {
            Err(format!("process {index} is out for nothing that befell it: {reason:?}"))
        }
    }
}
