//! One key: its value or queue, and the calls that were done to it.
//!
//! A call that changes something is asked for again when its answer was lost, and must not be done twice. So the record
//! remembers which calls were done and what was answered; the memory replicates and moves with the key (rule 30). A
//! client says with every call below which number it has all its answers for this key; what is older is forgotten, and
//! what comes late with such a number, over a detour, is not done any more. Who went without a word is forgotten when
//! there are too many like it; from then on a call of somebody unknown that says that it was sent before may be one that was
//! done and forgotten, and its owner does not do it.
//!
//! A record is handed over in one message (rule 40). So what it holds is bounded: a queue to which one more element would
//! be too much refuses it. And where the answers of calls that were done, values among them, do not fit beside it, the
//! oldest do not travel: those calls are over, and whoever asks again for one is not told what became of it; it is not done
//! twice.
//!
//! The invariant: doing the same requests in the same order to equal records gives equal records and equal answers.
//! That is what a replica relies on.

use crate::limits::{STORE_RECORD_BYTES_MAX, STORE_STRANGERS_MAX, STORE_VALUE_BYTES_MAX};
use crate::wire::store::mesh::{Carried, Request};
use crate::wire::store::operation::{Answer, Key, Objection, Operation};
use crate::wire::store::{Blob, CallName, ClientId};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a record costs besides its bytes, roughly.
const RECORD_BYTES: u64 = 160;
const OVER_BYTES: u64 = 16;

/// See the module's essay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    value: Option<Blob>,
    queue: VecDeque<Blob>,
    /// Oldest first.
    done: Vec<(ClientId, u64, Answer)>,
    /// Calls of a client below that number are over.
    over: Vec<(ClientId, u64)>,
    /// Calls of clients outside the view were forgotten.
    forgot: bool,
    /// Bytes of the value and the queue, and of what is remembered; kept up to date: a queue may be long.
    holds: u64,
    remembers: u64,
}

/// What a call did to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It changed it; a replica must hear of it.
    Changed(Answer),
    /// It changed nothing.
    Same(Answer),
    /// It was done before.
    Again(Answer),
    /// There is nothing yet to answer with.
    Waits,
    /// Its client has had the answer long since: this copy of the request went astray.
    Over,
}

impl Record {
    /// Whether it holds a value or an element.
    pub fn is_present(&self) -> bool {
        self.value.is_some() || !self.queue.is_empty()
    }

    /// Whether it can be forgotten: it holds nothing, and nobody may ask again for what was done to it.
    pub fn is_empty(&self) -> bool {
        !self.is_present() && self.done.is_empty() && self.over.is_empty()
    }

    /// How many bytes it takes, roughly.
    pub fn bytes(&self) -> u64 {
        if self.is_empty() { 0 } else { RECORD_BYTES + self.holds + self.remembers }
    }

    /// What was answered when the call was done.
    pub fn answered(&self, call: CallName) -> Option<&Answer> {
        let is_it =
            |(client, number, _): &&(ClientId, u64, Answer)| *client == call.client && *number == call.number;
        self.done.iter().rev().find(is_it).map(|(_, _, answer)| answer)
    }

    /// Whether calls of that client may have been done here and forgotten. Only an owner asks: its replica does what it is told.
    pub fn may_have_forgotten(&self, client: ClientId) -> bool {
        self.forgot && !self.over.iter().any(|(other, _)| *other == client)
    }

