//! How many streams a link is worth: a decision by measurement.
//!
//! One TCP stream does not fill every link. Where packets are lost now and then its window is halved again and
//! again; where the round trip is long its buffers end before the link does; where a provider limits each flow,
//! one flow gets one share. Several streams get several times as much. Where one stream is enough, more of them
//! cost connections and gain nothing.
//!
//! Nothing but trying tells the two apart. So each end that sends looks at its calls: was the link the reason for
//! their pace (was its stream busy nearly all the time), and how many bytes went per second in which it was busy?
//! If it was the reason, twice as many streams are tried for a few calls. If the link then carried clearly more per
//! busy second, they stay, and twice as many again are tried once those are busy all the time; if not, the extra
//! ones are closed and there is peace for a while, each time longer.
//!
//! In a ring the slowest link sets the pace of all. So the pace itself is no measure: where all links are alike, the
//! first end to try would see no gain, because it waits for the others. Bytes per busy second are a measure of
//! the link alone: a link that waits for others is idle meanwhile.
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
/// What makes more streams worth having. Twice as many carry twice as much where they help at all.
const GAIN_MIN: f64 = 1.3;
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
    /// Keep them: the link carries more by this factor.
    Keep {
        /// Streams in all.
        streams: u8,
        /// New bytes per busy second over old ones.
        gain: f64,
    },
    /// Close streams until there are this many: the link carries no more.
    Return {
        /// Streams in all.
        streams: u8,
        /// New bytes per busy second over old ones.
        gain: f64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Looking at calls as they are.
    Watch,
    /// With more streams than before: how many those were, and how much the link carried.
    Trial { before: u8, speed: f64 },
}

/// Calls together.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    count: u32,
    bytes: f64,
    elapsed: f64,
    busy: f64,
}

impl Calls {
    fn add(&mut self, sample: &Sample) {
        self.count += 1;
        self.bytes += sample.bytes as f64;
        self.elapsed += sample.elapsed.as_secs_f64();
        self.busy += sample.busy.as_secs_f64();
    }

    /// Bytes per second in which the link was busy.
    fn speed(&self) -> f64 {
        self.bytes / self.busy.max(1e-9)
    }
}

/// The streams of one link, from the sending end.
#[derive(Clone, Debug)]
pub struct Striping {
    streams: u8,
    streams_max: u8,
    stage: Stage,
    calls: Calls,
    /// The first calls of a trial are over.
    warm: bool,
    quiet_until: Option<Instant>,
    peace: Duration,
}

impl Striping {
    /// A link with one stream, and at most so many of them later.
    pub fn new(streams_max: u8) -> Self {
        let streams_max = streams_max.clamp(1, STREAMS_MAX);
        Self {
            streams: 1,
            streams_max,
            stage: Stage::Watch,
            calls: Calls::default(),
            warm: false,
            quiet_until: None,
            peace: PEACE,
        }
    }

    /// How many streams there should be.
    pub fn streams(&self) -> u8 {
        self.streams
    }

    /// Streams were lost or could not be made: this many are left, and nothing is tried for a while.
    pub fn handle_lost(&mut self, now: Instant, left: u8) {
        self.streams = left.clamp(1, self.streams_max);
        self.rest(now);
    }

    /// A call ended well.
    pub fn handle_call(&mut self, now: Instant, sample: Sample) -> Option<Decision> {
        if sample.bytes < CALL_BYTES_MIN {
            return None;
        }
        self.calls.add(&sample);
        match self.stage {
            Stage::Watch => {
                if self.calls.count < CALLS {
                    return None;
                }
                let calls = std::mem::take(&mut self.calls);
                let quiet = self.quiet_until.is_some_and(|until| now < until);
                let waited_for = calls.busy >= BUSY_SHARE * calls.elapsed;
                if quiet || !waited_for || self.streams >= self.streams_max {
                    return None;
                }
                self.stage = Stage::Trial { before: self.streams, speed: calls.speed() };
                self.streams = (2 * self.streams).min(self.streams_max);
                Some(Decision::Try { streams: self.streams })
            }
            Stage::Trial { .. } if self.calls.count == CALLS_WARM_UP && !self.warm => {
                (self.warm, self.calls) = (true, Calls::default());
                None
            }
            Stage::Trial { .. } if !self.warm || self.calls.count < CALLS => None,
            Stage::Trial { before, speed } => {
                let gain = std::mem::take(&mut self.calls).speed() / speed;
                self.warm = false;
                self.stage = Stage::Watch;
                if gain >= GAIN_MIN {
                    self.peace = PEACE;
                    return Some(Decision::Keep { streams: self.streams, gain });
                }
                self.streams = before;
                self.rest(now);
                Some(Decision::Return { streams: before, gain })
            }
        }
    }

