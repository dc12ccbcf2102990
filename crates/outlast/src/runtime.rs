//! A small async runtime for each plane of a process, so that planes share no fate.
//!
//! | plane | threads | what runs there |
//! |---|---|---|
//! | control | `outlast-control` | a peer's side: session timers, dialling the coordinator, the stand-in that reads the control socket while no call waits |
//! | clerk | `outlast-clerk` | a coordinator's side: the clerk, and the connections of its peers. One thread: a message is read, decided on and answered without waking another |
//! | links | `outlast-links` | data links until they are made: dialling, taking over, redialling; and whether they are silent |
//! | store | `outlast-store-io` | links of the store until they are made, streams for its views, its registrars; the engine has `outlast-store` |
//! | health | `outlast-streams` | health over TCP where UDP is blocked; probes have the health thread itself |
//! | registers | `outlast-leases` | a coordinator's side of rendezvous: registers and their streams |
//! | election | `outlast-reign` | a coordinator's side of rule 19: its lease, and what it writes down at an etcd |
//! | rendezvous | `outlast-meet` | a node's side of rendezvous: its machine, its lease, its connection to a backend |
//! | door | `outlast-door` | handshakes of whoever knocks: nobody has proved anything yet there, so it also runs at a lower priority |
//!
//! They move small messages; tensors and datagrams never pass through here. However busy one of them is, however
//! many knock or redial, the others get their turn from the kernel: votes do not queue behind handshakes.
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

/// Whose threads; see the module's essay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    Control,
    Clerk,
    Links,
    Health,
    Door,
    Registers,
    Rendezvous,
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "elections need an etcd"))]
    Election,
    Store,
}

impl Plane {
    #[cfg(test)]
    const ALL: [Self; 9] = [
        Self::Control,
        Self::Clerk,
        Self::Links,
        Self::Health,
        Self::Door,
        Self::Registers,
        Self::Rendezvous,
        Self::Election,
        Self::Store,
    ];

    /// What its threads are called, and how many there are.
    fn threads(self) -> (&'static str, usize) {
        match self {
            Self::Control => ("outlast-control", 1),
            Self::Clerk => ("outlast-clerk", 1),
            Self::Links => ("outlast-links", 1),
            Self::Health => ("outlast-streams", 1),
            Self::Door => ("outlast-door", 1),
            Self::Registers => ("outlast-leases", 1),
            Self::Rendezvous => ("outlast-meet", 1),
            Self::Election => ("outlast-reign", 1),
            Self::Store => ("outlast-store-io", 1),
        }
    }

    fn place(self) -> &'static AtomicPtr<Owned> {
        static PLACES: [AtomicPtr<Owned>; 9] = [const { AtomicPtr::new(ptr::null_mut()) }; 9];
        &PLACES[self as usize]
    }

    fn build(self) -> io::Result<Runtime> {
        let (name, count) = self.threads();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(count).thread_name(name).enable_all();
        if self == Self::Door {
            builder.on_thread_start(be_nice);
        }
        builder.build()
    }
}

struct Owned {
    pid: u32,
    runtime: Runtime,
}

/// Lets others run first. Linux counts priorities by thread; who cannot have another one keeps its own.
pub(crate) fn be_nice() {
    let thread = Some(rustix::thread::gettid());
    if let Ok(now) = getpriority_process(thread) {
        let _ = setpriority_process(thread, (now + DOOR_NICER).min(NICEST));
    }
}

/// The runtime of a plane in this process.
pub(crate) fn of(plane: Plane) -> io::Result<Handle> {
    let place = plane.place();
    loop {
        let current = place.load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` below and is never freed.
        if let Some(owned) = unsafe { current.as_ref() }.filter(|owned| owned.pid == process::id()) {
            return Ok(owned.runtime.handle().clone());
        }
        let fresh = Box::into_raw(Box::new(Owned { pid: process::id(), runtime: plane.build()? }));
        if place.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread was faster; its runtime is found at the next look.
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::time::Duration;

    #[test]
    fn a_task_that_panics_ends_and_whoever_waits_for_it_hears_of_it() {
        let runtime = of(Plane::Control).unwrap();
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
            .map(|_| std::thread::spawn(|| of(Plane::Control).unwrap().id()))
            .map(|thread| thread.join().unwrap())
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    /// Keeps every thread of a plane busy until it is dropped.
    struct Flood(Arc<AtomicBool>);

    impl Flood {
        fn of(plane: Plane) -> Self {
            let (ebbed, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            // Each of them has a thread to itself, and more wait behind them.
            for _ in 0..2 * plane.threads().1 {
                let (ebbed, begun) = (Arc::clone(&ebbed), Arc::clone(&begun));
                of(plane).unwrap().spawn(async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    while !ebbed.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                });
            }
            while begun.load(Ordering::SeqCst) < plane.threads().1 {
                std::thread::yield_now();
            }
            Self(ebbed)
        }
    }

    impl Drop for Flood {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_plane_that_is_flooded_holds_up_no_other() {
        for flooded in Plane::ALL {
            let flood = Flood::of(flooded);
            let behind = of(flooded).unwrap().spawn(async {});
            for other in Plane::ALL.into_iter().filter(|other| *other != flooded) {
                // A message, a timer and a socket.
                let served = of(other).unwrap().spawn(async {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                    let dialled = tokio::net::TcpStream::connect(listener.local_addr().unwrap());
                    let (dialled, accepted) = tokio::join!(dialled, listener.accept());
                    assert!(dialled.is_ok() && accepted.is_ok());
                });
                let (done, ended) = std::sync::mpsc::channel();
                of(other).unwrap().spawn(async move { done.send(served.await.is_ok()) });
                let ended = ended.recv_timeout(Duration::from_secs(20));
                assert_eq!(ended, Ok(true), "{other:?} behind {flooded:?}");
            }
            assert!(!behind.is_finished(), "{flooded:?} was flooded all the time");
            drop(flood);
        }
    }

    #[test]
    fn the_door_is_nicer_than_the_rest() {
        let ours = getpriority_process(None).unwrap();
        let theirs = of(Plane::Door).unwrap().block_on(async {
            let nice = tokio::spawn(async { getpriority_process(Some(rustix::thread::gettid())).unwrap() });
            nice.await.unwrap()
        });
        assert_eq!(theirs, (ours + DOOR_NICER).min(NICEST));
    }
}
