//! Errors that say what a trainer does next.

use crate::fork::UsedAfterFork;
use crate::membership::MembershipError;
use crate::security::SecretError;
use crate::settings::SettingError;
use crate::state::NoDonor;
use outlast_proto::session::{CallError, OutReason};
use outlast_proto::wire::control::KickReason;
use std::io;

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Do it again; the data is untouched.
    Retry,
    /// This peer is out: connect again, then sync the state. The data is untouched, though the others may
    /// have committed.
    Rejoin,
    /// Fix the program or its settings.
    Fatal,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call ended without a result.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The arguments make no sense here.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// There is no run secret.
    #[error(
        "a peer needs the run's secret: pass it to the builder, or set OUTLAST_SECRET or OUTLAST_SECRET_FILE; \
         make one with `outlast secret new`"
    )]
    MissingSecret,
    /// The secret in the environment is damaged.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A variable in the environment makes no sense.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The health plane could not start.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The coordinator's address is missing or does not resolve.
    #[error("cannot resolve the coordinator {address:?} (write host:port): {cause}")]
    Coordinator {
        /// What was given.
        address: String,
        /// What the resolver said.
        cause: io::Error,
    },
    /// The operating system refused something.
    #[error("the operating system refused what a communicator needs: {0}")]
    Start(#[from] io::Error),
    /// The handle was inherited by a forked child.
    #[error(transparent)]
    Forked(#[from] UsedAfterFork),
    /// The coordinator, or whoever answers at its address, does not belong to the run. Nothing was joined.
    #[error("unauthorized: {0}")]
    Unauthorized(String),
    /// No coordinator was reached before the deadline. Nothing was joined.
    #[error("no coordinator was reached in time: {0}")]
    NoCoordinator(String),
    /// The coordinator was reached, and nobody let us in before the deadline. Nothing was joined.
    #[error(
        "registered with the coordinator and not admitted in time: every peer that is in must call \
         update_topology, and there must be min_world of them"
    )]
    NotAdmitted,
    /// Nothing answered a question about the run.
    #[error("the coordinator did not answer: {0}")]
    Silent(String),
    /// This state's keys, types, shapes or revision are not what the group's can be. It is as it was.
    #[error("this state deviates from the group's: {0}")]
    StateMismatch(String),
    /// No member can give a state. Every member's is as it was.
    #[error(transparent)]
    NoDonor(#[from] NoDonor),
    /// The states were not made the same. Sync again.
    #[error("the state was not synced{}: {text}", if *.torn { ", and this member's is torn: half new, half old" } else { "" })]
    SyncFailed {
        /// Why.
        text: String,
        /// Whether this member's state is half new and half old; otherwise it is as it was, or what was elected.
        torn: bool,
    },
    /// An invariant of ours is broken.
    #[error("a bug in Outlast: {0}")]
    Bug(&'static str),
}

impl Error {
    /// What a trainer does next.
    pub fn action(&self) -> NextStep {
        match self {
            Self::Call(
                CallError::Mismatch { .. }
                | CallError::NoPath { .. }
                | CallError::Out(
                    OutReason::Left | OutReason::NotConnected | OutReason::Kicked(KickReason::Encryption, _),
                ),
            ) => NextStep::Fatal,
            Self::SyncFailed { .. } => NextStep::Retry,
            Self::Call(CallError::Out(_)) => NextStep::Rejoin,
            Self::Call(_) | Self::Silent(_) | Self::NoCoordinator(_) | Self::NotAdmitted => NextStep::Retry,
            _ => NextStep::Fatal,
        }
    }
}
