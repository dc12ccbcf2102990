//! How a driver stays awake for a moment before it sleeps.
//!
//! To wake a thread that sleeps costs more than anything else in a small call: whoever sends pays for it, and what was
//! sent waits meanwhile. An answer that is on its way mostly comes within microseconds. So a driver that has nothing
//! to do looks again a few times before it sleeps. At first it offers its processor to whoever could run there between
//! two looks: that may be the very process that it waits for. It does so a few times only, because kernels take a
//! yield for the rest of a time slice (Linux since 6.18): whoever yields a hundred times has no turn for milliseconds when
//! others want the processor too. A long wait costs this moment once, and then nothing.

use std::time::{Duration, Instant};

/// The moment of a driver of collectives. Large tensors come in many pieces, so it is short: a longer one takes time from
/// whoever has work, and of a slow link it would make a busy processor.
pub(crate) const BETWEEN_PIECES: Duration = Duration::from_micros(25);
/// The moment of a driver of the store: it waits for one small answer, which has up to three members to pass.
pub(crate) const BEFORE_AN_ANSWER: Duration = Duration::from_micros(100);
/// How often the processor is offered to others.
const OFFERS: u32 = 4;
/// Hints to the processor between two looks after that, about a microsecond.
const HINTS: u32 = 50;

/// Looks until there is something, for that moment. False if there was nothing.
pub(crate) fn finds(moment: Duration, mut look: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + moment;
    let mut offers = 0;
    loop {
        if look() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        if offers < OFFERS {
            offers += 1;
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
        let found = finds(Duration::from_mins(1), || {
            looks += 1;
            looks > OFFERS + 2
        });
        assert!(found);
    }

    #[test]
    fn a_wait_for_what_does_not_come_goes_on_to_sleep() {
        assert!(!finds(BEFORE_AN_ANSWER, || false));
    }
}
