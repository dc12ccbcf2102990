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

mod client;
mod datagrams;
mod engine;
mod links;
mod shared;
mod standin;
#[cfg(test)]
mod tests;
mod views;
mod within;

pub use client::Client;
pub use outlast_proto::store::{Config, Failure};
pub use outlast_proto::wire::store::View;
pub use within::Within;

use crate::baton::{Baton, Seat};
use crate::bell::Bell;
use crate::coordinator::registry::Registry;
use crate::fork::{Creator, UsedAfterFork};
use crate::membership::{Preset, advertised, default_name};
use crate::port::{self, Port, PortError, Routes, Serving};
use crate::runtime::{self, Plane};
use crate::security::credentials::credential_settings;
use crate::security::tls::TlsError;
use crate::security::{Credentials, ProcessKey, SecretError};
use crate::sync::Arc;
use crate::{clock, watch};
use datagrams::Datagrams;
use engine::{Engine, Letter, What};
use outlast_proto::id::RunId;
use outlast_proto::limits::{STORE_KEY_BYTES_MAX, STORE_VALUE_BYTES_MAX};
use outlast_proto::store::Member;
use outlast_proto::wire::store::operation::{Answer, Key, Operation};
use outlast_proto::wire::store::{ClientId, MemberId, StoreMember};
use shared::{Pending, Shared, random};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// A call returns this much after its deadline at the latest.
const GRACE: Duration = Duration::from_millis(500);
/// How long leaving may take: what this member holds is handed over meanwhile.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Whoever waits longer than this waits so long: the clock does not count much further.
const TIMEOUT_MAX: Duration = Duration::from_hours(100 * 365 * 24);

