//! Keys and values that a death does not take away: what a program holds.
//!
//! ```no_run
//! use outlast::Store;
//! use std::time::Duration;
//!
//! let store = Store::builder().coordinator("10.0.0.1:29400").join()?;
//! store.set("address/0", b"10.0.0.7:4000")?;
//! let there = store.add("arrived", 1)?;
//! store.wait(&["address/1"], Some(Duration::from_secs(30)))?;
//! # let _ = there;
//! # Ok::<(), outlast::store::StoreError>(())
//! ```
//!
//! A [`Store`] is a member of the run's store: it holds a part of the keys for everybody, and its program may ask for all
//! of them. Every key is with two members, so any one of them may die; what was acknowledged is still there. Operations
//! on one key are linearizable. See `outlast_proto::store` for how that is done.
//!
//! A value is bytes, a key is bytes; either may be empty.
//!
//! Here is what a member is and how it ends. How it joins is in `builder`; what it can do with keys is in `within`.

mod builder;
mod client;
mod conn;
mod datagrams;
mod engine;
mod error;
mod guests;
mod links;
mod shared;
mod standin;
#[cfg(test)]
mod tests;
mod views;
mod within;

pub use builder::StoreBuilder;
pub use client::Client;
pub use error::StoreError;
pub use outlast_proto::store::{Config, Failure};
pub use outlast_proto::wire::store::View;
pub use within::Within;

use crate::baton::{Baton, Seat};
use crate::fork::Creator;
use crate::port::{Port, Serving};
use crate::sync::Arc;
use crate::watch;
use engine::{Engine, Letter, What};
use outlast_proto::limits::STORE_VALUE_BYTES_MAX;
use outlast_proto::wire::store::MemberId;
use outlast_proto::wire::store::operation::Answer;
use shared::{Pending, Shared};
use std::time::{Duration, Instant};

/// A call returns this much after its deadline at the latest.
const GRACE: Duration = Duration::from_millis(500);
/// How long leaving may take: what this member holds is handed over meanwhile.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long whoever has left waits for dials that are under way.
const LAST_DIALS: Duration = Duration::from_millis(250);
/// Whoever waits longer than this waits so long: the clock does not count much further.
const TIMEOUT_MAX: Duration = Duration::from_hours(100 * 365 * 24);

/// One member of a store. Dropping it shuts the store down for all; [`Store::leave`] lets it go on without this member.
pub struct Store {
    shared: Arc<Shared>,
    baton: Arc<Baton<Engine>>,
    timeout: Duration,
    wait: Duration,
    creator: Creator,
    _serving: Serving,
    _port: Port,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("view", &self.view().map(|view| view.epoch)).finish_non_exhaustive()
    }
}

impl Store {
    /// Describes a member to be started.
    pub fn builder() -> StoreBuilder {
        StoreBuilder::new()
    }

    /// Describes a member of a store without a coordinator: `world_size` processes, of which the one with rank 0 listens
    /// at `address` and decides on views. The first view needs all of them; after that members may die and come back.
    /// While rank 0 is away nobody decides: calls wait for its return until their deadlines. `key` tells stores at one
    /// address apart.
    pub fn bootstrap(address: impl Into<String>, rank: u32, world_size: u32, key: &str) -> StoreBuilder {
        StoreBuilder::without_coordinator(address.into(), rank, world_size, key)
    }

    /// The view that this member is in; none while it joins anew.
    pub fn view(&self) -> Option<Arc<View>> {
        self.shared.view()
    }

