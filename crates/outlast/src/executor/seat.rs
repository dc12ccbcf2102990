//! Where a call waits while somebody else drives.
//!
//! There is no I/O thread. Whoever makes the first call drives the sockets, for itself and for all calls that
//! join meanwhile; they sit and wait. When the driver's own operation is done it passes the engine to one of
//! those who sit. So a lone call never pays for a hand-over, and many calls share one pair of hands.
//!
//! An operation refers to its caller's memory, so whoever sits must not get up without it, not even when its
//! thread panics (rule 15). Two things see to that, whatever else goes wrong. The call sits until its operation
//! is over, and if it unwinds it sits again ([`plane`](super::plane)). And an operation that is lost on the way,
//! because whoever held it panicked, tells its seat as the last thing it does ([`Ticket`]).

use super::Stopped;
use super::engine::Engine;
use super::operation::Operation;
use crate::watch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often a waiting call looks at its seat although nobody woke it. Being woken is the rule; this only
/// keeps a lost wake-up from being the end.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
enum News {
    #[default]
    None,
    /// You drive now.
    Drive(Box<Engine>),
    /// Your operation is over, and nobody else holds it any more.
    Over(Box<Operation>, Result<(), Stopped>),
    /// Your operation is gone: whoever held it panicked. Your memory is as it was.
    Gone,
}

/// What a waiting call is told.
#[derive(Debug)]
pub(super) enum Told {
    Drive(Box<Engine>),
    Over(Box<Operation>, Result<(), Stopped>),
    Gone,
}

/// One call's seat.
#[derive(Debug, Default)]
pub(super) struct Seat {
    over: AtomicBool,
    /// Whoever sits here unwinds and wants its operation back.
    withdrawn: AtomicBool,
    news: Mutex<News>,
    woken: Condvar,
}

impl Seat {
    pub(super) fn hand_engine(&self, engine: Box<Engine>) {
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = News::Drive(engine);
        self.woken.notify_one();
    }

    pub(super) fn hand_back(&self, operation: Box<Operation>, ending: Result<(), Stopped>) {
        self.over.store(true, Ordering::Release);
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = News::Over(operation, ending);
        self.woken.notify_one();
    }

    /// Wants the operation back as soon as can be.
    pub(super) fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Release);
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Acquire)
    }

    /// Whether the operation was handed back.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits for news. Whoever drives holds every operation to its deadline, so this ends.
    pub(super) fn wait(&self) -> Told {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::take(&mut *news) {
                News::Drive(engine) => return Told::Drive(engine),
                News::Over(operation, ending) => return Told::Over(operation, ending),
                News::Gone => return Told::Gone,
                News::None => {
                    let waited = self.woken.wait_timeout(news, watch::patience(LOOK_AGAIN));
                    drop(waited.unwrap_or_else(PoisonError::into_inner).0);
                    // With no lock held: whoever is asked may take its time.
                    watch::look();
                    news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// An operation's claim to its seat. It is dropped after everything that refers to the caller's memory.
#[derive(Debug)]
pub(super) struct Ticket(Arc<Seat>);

impl Ticket {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let seat = &self.0;
        if !seat.is_over() {
            seat.over.store(true, Ordering::Release);
            *seat.news.lock().unwrap_or_else(PoisonError::into_inner) = News::Gone;
            seat.woken.notify_one();
        }
    }
}
