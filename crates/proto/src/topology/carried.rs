//! What a collective says about the link that it went over.
//!
//! # The problem
//!
//! Collectives measure links for nothing: the kernel counts the bytes that were acknowledged and the time in which there was
//! anything to be. But a ring runs at the pace of its slowest link. The others get their blocks at that pace, and each block
//! keeps its stream busy for a round trip longer than the link needed for it. Where round trips are long next to that, the
//! stream is never idle, and a fast link looks exactly as slow as the slowest one of the ring.
//!
//! # The intuition
//!
//! Two things tell a link that is slow from one that is waited at. Either the round trips of all blocks together are
//! little next to the time that the stream was busy: then idle time shows, and the figure is right whoever set the pace. Or
//! bytes pile up: what a ring has under way gathers in front of its slowest link, several blocks of it, while in front of
//! any other there is one block at most. Otherwise the link carries *at least* what it did.
//!
//! # The invariant
//!
//! A figure that is not [`Figure::AtLeast`] is the speed of this link, not that of the ring.

use crate::time::Duration;

/// What a call must have sent, and for how long, to say anything about the speed of a link.
const BYTES_MIN: u64 = 1 << 20;
const BUSY_MIN: Duration = Duration::from_millis(20);

/// What the kernel counted on one link during one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// Bytes that were acknowledged.
    pub bytes: u64,
    /// From the call to its last byte.
    pub elapsed: Duration,
    /// How much of that there was anything to send or to be acknowledged.
    pub busy: Duration,
    /// How much of that the other end had no room.
    pub held_up: Duration,
    /// The shortest round trip.
    pub round_trip: Duration,
    /// Bytes of a block: what is handed over at once.
    pub block_bytes: u64,
    /// Bytes that were handed over and not acknowledged, on average over the call.
    pub backlog: u64,
}

/// What that says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The link carries so many bytes per second.
    Exactly(u64),
    /// It carries no less; something else set the pace.
    AtLeast(u64),
}

impl Carried {
    /// What it says about the link; none if it was too little to tell, or told by the other end's processor rather than
    /// by the way.
    pub fn figure(&self) -> Option<Figure> {
        if self.bytes < BYTES_MIN || self.busy < BUSY_MIN || self.held_up * 4 >= self.busy {
            return None;
        }
        let rate = (self.bytes as f64 / self.busy.as_secs_f64()) as u64;
        let pace = self.bytes as f64 / self.elapsed.max(self.busy).as_secs_f64();
        let blocks = self.bytes as f64 / self.block_bytes.max(1) as f64;
        let tails = blocks * self.round_trip.as_secs_f64();
        let one_at_a_time = 2.0 * self.block_bytes as f64 + 1.5 * pace * self.round_trip.as_secs_f64();
        let is_exact = tails * 10.0 <= self.busy.as_secs_f64() || self.backlog as f64 >= one_at_a_time;
        Some(if is_exact { Figure::Exactly(rate) } else { Figure::AtLeast(rate) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// 8 MB in blocks of 64 KB during two seconds.
    fn carried(busy: Duration, round_trip: Duration, backlog: u64) -> Carried {
        Carried {
            bytes: 8_000_000,
            elapsed: 2_000 * MS,
            busy,
            held_up: Duration::ZERO,
            round_trip,
            block_bytes: 64_000,
            backlog,
        }
    }

    #[test]
    fn a_short_way_tells_its_own_speed_whoever_sets_the_pace() {
        // Half of the time it had nothing to do.
        assert_eq!(carried(1_000 * MS, MS / 2, 30_000).figure(), Some(Figure::Exactly(8_000_000)));
    }

    #[test]
    fn a_long_way_is_as_slow_as_the_ring_only_if_bytes_pile_up_before_it() {
        // 125 blocks, each acknowledged 50 ms after it left: never idle, and one or four of them under way.
        let waited_for = carried(2_000 * MS, 50 * MS, 600_000).figure();
        assert_eq!(waited_for, Some(Figure::Exactly(4_000_000)));
        let waits = carried(2_000 * MS, 50 * MS, 230_000).figure();
        assert_eq!(waits, Some(Figure::AtLeast(4_000_000)), "it may be much faster than the ring");
    }

    #[test]
    fn little_and_held_up_calls_say_nothing() {
        let call = carried(1_000 * MS, MS / 2, 0);
        assert_eq!(Carried { bytes: BYTES_MIN - 1, ..call }.figure(), None);
        assert_eq!(Carried { busy: BUSY_MIN / 2, ..call }.figure(), None);
        assert_eq!(Carried { held_up: 250 * MS, ..call }.figure(), None);
    }
}
