//! Giving up a call that this very thread is in.
//!
//! # The problem
//!
//! A person presses Ctrl-C, and the thread that must answer is deep inside a collective: it drives sockets, or
//! it waits for a verdict. A handler of an interpreter may run on that thread only, and whether it wants the
//! call to end is known only after it has run: a handler that sets a flag and returns must not cost a step.
//!
//! # The intuition
//!
//! The thread looks up from its work now and then. [`watched`] gives the calling thread a question to ask
//! ("shall I stop?") and a beat. Every wait inside a call is cut to that beat, and when it is due the question
//! is asked, on this thread, with no lock of ours held and nothing in hand that others wait for (see `baton.rs`). If the answer is yes, the call is cancelled as from
//! outside: the others are told, and it returns only when its memory is nobody's but the caller's (rule 15).
//!
//! # The invariant
//!
//! The question is asked only between two waits of a call, never from within itself, and never again after it
//! was answered with yes. A question that panics is a yes too: the panic goes on after the work has returned, and
//! never unwinds a call whose memory others hold. A thread that is not watched pays for one look at a
//! thread-local.
//!
//! # What it does not do
//!
//! It starts no thread and handles no signal. A collective that said Complete may commit although it was to
//! be cancelled (rule 5): what counts is how the call ends.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::thread::panicking;
use std::time::{Duration, Instant};

struct Watch {
    every: Duration,
    due: Cell<Instant>,
    stop: Box<dyn Fn() -> bool>,
    /// How to cancel the call at hand; `None` between calls and while the question is asked.
    cancel: RefCell<Option<Box<dyn Fn()>>>,
    stopped: Cell<bool>,
    /// What the question panicked with.
    panicked: RefCell<Option<Box<dyn Any + Send>>>,
}

thread_local! {
    static WATCH: RefCell<Option<Rc<Watch>>> = const { RefCell::new(None) };
}

/// Does `work`, and asks `stop` on this thread about every `every` while a call of Outlast inside it waits or
/// moves bytes. Once the answer is yes, the call at hand is cancelled: it ends as soon as that is safe, usually
/// with `CallError::Cancelled`.
///
/// `stop` may take its time: calls on other threads go on meanwhile, only the one that asks does not. It must not make
/// blocking calls of Outlast on this thread, which is in one.
///
/// # Panics
/// If `stop` panics. That is a yes first: the call at hand is cancelled, and the panic goes on when `work` has
/// returned.
pub fn watched<R>(every: Duration, stop: impl Fn() -> bool + 'static, work: impl FnOnce() -> R) -> R {
    let watch = Watch {
        every,
        due: Cell::new(Instant::now() + every),
        stop: Box::new(stop),
        cancel: RefCell::new(None),
        stopped: Cell::new(false),
        panicked: RefCell::new(None),
    };
    let watch = Rc::new(watch);
    let restore = Restore(WATCH.replace(Some(Rc::clone(&watch))));
    let result = work();
    drop(restore);
    if let Some(panic) = watch.panicked.take() {
        resume_unwind(panic);
    }
    result
}

/// Puts the watch before ours back, even when the work panics.
struct Restore(Option<Rc<Watch>>);

impl Drop for Restore {
    fn drop(&mut self) {
        WATCH.set(self.0.take());
    }
}

fn present() -> Option<Rc<Watch>> {
    WATCH.with_borrow(Clone::clone)
}

/// How long a wait of `wait` may last before [`look`] is due.
pub(crate) fn patience(wait: Duration) -> Duration {
    WATCH.with_borrow(|watch| match watch {
        Some(watch) if !watch.stopped.get() => {
            wait.min(watch.due.get().saturating_duration_since(Instant::now()))
        }
        _ => wait,
    })
}

/// Whether [`look`] would ask. Whoever holds what others need lets go of it first.
pub(crate) fn is_due() -> bool {
    WATCH.with_borrow(|watch| match watch {
        Some(watch) if !watch.stopped.get() => {
            Instant::now() >= watch.due.get() && watch.cancel.borrow().is_some() && !panicking()
        }
        _ => false,
    })
}

/// Asks whether to stop, if that is due; if so, cancels the call at hand.
pub(crate) fn look() {
    // Who unwinds has stopped already.
    if WATCH.with_borrow(Option::is_none) || panicking() {
        return;
    }
    let Some(watch) = present().filter(|watch| !watch.stopped.get()) else { return };
    if Instant::now() < watch.due.get() {
        return;
    }
    let Some(cancel) = watch.cancel.take() else { return };
    // Whatever the question does on this thread is not watched by it.
    let asked = WATCH.take();
    let stop = catch_unwind(AssertUnwindSafe(|| (watch.stop)())).unwrap_or_else(|panic| {
        watch.panicked.replace(Some(panic));
        true
    });
    WATCH.set(asked);
    watch.due.set(Instant::now() + watch.every);
    if stop {
        watch.stopped.set(true);
        cancel();
    }
    watch.cancel.replace(Some(cancel));
}

