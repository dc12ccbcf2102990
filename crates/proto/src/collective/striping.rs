//! How many streams a link is worth: a decision by measurement.
//!
//! One TCP stream does not fill every link. Where packets are lost now and then its window is halved again and
//! again; where the round trip is long its buffers end before the line does; where a provider limits each flow,
//! one flow gets one share. Several streams get several times as much. Where one stream is enough, more of them
//! cost connections and gain nothing.
//!
//! Nothing but trying tells the two apart. So each end that sends looks at its calls: how fast were the bytes, and
//! was the link the reason (was the stream busy nearly all the time)? If so, twice as many streams are tried
//! for a few calls. If the best of those calls was clearly faster than the best of the calls before, they stay
//! and twice as many again are tried; if not, the extra ones are closed and there is peace for a while, each
//! time longer.
//!
//! In a ring the slowest link sets the pace of all, so an end whose neighbours are slower learns nothing from a
//! trial. It does not begin one: its stream is not busy. Where all links are alike, all ends see the same busy
//! calls and begin within a call of each other; the best of several calls is compared because of that.
//!
//! The invariant: at most [`STREAMS_MAX`] streams, and no trial without a busy link before it.

use crate::time::{Duration, Instant};

/// Streams of one link at most.
pub const STREAMS_MAX: u8 = 8;
/// Calls that moved less say nothing about a link.
pub const CALL_BYTES_MIN: u64 = 2 << 20;
/// A stream that was busy for this share of a call was what the call waited for.
const BUSY_SHARE: f64 = 0.6;
/// Calls that are looked at before a trial, and during one.
const CALLS: u32 = 4;
/// Calls of a trial that do not count: new streams start slowly.
const CALLS_WARM_UP: u32 = 2;
/// What makes more streams worth having.
const GAIN_MIN: f64 = 1.15;
/// The peace after a trial that gained nothing, doubled each time up to the second number.
const PEACE: Duration = Duration::from_secs(20);
const PEACE_MAX: Duration = Duration::from_secs(20 << 6);

/// One call's bytes on a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Bytes that were sent.
    pub bytes: u64,
    /// From the call to its last byte.
    pub elapsed: Duration,
    /// For how long the busiest stream had something to send or to be acknowledged.
    pub busy: Duration,
}

/// What to do about a link's streams, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// Open streams until there are this many: the link is what calls wait for.
    Try {
        /// Streams in all.
        streams: u8,
    },
    /// Keep them: calls became faster by this factor.
    Keep {
        /// Streams in all.
        streams: u8,
        /// New best speed over old best speed.
        gain: f64,
    },
    /// Close streams until there are this many: calls became no faster.
    Return {
        /// Streams in all.
        streams: u8,
        /// New best speed over old best speed.
        gain: f64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Looking at calls as they are.
    Watch { calls: u32, busy: u32, best: f64 },
    /// With more streams than before: how many those were, and how fast.
    Trial { before: u8, speed: f64, calls: u32, best: f64 },
}

/// The streams of one link, from the sending end.
#[derive(Clone, Debug)]
pub struct Striping {
    streams: u8,
    stage: Stage,
    quiet_until: Option<Instant>,
    peace: Duration,
}

impl Default for Striping {
    fn default() -> Self {
        Self { streams: 1, stage: WATCH, quiet_until: None, peace: PEACE }
    }
}

const WATCH: Stage = Stage::Watch { calls: 0, busy: 0, best: 0.0 };

impl Striping {
    /// How many streams there should be.
    pub fn streams(&self) -> u8 {
        self.streams
    }

    /// Streams were lost or could not be made: this many are left, and nothing is tried for a while.
    pub fn handle_lost(&mut self, now: Instant, left: u8) {
        self.streams = left.clamp(1, STREAMS_MAX);
        self.rest(now);
    }

