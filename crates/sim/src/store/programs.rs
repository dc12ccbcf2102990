//! What programs do beside reading and writing short values: they wait for keys, list them, and write what travels in
//! pieces.
//!
//! A long value repeats its name, so that a history need only remember the name, and one that was put together wrongly is
//! told from all others. A list is not atomic, but a key that was written before it began and is never deleted is in it.
//!
//! In the calm all programs wait for a key that nobody has set, and one of them sets it: whoever waits is woken at once, not
//! when it asks again.

use super::history::Event;
use super::world::World;
use crate::world::stage::Stage as _;
use outlast_proto::store::Ticket;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::store::Blob;
use outlast_proto::wire::store::operation::{Answer, Key, Operation};

/// Four pieces.
const LONG_BYTES: usize = 200 << 10;
/// The length of a long value's name.
const NAME_BYTES: usize = 8;
/// How long a key that was set may be waited for in the calm.
const WOKEN_WITHIN: Duration = Duration::from_secs(1);
/// How late a call may end: a message may take so long between two processes.
const LATE_MAX: Duration = Duration::from_millis(5);

fn long() -> Key {
    Key::value("long")
}

fn long_value(number: u64) -> Blob {
    format!("v{number:07}").repeat(LONG_BYTES / NAME_BYTES).into_bytes().into()
}

/// What a history remembers of a value.
fn remembered(value: &Blob) -> Blob {
    let name = &value[..value.len().min(NAME_BYTES)];
    match value.len() {
        LONG_BYTES if value.chunks_exact(NAME_BYTES).all(|part| part == name) => name.into(),
        0..1_000 => value.clone(),
        // A log may be long, too.
        _ if !value.starts_with(b"v00") => value.clone(),
        _ => b"torn"[..].into(),
    }
}

/// What a history remembers of a call.
pub(super) fn remembered_call(operation: &Operation) -> Operation {
    match operation {
        Operation::Set(value) => Operation::Set(remembered(value)),
        other => other.clone(),
    }
}

/// And of its answer.
pub(super) fn remembered_answer(answer: Answer) -> Answer {
    match answer {
        Answer::Value(value) => Answer::Value(remembered(&value)),
        other => other,
    }
}

impl World {
    /// Something that not every program does.
    pub(super) fn do_something_else(&mut self, number: usize) {
        let timeout = Duration::from_millis(500 + self.rng.below(4_000) as u64);
        let (key, operation) = match self.rng.below(5) {
            0 => (Key::value("register"), Operation::Await),
            1 => (long(), Operation::Get),
            2 => (long(), Operation::Set(long_value(self.values))),
            3 => (Key::value("never"), Operation::Await),
            _ => return self.list(number, timeout),
        };
        self.call(number, key, operation, timeout);
    }

    fn list(&mut self, number: usize, timeout: Duration) {
        let now = self.now;
        let ticket = self.member(number).keys(now, Vec::new(), timeout);
        self.processes[number].lists.insert(ticket, (now, now + timeout));
        self.pump(number);
    }

    /// A list has come, or has not. Whether it was one.
    pub(super) fn listed(&mut self, number: usize, ticket: Ticket, answer: Option<&Answer>) -> bool {
        let Some((begun, deadline)) = self.processes[number].lists.remove(&ticket) else { return false };
        self.look_at_deadline(number, deadline);
        let Some(Answer::Keys(listed, _)) = answer else { return true };
        let is_written = |event: &Event| {
            matches!(event.operation, Operation::Set(_) | Operation::Add(_) | Operation::Append(_))
                && event.ended.as_ref().is_some_and(|(at, _)| *at < begun)
        };
        let is_deleted = |event: &Event| matches!(event.operation, Operation::Delete);
        let written = self
            .histories
            .iter()
            .filter(|(key, _)| !self.lost.contains_key(key))
            .filter(|(_, events)| events.iter().any(is_written) && !events.iter().any(is_deleted));
        let missing: Vec<_> =
            written.map(|(key, _)| key.clone()).filter(|key| !listed.contains(&key.name)).collect();
        let unknown: Vec<_> =
            listed.iter().filter(|name| !self.histories.contains_key(&Key::value(name.to_vec()))).collect();
        if !missing.is_empty() || !unknown.is_empty() {
            let what = format!("a list of process {number} lacks {missing:?} and has {unknown:?}");
            self.violate("keys", what);
        }
        true
    }

    /// A call ends by its deadline. Only a process that was stopped cannot keep to it; what it finds late it ends at once.
    pub(super) fn look_at_deadline(&mut self, number: usize, deadline: Instant) {
        let process = &self.processes[number];
        if process.member.is_none() || process.stopped {
            return;
        }
        let (due, now) = (deadline.max(process.went_on), self.now);
        if now > due + LATE_MAX {
            let late = now - due;
            self.violate("deadline", format!("a call of process {number} ended {late:?} late, or not yet"));
        }
    }

    /// Calls whose time is over have ended.
    pub(super) fn look_at_deadlines(&mut self) {
        for number in 0..self.processes.len() {
            let process = &self.processes[number];
            let deadlines: Vec<_> = process.calls.values().map(|(_, _, deadline)| *deadline).collect();
            let lists = process.lists.values().map(|(_, deadline)| *deadline).collect::<Vec<_>>();
            deadlines.into_iter().chain(lists).for_each(|deadline| self.look_at_deadline(number, deadline));
        }
    }

    /// All wait for a key, and one of them sets it.
    pub(super) fn wake_everybody(&mut self) {
        let key = Key::value("late");
        let timeout = Duration::from_secs(20);
        for number in 0..self.processes.len() {
            self.call(number, key.clone(), Operation::Await, timeout);
            self.list(number, timeout);
        }
        let soon = self.now + Duration::from_millis(100);
        self.play_until(soon, |_| false);
        self.values += 1;
        let value = format!("v{}", self.values).into_bytes();
        self.call(0, key, Operation::Set(value.into()), timeout);
        let ends = self.now + WOKEN_WITHIN;
        if !self.play_until(ends, |world| world.processes.iter().all(|process| process.calls.is_empty())) {
            self.violate("wake", format!("somebody waits for a key {WOKEN_WITHIN:?} after it was set"));
        }
    }
}
