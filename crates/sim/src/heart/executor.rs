//! The threads of calls: they move bytes, are stopped, undo and report.

use super::data::{Executing, Input};
use super::fault::Sabotage;
use super::process::CallState;
use super::world::{Event, World};
use outlast_proto::id::PeerId;
use outlast_proto::session::{CallId, Command, PerformResult};
use outlast_proto::time::Duration;
use outlast_proto::wire::control::EpochRecord;

/// How often bytes that stand still are looked at again.
const STANDSTILL: Duration = Duration::from_millis(50);

impl World {
    /// A call's thread is told something. What comes while its executor is at work waits, but for the abort.
    pub(super) fn command(&mut self, process: usize, call: CallId, command: Command) {
        let stop_max = Duration::from_millis(5);
        let stop = self.some(stop_max);
        let Some(state) = self.processes[process].calls.get_mut(&call) else { return };
        match (&mut state.executing, command) {
            (Some(executing), Command::Abort)
                if executing.flushing && self.settings.sabotage == Some(Sabotage::DeafWhileFlushing) => {}
            (Some(executing), Command::Abort) => {
                let serial = executing.serial;
                if !std::mem::replace(&mut executing.aborting, true) {
                    self.after(stop, Event::Performed(process, call, serial, PerformResult::Stopped));
                }
            }
            (None, Command::Abort) => {}
            (Some(_), command) => state.told.push_back(command),
            (None, Command::Perform(attempt)) => {
                let founder = self.processes[process].session.record().map(|record| record.founder);
                self.perform(process, call, (attempt.key, attempt.ring.to_vec(), founder));
            }
            (None, Command::Commit) => state.saved = None,
            (None, Command::Undo) if self.settings.sabotage == Some(Sabotage::SkipUndo) => state.saved = None,
            (None, Command::Undo) => {
                if let Some(saved) = state.saved.take() {
                    state.buffer = saved;
                }
            }
            (None, Command::Finish(outcome)) => self.finished(process, call, outcome),
        }
    }

    fn perform(&mut self, process: usize, call: CallId, transfer: super::data::TransferId) {
        let (serial, buffer, call_made) = {
            let process = &mut self.processes[process];
            process.serial += 1;
            let serial = process.serial;
            let Some(state) = process.calls.get_mut(&call) else { return };
            state.executing = Some(Executing::new(process.id, serial, transfer.clone()));
            let Some(planned) = &state.planned else { return };
            (serial, state.buffer.clone(), planned.fingerprint())
        };
        let held = self.transfers.entry(transfer.clone()).or_default();
        // Every frame carries its sender's call: whoever made another one learns it from the first.
        let other = held.inputs.iter().find(|(_, input)| input.call != call_made).map(|(other, _)| *other);
        held.inputs.insert(process, Input { serial, buffer, call: call_made, eager: false });
        if let Some(other) = other {
            let delay = self.some(self.settings.transfer_max);
            let peer = self.processes[other].id;
            return self
                .after(delay, Event::Performed(process, call, serial, PerformResult::Mismatch { peer }));
        }
        let is_complete = held.inputs.len() == transfer.1.len();
        held.begun |= is_complete;
        self.attach(process, call);
        if is_complete {
            let delay = self.some(self.settings.transfer_max);
            self.after(delay, Event::Moved(transfer));
        }
    }

    /// All bytes of a transfer may have been exchanged now.
    pub(super) fn moved(&mut self, id: &super::data::TransferId) {
        let Some(transfer) = self.transfers.get(id).filter(|transfer| !transfer.moved) else { return };
        if transfer.inputs.len() < id.1.len() {
            return; // Somebody gave up.
        }
        let members: Vec<_> =
            transfer.inputs.iter().map(|(process, input)| (*process, input.serial)).collect();
        if !transfer.is_one_call() {
            return; // Nothing comes of it: some have seen that they make another call.
        }
        let ring = &id.1;
        // Whoever is stopped stands still, and so do bytes whose link is not there; it comes back, or somebody stops.
        let stands_still = members.iter().any(|(process, _)| self.processes[*process].stopped.is_some());
        if stands_still || !self.is_linked(id) {
            return self.after(STANDSTILL, Event::Moved(id.clone()));
        }
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.moved = true;
        }
        // In a large group too, most calls meet nobody who is that slow: otherwise none would ever end well.
        let slowly = if self.healed { 0.0 } else { (0.4 / ring.len() as f64).min(0.05) };
        for (process, serial) in members {
            let calls = &self.processes[process].calls;
            let mine = |state: &CallState| state.executing.as_ref().is_some_and(|at| at.serial == serial);
            let Some(call) = calls.iter().find(|(_, state)| mine(state)).map(|(call, _)| *call) else {
                continue;
            };
            if let Some(state) = self.processes[process].calls.get_mut(&call)
                && let Some(executing) = &mut state.executing
            {
                executing.flushing = true;
            }
            // The result is there; the last bytes for the next in the ring may take longer than anybody waits, which is a
            // fault like others, and over when all are.
            let slow = self.rng.chance(slowly);
            let delay = self.some(if slow { self.settings.flush_max } else { Duration::from_millis(10) });
            self.after(delay, Event::Performed(process, call, serial, PerformResult::Done));
        }
    }

    /// An executor is done with an attempt, in whatever way comes first.
    pub(super) fn performed(&mut self, process: usize, call: CallId, serial: u64, result: PerformResult) {
        let now = self.now;
        let Some(state) = self.processes[process].calls.get_mut(&call) else { return };
        let Some(executing) = state.executing.take_if(|executing| executing.serial == serial) else { return };
        if let Some(transfer) = self.transfers.get_mut(&executing.transfer) {
            if result == PerformResult::Done {
                state.saved = Some(std::mem::replace(&mut state.buffer, transfer.result()));
            } else if !transfer.moved {
                transfer.inputs.remove(&process);
            }
        }
        self.processes[process].session.handle_performed(now, call, result);
        // First what it was told before, then what follows from its report.
        let told = self.processes[process].calls.get_mut(&call).map(|state| std::mem::take(&mut state.told));
        for command in told.unwrap_or_default() {
            self.command(process, call, command);
        }
        self.drain_peer(process);
    }

    /// The coordinator asks whether a link that counts as broken carries again.
    pub(super) fn redial(&mut self, process: usize, to: PeerId) {
        let (delay, failure) = self.try_dial(process, to);
        self.after(delay, Event::Redialled(process, to, failure.is_none()));
    }

    /// A ring may come: can the next in it be reached? Now and then a dial fails for no reason.
    pub(super) fn prepare(&mut self, process: usize, record: &EpochRecord, question: u64) {
        let next = record.successor_of(self.processes[process].id).map(|info| info.id);
        let (delay, failure) = next.map_or((Duration::ZERO, None), |to| self.try_dial(process, to));
        let well = failure.is_none() && self.rng.chance(0.95);
        self.after(delay, Event::Prepared(process, question, well));
    }

    pub(super) fn prepared(&mut self, process: usize, question: u64, well: bool) {
        let error = (!well).then(|| "cannot dial in the simulation".to_owned());
        self.processes[process].session.handle_prepared(question, error);
        self.drain_peer(process);
    }

    pub(super) fn redialled(&mut self, process: usize, to: PeerId, well: bool) {
        let error = (!well).then(|| "cannot dial in the simulation".to_owned());
        self.processes[process].session.handle_redialled(to, error);
        self.drain_peer(process);
    }
}