/// While the result lives, a yes is answered by `cancel`.
pub(crate) fn cancels(cancel: impl Fn() + 'static) -> Cancels {
    let watch = present();
    if let Some(watch) = &watch {
        watch.cancel.replace(Some(Box::new(cancel)));
    }
    Cancels(watch)
}

/// A wait of this thread that a yes ends. Whoever waits does so in steps of [`patience`], and asks in between whether it
/// was given up.
pub(crate) struct Waiting {
    given_up: Rc<Cell<bool>>,
    _cancels: Cancels,
}

impl Waiting {
    pub(crate) fn begin() -> Self {
        let given_up = Rc::new(Cell::new(false));
        let flag = Rc::clone(&given_up);
        Self { given_up, _cancels: cancels(move || flag.set(true)) }
    }

    /// Asks whether to stop, if that is due, and says whether the answer was ever yes.
    pub(crate) fn is_given_up(&self) -> bool {
        look();
        self.given_up.get()
    }
}

/// See [`cancels`].
pub(crate) struct Cancels(Option<Rc<Watch>>);

impl Drop for Cancels {
    fn drop(&mut self) {
        if let Some(watch) = &self.0 {
            watch.cancel.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits as a call does, until `over` or for five seconds.
    fn wait_like_a_call(over: &Cell<bool>) {
        let give_up = Instant::now() + Duration::from_secs(5);
        while !over.get() && Instant::now() < give_up {
            std::thread::sleep(patience(give_up.saturating_duration_since(Instant::now())));
            look();
        }
    }

    #[test]
    fn a_yes_cancels_once_and_is_not_asked_again() {
        let asked = Rc::new(Cell::new(0));
        let over = Rc::new(Cell::new(false));
        let (count, ended) = (Rc::clone(&asked), Rc::clone(&over));
        let stop = move || {
            count.set(count.get() + 1);
            count.get() == 3
        };
        watched(Duration::from_millis(1), stop, || {
            let _cancels = cancels(move || ended.set(true));
            wait_like_a_call(&over);
            std::thread::sleep(Duration::from_millis(5));
            look();
        });
        assert_eq!(asked.get(), 3);
        assert!(over.get());
        assert_eq!(patience(Duration::from_secs(9)), Duration::from_secs(9), "nobody watches any more");
    }

    #[test]
    fn a_wait_that_was_given_up_stays_so() {
        let answers = RefCell::new(vec![true, false]);
        watched(
            Duration::ZERO,
            move || answers.borrow_mut().pop().expect("asked twice"),
            || {
                let waiting = Waiting::begin();
                assert!(!waiting.is_given_up());
                assert!(waiting.is_given_up());
                assert!(waiting.is_given_up(), "nobody is asked again");
            },
        );
        assert!(!Waiting::begin().is_given_up(), "nobody watches");
    }

    #[test]
    fn between_calls_nothing_is_asked_and_a_watch_inside_a_watch_gives_it_back() {
        let stop = || panic!("asked although no call is at hand");
        watched(Duration::ZERO, stop, || {
            look();
            watched(Duration::from_mins(1), || true, || assert!(patience(Duration::MAX) > Duration::ZERO));
            assert_eq!(patience(Duration::MAX), Duration::ZERO);
        });
    }

    #[test]
    fn a_question_that_panics_is_a_yes_and_the_panic_goes_on_after_the_work() {
        let (over, returned) = (Rc::new(Cell::new(false)), Cell::new(false));
        let ended = Rc::clone(&over);
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            watched(
                Duration::ZERO,
                || panic!("a handler that panics"),
                || {
                    let _cancels = cancels(move || ended.set(true));
                    wait_like_a_call(&over);
                    returned.set(true);
                },
            );
        }));
        let panic = unwound.expect_err("it goes on");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a handler that panics"));
        assert!(over.get() && returned.get(), "the call was cancelled and has returned");
        assert_eq!(patience(Duration::MAX), Duration::MAX, "nobody watches any more");
    }

    #[test]
    fn work_that_panics_is_not_watched_any_more_and_whoever_watched_before_does_again() {
        watched(
            Duration::from_mins(2),
            || false,
            || {
                let work = || panic!("the work itself");
                let unwound = catch_unwind(|| watched(Duration::from_mins(1), || true, work));
                assert!(unwound.is_err());
                assert!(patience(Duration::MAX) > Duration::from_mins(1), "the outer one's");
            },
        );
        assert_eq!(patience(Duration::MAX), Duration::MAX, "nobody watches any more");
    }

    #[test]
    fn the_question_is_not_asked_from_within_itself() {
        let depth = Rc::new(Cell::new(0));
        let counted = Rc::clone(&depth);
        let stop = move || {
            counted.set(counted.get() + 1);
            look();
            false
        };
        watched(Duration::ZERO, stop, || {
            let _cancels = cancels(|| {});
            look();
        });
        assert_eq!(depth.get(), 1);
    }
}
