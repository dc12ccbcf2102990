//! Where a call waits while somebody else drives.
//!
//! There is no I/O thread. Whoever makes the first call drives the sockets, for itself and for all calls that
//! join meanwhile; they sit and wait. When the driver's own operation is done it passes the engine to one of
//! those who sit. So a lone call never pays for a hand-over, and many calls share one pair of hands.

use super::Stopped;
use super::engine::Engine;
use super::operation::Operation;
use crate::watch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
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
}

/// What a waiting call is told.
#[derive(Debug)]
pub(super) enum Told {
    Drive(Box<Engine>),
    Over(Box<Operation>, Result<(), Stopped>),
}

/// One call's seat.
#[derive(Debug, Default)]
pub(super) struct Seat {
    over: AtomicBool,
    news: Mutex<News>,
    woken: Condvar,
}

impl Seat {
    pub(super) fn hand_engine(&self, engine: Box<Engine>) {
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = News::Drive(engine);
        self.woken.notify_one();
    }

    pub(super) fn hand_back(&self, operation: Box<Operation>, ending: Result<(), Stopped>) {
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = News::Over(operation, ending);
        self.over.store(true, Ordering::Release);
        self.woken.notify_one();
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
