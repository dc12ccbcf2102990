//! Nobody is a ghost: a peer that is connected, and believes itself a member, is accepted and in the roster of its
//! group, or is told otherwise within a moment. A ghost waits for ever for what nobody sends it (rule 41).

use super::{Checker, World};
use outlast_proto::id::PeerId;
use outlast_proto::time::{Duration, Instant};
use std::collections::BTreeMap;

/// What it was told may be on its way.
const A_MOMENT: Duration = Duration::from_secs(2);

/// See above.
#[derive(Default)]
pub struct Ghosts {
    /// Since when somebody believes itself a member and is none.
    since: BTreeMap<(PeerId, u64), Instant>,
}

impl Checker for Ghosts {
    fn name(&self) -> &'static str {
        "ghosts"
    }

    fn look(&mut self, world: &World) -> Result<(), String> {
        let mut since = BTreeMap::new();
        for (index, process) in world.processes.iter().enumerate() {
            let Some((wire, coordinator)) = world.talks_to(index) else { continue };
            let id = process.id();
            let standing = coordinator.run.standing(id);
            if let Some((accepted, listed)) = standing.filter(|(accepted, listed)| accepted != listed) {
                let (accepted, listed) =
                    (if accepted { "" } else { "not " }, if listed { "" } else { "not " });
                return Err(format!("process {index} is {accepted}accepted and {listed}in its roster"));
            }
            let believes = process.session.is_connected() && process.session.record().is_some();
            if believes && standing != Some((true, true)) {
                let begun = *self.since.get(&(id, wire)).unwrap_or(&world.now());
                if world.now().since(begun) > A_MOMENT {
                    return Err(format!(
                        "process {index} believes itself a member, and nobody told it otherwise"
                    ));
                }
                since.insert((id, wire), begun);
            }
        }
        self.since = since;
        Ok(())
    }
}
