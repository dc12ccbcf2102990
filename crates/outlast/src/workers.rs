//! Threads for work that goes on while the program does something else.
//!
//! Every collective in flight needs a thread of its own: they may depend on each other across peers, so none may
//! queue behind another. Threads are kept for a while, because making one costs more than a small all-reduce.
//!
//! A job works on memory that somebody lent it, and whoever lent it waits for its [`Outcome`]. So the invariant:
//! an outcome comes exactly when the job is over and will not run any more. It comes if the job panics, and if there
//! is no thread to run it on; and a job whose outcome says that it never ran is gone, not waiting in a queue.

use crate::sync::{Arc, Condvar, Mutex, lock, sleep_while};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(5);

/// Why a job has no result of its own.
#[derive(Debug)]
#[non_exhaustive]
pub enum Lost {
    /// There was no thread to run it on. It did not begin.
    NoThread(io::Error),
    /// It panicked.
    Panicked,
}

/// What a job came to, once it has come to something.
pub struct Outcome<T> {
    state: Mutex<Awaited<T>>,
    ended: Condvar,
}

struct Awaited<T> {
    ending: Option<T>,
    /// Whom to tell, beside those who sleep.
    listeners: Vec<Box<dyn FnOnce() + Send>>,
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        let state = Awaited { ending: None, listeners: Vec::new() };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }
}

impl<T> std::fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outcome").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<T> Outcome<T> {
    fn set(&self, ending: T) {
        let mut state = lock(&self.state);
        state.ending = Some(ending);
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        self.ended.notify_all();
        // Without the lock: a listener may look.
        listeners.into_iter().for_each(|listener| listener());
    }

    /// Whether the job is over.
    pub fn is_done(&self) -> bool {
        lock(&self.state).ending.is_some()
    }

    /// Calls `listener` once the job is over, on the thread that ends it; at once, on this thread, if it is over already.
    /// It must neither block nor panic.
    pub fn when_done(&self, listener: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        if state.ending.is_none() {
            state.listeners.push(Box::new(listener));
            return;
        }
        drop(state);
        listener();
    }
}

impl<T: Clone> Outcome<T> {
    /// Waits up to `timeout` for the job's end.
    pub fn wait(&self, timeout: Duration) -> Option<T> {
        let state = lock(&self.state);
        sleep_while(&self.ended, state, timeout, |state| state.ending.is_none()).ending.clone()
    }
}

/// A job, and the duty to say what came of it.
struct Errand<T, L: FnOnce(Lost) -> T> {
    job: Option<Box<dyn FnOnce() -> T + Send>>,
    lost: Option<L>,
    outcome: Arc<Outcome<T>>,
}

/// An errand of any type.
trait Run: Send {
    fn run(self: Box<Self>);
    fn refuse(self: Box<Self>, error: io::Error);
}

impl<T, L: FnOnce(Lost) -> T> Errand<T, L> {
    fn lose(&mut self, lost: Lost) {
        // First of all the job: what it borrowed is free before anybody hears that it is.
        drop(self.job.take());
        if let Some(say) = self.lost.take() {
            self.outcome.set(say(lost));
        }
    }
}

impl<T: Send, L: FnOnce(Lost) -> T + Send> Run for Errand<T, L> {
    fn run(mut self: Box<Self>) {
        let Some(job) = self.job.take() else { return };
        match catch_unwind(AssertUnwindSafe(job)) {
            Ok(ending) => {
                self.lost = None;
                self.outcome.set(ending);
            }
            Err(_) => self.lose(Lost::Panicked),
        }
    }

    fn refuse(mut self: Box<Self>, error: io::Error) {
        self.lose(Lost::NoThread(error));
    }
}

