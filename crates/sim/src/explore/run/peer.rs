//! The side of the peers: sessions, programs and executors.

use super::checkers;
use super::setup::{Sabotage, TIMEOUT, id_of, process_of};
use super::state::{Channel, Data, Ending, Performing, Process, State, Work};
use super::{Event, ProcessNumber, RunModel, Step};
use crate::explore::held::Held;
use crate::explore::search::{Model, Violation};
use outlast_proto::collective::{self, BrokenLink};
use outlast_proto::membership::Preset;
use outlast_proto::session::{self, Action, CallError, CallId, Command, Op, PerformResult, Session};
use outlast_proto::time::Duration;
use outlast_proto::wire::control::{Encryption, Registration, SessionId, ToCoordinator, ToPeer, Verdict};
use outlast_proto::wire::membership::MemberInfo;
use std::collections::{BTreeMap, VecDeque};

pub(super) fn process(number: ProcessNumber) -> Process {
    let info = MemberInfo {
        id: id_of(number),
        address: ([10, 0, 0, number], 7_000).into(),
        // No closed port: kernels do not testify, and deaths are told by the health plane.
        closed_port: 0,
        name: format!("p{number}"),
        meta: Vec::new(),
    };
    let session = SessionId([number + 1; 16]);
    // The pause before dialling again is left out: it only delays, and time that passes keeps states apart.
    let pause = Duration::ZERO;
    let config = session::Config { redial: (pause, pause), ..session::Config::preset(Preset::Local) };
    let encryption = Encryption::On;
    let registration = Registration { info, group: 0, session, min_world: 1, encryption, witness: None };
    Process {
        session: Held::new(Session::new(config, registration)),
        wire: None,
        wires: 0,
        work: None,
        endings: Vec::new(),
        heard: BTreeMap::new(),
        out: false,
    }
}

impl RunModel {
    /// Changes a session, and does what it asks for.
    pub(super) fn with_session(
        &self,
        state: &mut State,
        number: ProcessNumber,
        change: impl FnOnce(&mut Session),
    ) -> Result<(), Violation> {
        let Some(process) = &mut state.processes[usize::from(number)] else { return Ok(()) };
        process.session.change(change);
        self.drain_peer(state, number)
    }

    fn drain_peer(&self, state: &mut State, number: ProcessNumber) -> Result<(), Violation> {
        loop {
            let Some(process) = &mut state.processes[usize::from(number)] else { return Ok(()) };
            let actions: Vec<_> =
                process.session.change(|session| std::iter::from_fn(|| session.poll_action()).collect());
            if actions.is_empty() {
                let reason = process.session.out().filter(|_| !process.out).cloned();
                if let Some(reason) = reason {
                    process.out = true;
                    return checkers::out(&self.setup, state, number, &reason);
                }
                return Ok(());
            }
            for action in actions {
                self.act(state, number, action)?;
            }
        }
    }

    fn act(&self, state: &mut State, number: ProcessNumber, action: Action) -> Result<(), Violation> {
        let now = state.now;
        let Some(process) = &mut state.processes[usize::from(number)] else { return Ok(()) };
        match action {
            Action::Dial => {
                // A dial takes no time: a slow one is a slow timer before it, or a slow greeting after it.
                process.wires += 1;
                process.wire = Some(process.wires);
                let wire = Channel::new(number, process.wires);
                process.session.change(|session| session.handle_connected(now));
                let at = state.wires.partition_point(|other| other.id() < wire.id());
                state.wires.insert(at, Held::new(wire));
            }
            Action::HangUp => {
                if let Some(wire) = process.wire.take() {
                    let at = state.wire(number, wire);
                    if let Some(at) = at {
                        state.wires[at].change(|wire| {
                            wire.peer_holds = false;
                            wire.down.clear();
                        });
                    }
                    state.forget_wires();
                }
            }
            Action::Send(message) => {
                if let Some(at) = process.wire.and_then(|wire| state.wire(number, wire))
                    && state.wires[at].coordinator_holds
                {
                    state.wires[at].change(|wire| self.send_up(wire, message));
                }
            }
            Action::OpenEpoch(record) => {
                process.session.change(|session| session.handle_links_up(record.epoch));
            }
            Action::Prepare(_, question) => {
                process.session.change(|session| session.handle_prepared(question, None));
            }
            // No link breaks here, so none is dialled again.
            Action::Redial(..) | Action::Relink(_) => {}
            Action::Slowed(_) | Action::CalledLast(..) => {}
            Action::Call(call, command) => return self.command(state, number, call, command),
        }
        Ok(())
    }

