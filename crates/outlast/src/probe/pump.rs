//! Sends, receives or does both at once, as fast as the streams allow, on one thread, as the executor does.

use super::BYTES_MAX;
use crate::state::exchange::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

/// How often a wait looks whether it is still wanted.
const BEAT: Duration = Duration::from_millis(20);
/// Bytes that are handed over at once: little at first, so that a slow link is counted finely; then whole segments.
const PIECES: [(u64, usize); 3] = [(128 << 10, 2 << 10), (2 << 20, 16 << 10), (u64::MAX, 64 << 10)];
const RECEIVED_AT_ONCE: usize = 256 << 10;
/// A wire that has room and bytes all the time still lets the others have their turn.
const TURNS: usize = 4;

/// What is to be done.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) sends: bool,
    pub(super) receives: bool,
    /// For how long is sent.
    pub(super) duration: Duration,
    /// For how much longer is received.
    pub(super) tail: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Default)]
pub(super) struct Pumped {
    /// Bytes per second that arrived in the second half of what came; zero if nothing was to be received.
    pub(super) rate: u64,
    /// The round trip by the end of the sending, with its queues; zero if nothing was sent or the kernel does not say.
    pub(super) loaded: Duration,
}

/// Does it.
pub(super) fn pump(streams: &mut [Stream], task: Task, off: &dyn Fn() -> bool) -> io::Result<Pumped> {
    let Task { duration, tail, .. } = task;
    let filler = vec![0x5a; PIECES[2].1];
    let mut heap = vec![0; RECEIVED_AT_ONCE];
    let start = Instant::now();
    let (mut sent, mut clock) = (0, Arrivals::new(duration));
    let (mut loaded, mut open) = (None, true);
    loop {
        let now = Instant::now();
        let since = now.duration_since(start);
        let sends = task.sends && since < duration && sent < BYTES_MAX;
        if task.sends && !sends && loaded.is_none() {
            loaded = streams.iter().filter_map(|stream| Some(stream.wire().gauge()?.loaded)).max();
            loaded.get_or_insert_default();
        }
        let receives = task.receives && open && since < duration + tail && !clock.is_over(now);
        if !sends && !receives {
            let rate = if task.receives { clock.rate()? } else { 0 };
            return Ok(Pumped { rate, loaded: loaded.unwrap_or_default() });
        }
        if off() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "called off"));
        }
        let mut moved = false;
        open = false;
        for stream in streams.iter_mut() {
            for _ in 0..TURNS {
                if !receives {
                    break;
                }
                match stream.wire_mut().receive(&mut [IoSliceMut::new(&mut heap)]) {
                    Ok(0) => break, // It has stopped sending; what came counts.
                    Ok(count) => {
                        (moved, open) = (true, true);
                        clock.note(Instant::now(), count as u64);
                    }
                    Err(error) if is_not_now(&error) => {
                        open = true;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            for _ in 0..TURNS {
                if !sends {
                    break;
                }
                let piece =
                    PIECES.iter().find(|(up_to, _)| sent < *up_to).map_or(PIECES[2].1, |(_, piece)| *piece);
                match stream.wire_mut().send(&[IoSlice::new(&filler[..piece])]) {
                    Ok(count) => (moved, sent) = (moved || count > 0, sent + count as u64),
                    Err(error) if is_not_now(&error) => break,
                    Err(_) => break, // The other side is done with it; so is our sending.
                }
            }
            match stream.wire_mut().flush() {
                Ok(()) => {}
                Err(error) if is_not_now(&error) => {}
                Err(_) => {}
            }
        }
        if !moved {
            let wanted = |is_wanted, flag| if is_wanted { flag } else { PollFlags::empty() };
            let flags = wanted(receives, PollFlags::IN) | wanted(sends, PollFlags::OUT);
            let descriptors: Vec<_> = streams.iter().map(|stream| stream.wire().descriptor()).collect();
            let mut all: Vec<_> =
                descriptors.iter().map(|descriptor| PollFd::new(descriptor, flags)).collect();
            let beat = Timespec::try_from(BEAT.min(duration + tail))
                .unwrap_or(Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
            match poll(&mut all, Some(&beat)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// What arrived when. The clock starts with the first byte.
struct Arrivals {
    duration: Duration,
    first: Option<Instant>,
    total: u64,
    /// Bytes and time of the first arrival in the second half, of the time or of all that may come, and of the last.
    from: Option<(Instant, u64)>,
    to: Option<(Instant, u64)>,
}

impl Arrivals {
    fn new(duration: Duration) -> Self {
        Self { duration, first: None, total: 0, from: None, to: None }
    }

    fn note(&mut self, now: Instant, bytes: u64) {
        let first = *self.first.get_or_insert(now);
        self.total += bytes;
        let since = now.duration_since(first);
        // A link so fast that all there is to send has come before the half: then half of that begins the count.
        let is_late = since >= self.duration / 2 || self.total >= BYTES_MAX / 2;
        if is_late && since <= self.duration {
            self.from.get_or_insert((now, self.total));
            self.to = Some((now, self.total));
        }
    }

    /// Whether everything that counts has come.
    fn is_over(&self, now: Instant) -> bool {
        self.first.is_some_and(|first| now.duration_since(first) > self.duration)
    }

    fn rate(&self) -> io::Result<u64> {
        let per_second = |bytes: u64, time: Duration| (bytes as f64 / time.as_secs_f64()) as u64;
        match (self.from, self.to, self.first) {
            (Some((from, before)), Some((to, after)), _) if to > from && after > before => {
                Ok(per_second(after - before, to - from).max(1))
            }
            // So slow that hardly anything came: all of it over all of the time.
            (_, _, Some(_)) if self.total > 0 => Ok(per_second(self.total, self.duration).max(1)),
            _ => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing arrived")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_second_half_counts() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut clock = Arrivals::new(Duration::from_millis(300));
        // A slow start, then a thousand bytes per millisecond, then what came too late.
        (0..15).for_each(|step| clock.note(at(step * 10), 100));
        (15..=30).for_each(|step| clock.note(at(step * 10), 10_000));
        clock.note(at(310), 99_000_000);
        assert_eq!(clock.rate().unwrap(), 1_000_000);
        assert!(clock.is_over(at(301)) && !clock.is_over(at(300)));
    }

    /// All of them used to look alike: as fast as all the bytes over all of the time.
    #[test]
    fn a_link_that_carries_everything_before_the_half_is_told_from_a_faster_one() {
        let start = Instant::now();
        let rate = |millis_each: u32| {
            let mut clock = Arrivals::new(Duration::from_millis(200));
            let at = |piece: u32| start + Duration::from_millis(1) * millis_each * piece;
            (0..=16).for_each(|piece| clock.note(at(piece), BYTES_MAX / 16));
            clock.rate().unwrap()
        };
        assert_eq!(rate(1), BYTES_MAX / 16 * 1_000);
        assert_eq!(rate(5), BYTES_MAX / 16 * 200);
    }

    #[test]
    fn a_link_that_hardly_carries_has_a_rate_and_a_dead_one_has_none() {
        let start = Instant::now();
        let mut clock = Arrivals::new(Duration::from_millis(300));
        assert!(clock.rate().is_err());
        clock.note(start, 300);
        assert_eq!(clock.rate().unwrap(), 1_000);
    }
}
