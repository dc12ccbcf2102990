//! Could one copy of the key have answered like that?
//!
//! A history of one key is *linearizable* if its calls can be put into one order in which each gives the answer that it
//! gave, and which keeps calls in their order where one had ended before the other began. The search is that of Wing and
//! Gong, with the memory of Lowe: whichever calls were put in order already, and the state that they led to, need not be
//! tried twice. A call without an answer may have happened at any time after it began, or never.
//!
//! The search is bounded, and where much is left open it does not come to its end. So what is plain is looked at first:
//! a read of a value that was overwritten before the read began, or of a log without an entry that was acknowledged
//! before.
//!
//! The model of a key is written down here once more, apart from the store's own.

use super::foresight::{Foresight, Left};
use outlast_proto::time::Instant;
use outlast_proto::wire::store::operation::{Answer, Operation};
use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use twox_hash::XxHash3_64;

/// One call of a program.
#[derive(Clone, Debug)]
pub struct Event {
    /// What was asked.
    pub operation: Operation,
    /// When.
    pub begun: Instant,
    /// When it was answered, and how; none if nobody knows what became of it.
    pub ended: Option<(Instant, Answer)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) value: Option<Vec<u8>>,
    pub(super) queue: VecDeque<Vec<u8>>,
}

/// What came of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none.
    Impossible,
    /// It was not found out within the bound.
    TooHard,
}

/// States that are tried at most.
const TRIED_MAX: usize = 200_000;

/// Whether the calls of one key could have had these answers.
pub fn check(events: &[Event]) -> Verdict {
    // A question that nobody answered says nothing.
    let mut events: Vec<_> =
        events.iter().filter(|event| event.ended.is_some() || event.operation.changes()).collect();
    events.sort_by_key(|event| event.begun);
    if events.iter().any(|event| is_stale(event, &events)) {
        return Verdict::Impossible;
    }
    let foresight = Foresight::new(&events);
    let ends: Vec<_> = events.iter().map(|event| event.ended.as_ref().map(|(at, _)| *at)).collect();
    let mut tried = BTreeSet::new();
    let mut stack = vec![(Done::new(events.len()), State::default())];
    while let Some((done, state)) = stack.pop() {
        let first_end =
            (done.first..events.len()).filter(|at| !done.has(*at)).filter_map(|at| ends[at]).min();
        let Some(first_end) = first_end else { return Verdict::Linearizable };
        if tried.len() > TRIED_MAX {
            return Verdict::TooHard;
        }
        // Those who began before the first of the open calls ended may come next; the search takes the last pushed, so
        // those whose end is near are pushed last.
        let next = (done.first..events.len()).take_while(|at| events[*at].begun <= first_end);
        let mut next: Vec<_> = next.filter(|at| !done.has(*at)).collect();
        next.sort_by_key(|at| std::cmp::Reverse(ends[*at].unwrap_or(Instant::from_nanos(u64::MAX))));
        let is_open_pop = |at: &usize| ends[*at].is_none() && events[*at].operation == Operation::Pop;
        let open_pops = (done.first..events.len()).filter(|at| !done.has(*at)).filter(is_open_pop).count();
        let after = |at: usize| {
            let answer = events[at].ended.as_ref().map(|(_, answer)| answer);
            state.after(&events[at].operation, answer)
        };
        // Whoever only looks, and sees what is there, may as well come now: nothing becomes impossible by it.
        let looks = |at: &&usize| ends[**at].is_some() && after(**at).is_some_and(|next| next == state);
        if let Some(at) = next.iter().find(looks) {
            stack.push((done.with(*at), state));
            continue;
        }
        for at in next {
            let left = Left { at, done: &done, first_end, open_pops };
            let is_in_vain = |next: &State| foresight.rules_out(events[at], (&state, next), &left);
            if let Some(state) = after(at).filter(|next| !is_in_vain(next)) {
                let done = done.with(at);
                if tried.insert((done.bits.clone(), state.digest())) {
                    stack.push((done, state));
                }
            }
        }
    }
    Verdict::Impossible
}