/// Why a store could not be joined, or a call did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The call failed; the text says why. After a timeout it is not known whether a change was made.
    #[error(transparent)]
    Call(#[from] Failure),
    /// A key or a value breaks a limit. Nothing was done.
    #[error("{what} of {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// What.
        what: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The program gave the call up. A change may have been made.
    #[error("the call was given up")]
    Cancelled,
    /// There is no run secret. Nothing was started.
    #[error(
        "a store needs the run's secret: pass it, or set OUTLAST_SECRET or OUTLAST_SECRET_FILE; make one with \
         `outlast secret new`"
    )]
    MissingSecret,
    /// Nobody was named who decides on views. Nothing was started.
    #[error("a store needs a coordinator: pass its address, or set OUTLAST_COORDINATOR")]
    MissingCoordinator,
    /// A secret is damaged.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] TlsError),
    /// The port cannot be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The operating system refused something.
    #[error("cannot start the store: {0}")]
    Start(#[from] io::Error),
    /// The store did not let this member in in time.
    #[error("joining the store took longer than {timeout:?}: {cause}")]
    NotJoined {
        /// How long was waited.
        timeout: Duration,
        /// What is known about it.
        cause: String,
    },
    /// Whoever decides on views, or answers in its place, will never let this process in: it belongs to another run, or
    /// speaks another version. Nothing was done.
    #[error("{coordinator}, which decides on views, does not let this process in: {cause}")]
    Refused {
        /// Who was asked.
        coordinator: String,
        /// Why.
        cause: String,
    },
    /// A client found no store: nobody is in it. Nothing was done.
    #[error("nobody is in the store of this run at {coordinator}: start a member, or look at --run-id")]
    NoStore {
        /// Who was asked.
        coordinator: String,
    },
    /// A client could not ask anybody. Whether a change was made is not known if a member was asked and went away.
    #[error("nobody could be asked within {timeout:?}: {cause}")]
    Unreachable {
        /// How long was tried.
        timeout: Duration,
        /// What went wrong last.
        cause: String,
    },
    /// The store does not do what a client asked for, in its words. Nothing was changed.
    #[error("{0}")]
    Told(String),
    /// The handle was inherited by a forked child.
    #[error(transparent)]
    Forked(#[from] UsedAfterFork),
}

/// Describes a member before it joins.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it joins"]
pub struct StoreBuilder {
    coordinator: Option<String>,
    run: RunId,
    credentials: Credentials,
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    name: Option<String>,
    config: Config,
    timeout: Duration,
    ends_store: bool,
    /// Our rank and the number of members, if there is no coordinator.
    bootstrap: Option<(u32, u32)>,
}

impl StoreBuilder {
    /// The coordinator of the run, `host:port`; several are separated by commas.
    pub fn coordinator(mut self, address: impl Into<String>) -> Self {
        self.coordinator = Some(address.into());
        self
    }

    /// The run. Default: `default`.
    pub fn run_id(mut self, run: RunId) -> Self {
        self.run = run;
        self
    }

    credential_settings! {
        secret: "Default: `OUTLAST_SECRET` or `OUTLAST_SECRET_FILE`.",
        tls: "This member's id follows from the certificate's name."
    }

    /// How this member shows itself, all of it.
    pub(crate) fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// Where to listen. Default: any address, a free port.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// The address that others should use, if it is not the one listened on.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    /// A name for people. Default: the host's name and the process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Times for one kind of network; replaces all of them. Default: `lan`.
    pub fn preset(mut self, preset: Preset) -> Self {
        self.config = Config { direct: self.config.direct, ..Config::preset(preset) };
        self
    }

    /// Changes single settings, after [`Self::preset`].
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// How long a call may take unless it says otherwise, and joining too. Default: 300 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The store ends for all when this member is gone without a goodbye. Default: it goes on without it.
    pub fn shutdown_on_exit(mut self, ends: bool) -> Self {
        self.ends_store = ends;
        self
    }

    /// Joins the store: returns once this member is in a view.
    pub fn join(self) -> Result<Store, StoreError> {
        let coordinator = match self.coordinator {
            Some(address) => address,
            None => std::env::var("OUTLAST_COORDINATOR").map_err(|_| StoreError::MissingCoordinator)?,
        };
        let credentials = self.credentials.or_environment()?;
        let keys = credentials.keys(&self.run).ok_or(StoreError::MissingSecret)?;
        let identity = credentials.identity(&keys, &ProcessKey::generate())?;
        let runtime = runtime::of(Plane::Store)?;
        let decides = matches!(self.bootstrap, Some((0, _)));
        let listen = if decides { bootstrap_address(&coordinator)? } else { self.listen };
        let port = Port::bind(listen)?;
        let towards: Vec<SocketAddr> = coordinator
            .split(',')
            .filter_map(|address| address.trim().to_socket_addrs().ok())
            .flatten()
            .collect();
        let address = self.advertise.unwrap_or_else(|| advertised(port.address(), &towards));
        let me = StoreMember {
            id: MemberId(random()),
            peer: identity.peer(),
            client: ClientId(random()),
            rank: self.bootstrap.map_or(u32::MAX, |(rank, _)| rank),
            address,
            closed_port: port.closed_port(),
            name: self.name.unwrap_or_else(default_name),
            host: host(address),
            ends_store: self.ends_store,
        };
        me.check().map_err(|error| io::Error::other(error.to_string()))?;
        let shared = Arc::new(Shared::new(engine::watch()?, runtime.clone(), identity.clone()));
        let bell = Arc::new(Bell::new()?);
        let peer = identity.peer();
        let member = Member::new(clock::now(), self.config.clone(), me);
        let datagrams = Datagrams::new(&port, keys)?;
        let engine = Engine::new(member, datagrams, Arc::clone(&shared), Arc::clone(&bell))?;
        let baton = Arc::new(Baton::new(Box::new(engine), bell));
        shared.set_baton(&baton);
        let (spawner, acceptor) = (runtime.clone(), Arc::downgrade(&shared));
        let routes = Routes::new().route(port::STORE, move |stream| {
            let acceptor = acceptor.clone();
            spawner.spawn(async move {
                let accepting = runtime::to_its_end("a link of the store", links::accept(stream, peer));
                match (accepting.await, acceptor.upgrade()) {
                    (Some(Ok(linked)), Some(shared)) => shared.post(Letter::Linked(Box::new(linked))),
                    (Some(Err(error)), _) => tracing::debug!(%error, "a link to the store was not taken"),
                    _ => {}
                }
            });
        });
        let (spawner, acceptor) = (runtime.clone(), Arc::downgrade(&shared));
        let routes = routes.route(port::STORE_CLIENT, move |stream| {
            let serving = Box::pin(client::serve(acceptor.clone(), stream, peer));
            spawner.spawn(async move {
                runtime::to_its_end("a client of the store", serving).await;
            });
        });
        let routes = match self.bootstrap {
            Some((0, members)) => {
                let config = self.config.clone();
                let registry = Registry::alone(&runtime, config, members as usize);
                routes.route(port::STORE_VIEWS, move |stream| registry.serve(stream, peer, false))
            }
            _ => routes,
        };
        let serving = port.serve(&runtime, identity, routes)?;
        standin::start(Arc::clone(&shared), Arc::clone(&baton))?;
        let silent_after = self.config.control_grace;
        let led_by_a_member = self.bootstrap.is_some();
        let addresses = coordinator.clone();
        runtime.spawn(views::keep_always(Arc::clone(&shared), addresses, silent_after, led_by_a_member));
        let store = Store {
            shared,
            baton,
            timeout: self.timeout,
            wait: self.config.shutdown_wait,
            creator: Creator::this_process(),
            _serving: serving,
            _port: port,
        };
        let deadline = Instant::now() + self.timeout.min(TIMEOUT_MAX);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if store.shared.wait_for_view(left.min(Duration::from_millis(50))) {
                return Ok(store);
            }
            if let Some(cause) = store.shared.refusal() {
                store.shared.post(Letter::Gone);
                return Err(StoreError::Refused { coordinator, cause });
            }
            if left.is_zero() {
                let unknown = || "whoever decides on views does not answer".to_owned();
                let cause = store.shared.waits_for().unwrap_or_else(unknown);
                store.shared.post(Letter::Gone);
                return Err(StoreError::NotJoined { timeout: self.timeout, cause });
            }
            watch::look();
        }
    }
}

