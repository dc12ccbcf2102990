//! From what is known to what is written.

use super::{Failure, Keeping, Machine, Operation, Outcome, Place, Request};
use crate::limits::RENDEZVOUS_NODES_MAX;
use crate::rendezvous::{Action, Context, EventName, Operator, State, Wish, apply, decide, grant};
use crate::time::Instant;
use crate::wire::encode;

/// Actions that one decision may take before it needs an answer: more would be a rule that undoes another.
const ACTIONS_MAX: usize = 16;

impl Machine {
    /// Decides until there is something to wait for.
    pub(super) fn step(&mut self, now: Instant) {
        self.decided = now;
        self.draw(now);
        for _ in 0..ACTIONS_MAX {
            if !self.decide_once(now) {
                return;
            }
        }
        unreachable!("rules that undo each other: {:?} in {:?}", self.running, self.reading);
    }

    /// The same, upon something that nobody else can know yet.
    pub(super) fn step_first(&mut self, now: Instant) {
        self.is_first_to_know = true;
        self.step(now);
        self.is_first_to_know = false;
    }

    /// What this node wants the others to grant; empty: nothing.
    pub(super) fn note(&self, now: Instant) -> Vec<u8> {
        self.wish(now).map(|wish| encode(&wish)).unwrap_or_default()
    }

    fn wish(&self, now: Instant) -> Option<Wish> {
        let running = self.running.as_ref()?;
        // A spare waits for as long as the round is full, however long that is.
        let is_in_time = now <= running.deadline || running.place == Some(Place::Spare);
        let wants = running.operation == Operation::Next && !running.is_cancelled && is_in_time;
        wants.then(|| Wish { node: self.node.clone(), after: self.finished, address: self.address.clone() })
    }

    /// Draws what the state would be if everybody got what it wants.
    fn draw(&mut self, now: Instant) {
        let mine = self.wish(now);
        let Some(reading) = &mut self.reading else { return };
        reading.draft = reading.base.clone();
        let place = self.running.as_ref().and_then(|running| running.place);
        if mine.is_some() && place == Some(Place::Spare) && reading.draft.place(&self.node).is_none() {
            // It need not have been written.
            reading.draft.redundancy_list.insert(self.node.clone());
        }
        let wants = mine.is_some();
        if wants || self.running.is_none() {
            // Who leaves or closes has enough to do with itself.
            reading.wishes.extend(mine.map(|wish| (self.node.clone(), wish)));
            grant(&mut reading.draft, &self.settings, &reading.wishes);
            reading.wishes.remove(&self.node);
        }
        let stands = reading.draft.place(&self.node);
        if wants {
            self.stand(now, stands);
        }
        self.notice_last_call(now);
    }

    /// Notes where this node stands, and tells of it.
    fn stand(&mut self, now: Instant, place: Option<Place>) {
        let Some(running) = &mut self.running else { return };
        let before = std::mem::replace(&mut running.place, place);
        if before == place {
            return;
        }
        if before == Some(Place::Spare) {
            // Its time as a spare does not count.
            running.deadline = now + self.settings.join;
        }
        match place {
            Some(Place::Waiting) => {
                self.tell(EventName::Waiting, "waits for the next round".to_owned(), None);
            }
            Some(Place::Spare) => {
                self.tell(EventName::Waiting, "the round is full: waits as a spare".to_owned(), None);
            }
            Some(Place::Participant) | None => {}
        }
    }

    /// Each last call is counted from when this node first knew of it.
    fn notice_last_call(&mut self, now: Instant) {
        let state = self.reading.as_ref().map(|reading| &reading.draft);
        let call = state.filter(|state| state.calling).map(|state| (state.round, state.calls));
        if self.called.map(|(known, _)| known) != call {
            self.called = call.map(|call| (call, now));
        }
    }

