//! Giving a call up from another thread.
//!
//! A call blocks its thread, so whoever wants to end it early (Ctrl-C, a dropped handle) does so from
//! elsewhere. An interrupt that comes before the call ends it at once; one that comes after it is harmless. A
//! call that has voted Complete cannot be given up alone: it returns with its verdict, or when its grace is
//! over (rule 5).

use crate::sync::{Arc, Mutex, MutexGuard, lock};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the calls that it was given to. Clones are the same interrupt.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Inner>);

#[derive(Default)]
struct Inner {
    triggered: AtomicBool,
    stops: Mutex<Stops>,
}

#[derive(Default)]
struct Stops {
    next: u64,
    list: Vec<(u64, Arc<dyn Fn() + Send + Sync>)>,
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").field("triggered", &self.is_triggered()).finish_non_exhaustive()
    }
}

impl Interrupt {
    /// An interrupt that nobody triggered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends its calls, now and to come. Does not wait for them.
    pub fn trigger(&self) {
        self.0.triggered.store(true, Ordering::SeqCst);
        let stops: Vec<_> = self.stops().list.iter().map(|(_, stop)| Arc::clone(stop)).collect();
        // Called without the lock: a stop may take locks of its own.
        stops.iter().for_each(|stop| stop());
    }

    /// Whether it was triggered.
    pub fn is_triggered(&self) -> bool {
        self.0.triggered.load(Ordering::SeqCst)
    }

    fn stops(&self) -> MutexGuard<'_, Stops> {
        lock(&self.0.stops)
    }

    /// Calls `stop` on a trigger, or at once if there was one, until the result is dropped.
    pub(super) fn attach(&self, stop: impl Fn() + Send + Sync + 'static) -> Attached<'_> {
        let stop = Arc::new(stop);
        let mut stops = self.stops();
        stops.next += 1;
        let number = stops.next;
        stops.list.push((number, Arc::clone(&stop) as Arc<_>));
        drop(stops);
        if self.is_triggered() {
            stop();
        }
        Attached { interrupt: self, number }
    }
}

/// See [`Interrupt::attach`].
#[derive(Debug)]
pub(super) struct Attached<'a> {
    interrupt: &'a Interrupt,
    number: u64,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.interrupt.stops().list.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_stop_is_called_while_it_is_attached_and_never_after() {
        let (interrupt, calls) = (Interrupt::new(), Arc::new(AtomicU32::new(0)));
        let counting = || {
            let calls = Arc::clone(&calls);
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        };
        drop(interrupt.attach(counting()));
        let attached = interrupt.attach(counting());
        interrupt.clone().trigger();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        drop(attached);
        let _late = interrupt.attach(counting());
        assert_eq!(calls.load(Ordering::SeqCst), 2, "too late to wait for a trigger");
    }
}
