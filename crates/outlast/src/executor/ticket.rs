//! An operation's claim to its caller, and the caller's claim to its operation.
//!
//! An operation refers to its caller's memory, so a call must not return without it, not even when its thread panics
//! (rule 15). Two things see to that, whatever else goes wrong. The call waits until its operation is over, and if it
//! unwinds it waits again (`plane::Lent`). And an operation that is lost on the way, because whoever held it panicked, tells
//! its call as the last thing it does ([`Ticket`]).

use super::Stopped;
use super::operation::Operation;
use crate::sync::{Arc, Mutex, lock};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a call is told of its operation.
#[derive(Debug)]
pub(super) enum Told {
    /// It is over, and nobody else holds it any more.
    Over(Box<Operation>, Result<(), Stopped>),
    /// It is gone: whoever held it panicked. The memory is as it was.
    Gone,
}

/// Whoever waits for an operation.
pub(super) trait Caller: Send + Sync {
    /// There is something to be told.
    fn notify(&self);
}

/// What a call and its operation share.
pub(super) struct Claim {
    caller: Arc<dyn Caller>,
    over: AtomicBool,
    /// The call unwinds and wants its operation back.
    withdrawn: AtomicBool,
    told: Mutex<Option<Told>>,
}

impl Claim {
    pub(super) fn take(&self) -> Option<Told> {
        if self.over.load(Ordering::Acquire) { lock(&self.told).take() } else { None }
    }

    /// Wants the operation back as soon as can be.
    pub(super) fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Release);
    }

    fn tell(&self, told: Told) {
        *lock(&self.told) = Some(told);
        self.over.store(true, Ordering::Release);
        self.caller.notify();
    }
}

/// An operation's claim to its caller. It is dropped after everything that refers to the caller's memory.
pub(super) struct Ticket(Arc<Claim>);

impl Ticket {
    pub(super) fn new(caller: Arc<dyn Caller>) -> Self {
        let (over, withdrawn) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Claim { caller, over, withdrawn, told: Mutex::new(None) }))
    }

    pub(super) fn claim(&self) -> Arc<Claim> {
        Arc::clone(&self.0)
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.0.withdrawn.load(Ordering::Acquire)
    }
}

/// Gives an operation back to its call.
pub(super) fn hand_back(operation: Box<Operation>, ending: Result<(), Stopped>) {
    let claim = operation.ticket.claim();
    claim.tell(Told::Over(operation, ending));
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ticket").field(&self.0.over).finish()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.0.over.load(Ordering::Acquire) {
            self.0.tell(Told::Gone);
        }
    }
}