    /// One decision. False when there is something to wait for, or nothing to do.
    fn decide_once(&mut self, now: Instant) -> bool {
        let Some(running) = &self.running else { return false };
        let (operation, deadline, is_cancelled) = (running.operation, running.deadline, running.is_cancelled);
        let given_up = now > deadline + self.settings.rollback;
        if (self.is_writing || self.reading.is_none() || self.pause_until.is_some()) && given_up {
            // No answer, or none that could be read: nothing to decide upon any more.
            self.fail(Failure::Timeout(self.explain()));
            return false;
        }
        if self.is_writing || self.pause_until.is_some() {
            return false;
        }
        if !self.keeping.holds() {
            self.beat(now);
            return false;
        }
        let note = self.note(now);
        if !note.is_empty() && !self.keeping.has_left(&note) {
            self.beat(now);
        }
        let Some(reading) = &self.reading else {
            if !std::mem::replace(&mut self.is_reading, true) {
                self.requests.push_back(Request::Read);
            }
            return false;
        };
        let operator = match operation {
            Operation::Close => Operator::Close,
            Operation::Leave => Operator::Exit,
            Operation::Next if is_cancelled || self.is_to_leave(&reading.draft) => Operator::Exit,
            Operation::Next => Operator::Join,
        };
        let context = Context {
            state: &reading.draft,
            settings: &self.settings,
            node: &self.node,
            now,
            deadline,
            last_heartbeat: self.keeping.last_heartbeat(),
            called: self.called.map(|(_, since)| since),
        };
        let action = decide(operator, &context);
        let is_final = matches!(action, Action::Finish | Action::ErrorClosed | Action::ErrorTimeout);
        if is_final && self.has_to_write(now) {
            self.flush(now);
            return false;
        }
        match action {
            Action::KeepAlive => {
                self.beat(now);
                self.flush(now);
            }
            Action::Sync => self.flush(now),
            Action::Finish if is_cancelled => self.fail(Failure::Cancelled),
            Action::Finish => self.finish(),
            Action::ErrorClosed => self.fail(Failure::Closed),
            Action::ErrorTimeout => self.fail(Failure::Timeout(self.explain())),
            change => return self.change(now, change),
        }
        false
    }

    /// A round that the program was told of is left before another is joined. One that it was not told of is none to
    /// leave: a write whose answer was lost, or somebody else's, has brought us there.
    fn is_to_leave(&self, state: &State) -> bool {
        state.complete && state.participants.contains_key(&self.node) && self.finished == Some(state.round)
    }

    /// Applies a change to the draft. False if there is no room for it.
    fn change(&mut self, now: Instant, action: Action) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        let adds =
            matches!(action, Action::AddToParticipants | Action::AddToWaitList | Action::AddToRedundancyList);
        if adds && reading.draft.place(&self.node).is_none() && reading.draft.nodes() >= RENDEZVOUS_NODES_MAX
        {
            self.fail(Failure::Full);
            return false;
        }
        apply(action, &mut reading.draft, &self.settings, &self.node, &self.address);
        self.notice_last_call(now);
        true
    }

    /// Whether the draft changes anything for the others: what they can see by wishes and leases needs no write.
    fn has_to_write(&self, now: Instant) -> bool {
        let Some(reading) = &self.reading else { return false };
        let (base, draft) = (&reading.base, &reading.draft);
        let stage = |state: &State| (state.round, state.complete, state.closed, state.calling, state.calls);
        let leaves = draft.place(&self.node).is_none() && base.place(&self.node).is_some();
        // A backend that keeps no notes: nobody sees our wish.
        let note = self.note(now);
        let is_unseen = self.keeping.has_left(&note) && reading.note != note && base != draft;
        stage(base) != stage(draft) || leaves || is_unseen
    }

    /// Writes the draft, if it has to be written, when this node is the first in the queue.
    fn flush(&mut self, now: Instant) {
        if !self.has_to_write(now) || !self.is_first_in_queue(now) {
            return;
        }
        let note = self.note(now);
        if !self.keeping.has_left(&note) {
            // Who takes itself out takes its wish back first.
            self.beat(now);
        }
        let Some(reading) = &self.reading else { return };
        self.is_writing = true;
        self.requests.push_back(Request::Write { expected: reading.token, value: reading.draft.to_bytes() });
    }

    fn finish(&mut self) {
        let (Some(running), Some(reading)) = (self.running.take(), &self.reading) else { return };
        let (outcome, event) = match running.operation {
            Operation::Next => {
                let round = reading.round(&self.node);
                self.finished = Some(round.round);
                let text = format!(
                    "round {} with {} nodes, as rank {}",
                    round.round,
                    round.participants.len(),
                    round.rank
                );
                (Outcome::Joined(round), (EventName::Joined, text))
            }
            Operation::Close => {
                (Outcome::Closed, (EventName::Closed, "closed the rendezvous for all".to_owned()))
            }
            Operation::Leave => (Outcome::Left, (EventName::Left, "left".to_owned())),
        };
        self.tell(event.0, event.1, None);
        if running.operation == Operation::Leave {
            self.release();
        }
        self.requests.push_back(Request::Done(Ok(outcome)));
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        let Some(running) = self.running.take() else { return };
        self.is_writing = false;
        self.pause_until = None;
        self.tell(EventName::Failed, format!("{:?} failed", running.operation), Some(failure.to_string()));
        // A participant whose attempt to close failed goes on; who could not join or leave has nothing to hold.
        if running.operation != Operation::Close {
            self.release();
        }
        self.requests.push_back(Request::Done(Err(failure)));
    }

    fn release(&mut self) {
        self.keeping = Keeping::default();
        self.requests.push_back(Request::Release);
    }
}
