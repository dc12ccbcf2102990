//! Wires of memory: they take a few bytes at a time, stall, keep what they took until they are flushed, and break,
//! all as a seed says.

use crate::link::Wire;
use crate::sync::{Arc, Mutex, lock};
use outlast_proto::rng::Rng;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How much is on its way in one direction at most.
const ROOM: usize = 3_000;

/// A descriptor that is always ready: whoever polls it tries.
pub(super) fn always_ready() -> Arc<OwnedFd> {
    Arc::new(eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
}

#[derive(Default)]
struct Way {
    bytes: VecDeque<u8>,
    /// The sending end is gone.
    is_closed: bool,
}

struct Both {
    ways: [Way; 2],
    /// It breaks after so many uses.
    breaks_after: Option<usize>,
}

/// One end.
pub(super) struct MemoryWire {
    both: Arc<Mutex<Both>>,
    side: usize,
    /// Taken from the sender, and not on its way yet.
    taken: Vec<u8>,
    rng: Rng,
    ready: Arc<OwnedFd>,
}

/// The two ends of a stream.
pub(super) fn pair(rng: &mut Rng, ready: &Arc<OwnedFd>, breaks_after: Option<usize>) -> [MemoryWire; 2] {
    let both = Arc::new(Mutex::new(Both { ways: Default::default(), breaks_after }));
    [0, 1].map(|side| MemoryWire {
        both: Arc::clone(&both),
        side,
        taken: Vec::new(),
        rng: rng.split(),
        ready: Arc::clone(ready),
    })
}

impl MemoryWire {
    /// Whether this use of it stalls, or finds it broken.
    fn try_use(&mut self) -> io::Result<()> {
        let mut both = lock(&self.both);
        match &mut both.breaks_after {
            Some(0) => Err(ErrorKind::ConnectionReset.into()),
            breaks_after => {
                if let Some(left) = breaks_after {
                    *left -= 1;
                }
                if self.rng.chance(0.3) { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
            }
        }
    }

    fn some(&mut self, bytes: usize) -> usize {
        // Most of it as a rule, a few bytes now and then: header and payload are cut anywhere.
        if self.rng.chance(0.5) { bytes } else { 1 + self.rng.below(bytes.min(100)) }
    }
}

impl Wire for MemoryWire {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_use()?;
        if self.taken.len() >= ROOM {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut sent = 0;
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let count = self.some(piece.len());
            self.taken.extend_from_slice(&piece[..count]);
            sent += count;
            if count < piece.len() {
                break;
            }
        }
        Ok(sent)
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.try_use()?;
        let mut received = 0;
        for piece in pieces.iter_mut() {
            let wanted = piece.len().min(lock(&self.both).ways[1 - self.side].bytes.len());
            let count = if wanted > 0 { self.some(wanted) } else { 0 };
            let way = &mut lock(&self.both).ways[1 - self.side];
            piece.iter_mut().zip(way.bytes.drain(..count)).for_each(|(place, byte)| *place = byte);
            received += count;
            if count < piece.len() {
                break;
            }
        }
        match received {
            0 if !lock(&self.both).ways[1 - self.side].is_closed => Err(ErrorKind::WouldBlock.into()),
            received => Ok(received),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.taken.is_empty() {
            return Ok(());
        }
        self.try_use()?;
        let count = self.some(self.taken.len());
        let way = &mut lock(&self.both).ways[self.side].bytes;
        let count = count.min(ROOM - way.len());
        way.extend(self.taken.drain(..count));
        if self.taken.is_empty() { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn wants_checksums(&self) -> bool {
        true
    }
}

impl Drop for MemoryWire {
    fn drop(&mut self) {
        let mut both = lock(&self.both);
        both.ways[self.side].is_closed = true;
    }
}
