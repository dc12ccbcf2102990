//! After the heal all agree: everybody who runs lists everybody who runs, plainly alive, and nobody else.

use crate::world::{HealthNode, HostId, Identity, World};
use std::collections::BTreeSet;

/// The checker's name; the runner asks it, because only the runner knows when time is up.
pub const CONVERGENCE: &str = "convergence";

/// Agreement of all who run.
pub struct Convergence;

impl Convergence {
    /// Why there is no agreement, in the words of the first host that stands out.
    pub fn disagreement<N: HealthNode>(world: &World<N>) -> Option<String> {
        let living: BTreeSet<Identity> =
            world.hosts().filter(|(_, host)| host.is_born()).map(|(_, host)| host.identity()).collect();
        world.hosts().find_map(|(id, host)| host.node().and_then(|node| Self::stands_out(id, node, &living)))
    }

    fn stands_out<N: HealthNode>(host: HostId, node: &N, living: &BTreeSet<Identity>) -> Option<String> {
        let lists = node.lists();
        let active: BTreeSet<Identity> = lists.active.iter().map(|row| row.member).collect();
        if let Some(missing) = living.difference(&active).next() {
            return Some(format!("{host} does not list {missing}, who lives"));
        }
        if let Some(extra) = active.difference(living).next() {
            return Some(format!("{host} lists {extra}, who is gone"));
        }
        let doubted = lists.active.iter().find(|row| !row.alive)?;
        Some(format!("{host} still doubts {}", doubted.member))
    }
}
