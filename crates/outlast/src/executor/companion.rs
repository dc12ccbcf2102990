//! A connection that is not the data plane's, looked after by whoever drives.
//!
//! The driver of a call polls its links anyway. The control connection, on which an abort or a verdict may come
//! meanwhile, is one more descriptor for it and would be one more thread to wake for everybody else.

use crate::runtime;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// What the driver looks after beside its links. No method waits.
pub(crate) trait Companion: Send + Sync {
    /// What to poll now; `None` if there is nothing. Whoever changes it rings the driver's bell.
    fn beside(&self) -> Option<Arc<dyn Beside>>;
    /// Takes in what came, and sends what is due.
    fn turn(&self);
}

/// A companion's connection, as the driver polls it.
pub(crate) trait Beside: Send + Sync {
    /// What to poll for reading.
    fn socket(&self) -> BorrowedFd<'_>;
    /// How soon the companion's turn is due although nothing came.
    fn due(&self) -> Option<Duration>;
}

/// A companion is looked at this often while bytes move without a pause.
pub(super) const TURN_INTERVAL: Duration = Duration::from_millis(2);

/// Where a data plane keeps its companion. It does not keep it alive.
pub(super) type Place = Arc<OnceLock<Weak<dyn Companion>>>;

/// The companion as the driver sees it.
pub(super) struct Accompanied {
    place: Place,
    beside: Option<Arc<dyn Beside>>,
    /// The driver may know of an older connection than the present one.
    is_stale: bool,
    /// Something came, or is due.
    wants_turn: bool,
    turned: Instant,
    /// How often it is looked at while bytes move without a pause.
    every: Duration,
}

impl Accompanied {
    pub(super) fn by(place: Place, every: Duration) -> Self {
        Self { place, beside: None, is_stale: true, wants_turn: false, turned: Instant::now(), every }
    }

    /// The bell rang, or nobody drove for a while: there may be another connection than before.
    pub(super) fn look_again(&mut self) {
        self.is_stale = true;
    }

    /// Something came on its connection, or is due.
    pub(super) fn call(&mut self) {
        self.wants_turn = true;
    }

    /// Gives it its turn if it wants one, or has had none for long.
    pub(super) fn turn_if_due(&mut self, now: Instant) {
        if self.wants_turn || now.saturating_duration_since(self.turned) >= self.every {
            (self.wants_turn, self.turned) = (false, now);
            if let Some(companion) = self.place.get().and_then(Weak::upgrade) {
                // Whoever drives goes on driving for all others (rule 40).
                runtime::guarded("the control connection's turn", || companion.turn());
                // It may have ended with what it said.
                self.is_stale = true;
            }
        }
    }

    /// What to poll.
    pub(super) fn beside(&mut self) -> Option<Arc<dyn Beside>> {
        if self.is_stale {
            self.is_stale = false;
            self.beside = self.place.get().and_then(Weak::upgrade).and_then(|companion| companion.beside());
        }
        self.beside.clone()
    }
}
