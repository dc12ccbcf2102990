//! The search: every state that a model can be in, the near ones first.
//!
//! Breadth first, so that the first failure found is one with the fewest events. What was seen is kept as a hash of
//! 64 bits, what is to be visited as a state; how a state was reached is kept as its parent and one event, sixteen
//! bytes. With N states the odds that a hash hides one of them are about N² / 2^65: one in a hundred thousand for ten
//! million states.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

/// What is explored. A model is deterministic: a state and an event have one outcome.
pub trait Model {
    /// All that the future depends on.
    type State: Clone;
    /// One thing that happens.
    type Event: Copy + fmt::Display;

    /// Where everything begins.
    fn initial(&self) -> Self::State;

    /// All that may happen next, in a fixed order. A state without any is final.
    fn events(&self, state: &Self::State) -> Vec<Self::Event>;

    /// Lets it happen. An error is something that must never happen.
    fn happen(&self, state: &mut Self::State, event: Self::Event) -> Result<(), Violation>;

    /// What must be true of a state; asked once of every state that is found.
    fn judge(&self, state: &Self::State) -> Result<(), Violation>;

    /// Equal for equal states, different for different ones but by accident.
    fn fingerprint(&self, state: &Self::State) -> u64;

    /// What that event means in that state, for people.
    fn describe(&self, _state: &Self::State, event: Self::Event) -> String {
        event.to_string()
    }
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who says so.
    pub checker: &'static str,
    /// What is wrong.
    pub text: String,
}

impl Violation {
    /// A violation.
    pub fn new(checker: &'static str, text: impl Into<String>) -> Self {
        Self { checker, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.text)
    }
}

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Events from the beginning.
    pub depth: usize,
    /// Distinct states.
    pub states: usize,
}

/// A failure, and how to get there.
#[derive(Clone, Debug)]
pub struct Failure<E> {
    /// What is wrong.
    pub violation: Violation,
    /// The events that lead to it, none of which can be left out at the end.
    pub schedule: Vec<E>,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Explored<E> {
    /// Distinct states.
    pub states: usize,
    /// Events that were tried; most lead to a state that was seen before.
    pub transitions: usize,
    /// The most events from the beginning.
    pub depth: usize,
    /// States without anything that may happen next.
    pub finals: usize,
    /// Whether every state within the model's own bounds was seen.
    pub whole: bool,
    /// The first failure.
    pub failure: Option<Failure<E>>,
}

/// Hashes are keys already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are kept");
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Visits every state of a model, the near ones first, until one fails or a limit is met. `layer` is told of every
/// depth that is done: the depth, the states so far, and how many are to be visited next.
pub fn explore<M: Model>(
    model: &M,
    limits: Limits,
    mut layer: impl FnMut(usize, usize, usize),
) -> Explored<M::Event> {
    let mut seen: HashSet<u64, BuildHasherDefault<AsItIs>> = HashSet::default();
    // How each state was reached: from which, and by what. The first was not reached.
    let mut origins: Vec<(u32, Option<M::Event>)> = vec![(0, None)];
    let mut explored =
        Explored { states: 1, transitions: 0, depth: 0, finals: 0, whole: false, failure: None };
    let first = model.initial();
    seen.insert(model.fingerprint(&first));
    if let Err(violation) = model.judge(&first) {
        explored.failure = Some(Failure { violation, schedule: Vec::new() });
        return explored;
    }
    let mut near = vec![(0u32, first)];
    while !near.is_empty() && explored.depth < limits.depth {
        let mut next = Vec::new();
        for (origin, state) in near.drain(..) {
            let events = model.events(&state);
            explored.finals += usize::from(events.is_empty());
            for event in events {
                explored.transitions += 1;
                let mut after = state.clone();
                let mut verdict = guarded(|| model.happen(&mut after, event));
                if verdict.is_ok() {
                    if !seen.insert(model.fingerprint(&after)) {
                        continue;
                    }
                    explored.states += 1;
                    verdict = guarded(|| model.judge(&after));
                }
                origins.push((origin, Some(event)));
                let here = origins.len() as u32 - 1;
                if let Err(violation) = verdict {
                    explored.depth += 1;
                    explored.failure = Some(Failure { violation, schedule: way_to(&origins, here) });
                    return explored;
                }
                if explored.states >= limits.states {
                    explored.depth += 1;
                    return explored;
                }
                next.push((here, after));
            }
        }
        near = next;
        if !near.is_empty() {
            explored.depth += 1;
        }
        layer(explored.depth, explored.states, near.len());
    }
    explored.whole = near.is_empty();
    explored
}

fn way_to<E: Copy>(origins: &[(u32, Option<E>)], mut at: u32) -> Vec<E> {
    let mut way = Vec::new();
    while let (origin, Some(event)) = origins[at as usize] {
        way.push(event);
        at = origin;
    }
    way.reverse();
    way
}

/// A machine that panics has failed; the search says with which schedule.
pub(super) fn guarded(act: impl FnOnce() -> Result<(), Violation>) -> Result<(), Violation> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation::new("panic", text.unwrap_or_else(|| "a machine panicked".to_owned())))
    })
}

