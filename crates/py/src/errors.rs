//! Errors on their way up: each of the runtime's becomes the exception that says what to do next.
//!
//! The classes are Python's (`outlast.errors`), because two of them have two parents and all of them are
//! documented there. This file only chooses among them and fills in their attributes.

use outlast::communicator::Error;
use outlast::coordinator::CoordinatorError;
use outlast::membership::MembershipError;
use outlast::rendezvous::RendezvousError;
use outlast::store::{Failure, StoreError};
use outlast_proto::collective::BrokenLink;
use outlast_proto::session::{CallError, OutReason};
use outlast_proto::wire::control::KickReason;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyModule, PyTuple};

/// The exception class of that name in `outlast.errors`, called with these arguments.
fn raise(py: Python<'_>, class: &str, message: String, fields: Option<Bound<'_, PyAny>>) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let build = || {
        let module = ERRORS.get_or_try_init(py, || py.import("outlast.errors").map(Bound::unbind))?;
        let class = module.bind(py).getattr(class)?;
        match fields {
            Some(fields) => class.call1((message, fields)),
            None => class.call1((message,)),
        }
    };
    build().map_or_else(|failed| failed, PyErr::from_value)
}

/// `InvalidArgument`.
pub(crate) fn invalid(message: String) -> PyErr {
    Python::attach(|py| raise(py, "InvalidArgument", message, None))
}

/// `FatalError` itself.
pub(crate) fn fatal(message: String) -> PyErr {
    Python::attach(|py| raise(py, "FatalError", message, None))
}

/// `OperationTimeout` of a wait that is not the operation's own.
pub(crate) fn not_yet(message: String) -> PyErr {
    Python::attach(|py| raise(py, "OperationTimeout", message, None))
}

/// What a call was for; a few errors are named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Topology,
    Collective,
}

/// A communicator's error.
pub(crate) fn of_call(py: Python<'_>, error: &Error, purpose: Purpose) -> PyErr {
    let message = match error {
        // The exception's name says that already.
        Error::InvalidArgument(text) => text.clone(),
        other => other.to_string(),
    };
    let (class, fields) = match error {
        Error::Membership(error) => return of_membership(py, error),
        Error::Call(failure) => match of_call_error(py, failure.cause(), purpose) {
            Ok(parts) => parts,
            Err(failed) => return failed,
        },
        Error::InvalidArgument(_) | Error::MissingSecret | Error::Secret(_) | Error::Setting(_) => {
            ("InvalidArgument", None)
        }
        Error::Unauthorized(_) => ("Unauthorized", None),
        Error::TopologyFailed(_) => ("TopologyFailed", None),
        Error::NoCoordinator { .. } | Error::NotAdmitted { .. } => ("OperationTimeout", None),
        Error::Silent(_) | Error::SyncFailed { .. } => ("RetryError", None),
        Error::StateMismatch(_) => ("Mismatch", None),
        _ => ("FatalError", None),
    };
    let raised = raise(py, class, message, fields);
    if let Error::SyncFailed { torn: true, .. } = error {
        let _ = raised.value(py).setattr("torn", true);
    }
    raised
}

type Parts<'py> = (&'static str, Option<Bound<'py, PyAny>>);

