//! Ending an operation from outside, in any wait.

use crate::bell::Bell;
use crate::sync::{Arc, Mutex, lock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Ends one operation from outside, at any byte. Clones are the same abort.
#[derive(Clone, Debug, Default)]
pub struct Abort(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    triggered: AtomicBool,
    next: AtomicU64,
    listeners: Mutex<Vec<(u64, Arc<Bell>)>>,
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
