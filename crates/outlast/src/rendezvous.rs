//! Rendezvous: nodes that come and go meet in rounds, with ranks that all agree on.
//!
//! ```no_run
//! use outlast::Rendezvous;
//!
//! let node = Rendezvous::builder("embedded://10.0.0.1:29400", 2, 4).run_id("job".parse()?).start()?;
//! loop {
//!     let round = node.next_rendezvous()?;
//!     println!("round {}: rank {} of {}", round.round, round.rank, round.world_size());
//!     while node.num_nodes_waiting()? == 0 {
//!         // Work until somebody waits, or is lost.
//! #       return Ok(());
//!     }
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The problem
//!
//! Agents on several hosts must agree who takes part, again and again, while some of them die, and while the program that
//! they start keeps them busy. Whoever dies must be missed; whoever is merely busy must not.
//!
//! # The intuition
//!
//! What to do is decided by the machine in `outlast_proto::rendezvous`. Here a task of its own thread drives it: it holds
//! the connection to the [backend](Backend), renews the lease, and hears of every change when it happens. So nobody polls,
//! a round is complete milliseconds after its last node came, and a program that computes for an hour stays alive in the
//! eyes of the others. A [`Rendezvous`] is a handle to that task.
//!
//! # The invariant
//!
//! What [`Rendezvous::next_rendezvous`] returns was read from the register, so all participants of a round return the
//! same one. Every call returns within its time and the rollback window, whatever becomes of the backend.
//!
//! # What it does not do
//!
//! It starts no workers and moves no data: that is a launcher's business.

mod backend;
mod builder;
mod driver;
mod embedded;
#[cfg(feature = "etcd")]
mod etcd;
mod event;
mod remote;
mod round_store;
mod stored;

pub use backend::{Backend, BackendError};
pub use builder::RendezvousBuilder;
pub use event::RendezvousEvent;
pub use outlast_proto::rendezvous::{Node, Round, Settings, SettingsError};
pub use outlast_proto::wire::register::{Fate, Snapshot, Token};
pub use remote::RemoteRegister;
pub use round_store::RoundStore;

use crate::communicator::NextStep;
use crate::fork::{Creator, UsedAfterFork};
use crate::security::SecretError;
use crate::security::tls::TlsError;
use crate::settings::SettingError;
use crate::store::{StoreBuilder, StoreError};
use crate::sync::{Arc, lock, sleep};
use crate::watch;
use driver::{Command, Ended, Seen, Shared};
use outlast_proto::id::RunId;
use outlast_proto::rendezvous::{Failure, Operation, Outcome};
use outlast_proto::wire::InvalidMessage;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The name of the register that a rendezvous is agreed in.
const REGISTER: &str = "rendezvous";
/// Commands that wait for the driver. Calls wait for their answers, so there are few.
const COMMANDS_MAX: usize = 64;
/// How long a question may wait for the first word of the backend.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// How much longer than the machine a call waits for it before it calls that a bug.
const PATIENCE: Duration = Duration::from_secs(5);

/// One node of a rendezvous. Dropping it ends its lease; it says goodbye with [`Rendezvous::shutdown`].
#[derive(Debug)]
pub struct Rendezvous {
    settings: Settings,
    run: RunId,
    node: Node,
    /// Describes a member of a round's store, all but the run; none without a coordinator that counts members.
    store: Option<StoreBuilder>,
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    creator: Creator,
}