fn of_call_error<'py>(py: Python<'py>, error: &CallError, purpose: Purpose) -> PyResult<Parts<'py>> {
    let parts = match error {
        CallError::PeersLost(lost) => {
            let reasons = PyDict::new(py);
            for (peer, reason) in lost {
                reasons.set_item(peer.to_string(), reason.to_string())?;
            }
            ("PeersLost", Some(reasons.into_any()))
        }
        CallError::LinkBroken(BrokenLink { from, to, error }) if purpose == Purpose::Collective => {
            // Nobody is lost yet; what the trainer does is the same.
            let reasons = PyDict::new(py);
            reasons.set_item(to.to_string(), format!("its link from {} broke: {error}", from.short()))?;
            ("PeersLost", Some(reasons.into_any()))
        }
        CallError::LinkBroken(_) => ("TopologyFailed", None),
        CallError::GivenUp(_) if purpose == Purpose::Topology => ("TopologyFailed", None),
        CallError::TooFewPeers { .. } => ("TooFewPeers", None),
        CallError::Timeout(waiting) => {
            let list = PyList::empty(py);
            for one in waiting {
                let age = one.age_ms as f64 / 1e3;
                list.append((one.peer.to_string(), &one.name, &one.health, &one.last_call, age))?;
            }
            ("OperationTimeout", Some(list.into_any()))
        }
        CallError::TooFewCame { .. } | CallError::CameTooLate => ("OperationTimeout", None),
        CallError::Cancelled => ("Cancelled", None),
        CallError::Mismatch { ours, others } => {
            ("Mismatch", Some(PyTuple::new(py, [ours, others])?.into_any()))
        }
        CallError::TooManyTags { .. }
        | CallError::TooManyTensors { .. }
        | CallError::NoPath { .. }
        | CallError::TagInFlight { .. }
        | CallError::TransferInFlight { .. }
        | CallError::CollectivesInFlight { .. }
        | CallError::VoteInFlight { .. } => ("InvalidArgument", None),
        // Coming back with the same setting would not help.
        CallError::Out(OutReason::Kicked(KickReason::Encryption, _)) => ("InvalidArgument", None),
        CallError::Out(OutReason::Kicked(..)) => ("Kicked", None),
        CallError::Out(OutReason::CoordinatorLost | OutReason::Unreadable(_)) => ("CoordinatorLost", None),
        CallError::Out(OutReason::Left | OutReason::NotConnected) => ("InvalidArgument", None),
        CallError::Out(_) => ("RejoinError", None),
        // Given up by somebody, here or elsewhere: do it again.
        _ => ("RetryError", None),
    };
    Ok(parts)
}

/// A member's error.
pub(crate) fn of_membership(py: Python<'_>, error: &MembershipError) -> PyErr {
    let class = match error {
        MembershipError::MissingSecret
        | MembershipError::Secret(_)
        | MembershipError::Seed { .. }
        | MembershipError::Description(_)
        | MembershipError::Setting { .. }
        | MembershipError::Left => "InvalidArgument",
        _ => "FatalError",
    };
    raise(py, class, error.to_string(), None)
}

/// A rendezvous' error.
pub(crate) fn of_rendezvous(py: Python<'_>, error: &RendezvousError) -> PyErr {
    let class = match error {
        RendezvousError::Closed => "RendezvousClosed",
        RendezvousError::Timeout(_) => "OperationTimeout",
        RendezvousError::Cancelled => "RetryError",
        RendezvousError::Unauthorized(_) => "Unauthorized",
        RendezvousError::MissingSecret
        | RendezvousError::Secret(_)
        | RendezvousError::Setting(_)
        | RendezvousError::Certificate(_)
        | RendezvousError::Backend(_)
        | RendezvousError::Settings(_)
        | RendezvousError::Description(_) => "InvalidArgument",
        _ => "FatalError",
    };
    raise(py, class, error.to_string(), None)
}

/// A coordinator's error.
pub(crate) fn of_coordinator(py: Python<'_>, error: &CoordinatorError) -> PyErr {
    let class = match error {
        CoordinatorError::Setting(_) => "InvalidArgument",
        CoordinatorError::Silent | CoordinatorError::Unreachable { .. } => "RetryError",
        _ => "FatalError",
    };
    raise(py, class, error.to_string(), None)
}

/// A store's error.
pub(crate) fn of_store(py: Python<'_>, error: &StoreError) -> PyErr {
    let class = match error {
        StoreError::Call(Failure::TimedOut(_)) | StoreError::NotJoined { .. } => "OperationTimeout",
        // Nothing of it is left: whoever wants one joins another.
        StoreError::Call(Failure::ShutDown | Failure::ShutDownOn(_)) => "RejoinError",
        StoreError::Call(Failure::Refused { .. } | Failure::Left | Failure::TooMany)
        | StoreError::TooLong { .. }
        | StoreError::MissingSecret
        | StoreError::MissingCoordinator
        | StoreError::Secret(_) => "InvalidArgument",
        StoreError::Cancelled => "RetryError",
        _ => "FatalError",
    };
    raise(py, class, error.to_string(), None)
}