    /// A call ended well.
    pub fn handle_call(&mut self, now: Instant, sample: Sample) -> Option<Decision> {
        let seconds = sample.elapsed.as_secs_f64();
        if sample.bytes < CALL_BYTES_MIN || seconds <= 0.0 {
            return None;
        }
        let speed = sample.bytes as f64 / seconds;
        let busy_call = sample.busy.as_secs_f64() >= BUSY_SHARE * seconds;
        match &mut self.stage {
            Stage::Watch { calls, busy, best } => {
                *calls += 1;
                *busy += u32::from(busy_call);
                *best = best.max(speed);
                if *calls < CALLS {
                    return None;
                }
                let (busy, best) = (*busy, *best);
                self.stage = WATCH;
                let quiet = self.quiet_until.is_some_and(|until| now < until);
                if quiet || 2 * busy <= CALLS || self.streams >= STREAMS_MAX {
                    return None;
                }
                let before = self.streams;
                self.streams = (2 * before).min(STREAMS_MAX);
                self.stage = Stage::Trial { before, speed: best, calls: 0, best: 0.0 };
                Some(Decision::Try { streams: self.streams })
            }
            Stage::Trial { before, speed: usual, calls, best } => {
                *calls += 1;
                if *calls > CALLS_WARM_UP {
                    *best = best.max(speed);
                }
                if *calls < CALLS_WARM_UP + CALLS {
                    return None;
                }
                let (before, gain) = (*before, *best / *usual);
                if gain >= GAIN_MIN {
                    self.peace = PEACE;
                    self.stage = WATCH;
                    return Some(Decision::Keep { streams: self.streams, gain });
                }
                self.streams = before;
                self.rest(now);
                Some(Decision::Return { streams: before, gain })
            }
        }
    }

    fn rest(&mut self, now: Instant) {
        self.stage = WATCH;
        self.quiet_until = Some(now + self.peace);
        self.peace = PEACE_MAX.min(2 * self.peace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A link that carries this many bytes per second with so many streams, and calls that fill it or not.
    struct Link {
        striping: Striping,
        now: Instant,
        decisions: Vec<Decision>,
    }

    impl Link {
        fn new() -> Self {
            Self { striping: Striping::default(), now: Instant::ORIGIN, decisions: Vec::new() }
        }

        fn calls(&mut self, count: u32, busy_share: f64, speed: impl Fn(u8) -> f64) {
            for _ in 0..count {
                let seconds = 16.0 * MIB as f64 / speed(self.striping.streams());
                let elapsed = Duration::from_secs_f64(seconds);
                self.now += elapsed;
                let busy = Duration::from_secs_f64(seconds * busy_share);
                let sample = Sample { bytes: 16 * MIB, elapsed, busy };
                self.decisions.extend(self.striping.handle_call(self.now, sample));
            }
        }
    }

    #[test]
    fn a_link_that_limits_each_flow_gets_as_many_as_help() {
        let mut link = Link::new();
        // Each stream gets 10 MB/s, and the line ends at 50.
        link.calls(60, 1.0, |streams| (10e6 * f64::from(streams)).min(50e6));
        assert_eq!(link.striping.streams(), 8);
        let kept = |streams| matches!(streams, Decision::Keep { .. });
        assert!(
            link.decisions.iter().filter(|decision| kept(**decision)).count() == 3,
            "{:?}",
            link.decisions
        );
    }

    #[test]
    fn a_link_that_one_stream_fills_goes_back_to_one_and_is_left_in_peace() {
        let mut link = Link::new();
        link.calls(10, 1.0, |_| 100e6);
        assert!(matches!(
            link.decisions[..],
            [Decision::Try { streams: 2 }, Decision::Return { streams: 1, .. }]
        ));
        // 16 MiB take a sixth of a second, so these are two minutes.
        link.calls(720, 1.0, |_| 100e6);
        let trials =
            link.decisions.iter().filter(|decision| matches!(decision, Decision::Try { .. })).count();
        assert!((2..=4).contains(&trials), "{trials} trials in two minutes");
        assert_eq!(link.striping.streams(), 1);
    }

    #[test]
    fn a_link_that_is_not_the_reason_is_left_alone() {
        let mut link = Link::new();
        link.calls(100, 0.3, |_| 100e6);
        assert_eq!(link.decisions, []);
    }

    #[test]
    fn small_calls_say_nothing() {
        let mut striping = Striping::default();
        let sample = Sample {
            bytes: CALL_BYTES_MIN - 1,
            elapsed: Duration::from_secs(1),
            busy: Duration::from_secs(1),
        };
        assert!((0..100).all(|_| striping.handle_call(Instant::ORIGIN, sample).is_none()));
    }

    #[test]
    fn lost_streams_are_not_tried_again_at_once() {
        let mut link = Link::new();
        link.calls(10, 1.0, |streams| 10e6 * f64::from(streams));
        assert_eq!(link.striping.streams(), 2);
        link.striping.handle_lost(link.now, 1);
        let so_far = link.decisions.len();
        link.calls(8, 1.0, |streams| 10e6 * f64::from(streams));
        assert_eq!((link.striping.streams(), link.decisions.len()), (1, so_far));
    }
}
