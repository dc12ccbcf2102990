//! One small async runtime per process, for everything that waits on streams.
//!
//! Two worker threads serve all members, listeners and links' set-up of a process: they shake hands and move
//! small messages; tensors and health never pass through here. The runtime is made on first use and never
//! shut down: its threads end with the process, so nothing at exit waits for them.
//!
//! A forked child inherits the memory of a runtime whose threads do not exist. Asking for the runtime there
//! gives the child one of its own, so a child may start members anew; the parent's is left where it is.

use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{process, ptr};
use tokio::runtime::{Builder, Handle, Runtime};

struct Owned {
    pid: u32,
    runtime: Runtime,
}

static SHARED: AtomicPtr<Owned> = AtomicPtr::new(ptr::null_mut());

/// The runtime of this process.
pub(crate) fn handle() -> io::Result<Handle> {
    loop {
        let current = SHARED.load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` below and is never freed.
        if let Some(owned) = unsafe { current.as_ref() }.filter(|owned| owned.pid == process::id()) {
            return Ok(owned.runtime.handle().clone());
        }
        let runtime =
            Builder::new_multi_thread().worker_threads(2).thread_name("outlast-io").enable_all().build()?;
        let fresh = Box::into_raw(Box::new(Owned { pid: process::id(), runtime }));
        if SHARED.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
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
}