/// Why a node could not start, or a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Somebody closed the rendezvous for all.
    #[error("the rendezvous is closed: start another one with a new run id")]
    Closed,
    /// No round within the time, or no answer.
    #[error("{0}")]
    Timeout(String),
    /// The backend, or whoever answers at its address, does not take this node for one of the run.
    #[error("unauthorized: {0}")]
    Unauthorized(String),
    /// The backend does not serve this node, or what it holds is nothing of ours.
    #[error("the backend of the rendezvous refuses: {0}")]
    Refused(String),
    /// There are as many nodes as there may be.
    #[error(transparent)]
    Full(Failure),
    /// The call was given up: this node closed the rendezvous, left it, or does not wait any more.
    #[error("the call was given up")]
    Cancelled,
    /// There is no run secret.
    #[error(
        "a rendezvous at a coordinator needs the run's secret: pass secret, or set OUTLAST_SECRET or \
         OUTLAST_SECRET_FILE; make one with `outlast secret new`"
    )]
    MissingSecret,
    /// The secret in the environment is damaged.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A variable in the environment makes no sense.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The certificate of one's own authority cannot be used.
    #[error(transparent)]
    Certificate(#[from] TlsError),
    /// What was given is no backend.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Settings with which no round can be.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The node's name or address breaks a limit.
    #[error("this node cannot be described to others: {0}")]
    Description(#[from] InvalidMessage),
    /// The operating system refused something.
    #[error("the operating system refused what a rendezvous needs: {0}")]
    Start(#[from] io::Error),
    /// The backend has no coordinator, which would count the members of a round's store. Nothing was started.
    #[error(
        "a round's store needs a coordinator, and an etcd is none: make a store of your own with Store::bootstrap, at an \
         address of rank 0"
    )]
    NoStore,
    /// The store of a round could not be joined.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The handle was inherited by a forked child.
    #[error(transparent)]
    Forked(#[from] UsedAfterFork),
    /// An invariant of ours is broken.
    #[error("a bug in Outlast: {0}")]
    Bug(&'static str),
}

impl RendezvousError {
    /// What a program does next.
    pub fn action(&self) -> NextStep {
        match self {
            Self::Timeout(_) | Self::Cancelled | Self::Store(StoreError::NotJoined { .. }) => NextStep::Retry,
            _ => NextStep::Fatal,
        }
    }
}

impl Rendezvous {
    /// Describes a node of a rendezvous of `min` to `max` nodes at that backend: see [`Backend`].
    pub fn builder(backend: impl Into<String>, min: usize, max: usize) -> RendezvousBuilder {
        RendezvousBuilder::new(backend.into(), min, max)
    }

    /// Who this node is.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// How many nodes, and how long for what.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the others are told from the next round on: where this node can be reached, in words of its own.
    pub fn set_address(&self, address: impl Into<String>) -> Result<(), RendezvousError> {
        let address = address.into();
        builder::check_address(&address)?;
        self.send(Command::Address(address))
    }

    /// Leaves the round that this node is in, if any, and waits for the next one that it is in.
    pub fn next_rendezvous(&self) -> Result<Round, RendezvousError> {
        match self.operate(Operation::Next, self.settings.join)? {
            Outcome::Joined(round) => Ok(round),
            _ => Err(RendezvousError::Bug("a round was asked for and something else came")),
        }
    }

    /// How many nodes wait for the next round, and how many participants of this one are gone. More than zero means
    /// that it is time to meet again.
    pub fn num_nodes_waiting(&self) -> Result<usize, RendezvousError> {
        Ok(self.seen()?.waiting)
    }

    /// How many participants of the present round live, as far as is known here.
    pub fn num_nodes(&self) -> Result<usize, RendezvousError> {
        Ok(self.seen()?.nodes)
    }

    /// Whether the rendezvous is over for all, as far as is known here.
    pub fn is_closed(&self) -> Result<bool, RendezvousError> {
        Ok(self.seen()?.is_closed)
    }

    /// Ends the rendezvous for all. A wait of this node for a round ends with it.
    pub fn set_closed(&self) -> Result<(), RendezvousError> {
        self.operate(Operation::Close, self.settings.close).map(|_| ())
    }

    /// Leaves for good, without closing it for the others. A wait of this node for a round ends with it.
    pub fn shutdown(&self) -> Result<(), RendezvousError> {
        self.operate(Operation::Leave, self.settings.close).map(|_| ())
    }

    /// What happened since the last call, up to a bound; the oldest first.
    pub fn events(&self) -> Result<Vec<RendezvousEvent>, RendezvousError> {
        self.creator.check()?;
        Ok(lock(&self.shared.journal).take())
    }

    /// What is known; waits for the first word of the backend, if there was none yet.
    fn seen(&self) -> Result<Seen, RendezvousError> {
        self.creator.check()?;
        let deadline = Instant::now() + FIRST_WORD;
        let waiting = watch::Waiting::begin();
        loop {
            let seen = lock(&self.shared.seen);
            if seen.is_known {
                return Ok(seen.clone());
            }
            if seen.is_over {
                return Err(RendezvousError::Bug("the driver of a rendezvous has ended"));
            }
            if let Some(trouble) = seen.trouble.clone().filter(backend::Trouble::is_final) {
                return Err(match trouble.kind {
                    backend::TroubleKind::Unauthorized => RendezvousError::Unauthorized(trouble.text),
                    _ => RendezvousError::Refused(trouble.text),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let cause = seen.trouble.as_ref().map_or("no answer", |trouble| trouble.text.as_str());
                let text = format!(
                    "nothing was heard from the backend of the rendezvous within {FIRST_WORD:?}: {cause}"
                );
                return Err(RendezvousError::Timeout(text));
            }
            drop(sleep(&self.shared.changed, seen, watch::patience(left)));
            if waiting.is_given_up() {
                return Err(RendezvousError::Cancelled);
            }
        }
    }

    fn operate(&self, operation: Operation, time: Duration) -> Result<Outcome, RendezvousError> {
        let (reply, answer) = sync_channel(1);
        self.send(Command::Operate(operation, reply))?;
        // A spare waits for as long as the round is full; whatever else is over when its time and the window are.
        let waiting = watch::Waiting::begin();
        let beat = (time + self.settings.rollback + PATIENCE).min(Duration::from_hours(1));
        loop {
            match answer.recv_timeout(watch::patience(beat)) {
                Ok(outcome) => return outcome.map_err(error_of),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RendezvousError::Bug("the driver of a rendezvous has ended"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if waiting.is_given_up() {
                let _ = self.send(Command::Cancel);
                return Err(RendezvousError::Cancelled);
            }
        }
    }

    fn send(&self, command: Command) -> Result<(), RendezvousError> {
        self.creator.check()?;
        self.commands.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                RendezvousError::Refused(format!("{COMMANDS_MAX} calls of this node are in progress"))
            }
            mpsc::error::TrySendError::Closed(_) => {
                RendezvousError::Bug("the driver of a rendezvous has ended")
            }
        })
    }
}

fn error_of(ended: Ended) -> RendezvousError {
    match ended {
        Ended::Failed(Failure::Closed) => RendezvousError::Closed,
        Ended::Failed(failure @ Failure::Timeout(_)) => RendezvousError::Timeout(failure.to_string()),
        Ended::Failed(failure @ Failure::Full) => RendezvousError::Full(failure),
        Ended::Failed(failure) => RendezvousError::Refused(failure.to_string()),
        Ended::Unauthorized(text) => RendezvousError::Unauthorized(text),
        Ended::Cancelled => RendezvousError::Cancelled,
    }
}
