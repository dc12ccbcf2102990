//! Every death comes to be known: whoever was there when a process ended, and still is, has it in the failed
//! list when the run is over, and nobody has it in the active list.

use super::Checker;
use crate::world::{HealthNode, HostId, Identity, World};
use outlast_proto::time::Instant;
use std::collections::BTreeMap;

/// Deaths are known to all.
pub struct DeathKnownToAll;

impl<N: HealthNode> Checker<N> for DeathKnownToAll {
    fn name(&self) -> &'static str {
        "death_known_to_all"
    }

    fn finish(&mut self, world: &World<N>) -> Result<(), String> {
        let mut dead: BTreeMap<Identity, Instant> = world.chronicle().ends().collect();
        let restarted =
            |who: &Identity, at: &Instant| world.chronicle().started(*who).is_some_and(|start| start > *at);
        dead.retain(|who, at| !restarted(who, at));
        for (id, host) in world.hosts() {
            if let Some(node) = host.node() {
                Self::inspect(world, id, node, &dead)?;
            }
        }
        Ok(())
    }
}

impl DeathKnownToAll {
    fn inspect<N: HealthNode>(
        world: &World<N>,
        host: HostId,
        node: &N,
        dead: &BTreeMap<Identity, Instant>,
    ) -> Result<(), String> {
        let view = node.view();
        if let Some(row) = view.active.iter().find(|row| dead.contains_key(&row.member)) {
            return Err(format!(
                "{host} lists {} as active, who ended at {:?}",
                row.member, dead[&row.member]
            ));
        }
        let started = world.chronicle().started(world.host(host).identity()).unwrap_or_default();
        let missing = dead
            .iter()
            .filter(|(who, _)| who.host != host)
            .find(|(who, at)| started < **at && !view.failed.iter().any(|row| row.member == **who));
        match missing {
            Some((who, at)) => Err(format!("{host} never learned that {who} ended at {at:?}")),
            None => Ok(()),
        }
    }
}
