//! The coordinator as a service: many runs behind one port.
//!
//! One task, the *clerk*, owns the machines of all runs and never waits for anybody: what arrives is put into
//! its inbox, what it says is put into bounded queues, and a peer whose queue is full loses its connection,
//! not everybody's time. Health comes from a member of its own in each run.

mod ask;
mod backend;
mod clerk;
mod history;
mod line;
mod quotas;
mod registers;
mod solver;

pub use ask::ask_status;
pub(crate) use ask::{ControlFrames, Dialled, Unreached, ask, dial, dial_plane};
pub use backend::{Backend, BackendError};

use crate::fork::Creator;
use crate::membership::Preset;
use crate::port::{CachedIdentities, Port, PortError, Routes, Serving};
use crate::runtime::{self, Plane};
use crate::security::tls::TlsError;
use crate::security::{Credentials, KeyError, OwnCertificate, ProcessKey, RunSecret, SecretError};
use crate::sync::{Arc, Condvar, Mutex, lock, sleep_while};
use crate::{clock, port, settings};
use backend::Book;
use clerk::{Clerk, Inbox};
use outlast_proto::coordinator::Config;
use outlast_proto::id::RunId;
use registers::Registers;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Letters that wait for the clerk; beyond it connections wait, not the clerk.
const INBOX_MAX: usize = 16_384;
/// How long the clerk is waited for; it stops after the letter at hand.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a question about the status may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// A coordinator. Dropping it stops it; its runs can be continued by another at the same address.
#[derive(Debug)]
pub struct Coordinator {
    address: SocketAddr,
    secret: RunSecret,
    inbox: mpsc::Sender<Inbox>,
    registers: Arc<Registers>,
    /// Dropping it stops the clerk, who closes every connection.
    stop: Option<oneshot::Sender<()>>,
    /// Whether the clerk is gone.
    gone: Arc<(Mutex<bool>, Condvar)>,
    _serving: Serving,
    _port: Port,
    creator: Creator,
}

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
    #[error("the coordinator did not answer within {STATUS_TIMEOUT:?}")]
    Silent,
}

/// Describes a coordinator before it starts.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct CoordinatorBuilder {
    listen: SocketAddr,
    credentials: Credentials,
    key_file: Option<PathBuf>,
    backend: Backend,
    preset: Preset,
    stall_budget: Option<Duration>,
    dead_after: Option<Duration>,
    control_lost_after: Option<Duration>,
}

impl CoordinatorBuilder {
    /// Where to listen; port 0 takes any.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// The secret of its runs. Without one a fresh one is made.
    pub fn secret(mut self, secret: RunSecret) -> Self {
        self.credentials.set_secret(secret);
        self
    }

    /// One more secret that is accepted beside ours, while a secret is rotated.
    pub fn accept_secret(mut self, secret: RunSecret) -> Self {
        self.credentials.accept(secret);
        self
    }

    /// A certificate of one's own authority for the streams; peers know the coordinator by the name in it.
    pub fn tls(mut self, certificate: OwnCertificate) -> Self {
        self.credentials.set_certificate(certificate);
        self
    }

    /// Keeps the coordinator's key in that file, which is made if it is not there. Its peers remember the key, and
    /// believe nobody else at its address, for as long as they live (rule 39). Without it a restarted coordinator
    /// has a new key, and whoever holds the secret and answers at the address is believed.
    pub fn key_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.key_file = Some(path.into());
        self
    }

    /// Where it keeps what should outlive it. A file holds the key too, so that no key file is needed.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
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
                let (book, key) = Book::open(path)?;
                (Some(book), Some(key))
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
        let keeper = credentials.clone();
        let identities = Arc::new(CachedIdentities::new(move |run: &RunId| {
            let identity = keeper.keys(run).and_then(|keys| keeper.identity(&keys, &key).ok());
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
        let fresh_after = (self.listen.port() != 0 && !is_first).then(|| clock::now() + config.control_grace);
        let leases = runtime::of(Plane::Registers)?;
        let registers = Registers::new(fresh_after, leases.clone());
        let (kept, keeper) = (Arc::clone(&registers), leases.clone());
        let routes = Routes::new()
            .route(port::CONTROL, move |stream| {
                spawner.spawn(line::serve(stream, me, is_kept, lines.clone()));
            })
            .route_on(port::REGISTER, &leases, move |stream| {
                keeper.spawn(registers::serve(stream, me, is_kept, Arc::clone(&kept)));
            });
        let serving = port.serve_runs(&handle, identities, routes, port::ServeSettings::default())?;
        let health = clerk::HealthSettings {
            preset: self.preset,
            stall_budget: self.stall_budget,
            dead_after: self.dead_after,
        };
        let mut clerk =
            Clerk::new(config, health, credentials, address, fresh_after, inbox.downgrade(), serving.watch());
        if let Some(book) = book {
            clerk.keep_in(book);
        }
        let (stop, stopped) = oneshot::channel();
        let gone = Arc::<(Mutex<bool>, Condvar)>::default();
        let left = Arc::clone(&gone);
        handle.spawn(async move {
            clerk.run(letters, stopped).await;
            *lock(&left.0) = true;
            left.1.notify_all();
        });
        let (stop, creator) = (Some(stop), Creator::this_process());
        Ok(Coordinator {
            address,
            secret,
            inbox,
            registers,
            stop,
            gone,
            _serving: serving,
            _port: port,
            creator,
        })
    }
}

impl Coordinator {
    /// Describes a coordinator to be started.
    pub fn builder() -> CoordinatorBuilder {
        CoordinatorBuilder {
            listen: (Ipv4Addr::UNSPECIFIED, DEFAULT_PORT).into(),
            credentials: Credentials::default(),
            key_file: None,
            backend: Backend::Memory,
            preset: Preset::Lan,
            stall_budget: None,
            dead_after: None,
            control_lost_after: None,
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

    /// How a run stands, as a JSON object; `None` if nobody has joined it.
    pub fn status(&self, run: &RunId) -> Result<Option<String>, CoordinatorError> {
        self.creator.check()?;
        let (answer, answered) = oneshot::channel();
        let letter = Inbox::Status(run.clone(), answer);
        let asked = self.inbox.blocking_send(letter);
        asked.map_err(|_| CoordinatorError::Silent)?;
        answered.blocking_recv().map_err(|_| CoordinatorError::Silent)
    }
}

impl Drop for Coordinator {
    /// Nothing is decided any more once it returns. (A forked child has a copy of this object and no clerk.)
    fn drop(&mut self) {
        self.stop = None;
        if self.creator.check().is_ok() {
            self.registers.stop();
            let (gone, left) = &*self.gone;
            let gone = lock(gone);
            drop(sleep_while(left, gone, STOP_TIMEOUT, |gone| !*gone));
        }
    }
}

/// The port of a coordinator unless another is given.
pub const DEFAULT_PORT: u16 = 29_400;
