//! Packets on their way, ordered by when they arrive.
//!
//! Two packets with the same moment leave in the order in which they came, so that a link's order survives.
//! The bytes that are on their way are bounded; who does not fit is told so and drops.

use crate::limits::IN_FLIGHT_BYTES_MAX;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A packet that has set out.
#[derive(Debug)]
pub(crate) struct Travelling {
    pub(crate) due: Duration,
    sequence: u64,
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// The pair's count of cuts when the packet set out.
    pub(crate) cuts: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The packets on their way.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    heap: BinaryHeap<Travelling>,
    sequence: u64,
    bytes: usize,
}

impl Schedule {
    /// Whether `bytes` more fit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= IN_FLIGHT_BYTES_MAX
    }

    pub(crate) fn push(&mut self, due: Duration, from: usize, to: usize, cuts: u32, bytes: Vec<u8>) {
        self.bytes += bytes.len();
        self.sequence += 1;
        self.heap.push(Travelling { due, sequence: self.sequence, from, to, cuts, bytes });
    }

    /// When the next packet arrives.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.heap.peek().map(|packet| packet.due)
    }

    /// The next packet, if it has arrived by `now`.
    pub(crate) fn pop_due(&mut self, now: Duration) -> Option<Travelling> {
        if self.next_due()? > now {
            return None;
        }
        let packet = self.heap.pop()?;
        self.bytes -= packet.bytes.len();
        Some(packet)
    }
}

// The heap hands out its greatest element first, so the earliest packet is the greatest.
impl Ord for Travelling {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.sequence).cmp(&(self.due, self.sequence))
    }
}

impl PartialOrd for Travelling {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Travelling {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Travelling {}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn packets_arrive_by_time_and_then_by_order() {
        let mut schedule = Schedule::default();
        for (due, name) in [(5, b'c'), (3, b'a'), (9, b'e'), (3, b'b'), (5, b'd')] {
            schedule.push(due * MS, 0, 1, 0, vec![name]);
        }
        assert_eq!(schedule.next_due(), Some(3 * MS));
        let mut arrived = Vec::new();
        while let Some(packet) = schedule.pop_due(5 * MS) {
            arrived.extend(packet.bytes);
        }
        assert_eq!(arrived, b"abcd");
        assert_eq!(schedule.next_due(), Some(9 * MS));
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let mut schedule = Schedule::default();
        schedule.push(MS, 0, 1, 0, vec![0; 1_000]);
        assert!(schedule.has_room(IN_FLIGHT_BYTES_MAX - 1_000));
        assert!(!schedule.has_room(IN_FLIGHT_BYTES_MAX - 999));
        schedule.pop_due(MS).unwrap();
        assert!(schedule.has_room(IN_FLIGHT_BYTES_MAX));
    }
}
