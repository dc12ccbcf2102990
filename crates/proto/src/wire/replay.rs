//! Has this datagram been here before?
//!
//! A sealed datagram stays authentic for ever, so whoever copied one can send it again. Each sender numbers
//! what it seals; a receiver that remembers every number would grow without bound, one that only takes
//! growing numbers would drop whatever the network swapped. The usual answer (RFC 6479, RFC 4303 §3.4.3) is
//! a window: a bit for each of the last [`WINDOW_PACKETS`] numbers below the highest one seen, and everything
//! older counts as seen.
//!
//! The invariant: [`ReplayWindow::mark`] returns `Fresh` at most once for any number.
//!
//! The window says nothing about *when* a fresh number was sent; [`super::lateness`] does. It must be marked
//! only after the datagram proved authentic, otherwise a stranger could push the window ahead of the sender.

/// Numbers that the window remembers one by one. A sender numbers its datagrams to all members together, so
/// this is its traffic of several seconds, which no network reorders by.
pub const WINDOW_PACKETS: u64 = 1_024;

const WORDS: usize = (WINDOW_PACKETS / 64) as usize;

/// The window over one sender's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayWindow {
    highest: u64,
    /// Bit `n % WINDOW_PACKETS` belongs to number `n`, for the numbers `highest - WINDOW_PACKETS + 1 ..= highest`.
    seen: [u64; WORDS],
}

/// What the window knows about a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Never seen.
    Fresh,
    /// Seen: a copy.
    Seen,
    /// Older than the window; counts as seen.
    TooOld,
}

impl ReplayWindow {
    /// A window that counts `number` and everything below it as seen.
    pub fn after(number: u64) -> Self {
        Self { highest: number, seen: [u64::MAX; WORDS] }
    }

    /// What the window knows about `number`; changes nothing.
    pub fn look(&self, number: u64) -> Freshness {
        if number > self.highest {
            Freshness::Fresh
        } else if self.highest - number >= WINDOW_PACKETS {
            Freshness::TooOld
        } else if self.bit(number) {
            Freshness::Seen
        } else {
            Freshness::Fresh
        }
    }

    /// Like [`ReplayWindow::look`], and from now on `number` is seen.
    #[must_use]
    pub fn mark(&mut self, number: u64) -> Freshness {
        let freshness = self.look(number);
        if freshness == Freshness::Fresh {
            if number > self.highest {
                self.advance(number);
            }
            let (word, mask) = place(number);
            self.seen[word] |= mask;
        }
        freshness
    }

    /// The highest number seen.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    fn advance(&mut self, to: u64) {
        let skipped = (to - self.highest).min(WINDOW_PACKETS);
        for step in 0..skipped {
            // The last `skipped` numbers up to `to` take over the bits of numbers that leave the window.
            let (word, mask) = place(to - step);
            self.seen[word] &= !mask;
        }
        self.highest = to;
    }

    fn bit(&self, number: u64) -> bool {
        let (word, mask) = place(number);
        self.seen[word] & mask != 0
    }
}

fn place(number: u64) -> (usize, u64) {
    let bit = number % WINDOW_PACKETS;
    ((bit / 64) as usize, 1 << (bit % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_number_is_fresh_once() {
        let mut window = ReplayWindow::after(0);
        assert_eq!(window.mark(0), Freshness::Seen);
        assert_eq!(window.mark(1), Freshness::Fresh);
        assert_eq!(window.mark(1), Freshness::Seen);
    }

    #[test]
    fn swapped_numbers_are_fresh_within_the_window_and_old_outside() {
        let mut window = ReplayWindow::after(0);
        assert_eq!(window.mark(WINDOW_PACKETS + 5), Freshness::Fresh);
        assert_eq!(window.mark(5), Freshness::TooOld);
        assert_eq!(window.mark(6), Freshness::Fresh);
        assert_eq!(window.mark(6), Freshness::Seen);
    }

    #[test]
    fn a_window_that_starts_late_takes_nothing_from_before() {
        let mut window = ReplayWindow::after(5_000);
        assert!((0..=5_000).all(|number| window.mark(number) != Freshness::Fresh));
        assert_eq!(window.mark(5_001), Freshness::Fresh);
    }

    #[test]
    fn the_far_end_of_the_numbers_does_not_overflow() {
        let mut window = ReplayWindow::after(0);
        assert_eq!(window.mark(u64::MAX), Freshness::Fresh);
        assert_eq!(window.mark(u64::MAX), Freshness::Seen);
        assert_eq!(window.mark(u64::MAX - 1), Freshness::Fresh);
        assert_eq!(window.mark(1), Freshness::TooOld);
    }

    proptest! {
        /// Against the plainest model: the set of all numbers ever marked, and the highest of them.
        #[test]
        fn agrees_with_a_set(numbers in prop::collection::vec((0u64..4_000, prop::bool::ANY), 1..600)) {
            let (mut window, mut model, mut highest) = (ReplayWindow::after(0), BTreeSet::from([0]), 0);
            for (number, nearby) in numbers {
                // Half of the numbers lie near the highest, where the bits are.
                let number = if nearby { (highest + 20u64).saturating_sub(number % 1_100) } else { number };
                let expected = if number <= highest && highest - number >= WINDOW_PACKETS {
                    Freshness::TooOld
                } else if model.contains(&number) {
                    Freshness::Seen
                } else {
                    Freshness::Fresh
                };
                prop_assert_eq!(window.look(number), expected);
                prop_assert_eq!(window.mark(number), expected);
                if expected == Freshness::Fresh {
                    model.insert(number);
                    highest = highest.max(number);
                }
            }
        }
    }
}
