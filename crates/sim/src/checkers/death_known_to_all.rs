//! Every death comes to be known: whoever had met a process, and outlives it, has it in the failed list when the
//! run is over, and nobody has it in the active list. A newcomer that never heard of the dead is owed no news of
//! the death.

use super::{Checker, Phase};
use crate::world::{HealthNode, HealthNotice, HostId, Identity, What, World};
use outlast_proto::time::Instant;
use std::collections::BTreeMap;

/// Deaths are known to all.
#[derive(Default)]
pub struct DeathKnownToAll {
    /// Who had whom in its active list, and since when: a process that is started again under its old name
    /// remembers nobody.
    met: BTreeMap<(Identity, Identity), Instant>,
    looked: bool,
}

impl<N: HealthNode> Checker<N> for DeathKnownToAll {
    fn name(&self) -> &'static str {
        "death_known_to_all"
    }

    fn hear(
        &mut self,
        world: &World<N>,
        at: Instant,
        observer: HostId,
        notice: HealthNotice,
    ) -> Result<(), String> {
        if notice.what == What::Joined {
            self.met.insert((world.host(observer).identity(), notice.subject), at);
        }
        Ok(())
    }

    fn look(&mut self, world: &World<N>, _phase: Phase) -> Result<(), String> {
        // A world may begin with everybody acquainted, and nobody is told so.
        if !std::mem::replace(&mut self.looked, true) {
            for (_, host) in world.hosts() {
                let Some(node) = host.node() else { continue };
                let active = node.lists().active;
                self.met.extend(active.iter().map(|row| ((host.identity(), row.member), world.now())));
            }
        }
        Ok(())
    }

    fn finish(&mut self, world: &World<N>) -> Result<(), String> {
        let mut dead: BTreeMap<Identity, Instant> = world.chronicle().ends().collect();
        let restarted =
            |who: &Identity, at: &Instant| world.chronicle().started(*who).is_some_and(|start| start > *at);
        dead.retain(|who, at| !restarted(who, at));
        for (id, host) in world.hosts() {
            if let Some(node) = host.node() {
                self.inspect(world, id, node, &dead)?;
            }
        }
        Ok(())
    }
}

impl DeathKnownToAll {
    fn inspect<N: HealthNode>(
        &self,
        world: &World<N>,
        host: HostId,
        node: &N,
        dead: &BTreeMap<Identity, Instant>,
    ) -> Result<(), String> {
        let lists = node.lists();
        if let Some(row) = lists.active.iter().find(|row| dead.contains_key(&row.member)) {
            return Err(format!(
                "{host} lists {} as active, who ended at {:?}",
                row.member, dead[&row.member]
            ));
        }
        let me = world.host(host).identity();
        let started = world.chronicle().started(me).unwrap_or_default();
        let missing = dead.iter().find(|(who, at)| {
            let met = self.met.get(&(me, **who)).is_some_and(|met| started <= *met && *met < **at);
            met && !lists.failed.iter().any(|row| row.member == **who)
        });
        match missing {
            Some((who, at)) => Err(format!("{host} never learned that {who} ended at {at:?}")),
            None => Ok(()),
        }
    }
}
