//! Errors that say what a trainer does next.
//!
//! A message names the call, the value and the remedy. What the session says of a call ([`CallError`]) is the same on every
//! member; what only this process knows (how long it waited, whom it tried to reach) is put beside it in a [`Failure`].

use crate::fork::UsedAfterFork;
use crate::membership::MembershipError;
use crate::security::SecretError;
use crate::settings::SettingError;
use crate::state::{CheckpointError, NoDonor};
use outlast_proto::blame::Diagnosis;
use outlast_proto::session::{CallError, OutReason};
use outlast_proto::wire::InvalidMessage;
use outlast_proto::wire::control::KickReason;
use std::fmt;
use std::io;
use std::time::Duration;

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
    Call(Box<Failure>),
    /// The arguments make no sense here.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// There is no run secret.
    #[error(
        "a peer needs the run's secret: pass secret, or set OUTLAST_SECRET or OUTLAST_SECRET_FILE; make one with \
         `outlast secret new`"
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
    /// The operating system refused something.
    #[error("the operating system refused what a communicator needs: {0}")]
    Start(#[from] io::Error),
    /// The handle was inherited by a forked child.
    #[error(transparent)]
    Forked(#[from] UsedAfterFork),
    /// The coordinator, or whoever answers at its address, does not belong to the run. Nothing was joined.
    #[error("unauthorized: {0}")]
    Unauthorized(String),
    /// Whoever answers at the coordinator's address cannot talk to this process: it speaks another version, or is something
    /// else. Nothing was joined.
    #[error("{0}")]
    Incompatible(String),
    /// No coordinator was reached before the deadline. Nothing was joined.
    #[error("no coordinator was reached within {}: {cause}", seconds(*.within))]
    NoCoordinator {
        /// The time limit.
        within: Duration,
        /// Where it was looked for, and what came of it.
        cause: String,
    },
    /// The coordinator was reached, and nobody let us in before the deadline. Nothing was joined.
    #[error("registered with the coordinator {coordinator} and not admitted within {}: {why}", seconds(*.within))]
    NotAdmitted {
        /// Where it is.
        coordinator: String,
        /// The time limit.
        within: Duration,
        /// Who is here, who is not, and what to do about it.
        why: String,
    },
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
    /// No better ring could be made. The ring is as it was; the next `optimize_topology` avoids what failed.
    #[error("the topology was not optimised: {0}; call optimize_topology again")]
    TopologyFailed(String),
    /// What the group agreed on is of a later version than this one. Nothing was changed.
    #[error("this peer cannot read what its group agreed on: {0}")]
    Unreadable(#[from] InvalidMessage),
    /// The closure that was given to a call in the background panicked. What calls in it had begun has ended with them.
    #[error("the closure of a call in the background panicked: {0}")]
    Panicked(String),
    /// A checkpoint was not loaded. Nothing was begun.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An invariant of ours is broken.
    #[error("a bug in Outlast: {0}")]
    Bug(&'static str),
}

impl From<CallError> for Error {
    fn from(cause: CallError) -> Self {
        Self::Call(Box::new(Failure { cause, call: None, known: None, diagnosis: None }))
    }
}

impl Error {
    /// What became of the call, if it was made.
    pub fn cause(&self) -> Option<&CallError> {
        match self {
            Self::Call(failure) => Some(&failure.cause),
            _ => None,
        }
    }

    /// Names the call that failed, and how long it was given.
    pub(super) fn of_call(mut self, call: impl fmt::Display, timeout: Duration) -> Self {
        if let Self::Call(failure) = &mut self {
            failure.call.get_or_insert_with(|| format!("{call} within {}", seconds(timeout)));
        }
        self
    }

    /// Says what else this process knows.
    pub(super) fn knowing(mut self, what: String) -> Self {
        if let Self::Call(failure) = &mut self {
            failure.known = Some(what);
        }
        self
    }

    /// Says what is to blame.
    pub(super) fn blaming(mut self, diagnosis: Diagnosis) -> Self {
        if let Self::Call(failure) = &mut self {
            failure.diagnosis = Some(diagnosis);
        }
        self
    }

    /// What is to blame, as far as it is known.
    pub fn diagnosis(&self) -> Option<&Diagnosis> {
        match self {
            Self::Call(failure) => failure.diagnosis.as_ref(),
            _ => None,
        }
    }

    /// What a trainer does next.
    pub fn action(&self) -> NextStep {
        match self {
            Self::Call(failure) => match &failure.cause {
                CallError::Mismatch { .. }
                | CallError::NoPath { .. }
                | CallError::TagInFlight { .. }
                | CallError::TransferInFlight { .. }
                | CallError::CollectivesInFlight { .. }
                | CallError::VoteInFlight { .. }
                | CallError::Out(
                    OutReason::Left | OutReason::NotConnected | OutReason::Kicked(KickReason::Encryption, _),
                ) => NextStep::Fatal,
                CallError::Out(_) => NextStep::Rejoin,
                _ => NextStep::Retry,
            },
            Self::SyncFailed { .. } | Self::TopologyFailed(_) | Self::Silent(_) => NextStep::Retry,
            Self::NoDonor(NoDonor::OthersOutside) => NextStep::Retry,
            Self::NoCoordinator { .. } | Self::NotAdmitted { .. } => NextStep::Retry,
            _ => NextStep::Fatal,
        }
    }
}

/// A call that ended without a result: what was called, what became of it, and what this process knows about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    cause: CallError,
    call: Option<String>,
    known: Option<String>,
    diagnosis: Option<Diagnosis>,
}

impl Failure {
    /// What became of it, in terms that all members share.
    pub fn cause(&self) -> &CallError {
        &self.cause
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(call) = &self.call {
            write!(f, "{call}: ")?;
        }
        write!(f, "{}", self.cause)?;
        self.known.iter().try_for_each(|known| write!(f, "; {known}"))?;
        self.diagnosis.iter().try_for_each(|diagnosis| write!(f, ". Diagnosis: {diagnosis}"))
    }
}

impl std::error::Error for Failure {}

/// A time as people say it.
pub(super) fn seconds(time: Duration) -> String {
    format!("{} s", (time.as_secs_f64() * 1e3).round() / 1e3)
}
