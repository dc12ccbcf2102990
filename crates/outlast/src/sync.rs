//! What threads share state with, and how we take a lock.
//!
//! A lock whose holder panicked is *poisoned*: it says so to whoever takes it next. Every value behind our locks is whole
//! between two statements, so nobody has to care, and here is the one place that says so. Our other crates see it with the
//! feature `internals`. Only `lab` does not: by its border it knows nothing of Outlast.
//!
//! Modules whose hand-overs are explored under every order of threads name this module and nothing else for their
//! locks, so that a test can give them others of the same face (see `baton/explored.rs`).

pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Locks, even after a panic elsewhere: every value behind our locks is whole between two statements.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is behind a lock that nobody else can reach.
pub fn owned<T: ?Sized>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// What was behind a lock that is not needed any more.
pub fn unlocked<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Locks beside other readers.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks out readers and other writers.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until `condvar` is notified, or for `timeout`, or for no reason at all.
pub fn sleep<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
}

/// Sleeps while `waits` says so, for `timeout` at most.
pub fn sleep_while<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    waits: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout_while(guard, timeout, waits).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_holder_panicked_is_taken_all_the_same() {
        let (mut mutex, shared) = (Mutex::new(1), RwLock::new(1));
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = (mutex.lock(), shared.write());
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(panicked && mutex.is_poisoned() && shared.is_poisoned());
        *lock(&mutex) += 1;
        *write(&shared) += 1;
        assert_eq!((*owned(&mut mutex), *read(&shared)), (2, 2));
        let changed = Condvar::new();
        assert_eq!(*sleep(&changed, lock(&mutex), Duration::ZERO), 2);
        assert_eq!(*sleep_while(&changed, lock(&mutex), Duration::ZERO, |_| true), 2);
        assert_eq!(unlocked(mutex), 2);
    }
}
