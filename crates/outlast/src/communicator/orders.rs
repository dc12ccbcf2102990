//! What the session wants a call's thread to do, and where the thread waits for it.
//!
//! A call that waits for a verdict is a wait like any other: its thread has a [`Seat`], and drives data links and the
//! control connection while nobody else does (see [`crate::baton`]).

use crate::executor::{Abort, Seat};
use crate::sync::{Arc, Mutex, lock};
use outlast_proto::collective::Attempt;
use outlast_proto::session::Outcome;
use std::collections::VecDeque;
use std::time::Instant;

/// What a call's thread is told.
#[derive(Debug)]
pub(super) enum Order {
    Perform(Attempt, Abort),
    Commit,
    Undo,
    Finish(Outcome),
}

/// The orders of one call.
pub(super) struct Orders {
    queue: Mutex<VecDeque<Order>>,
    seat: Arc<Seat>,
}

impl Orders {
    pub(super) fn new(seat: Seat) -> Self {
        Self { queue: Mutex::default(), seat: Arc::new(seat) }
    }

    pub(super) fn take(&self) -> Option<Order> {
        lock(&self.queue).pop_front()
    }

    pub(super) fn put(&self, order: Order) {
        lock(&self.queue).push_back(order);
        self.seat.notify();
    }

    /// Waits for the next order; `None` if none came by `until`.
    pub(super) fn wait(&self, until: Instant) -> Option<Order> {
        self.seat.wait(until, || self.take())
    }
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Orders").field(&self.queue).finish()
    }
}
