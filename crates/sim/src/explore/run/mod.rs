//! A run as a model: one coordinator, two or three peers, of whom some may come later, one or two calls each.

mod checkers;
mod coordinator;
mod event;
mod peer;
mod settle;
mod setup;
mod state;

pub use event::{Event, ProcessNumber};
pub use setup::{Sabotage, Setup, Step};
pub use state::{Budget, State};

use super::held::hash_of;
use super::search::{Model, Violation};
use outlast_proto::session::PerformResult;
use outlast_proto::time::Instant;
use state::{Data, Process};

/// A run, as far as its setup lets it go.
#[derive(Clone, Debug)]
pub struct RunModel {
    setup: Setup,
}

impl RunModel {
    /// The model of that setup.
    pub fn new(setup: Setup) -> Self {
        Self { setup }
    }

    /// What happens by itself, sooner or later, without a fault and without time passing.
    fn usual(&self, state: &State) -> Vec<Event> {
        let mut events = Vec::new();
        for (number, process) in state.processes.iter().enumerate() {
            let number = number as u8;
            match process {
                Some(process) => self.usual_of(state, number, process, &mut events),
                None if !state.known_dead[usize::from(number)] => events.push(Event::Dead(number)),
                None => {}
            }
        }
        let due = |(number, process): (ProcessNumber, &Process)| {
            let due = process.session.poll_timeout().is_some_and(|at| at <= state.now);
            due.then_some(Event::Fire(Some(number)))
        };
        events.extend(state.present().filter_map(due));
        if state.run.poll_timeout().is_some_and(|at| at <= state.now) {
            events.push(Event::Fire(None));
        }
        for wire in &state.wires {
            if wire.coordinator_holds && !wire.up.is_empty() {
                events.push(Event::Up(wire.process, wire.number));
            }
            if wire.coordinator_holds && !wire.peer_holds && (wire.broken || wire.up.is_empty()) {
                events.push(Event::CoordinatorSees(wire.process, wire.number));
            }
        }
        events
    }

    fn usual_of(&self, state: &State, number: ProcessNumber, process: &Process, events: &mut Vec<Event>) {
        if let Some(wire) = state.held_wire(number) {
            if !wire.down.is_empty() {
                events.push(Event::Down(number));
            }
            if !wire.coordinator_holds && (wire.broken || wire.down.is_empty()) {
                events.push(Event::PeerSees(number));
            }
        }
        match &process.work {
            None if !process.out && self.setup.step(number, process.endings.len()).is_some() => {
                events.push(Event::Call(number));
            }
            None => {}
            Some(work) => {
                let Some(attempt) = &work.attempt else { return };
                if attempt.met || self.setup.is_alone(number, process.endings.len()) {
                    events.push(Event::Done(number));
                }
                if attempt.stopping {
                    events.push(Event::Stopped(number));
                } else if self.neighbour_is_dead(state, number, attempt) {
                    events.push(Event::Missed(number));
                }
            }
        }
    }

    /// Where no connection can break any more, a process that can do nothing but read the next message reads it before
    /// anything else happens. Whatever else may happen does not touch that process, and it cannot prevent it: only
    /// the order would differ.
    fn only(&self, state: &State, events: &[Event]) -> Option<Event> {
        if state.left.breaks > 0 || state.left.restarts > 0 || state.left.cancels > 0 {
            return None;
        }
        // A deadline of its own may be earlier than what it would read.
        if state.left.timers > 0 && self.setup.has_deadlines() {
            return None;
        }
        let reads = events.iter().filter_map(|event| match event {
            Event::Down(number) => Some((*event, *number)),
            _ => None,
        });
        let idle = |number: ProcessNumber| {
            let attempt = peer::attempt_of(state, number);
            let others = [
                Event::Call(number),
                Event::Done(number),
                Event::Stopped(number),
                Event::Missed(number),
                Event::PeerSees(number),
                Event::Fire(Some(number)),
            ];
            attempt.is_none() && !others.iter().any(|other| events.contains(other))
        };
        reads.into_iter().find(|(_, number)| idle(*number)).map(|(event, _)| event)
    }

    fn faults(&self, state: &State, events: &mut Vec<Event>) {
        let left = &state.left;
        for (number, process) in state.present() {
            let whole = |wire: &state::Channel| wire.peer_holds && wire.coordinator_holds;
            if left.breaks > 0 && state.held_wire(number).is_some_and(|wire| whole(wire)) {
                events.push(Event::BreakAtPeer(number));
                events.push(Event::BreakAtCoordinator(number));
            }
            if left.kills > 0 && state.present().count() > 1 {
                events.push(Event::Kill(number));
            }
            if left.cancels > 0 && self.can_be_cancelled(number, process) {
                events.push(Event::Cancel(number));
            }
            let attempt = process.work.as_ref().and_then(|work| work.attempt.as_ref());
            if left.severs > 0 && attempt.is_some_and(|attempt| !attempt.stopping && attempt.ring.len() > 1) {
                events.push(Event::Sever(number));
            }
        }
        if left.restarts > 0 {
            events.push(Event::Restart);
        }
    }