    fn send_up(&self, wire: &mut Channel, mut message: ToCoordinator) {
        let forged = match (self.setup.sabotage, &mut message) {
            (Some(Sabotage::ForgeComplete), ToCoordinator::Initiate { key, .. }) if wire.process == 1 => {
                Some(ToCoordinator::Complete { key: key.clone() })
            }
            (Some(Sabotage::SkipNumbers), ToCoordinator::Initiate { key, .. }) if wire.process == 1 => {
                key.seq += 1;
                None
            }
            _ => None,
        };
        wire.up.push_back(message);
        wire.up.extend(forged);
    }

    /// A call's thread is told something. What comes while its executor is at work waits, but for the abort.
    fn command(
        &self,
        state: &mut State,
        number: ProcessNumber,
        call: CallId,
        command: Command,
    ) -> Result<(), Violation> {
        let Some(process) = &mut state.processes[usize::from(number)] else { return Ok(()) };
        let Some(work) = process.work.as_mut().filter(|work| work.id == call) else { return Ok(()) };
        match (&mut work.attempt, command) {
            (Some(attempt), Command::Abort) => attempt.stopping = true,
            (None, Command::Abort) => {}
            (Some(_), command) => work.told.push_back(command),
            (None, Command::Perform(collective::Attempt { key, ring, .. })) => {
                if work.data != Data::AsBefore {
                    let text = format!("process {number} begins {key} on data that was not restored");
                    return Err(Violation::new("exact_values", text));
                }
                work.attempt = Some(Performing { key, ring: ring.to_vec(), met: false, stopping: false });
                self.meet(state, number);
            }
            (None, Command::Commit) => {
                if let Data::Result(key) = &work.data {
                    work.data = Data::Kept(key.clone());
                }
            }
            (None, Command::Undo) if self.setup.sabotage == Some(Sabotage::SkipUndo) => {}
            (None, Command::Undo) => work.data = Data::AsBefore,
            (None, Command::Finish(outcome)) => {
                let ending = Ending::of(&outcome);
                let data = work.data.clone();
                process.work = None;
                let step = self.setup.step(number, process.endings.len());
                // Who gives a call up that the others retry makes it again, and joins them (decision 10).
                let cancelled = outcome == Err(CallError::Cancelled);
                let repeats = self.setup.sabotage == Some(Sabotage::RepeatFailed) && number == 1
                    || cancelled && step.is_some_and(Step::retries);
                if !repeats || outcome.is_ok() {
                    process.endings.push(ending);
                }
                return checkers::finished(state, number, &outcome, &data);
            }
        }
        Ok(())
    }

    /// If everybody of the ring is at the same attempt now, their bytes may move.
    fn meet(&self, state: &mut State, number: ProcessNumber) {
        let attempt = |process: &Option<Process>| process.as_ref()?.work.as_ref()?.attempt.clone();
        let Some(mine) = attempt(&state.processes[usize::from(number)]) else { return };
        let there = |id: &outlast_proto::id::PeerId| {
            let theirs = attempt(&state.processes[usize::from(process_of(*id))]);
            theirs
                .is_some_and(|theirs| theirs.key == mine.key && theirs.ring == mine.ring && !theirs.stopping)
        };
        if !mine.ring.iter().all(there) {
            return;
        }
        for id in &mine.ring {
            let process = state.processes[usize::from(process_of(*id))].as_mut();
            let work = process.and_then(|process| process.work.as_mut());
            if let Some(attempt) = work.and_then(|work| work.attempt.as_mut()) {
                attempt.met = true;
            }
        }
    }