impl<T, L: FnOnce(Lost) -> T> Drop for Errand<T, L> {
    /// However an errand goes, whoever waits for it hears of it (rule 40).
    fn drop(&mut self) {
        if self.lost.is_some() {
            self.lose(Lost::NoThread(io::Error::other("nobody was there to run it")));
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;
type Spawn = fn(Work) -> io::Result<()>;

fn spawn(work: Work) -> io::Result<()> {
    std::thread::Builder::new().name("outlast-call".to_owned()).spawn(work).map(drop)
}

#[derive(Default)]
struct Staff {
    /// Never more than there are idle threads.
    errands: VecDeque<Box<dyn Run>>,
    idle: usize,
    /// No more work will come: idle threads need not wait for it.
    ended: bool,
}

/// Threads that grow with the work. Dropped, they end when their work is done.
pub struct Workers {
    staff: Mutex<Staff>,
    called: Condvar,
    spawn: Spawn,
}

impl Default for Workers {
    fn default() -> Self {
        Self { staff: Mutex::default(), called: Condvar::new(), spawn }
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}

impl Workers {
    /// Runs `job` at once, on an idle thread or a new one, and tells `outcome` what came of it: what the job
    /// returned, or what `lost` makes of its loss.
    pub fn run<T: Send + 'static>(
        self: &Arc<Self>,
        outcome: &Arc<Outcome<T>>,
        job: impl FnOnce() -> T + Send + 'static,
        lost: impl FnOnce(Lost) -> T + Send + 'static,
    ) {
        let errand = Errand { job: Some(Box::new(job)), lost: Some(lost), outcome: Arc::clone(outcome) };
        let mut staff = lock(&self.staff);
        if staff.errands.len() < staff.idle {
            staff.errands.push_back(Box::new(errand));
            drop(staff);
            self.called.notify_one();
            return;
        }
        drop(staff);
        // The new thread's first errand never lies where another thread could take it.
        let first: Arc<Mutex<Option<Box<dyn Run>>>> = Arc::new(Mutex::new(Some(Box::new(errand))));
        let (workers, given) = (Arc::downgrade(self), Arc::clone(&first));
        let spawned = (self.spawn)(Box::new(move || {
            let mut next = lock(&given).take();
            while let Some(errand) = next {
                errand.run();
                next = workers.upgrade().and_then(|workers| workers.next());
            }
        }));
        if let Err(error) = spawned
            && let Some(errand) = lock(&first).take()
        {
            errand.refuse(error);
        }
    }

    /// Sends idle threads home; work that is under way is finished.
    pub fn end(&self) {
        lock(&self.staff).ended = true;
        self.called.notify_all();
    }

    fn next(&self) -> Option<Box<dyn Run>> {
        let mut staff = lock(&self.staff);
        if staff.errands.is_empty() {
            staff.idle += 1;
            staff = sleep_while(&self.called, staff, IDLE, |staff| staff.errands.is_empty() && !staff.ended);
            staff.idle -= 1;
        }
        staff.errands.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn says(lost: Lost) -> Result<u32, String> {
        Err(match lost {
            Lost::NoThread(error) => error.to_string(),
            Lost::Panicked => "panicked".to_owned(),
        })
    }

    fn run(
        workers: &Arc<Workers>,
        job: impl FnOnce() -> u32 + Send + 'static,
    ) -> Arc<Outcome<Result<u32, String>>> {
        let outcome = Arc::new(Outcome::default());
        workers.run(&outcome, move || Ok(job()), says);
        outcome
    }

    #[test]
    fn jobs_run_side_by_side_and_threads_are_used_again() {
        static SPAWNED: AtomicUsize = AtomicUsize::new(0);
        fn counting(work: Work) -> io::Result<()> {
            SPAWNED.fetch_add(1, Ordering::SeqCst);
            spawn(work)
        }
        let workers = Arc::new(Workers { spawn: counting, ..Workers::default() });
        // Each waits for the other.
        let ((to_a, a), (to_b, b)) = (mpsc::channel(), mpsc::channel());
        let one = run(&workers, move || {
            to_b.send(1).unwrap();
            a.recv_timeout(PATIENCE).unwrap()
        });
        let other = run(&workers, move || {
            to_a.send(2).unwrap();
            b.recv_timeout(PATIENCE).unwrap()
        });
        assert_eq!((one.wait(PATIENCE), other.wait(PATIENCE)), (Some(Ok(2)), Some(Ok(1))));
        while lock(&workers.staff).idle < 2 {
            std::thread::yield_now();
        }
        assert_eq!(run(&workers, || 3).wait(PATIENCE), Some(Ok(3)));
        assert_eq!(SPAWNED.load(Ordering::SeqCst), 2);
        workers.end();
    }

    #[test]
    fn a_job_that_panics_has_an_outcome_and_its_thread_goes_on() {
        let workers = Arc::new(Workers::default());
        let outcome = run(&workers, || panic!("in the middle of a job"));
        assert_eq!(outcome.wait(PATIENCE), Some(Err("panicked".to_owned())));
        assert!(outcome.is_done());
        while lock(&workers.staff).idle < 1 {
            std::thread::yield_now();
        }
        assert_eq!(run(&workers, || 4).wait(PATIENCE), Some(Ok(4)));
    }

    #[test]
    fn whoever_listens_is_told_of_the_end_once_before_it_and_after_it() {
        let workers = Arc::new(Workers::default());
        let (go, wait) = mpsc::channel::<()>();
        let outcome = run(&workers, move || {
            wait.recv_timeout(PATIENCE).unwrap();
            5
        });
        let (tell, told) = mpsc::channel();
        let early = tell.clone();
        outcome.when_done(move || early.send("early").unwrap());
        assert!(told.try_recv().is_err(), "it is not over");
        go.send(()).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok("early"));
        outcome.when_done(move || tell.send("late").unwrap());
        assert_eq!((told.try_recv(), told.try_recv().is_err()), (Ok("late"), true));
    }

    /// While the thread for a second job could not be made, the first one became free. The job that was refused is
    /// gone: its memory belongs to whoever lent it.
    #[test]
    fn a_job_that_was_refused_is_run_by_nobody() {
        static FIRST: AtomicBool = AtomicBool::new(true);
        static GO_ON: AtomicBool = AtomicBool::new(false);
        fn failing(work: Work) -> io::Result<()> {
            if FIRST.swap(false, Ordering::SeqCst) {
                return spawn(work);
            }
            GO_ON.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            Err(io::Error::other("no more threads"))
        }
        let workers = Arc::new(Workers { spawn: failing, ..Workers::default() });
        let busy = run(&workers, || {
            while !GO_ON.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            1
        });
        let ran = Arc::new(AtomicBool::new(false));
        let (noted, loan) = (Arc::clone(&ran), Arc::new(()));
        let lent = Arc::clone(&loan);
        let refused = run(&workers, move || {
            noted.store(true, Ordering::SeqCst);
            drop(lent);
            2
        });
        assert_eq!(refused.wait(PATIENCE), Some(Err("no more threads".to_owned())));
        assert_eq!(Arc::strong_count(&loan), 1, "nobody holds what it borrowed");
        assert_eq!(busy.wait(PATIENCE), Some(Ok(1)));
        assert!(!ran.load(Ordering::SeqCst));
    }
}