/// Whether a read gives what was plainly over when it began. No value is written twice.
fn is_stale(read: &Event, events: &[&Event]) -> bool {
    let (Operation::Look, Some((_, Answer::Value(seen)))) = (&read.operation, &read.ended) else {
        return false;
    };
    let before = |event: &&&Event| event.ended.as_ref().is_some_and(|(at, _)| *at < read.begun);
    let is_log = events.iter().all(|event| matches!(event.operation, Operation::Append(_) | Operation::Look));
    if is_log {
        let misses = |event: &&Event| match &event.operation {
            Operation::Append(entry) => !seen.windows(entry.len()).any(|part| part == &**entry),
            _ => false,
        };
        return events.iter().filter(before).any(misses);
    }
    let writes = |event: &Event| match (&event.operation, event.ended.as_ref().map(|(_, answer)| answer)) {
        (Operation::Set(value), Some(_)) => Some(Some(value.clone())),
        (Operation::CompareSet(_, desired), Some(Answer::Value(now))) if now == desired => {
            Some(Some(desired.clone()))
        }
        (Operation::Delete, Some(Answer::Truth(true))) => Some(None),
        _ => None,
    };
    let wrote = events.iter().find(|event| writes(event) == Some(Some(seen.clone())));
    let Some((written, _)) = wrote.and_then(|event| event.ended.as_ref()) else { return false };
    events.iter().filter(before).any(|event| event.begun > *written && writes(event).is_some())
}

/// Which calls were put in order already.
#[derive(Clone, Debug)]
pub(super) struct Done {
    bits: Vec<u64>,
    /// All before it are done.
    first: usize,
}

impl Done {
    fn new(count: usize) -> Self {
        Self { bits: vec![0; count.div_ceil(64)], first: 0 }
    }

    pub(super) fn has(&self, at: usize) -> bool {
        self.bits[at / 64] >> (at % 64) & 1 == 1
    }

    fn with(&self, at: usize) -> Self {
        let mut next = self.clone();
        next.bits[at / 64] |= 1 << (at % 64);
        while next.first < 64 * next.bits.len() && next.has(next.first) {
            next.first += 1;
        }
        next
    }
}

