//! A member's lists make sense by themselves: itself in the active one, nobody twice, nobody in both.

use super::{Checker, Looks, Phase};
use crate::world::{HealthNode, HostId, World};
use std::collections::BTreeSet;

/// A member's lists make sense.
pub struct SelfConsistency {
    looks: Looks,
}

impl Default for SelfConsistency {
    fn default() -> Self {
        Self { looks: Looks::new() }
    }
}

impl<N: HealthNode> Checker<N> for SelfConsistency {
    fn name(&self) -> &'static str {
        "self_consistency"
    }

    fn look(&mut self, world: &World<N>, _phase: Phase) -> Result<(), String> {
        self.looks.hosts(world.hosts().len()).try_for_each(|host| inspect(world, host))
    }
}

fn inspect<N: HealthNode>(world: &World<N>, observer: HostId) -> Result<(), String> {
    let host = world.host(observer);
    let Some(node) = host.node() else { return Ok(()) };
    let lists = node.lists();
    if !lists.active.iter().any(|row| row.member == host.identity()) {
        return Err(format!("{observer} does not list itself as active"));
    }
    let mut seen = BTreeSet::new();
    for row in lists.active.iter().chain(&lists.failed) {
        if !seen.insert(row.member) {
            return Err(format!("{observer} lists {} twice", row.member));
        }
        if world.chronicle().started(row.member).is_none() {
            return Err(format!("{observer} lists {}, who never existed", row.member));
        }
    }
    if lists.failed.iter().any(|row| row.alive) {
        return Err(format!("{observer} lists somebody as failed and alive"));
    }
    Ok(())
}
