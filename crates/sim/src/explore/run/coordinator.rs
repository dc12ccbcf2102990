//! The side of the coordinator, the clock, and what the health plane says.

use super::checkers;
use super::peer;
use super::setup::{BEGINNING, Sabotage, id_of};
use super::state::{State, connection_id};
use super::{ProcessNumber, RunModel};
use crate::explore::held::Held;
use crate::explore::search::Violation;
use outlast_proto::coordinator::{self, Action, ConnectionId, Run, Sign};
use outlast_proto::membership::Preset;
use outlast_proto::wire::control::{AbortReason, ToPeer, Verdict};
use outlast_proto::wire::membership::DeathReason;
use std::collections::BTreeMap;

impl RunModel {
    /// A coordinator, and processes that have not connected yet.
    pub(super) fn nobody(&self) -> State {
        State {
            now: BEGINNING,
            run: Held::new(Run::new(coordinator::Config::preset(Preset::Local))),
            processes: (0..self.setup.programs.len())
                .map(|number| Some(peer::process(number as u8)))
                .collect(),
            wires: Vec::new(),
            known_dead: vec![false; self.setup.programs.len()],
            completed: Held::new(BTreeMap::new()),
            left: self.setup.budget,
            restarted: None,
            severed: false,
        }
    }

    fn with_run(&self, state: &mut State, change: impl FnOnce(&mut Run)) -> Result<(), Violation> {
        let now = state.now;
        state.run.change(change);
        loop {
            let actions: Vec<_> = state.run.change(|run| std::iter::from_fn(|| run.poll_action()).collect());
            if actions.is_empty() {
                return Ok(());
            }
            for action in actions {
                match action {
                    Action::Send(at, message) => self.send_down(state, at, message)?,
                    Action::SendAll(all, message) => {
                        for at in all {
                            self.send_down(state, at, message.clone())?;
                        }
                    }
                    Action::Close(at) => {
                        if let Some(wire) = state.wires.iter_mut().find(|wire| wire.id() == at) {
                            wire.change(|wire| {
                                wire.coordinator_holds = false;
                                wire.up.clear();
                            });
                            state.forget_wires();
                        }
                        state.run.change(|run| run.handle_closed(now, at));
                    }
                    Action::Note(note) => checkers::note(state, &note)?,
                    Action::Solve { token, question } => {
                        let answer = question.answer(&|| false);
                        state.run.change(|run| run.handle_solved(now, token, &answer));
                    }
                    Action::Connect { .. }
                    | Action::Evict(_)
                    | Action::Look(_)
                    | Action::Renew(_)
                    | Action::CallOff(_) => {}
                }
            }
        }
    }

    fn send_down(&self, state: &mut State, at: ConnectionId, mut message: ToPeer) -> Result<(), Violation> {
        let (now, restarted) = (state.now, state.restarted);
        let Some(wire) = state.wires.iter_mut().find(|wire| wire.id() == at) else { return Ok(()) };
        match (self.setup.sabotage, &mut message) {
            (Some(Sabotage::DropProceed), ToPeer::Proceed { .. }) => return Ok(()),
            (Some(Sabotage::FlipVerdict), ToPeer::Verdict { verdict, .. }) if wire.process == 1 => {
                *verdict = Verdict::Abort(AbortReason::Void);
            }
            _ => {}
        }
        if wire.coordinator_holds && wire.peer_holds {
            checkers::told(now, restarted, &message)?;
            wire.change(|wire| wire.down.push_back(message));
        }
        Ok(())
    }

    /// The next message on a connection arrives.
    pub(super) fn arrive_at_coordinator(
        &self,
        state: &mut State,
        process: ProcessNumber,
        number: u8,
    ) -> Result<(), Violation> {
        let now = state.now;
        let Some(at) = state.wire(process, number) else { return Ok(()) };
        let Some(message) = state.wires[at].change(|wire| wire.up.pop_front()) else { return Ok(()) };
        self.with_run(state, |run| {
            run.handle_message(now, connection_id(process, number), id_of(process), message);
        })
    }

    /// The coordinator notices that a connection is gone.
    pub(super) fn coordinator_sees(
        &self,
        state: &mut State,
        process: ProcessNumber,
        number: u8,
    ) -> Result<(), Violation> {
        let now = state.now;
        if let Some(at) = state.wire(process, number) {
            state.wires[at].change(|wire| {
                // A goodbye was said before everything under way arrived; otherwise it broke.
                wire.broken |= wire.peer_holds;
                wire.coordinator_holds = false;
                wire.up.clear();
            });
            state.forget_wires();
        }
        self.with_run(state, |run| run.handle_closed(now, connection_id(process, number)))
    }

    /// The clock jumps to the next timer, whose machine is told. Whoever lives has answered the health plane since.
    pub(super) fn fire(&self, state: &mut State, machine: Option<ProcessNumber>) -> Result<(), Violation> {
        let due = match machine {
            None => state.run.poll_timeout(),
            Some(number) => {
                let process = state.processes[usize::from(number)].as_ref();
                process.and_then(|process| process.session.poll_timeout())
            }
        };
        let now = due.map_or(state.now, |due| due.max(state.now));
        if now > state.now {
            state.now = now;
            self.tell_health(state)?;
        }
        match machine {
            None => self.with_run(state, |run| run.handle_timeout(now)),
            Some(number) => self.with_session(state, number, |session| session.handle_timeout(now)),
        }
    }

    /// What the health plane says of everybody, as far as it knows.
    pub(super) fn tell_health(&self, state: &mut State) -> Result<(), Violation> {
        let now = state.now;
        for number in 0..state.processes.len() {
            let accused = self.setup.sabotage == Some(Sabotage::AccuseTheLiving) && number == 1;
            let sign = match &state.processes[number] {
                Some(_) if accused => Sign::Dead(DeathReason::Silent),
                Some(_) => Sign::Alive { acked: Some(now) },
                None if state.known_dead[number] => Sign::Dead(DeathReason::Refused),
                None => continue,
            };
            self.with_run(state, |run| run.handle_health(now, id_of(number as u8), sign))?;
        }
        Ok(())
    }

    /// The coordinator is killed, and another one is at its place that knows nothing.
    pub(super) fn restart(&self, state: &mut State) {
        let config = coordinator::Config::preset(Preset::Local);
        let until = state.now + config.control_grace;
        let mut run = Run::new(config);
        run.expect_old_members(until);
        state.run = Held::new(run);
        state.restarted = Some(state.now);
        for wire in &mut state.wires {
            wire.change(|wire| {
                (wire.coordinator_holds, wire.broken) = (false, true);
                wire.up.clear();
            });
        }
        state.forget_wires();
    }
}

impl State {
    /// A connection that nobody holds is over.
    pub(super) fn forget_wires(&mut self) {
        self.wires.retain(|wire| wire.peer_holds || wire.coordinator_holds);
    }
}
