//! The threads of calls, and the program that makes them.

use super::data::{Buffer, Executing};
use super::facts::Fact;
use super::fault::Sabotage;
use super::process::{CallState, Phase};
use super::program::{self, Planned, SYNC_TAG};
use super::world::{Event, World};
use outlast_proto::collective::Scope;
use outlast_proto::id::PeerId;
use outlast_proto::session::{CallError, CallId, Command, Done, Op, Outcome, PerformResult};
use outlast_proto::time::{Duration, Instant};
use std::collections::VecDeque;

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
            (None, Command::Perform { key, ring, .. }) => {
                let ring: Vec<PeerId> = ring;
                self.perform(process, call, (key, ring));
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
        let (serial, buffer) = {
            let process = &mut self.processes[process];
            process.serial += 1;
            let serial = process.serial;
            let Some(state) = process.calls.get_mut(&call) else { return };
            state.executing =
                Some(Executing { serial, transfer: transfer.clone(), aborting: false, flushing: false });
            (serial, state.buffer.clone())
        };
        let held = self.transfers.entry(transfer.clone()).or_default();
        held.inputs.insert(process, (serial, buffer));
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
            let result = PerformResult::LinkBroken { from, to, error };
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
            transfer.inputs.iter().map(|(process, (serial, _))| (*process, *serial)).collect();
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
            let slow = self.rng.chance(0.05);
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
                state.saved = Some(std::mem::replace(&mut state.buffer, transfer.sum()));
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

    /// The links of an epoch are up, or cannot be made.
    pub(super) fn links_built(&mut self, process: usize, epoch: u64) {
        let me = self.processes[process].id;
        let Some(record) = self.processes[process].session.record().filter(|record| record.epoch == epoch)
        else {
            return;
        };
        let ring: Vec<_> = record.ring.iter().map(|rank| record.roster[*rank as usize].id).collect();
        let at = ring.iter().position(|peer| *peer == me).unwrap_or(0);
        let next = ring[(at + 1) % ring.len()];
        match self.link_trouble(me, next).filter(|_| ring.len() > 1) {
            None => self.processes[process].session.handle_links_up(epoch),
            // A dead neighbour refuses; that alone says nothing, and the coordinator will notice.
            Some(true) => self.after(Duration::from_millis(50), Event::LinksBuilt(process, epoch)),
            Some(false) => {
                let error = "cannot dial in the simulation".to_owned();
                self.processes[process].session.handle_link_broken(epoch, me, next, true, error);
                self.after(Duration::from_millis(500), Event::LinksBuilt(process, epoch));
            }
        }
        self.drain_peer(process);
    }

    // The program.

    fn begin_call(
        &mut self,
        process: usize,
        id: CallId,
        planned: Option<Planned>,
        deadline: Instant,
        before: Buffer,
    ) {
        let now = self.now;
        let process = &mut self.processes[process];
        let state = CallState {
            planned,
            deadline,
            stopped_before: process.stopped_for(now),
            before: before.clone(),
            buffer: before,
            saved: None,
            executing: None,
            told: VecDeque::new(),
        };
        process.calls.insert(id, state);
    }

    fn call(&mut self, process: usize, planned: Planned) {
        let now = self.now;
        let deadline = now + planned.timeout;
        let (scope, tag, fingerprint) = (planned.scope.clone(), planned.tag, planned.fingerprint());
        let peer = &mut self.processes[process];
        let before = Buffer::new([((peer.id, peer.step), 1)].into());
        // The call's thread must be there before it is told anything.
        let id = peer.session.handle_op_call(now, Op { scope, tag, fingerprint, deadline, members: None });
        self.begin_call(process, id, Some(planned), deadline, before);
        self.drain_peer(process);
    }

    /// The program takes its next step.
    pub(super) fn go_on(&mut self, process: usize) {
        let now = self.now;
        let deadline = now + Duration::from_secs(30);
        let habits = self.settings.habits.clone();
        match self.processes[process].phase {
            Phase::Starting => {
                let first = self.processes[process].obeyed == 0 && (process as u32) < self.settings.peers;
                let group = self.processes[process].group;
                let (peers, groups) = (self.settings.peers, self.settings.groups);
                let all = (0..peers).filter(|index| index % groups == group).count() as u32;
                let min_world = if first && now < Instant::from_nanos(2_000_000_000) { all } else { 1 };
                self.processes[process].phase = Phase::Connecting;
                let id = self.processes[process].session.handle_connect_call(now, min_world, deadline);
                self.begin_call(process, id, None, deadline, Buffer::default());
                self.drain_peer(process);
            }
            Phase::Connecting | Phase::Voting => {
                self.processes[process].phase = Phase::Agreeing;
                self.processes[process].open = 1;
                self.call(process, program::sync(&habits));
            }
            Phase::Agreeing | Phase::Thinking => {
                let peer = &mut self.processes[process];
                if std::mem::take(&mut peer.pending) > 0 {
                    peer.phase = Phase::Voting;
                    let id = peer.session.handle_topology_call(now, 1, deadline);
                    self.begin_call(process, id, None, deadline, Buffer::default());
                    return self.drain_peer(process);
                }
                peer.phase = Phase::Stepping;
                let step = peer.step.unwrap_or(0);
                let seed = self.settings.seed;
                let mut calls = program::step(&habits, seed, step, peer.id, &peer.members);
                peer.rng.shuffle(&mut calls);
                peer.open = calls.len();
                for planned in calls {
                    self.call(process, planned);
                }
            }
            Phase::Stepping | Phase::Gone => {}
        }
    }

    fn finished(&mut self, process: usize, call: CallId, outcome: Outcome) {
        let now = self.now;
        let Some(state) = self.processes[process].calls.remove(&call) else { return };
        let stopped = self.processes[process].stopped_for(now).saturating_sub(state.stopped_before);
        let buffers = state.planned.is_some();
        self.line(|| {
            let tag = state.planned.as_ref().map(|planned| planned.tag);
            let how = match &outcome {
                Ok(Done::Committed { key, contributors, attempts, pending, .. }) => {
                    let size = contributors.len();
                    format!("Ok: {key}, {size} contributors, {attempts} attempts, {pending} pending")
                }
                Ok(Done::Topology { epoch, joined, left, .. }) => {
                    format!("Ok: epoch {epoch}, {} joined, {} left", joined.len(), left.len())
                }
                Err(error) => format!("Err: {error:?}"),
            };
            format!("process {process}: call {} tag {tag:?} ends: {how}", call.0)
        });
        let peer = self.processes[process].id;
        self.fact(Fact::Finished {
            process,
            peer,
            outcome: outcome.clone(),
            before: buffers.then(|| state.before.clone()),
            after: buffers.then(|| state.buffer.clone()),
            deadline: state.deadline,
            stopped,
        });
        if self.processes[process].phase == Phase::Gone {
            return;
        }
        match (outcome, state.planned) {
            (Err(CallError::Out(reason)), _) => self.out(process, reason),
            (Err(_), Some(planned)) => {
                self.processes[process].errors += 1;
                if self.part_is_gone(process, &planned.scope) {
                    self.call_done(process);
                } else {
                    self.call(process, planned);
                }
            }
            (Err(_), None) => {
                let out = self.processes[process].session.out().cloned();
                if let Some(reason) = out {
                    return self.out(process, reason);
                }
                // The same vote again.
                let deadline = now + Duration::from_secs(30);
                let id = self.processes[process].session.handle_topology_call(now, 1, deadline);
                self.begin_call(process, id, None, deadline, Buffer::default());
                self.drain_peer(process);
            }
            (Ok(Done::Topology { .. }), _) => self.after(Duration::ZERO, Event::Program(process)),
            (Ok(Done::Committed { contributors, pending, attempts, key, .. }), planned) => {
                let peer = &mut self.processes[process];
                peer.extra_attempts += u64::from(attempts - 1);
                if key.scope == Scope::Whole {
                    peer.commits += 1;
                }
                let tag = planned.map(|planned| planned.tag);
                if tag == Some(SYNC_TAG) {
                    let steps = state.buffer.keys().filter_map(|(_, step)| *step);
                    peer.step = Some(steps.max().unwrap_or(0));
                    peer.members = contributors;
                }
                if tag == Some(0) {
                    peer.pending = pending;
                }
                self.call_done(process);
            }
        }
    }

    /// One of the step's calls is over.
    fn call_done(&mut self, process: usize) {
        let peer = &mut self.processes[process];
        peer.open = peer.open.saturating_sub(1);
        if peer.open > 0 {
            return;
        }
        if peer.phase == Phase::Stepping {
            peer.step = peer.step.map(|step| step + 1);
            peer.phase = Phase::Thinking;
        }
        let think = self.some(self.settings.think_max);
        self.after(think, Event::Program(process));
    }

    fn part_is_gone(&self, process: usize, scope: &Scope) -> bool {
        let Scope::Members(listed) = scope else { return false };
        let record = self.processes[process].session.record();
        record.is_some_and(|record| listed.iter().any(|peer| record.rank_of(*peer).is_none()))
    }

    /// The session is over: after a moment the process comes back as a newcomer.
    fn out(&mut self, process: usize, reason: outlast_proto::session::OutReason) {
        if self.processes[process].phase == Phase::Starting {
            return;
        }
        let peer = self.processes[process].id;
        self.line(|| format!("process {process} is out: {reason}"));
        self.fact(Fact::Out { process, peer, reason });
        let state = &mut self.processes[process];
        state.phase = Phase::Starting;
        (state.step, state.pending, state.open) = (None, 0, 0);
        state.calls.retain(|_, call| call.executing.is_some());
        self.rename(process);
        let delay = Duration::from_millis(100) + self.some(Duration::from_millis(400));
        self.after(delay, Event::Program(process));
    }
}
