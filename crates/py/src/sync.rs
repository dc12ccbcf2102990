//! How the extension takes a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even after a panic elsewhere: every value behind our locks is whole between two statements.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is behind a lock that nobody else can reach.
pub(crate) fn owned<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}
