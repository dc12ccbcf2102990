//! How a driver stays awake for a moment before it sleeps.
//!
//! To wake a thread that sleeps costs more than anything else in a small call: whoever sends pays for it, and what was
//! sent waits meanwhile. An answer that is on its way mostly comes within microseconds. So a driver that has nothing
//! to do looks again a few times before it sleeps, and in between it offers its processor to whoever could run there:
//! that may be the very process that it waits for. A long wait costs this moment once, and then nothing.

use std::time::{Duration, Instant};

/// How long that moment is. With more processes than processors a longer one takes time from those who have work.
const MOMENT: Duration = Duration::from_micros(25);

/// Looks until there is something, for a moment. False if there was nothing.
pub(crate) fn finds(mut look: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + MOMENT;
    loop {
        if look() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_already_is_found_at_the_first_look() {
        let mut looks = 0;
        let found = finds(|| {
            looks += 1;
            true
        });
        assert!(found);
        assert_eq!(looks, 1);
    }

    #[test]
    fn a_wait_for_what_does_not_come_goes_on_to_sleep() {
        assert!(!finds(|| false));
    }
}
