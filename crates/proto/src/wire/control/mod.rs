//! The control plane's messages: votes in, verdicts out.
//!
//! One authenticated stream runs between each peer and the coordinator; it keeps order, so what the
//! coordinator said first is known first. A stream that breaks is dialled again and opened with [`Resume`],
//! which carries all that the coordinator might have forgotten (rule 17).

mod annals;
mod attempt;
mod ballot;
mod epoch;
mod session;
mod to_coordinator;
mod to_peer;
mod witness;

pub use annals::Incident;
pub use attempt::{AbortReason, OpenVote, Refusal, TagReport, Verdict, Waiting};
pub use ballot::{BallotEnd, BallotId, BallotKind, BallotReport, Tally};
pub use epoch::{Ancestor, Decider, EpochRecord, LossReason};
pub use session::{Encryption, KickReason, Registration, Resume, SessionId, Term};
pub use to_coordinator::{LinkSpeed, ToCoordinator};
pub use to_peer::ToPeer;
pub use witness::{ProcessName, Witness};

use super::{InvalidMessage, within};
use crate::limits::TEXT_BYTES_MAX;

fn text(field: &'static str, text: &str) -> Result<(), InvalidMessage> {
    within(field, text.len(), TEXT_BYTES_MAX)
}
