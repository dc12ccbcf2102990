//! One direction of a control stream, as bytes.
//!
//! What is sent is encoded and framed by the production code, and joins the bytes under way. They arrive in order,
//! in pieces that know nothing of frames: a piece may end in the middle of a message, or hold the rest of one and
//! the beginning of the next. When the stream breaks, it breaks at some byte: what lies before it may still
//! arrive, and what is left of a frame that was torn in two is never looked at.

use outlast_proto::limits::CONTROL_BYTES_MAX;
use outlast_proto::rng::Rng;
use outlast_proto::time::Instant;
use outlast_proto::wire::frame::{self, FrameBuffer};
use outlast_proto::wire::{InvalidMessage, Message, decode, encode};
use std::collections::VecDeque;

/// How often a piece ends where no message ends.
const TORN: f64 = 0.2;

/// A message as it travels.
pub(super) fn framed<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::append(&encode(message), &mut bytes);
    bytes
}

/// One direction of one stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// When the last byte that was sent arrives; nothing sent later arrives earlier.
    pub(super) last: Instant,
    flight: VecDeque<u8>,
    arrived: u64,
    /// The first byte that never arrives, once the stream is broken or closed.
    end: Option<u64>,
    incoming: FrameBuffer,
    /// When each message was sent that has not been taken yet.
    sent: VecDeque<Instant>,
}

impl Stream {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last: now,
            flight: VecDeque::new(),
            arrived: 0,
            end: None,
            incoming: FrameBuffer::new(CONTROL_BYTES_MAX),
            sent: VecDeque::new(),
        }
    }

    /// Whether nothing more can be sent.
    pub(super) fn is_cut(&self) -> bool {
        self.end.is_some()
    }

    /// Sends one framed message. Returns up to which byte the pieces reach in which it arrives.
    pub(super) fn send(&mut self, now: Instant, bytes: &[u8], rng: &mut Rng) -> (Option<u64>, u64) {
        let before = self.arrived + self.flight.len() as u64;
        self.flight.extend(bytes);
        self.sent.push_back(now);
        let torn = rng.chance(TORN).then(|| before + 1 + rng.below(bytes.len() - 1) as u64);
        (torn, before + bytes.len() as u64)
    }

    /// The bytes up to that one arrive, and perhaps some of the next.
    pub(super) fn arrive(&mut self, up_to: u64, rng: &mut Rng) {
        let all = self.arrived + self.flight.len() as u64;
        let more = if rng.chance(TORN) { rng.below((all.saturating_sub(up_to)) as usize + 1) } else { 0 };
        let up_to = (up_to + more as u64).min(self.end.unwrap_or(u64::MAX)).min(all);
        let count = up_to.saturating_sub(self.arrived) as usize;
        self.arrived += count as u64;
        let piece: Vec<_> = self.flight.drain(..count).collect();
        self.incoming.push(&piece);
    }

    /// The next whole message that has arrived, and when it was sent.
    pub(super) fn take<M: Message>(&mut self) -> Option<Result<(M, Instant), InvalidMessage>> {
        let frame = match self.incoming.take() {
            Ok(frame) => frame?,
            Err(error) => return Some(Err(error)),
        };
        let sent = self.sent.pop_front().unwrap_or(Instant::ORIGIN);
        Some(decode(&frame).map(|message| (message, sent)))
    }

    /// Nothing more is sent; what is under way still arrives.
    pub(super) fn close(&mut self) {
        let all = self.arrived + self.flight.len() as u64;
        self.end.get_or_insert(all);
    }

    /// The stream breaks at some byte of those under way.
    pub(super) fn tear(&mut self, rng: &mut Rng) {
        let at = self.arrived + rng.below(self.flight.len() + 1) as u64;
        self.end = Some(self.end.unwrap_or(at).min(at));
    }

    /// A planted bug: one byte of what was sent last is another.
    pub(super) fn spoil(&mut self) {
        if let Some(byte) = self.flight.back_mut() {
            *byte ^= 0x55;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_proto::wire::control::ToPeer;

    fn send_all(stream: &mut Stream, rng: &mut Rng, count: u64) -> Vec<u64> {
        let mut pieces = Vec::new();
        for term in 0..count {
            let (torn, whole) =
                stream.send(Instant::from_nanos(term), &framed(&ToPeer::Registered { term }), rng);
            pieces.extend(torn.into_iter().chain([whole]));
        }
        pieces
    }

    #[test]
    fn messages_arrive_whole_and_in_order_however_the_bytes_are_cut() {
        for seed in 0..50 {
            let mut rng = Rng::from_seed(seed);
            let mut stream = Stream::new(Instant::ORIGIN);
            let mut taken = Vec::new();
            for piece in send_all(&mut stream, &mut rng, 40) {
                stream.arrive(piece, &mut rng);
                while let Some(next) = stream.take::<ToPeer>() {
                    taken.push(next.unwrap());
                }
            }
            let sent = (0..40).map(|term| (ToPeer::Registered { term }, Instant::from_nanos(term)));
            assert_eq!(taken, sent.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_torn_stream_gives_a_prefix_and_loses_the_frame_that_was_torn() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut rng = Rng::from_seed(seed);
            let mut stream = Stream::new(Instant::ORIGIN);
            let pieces = send_all(&mut stream, &mut rng, 4);
            stream.tear(&mut rng);
            assert!(stream.is_cut());
            let mut terms = Vec::new();
            for piece in pieces {
                stream.arrive(piece, &mut rng);
                while let Some(next) = stream.take::<ToPeer>() {
                    if let (ToPeer::Registered { term }, _) = next.unwrap() {
                        terms.push(term);
                    }
                }
            }
            assert_eq!(terms, (0..terms.len() as u64).collect::<Vec<_>>());
            lengths.insert(terms.len());
        }
        assert!(lengths.len() >= 4, "every number of messages survives now and then: {lengths:?}");
    }
}
