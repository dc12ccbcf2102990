//! Calls that are under way when the interpreter ends.
//!
//! # The problem
//!
//! Daemon threads outlive the main one by a moment. Python ends a thread that asks for the interpreter too late, by
//! `pthread_exit` up to version 3.13: the C library then unwinds its whole stack by force, our frames among
//! it, which cannot be unwound like that. The process crashes at its end, with everything done and well.
//!
//! # The intuition
//!
//! So no thread may ask too late. Every call from Python is a visit, and most of its time is spent away, with
//! the interpreter let go. When the interpreter ends, the door is closed: whoever is away and comes back stays outside
//! for the short rest of the process, and the end waits for those who are inside.
//!
//! # The invariant
//!
//! After [`close_door`] has returned in time, no thread but the one that called it runs our code with the
//! interpreter at hand, nor will ask for the interpreter from within our code.
//!
//! # What it does not do
//!
//! It ends no work. The end of the interpreter says goodbye first (`registry`), so that most calls return.

use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Visits that are not away. Below zero in a child that was forked from within one: its count began anew.
static INSIDE: AtomicIsize = AtomicIsize::new(0);
static CLOSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread ends the interpreter: it may go on to come and go.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Threads do not survive a fork, so nobody is inside in a child, and its own end is its own.
extern "C" fn begin_anew() {
    INSIDE.store(0, Ordering::SeqCst);
    CLOSED.store(false, Ordering::SeqCst);
}

/// To be called once, before the first visit.
pub(crate) fn open_door() {
    // SAFETY: the handler is a plain function that lives as long as the program, and touches two atomics.
    // Without it a forked child waits in vain at its end, for no longer than it may.
    unsafe { libc::pthread_atfork(None, None, Some(begin_anew)) };
}

/// Waits until nobody is inside, and keeps those outside who are away; for as long as `patience`.
pub(crate) fn close_door(patience: Duration) {
    ENDS.set(true);
    let deadline = Instant::now() + patience;
    CLOSED.store(true, Ordering::SeqCst);
    while INSIDE.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_micros(200));
    }
}

fn is_closed() -> bool {
    CLOSED.load(Ordering::SeqCst) && !ENDS.get()
}

/// Until the process is over, which it is in a moment.
fn stay_outside() -> ! {
    loop {
        thread::park();
    }
}

/// One call from Python. It is kept until the call has its result.
#[must_use = "the visit is over when this is dropped"]
pub(crate) struct Visit(());

impl Visit {
    /// Begins a call. With the door closed it never returns.
    pub(crate) fn begin(py: Python<'_>) -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if is_closed() {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
            py.detach(|| stay_outside());
        }
        Self(())
    }

    /// Does `work` with the interpreter let go.
    pub(crate) fn away<R: Send>(&self, py: Python<'_>, work: impl FnOnce() -> R + Send) -> R {
        py.detach(|| {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
            let _back = ComeBack;
            work()
        })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Comes back when it is dropped, even when the work panicked.
struct ComeBack;

impl Drop for ComeBack {
    fn drop(&mut self) {
        // First in, then the look at the door: either the end sees us inside, or we see it closed.
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if is_closed() {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
            stay_outside();
        }
    }
}
