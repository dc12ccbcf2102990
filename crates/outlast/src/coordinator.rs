//! The coordinator as a service: many runs behind one port.
//!
//! One task, the *clerk*, owns the machines of all runs and never waits for anybody: what arrives is put into
//! its inbox, what it says is put into bounded queues, and a peer whose queue is full loses its connection,
//! not everybody's time. Health comes from a member of its own in each run.
//!
//! # What a mistake of ours costs
//!
//! A panic in what decides for one run costs that run a rebuild (see `clerk`). If the clerk itself ends without having been
//! told to, or a task that it cannot be without, the coordinator is over and says so to everybody (rule 40): lines and
//! registers are closed, the port is closed, so that peers are refused at once and look for another one, a lease is given
//! back, so that another one reigns, and the handle answers with an error, so that its owner starts a new one. A coordinator
//! that accepts connections and decides nothing would be waited for by all of them.

mod ask;
mod backend;
mod clerk;
#[cfg(feature = "etcd")]
mod election;
mod history;
mod hunt;
mod knock;
mod line;
mod post;
mod quotas;
mod registers;
pub(crate) mod registry;
mod solver;
mod strikes;
mod whereabouts;

pub use ask::ask_status;
pub(crate) use ask::{ControlFrames, Dialled, Unreached, ask, dial, dial_plane};
pub use backend::{Backend, BackendError};
pub(crate) use hunt::superseded;
pub(crate) use quotas::Pace;
pub use whereabouts::check_addresses;

use crate::fork::Creator;
use crate::membership::Preset;
use crate::port::{CachedIdentities, Port, PortError, Routes, Serving};
use crate::runtime::{self, Plane};
use crate::security::credentials::credential_settings;
use crate::security::tls::TlsError;
use crate::security::{Credentials, KeyError, ProcessKey, RunSecret, SecretError};
use crate::sync::{Arc, Condvar, Mutex, lock, sleep_while};
use crate::{clock, port, settings};
use backend::{Book, FileBook};
use clerk::{Clerk, Ended, Inbox};
use outlast_proto::coordinator::Config;
use outlast_proto::id::RunId;
use post::Post;
use registers::Registers;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// Letters that wait for the clerk; beyond it connections wait, not the clerk.
const INBOX_MAX: usize = 16_384;
/// How long the clerk is waited for; it stops after the letter at hand.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a question about the status may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a letter is tried again that found the inbox full.
const STATUS_PAUSE: Duration = Duration::from_millis(1);

/// A coordinator. Dropping it stops it; its runs can be continued by another at the same address.
#[derive(Debug)]
pub struct Coordinator {
    address: SocketAddr,
    secret: RunSecret,
    inbox: mpsc::Sender<Inbox>,
    registers: Arc<Registers>,
    /// Dropping it stops the clerk, who closes every connection.
    stop: Option<oneshot::Sender<()>>,
    /// How the clerk has ended, once it has.
    gone: Gone,
    /// Ends its part in an election (rule 19).
    #[cfg(feature = "etcd")]
    resign: Option<oneshot::Sender<std::sync::mpsc::Sender<()>>>,
    doors: Doors,
    creator: Creator,
}

