//! An incarnation only grows: whatever a member once knew about another is never replaced by something older.

use super::{Checker, Looks, Phase};
use crate::world::{HealthNode, HostId, Identity, World};
use std::collections::BTreeMap;

/// Incarnations only grow, as seen by each process in its life.
pub struct IncarnationMonotonic {
    looks: Looks,
    known: BTreeMap<(HostId, u32, Identity), u32>,
}

impl Default for IncarnationMonotonic {
    fn default() -> Self {
        Self { looks: Looks::new(), known: BTreeMap::new() }
    }
}

/// Worlds above this size are not followed: the map would be larger than the world.
const MEMBERS_MAX: usize = 128;

impl<N: HealthNode> Checker<N> for IncarnationMonotonic {
    fn name(&self) -> &'static str {
        "incarnation_monotonic"
    }

    fn look(&mut self, world: &World<N>, _phase: Phase) -> Result<(), String> {
        if world.hosts().len() > MEMBERS_MAX {
            return Ok(());
        }
        for observer in self.looks.hosts(world.hosts().len()) {
            let host = world.host(observer);
            let Some(node) = host.node() else { continue };
            let lists = node.lists();
            for row in lists.active.iter().chain(&lists.failed) {
                let known = self.known.entry((observer, host.boot(), row.member)).or_default();
                if row.incarnation < *known {
                    let (member, incarnation) = (row.member, row.incarnation);
                    return Err(format!(
                        "{observer} went back from incarnation {known} of {member} to {incarnation}"
                    ));
                }
                *known = row.incarnation;
            }
        }
        Ok(())
    }
}