    fn rest(&mut self, now: Instant) {
        (self.stage, self.calls, self.warm) = (Stage::Watch, Calls::default(), false);
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
            Self { striping: Striping::new(STREAMS_MAX), now: Instant::ORIGIN, decisions: Vec::new() }
        }

        /// Calls at the pace of the others, or of this link if that is slower, in bytes per second.
        fn calls(&mut self, count: u32, others: f64, speed: impl Fn(u8) -> f64) {
            for _ in 0..count {
                let own = speed(self.striping.streams());
                let seconds = |speed: f64| Duration::from_secs_f64(16.0 * MIB as f64 / speed);
                let elapsed = seconds(own.min(others));
                self.now += elapsed;
                let sample = Sample { bytes: 16 * MIB, elapsed, busy: seconds(own) };
                self.decisions.extend(self.striping.handle_call(self.now, sample));
            }
        }
    }

    const FAST: f64 = 1e12;

    #[test]
    fn a_link_that_limits_each_flow_gets_as_many_as_help() {
        let mut link = Link::new();
        // Each stream gets 10 MB/s, and the line ends at 75.
        link.calls(60, FAST, |streams| (10e6 * f64::from(streams)).min(75e6));
        assert_eq!(link.striping.streams(), 8);
        let kept = |decision: &&Decision| matches!(decision, Decision::Keep { .. });
        assert_eq!(link.decisions.iter().filter(kept).count(), 3, "{:?}", link.decisions);
    }

    #[test]
    fn where_all_links_are_alike_the_first_to_try_keeps_what_it_found() {
        let mut link = Link::new();
        // The others have one stream still, so the pace does not change.
        link.calls(40, 10e6, |streams| 10e6 * f64::from(streams));
        assert!(matches!(
            link.decisions[..],
            [Decision::Try { streams: 2 }, Decision::Keep { streams: 2, .. }]
        ));
    }

    #[test]
    fn a_link_that_one_stream_fills_goes_back_to_one_and_is_left_in_peace() {
        let mut link = Link::new();
        link.calls(10, FAST, |_| 100e6);
        assert!(matches!(
            link.decisions[..],
            [Decision::Try { streams: 2 }, Decision::Return { streams: 1, .. }]
        ));
        // 16 MiB take a sixth of a second, so these are two minutes.
        link.calls(720, FAST, |_| 100e6);
        let trials =
            link.decisions.iter().filter(|decision| matches!(decision, Decision::Try { .. })).count();
        assert!((2..=4).contains(&trials), "{trials} trials in two minutes");
        assert_eq!(link.striping.streams(), 1);
    }

    #[test]
    fn a_link_that_is_not_the_reason_is_left_alone() {
        let mut link = Link::new();
        link.calls(100, 30e6, |_| 100e6);
        assert_eq!(link.decisions, []);
    }

    #[test]
    fn small_calls_say_nothing() {
        let mut striping = Striping::new(STREAMS_MAX);
        let second = Duration::from_secs(1);
        let sample = Sample { bytes: CALL_BYTES_MIN - 1, elapsed: second, busy: second };
        assert!((0..100).all(|_| striping.handle_call(Instant::ORIGIN, sample).is_none()));
    }

    #[test]
    fn lost_streams_are_not_tried_again_at_once() {
        let mut link = Link::new();
        link.calls(10, FAST, |streams| 10e6 * f64::from(streams));
        assert_eq!(link.striping.streams(), 2);
        link.striping.handle_lost(link.now, 1);
        let so_far = link.decisions.len();
        link.calls(8, FAST, |streams| 10e6 * f64::from(streams));
        assert_eq!((link.striping.streams(), link.decisions.len()), (1, so_far));
    }
}