/// How the clerk has ended, once it has: as it was told, or why else.
type Gone = Arc<(Mutex<Option<Result<(), &'static str>>>, Condvar)>;

/// What is open to the world, until the coordinator ends.
type Doors = Arc<Mutex<Option<(Serving, Port)>>>;

/// Why a coordinator could not start or does not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The port cannot be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The operating system refused something.
    #[error("cannot start the coordinator: {0}")]
    Start(#[from] io::Error),
    /// The handle was inherited by a forked child.
    #[error(transparent)]
    Forked(#[from] crate::fork::UsedAfterFork),
    /// There is no run secret.
    #[error("a question about a run needs its secret: pass it, or set OUTLAST_SECRET or OUTLAST_SECRET_FILE")]
    MissingSecret,
    /// A secret in the environment is damaged, or there are too many.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A setting makes no sense. Nothing was started.
    #[error("{0}")]
    Setting(String),
    /// The certificate of one's own authority cannot be used.
    #[error(transparent)]
    Certificate(#[from] TlsError),
    /// The key cannot be kept.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The backend cannot be used.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No coordinator answers there.
    #[error("the coordinator {address} cannot be reached: {cause}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What went wrong.
        cause: String,
    },
    /// The clerk did not answer in time.
    #[error("the coordinator did not say within {STATUS_TIMEOUT:?} how the run stands: ask again")]
    Silent,
    /// It is over although nobody told it to stop. Its port is closed; it cannot be used any more.
    #[error(
        "the coordinator has ended: {0} panicked, which is a bug in outlast (standard error says where; please report it). \
         Start it again with the same address and secret: its runs go on"
    )]
    Ended(&'static str),
}

/// Describes a coordinator before it starts.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
#[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "several need an etcd"))]
pub struct CoordinatorBuilder {
    listen: SocketAddr,
    credentials: Credentials,
    key_file: Option<PathBuf>,
    backend: Backend,
    cluster: String,
    lease: Option<Duration>,
    advertise: Option<String>,
    preset: Preset,
    stall_budget: Option<Duration>,
    dead_after: Option<Duration>,
    control_lost_after: Option<Duration>,
    ring_steps: Option<(u64, u64)>,
}

impl CoordinatorBuilder {
    /// Where to listen; port 0 takes any.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    credential_settings! {
        secret: "Without one a fresh one is made.",
        tls: "Peers know the coordinator by the name in it."
    }

    /// Keeps the coordinator's key in that file, which is made if it is not there. Its peers remember the key, and
    /// believe nobody else at its address, for as long as they live (rule 39). Without it a restarted coordinator
    /// has a new key, and whoever holds the secret and answers at the address is believed.
    pub fn key_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.key_file = Some(path.into());
        self
    }

    /// Where it keeps what should outlive it. A file, or an etcd, holds the key too, so that no key file is needed.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Which coordinators stand by for each other, of several at one etcd; `default` unless another name is given.
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.cluster = name.into();
        self
    }

    /// How long a reign goes on without a word from an etcd; by then at the latest another coordinator can take over.
    pub fn lease(mut self, time: Duration) -> Self {
        self.lease = Some(time);
        self
    }

    /// Where peers reach this one of several coordinators, `host:port`. Default: where it listens, or the address from
    /// which packets to the etcd leave.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// The kind of network.
    pub fn preset(mut self, preset: Preset) -> Self {
        self.preset = preset;
        self
    }

    /// How long a stopped process is waited for. The coordinator evicts, so its word counts, not the peers'.
    pub fn stall_budget(mut self, budget: Duration) -> Self {
        self.stall_budget = Some(budget);
        self
    }

    /// How long silence must last to be a death whoever testified. The coordinator evicts, so its word counts.
    pub fn dead_after(mut self, silence: Duration) -> Self {
        self.dead_after = Some(silence);
        self
    }

    /// How long a peer whose connection is gone is waited for while the health plane calls it alive.
    pub fn control_lost_after(mut self, time: Duration) -> Self {
        self.control_lost_after = Some(time);
        self
    }

    /// How much work a search for a better ring may take, in steps of which some ten thousand take a millisecond: while
    /// `optimize_topology` waits for it, and in the background after that.
    pub fn ring_steps(mut self, quick: u64, background: u64) -> Self {
        self.ring_steps = Some((quick, background));
        self
    }

    /// Starts to serve.
    pub fn start(self) -> Result<Coordinator, CoordinatorError> {
        if let Some(time) = self.control_lost_after {
            settings::check_control_lost_after(self.preset, time).map_err(CoordinatorError::Setting)?;
        }
        if let Some(silence) = self.dead_after.filter(|silence| *silence < self.preset.times().probe_interval)
        {
            let text =
                format!("dead_after of {silence:?}: it must be at least the probe interval of the preset");
            return Err(CoordinatorError::Setting(text));
        }
        let mut credentials = self.credentials;
        let secret = credentials.secret().cloned().unwrap_or_else(RunSecret::generate);
        credentials.set_secret(secret.clone());
        let credentials = credentials.or_environment()?;
        let (book, kept) = match &self.backend {
            Backend::Memory => (None, None),
            Backend::File(path) => {
                let (book, key) = FileBook::open(path)?;
                (Some(Book::File(book)), Some(key))
            }
            #[cfg(feature = "etcd")]
            Backend::Etcd(options) => {
                // Named by the same rule as runs: it becomes part of the names of keys.
                if let Err(error) = self.cluster.parse::<RunId>() {
                    return Err(CoordinatorError::Setting(format!("cluster {:?}: {error}", self.cluster)));
                }
                let key = election::common_key(options, &self.cluster, &credentials);
                (None, Some(runtime::of(Plane::Election)?.block_on(key)?))
            }
        };
        let key = match (self.key_file, kept) {
            (Some(path), _) => ProcessKey::kept_in(path)?,
            (None, Some(key)) => key,
            (None, None) => ProcessKey::generate(),
        };
        // A certificate that cannot be used is found out now, not when the first peer comes. The run does not matter.
        let sample = "default".parse().ok().and_then(|run| credentials.keys(&run));
        let identity = sample.map(|keys| credentials.identity(&keys, &key)).transpose()?;
        let me = identity.map_or(key.peer(), |identity| identity.peer());
        let is_kept = key.is_kept() || credentials.has_certificate();
        // Peers of before would know a coordinator by its key or by the name in its certificate, and take no other for it.
        let is_first = key.is_first() && !credentials.has_certificate();
        let port = Port::bind(self.listen)?;
        let address = port.address();
        let handle = runtime::of(Plane::Clerk)?;
        let (inbox, letters) = mpsc::channel(INBOX_MAX);
        // Every run id is served; whoever holds the secret, or a certificate of our authority, belongs.
        let of_runs = credentials.clone();
        let identities = Arc::new(CachedIdentities::new(move |run: &RunId| {
            let identity = of_runs.keys(run).and_then(|keys| of_runs.identity(&keys, &key).ok());
            identity.expect("a secret is there, and the certificate was tried above")
        }));
        let lines = inbox.clone();
        let spawner = handle.clone();
        // Peers of a coordinator that died here come back within the control grace; nobody new is let in before, because
        // to a group that is founded they would be strangers (rule 41). At a port that the system has just chosen
        // nobody can have been, nor at one whose key was made just now.
        let mut config = Config { key_is_kept: is_kept, ..Config::preset(self.preset) };
        config.dead_after = self.dead_after.unwrap_or(config.dead_after);
        config.control_lost_after = self.control_lost_after.unwrap_or(config.control_lost_after);
        config.ring_steps = self.ring_steps.unwrap_or(config.ring_steps);
        let fresh_after = (self.listen.port() != 0 && !is_first).then(|| clock::now() + config.control_grace);
        let leases = runtime::of(Plane::Registers)?;
        let post = match &self.backend {
            Backend::Memory | Backend::File(_) => Post::default(),
            #[cfg(feature = "etcd")]
            Backend::Etcd(options) => {
                let own = self.advertise.clone().unwrap_or_else(|| reachable(address, options));
                let lease = self.lease.unwrap_or_else(|| self.preset.times().reign_lease);
                Post::among_several(own, election::patience(lease))
            }
        };
        let registers = Registers::new(fresh_after, post.clone(), leases.clone());
        let (kept, register_tasks) = (Arc::clone(&registers), leases.clone());
        let posted = post.clone();
        let stores = runtime::of(Plane::Store)?;
        let of_store = outlast_proto::store::Config::preset(self.preset);
        let (registry, standings, registrars) =
            registry::Registry::start(&stores, of_store, fresh_after, 1, post.clone());
        let routes = Routes::new()
            .route(port::CONTROL, move |stream| {
                spawner.spawn(line::serve(stream, me, is_kept, posted.clone(), lines.clone()));
            })
            .route_on(port::REGISTER, &leases, move |stream| {
                register_tasks.spawn(registers::serve(stream, me, is_kept, Arc::clone(&kept)));
            })
            .route_on(port::STORE_VIEWS, &stores, move |stream| registry.serve(stream, me, is_kept));
        let serving = port.serve_runs(&handle, identities, routes, port::ServeSettings::default())?;
        let health = clerk::HealthSettings {
            preset: self.preset,
            stall_budget: self.stall_budget,
            dead_after: self.dead_after,
        };
        #[cfg(feature = "etcd")]
        let grace = config.control_grace;
        let seen = (serving.watch(), standings);
        let mut clerk =
            Clerk::new(config, health, credentials, address, fresh_after, inbox.downgrade(), seen);
        if let Some(book) = book {
            clerk.keep_in(book);
        }
        #[cfg(feature = "etcd")]
        let resign = match &self.backend {
            Backend::Memory | Backend::File(_) => None,
            Backend::Etcd(options) => {
                let (news, told) = mpsc::unbounded_channel();
                let (writes, written) = mpsc::unbounded_channel();
                clerk.keep_in(Book::Etcd(election::Seat::new(writes)));
                clerk.stand_by(post.clone(), told);
                registers.stop();
                let own = post.standing_at().unwrap_or_default();
                let lease = self.lease.unwrap_or_else(|| self.preset.times().reign_lease);
                let election = election::Election::new(
                    ((**options).clone(), election::Keys::of(&self.cluster)),
                    (own, lease, grace),
                    (post, Arc::clone(&registers)),
                    news,
                );
                let (resign, resigned) = oneshot::channel();
                runtime::of(Plane::Election)?
                    .spawn(runtime::to_its_end("an election", election.run(written, resigned)));
                Some(resign)
            }
        };
        let (stop, stopped) = oneshot::channel();
        let (gone, doors) = (Gone::default(), Doors::new(Mutex::new(Some((serving, port)))));
        handle.spawn(clerk_to_its_end(
            clerk.run(letters, stopped, registrars),
            (Arc::clone(&registers), Arc::clone(&doors)),
            Arc::clone(&gone),
        ));
        let (stop, creator) = (Some(stop), Creator::this_process());
        Ok(Coordinator {
            address,
            secret,
            inbox,
            registers,
            stop,
            gone,
            #[cfg(feature = "etcd")]
            resign,
            doors,
            creator,
        })
    }
}