    pub(super) fn neighbour_is_dead(
        &self,
        state: &State,
        number: ProcessNumber,
        attempt: &Performing,
    ) -> bool {
        neighbours(attempt, number).into_iter().any(|other| state.processes[usize::from(other)].is_none())
    }

    /// A program makes its next call.
    pub(super) fn call(&self, state: &mut State, number: ProcessNumber) -> Result<(), Violation> {
        let now = state.now;
        let Some(process) = &mut state.processes[usize::from(number)] else { return Ok(()) };
        let Some(step) = self.setup.step(number, process.endings.len()) else { return Ok(()) };
        let deadline = now + step.timeout();
        let id = process.session.change(|session| match step {
            Step::Leave => {
                session.handle_leave(now, true);
                None
            }
            Step::Vote => Some(session.handle_admission_call(now, 1, deadline)),
            Step::Join => Some(session.handle_connect_call(now, 1, deadline)),
            _ => {
                let (scope, fingerprint) = (step.scope(), step.fingerprint());
                let op = Op { scope, tag: 0, fingerprint, deadline, members: None };
                Some(session.handle_op_call(now, op))
            }
        });
        let Some(id) = id else { return self.drain_peer(state, number) };
        process.work = Some(Work { id, attempt: None, data: Data::AsBefore, told: VecDeque::new() });
        self.drain_peer(state, number)
    }

    /// A program gives its call up.
    pub(super) fn cancel(&self, state: &mut State, number: ProcessNumber) -> Result<(), Violation> {
        let now = state.now;
        let process = state.processes[usize::from(number)].as_ref();
        let Some(id) = process.and_then(|process| process.work.as_ref()).map(|work| work.id) else {
            return Ok(());
        };
        self.with_session(state, number, |session| session.handle_cancel(now, id))
    }

    /// An executor reports.
    pub(super) fn performed(
        &self,
        state: &mut State,
        number: ProcessNumber,
        result: PerformResult,
    ) -> Result<(), Violation> {
        let now = state.now;
        let Some(process) = &mut state.processes[usize::from(number)] else { return Ok(()) };
        let at = process.endings.len();
        let Some(work) = process.work.as_mut() else { return Ok(()) };
        let Some(attempt) = work.attempt.take() else { return Ok(()) };
        let (id, told) = (work.id, std::mem::take(&mut work.told));
        if result == PerformResult::Done {
            work.data = Data::Result(attempt.key.clone());
        }
        process.session.change(|session| session.handle_performed(now, id, result));
        // First what it was told before, then what follows from its report.
        for command in told {
            self.command(state, number, id, command)?;
        }
        self.drain_peer(state, number)?;
        // A result that it still holds is one that it has voted for.
        let process = state.processes[usize::from(number)].as_ref();
        let holds = process.and_then(|process| process.work.as_ref()).map(|work| work.data.clone());
        if holds == Some(Data::Result(attempt.key.clone()))
            && let Some(step) = self.setup.step(number, at)
        {
            state
                .completed
                .change(|completed| completed.entry(attempt.key).or_default().insert(number, step));
        }
        Ok(())
    }

    /// An executor notices that a neighbour is gone.
    pub(super) fn miss(&self, state: &mut State, number: ProcessNumber) -> Result<(), Violation> {
        let Some(attempt) = attempt_of(state, number) else { return Ok(()) };
        let dead = |other: &ProcessNumber| state.processes[usize::from(*other)].is_none();
        let Some(other) = neighbours(attempt, number).into_iter().find(dead) else { return Ok(()) };
        self.performed(state, number, link_broken(number, other))
    }