impl State {
    /// Two states with one digest are taken for one: 64 bits among thousands.
    fn digest(&self) -> u64 {
        let mut hasher = XxHash3_64::with_seed(0);
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// The state after a call that was answered so; none if a single copy would not have.
    fn after(&self, operation: &Operation, answer: Option<&Answer>) -> Option<Self> {
        let mut next = self.clone();
        let expected = match operation {
            Operation::Set(value) => {
                next.value = Some(value.to_vec());
                Answer::Done
            }
            Operation::Look => match &self.value {
                Some(value) => Answer::Value(value.as_slice().into()),
                None => Answer::Nothing,
            },
            Operation::Get => Answer::Value(self.value.as_deref()?.into()),
            Operation::Check => Answer::Truth(self.value.is_some()),
            Operation::Await => return self.value.is_some().then_some(next),
            Operation::Add(amount) => {
                let text =
                    self.value.as_ref().map_or("0", |value| std::str::from_utf8(value).expect("a number"));
                let sum = text.parse::<i64>().expect("a number") + amount;
                next.value = Some(sum.to_string().into_bytes());
                Answer::Number(sum)
            }
            Operation::CompareSet(expected, desired) => {
                let matches = self.value.as_deref().unwrap_or_default() == &**expected;
                if matches {
                    next.value = Some(desired.to_vec());
                    Answer::Value(desired.clone())
                } else {
                    Answer::Value(self.value.as_deref().map_or_else(|| expected.clone(), Into::into))
                }
            }
            Operation::Append(more) => {
                next.value.get_or_insert_default().extend_from_slice(more);
                Answer::Done
            }
            Operation::Delete => Answer::Truth(next.value.take().is_some()),
            Operation::Push(value) => {
                next.queue.push_back(value.to_vec());
                Answer::Done
            }
            Operation::Pop => match next.queue.pop_front() {
                Some(value) => Answer::Value(value.into()),
                None => Answer::Nothing,
            },
            Operation::Length => Answer::Number(self.queue.len() as i64),
        };
        answer.is_none_or(|answer| *answer == expected).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(operation: Operation, begun: u64, ended: u64, answer: Answer) -> Event {
        let at = Instant::from_nanos;
        Event { operation, begun: at(begun), ended: Some((at(ended), answer)) }
    }

    fn set(text: &str, begun: u64, ended: u64) -> Event {
        event(Operation::Set(text.as_bytes().into()), begun, ended, Answer::Done)
    }

    fn look(text: &str, begun: u64, ended: u64) -> Event {
        event(Operation::Look, begun, ended, Answer::Value(text.as_bytes().into()))
    }

    #[test]
    fn a_read_sees_the_last_write_that_ended() {
        assert_eq!(check(&[set("a", 0, 1), set("b", 2, 3), look("b", 4, 5)]), Verdict::Linearizable);
        assert_eq!(check(&[set("a", 0, 1), set("b", 2, 3), look("a", 4, 5)]), Verdict::Impossible);
        assert_eq!(check(&[set("a", 0, 1), set("b", 2, 6), look("a", 4, 5)]), Verdict::Linearizable);
    }

    #[test]
    fn a_log_has_every_entry_that_was_acknowledged() {
        let append = |text: &str, begun, ended| {
            event(Operation::Append(text.as_bytes().into()), begun, ended, Answer::Done)
        };
        assert_eq!(
            check(&[append("v1", 0, 1), append("v2", 2, 3), look("v1v2", 4, 5)]),
            Verdict::Linearizable
        );
        assert_eq!(check(&[append("v1", 0, 1), append("v2", 2, 3), look("v1", 4, 5)]), Verdict::Impossible);
    }

    #[test]
    fn time_does_not_run_backwards_between_two_reads() {
        let events = [set("a", 0, 1), set("b", 2, 9), look("b", 3, 4), look("a", 5, 6)];
        assert_eq!(check(&events), Verdict::Impossible);
    }

    #[test]
    fn what_nobody_answered_may_have_happened_once_or_never() {
        let lost = Event { operation: Operation::Add(1), begun: Instant::from_nanos(0), ended: None };
        let add = |begun, ended, sum| event(Operation::Add(1), begun, ended, Answer::Number(sum));
        assert_eq!(check(&[lost.clone(), add(1, 2, 1)]), Verdict::Linearizable);
        assert_eq!(check(&[lost.clone(), add(1, 2, 2)]), Verdict::Linearizable);
        assert_eq!(check(&[lost, add(1, 2, 3)]), Verdict::Impossible);
    }

    #[test]
    fn elements_leave_in_the_order_in_which_they_came() {
        let push = |text: &str, begun, ended| {
            event(Operation::Push(text.as_bytes().into()), begun, ended, Answer::Done)
        };
        let pop = |text: &str, begun, ended| {
            event(Operation::Pop, begun, ended, Answer::Value(text.as_bytes().into()))
        };
        let lost = |begun| Event { ended: None, ..pop("", begun, begun) };
        // Side by side in either order, one after the other in one.
        for (a, b) in [("a", "b"), ("b", "a")] {
            let events = [push("a", 0, 5), push("b", 1, 4), pop(a, 6, 7), pop(b, 8, 9)];
            assert_eq!(check(&events), Verdict::Linearizable);
        }
        let events = [push("a", 0, 1), push("b", 2, 3), pop("b", 4, 5)];
        assert_eq!(check(&events), Verdict::Impossible);
        // Somebody may have taken the first, without an answer.
        assert_eq!(
            check(&[push("a", 0, 1), push("b", 2, 3), lost(2), pop("b", 4, 5)]),
            Verdict::Linearizable
        );
        // Or it never came in.
        let unsaid = Event { ended: None, ..push("a", 0, 1) };
        assert_eq!(check(&[unsaid.clone(), push("b", 2, 3), pop("b", 4, 5)]), Verdict::Linearizable);
        // But somebody was told that it was there.
        let length = |number, at| event(Operation::Length, at, at + 1, Answer::Number(number));
        let two = [unsaid.clone(), push("b", 2, 3), length(2, 4), pop("b", 6, 7)];
        assert_eq!(check(&two), Verdict::Linearizable);
        assert_eq!(check(&[unsaid, push("b", 2, 3), length(3, 4)]), Verdict::Impossible);
    }

    #[test]
    fn an_element_is_popped_once() {
        let push = event(Operation::Push(b"a".as_slice().into()), 0, 1, Answer::Done);
        let pop = |begun| event(Operation::Pop, begun, begun + 1, Answer::Value(b"a".as_slice().into()));
        assert_eq!(check(&[push.clone(), pop(2)]), Verdict::Linearizable);
        assert_eq!(check(&[push, pop(2), pop(4)]), Verdict::Impossible);
    }
}
