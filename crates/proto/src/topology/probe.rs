//! What two members say to each other while they measure the links between them.
//!
//! ```text
//!   dials                                     is dialled
//!     | -- Hello(token) --------------------> |   waits until it is its turn
//!     | <------------------- Ready(token) --- |
//!     | -- Ping -> <- Ping, some times ------ |   the round trip
//!   +-| -- Join(token), on each bulk stream > |
//!   | | -- Go(way, streams, how long) ------> |
//!   | | <----------------------- Started ---- |
//!   | | <===== bytes, one way or both ======> |   on the bulk streams
//!   +-| -- Found(rate) -> <- Found(rate) ---- |   what arrived at each end; then both close these streams
//!     | -- Over ----------------------------> |
//! ```
//!
//! Messages have their own stream, so that none waits behind the bytes. Each is [`PROBE_MESSAGE_BYTES`] long, with a version.
//!
//! # One way, the other, and both
//!
//! In a ring of three or more a link carries data one way, and only acknowledgements come back on it. If both directions of
//! a pair are filled at once and one of them is slow, the acknowledgements of the fast one wait in the slow one's queue, and
//! the fast one looks like a third of what it is. So each direction is measured [alone](Course). A member does send
//! and receive at the same time, though, with one processor and one network card. So both directions follow at once, and
//! what they carry then counts if it is less, unless queues have made round trips so long that it cannot have got up to
//! speed.
//!
//! A queue that fills makes the round trips longer than the pings were. Ten round trips are ten of those: a way whose
//! queues turn out to be long is measured again, for longer.

use crate::time::Duration;

/// Bytes of one message.
pub const PROBE_MESSAGE_BYTES: usize = 16;

const VERSION: u8 = 2;

/// Bulk streams that one measurement uses at most.
pub const STREAMS_MAX: u8 = 8;

/// Longest part of a measurement, in microseconds.
pub const DURATION_US_MAX: u64 = 10_000_000;

/// Which way bytes go, as the one who dialled sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the one who dialled.
    Out,
    /// To the one who dialled.
    In,
    /// Both at once.
    Both,
}

impl Way {
    /// Whether the one who dialled sends.
    pub fn goes_out(self) -> bool {
        self != Self::In
    }

