//! One direction of one link, as arithmetic: given a burst of frames and the time, which frames survive and
//! when does each arrive?
//!
//! The kernel hands us TCP in bursts of up to 64 KiB that stand for many frames. Losing a whole burst by one
//! throw of the dice would make 1 % loss look like 1 % of *catastrophes*, so every frame is judged by itself,
//! and neighbouring survivors travel on together as a shorter burst. That keeps the statistics of frames
//! and the speed of bursts.
//!
//! The limited line is a serialiser: a frame occupies it for exactly its length divided by the rate, after
//! the frame before it. That is a token bucket whose bucket holds one frame; the line never bursts above its
//! rate. Frames that would have to wait longer than the queue allows are dropped at the tail.
//!
//! Invariant: pieces leave a link in the order in which their frames entered it. It reads no clock and does
//! no I/O; `now` counts from the switch's start.

use crate::limits::QUEUE_BYTES_MIN;
use crate::rule::Rule;
use rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::time::Duration;

/// A burst is divided so that no piece occupies a limited line longer than this. Shorter pieces are finer
/// in time and cost more system calls.
const PIECE_TIME: Duration = Duration::from_micros(500);

/// A burst: `count` frames, all of `full_bytes` except the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) count: usize,
    pub(crate) full_bytes: u64,
    pub(crate) last_bytes: u64,
}

impl Burst {
    /// Some neighbouring frames of it.
    pub(crate) fn part(&self, first: usize, count: usize) -> Self {
        let has_last = first + count == self.count;
        Self { count, last_bytes: if has_last { self.last_bytes } else { self.full_bytes }, ..*self }
    }

    fn bytes(&self, frame: usize) -> u64 {
        if frame + 1 == self.count { self.last_bytes } else { self.full_bytes }
    }
}

/// Frames `first..first + count` of a burst arrive together at `due`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) due: Duration,
}

/// How many frames of a burst did not survive, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) lost: u64,
    pub(crate) overflowed: u64,
}

/// What is left of a burst after one line behind the other. Lines that several ways share come with the rule of their
/// own; neighbouring pieces stay apart, and each keeps its place in the burst.
pub(crate) fn through<'a>(
    lines: impl IntoIterator<Item = (&'a mut Link, Rule)>,
    now: Duration,
    burst: Burst,
    pieces: &mut Vec<Piece>,
) -> Dropped {
    let mut dropped = Dropped::default();
    pieces.clear();
    pieces.push(Piece { first: 0, count: burst.count, due: now });
    for (line, rule) in lines {
        for piece in std::mem::take(pieces) {
            let start = pieces.len();
            let more = line.offer(piece.due, &rule, burst.part(piece.first, piece.count), pieces);
            pieces[start..].iter_mut().for_each(|part| part.first += piece.first);
            dropped.lost += more.lost;
            dropped.overflowed += more.overflowed;
        }
    }
    dropped
}

/// The memory of one direction: its dice, and until when its line is busy.
#[derive(Debug)]
pub(crate) struct Link {
    dice: Xoshiro256PlusPlus,
    busy_until: Duration,
    last_due: Duration,
}

