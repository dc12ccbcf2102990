//! A wire that waits, with a deadline and somebody who may call it off.

use crate::link::Wire;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a wait looks whether it is still wanted.
const BEAT: Duration = Duration::from_millis(20);

/// One stream between a receiver and a donor.
pub(crate) struct Stream {
    wire: Box<dyn Wire>,
    /// How many bytes came, by this stream and those that it shares the count with.
    received: Arc<AtomicU64>,
}

impl Stream {
    pub(crate) fn new(wire: Box<dyn Wire>) -> Self {
        Self { wire, received: Arc::default() }
    }

    /// Counts what comes together with other streams, for somebody who looks on.
    pub(crate) fn counted_in(self, received: &Arc<AtomicU64>) -> Self {
        Self { received: Arc::clone(received), ..self }
    }

    /// The wire itself, for whoever waits in a way of its own.
    pub(crate) fn wire(&self) -> &dyn Wire {
        &*self.wire
    }

    /// The same, to send and receive.
    pub(crate) fn wire_mut(&mut self) -> &mut dyn Wire {
        &mut *self.wire
    }

    /// Waits until something can be done. An error once `patience` has passed since `quiet`, or if it is called off.
    fn wait(
        &self,
        flags: PollFlags,
        quiet: Instant,
        patience: Duration,
        off: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        if off() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "called off"));
        }
        let left = patience.saturating_sub(quiet.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let descriptor = self.wire.descriptor();
        let beat = Timespec::try_from(left.min(BEAT)).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
        match poll(&mut [PollFd::new(&descriptor, flags)], Some(&beat)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends all of it. Gives up when nothing could be sent for `patience`.
    pub(crate) fn send(
        &mut self,
        bytes: &[u8],
        patience: Duration,
        off: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let (mut sent, mut quiet) = (0, Instant::now());
        loop {
            let step = if sent < bytes.len() {
                self.wire.send(&[IoSlice::new(&bytes[sent..])])
            } else {
                match self.wire.flush() {
                    Ok(()) => return Ok(()),
                    Err(error) => Err(error),
                }
            };
            match step {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => (sent, quiet) = (sent + count, Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, quiet, patience, off)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Fills all of it. Gives up when nothing came for `patience`. `false` if the other side closed before the first byte.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        patience: Duration,
        off: &dyn Fn() -> bool,
    ) -> io::Result<bool> {
        let (mut received, mut quiet) = (0, Instant::now());
        while received < bytes.len() {
            match self.wire.receive(&mut [IoSliceMut::new(&mut bytes[received..])]) {
                Ok(0) if received == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.received.fetch_add(count as u64, Ordering::Relaxed);
                    (received, quiet) = (received + count, Instant::now());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::IN, quiet, patience, off)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
