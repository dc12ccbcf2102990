//! The threads of calls: they move bytes, are stopped, undo and report.

use super::data::{Executing, Input};
use super::fault::Sabotage;
use super::process::CallState;
use super::world::{Event, World};
use outlast_proto::collective::BrokenLink;
use outlast_proto::coordinator;
use outlast_proto::id::PeerId;
use outlast_proto::membership::Preset;
use outlast_proto::retry::{self, AfterDial, DialFailure};
use outlast_proto::session::{CallId, Command, PerformResult};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::EpochRecord;

/// How long a link is dialled that is refused.
pub(super) fn dial_timeout() -> Duration {
    coordinator::Config::preset(Preset::Local).control_grace
}

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
            state.executing =
                Some(Executing { serial, transfer: transfer.clone(), aborting: false, flushing: false });
            let Some(planned) = &state.planned else { return };
            (serial, state.buffer.clone(), planned.fingerprint())
        };
        let held = self.transfers.entry(transfer.clone()).or_default();
        // Every frame carries its sender's call: whoever made another one learns it from the first.
        let other = held.inputs.iter().find(|(_, input)| input.call != call_made).map(|(other, _)| *other);
        held.inputs.insert(process, Input { serial, buffer, call: call_made });
        if let Some(other) = other {
            let delay = self.some(self.settings.transfer_max);
            let peer = self.processes[other].id;
            return self
                .after(delay, Event::Performed(process, call, serial, PerformResult::Mismatch { peer }));
        }
        if held.inputs.len() == transfer.1.len() {
            let delay = self.some(self.settings.transfer_max);
            self.after(delay, Event::Moved(transfer));
        } else {
            self.notice_broken(process, call, serial, &transfer.1, true);
        }
    }

    /// If a neighbour in the ring is not there, the link to it breaks sooner or later.
    fn notice_broken(&mut self, process: usize, call: CallId, serial: u64, ring: &[PeerId], receives: bool) {
        let me = self.processes[process].id;
        let Some(at) = ring.iter().position(|peer| *peer == me).filter(|_| ring.len() > 1) else { return };
        let next = ring[(at + 1) % ring.len()];
        let before = ring[(at + ring.len() - 1) % ring.len()];
        for (from, to) in [(me, next), (before, me)].into_iter().take(1 + usize::from(receives)) {
            let delay = match self.link_trouble(from, to) {
                None => continue,
                Some(true) => self.some(Duration::from_millis(20)),
                Some(false) => self.some(Duration::from_secs(2)),
            };
            let error = "broken in the simulation".to_owned();
            let result = PerformResult::LinkBroken(BrokenLink { from, to, error });
            self.after(delay, Event::Performed(process, call, serial, result));
        }
    }

    /// Whether a link does not work, and if so whether that is noticed at once.
    fn link_trouble(&self, from: PeerId, to: PeerId) -> Option<bool> {
        let (a, b) = (*self.by_id.get(&from)?, *self.by_id.get(&to)?);
        let (from, to) = (&self.processes[a], &self.processes[b]);
        let cut = self.cut_links.get(&(a, b)).is_some_and(|until| self.now < *until);
        if from.killed.is_some() || to.killed.is_some() {
            Some(true)
        } else if cut || from.is_isolated(self.now) || to.is_isolated(self.now) {
            Some(false)
        } else {
            None
        }
    }

    /// Something happened to links: every executor looks at its neighbours again.
    pub(super) fn links_changed(&mut self) {
        let mut at_work = Vec::new();
        for (index, process) in
            self.processes.iter().enumerate().filter(|(_, process)| process.killed.is_none())
        {
            for (call, state) in &process.calls {
                if let Some(executing) = state.executing.as_ref().filter(|executing| !executing.aborting) {
                    at_work.push((index, *call, executing.serial, executing.transfer.clone()));
                }
            }
        }
        for (index, call, serial, transfer) in at_work {
            // Who holds the result has yet to send, perhaps, and has nothing more to receive.
            let done = self.transfers.get(&transfer).is_none_or(|transfer| transfer.moved);
            self.notice_broken(index, call, serial, &transfer.1, !done);
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
        let broken = (0..ring.len())
            .any(|at| ring.len() > 1 && self.link_trouble(ring[at], ring[(at + 1) % ring.len()]).is_some());
        if broken || members.iter().any(|(process, _)| self.processes[*process].killed.is_some()) {
            for (process, serial) in members {
                let calls = &self.processes[process].calls;
                let mine = |state: &CallState| state.executing.as_ref().is_some_and(|at| at.serial == serial);
                if let Some(call) = calls.iter().find(|(_, state)| mine(state)).map(|(call, _)| *call) {
                    self.notice_broken(process, call, serial, &id.1, true);
                }
            }
            return;
        }
        if members.iter().any(|(process, _)| self.processes[*process].stopped.is_some()) {
            return self.after(Duration::from_millis(50), Event::Moved(id.clone()));
        }
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.moved = true;
        }
        // In a large group too, most calls meet nobody who is that slow: otherwise none would ever end well.
        let slowly = (0.4 / ring.len() as f64).min(0.05);
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
            // The result is there; the last bytes for the next in the ring may take longer than anybody waits.
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

    /// The links of an epoch are up, or cannot be made, or are dialled once more.
    pub(super) fn links_built(&mut self, process: usize, epoch: u64, by: Instant) {
        let me = self.processes[process].id;
        let Some(record) = self.processes[process].session.record().filter(|record| record.epoch == epoch)
        else {
            return;
        };
        let ring: Vec<_> = record.ring.iter().map(|rank| record.roster[*rank as usize].id).collect();
        let at = ring.iter().position(|peer| *peer == me).unwrap_or(0);
        let next = ring[(at + 1) % ring.len()];
        let failure = match self.link_trouble(me, next).filter(|_| ring.len() > 1) {
            None => None,
            Some(true) => Some(DialFailure::Refused),
            Some(false) => Some(DialFailure::Silent),
        };
        match failure.map(|failure| (failure, retry::after_dial(self.now, failure, by))) {
            None => self.processes[process].session.handle_links_up(epoch),
            Some((_, AfterDial::Again(at))) => {
                self.after(at.since(self.now), Event::LinksBuilt(process, epoch, by));
            }
            Some((failure, AfterDial::GivenUp)) => {
                let silent = failure == DialFailure::Silent;
                let broken = BrokenLink::towards(me, next, "cannot dial in the simulation");
                self.processes[process].session.handle_link_broken(epoch, broken, silent);
                // The next call wants it again.
                let pause = Duration::from_millis(500);
                self.after(pause, Event::LinksBuilt(process, epoch, self.now + pause + dial_timeout()));
            }
        }
        self.drain_peer(process);
    }

    /// The coordinator asks whether a link that counts as broken carries again.
    /// How long a dial takes, and whether it goes well.
    fn try_dial(&mut self, process: usize, to: PeerId) -> (Duration, bool) {
        let me = self.processes[process].id;
        let stopped = self.by_id.get(&to).is_some_and(|at| self.processes[*at].stopped.is_some());
        match self.link_trouble(me, to) {
            None if !stopped => (self.some(Duration::from_millis(20)), true),
            Some(true) => (self.some(Duration::from_millis(20)), false),
            // Nobody answers; that takes its time to notice.
            None | Some(false) => (Duration::from_secs(1), false),
        }
    }

    pub(super) fn redial(&mut self, process: usize, to: PeerId) {
        let (delay, well) = self.try_dial(process, to);
        self.after(delay, Event::Redialled(process, to, well));
    }

    /// A ring may come: can the next in it be reached? Now and then a dial fails for no reason.
    pub(super) fn prepare(&mut self, process: usize, record: &EpochRecord, question: u64) {
        let next = record.successor_of(self.processes[process].id).map(|info| info.id);
        let (delay, well) = next.map_or((Duration::ZERO, true), |to| self.try_dial(process, to));
        let well = well && self.rng.chance(0.95);
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