impl Link {
    /// A link whose dice depend on the lab's seed and on its two ends only, so that traffic elsewhere does
    /// not change which frame of this link is lost.
    pub(crate) fn new(seed: u64, from: usize, to: usize) -> Self {
        let own = (from as u64) << 32 | to as u64;
        Self {
            dice: Xoshiro256PlusPlus::seed_from_u64(seed ^ own.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            busy_until: Duration::ZERO,
            last_due: Duration::ZERO,
        }
    }

    /// Judges every frame of `burst`. Survivors are appended to `pieces`, in order.
    pub(crate) fn offer(
        &mut self,
        now: Duration,
        rule: &Rule,
        burst: Burst,
        pieces: &mut Vec<Piece>,
    ) -> Dropped {
        let mut dropped = Dropped::default();
        let piece_frames = rule.rate.map_or(usize::MAX, |rate| {
            usize::try_from(rate.bytes_in(PIECE_TIME) / burst.full_bytes.max(1)).unwrap_or(usize::MAX).max(1)
        });
        let mut run: Option<(usize, usize)> = None;
        for frame in 0..burst.count {
            let survives = if rule.loss > 0.0 && self.unit() < rule.loss {
                dropped.lost += 1;
                false
            } else if !self.occupy_line(now, rule, burst.bytes(frame)) {
                dropped.overflowed += 1;
                false
            } else {
                true
            };
            if survives {
                let (first, count) = run.unwrap_or((frame, 0));
                run = Some((first, count + 1));
            }
            if let Some((first, count)) = run
                && (!survives || count == piece_frames || frame + 1 == burst.count)
            {
                let due = self.due(now, rule);
                pieces.push(Piece { first, count, due });
                run = None;
            }
        }
        dropped
    }

    /// Puts a frame on the line; false if the queue in front of it is full.
    fn occupy_line(&mut self, now: Duration, rule: &Rule, bytes: u64) -> bool {
        let Some(rate) = rule.rate else { return true };
        let done = self.busy_until.max(now) + rate.time_for(bytes);
        let queue = rule.queue.max(rate.time_for(QUEUE_BYTES_MIN));
        let fits = done <= now + queue;
        if fits {
            self.busy_until = done;
        }
        fits
    }

    /// When what was put on the line last arrives: never before what was sent earlier.
    fn due(&mut self, now: Duration, rule: &Rule) -> Duration {
        let sent = if rule.rate.is_some() { self.busy_until.max(now) } else { now };
        let travel = if rule.jitter.is_zero() {
            rule.delay
        } else {
            let earliest = rule.delay.saturating_sub(rule.jitter);
            let latest = rule.delay + rule.jitter;
            earliest + latest.saturating_sub(earliest).mul_f64(self.unit())
        };
        self.last_due = self.last_due.max(sent + travel);
        self.last_due
    }

    /// A number in `0.0..1.0`.
    fn unit(&mut self) -> f64 {
        (self.dice.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rate;

    const MS: Duration = Duration::from_millis(1);

    fn frame(bytes: u64) -> Burst {
        Burst { count: 1, full_bytes: bytes, last_bytes: bytes }
    }

    fn offer(link: &mut Link, now: Duration, rule: &Rule, burst: Burst) -> (Vec<Piece>, Dropped) {
        let mut pieces = Vec::new();
        let dropped = link.offer(now, rule, burst, &mut pieces);
        (pieces, dropped)
    }

    #[test]
    fn a_perfect_wire_passes_a_burst_whole_and_at_once() {
        let burst = Burst { count: 40, full_bytes: 1_500, last_bytes: 100 };
        let (pieces, dropped) = offer(&mut Link::new(1, 0, 1), MS, &Rule::perfect(), burst);
        assert_eq!(pieces, [Piece { first: 0, count: 40, due: MS }]);
        assert_eq!(dropped, Dropped::default());
    }

    #[test]
    fn a_limited_line_carries_frame_after_frame() {
        // 12 Mbit/s: a frame of 1,500 bytes takes one millisecond.
        let rule = Rule::perfect().rate(Rate::mbit(12)).delay(20 * MS);
        let mut link = Link::new(1, 0, 1);
        let dues: Vec<_> = (0..3).map(|_| offer(&mut link, MS, &rule, frame(1_500)).0[0].due).collect();
        assert_eq!(dues, [22 * MS, 23 * MS, 24 * MS]);
        // After a pause the line is free again: nothing was saved up.
        assert_eq!(offer(&mut link, 100 * MS, &rule, frame(1_500)).0[0].due, 121 * MS);
    }

    #[test]
    fn a_long_burst_is_divided_by_line_time() {
        let rule = Rule::perfect().rate(Rate::mbit(1_000));
        let burst = Burst { count: 100, full_bytes: 1_500, last_bytes: 1_500 };
        let (pieces, _) = offer(&mut Link::new(1, 0, 1), Duration::ZERO, &rule, burst);
        assert_eq!(pieces.iter().map(|piece| piece.count).collect::<Vec<_>>(), [41, 41, 18]);
        assert_eq!(pieces[0].due, Duration::from_micros(41 * 12));
        assert_eq!(pieces[2].due, Duration::from_micros(1_200));
    }

    #[test]
    fn a_full_queue_drops_the_tail_and_recovers() {
        let rule = Rule::perfect().rate(Rate::mbit(12)).queue(100 * MS);
        let mut link = Link::new(1, 0, 1);
        let burst = Burst { count: 120, full_bytes: 1_500, last_bytes: 1_500 };
        let (pieces, dropped) = offer(&mut link, Duration::ZERO, &rule, burst);
        assert_eq!(dropped, Dropped { lost: 0, overflowed: 20 });
        assert_eq!(pieces.iter().map(|piece| piece.count).sum::<usize>(), 100);
        let (_, dropped) = offer(&mut link, 10 * MS, &rule, Burst { count: 15, ..burst });
        assert_eq!(dropped.overflowed, 5);
    }

    #[test]
    fn a_short_queue_still_takes_one_burst() {
        let rule = Rule::perfect().rate(Rate::mbit(1)).queue(Duration::ZERO);
        let burst = Burst { count: 40, full_bytes: 1_500, last_bytes: 1_500 };
        let (_, dropped) = offer(&mut Link::new(1, 0, 1), Duration::ZERO, &rule, burst);
        assert_eq!(dropped.overflowed, 0);
    }

    #[test]
    fn every_frame_of_a_burst_throws_its_own_dice() {
        let rule = Rule::perfect().loss(0.1);
        let mut link = Link::new(7, 0, 1);
        let burst = Burst { count: 40, full_bytes: 1_500, last_bytes: 1_500 };
        let (mut lost, mut whole) = (0, 0);
        for _ in 0..500 {
            let (pieces, dropped) = offer(&mut link, Duration::ZERO, &rule, burst);
            let arrived: usize = pieces.iter().map(|piece| piece.count).sum();
            assert_eq!(arrived as u64 + dropped.lost, 40);
            assert!(pieces.windows(2).all(|pair| pair[0].first + pair[0].count < pair[1].first));
            lost += dropped.lost;
            whole += u64::from(pieces.len() == 1 && arrived == 40);
        }
        // 20,000 frames at 10 %: four standard deviations are 170. Whole bursts survive with 0.9^40 = 1.5 %.
        assert!((1_830..=2_170).contains(&lost), "{lost}");
        assert!(whole < 25, "{whole}");
    }

    #[test]
    fn the_dice_belong_to_seed_and_link() {
        let rule = Rule::perfect().loss(0.5);
        let burst = Burst { count: 64, full_bytes: 100, last_bytes: 100 };
        let pattern = |seed, from| offer(&mut Link::new(seed, from, 1), MS, &rule, burst).0;
        assert_eq!(pattern(7, 0), pattern(7, 0));
        assert_ne!(pattern(7, 0), pattern(8, 0));
        assert_ne!(pattern(7, 0), pattern(7, 2));
    }

    #[test]
    fn a_shared_line_is_shared_by_all_who_pass_it() {
        // Two ways of 100 Mbit/s each behind one line of 12: a frame of 1,500 bytes takes one millisecond there.
        let (way, shared) = (Rule::perfect().rate(Rate::mbit(100)), Rule::perfect().rate(Rate::mbit(12)));
        let (mut uplink, mut one, mut other) = (Link::new(1, 8, 8), Link::new(1, 0, 1), Link::new(1, 2, 1));
        let mut pieces = Vec::new();
        let mut arrivals = Vec::new();
        for round in 0..4 {
            let link = if round % 2 == 0 { &mut one } else { &mut other };
            let dropped =
                through([(&mut uplink, shared), (link, way)], Duration::ZERO, frame(1_500), &mut pieces);
            assert_eq!(dropped, Dropped::default());
            arrivals.push(pieces[0].due.as_micros());
        }
        assert_eq!(arrivals, [1_120, 2_120, 3_120, 4_120]);
    }

    #[test]
    fn a_burst_keeps_its_frames_apart_through_several_lines() {
        let rule = Rule::perfect().rate(Rate::mbit(1_000));
        let burst = Burst { count: 100, full_bytes: 1_500, last_bytes: 700 };
        let mut pieces = Vec::new();
        let lines = [(&mut Link::new(1, 0, 1), rule), (&mut Link::new(1, 1, 2), rule)];
        assert_eq!(through(lines, Duration::ZERO, burst, &mut pieces), Dropped::default());
        assert_eq!(pieces.iter().map(|piece| piece.count).sum::<usize>(), 100);
        assert!(pieces.windows(2).all(|pair| pair[0].first + pair[0].count == pair[1].first));
        assert!(pieces.windows(2).all(|pair| pair[0].due <= pair[1].due));
    }

    #[test]
    fn jitter_spreads_but_never_reorders() {
        let rule = Rule::perfect().delay(20 * MS).jitter(5 * MS);
        let mut link = Link::new(3, 0, 1);
        let mut travels = Vec::new();
        let mut previous = Duration::ZERO;
        for i in 0..1_000 {
            let now = i * 11 * MS;
            let due = offer(&mut link, now, &rule, frame(100)).0[0].due;
            assert!(due >= previous);
            previous = due;
            travels.push(due.saturating_sub(now));
        }
        assert!(travels.iter().all(|travel| (15 * MS..=25 * MS).contains(travel)));
        assert!(
            travels.iter().any(|travel| *travel < 16 * MS) && travels.iter().any(|travel| *travel > 24 * MS)
        );
        // Sent at the same moment, they would cross if each went by its own dice.
        let dues: Vec<_> =
            (0..50).map(|_| offer(&mut link, 20_000 * MS, &rule, frame(100)).0[0].due).collect();
        assert!(dues.is_sorted());
    }

    #[test]
    fn a_shorter_delay_does_not_overtake_what_is_on_the_way() {
        let mut link = Link::new(1, 0, 1);
        let slow = offer(&mut link, MS, &Rule::perfect().delay(100 * MS), frame(100)).0[0].due;
        let fast = offer(&mut link, 2 * MS, &Rule::perfect(), frame(100)).0[0].due;
        assert_eq!(fast, slow);
    }
}