fn bootstrap_address(address: &str) -> io::Result<SocketAddr> {
    let mut found = address.to_socket_addrs()?;
    found.next().ok_or_else(|| io::Error::other(format!("{address:?} names no address; write host:port")))
}

/// Members with one address are on one host.
fn host(address: SocketAddr) -> u64 {
    use std::hash::{Hash as _, Hasher as _};
    let mut hasher = std::hash::DefaultHasher::new();
    address.ip().hash(&mut hasher);
    hasher.finish()
}

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
        StoreBuilder {
            coordinator: None,
            run: "default".parse().expect("a valid run id"),
            credentials: Credentials::default(),
            listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
            advertise: None,
            name: None,
            config: Config::preset(Preset::Lan),
            timeout: Duration::from_mins(5),
            ends_store: false,
            bootstrap: None,
        }
    }

    /// Describes a member of a store without a coordinator: `world_size` processes, of which the one with rank 0 listens
    /// at `address` and decides on views. The first view needs all of them; after that members may die and come back.
    /// While rank 0 is away nobody decides: calls wait for its return until their deadlines. `key` tells stores at one
    /// address apart.
    pub fn bootstrap(address: impl Into<String>, rank: u32, world_size: u32, key: &str) -> StoreBuilder {
        let run = format!("static-{:016x}", outlast_proto::store::layout::digest(key.as_bytes()));
        StoreBuilder {
            coordinator: Some(address.into()),
            run: run.parse().expect("letters and digits"),
            bootstrap: Some((rank, world_size)),
            ..Self::builder()
        }
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

    fn within_default(&self) -> Within<'_> {
        self.within(self.timeout)
    }

    /// Gives a key a value.
    pub fn set(&self, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        self.within_default().set(key, value)
    }

    /// The value of a key, as soon as it has one.
    pub fn get(&self, key: impl AsRef<[u8]>, timeout: Option<Duration>) -> Result<Vec<u8>, StoreError> {
        self.within(timeout.unwrap_or(self.timeout)).get(key)
    }

    /// The value of a key, if it has one now.
    pub fn look(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
        self.within_default().look(key)
    }

    /// Waits until all of these keys have values.
    pub fn wait(&self, keys: &[impl AsRef<[u8]>], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.within(timeout.unwrap_or(self.timeout)).wait(keys)
    }

    /// Whether all of these keys have values now.
    pub fn check(&self, keys: &[impl AsRef<[u8]>]) -> Result<bool, StoreError> {
        self.within_default().check(keys)
    }

    /// Adds to the number that a key holds as decimal text; no value counts as zero. The sum.
    pub fn add(&self, key: impl AsRef<[u8]>, amount: i64) -> Result<i64, StoreError> {
        self.within_default().add(key, amount)
    }

    /// Gives a key the value `desired` if it has the value `expected`; one without a value counts as having the empty
    /// one. The value that it has then; `expected` if it has none.
    pub fn compare_set(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl Into<Vec<u8>>,
        desired: impl Into<Vec<u8>>,
    ) -> Result<Vec<u8>, StoreError> {
        self.within_default().compare_set(key, expected, desired)
    }

    /// Writes behind the value of a key.
    pub fn append(&self, key: impl AsRef<[u8]>, more: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        self.within_default().append(key, more)
    }

    /// Takes the value of a key away. Whether it had one.
    pub fn delete_key(&self, key: impl AsRef<[u8]>) -> Result<bool, StoreError> {
        self.within_default().delete_key(key)
    }

    /// How many keys have values. Not atomic.
    pub fn num_keys(&self) -> Result<u64, StoreError> {
        self.within_default().num_keys()
    }

    /// The keys that begin with `prefix`, sorted. Not atomic.
    pub fn keys(&self, prefix: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>, StoreError> {
        self.within_default().keys(prefix)
    }

    /// The values of several keys, as soon as all have one. Not atomic.
    pub fn multi_get(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.within_default().multi_get(keys)
    }

    /// Gives several keys values. Not atomic.
    pub fn multi_set(
        &self,
        pairs: impl IntoIterator<Item = (impl AsRef<[u8]>, impl Into<Vec<u8>>)>,
    ) -> Result<(), StoreError> {
        self.within_default().multi_set(pairs)
    }

    /// Puts an element behind the last of a queue.
    pub fn queue_push(&self, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        self.within_default().queue_push(key, value)
    }

    /// Takes the first element of a queue, if there is one now.
    pub fn queue_try_pop(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
        self.within_default().queue_try_pop(key)
    }

    /// Takes the first element of a queue, as soon as there is one.
    pub fn queue_pop(&self, key: impl AsRef<[u8]>, timeout: Option<Duration>) -> Result<Vec<u8>, StoreError> {
        self.within(timeout.unwrap_or(self.timeout)).queue_pop(key)
    }

    /// How many elements a queue has.
    pub fn queue_len(&self, key: impl AsRef<[u8]>) -> Result<u64, StoreError> {
        self.within_default().queue_len(key)
    }

    /// Tells all other members something, each once, along a tree: no member passes it on to more than its neighbours.
    /// Returns at once. Those who come or go meanwhile may hear it or not.
    pub fn broadcast(&self, payload: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        self.creator.check()?;
        let payload = payload.into();
        bounded("a broadcast", payload.len(), STORE_VALUE_BYTES_MAX)?;
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
        Ok(self.shared.next_heard(timeout.unwrap_or(self.timeout)))
    }

    /// Leaves the store; it goes on without this member. What it holds is handed over first.
    pub fn leave(&self) -> Result<(), StoreError> {
        self.creator.check()?;
        if self.shared.ending().is_none() {
            self.shared.post(Letter::Leave);
            if !self.shared.wait_for_end(LEAVE_TIMEOUT) {
                self.shared.post(Letter::Gone);
            }
        }
        Ok(())
    }

    /// Ends the store for all: every member hears of it, then every call that waits fails with "the store was shut down".
    pub fn shutdown(&self) -> Result<(), StoreError> {
        self.creator.check()?;
        self.end();
        Ok(())
    }

    fn end(&self) {
        if self.shared.ending().is_none() {
            self.shared.post(Letter::Shutdown);
            if !self.shared.wait_for_end(self.wait * 2 + GRACE) {
                self.shared.post(Letter::Gone);
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
            self.end();
        }
    }
}

fn bounded(what: &'static str, bytes: usize, limit: usize) -> Result<(), StoreError> {
    if bytes > limit { Err(StoreError::TooLong { what, bytes, limit }) } else { Ok(()) }
}

fn value_key(key: impl AsRef<[u8]>) -> Result<Key, StoreError> {
    bounded("a key", key.as_ref().len(), STORE_KEY_BYTES_MAX)?;
    Ok(Key::value(key.as_ref()))
}

fn queue_key(key: impl AsRef<[u8]>) -> Result<Key, StoreError> {
    bounded("a key", key.as_ref().len(), STORE_KEY_BYTES_MAX)?;
    Ok(Key::queue(key.as_ref()))
}

fn check_value(operation: &Operation) -> Result<(), StoreError> {
    match operation {
        Operation::Set(value) | Operation::Append(value) | Operation::Push(value) => {
            bounded("a value", value.len(), STORE_VALUE_BYTES_MAX)
        }
        Operation::CompareSet(expected, desired) => {
            bounded("a value", expected.len().max(desired.len()), STORE_VALUE_BYTES_MAX)
        }
        _ => Ok(()),
    }
}

fn bytes(answer: Answer) -> Option<Vec<u8>> {
    match answer {
        Answer::Value(value) => Some(Arc::unwrap_or_clone(value.0)),
        _ => None,
    }
}

fn number(answer: Answer) -> i64 {
    match answer {
        Answer::Number(number) => number,
        _ => 0,
    }
}
