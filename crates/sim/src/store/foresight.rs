//! What no order of a key's calls can go on from, or need not.
//!
//! Calls without an answer may have happened at any time or never, and calls side by side in any order: far too many orders
//! to try them all. But no value is written twice, and most answers show one. They say in which order values must have come
//! and gone long before the search comes to them. A step is not tried after which some answer cannot come any more:
//!
//! - a push behind an element whose pop begins after this one's has ended;
//! - a push of what is popped with an answer, behind more elements that no answer has than there are pops without one;
//! - a pop without an answer that takes what another one's answer has;
//! - an entry that makes a log other than the longest that somebody saw;
//! - a write over a value that an answer which is still to come shows.
//!
//! Nor is a step of a call without an answer where whatever is true with it is true without: one that changes nothing,
//! or writes over one value another that no answer shows any more; a push of what no answer has, unless somebody was told
//! the length.

use super::history::{Done, Event, State};
use outlast_proto::time::Instant;
use outlast_proto::wire::store::operation::{Answer, Operation};
use std::collections::BTreeMap;

/// What all answers say.
#[derive(Default)]
pub(super) struct Foresight<'a> {
    /// When the pop of each element began and ended.
    popped: BTreeMap<&'a [u8], (Instant, Instant)>,
    /// When the last call ended whose answer shows that value.
    shown: BTreeMap<&'a [u8], Instant>,
    /// Which calls found that value there, by their places among all.
    found: BTreeMap<&'a [u8], Vec<usize>>,
    /// Somebody was told the length of the queue.
    is_measured: bool,
    /// Of a key that is only added to: the longest that it was seen.
    log: Option<&'a [u8]>,
}

/// What is still to come.
pub(super) struct Left<'a> {
    /// The place of the call in question.
    pub(super) at: usize,
    /// Which calls were put in order already.
    pub(super) done: &'a Done,
    /// When the first of the others ended.
    pub(super) first_end: Instant,
    /// How many pops without an answer are among them.
    pub(super) open_pops: usize,
}

impl<'a> Foresight<'a> {
    pub(super) fn new(events: &[&'a Event]) -> Self {
        let mut foresight = Self::default();
        for (at, event) in events.iter().enumerate() {
            let Some((ended, answer)) = &event.ended else {
                // It may have been done, and its own value be shown.
                if let Operation::CompareSet(expected, _) = &event.operation {
                    foresight.show(expected, Instant::from_nanos(u64::MAX));
                }
                continue;
            };
            match (&event.operation, answer) {
                (Operation::Pop, Answer::Value(element)) => {
                    foresight.popped.insert(element, (event.begun, *ended));
                }
                (Operation::Length, _) => foresight.is_measured = true,
                (Operation::CompareSet(expected, desired), Answer::Value(value)) => {
                    foresight.show(expected, *ended);
                    foresight.show(value, *ended);
                    // Of a key that is not there it says what was expected, too.
                    let found = if value == desired { expected } else { value };
                    if found != expected || value == desired {
                        foresight.found.entry(found).or_default().push(at);
                    }
                }
                (_, Answer::Value(value)) => {
                    foresight.show(value, *ended);
                    foresight.found.entry(value).or_default().push(at);
                }
                _ => {}
            }
        }
        let is_log = |event: &&Event| matches!(event.operation, Operation::Append(_) | Operation::Look);
        if events.iter().all(is_log) {
            foresight.log =
                Some(foresight.shown.keys().max_by_key(|seen| seen.len()).copied().unwrap_or_default());
        }
        foresight
    }

    fn show(&mut self, value: &'a [u8], at: Instant) {
        let last = self.shown.entry(value).or_insert(at);
        *last = at.max(*last);
    }

    /// Whether it is in vain to try `event` next, which makes `next` of `state`.
    pub(super) fn rules_out(&self, event: &Event, (state, next): (&State, &State), left: &Left<'_>) -> bool {
        let is_open = event.ended.is_none();
        if is_open && state == next {
            return true;
        }
        if let (Some(value), None) = (&state.value, self.log)
            && state.value != next.value
            && let Some(found) = self.found.get(value.as_slice())
            && found.iter().any(|at| *at != left.at && !left.done.has(*at))
        {
            return true;
        }
        match &event.operation {
            Operation::Push(element) => match self.popped.get(&**element) {
                Some((_, ended)) => {
                    let ahead = || state.queue.iter().map(|other| self.popped.get(other.as_slice()));
                    ahead().flatten().any(|(begun, _)| begun > ended)
                        || ahead().filter(Option::is_none).count() > left.open_pops
                }
                None => is_open && !self.is_measured,
            },
            Operation::Pop if is_open => {
                state.queue.front().is_none_or(|element| self.popped.contains_key(element.as_slice()))
            }
            Operation::Append(_) => match (self.log, &next.value) {
                (Some(log), Some(value)) => !log.starts_with(value) && (is_open || value.len() <= log.len()),
                _ => false,
            },
            Operation::Set(_) | Operation::CompareSet(..) if is_open && state.value.is_some() => {
                let shown = next.value.as_deref().and_then(|value| self.shown.get(value));
                shown.is_none_or(|last| *last < left.first_end)
            }
            _ => false,
        }
    }
}
