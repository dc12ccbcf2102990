//! Nothing grows without bound: a member's state is proportional to the members it knows, however long the
//! storm was.

use super::{Checker, Looks, Phase};
use crate::world::{HealthNode, World};
use outlast_proto::time::{Duration, Instant};

/// What a member may hold whoever it knows, in the unit of [`HealthNode::footprint`].
const BASE: usize = 20_000;
/// What it may hold for each member it knows.
const PER_MEMBER: usize = 4_000;
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// State stays proportional to the group.
pub struct BoundedMemory {
    looks: Looks,
    looked: Instant,
}

impl Default for BoundedMemory {
    fn default() -> Self {
        Self { looks: Looks::new(), looked: Instant::ORIGIN }
    }
}

impl<N: HealthNode> Checker<N> for BoundedMemory {
    fn name(&self) -> &'static str {
        "bounded_memory"
    }

    fn look(&mut self, world: &World<N>, _phase: Phase) -> Result<(), String> {
        if world.now().since(self.looked) < LOOK_EVERY {
            return Ok(());
        }
        self.looked = world.now();
        for observer in self.looks.hosts(world.hosts().len()) {
            let Some(node) = world.host(observer).node() else { continue };
            let lists = node.lists();
            let bound = BASE + PER_MEMBER * (lists.active.len() + lists.failed.len());
            let holds = node.footprint();
            if holds > bound {
                return Err(format!("{observer} holds {holds}, the bound for its group is {bound}"));
            }
        }
        Ok(())
    }
}
