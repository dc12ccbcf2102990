//! Waking whoever drives, from any thread, in any wait.

use crate::fork::Guarded;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A bell that can be polled beside sockets. Ringing it while it rings already costs an atomic swap.
#[derive(Debug)]
pub(crate) struct Wakeup {
    ringing: AtomicBool,
    event: Guarded<OwnedFd>,
}

impl Wakeup {
    pub(crate) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { ringing: AtomicBool::new(false), event: Guarded::new(event)? })
    }

    /// Wakes the driver, now or at its next look.
    pub(crate) fn ring(&self) {
        if !self.ringing.swap(true, Ordering::SeqCst) {
            // The counter cannot overflow: one ring, one answer. So the only error would be a closed
            // descriptor, and ours is open as long as `self` lives.
            let _ = write(&*self.event, &1_u64.to_ne_bytes());
        }
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
    /// bytes came after the answer, and would be readable for ever.
    pub(crate) fn heard(&self) {
        self.ringing.store(true, Ordering::SeqCst);
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Ends one operation from outside, at any byte. Clones are the same abort.
#[derive(Clone, Debug, Default)]
pub struct Abort(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    triggered: AtomicBool,
    next: AtomicU64,
    listeners: Mutex<Vec<(u64, Arc<Wakeup>)>>,
}

impl Abort {
    /// An abort that nobody triggered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops the operation. Every wait of it ends within moments; once triggered, it stays so.
    pub fn trigger(&self) {
        self.0.triggered.store(true, Ordering::SeqCst);
        for (_, wakeup) in self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            wakeup.ring();
        }
    }

    /// Whether it was triggered.
    pub fn is_triggered(&self) -> bool {
        self.0.triggered.load(Ordering::SeqCst)
    }

    /// Rings `wakeup` on a trigger from now on, until the result is dropped.
    pub(super) fn listen(&self, wakeup: &Arc<Wakeup>) -> Listening<'_> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let mut listeners = self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.push((number, Arc::clone(wakeup)));
        Listening { abort: self, number }
    }
}

/// See [`Abort::listen`].
pub(super) struct Listening<'a> {
    abort: &'a Abort,
    number: u64,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut listeners = self.abort.0.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|(number, _)| *number != self.number);
    }
}
