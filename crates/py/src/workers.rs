//! Threads for collectives that run while the program goes on.
//!
//! Every operation in flight needs a thread of its own: they may depend on each other across peers, so none may
//! queue behind another. Threads are kept for a while, because making one costs more than a small all-reduce.
//! They never touch the interpreter.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Desk {
    jobs: VecDeque<Job>,
    idle: usize,
    /// No more work will come: idle threads need not wait for it.
    ended: bool,
}

/// Threads that grow with the work. Dropped, they end when their work is done.
#[derive(Default)]
pub(crate) struct Workers {
    desk: Mutex<Desk>,
    called: Condvar,
}

impl Workers {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `job` at once, on an idle thread or a new one.
    pub(crate) fn run(self: &Arc<Self>, job: Job) -> std::io::Result<()> {
        let mut desk = self.desk();
        desk.jobs.push_back(job);
        if desk.jobs.len() <= desk.idle {
            drop(desk);
            self.called.notify_one();
            return Ok(());
        }
        drop(desk);
        let workers = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("outlast-call".to_owned());
        let spawned = thread.spawn(move || {
            while let Some(job) = workers.upgrade().and_then(|workers| workers.next()) {
                job();
            }
        });
        if spawned.is_err() {
            self.desk().jobs.pop_back();
        }
        spawned.map(drop)
    }

    /// Sends idle threads home; work that is under way is finished.
    pub(crate) fn end(&self) {
        self.desk().ended = true;
        self.called.notify_all();
    }

    fn next(&self) -> Option<Job> {
        let mut desk = self.desk();
        if desk.jobs.is_empty() {
            desk.idle += 1;
            let waited =
                self.called.wait_timeout_while(desk, IDLE, |desk| desk.jobs.is_empty() && !desk.ended);
            desk = waited.unwrap_or_else(PoisonError::into_inner).0;
            desk.idle -= 1;
        }
        desk.jobs.pop_front()
    }
}
