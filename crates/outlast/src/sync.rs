//! What threads share state with, and how we take a lock.
//!
//! Modules whose hand-overs are explored under every order of threads name this module and nothing else for their
//! locks, so that a test can give them others of the same face (see `baton/explored.rs`).

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use std::sync::PoisonError;
use std::time::Duration;

/// Locks, even after a panic elsewhere: every value behind our locks is whole between two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until `condvar` is notified, or for `timeout`, or for no reason at all.
pub(crate) fn sleep<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
}

/// Sleeps while `waits` says so, for `timeout` at most.
pub(crate) fn sleep_while<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    waits: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout_while(guard, timeout, waits).unwrap_or_else(PoisonError::into_inner).0
}
