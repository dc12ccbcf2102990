//! The executor: runs a plan over links, with kernels, abortable at every wait.
//!
//! A [`DataPlane`] holds one process's data links and performs the bytes of its collectives. It decides nothing:
//! whether an attempt counts is for the decider to say, and until then the caller's memory can be put back
//! ([`Performed`]). It has no threads of its own but for short ones that dial: whoever waits for a call drives the
//! sockets, for itself and for every call that joins meanwhile (see `baton.rs` and `driver`). So a lone call
//! pays for no hand-over, and calls under many tags share one driver and never wait for each other's bytes.
//!
//! ```text
//! perform --> Job --> Transport ------------------------------------------------> Moved --> Performed
//!             plan,   by links: Operation --> Hands { Engine { Desk, Conns } }    and how it is settled
//!             memory  the hands are held by one thread at a time                  nobody else holds it
//! ```
//!
//! What a transport must do is written in `transport` and tested by `contract`.
//!
//! The invariants: a call returns only with its operation, and so its memory, in its own hands (rule 15);
//! nothing is buffered beyond the eager limit and the windows (rule 14); every wait ends at a deadline or
//! an abort.

mod abort;
mod arithmetic;
mod backlog;
mod companion;
mod conn;
#[cfg(test)]
pub(crate) mod contract;
mod desk;
mod driver;
mod engine;
mod lanes;
mod laps;
mod memory;
mod operation;
mod parking;
mod plane;
mod routing;
mod settlement;
mod slots;
#[cfg(test)]
mod stress;
mod ticket;
mod transfer;
mod transport;
mod undo;

pub use abort::{Abort, Strain};
pub(crate) use companion::{Beside, Companion};
pub(crate) use driver::Seat;
pub use memory::Buffers;
pub use outlast_proto::collective::links::Direction;
pub use plane::{DataPlane, DataSettings, OpSpec, Performed};
pub use transfer::TransferSpec;

use outlast_proto::collective::{BrokenLink, Group, GroupEpoch};
use outlast_proto::id::PeerId;
use outlast_proto::topology::Figure;
use std::time::Duration;

/// One connection's number; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ConnId(u64);

/// Why an attempt ended without a result. The caller's memory is as it was before the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    /// Its [`Abort`] was triggered, or its epoch was left.
    #[error("aborted")]
    Aborted,
    /// A link broke with bytes of this attempt on it, or could not be made. A report, not a verdict on the peer.
    #[error(transparent)]
    LinkBroken(BrokenLink),
    /// A neighbour makes another call under the same name (rule 7). None of its bytes were used.
    #[error("{peer} makes a different call (fingerprint {theirs:016x})")]
    Mismatch {
        /// The neighbour.
        peer: PeerId,
        /// The digest of its fingerprint.
        theirs: u64,
    },
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// Its epoch is not open here, or its number was used up.
    #[error("not the present epoch, or a number that is used up")]
    Stale,
    /// The other end of a transfer gave it up.
    #[error("{0}")]
    GivenUp(&'static str),
    /// There is no memory for the undo copy.
    #[error("no memory for the undo copy: {0}")]
    NoMemory(String),
    /// The data plane was shut down.
    #[error("the data plane is shut down")]
    Closed,
}

/// What happened to a link of an open epoch's ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent {
    /// It can be used.
    Up {
        /// The group.
        group: Group,
        /// Its epoch.
        epoch: GroupEpoch,
        /// The other end.
        peer: PeerId,
        /// Which of the two links.
        direction: Direction,
    },
    /// A large call has ended, and the kernel knows how fast its bytes were carried.
    Carried {
        /// The other end, which received.
        peer: PeerId,
        /// What the link carries.
        figure: Figure,
        /// The shortest round trip of late.
        round_trip: Duration,
    },
    /// It broke or could not be made. Nobody is condemned by this; a call that needs it dials again.
    Down {
        /// The group.
        group: Group,
        /// Its epoch.
        epoch: GroupEpoch,
        /// The other end.
        peer: PeerId,
        /// Which of the two links.
        direction: Direction,
        /// Whether the other host did not answer at all, so that the path carries nothing.
        silent: bool,
        /// What happened.
        error: String,
    },
}
