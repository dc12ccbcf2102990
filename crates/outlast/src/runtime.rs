//! Two small async runtimes per process: one for everything that waits on streams, one for the door.
//!
//! Two worker threads serve all members, listeners and links' set-up of a process: they move small messages;
//! tensors and health never pass through here. Handshakes of whoever knocks have a thread of their own, *the
//! door*, which runs at a lower priority: nobody has proved anything yet there, and however many knock, votes do
//! not queue behind them and a training step loses little of a core to them.
//!
//! The runtimes are made on first use and never shut down: their threads end with the process, so nothing at exit
//! waits for them.
//!
//! A forked child inherits the memory of a runtime whose threads do not exist. Asking for the runtime there
//! gives the child one of its own, so a child may start members anew; the parent's is left where it is.

use rustix::process::{getpriority_process, setpriority_process};
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::task::Poll;
use std::{process, ptr};
use tokio::runtime::{Builder, Handle, Runtime};

/// How much nicer the door is than the rest of the process.
const DOOR_NICER: i32 = 5;
/// The nicest that a thread can be.
const NICEST: i32 = 19;

struct Owned {
    pid: u32,
    runtime: Runtime,
}

static STREAMS: AtomicPtr<Owned> = AtomicPtr::new(ptr::null_mut());
static DOOR: AtomicPtr<Owned> = AtomicPtr::new(ptr::null_mut());

/// The runtime of this process.
pub(crate) fn handle() -> io::Result<Handle> {
    shared(&STREAMS, || {
        Builder::new_multi_thread().worker_threads(2).thread_name("outlast-io").enable_all().build()
    })
}

/// The runtime in which strangers are listened to.
pub(crate) fn door() -> io::Result<Handle> {
    shared(&DOOR, || {
        let mut door = Builder::new_multi_thread();
        door.worker_threads(1).thread_name("outlast-door").on_thread_start(be_nice);
        door.enable_all().build()
    })
}

/// Lets others run first. Linux counts priorities by thread; who cannot have another one keeps its own.
fn be_nice() {
    let thread = Some(rustix::thread::gettid());
    if let Ok(now) = getpriority_process(thread) {
        let _ = setpriority_process(thread, (now + DOOR_NICER).min(NICEST));
    }
}

fn shared(place: &AtomicPtr<Owned>, build: impl Fn() -> io::Result<Runtime>) -> io::Result<Handle> {
    loop {
        let current = place.load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` below and is never freed.
        if let Some(owned) = unsafe { current.as_ref() }.filter(|owned| owned.pid == process::id()) {
            return Ok(owned.runtime.handle().clone());
        }
        let fresh = Box::into_raw(Box::new(Owned { pid: process::id(), runtime: build()? }));
        if place.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread was faster; its runtime is found in the next round.
            // SAFETY: ours was not published, so nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Runs a task to its end, a panic included: whoever waits for it hears of it either way (rule 40). `None` after a panic.
pub(crate) async fn to_its_end<T>(what: &str, task: impl Future<Output = T>) -> Option<T> {
    // On the heap: a connection takes kilobytes, and they would be moved around with everything that waits for it.
    let mut task = Box::pin(task);
    poll_fn(|context| match guarded(what, || task.as_mut().poll(context)) {
        Some(poll) => poll.map(Some),
        None => Poll::Ready(None),
    })
    .await
}

/// Does one thing of a task that must go on whatever happens to it. `None` after a panic. The panic's own words are on
/// standard error already.
pub(crate) fn guarded<T>(what: &str, thing: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(thing));
    if done.is_err() {
        tracing::error!("{what} panicked: this is a bug in outlast, please report it");
    }
    done.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_panics_ends_and_whoever_waits_for_it_hears_of_it() {
        let runtime = handle().unwrap();
        let panics = async {
            tokio::task::yield_now().await;
            assert!(process::id() == 0, "on purpose");
            7
        };
        assert_eq!(runtime.block_on(to_its_end("a test", panics)), None);
        assert_eq!(runtime.block_on(to_its_end("a test", async { 7 })), Some(7));
        assert_eq!(guarded("a test", || 8), Some(8));
    }

    #[test]
    fn all_threads_get_the_same_runtime() {
        let ids: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| handle().unwrap().id()))
            .map(|thread| thread.join().unwrap())
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
    #[test]
    fn the_door_is_nicer_than_the_rest() {
        let ours = getpriority_process(None).unwrap();
        let theirs = door().unwrap().block_on(async {
            let nice = tokio::spawn(async { getpriority_process(Some(rustix::thread::gettid())).unwrap() });
            nice.await.unwrap()
        });
        assert_eq!(theirs, (ours + DOOR_NICER).min(NICEST));
    }
}
