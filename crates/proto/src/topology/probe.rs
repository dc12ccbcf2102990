//! What two members say to each other while they measure the links between them.
//!
//! ```text
//!   dials                                     is dialled
//!     | -- Hello(token) --------------------> |   waits until it is its turn
//!     | <------------------- Ready(token) --- |
//!     | -- Ping -> <- Ping, some times ------ |   the round trip
//!     | -- Join(token), on each bulk stream > |
//!     | -- Go(streams, how long) -----------> |
//!     | <----------------------- Started ---- |
//!     | <===== bytes both ways, at once ====> |   on the bulk streams
//!     | -- Found(rate) -> <- Found(rate) ---- |   what arrived at each end; then both close
//! ```
//!
//! Words have their own stream, so that none waits behind the bytes. Each is [`WORD_BYTES`] long, with a version.

/// Bytes of one word.
pub const WORD_BYTES: usize = 16;

const VERSION: u8 = 1;

/// Bulk streams that one measurement uses at most.
pub const STREAMS_MAX: u8 = 8;

/// Longest measurement, in microseconds.
pub const DURATION_US_MAX: u64 = 10_000_000;

/// One word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Somebody wants to measure; the number names this measurement.
    Hello(u64),
    /// It is our turn, too.
    Ready(u64),
    /// There and back.
    Ping(u64),
    /// On a bulk stream: which measurement it belongs to.
    Join(u64),
    /// Both begin, over that many bulk streams, for that many microseconds.
    Go(u8, u64),
    /// The streams are here: now.
    Started,
    /// That many bytes per second have arrived.
    Found(u64),
}

/// Why bytes are no word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no word of a measurement: version {0}, kind {1}")]
pub struct NoWord(pub u8, pub u8);

impl Word {
    /// As bytes.
    pub fn encode(self) -> [u8; WORD_BYTES] {
        let (kind, small, one): (u8, u8, u64) = match self {
            Self::Hello(token) => (1, 0, token),
            Self::Ready(token) => (2, 0, token),
            Self::Ping(number) => (3, 0, number),
            Self::Join(token) => (4, 0, token),
            Self::Go(streams, micros) => (5, streams, micros),
            Self::Started => (6, 0, 0),
            Self::Found(rate) => (7, 0, rate),
        };
        let mut bytes = [0; WORD_BYTES];
        (bytes[0], bytes[1], bytes[2]) = (VERSION, kind, small);
        bytes[8..].copy_from_slice(&one.to_be_bytes());
        bytes
    }

    /// What bytes say. They come from another member, which is known, and may still be of another version or lie: what
    /// it asks for is held to the limits.
    pub fn decode(bytes: &[u8; WORD_BYTES]) -> Result<Self, NoWord> {
        let (version, kind, small) = (bytes[0], bytes[1], bytes[2]);
        let one = bytes[8..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        match kind {
            _ if version != VERSION => Err(NoWord(version, kind)),
            1 => Ok(Self::Hello(one)),
            2 => Ok(Self::Ready(one)),
            3 => Ok(Self::Ping(one)),
            4 => Ok(Self::Join(one)),
            5 => Ok(Self::Go(small.clamp(1, STREAMS_MAX), one.min(DURATION_US_MAX))),
            6 => Ok(Self::Started),
            7 => Ok(Self::Found(one)),
            _ => Err(NoWord(version, kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_way_and_nothing_else_is_one() {
        let words = [
            Word::Hello(7),
            Word::Ready(u64::MAX),
            Word::Ping(0),
            Word::Join(9),
            Word::Go(4, 300_000),
            Word::Started,
            Word::Found(1 << 40),
        ];
        for word in words {
            assert_eq!(Word::decode(&word.encode()), Ok(word));
        }
        let mut later = Word::Started.encode();
        later[0] = 2;
        assert_eq!(Word::decode(&later), Err(NoWord(2, 6)));
        assert_eq!(Word::decode(&[0xff; WORD_BYTES]), Err(NoWord(0xff, 0xff)));
        assert!((8..=255u8).all(|kind| {
            let mut bytes = Word::Started.encode();
            bytes[1] = kind;
            Word::decode(&bytes).is_err()
        }));
    }

    #[test]
    fn what_is_asked_for_is_held_to_the_limits() {
        let greedy = Word::decode(&Word::Go(255, u64::MAX).encode());
        assert_eq!(greedy, Ok(Word::Go(STREAMS_MAX, DURATION_US_MAX)));
        assert_eq!(Word::decode(&Word::Go(0, 1).encode()), Ok(Word::Go(1, 1)));
    }
}
