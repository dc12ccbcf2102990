//! All communicators of this process.
//!
//! Three things need to know of them: the end of the interpreter, which says goodbye for all; a call on one
//! communicator, which must not be made by the only thread that drives another of the same run, because both
//! would wait for each other; and the loans of operations whose objects are gone.
//!
//! A forked child starts with an empty registry of its own: the parent's lock may be held by nobody there.

use crate::communicator::Shared;
use crate::in_flight::Flight;
use outlast::sync::lock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use std::{process, ptr};

#[derive(Default)]
struct Lists {
    live: Vec<Weak<Shared>>,
    /// Operations whose communicator and handle are gone.
    orphans: Vec<Flight>,
}

struct Registry {
    pid: u32,
    lists: Mutex<Lists>,
    /// Communicators that say goodbye on threads of their own.
    leaving: AtomicUsize,
}

static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

/// How long the two lists are, for those who would find them short: every call asks. A forked child inherits its
/// parent's numbers and may look in vain, which costs it a moment and nothing else.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static ORPHANS: AtomicUsize = AtomicUsize::new(0);

fn registry() -> &'static Registry {
    loop {
        let current = REGISTRY.load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` below and is never freed.
        if let Some(registry) = unsafe { current.as_ref() }.filter(|registry| registry.pid == process::id()) {
            return registry;
        }
        let fresh = Registry { pid: process::id(), lists: Mutex::default(), leaving: AtomicUsize::new(0) };
        let fresh = Box::into_raw(Box::new(fresh));
        if REGISTRY.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: ours was not published, so nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

fn lists() -> MutexGuard<'static, Lists> {
    lock(&registry().lists)
}

/// A communicator was made.
pub(crate) fn add(shared: &Arc<Shared>) {
    let mut lists = lists();
    lists.live.retain(|other| other.strong_count() > 0);
    lists.live.push(Arc::downgrade(shared));
    LIVE.store(lists.live.len(), Ordering::SeqCst);
}

/// The other communicators of this process.
pub(crate) fn others(than: &Arc<Shared>) -> Vec<Arc<Shared>> {
    if LIVE.load(Ordering::SeqCst) < 2 {
        return Vec::new();
    }
    lists().live.iter().filter_map(Weak::upgrade).filter(|other| !Arc::ptr_eq(other, than)).collect()
}

/// Keeps the loans of operations whose objects are gone.
pub(crate) fn adopt(flights: Vec<Flight>) {
    if !flights.is_empty() {
        let mut lists = lists();
        lists.orphans.extend(flights);
        ORPHANS.store(lists.orphans.len(), Ordering::SeqCst);
    }
}

/// Loans of adopted operations that are over. To be dropped with the interpreter at hand.
pub(crate) fn reap() -> Vec<Flight> {
    if ORPHANS.load(Ordering::SeqCst) == 0 {
        return Vec::new();
    }
    let mut lists = lists();
    let over = lists.orphans.extract_if(.., |flight| flight.outcome.is_done()).collect();
    ORPHANS.store(lists.orphans.len(), Ordering::SeqCst);
    over
}

/// Lets a communicator go on a thread of its own: a goodbye may take a moment.
pub(crate) fn let_go(comm: Arc<outlast::Communicator>) {
    let registry = registry();
    registry.leaving.fetch_add(1, Ordering::SeqCst);
    let leave = move || {
        drop(comm);
        registry.leaving.fetch_sub(1, Ordering::SeqCst);
    };
    // Without a thread the closure is dropped here and now, and the communicator with it.
    if std::thread::Builder::new().name("outlast-goodbye".to_owned()).spawn(leave).is_err() {
        registry.leaving.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The interpreter ends: all say goodbye, which ends what is in flight, and the loans are kept forever.
pub(crate) fn end_all(patience: Duration) {
    let deadline = Instant::now() + patience;
    let (live, orphans) = {
        let mut lists = lists();
        (std::mem::take(&mut lists.live), std::mem::take(&mut lists.orphans))
    };
    std::mem::forget(orphans);
    let live: Vec<_> = live.iter().filter_map(Weak::upgrade).collect();
    std::thread::scope(|scope| {
        for shared in &live {
            let thread = std::thread::Builder::new().name("outlast-goodbye".to_owned());
            // Without a thread for it, one after the other.
            // Why the interpreter ends is not known: the training may go on elsewhere.
            if thread.spawn_scoped(scope, || shared.leave(false)).is_err() {
                shared.leave(false);
            }
        }
    });
    let waits = |shared: &Arc<Shared>| shared.is_blocked() && Instant::now() < deadline;
    for shared in &live {
        shared.in_flight.wait_until(deadline);
        std::mem::forget(shared.in_flight.take_all());
        while waits(shared) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    while registry().leaving.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}