    /// Whether the other one does.
    pub fn comes_in(self) -> bool {
        self != Self::Out
    }
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeMessage {
    /// Somebody wants to measure; the number names this measurement.
    Hello(u64),
    /// It is our turn, too.
    Ready(u64),
    /// There and back.
    Ping(u64),
    /// On a bulk stream: which measurement it belongs to.
    Join(u64),
    /// Begin: this way, over that many bulk streams, for that many microseconds.
    Go(Way, u8, u64),
    /// The streams are here: now.
    Started,
    /// That many bytes per second have arrived, and a round trip took that many microseconds while we sent; zero for what
    /// we did not do.
    Found(u64, u32),
    /// That was all.
    Over,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no message of a measurement: version {0}, kind {1}")]
pub struct BadProbeMessage(pub u8, pub u8);

impl ProbeMessage {
    /// As bytes.
    pub fn encode(self) -> [u8; PROBE_MESSAGE_BYTES] {
        let way = |way: Way| match way {
            Way::Out => 1,
            Way::In => 2,
            Way::Both => 3,
        };
        let (kind, small, middle, one): (u8, u8, u32, u64) = match self {
            Self::Hello(token) => (1, 0, 0, token),
            Self::Ready(token) => (2, 0, 0, token),
            Self::Ping(number) => (3, 0, 0, number),
            Self::Join(token) => (4, 0, 0, token),
            Self::Go(ways, streams, micros) => (5, streams, way(ways), micros),
            Self::Started => (6, 0, 0, 0),
            Self::Found(rate, loaded) => (7, 0, loaded, rate),
            Self::Over => (8, 0, 0, 0),
        };
        let mut bytes = [0; PROBE_MESSAGE_BYTES];
        (bytes[0], bytes[1], bytes[2]) = (VERSION, kind, small);
        bytes[4..8].copy_from_slice(&middle.to_be_bytes());
        bytes[8..].copy_from_slice(&one.to_be_bytes());
        bytes
    }

    /// What bytes say. They come from another member, which is known, and may still be of another version or lie: what
    /// it asks for is held to the limits.
    pub fn decode(bytes: &[u8; PROBE_MESSAGE_BYTES]) -> Result<Self, BadProbeMessage> {
        let (version, kind, small) = (bytes[0], bytes[1], bytes[2]);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let (middle, one) = (number(&bytes[4..8]) as u32, number(&bytes[8..]));
        let way = match middle {
            1 => Some(Way::Out),
            2 => Some(Way::In),
            3 => Some(Way::Both),
            _ => None,
        };
        match kind {
            _ if version != VERSION => Err(BadProbeMessage(version, kind)),
            1 => Ok(Self::Hello(one)),
            2 => Ok(Self::Ready(one)),
            3 => Ok(Self::Ping(one)),
            4 => Ok(Self::Join(one)),
            5 => {
                let way = way.ok_or(BadProbeMessage(version, kind))?;
                Ok(Self::Go(way, small.clamp(1, STREAMS_MAX), one.min(DURATION_US_MAX)))
            }
            6 => Ok(Self::Started),
            7 => Ok(Self::Found(one, middle)),
            8 => Ok(Self::Over),
            _ => Err(BadProbeMessage(version, kind)),
        }
    }
}

/// The shortest part of a measurement, and in round trips.
pub const PART_MIN: Duration = Duration::from_millis(200);
const PART_ROUND_TRIPS: u32 = 10;
/// A part that is repeated because of its queues takes no longer than this.
const PART_LOADED_MAX: Duration = Duration::from_secs(1);

/// What one direction carried.
#[derive(Clone, Copy, Debug)]
struct Leg {
    rate: u64,
    took: Duration,
    /// A round trip while it was full.
    loaded: Duration,
    is_again: bool,
}

impl Leg {
    /// Whether it was full for long enough to have got up to speed. On a long way a part lasts just ten round trips of the
    /// shortest kind, and under load none is so short: there twice as long ones do.
    fn is_settled(&self, round_trip: Duration) -> bool {
        PART_ROUND_TRIPS * self.loaded <= self.took || self.loaded <= 2 * round_trip
    }
}

/// What a measurement does next, and what came of it. See the module's essay.
#[derive(Clone, Debug)]
pub struct Course {
    round_trip: Duration,
    least: Duration,
    out: Option<Leg>,
    back: Option<Leg>,
    /// What each direction carried with the other one busy.
    both: Option<[Leg; 2]>,
}

impl Course {
    /// On a way with this round trip.
    pub fn new(round_trip: Duration) -> Self {
        let most = Duration::from_micros(DURATION_US_MAX);
        let least = (PART_ROUND_TRIPS * round_trip).clamp(PART_MIN, most);
        Self { round_trip, least, out: None, back: None, both: None }
    }

    /// Which way bytes are to go now, and for how long; none if all is known.
    pub fn next_part(&self) -> Option<(Way, Duration)> {
        for (way, leg) in [(Way::Out, &self.out), (Way::In, &self.back)] {
            match leg {
                None => return Some((way, self.least)),
                Some(leg) if !leg.is_settled(self.round_trip) && !leg.is_again => {
                    let longer = (PART_ROUND_TRIPS * leg.loaded).min(PART_LOADED_MAX);
                    if longer > leg.took {
                        return Some((way, longer));
                    }
                }
                Some(_) => {}
            }
        }
        let is_swift =
            |leg: &Option<Leg>| leg.is_some_and(|leg| leg.is_settled(self.round_trip) && !leg.is_again);
        let are_swift = is_swift(&self.out) && is_swift(&self.back);
        (are_swift && self.both.is_none()).then_some((Way::Both, self.least))
    }

    /// What a part came to: for what went out and for what came in, the bytes per second and the round trip meanwhile.
    pub fn note(&mut self, way: Way, took: Duration, out: (u64, Duration), back: (u64, Duration)) {
        let leg = |(rate, loaded), is_again| Leg { rate, took, loaded, is_again };
        match way {
            Way::Out => self.out = Some(leg(out, self.out.is_some())),
            Way::In => self.back = Some(leg(back, self.back.is_some())),
            Way::Both => self.both = Some([leg(out, false), leg(back, false)]),
        }
    }

    /// Bytes per second out and in, as far as they were measured.
    pub fn rates(&self) -> (u64, u64) {
        let settled = self.both.filter(|legs| legs.iter().all(|leg| leg.is_settled(self.round_trip)));
        let rate = |alone: Option<Leg>, place: usize| {
            let alone = alone.map_or(0, |leg| leg.rate);
            settled.map_or(alone, |both| alone.min(both[place].rate))
        };
        (rate(self.out, 0), rate(self.back, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn each_way_alone_then_both_and_less_counts() {
        let mut course = Course::new(MS);
        assert_eq!(course.next_part(), Some((Way::Out, PART_MIN)));
        course.note(Way::Out, PART_MIN, (1_000, 2 * MS), (0, Duration::ZERO));
        assert_eq!(course.next_part(), Some((Way::In, PART_MIN)));
        course.note(Way::In, PART_MIN, (0, Duration::ZERO), (900, 2 * MS));
        assert_eq!(course.next_part(), Some((Way::Both, PART_MIN)));
        // One processor for both: half of each.
        course.note(Way::Both, PART_MIN, (500, 2 * MS), (450, 2 * MS));
        assert_eq!((course.next_part(), course.rates()), (None, (500, 450)));
    }

    #[test]
    fn a_way_with_long_queues_is_measured_again_for_longer_and_never_both_ways() {
        let mut course = Course::new(2 * MS);
        course.note(Way::Out, PART_MIN, (20, 80 * MS), (0, Duration::ZERO));
        assert_eq!(course.next_part(), Some((Way::Out, 800 * MS)));
        // Still longer queues: what was found stands.
        course.note(Way::Out, 800 * MS, (50, 100 * MS), (0, Duration::ZERO));
        assert_eq!(course.next_part(), Some((Way::In, PART_MIN)));
        course.note(Way::In, PART_MIN, (0, Duration::ZERO), (5, 900 * MS));
        assert_eq!(course.next_part(), Some((Way::In, PART_LOADED_MAX)));
        course.note(Way::In, PART_LOADED_MAX, (0, Duration::ZERO), (6, 900 * MS));
        assert_eq!((course.next_part(), course.rates()), (None, (50, 6)));
    }

    #[test]
    fn on_a_long_way_both_directions_are_filled_at_once_too() {
        let mut course = Course::new(100 * MS);
        course.note(Way::Out, 1_000 * MS, (1_000, 110 * MS), (0, Duration::ZERO));
        assert_eq!(course.next_part(), Some((Way::In, 1_000 * MS)), "a little jitter is no queue");
        course.note(Way::In, 1_000 * MS, (0, Duration::ZERO), (900, 200 * MS));
        assert_eq!(course.next_part(), Some((Way::Both, 1_000 * MS)));
        course.note(Way::Both, 1_000 * MS, (500, 120 * MS), (450, 120 * MS));
        assert_eq!((course.next_part(), course.rates()), (None, (500, 450)));
        let mut course = Course::new(50 * MS);
        course.note(Way::Out, 500 * MS, (20, 101 * MS), (0, Duration::ZERO));
        assert_eq!(course.next_part(), Some((Way::Out, PART_LOADED_MAX)), "that is one");
    }

    #[test]
    fn both_ways_do_not_count_where_acknowledgements_waited() {
        let mut course = Course::new(MS);
        course.note(Way::Out, PART_MIN, (1_000, 5 * MS), (0, Duration::ZERO));
        course.note(Way::In, PART_MIN, (0, Duration::ZERO), (100, 5 * MS));
        course.note(Way::Both, PART_MIN, (300, 60 * MS), (90, 5 * MS));
        assert_eq!(course.rates(), (1_000, 100));
        assert_eq!(Course::new(50 * MS).next_part(), Some((Way::Out, 500 * MS)), "ten round trips");
    }

    #[test]
    fn words_survive_the_way_and_nothing_else_is_one() {
        let messages = [
            ProbeMessage::Hello(7),
            ProbeMessage::Ready(u64::MAX),
            ProbeMessage::Ping(0),
            ProbeMessage::Join(9),
            ProbeMessage::Go(Way::Out, 4, 300_000),
            ProbeMessage::Go(Way::In, 1, 200_000),
            ProbeMessage::Go(Way::Both, 4, 300_000),
            ProbeMessage::Started,
            ProbeMessage::Found(1 << 40, u32::MAX),
            ProbeMessage::Over,
        ];
        for message in messages {
            assert_eq!(ProbeMessage::decode(&message.encode()), Ok(message));
        }
        let mut later = ProbeMessage::Started.encode();
        later[0] = VERSION + 1;
        assert_eq!(ProbeMessage::decode(&later), Err(BadProbeMessage(VERSION + 1, 6)));
        let mut nowhere = ProbeMessage::Go(Way::Both, 1, 1).encode();
        nowhere[7] = 4;
        assert_eq!(ProbeMessage::decode(&nowhere), Err(BadProbeMessage(VERSION, 5)));
        assert_eq!(ProbeMessage::decode(&[0xff; PROBE_MESSAGE_BYTES]), Err(BadProbeMessage(0xff, 0xff)));
        assert!((9..=255u8).all(|kind| {
            let mut bytes = ProbeMessage::Started.encode();
            bytes[1] = kind;
            ProbeMessage::decode(&bytes).is_err()
        }));
    }

    #[test]
    fn what_is_asked_for_is_held_to_the_limits() {
        let greedy = ProbeMessage::decode(&ProbeMessage::Go(Way::Both, 255, u64::MAX).encode());
        assert_eq!(greedy, Ok(ProbeMessage::Go(Way::Both, STREAMS_MAX, DURATION_US_MAX)));
        assert_eq!(
            ProbeMessage::decode(&ProbeMessage::Go(Way::In, 0, 1).encode()),
            Ok(ProbeMessage::Go(Way::In, 1, 1))
        );
    }
}
