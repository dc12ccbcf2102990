//! Is this call slower than its like usually are?
//!
//! # The problem
//!
//! A step that takes ten times as long as the one before succeeds, and nobody is told why. The program cannot know what is
//! usual; a fixed limit would be wrong for everybody.
//!
//! # The intuition
//!
//! A training loop makes the same calls again and again. What is usual for one is the median of its last few, counted for
//! each kind, tag and size. A call is slow if it took several times as long, and long enough that a person would care. The
//! median forgives single slow ones; if a call stays slow, that becomes usual and is told no more.
//!
//! # The invariant
//!
//! Bounded: so many kinds of calls, so many times for each; and it tells at most once in a while. A call that is fast
//! costs a look into a small map.
//!
//! # What it does not do
//!
//! It does not say why: that is for [`blame`](crate::blame). Calls that failed are not its business.

use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Times that are kept for each call.
const TIMES_MAX: usize = 16;
/// Times after which something is usual.
const TIMES_MIN: usize = 8;
/// Kinds of calls that are told apart; beyond it the one that was made longest ago is forgotten.
const PLACES_MAX: usize = 64;
/// How many times the usual is slow.
const FACTOR: u32 = 3;
/// A person would not care about less.
const LOST_MIN: Duration = Duration::from_millis(200);
/// After it has told of one, it is quiet for so long: a slow network makes every step slow.
const QUIET: Duration = Duration::from_secs(5);

/// Calls that should take equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Like {
    /// What is called.
    pub kind: &'static str,
    /// Under which tag.
    pub tag: u64,
    /// How many elements it is about.
    pub elements: u64,
}

/// See the module's essay.
#[derive(Debug, Default)]
pub struct Pace {
    places: BTreeMap<Like, (Instant, VecDeque<Duration>)>,
    quiet_until: Option<Instant>,
}

impl Pace {
    /// A call ended well. Says what is usual for its like, if it was slow and is worth telling.
    pub fn note(&mut self, now: Instant, like: Like, took: Duration) -> Option<Duration> {
        if self.places.len() >= PLACES_MAX && !self.places.contains_key(&like) {
            let oldest = self.places.iter().min_by_key(|(_, (at, _))| *at).map(|(like, _)| *like);
            oldest.and_then(|like| self.places.remove(&like));
        }
        let (at, times) = self.places.entry(like).or_insert_with(|| (now, VecDeque::new()));
        *at = now;
        // Sorting is for the few that may be slow.
        let usual = (took >= LOST_MIN && times.len() >= TIMES_MIN).then(|| median(times));
        if times.len() >= TIMES_MAX {
            times.pop_front();
        }
        times.push_back(took);
        let usual =
            usual.filter(|usual| took >= *usual * FACTOR && took.saturating_sub(*usual) >= LOST_MIN)?;
        if self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        self.quiet_until = Some(now + QUIET);
        Some(usual)
    }
}

fn median(times: &VecDeque<Duration>) -> Duration {
    let mut sorted: Vec<_> = times.iter().copied().collect();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIKE: Like = Like { kind: "all_reduce", tag: 0, elements: 4_096 };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A pace that has seen so many calls of ten milliseconds.
    fn after(count: usize) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..count {
            assert_eq!(pace.note(Instant::ORIGIN, LIKE, ms(10)), None);
        }
        pace
    }

    #[test]
    fn a_call_is_slow_by_its_own_usual_and_only_if_a_person_would_care() {
        let slow = |took| after(TIMES_MIN).note(Instant::ORIGIN, LIKE, took);
        assert_eq!(slow(ms(209)), None, "199 ms more than usual");
        assert_eq!(slow(ms(210)), Some(ms(10)));
        let other = Like { tag: 7, ..LIKE };
        assert_eq!(after(TIMES_MIN).note(Instant::ORIGIN, other, ms(900)), None, "nothing is usual there");
        assert_eq!(after(TIMES_MIN - 1).note(Instant::ORIGIN, LIKE, ms(900)), None, "nor here yet");
        let mut pace = Pace::default();
        for _ in 0..TIMES_MIN {
            pace.note(Instant::ORIGIN, LIKE, ms(400));
        }
        assert_eq!(pace.note(Instant::ORIGIN, LIKE, ms(1_199)), None, "less than three times the usual");
        assert_eq!(pace.note(Instant::ORIGIN, LIKE, ms(1_200)), Some(ms(400)));
    }

    #[test]
    fn what_stays_slow_becomes_usual_and_what_is_told_is_not_repeated_at_once() {
        let mut pace = after(TIMES_MAX);
        assert_eq!(pace.note(Instant::ORIGIN, LIKE, ms(500)), Some(ms(10)));
        assert_eq!(pace.note(Instant::ORIGIN + ms(4_999), LIKE, ms(500)), None);
        assert_eq!(pace.note(Instant::ORIGIN + ms(5_000), LIKE, ms(500)), Some(ms(10)));
        for _ in 0..TIMES_MAX {
            pace.note(Instant::ORIGIN + ms(5_000), LIKE, ms(500));
        }
        assert_eq!(pace.note(Instant::ORIGIN + ms(60_000), LIKE, ms(500)), None);
    }

    #[test]
    fn there_are_so_many_kinds_of_calls_and_no_more() {
        let mut pace = after(TIMES_MIN);
        for tag in 1..1_000 {
            pace.note(Instant::ORIGIN + ms(tag), Like { tag, ..LIKE }, ms(10));
        }
        assert_eq!(pace.places.len(), PLACES_MAX);
        assert!(!pace.places.contains_key(&LIKE), "the one that was made longest ago went first");
    }
}
