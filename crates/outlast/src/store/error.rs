//! Why a store could not be joined, or a call did not end well.

use super::Failure;
use crate::fork::UsedAfterFork;
use crate::port::PortError;
use crate::security::SecretError;
use crate::security::tls::TlsError;
use std::io;
use std::time::Duration;

/// Why a store could not be joined, or a call did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The call failed; the text says why. After a timeout it is not known whether a change was made.
    #[error(transparent)]
    Call(#[from] Failure),
    /// A key or a value breaks a limit. Nothing was done.
    #[error("{what} of {bytes} bytes{of}, the limit is {limit}")]
    TooLong {
        /// What.
        what: &'static str,
        /// How the key begins, in words; of a broadcast nothing.
        of: String,
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
