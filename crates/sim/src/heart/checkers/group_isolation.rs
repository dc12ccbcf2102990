//! A death in one group changes nothing in another (invariant 8): an epoch tells of its own members only, and
//! there is none without a reason in its own group.

use super::{Checker, Fact, World};
use outlast_proto::id::PeerId;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::EpochRecord;
use std::collections::BTreeMap;

/// See above.
#[derive(Default)]
pub struct GroupIsolation {
    /// By lineage: the last epoch's record.
    last: BTreeMap<(PeerId, u64), EpochRecord>,
}

impl Checker for GroupIsolation {
    fn name(&self) -> &'static str {
        "group_isolation"
    }

    fn hear(&mut self, world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        let Fact::Opened { record, .. } = fact else { return Ok(()) };
        let foreign =
            |peer: &PeerId| world.process_of(*peer).is_some_and(|process| process.group() != record.group);
        let left = record.left.iter().map(|(peer, _)| peer);
        let mut named = record.roster.iter().map(|info| &info.id).chain(&record.joined).chain(left);
        if let Some(peer) = named.find(|peer| foreign(peer)) {
            return Err(format!("epoch {} of group {} names {}", record.epoch, record.group, peer.short()));
        }
        if let Some(before) = self.last.get(&(record.founder, record.epoch - 1)) {
            let roster = |record: &EpochRecord| record.roster.iter().map(|info| info.id).collect::<Vec<_>>();
            let ways = |record: &EpochRecord| (record.ring.clone(), record.broken.clone());
            if roster(before) == roster(record) && ways(before) == ways(record) {
                return Err(format!("epoch {} of group {} changes nothing", record.epoch, record.group));
            }
        }
        self.last.insert((record.founder, record.epoch), record.clone());
        Ok(())
    }
}
