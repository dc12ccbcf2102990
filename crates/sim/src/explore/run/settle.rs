//! Nothing goes wrong any more: everybody must get an answer.
//!
//! From a state in which nothing is under way, the faults stop and time goes on. Messages are delivered, deaths
//! become known, timers fire in their order. Before the first deadline, which lies far beyond everything that a
//! healthy run waits for, every call of everybody who takes part must have returned. A call that only its deadline
//! ends has hung.

use super::state::{Budget, Ending, Process, State};
use super::{Event, ProcessNumber, RunModel, Step};
use crate::explore::search::{Model, Violation};
use outlast_proto::time::Instant;

/// Far more than any healthy end needs.
const STEPS_MAX: usize = 2_000;

impl RunModel {
    pub(super) fn settle(&self, mut state: State) -> Result<(), Violation> {
        state.left = Budget::default();
        for _ in 0..STEPS_MAX {
            let timed_out = |ending: &Ending| *ending == Ending::Failed("timeout");
            let hung = |(number, process): &(ProcessNumber, &Process)| {
                let mut endings = process.endings.iter().enumerate();
                endings.any(|(at, ending)| timed_out(ending) && !self.may_wait(*number, at))
            };
            if let Some((number, _)) = state.present().find(hung) {
                let text = format!("a call of process {number} waited in vain until its deadline");
                return Err(Violation::new("no_hang", text));
            }
            let mut events = self.usual(&state);
            if events.is_empty() {
                let waits = |(number, process): (ProcessNumber, &Process)| {
                    process.work.is_some() && !self.may_wait(number, process.endings.len())
                };
                if !state.present().any(waits) {
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

impl RunModel {
    /// Whether that call may wait until its deadline: a newcomer's, if nobody votes any more, and one whose deadline is
    /// meant to pass.
    fn may_wait(&self, process: ProcessNumber, at: usize) -> bool {
        matches!(self.setup.step(process, at), Some(Step::Join | Step::ReduceSoon))
    }
}

/// What was sent arrives before its connection is seen to be closed.
fn urgency(event: Event) -> u8 {
    match event {
        Event::CoordinatorSees(..) | Event::PeerSees(_) => 1,
        _ => 0,
    }
}