    /// Does what is asked, once. `is_member` tells whose calls are remembered for as long as they may be asked again.
    pub fn apply(&mut self, request: &Request, is_member: impl Fn(ClientId) -> bool) -> Effect {
        let Request { call, answered_below, operation, .. } = request;
        if let Some(answer) = self.answered(*call) {
            return Effect::Again(answer.clone());
        }
        let over = self.over.iter_mut().find(|(client, _)| *client == call.client);
        if over.as_ref().is_some_and(|(_, below)| call.number < *below) {
            return Effect::Over;
        }
        if let Some((_, below)) = over {
            *below = (*below).max(*answered_below);
        } else {
            self.over.push((call.client, *answered_below));
            self.remembers += OVER_BYTES;
        }
        let effect = self.change(operation);
        // That it changed nothing is remembered too: a copy that comes late might.
        if let Effect::Changed(answer) | Effect::Same(answer) = &effect {
            self.forget(|(client, number, _)| *client == call.client && number < answered_below);
            self.remembers += remembered(answer);
            self.done.push((call.client, call.number, answer.clone()));
            self.forget_strangers(is_member);
        }
        effect
    }

    fn forget_strangers(&mut self, is_member: impl Fn(ClientId) -> bool) {
        if self.over.len() <= STORE_STRANGERS_MAX {
            return;
        }
        let unknown = self.over.iter().filter(|(client, _)| !is_member(*client)).count();
        let mut excess = unknown.saturating_sub(STORE_STRANGERS_MAX);
        let (bytes, forgot) = (&mut self.remembers, &mut self.forgot);
        self.over.retain(|(client, _)| {
            let goes = excess > 0 && !is_member(*client);
            excess -= usize::from(goes);
            *forgot |= goes;
            *bytes -= u64::from(goes) * OVER_BYTES;
            !goes
        });
        let strangers = self.done.iter().filter(|(client, ..)| !is_member(*client)).count();
        let mut too_many = strangers.saturating_sub(STORE_STRANGERS_MAX);
        self.forget(|(client, ..)| {
            let goes = too_many > 0 && !is_member(*client);
            too_many -= usize::from(goes);
            goes
        });
    }

    fn forget(&mut self, mut goes: impl FnMut(&(ClientId, u64, Answer)) -> bool) {
        let bytes = &mut self.remembers;
        self.done.retain(|done| {
            let goes = goes(done);
            if goes {
                *bytes -= remembered(&done.2);
            }
            !goes
        });
    }

    /// What is answered to a question that changes nothing.
    pub fn look(&self, operation: &Operation) -> Effect {
        let value = self.value.as_ref().or(self.queue.front());
        match (operation, value) {
            (Operation::Get, Some(value)) => Effect::Same(Answer::Value(value.clone())),
            (Operation::Look, Some(value)) => Effect::Same(Answer::Value(value.clone())),
            (Operation::Look, None) => Effect::Same(Answer::Nothing),
            (Operation::Await, Some(_)) => Effect::Same(Answer::Done),
            (Operation::Check, found) => Effect::Same(Answer::Truth(found.is_some())),
            (Operation::Length, _) => Effect::Same(Answer::Number(self.queue.len() as i64)),
            _ => Effect::Waits,
        }
    }