    /// The link to its successor breaks, though both live.
    pub(super) fn sever(&self, state: &mut State, number: ProcessNumber) -> Result<(), Violation> {
        state.severed = true;
        let Some(attempt) = attempt_of(state, number) else { return Ok(()) };
        let next = neighbours(attempt, number)[0];
        self.performed(state, number, link_broken(number, next))
    }

    /// The next message arrives.
    pub(super) fn arrive_at_peer(&self, state: &mut State, number: ProcessNumber) -> Result<(), Violation> {
        let now = state.now;
        let held = state.held_wire(number).map(|wire| (wire.process, wire.number));
        let Some(at) = held.and_then(|(process, wire)| state.wire(process, wire)) else { return Ok(()) };
        let Some(message) = state.wires[at].change(|wire| wire.down.pop_front()) else { return Ok(()) };
        if let ToPeer::Verdict { key, verdict } = &message {
            let committed = matches!(verdict, Verdict::Commit { .. });
            checkers::heard(state, number, key, committed)?;
        }
        self.with_session(state, number, |session| session.handle_message(now, message))
    }

    /// A process notices that its connection is gone.
    pub(super) fn peer_sees(&self, state: &mut State, number: ProcessNumber) -> Result<(), Violation> {
        let now = state.now;
        let Some(process) = &mut state.processes[usize::from(number)] else { return Ok(()) };
        if let Some(wire) = process.wire.take()
            && let Some(at) = state.wire(number, wire)
        {
            state.wires[at].change(|wire| {
                (wire.peer_holds, wire.broken) = (false, true);
                wire.down.clear();
            });
            state.forget_wires();
        }
        self.with_session(state, number, |session| session.handle_disconnected(now))
    }

    /// A process is killed: nothing of it is left but what it sent.
    pub(super) fn kill(&self, state: &mut State, number: ProcessNumber) {
        state.processes[usize::from(number)] = None;
        for wire in state.wires.iter_mut().filter(|wire| wire.process == number) {
            wire.change(|wire| {
                (wire.peer_holds, wire.broken) = (false, true);
                wire.down.clear();
            });
        }
        state.forget_wires();
    }

    /// Everybody connects, is admitted, and has its links: the same beginning for all schedules.
    pub(super) fn begin(&self) -> State {
        let mut state = self.nobody();
        let now = state.now;
        let first: Vec<_> =
            (0..state.processes.len() as u8).filter(|number| !self.setup.is_newcomer(*number)).collect();
        let all = first.len() as u32;
        for number in first.iter().copied() {
            self.with_session(&mut state, number, |session| {
                session.handle_connect_call(now, all, now + TIMEOUT);
            })
            .unwrap_or_else(|violation| panic!("{violation}"));
        }
        while let Some(event) =
            self.usual(&state).into_iter().find(|event| matches!(event, Event::Up(..) | Event::Down(_)))
        {
            self.happen(&mut state, event).unwrap_or_else(|violation| panic!("{violation}"));
        }
        assert!(
            first.iter().all(|number| state.is_in(*number)),
            "everybody is admitted before anything is explored"
        );
        state
    }
}

pub(super) fn attempt_of(state: &State, number: ProcessNumber) -> Option<&Performing> {
    state.processes[usize::from(number)].as_ref()?.work.as_ref()?.attempt.as_ref()
}

/// The successor and the predecessor in the ring.
fn neighbours(attempt: &Performing, number: ProcessNumber) -> [ProcessNumber; 2] {
    let ring: Vec<_> = attempt.ring.iter().map(|id| process_of(*id)).collect();
    let at = ring.iter().position(|other| *other == number).unwrap_or(0);
    [ring[(at + 1) % ring.len()], ring[(at + ring.len() - 1) % ring.len()]]
}

fn link_broken(from: ProcessNumber, to: ProcessNumber) -> PerformResult {
    PerformResult::LinkBroken(BrokenLink::towards(id_of(from), id_of(to), "broken"))
}
