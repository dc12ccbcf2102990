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
use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};
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

#[cfg(test)]
mod tests {
    use super::*;

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
