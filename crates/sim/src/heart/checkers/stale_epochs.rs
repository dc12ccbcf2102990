//! Nothing of an old epoch has an effect (invariant 6): what is committed belongs to the last epoch that the
//! peer opened, and epochs only grow.

use super::{Checker, Fact, World};
use outlast_proto::id::PeerId;
use outlast_proto::session::Done;
use outlast_proto::time::Instant;
use std::collections::BTreeMap;

/// See above.
#[derive(Default)]
pub struct StaleEpochs {
    epochs: BTreeMap<PeerId, u64>,
}

impl Checker for StaleEpochs {
    fn name(&self) -> &'static str {
        "stale_epochs"
    }

    fn hear(&mut self, _world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Opened { process, peer, record } => {
                let before = self.epochs.insert(*peer, record.epoch).unwrap_or(0);
                if before >= record.epoch {
                    return Err(format!("process {process} opened epoch {} after {before}", record.epoch));
                }
            }
            // The next session begins with nothing (rule 45).
            Fact::Out { peer, .. } => {
                self.epochs.remove(peer);
            }
            Fact::Finished { process, peer, outcome: Ok(Done::Committed { key, .. }), .. }
                if self.epochs.get(peer) != Some(&key.epoch) =>
            {
                return Err(format!("process {process} committed {key}, which is not of its epoch"));
            }
            _ => {}
        }
        Ok(())
    }
}
