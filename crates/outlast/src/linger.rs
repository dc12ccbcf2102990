//! How a driver stays awake for a moment before it sleeps.
//!
//! To wake a thread that sleeps costs more than anything else in a small call: whoever sends pays for it, and what was
//! sent waits meanwhile. An answer that is on its way mostly comes within microseconds. So a driver that has nothing
//! to do looks again a few times before it sleeps. Between two looks it offers its processor to whoever could run there:
//! that may be the very process that it waits for. A long wait costs this moment once, and then nothing.
//!
//! How often it makes that offer is a matter of what it waits for, because kernels take a yield for the rest of a time
//! slice (Linux since 6.18): whoever yields a hundred times has no turn for milliseconds when others want the processor,
//! too.

use std::time::{Duration, Instant};

/// How long to look, and how often to offer the processor to others meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    length: Duration,
    offers: u32,
}

/// For a driver of collectives. Tensors come in many pieces and others have as many to move: it is short, and whoever has
/// work goes first.
pub(crate) const BETWEEN_PIECES: Moment = Moment { length: Duration::from_micros(25), offers: u32::MAX };
/// For a driver of the store: it waits for one small answer, which has up to three members to pass.
pub(crate) const BEFORE_AN_ANSWER: Moment = Moment { length: Duration::from_micros(100), offers: 4 };
/// Hints to the processor between two looks when there are no more offers, about a microsecond.
const HINTS: u32 = 50;

/// Looks until there is something, for that moment. False if there was nothing.
pub(crate) fn finds(moment: Moment, mut look: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + moment.length;
    let mut offers = moment.offers;
    loop {
        if look() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        if offers > 0 {
            offers -= 1;
            std::thread::yield_now();
        } else {
            (0..HINTS).for_each(|_| std::hint::spin_loop());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_already_is_found_at_the_first_look() {
        let mut looks = 0;
        let found = finds(BETWEEN_PIECES, || {
            looks += 1;
            true
        });
        assert!(found);
        assert_eq!(looks, 1);
    }

    #[test]
    fn what_comes_after_the_last_offer_is_found_too() {
        let mut looks = 0;
        let patient = Moment { length: Duration::from_mins(1), offers: 4 };
        let found = finds(patient, || {
            looks += 1;
            looks > patient.offers + 2
        });
        assert!(found);
    }

    #[test]
    fn a_wait_for_what_does_not_come_goes_on_to_sleep() {
        assert!(!finds(BEFORE_AN_ANSWER, || false));
    }
}