    /// How long a call may take unless it says otherwise.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Another default for how long a call may take.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The same store, whose calls may each take that long in place of the default: one deadline for a whole call, however
    /// many keys it is about.
    pub fn within(&self, timeout: Duration) -> Within<'_> {
        Within::new(self, timeout)
    }

    /// Tells all other members something, each once, along a tree: no member passes it on to more than its neighbours.
    /// Returns at once. Those who come or go meanwhile may hear it or not.
    pub fn broadcast(&self, payload: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        self.creator.check()?;
        let payload = payload.into();
        within::bounded("a broadcast", payload.len(), STORE_VALUE_BYTES_MAX, String::new)?;
        self.shared.post(Letter::Broadcast(payload));
        Ok(())
    }

    /// The oldest broadcast of another member that was not asked for yet, and who sent it; waits for one. None if none came
    /// in time. Of more than 64 MiB that nobody asks for, the oldest are forgotten.
    pub fn next_broadcast(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<(MemberId, Vec<u8>)>, StoreError> {
        self.creator.check()?;
        let deadline = Instant::now() + timeout.unwrap_or(self.timeout).min(TIMEOUT_MAX);
        let waiting = watch::Waiting::begin();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let heard = self.shared.next_heard(watch::patience(left));
            if heard.is_some() || left.is_zero() || self.shared.ending().is_some() {
                return Ok(heard);
            }
            if waiting.is_given_up() {
                return Err(StoreError::Cancelled);
            }
        }
    }

    /// Leaves the store; it goes on without this member. What it holds is handed over first. Who gives that up has left all
    /// the same, as one that died.
    pub fn leave(&self) -> Result<(), StoreError> {
        self.creator.check()?;
        if self.shared.ending().is_some() {
            return Ok(());
        }
        self.shared.post(Letter::Leave);
        self.wait_for_end(LEAVE_TIMEOUT)?;
        self.shared.wait_for_dials(LAST_DIALS);
        Ok(())
    }

    /// Ends the store for all: every member hears of it, then every call that waits fails with "the store was shut down".
    pub fn shutdown(&self) -> Result<(), StoreError> {
        self.creator.check()?;
        self.end()
    }

    fn end(&self) -> Result<(), StoreError> {
        if self.shared.ending().is_some() {
            return Ok(());
        }
        self.shared.post(Letter::Shutdown);
        self.wait_for_end(self.wait * 2 + GRACE)
    }

    /// Waits until this member's part is over. When the time is, or the program gives the wait up, it goes without a word.
    fn wait_for_end(&self, timeout: Duration) -> Result<(), StoreError> {
        let deadline = Instant::now() + timeout;
        let waiting = watch::Waiting::begin();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.shared.wait_for_end(watch::patience(left)) {
                return Ok(());
            }
            let is_given_up = waiting.is_given_up();
            if is_given_up || left.is_zero() {
                self.shared.post(Letter::Gone);
                return if is_given_up { Err(StoreError::Cancelled) } else { Ok(()) };
            }
        }
    }

    /// Makes calls side by side, and waits for all of them. The first failure is the result.
    fn calls(&self, calls: Vec<What>, timeout: Duration) -> Result<Vec<Answer>, StoreError> {
        self.creator.check()?;
        let seat = Arc::new(Seat::new(&self.baton));
        let mut waiting = Vec::with_capacity(calls.len());
        for what in calls {
            let pending = Arc::new(Pending::new(Arc::clone(&seat)));
            self.shared.inbox.put(Letter::Call(what, timeout, Arc::clone(&pending)));
            waiting.push(pending);
        }
        // Whoever holds the baton takes it in now; if nobody does, we are about to.
        self.baton.call_driver();
        let given_up = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (flag, bell) = (Arc::clone(&given_up), Arc::clone(&seat));
        let _cancels = watch::cancels(move || {
            flag.store(true, std::sync::atomic::Ordering::SeqCst);
            bell.notify();
        });
        let until = Instant::now() + timeout + GRACE;
        let mut answers = Vec::with_capacity(waiting.len());
        for pending in &waiting {
            let stopped = || given_up.load(std::sync::atomic::Ordering::SeqCst);
            let ended = seat.wait(until, || match pending.take() {
                Some(result) => Some(Some(result)),
                None => stopped().then_some(None),
            });
            let result = match ended {
                Some(Some(result)) => result.map_err(StoreError::from),
                Some(None) => Err(StoreError::Cancelled),
                None => Err(Failure::TimedOut("the store's own engine did not answer".to_owned()).into()),
            };
            match result {
                Ok(answer) => answers.push(answer),
                Err(error) => {
                    for pending in &waiting {
                        self.shared.inbox.put(Letter::Abandon(Arc::clone(pending)));
                    }
                    self.baton.nudge();
                    return Err(error);
                }
            }
        }
        Ok(answers)
    }
}

impl Drop for Store {
    /// Shuts the store down, unless this member has left or it is over already. (A forked child has a copy and no thread.)
    fn drop(&mut self) {
        if self.creator.check().is_ok() {
            let _ = self.end();
        }
    }
}
