//! Nothing goes wrong any more: everybody must get an answer.
//!
//! From a state in which nothing is under way, the faults stop and time goes on. Messages are delivered, deaths
//! become known, timers fire in their order. Before the first deadline, which lies far beyond everything that a
//! healthy run waits for, every call of everybody who takes part must have returned. A call that only its deadline
//! ends has hung.

use super::state::{Budget, Ending, State};
use super::{Event, RunModel};
use crate::explore::search::{Model, Violation};
use outlast_proto::time::Instant;

/// Far more than any healthy end needs.
const STEPS_MAX: usize = 2_000;

impl RunModel {
    pub(super) fn settle(&self, mut state: State) -> Result<(), Violation> {
        state.left = Budget::default();
        for _ in 0..STEPS_MAX {
            let hung = |ending: &Ending| *ending == Ending::Failed("timeout");
            if let Some((number, _)) = state.present().find(|(_, process)| process.endings.iter().any(hung)) {
                let text = format!("a call of process {number} waited in vain until its deadline");
                return Err(Violation::new("no_hang", text));
            }
            let mut events = self.usual(&state);
            if events.is_empty() {
                if state.present().all(|(_, process)| process.work.is_none()) {
                    return Ok(());
                }
                self.timers(&state, Instant::from_nanos(u64::MAX), &mut events);
            }
            let Some(event) = events.into_iter().min_by_key(|event| urgency(*event)) else {
                let waits = state.present().find(|(_, process)| process.work.is_some());
                let number = waits.map_or(0, |(number, _)| number);
                let text = format!("process {number} waits, and nothing will ever happen");
                return Err(Violation::new("no_hang", text));
            };
            self.happen(&mut state, event)?;
            super::checkers::judge(&self.setup, &state)?;
        }
        Err(Violation::new("no_hang", format!("no answer after {STEPS_MAX} more events")))
    }
}

/// What was sent arrives before its connection is seen to be closed.
fn urgency(event: Event) -> u8 {
    match event {
        Event::CoordinatorSees(..) | Event::PeerSees(_) => 1,
        _ => 0,
    }
}
