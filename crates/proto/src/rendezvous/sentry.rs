//! Whose lease has run out, where nobody keeps a clock for all: users of a register stand sentry for each other.
//!
//! A store lets no key run out. So each holder of a lease writes a *beat* into a key of its own, again and again, and the
//! two that come before it in the order of names look at it. A beat that has not changed for as long as the lease was to
//! last is the end of that lease: whoever saw it takes the name out of the register, for all.
//!
//! Only time in which the beat could have changed counts. A look that took long, because the store was busy with the death
//! of a member, and a sentry that was itself stopped for an hour, must not put anybody out. So a pause between two looks
//! counts from the end of the one to the beginning of the next, and for no more than twice the time that looks are apart.
//!
//! The invariant: nobody is taken out within its lease, on the sentry's own clock. Clocks of two hosts are never compared.
//!
//! What it does not do: where all sentries of a holder die with it, nobody looks until the circle has closed over them,
//! one lease later. Whoever holds no lease looks at the first two.

use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// How many others each one looks at.
const WATCHED: usize = 2;
/// Looks within one lease.
const LOOKS: u32 = 8;
/// The shortest and the longest time between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The lease of whoever wrote no beat that can be read, and the longest that is believed.
const LEASES: (Duration, Duration) = (Duration::from_secs(15), Duration::from_hours(24));

/// Looks at beats. See the module's essay.
#[derive(Clone, Debug, Default)]
pub struct Sentry {
    seen: BTreeMap<String, Seen>,
    /// When the last look ended.
    looked: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Seen {
    beat: Vec<u8>,
    lease: Duration,
    /// For how long it did not change.
    silent: Duration,
}

/// What a holder writes for others to see.
pub fn beat(lease: Duration, number: u64) -> Vec<u8> {
    format!("{} {number}", lease.as_millis()).into_bytes()
}

fn lease_of(beat: &[u8]) -> Duration {
    let text = std::str::from_utf8(beat).ok();
    let millis = text.and_then(|text| text.split_once(' ')).and_then(|(millis, _)| millis.parse().ok());
    millis.map_or(LEASES.0, Duration::from_millis).min(LEASES.1)
}

impl Sentry {
    /// Whom to look at: the next ones in the circle of names, behind one's own.
    pub fn watched<'a>(alive: &'a BTreeSet<String>, me: &str) -> Vec<&'a str> {
        let behind = alive.iter().filter(|name| name.as_str() > me);
        let before = alive.iter().filter(|name| name.as_str() < me);
        behind.chain(before).take(WATCHED).map(String::as_str).collect()
    }

    /// A look that began and ended then, and the beats that it found. Whose leases have run out.
    pub fn handle_look(
        &mut self,
        began: Instant,
        ended: Instant,
        beats: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> Vec<String> {
        let pause = self.looked.map_or(Duration::ZERO, |looked| began.since(looked));
        let counted = pause.min(self.interval() * 2);
        let mut before = std::mem::take(&mut self.seen);
        self.looked = Some(ended);
        let mut over = Vec::new();
        for (name, beat) in beats {
            let seen = match before.remove(&name).filter(|seen| seen.beat == beat) {
                Some(seen) => Seen { silent: seen.silent + counted, ..seen },
                None => Seen { lease: lease_of(&beat), beat, silent: Duration::ZERO },
            };
            if seen.silent >= seen.lease {
                over.push(name);
            } else {
                self.seen.insert(name, seen);
            }
        }
        over
    }

    /// How long to wait between two looks.
    pub fn interval(&self) -> Duration {
        let shortest = self.seen.values().map(|seen| seen.lease).min();
        shortest.map_or(PAUSES.1, |lease| (lease / LOOKS).clamp(PAUSES.0, PAUSES.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(800);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn look(sentry: &mut Sentry, began: u64, ended: u64, number: u64) -> Vec<String> {
        sentry.handle_look(at(began), at(ended), [("b".to_owned(), beat(LEASE, number))])
    }

    #[test]
    fn a_beat_that_does_not_change_for_a_lease_is_its_end() {
        let mut sentry = Sentry::default();
        assert_eq!(look(&mut sentry, 0, 0, 1), [""; 0]);
        assert_eq!(sentry.interval(), LEASE / 8);
        for tenth in 1..8 {
            assert_eq!(look(&mut sentry, tenth * 100, tenth * 100, 1), [""; 0], "{tenth}");
        }
        assert_eq!(look(&mut sentry, 800, 800, 1), ["b"]);
    }

    #[test]
    fn whoever_beats_is_never_taken_out() {
        let mut sentry = Sentry::default();
        for tenth in 0..100 {
            assert_eq!(look(&mut sentry, tenth * 100, tenth * 100, tenth / 7), [""; 0], "{tenth}");
        }
    }

    #[test]
    fn neither_a_slow_look_nor_a_stopped_sentry_counts_as_silence() {
        let mut sentry = Sentry::default();
        look(&mut sentry, 0, 0, 1);
        assert_eq!(
            look(&mut sentry, 100, 5_000, 1),
            [""; 0],
            "a look that takes five seconds is no silence of b"
        );
        assert_eq!(look(&mut sentry, 3_600_000, 3_600_000, 1), [""; 0], "an hour's stop is ours, not b's");
        let mut now = 3_600_000;
        while look(&mut sentry, now, now, 1).is_empty() {
            now += 100;
            assert!(now < 3_601_000, "in the end silence is silence");
        }
    }

    #[test]
    fn everybody_is_watched_by_the_two_before_it() {
        let alive: BTreeSet<String> = ["a", "b", "c", "d"].map(str::to_owned).into();
        assert_eq!(Sentry::watched(&alive, "b"), ["c", "d"]);
        assert_eq!(Sentry::watched(&alive, "c"), ["d", "a"], "it is a circle");
        assert_eq!(Sentry::watched(&alive, ""), ["a", "b"], "who holds nothing looks at the first");
        let two: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
        assert_eq!(Sentry::watched(&two, "a"), ["b"], "and never at itself");
    }

    #[test]
    fn a_beat_that_cannot_be_read_has_the_usual_lease() {
        assert_eq!(lease_of(b""), LEASES.0);
        assert_eq!(lease_of(b"x y"), LEASES.0);
        assert_eq!(lease_of(format!("{} 1", u64::MAX).as_bytes()), LEASES.1);
    }
}
