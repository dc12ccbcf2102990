//! Clients that are no members (rule 31).
//!
//! A client asks one member of the view; should that one die, it asks another one under the same name, and says that it was
//! sent before. It has one call at a time, and gives it up at its deadline. Half of the calls are of a client that nobody has
//! heard of, as with a command that is run once: a record remembers only so many of them.
//!
//! Its calls are in the same histories as those of members, so one that is done twice is found there.

use super::history::Event;
use super::programs::{remembered_answer, remembered_call};
use super::world::{Happening, Sabotage, World};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::store::mesh::Request;
use outlast_proto::wire::store::operation::{Answer, Key};
use outlast_proto::wire::store::{CallName, ClientId};

/// How long a client waits before it looks again who could be asked.
const PAUSE: Duration = Duration::from_millis(100);

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    call: Option<Call>,
    name: ClientId,
    last: u64,
}

impl Client {
    pub(super) fn new(number: usize) -> Self {
        Self { call: None, name: ClientId(number as u64), last: 0 }
    }

    /// It waits no more.
    pub(super) fn forget(&mut self) {
        self.call = None;
    }
}

#[derive(Debug)]
struct Call {
    key: Key,
    /// Its place in the key's history.
    at: usize,
    request: Request,
    deadline: Instant,
    /// How many members were asked.
    asked: u32,
}

/// What a client hears of a call.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// The member says that it does not know what became of it.
    Failed,
    /// The member is gone.
    HungUp,
}

impl World {
    pub(super) fn client_acts(&mut self, number: usize) {
        if self.is_calm {
            return;
        }
        let every = self.plan.every;
        self.later_within(every, Happening::Client(number));
        let now = self.now;
        match &self.clients[number].call {
            Some(call) if now < call.deadline => return,
            Some(_) => self.give_up(number),
            None => {}
        }
        self.values += 1;
        let (key, operation) = self.something_to_do();
        if self.rng.chance(0.5) {
            self.clients[number].name = ClientId(self.rng.next_u64());
        }
        let timeout = Duration::from_millis(500 + self.rng.below(4_000) as u64);
        let history = self.histories.entry(key.clone()).or_default();
        history.push(Event { operation: remembered_call(&operation), begun: now, ended: None });
        let at = history.len() - 1;
        let client = &mut self.clients[number];
        client.last += 1;
        let call = CallName { client: client.name, number: client.last };
        let (patience_ms, seen, again) = (0, None, false);
        // Whatever it asked before is answered or given up.
        let answered_below = call.number;
        let request = Request { call, answered_below, key: key.clone(), operation, patience_ms, seen, again };
        client.call = Some(Call { key, at, request, deadline: now + timeout, asked: 0 });
        self.ask_somebody(number);
    }

    /// Asks a member of the view; later, if there is none.
    fn ask_somebody(&mut self, number: usize) {
        let members = self.registrar.view().map(|view| view.members.clone()).unwrap_or_default();
        let asked = (!members.is_empty()).then(|| members[self.rng.below(members.len())].id);
        let Some(call) = &mut self.clients[number].call else { return };
        let name = call.request.call;
        let process = asked.and_then(|id| {
            self.processes.iter().position(|process| process.id == id && process.member.is_some())
        });
        let Some(process) = process else {
            return self.later(PAUSE, Happening::ClientLooks(number, name));
        };
        let mut request = call.request.clone();
        request.again = call.asked > 0;
        request.patience_ms = call.deadline.since(self.now).as_millis() as u64;
        if request.again && self.plan.sabotage == Some(Sabotage::NewNameAgain) {
            (request.call.client, request.again) = (ClientId(self.rng.next_u64()), false);
        }
        call.asked += 1;
        let life = self.processes[process].life;
        let delay = self.plan.delay.mul_f64(self.rng.unit());
        self.later(delay, Happening::Asked(process, life, (number, name), Box::new(request)));
    }

    /// A member is asked, perhaps after a stop, when the client waits no more.
    pub(super) fn asked(&mut self, process: usize, life: u32, by: (usize, CallName), request: Request) {
        if !self.is_current(process, life) {
            return self.tell_client(by.0, by.1, Outcome::HungUp);
        }
        let (now, patience) = (self.now, Duration::from_millis(request.patience_ms));
        let ticket = self.member(process).call_for(now, request, patience);
        self.processes[process].foreign.insert(ticket, by);
        self.pump(process);
    }

    /// A member has nothing more to say about a client's call.
    pub(super) fn tell_client(&mut self, number: usize, name: CallName, outcome: Outcome) {
        let delay = self.plan.delay.mul_f64(self.rng.unit());
        self.later(delay, Happening::ClientHears(number, name, outcome));
    }

    pub(super) fn client_hears(&mut self, number: usize, name: CallName, outcome: Outcome) {
        let now = self.now;
        let is_it = |call: &&Call| call.request.call == name;
        let Some(call) = self.clients[number].call.as_ref().filter(is_it) else { return };
        match outcome {
            Outcome::HungUp if now < call.deadline => self.ask_somebody(number),
            Outcome::HungUp | Outcome::Failed => self.give_up(number),
            Outcome::Answered(answer) => {
                let event = &mut self.histories.get_mut(&call.key).expect("it was begun")[call.at];
                event.ended = Some((now, remembered_answer(answer)));
                self.client_calls.0 += 1;
                self.client_calls.1 += u64::from(call.asked > 1);
                self.clients[number].call = None;
            }
        }
    }

    pub(super) fn client_looks(&mut self, number: usize, name: CallName) {
        let now = self.now;
        let goes_on = |call: &Call| call.request.call == name && now < call.deadline;
        if self.clients[number].call.as_ref().is_some_and(goes_on) {
            self.ask_somebody(number);
        }
    }

    /// Nobody knows what became of it.
    fn give_up(&mut self, number: usize) {
        self.clients[number].call = None;
        self.answered.1 += 1;
    }
}
