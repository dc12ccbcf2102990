//! Waking whoever waits in a poll, from any thread.

use crate::fork::Guarded;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A bell that can be polled beside sockets. Ringing it while it rings already costs an atomic swap.
#[derive(Debug)]
pub(crate) struct Bell {
    ringing: AtomicBool,
    event: Guarded<OwnedFd>,
}

impl Bell {
    pub(crate) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { ringing: AtomicBool::new(false), event: Guarded::new(event)? })
    }

    /// Wakes whoever listens, now or at its next look.
    pub(crate) fn ring(&self) {
        if !self.ringing.swap(true, Ordering::SeqCst) {
            // The counter cannot overflow: one ring, one answer. So the only error would be a closed
            // descriptor, and ours is open as long as `self` lives.
            let _ = write(&*self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Whether it rang and nobody has answered yet.
    pub(crate) fn is_ringing(&self) -> bool {
        self.ringing.load(Ordering::SeqCst)
    }

    /// Whether it rang since the last answer. Whatever was done before the ring is visible after `true`.
    pub(crate) fn answer(&self) -> bool {
        if !self.ringing.load(Ordering::Relaxed) {
            return false;
        }
        let _ = read(&*self.event, &mut [0_u8; 8]);
        // Cleared after the read: a ring in between finds it still ringing and is covered by this answer.
        self.ringing.swap(false, Ordering::SeqCst)
    }

    /// A poll found it readable. A ring that was being written while it was answered is answered once more: its
    /// bytes came after the answer, and would be readable forever.
    pub(crate) fn heard(&self) {
        self.ringing.store(true, Ordering::SeqCst);
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(bell: &Bell) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(bell.descriptor(), PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())) == Ok(1)
    }

    #[test]
    fn it_rings_once_until_it_is_answered() {
        let bell = Bell::new().unwrap();
        assert!(!bell.answer() && !is_readable(&bell));
        bell.ring();
        bell.ring();
        assert!(bell.is_ringing() && is_readable(&bell));
        assert!(bell.answer());
        assert!(!bell.is_ringing() && !is_readable(&bell) && !bell.answer());
    }

    #[test]
    fn a_ring_whose_bytes_came_after_the_answer_does_not_keep_a_poll_awake_for_ever() {
        let bell = Bell::new().unwrap();
        write(&*bell.event, &1_u64.to_ne_bytes()).unwrap();
        assert!(!bell.answer() && is_readable(&bell));
        bell.heard();
        assert!(bell.answer() && !is_readable(&bell));
    }
}