    fn change(&mut self, operation: &Operation) -> Effect {
        let refused = |objection| Effect::Same(Answer::Refused(objection));
        match operation {
            Operation::Set(value) if !self.has_room(value, true) => refused(Objection::TooLong),
            Operation::Set(value) => {
                self.hold(Some(value.clone()));
                Effect::Changed(Answer::Done)
            }
            Operation::Add(amount) => {
                let text = self.value.as_ref().map_or(Ok("0"), |value| std::str::from_utf8(value));
                let Some(held) = text.ok().and_then(|text| text.parse::<i64>().ok()) else {
                    return refused(Objection::NotANumber);
                };
                let Some(sum) = held.checked_add(*amount) else { return refused(Objection::Overflow) };
                self.hold(Some(sum.to_string().into_bytes().into()));
                Effect::Changed(Answer::Number(sum))
            }
            Operation::CompareSet(expected, desired) => match &self.value {
                // As torch has it: nothing counts as empty, and who expected more is told what it expected.
                None if !expected.is_empty() => Effect::Same(Answer::Value(expected.clone())),
                Some(held) if held != expected => Effect::Same(Answer::Value(held.clone())),
                _ if !self.has_room(desired, true) => refused(Objection::TooLong),
                _ => {
                    self.hold(Some(desired.clone()));
                    // The value that it had and now has is what was asked for: the client knows it.
                    Effect::Changed(Answer::Done)
                }
            },
            Operation::Append(more) => {
                let length = self.value.as_ref().map_or(0, |held| held.len()) + more.len();
                if length > STORE_VALUE_BYTES_MAX || !self.has_room(more, false) {
                    return refused(Objection::TooLong);
                }
                if self.value.is_none() {
                    self.hold(Some(Blob::default()));
                }
                let held = self.value.get_or_insert_default();
                Arc::make_mut(&mut held.0).extend_from_slice(more);
                self.holds += more.len() as u64;
                Effect::Changed(Answer::Done)
            }
            Operation::Delete => match self.value {
                Some(_) => {
                    self.hold(None);
                    Effect::Changed(Answer::Truth(true))
                }
                None => Effect::Same(Answer::Truth(false)),
            },
            Operation::Push(value) if !self.has_room(value, false) => refused(Objection::TooLong),
            Operation::Push(value) => {
                self.holds += held(value);
                self.queue.push_back(value.clone());
                Effect::Changed(Answer::Done)
            }
            Operation::Pop => match self.queue.pop_front() {
                Some(value) => {
                    self.holds -= held(&value);
                    Effect::Changed(Answer::Value(value))
                }
                None => Effect::Same(Answer::Nothing),
            },
            _ => self.look(operation),
        }
    }

    /// Whether one more can be held, in place of the value or beside all that there is. It is a question about what is held
    /// and nothing else: owner and replica must give it the same answer, and remember different calls.
    fn has_room(&self, more: &Blob, in_place: bool) -> bool {
        let freed = self.value.as_ref().filter(|_| in_place).map_or(0, held);
        self.holds - freed + held(more) <= STORE_RECORD_BYTES_MAX
    }

    fn hold(&mut self, value: Option<Blob>) {
        self.holds += value.as_ref().map_or(0, held);
        let before = std::mem::replace(&mut self.value, value);
        self.holds -= before.as_ref().map_or(0, held);
    }

    /// The record as it travels. Calls that are over for whoever gets it are so for whoever gives it, too: it may go on as the
    /// owner, and must not do what its replica would not.
    pub fn carried(&mut self, key: &Key) -> Carried {
        let (mut done, mut over) = (self.done.clone(), self.over.clone());
        let mut excess = (self.holds + self.remembers).saturating_sub(STORE_RECORD_BYTES_MAX);
        done.retain(|(client, number, answer)| {
            let stays = excess == 0;
            if !stays {
                excess = excess.saturating_sub(remembered(answer));
                let of = over.iter_mut().filter(|(other, _)| other == client);
                of.for_each(|(_, below)| *below = (*below).max(number.saturating_add(1)));
            }
            stays
        });
        self.over.clone_from(&over);
        let (key, value, queue) = (key.clone(), self.value.clone(), self.queue.iter().cloned().collect());
        Carried { key, value, queue, done, over, forgot: self.forgot }
    }

    /// The record that travelled.
    pub fn received(carried: Carried) -> (Key, Self) {
        let Carried { key, value, queue, done, over, forgot } = carried;
        let holds = value.iter().chain(&queue).map(held).sum();
        let answers = done.iter().map(|(_, _, answer)| remembered(answer)).sum::<u64>();
        let remembers = answers + over.len() as u64 * OVER_BYTES;
        (key, Self { value, queue: queue.into(), done, over, forgot, holds, remembers })
    }
}

fn held(value: &Blob) -> u64 {
    32 + value.len() as u64
}

fn remembered(answer: &Answer) -> u64 {
    48 + if let Answer::Value(value) = answer { value.len() as u64 } else { 0 }
}
