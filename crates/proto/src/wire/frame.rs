//! Where one message ends and the next begins, on a stream.
//!
//! A frame is a length in four bytes, big-endian, and that many bytes. The length comes from outside: it is
//! held against a limit before anything is allocated for it, and the buffer grows with what has arrived, not
//! with what was announced. So a peer that announces a megabyte and sends nothing costs nothing.
//!
//! The invariant: a [`FrameBuffer`] holds at most one frame of the limit's length, its header, and what was
//! pushed last.

use super::{InvalidMessage, Message};
use crate::limits::FRAME_BYTES_MAX;

const HEADER_BYTES: usize = 4;

/// Appends `payload` as one frame to `out`.
/// Whatever keeps the limits fits (rule 40). What does not is refused by the other side, which closes the stream; only a
/// test build stops here.
pub fn append(payload: &[u8], out: &mut Vec<u8>) {
    let length = payload.len();
    debug_assert!(
        length <= FRAME_BYTES_MAX,
        "built a frame of {length} bytes, the limit is {FRAME_BYTES_MAX}"
    );
    out.reserve(HEADER_BYTES + length);
    out.extend_from_slice(&(length as u32).to_be_bytes());
    out.extend_from_slice(payload);
}

/// Appends `message` as one frame to `out`, encoded where it is to be. See [`super::encode`] and [`append`].
pub fn append_message<M: Message>(message: &M, out: &mut Vec<u8>) {
    let header = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    minicbor::encode(message, &mut *out).expect("a Vec takes every byte");
    let length = out.len() - header - HEADER_BYTES;
    debug_assert!(length <= M::BYTES_MAX.min(FRAME_BYTES_MAX), "built a message of {length} bytes");
    out[header..header + HEADER_BYTES].copy_from_slice(&(length as u32).to_be_bytes());
}

/// Cuts a stream of bytes into frames. Push what was read, then take frames until there is none, then read on.
///
/// An error is for good: the stream cannot be cut any further and must be closed.
#[derive(Clone, Debug)]
pub struct FrameBuffer {
    limit: usize,
    bytes: Vec<u8>,
    /// How many of them were taken; they go when all were, or when more is pushed.
    taken: usize,
}

impl FrameBuffer {
    /// A buffer for frames of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.min(FRAME_BYTES_MAX), bytes: Vec::new(), taken: 0 }
    }

    /// From the next frame on, allows `limit` bytes. The hello is short; what follows it may be longer.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(FRAME_BYTES_MAX);
    }

    /// Takes up what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more is pushed.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, InvalidMessage> {
        let Some((header, rest)) = self.bytes[self.taken..].split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*header) as usize;
        if length > self.limit {
            return Err(InvalidMessage::TooLong { bytes: length, limit: self.limit });
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let payload = payload.to_vec();
        self.taken += HEADER_BYTES + length;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        }
        Ok(Some(payload))
    }

    /// Bytes of a frame that is not whole yet. A stream that ends while there are any was cut off.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
        let mut buffer = FrameBuffer::new(10);
        buffer.push(&11u32.to_be_bytes());
        assert_eq!(buffer.take(), Err(InvalidMessage::TooLong { bytes: 11, limit: 10 }));
        let mut buffer = FrameBuffer::new(usize::MAX);
        buffer.push(&u32::MAX.to_be_bytes());
        let error = InvalidMessage::TooLong { bytes: u32::MAX as usize, limit: FRAME_BYTES_MAX };
        assert_eq!(buffer.take(), Err(error));
    }

    #[test]
    fn what_was_announced_and_has_not_come_takes_no_memory() {
        let mut buffer = FrameBuffer::new(FRAME_BYTES_MAX);
        buffer.push(&(FRAME_BYTES_MAX as u32).to_be_bytes());
        assert_eq!(buffer.take(), Ok(None));
        assert!(buffer.bytes.capacity() < 64, "{} bytes reserved", buffer.bytes.capacity());
    }

    #[test]
    fn the_limit_may_change_between_frames() {
        let mut buffer = FrameBuffer::new(4);
        let mut bytes = Vec::new();
        append(b"abcd", &mut bytes);
        append(b"abcdef", &mut bytes);
        buffer.push(&bytes);
        assert_eq!(buffer.take(), Ok(Some(b"abcd".to_vec())));
        assert!(buffer.clone().take().is_err());
        buffer.set_limit(6);
        assert_eq!(buffer.take(), Ok(Some(b"abcdef".to_vec())));
        assert_eq!((buffer.take(), buffer.pending()), (Ok(None), 0));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..10),
            cuts in prop::collection::vec(1usize..20, 1..20),
        ) {
            let mut stream = Vec::new();
            for payload in &payloads {
                append(payload, &mut stream);
            }
            let (mut buffer, mut received, mut rest) = (FrameBuffer::new(50), Vec::new(), stream.as_slice());
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                buffer.push(now);
                while let Some(payload) = buffer.take().unwrap() {
                    received.push(payload);
                }
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(received, payloads);
        }
    }
}
