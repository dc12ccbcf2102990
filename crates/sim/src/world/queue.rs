//! Everything that is about to happen, in order.
//!
//! The order is (time, sequence): two things at the same nanosecond happen in the order in which they were
//! caused. That, and nothing of the heap's own making, is why a seed replays.

use outlast_proto::time::Instant;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

struct Entry<T> {
    at: Instant,
    sequence: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    /// Reversed, because the standard heap gives the greatest first and we want the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// A queue of future happenings.
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    next_sequence: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), next_sequence: 0 }
    }

    pub(crate) fn push(&mut self, at: Instant, what: T) {
        self.heap.push(Entry { at, sequence: self.next_sequence, what });
        self.next_sequence += 1;
    }

    /// The earliest happening, if it is due by `until`.
    pub(crate) fn pop_until(&mut self, until: Instant) -> Option<(Instant, T)> {
        if self.heap.peek()?.at > until {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.what))
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_the_order_in_which_they_were_caused() {
        let mut queue = Queue::new();
        let at = Instant::from_nanos;
        for (time, name) in [(5, "c"), (1, "a"), (5, "d"), (2, "b"), (9, "late")] {
            queue.push(at(time), name);
        }
        let order: String = std::iter::from_fn(|| queue.pop_until(at(5))).map(|(_, name)| name).collect();
        assert_eq!(order, "abcd");
        assert_eq!(queue.len(), 1);
    }
}
