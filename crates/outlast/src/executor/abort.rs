//! Ending an operation from outside, in any wait.

use crate::bell::Bell;
use crate::sync::{Arc, Mutex, lock};
use outlast_proto::id::PeerId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Ends one operation from outside, at any byte. Clones are the same abort.
#[derive(Clone, Debug, Default)]
pub struct Abort(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    triggered: AtomicBool,
    next: AtomicU64,
    listeners: Mutex<Vec<(u64, Arc<Bell>)>>,
    strain: Mutex<Option<Strain>>,
}

/// What an operation asked of the link to the next member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strain {
    /// The other end.
    pub peer: PeerId,
    /// Bytes that its kernel acknowledged.
    pub bytes: u64,
    /// For how long there was anything to send and room for it over there.
    pub busy: Duration,
    /// How long the operation lasted.
    pub elapsed: Duration,
}

impl Abort {
    /// An abort that nobody triggered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops the operation. Every wait of it ends within moments; once triggered, it stays so.
    pub fn trigger(&self) {
        self.0.triggered.store(true, Ordering::SeqCst);
        for (_, bell) in lock(&self.0.listeners).iter() {
            bell.ring();
        }
    }

    /// Whether it was triggered.
    pub fn is_triggered(&self) -> bool {
        self.0.triggered.load(Ordering::SeqCst)
    }

    /// What the operation's link did, once the operation is over: told to whoever explains why it was ended.
    pub fn strain(&self) -> Option<Strain> {
        *lock(&self.0.strain)
    }

    pub(super) fn note_strain(&self, strain: Strain) {
        *lock(&self.0.strain) = Some(strain);
    }

    /// Rings `bell` on a trigger from now on, until the result is dropped.
    pub(super) fn listen(&self, bell: &Arc<Bell>) -> Listening<'_> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.listeners).push((number, Arc::clone(bell)));
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
        lock(&self.abort.0.listeners).retain(|(number, _)| *number != self.number);
    }
}