    /// Whether a program may give its call up, and know what to do then. A call that others retry is made again. One that
    /// nobody retries is over for all, once its attempt has begun; before, only its own program would know of it.
    fn can_be_cancelled(&self, number: ProcessNumber, process: &Process) -> bool {
        let step = self.setup.step(number, process.endings.len());
        let Some(work) = &process.work else { return false };
        match step {
            Some(Step::ReduceOnce) => work.attempt.is_some() || work.data != Data::AsBefore,
            Some(step) => step.retries(),
            None => false,
        }
    }

    /// The machines whose timers are the next to fire, if the clock must jump for it and not beyond the horizon.
    fn timers(&self, state: &State, horizon: Instant, events: &mut Vec<Event>) {
        let mut due = vec![(state.run.poll_timeout(), None)];
        due.extend(state.present().map(|(number, process)| (process.session.poll_timeout(), Some(number))));
        let next = due.iter().filter_map(|(at, _)| *at).min();
        let Some(next) = next.filter(|next| *next > state.now && *next < horizon) else {
            return;
        };
        let fires = due.into_iter().filter(|(at, _)| *at == Some(next));
        events.extend(fires.map(|(_, machine)| Event::Fire(machine)));
    }
}

impl Model for RunModel {
    type State = State;
    type Event = Event;

    fn initial(&self) -> State {
        self.begin()
    }

    fn events(&self, state: &State) -> Vec<Event> {
        let mut events = self.usual(state);
        if let Some(event) = self.only(state, &events) {
            return vec![event];
        }
        self.faults(state, &mut events);
        if state.left.timers > 0 {
            self.timers(state, self.setup.horizon(), &mut events);
        }
        events
    }

    fn happen(&self, state: &mut State, event: Event) -> Result<(), Violation> {
        match event {
            Event::Call(process) => self.call(state, process),
            Event::Up(process, wire) => self.arrive_at_coordinator(state, process, wire),
            Event::Down(process) => self.arrive_at_peer(state, process),
            Event::CoordinatorSees(process, wire) => self.coordinator_sees(state, process, wire),
            Event::PeerSees(process) => self.peer_sees(state, process),
            Event::Done(process) => self.performed(state, process, PerformResult::Done),
            Event::Stopped(process) => self.performed(state, process, PerformResult::Stopped),
            Event::Missed(process) => self.miss(state, process),
            Event::Fire(machine) => {
                let before = state.now;
                self.fire(state, machine)?;
                if state.now > before {
                    state.left.timers = state.left.timers.saturating_sub(1);
                }
                Ok(())
            }
            Event::Dead(process) => {
                state.known_dead[usize::from(process)] = true;
                self.tell_health(state)
            }
            Event::BreakAtPeer(process) => {
                state.left.breaks -= 1;
                self.peer_sees(state, process)
            }
            Event::BreakAtCoordinator(process) => {
                state.left.breaks -= 1;
                let number = state.held_wire(process).map_or(0, |wire| wire.number);
                self.coordinator_sees(state, process, number)
            }
            Event::Kill(process) => {
                state.left.kills -= 1;
                self.kill(state, process);
                Ok(())
            }
            Event::Restart => {
                state.left.restarts -= 1;
                self.restart(state);
                Ok(())
            }
            Event::Sever(process) => {
                state.left.severs -= 1;
                self.sever(state, process)
            }
            Event::Cancel(process) => {
                state.left.cancels -= 1;
                self.cancel(state, process)
            }
        }
    }

    fn judge(&self, state: &State) -> Result<(), Violation> {
        checkers::judge(&self.setup, state)?;
        // Whatever is under way arrives in some state that follows; what must end is asked where nothing is.
        if self.usual(state).is_empty() { self.settle(state.clone()) } else { Ok(()) }
    }

    fn fingerprint(&self, state: &State) -> u64 {
        hash_of(state)
    }

    fn describe(&self, state: &State, event: Event) -> String {
        let what = match event {
            Event::Up(process, wire) => {
                let at = state.wire(process, wire);
                at.and_then(|at| state.wires[at].up.front().map(|message| format!("{message:?}")))
            }
            Event::Down(process) => {
                let wire = state.held_wire(process);
                wire.and_then(|wire| wire.down.front().map(|message| format!("{message:?}")))
            }
            _ => None,
        };
        let what: String = what.unwrap_or_default().chars().take(400).collect();
        format!("{event:<12} {what}")
    }
}