/// What became of a schedule that was played again.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// One line per event.
    pub story: Vec<String>,
    /// What it led to, if to a failure.
    pub violation: Option<Violation>,
}

/// Plays a schedule again. An error names the first event that cannot happen.
pub fn replay<M: Model>(model: &M, schedule: &[M::Event]) -> Result<Replayed, String>
where
    M::Event: PartialEq,
{
    let mut state = model.initial();
    let mut story = Vec::new();
    for (at, event) in schedule.iter().enumerate() {
        if !model.events(&state).contains(event) {
            return Err(format!(
                "event {} of the schedule, {event}, cannot happen there; what led to it:\n{}",
                at + 1,
                story.join("\n")
            ));
        }
        story.push(format!("{:3}. {}", at + 1, model.describe(&state, *event)));
        let verdict = guarded(|| {
            model.happen(&mut state, *event)?;
            model.judge(&state)
        });
        if let Err(violation) = verdict {
            return Ok(Replayed { story, violation: Some(violation) });
        }
    }
    Ok(Replayed { story, violation: None })
}

/// Reads a schedule as it is printed: events between commas or at the ends of lines.
pub fn parse_schedule<E: FromStr>(text: &str) -> Result<Vec<E>, E::Err> {
    text.split([',', '\n']).map(str::trim).filter(|event| !event.is_empty()).map(str::parse).collect()
}

/// Writes a schedule so that it can be read again.
pub fn write_schedule<E: fmt::Display>(events: &[E]) -> String {
    events.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two counters that may be raised in any order, up to three each; (2, 3) is forbidden.
    struct Grid {
        forbidden: Option<(u8, u8)>,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Raise(usize);

    impl fmt::Display for Raise {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "raise {}", self.0)
        }
    }

    impl Model for Grid {
        type State = [u8; 2];
        type Event = Raise;
        fn initial(&self) -> [u8; 2] {
            [0; 2]
        }
        fn events(&self, state: &[u8; 2]) -> Vec<Raise> {
            (0..2).filter(|at| state[*at] < 3).map(Raise).collect()
        }
        fn happen(&self, state: &mut [u8; 2], Raise(at): Raise) -> Result<(), Violation> {
            state[at] += 1;
            Ok(())
        }
        fn judge(&self, state: &[u8; 2]) -> Result<(), Violation> {
            assert_ne!(*state, [3, 0], "out of the grid");
            match self.forbidden {
                Some((a, b)) if [a, b] == *state => Err(Violation::new("grid", "forbidden")),
                _ => Ok(()),
            }
        }
        fn fingerprint(&self, state: &[u8; 2]) -> u64 {
            u64::from(state[0]) << 8 | u64::from(state[1])
        }
    }

    const LIMITS: Limits = Limits { depth: 100, states: 1_000 };

    #[test]
    fn every_state_is_seen_once_and_a_panic_is_a_failure_with_its_schedule() {
        let explored = explore(&Grid { forbidden: None }, LIMITS, |_, _, _| ());
        let failure = explored.failure.expect("it panics at (3, 0)");
        assert_eq!(failure.violation.checker, "panic");
        assert_eq!(failure.schedule, [Raise(0); 3]);
    }

    #[test]
    fn the_shortest_way_to_a_failure_is_found_and_replays() {
        let grid = Grid { forbidden: Some((1, 1)) };
        let failure = explore(&grid, LIMITS, |_, _, _| ()).failure.expect("it is reachable");
        assert_eq!(failure.schedule.len(), 2);
        let replayed = replay(&grid, &failure.schedule).expect("it can happen again");
        assert_eq!(replayed.violation, Some(failure.violation));
        assert!(replay(&grid, &[Raise(7)]).is_err(), "what cannot happen is said");
    }

    #[test]
    fn limits_are_kept_and_said() {
        let shallow = explore(&Grid { forbidden: None }, Limits { depth: 2, states: 1_000 }, |_, _, _| ());
        assert_eq!((shallow.states, shallow.depth, shallow.whole), (6, 2, false));
        let few = explore(&Grid { forbidden: None }, Limits { depth: 100, states: 4 }, |_, _, _| ());
        assert_eq!((few.states, few.whole), (4, false));
    }
}
