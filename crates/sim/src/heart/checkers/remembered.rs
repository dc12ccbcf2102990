//! What happened is not forgotten: whatever a member remembers of the run, the coordinator that it talks to knows within a
//! moment, restarted or not; unless a hundred things happened since (see `outlast_proto::annals`).

use super::{Checker, World};
use outlast_proto::annals::Annals;
use outlast_proto::id::PeerId;
use outlast_proto::limits::INCIDENTS_MAX;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::Incident;
use std::collections::BTreeMap;

/// What it brings may be on its way.
const A_MOMENT: Duration = Duration::from_secs(2);

/// See above.
#[derive(Default)]
pub struct Remembered {
    /// Since when somebody talks to a coordinator that knows less.
    since: BTreeMap<(PeerId, u64), Instant>,
}

fn forgotten<'a>(known: &Annals, member: &'a Annals) -> Option<&'a Incident> {
    let is_full = known.iter().count() >= INCIDENTS_MAX;
    let oldest = known.iter().next().filter(|_| is_full);
    // Both are in the order of what happened.
    let mut known = known.iter().peekable();
    let mut is_known = |incident: &Incident| {
        while known.next_if(|other| *other < incident).is_some() {}
        known.peek().is_some_and(|other| *other == incident)
    };
    member.iter().find(|incident| oldest.is_none_or(|oldest| *incident > oldest) && !is_known(incident))
}

impl Checker for Remembered {
    fn name(&self) -> &'static str {
        "remembered"
    }

    fn look(&mut self, world: &World) -> Result<(), String> {
        let mut since = BTreeMap::new();
        for (index, process) in world.processes.iter().enumerate() {
            let Some((wire, coordinator)) = world.talks_to(index) else { continue };
            let is_member = coordinator.run.standing(process.id()) == Some((true, true));
            if !is_member || !process.session.is_connected() {
                continue;
            }
            if let Some(incident) = forgotten(coordinator.run.annals(), process.session.annals()) {
                let key = (process.id(), wire);
                let begun = *self.since.get(&key).unwrap_or(&world.now());
                if world.now().since(begun) > A_MOMENT {
                    return Err(format!(
                        "process {index} remembers {:?}, its coordinator does not",
                        incident.text
                    ));
                }
                since.insert(key, begun);
            }
        }
        self.since = since;
        Ok(())
    }
}