/// The clerk at work. However that ends, whoever waits for the coordinator hears of it (rule 40); an election does because the
/// clerk's ear is gone, and gives the lease back.
async fn clerk_to_its_end(
    working: impl Future<Output = Ended>,
    (registers, doors): (Arc<Registers>, Doors),
    gone: Gone,
) {
    let outcome = match runtime::to_its_end("the clerk", working).await {
        Some(Ended::Told) => Ok(()),
        Some(Ended::ElectionGone) => Err("its part in the election"),
        Some(Ended::RegistrarsGone) => Err("what decides on the views of stores"),
        None => Err("its clerk"),
    };
    if let Err(what) = outcome {
        tracing::error!("{}", CoordinatorError::Ended(what));
        // The door is waited for; the threads of the clerk have lines to close meanwhile.
        let closing = tokio::task::spawn_blocking(move || {
            registers.stop();
            let doors = lock(&doors).take();
            drop(doors);
        });
        // Nothing can be done about a panic there, and the word must not wait for it.
        let _ = closing.await;
    }
    *lock(&gone.0) = Some(outcome);
    gone.1.notify_all();
}

impl Coordinator {
    /// Describes a coordinator to be started.
    pub fn builder() -> CoordinatorBuilder {
        CoordinatorBuilder {
            listen: (Ipv4Addr::UNSPECIFIED, DEFAULT_PORT).into(),
            credentials: Credentials::default(),
            key_file: None,
            backend: Backend::Memory,
            cluster: "default".to_owned(),
            lease: None,
            advertise: None,
            preset: Preset::Lan,
            stall_budget: None,
            dead_after: None,
            control_lost_after: None,
            ring_steps: None,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The secret that peers need.
    pub fn secret(&self) -> &RunSecret {
        &self.secret
    }

    /// Whether it still serves. If not, and nobody told it to stop, the error says why: its owner starts a new one.
    pub fn check(&self) -> Result<(), CoordinatorError> {
        self.creator.check()?;
        let ended = *lock(&self.gone.0);
        ended.unwrap_or(Ok(())).map_err(CoordinatorError::Ended)
    }

    /// How a run stands, as a JSON object; `None` if nobody has joined it. Waits for the answer for five seconds at most.
    pub fn status(&self, run: &RunId) -> Result<Option<String>, CoordinatorError> {
        self.creator.check()?;
        let deadline = Instant::now() + STATUS_TIMEOUT;
        // Neither wait may hang on the clerk's threads: they may be what does not get on.
        let (answer, answered) = sync_channel(1);
        let mut letter = Inbox::Status(run.clone(), answer);
        while let Err(error) = self.inbox.try_send(letter) {
            letter = match error {
                TrySendError::Closed(_) => return Err(self.why_silent(deadline)),
                TrySendError::Full(_) if Instant::now() >= deadline => return Err(CoordinatorError::Silent),
                TrySendError::Full(letter) => letter,
            };
            std::thread::sleep(STATUS_PAUSE);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        answered.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => CoordinatorError::Silent,
            RecvTimeoutError::Disconnected => self.why_silent(deadline),
        })
    }

    /// Why there will be no answer. A clerk that is gone has its last words within a moment; one that is not has dropped the
    /// question with the machine that panicked over it.
    fn why_silent(&self, deadline: Instant) -> CoordinatorError {
        if self.inbox.is_closed() {
            let (gone, left) = &*self.gone;
            let time = deadline.saturating_duration_since(Instant::now());
            drop(sleep_while(left, lock(gone), time, |gone| gone.is_none()));
        }
        self.check().err().unwrap_or(CoordinatorError::Silent)
    }
}

impl Drop for Coordinator {
    /// Nothing is decided any more once it returns, and its port is free. (A forked child has a copy of this object and no
    /// clerk.)
    fn drop(&mut self) {
        self.stop = None;
        if self.creator.check().is_ok() {
            self.registers.stop();
            let (gone, left) = &*self.gone;
            let gone = lock(gone);
            drop(sleep_while(left, gone, STOP_TIMEOUT, |gone| gone.is_none()));
            // Only now may another reign.
            #[cfg(feature = "etcd")]
            if let Some(resign) = self.resign.take() {
                let (done, resigned) = std::sync::mpsc::channel();
                let _ = resign.send(done);
                let _ = resigned.recv_timeout(STOP_TIMEOUT);
            }
            // Even if the clerk is stuck, and holds on to them.
            let doors = lock(&self.doors).take();
            drop(doors);
        }
    }
}

/// Where others reach whoever listens at that address: there, or where packets to the etcd leave from. Nothing is sent
/// for it.
#[cfg(feature = "etcd")]
fn reachable(listen: SocketAddr, options: &crate::etcd::EtcdOptions) -> String {
    let towards = || {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(options.endpoints().first().map_or("", String::as_str))?;
        socket.local_addr()
    };
    match towards() {
        Ok(own) if listen.ip().is_unspecified() => SocketAddr::new(own.ip(), listen.port()).to_string(),
        _ => listen.to_string(),
    }
}

/// The port of a coordinator unless another is given.
pub const DEFAULT_PORT: u16 = 29_400;

#[cfg(test)]
mod tests {
    use super::*;

    /// It was waited for without end.
    #[test]
    fn a_clerk_that_does_not_get_on_is_asked_for_the_status_for_so_long_only() {
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let coordinator = Coordinator::builder().listen(listen).preset(Preset::Local).start().unwrap();
        let run: RunId = "default".parse().unwrap();
        assert_eq!(coordinator.status(&run).unwrap(), None);
        let (go_on, waits) = sync_channel::<()>(0);
        let (is_stuck, stuck) = sync_channel(0);
        runtime::of(Plane::Clerk).unwrap().spawn(async move {
            is_stuck.send(()).unwrap();
            let _ = waits.recv_timeout(4 * STATUS_TIMEOUT);
        });
        stuck.recv().unwrap();
        let began = Instant::now();
        let error = coordinator.status(&run).unwrap_err();
        assert!(matches!(error, CoordinatorError::Silent), "{error:?}");
        assert!(error.to_string().contains("within 5s how the run stands"), "{error}");
        assert!(began.elapsed() < 2 * STATUS_TIMEOUT, "{:?}", began.elapsed());
        drop(go_on);
        assert_eq!(coordinator.status(&run).unwrap(), None, "it answers again");
    }
}
