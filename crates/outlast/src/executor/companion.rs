//! A connection that is not the data plane's, looked after by whoever drives.
//!
//! The driver of a call polls its links anyway. The control connection, on which an abort or a verdict may come
//! meanwhile, is one more descriptor for it and would be one more thread to wake for everybody else.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// What the driver looks after beside its links. No method waits.
pub(crate) trait Companion: Send + Sync {
    /// Somebody drives from now on, until [`Self::leave`].
    fn join(&self);
    /// Whoever drove does so no more.
    fn leave(&self);
    /// What to poll now; `None` if there is nothing. Whoever changes it rings the data plane's bell.
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
const TURN_INTERVAL: Duration = Duration::from_millis(2);

/// Where a data plane keeps its companion. It does not keep it alive.
pub(super) type Place = OnceLock<Weak<dyn Companion>>;

/// The companion of one drive, from its beginning to its end.
pub(super) struct Accompanied {
    companion: Option<Arc<dyn Companion>>,
    beside: Option<Arc<dyn Beside>>,
    turned: Instant,
}

impl Accompanied {
    pub(super) fn by(place: &Place) -> Self {
        let companion = place.get().and_then(Weak::upgrade);
        if let Some(companion) = &companion {
            companion.join();
        }
        let mut accompanied = Self { companion, beside: None, turned: Instant::now() };
        accompanied.look_again();
        accompanied
    }

    /// The bell rang: there may be another connection than before.
    pub(super) fn look_again(&mut self) {
        self.beside = self.companion.as_ref().and_then(|companion| companion.beside());
    }

    /// Gives it its turn if that is due although the driver has not waited.
    pub(super) fn turn_if_due(&mut self, now: Instant) {
        if self.companion.is_some() && now.saturating_duration_since(self.turned) >= TURN_INTERVAL {
            self.turned = now;
            self.turn();
        }
    }

    pub(super) fn turn(&mut self) {
        if let Some(companion) = &self.companion {
            companion.turn();
        }
        // It may have ended with what it said.
        self.look_again();
    }

    pub(super) fn beside(&self) -> Option<&dyn Beside> {
        self.beside.as_deref()
    }
}

impl Drop for Accompanied {
    fn drop(&mut self) {
        if let Some(companion) = &self.companion {
            companion.leave();
        }
    }
}
