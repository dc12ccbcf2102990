//! Who is in, what was voted, which verdict follows: the coordinator of one run.
//!
//! # The problem
//!
//! Peers come and go while collectives are under way. Every survivor must learn the same outcome of every
//! collective and the same membership after it, also when the one who says so is itself killed in the middle
//! of saying it.
//!
//! # The intuition
//!
//! The coordinator takes small unanimous steps and holds nothing that the peers could not tell it again. A
//! collective is *opened* by the first call, *committed* when every member of the agreed roster said
//! Complete, *aborted* by anything that makes this impossible; the answer is written once. Aborting is cheap
//! and blames nobody; evicting takes evidence (rule 20). Membership changes only between numbered epochs, so
//! whatever carries an old number is refused.
//!
//! # The invariant
//!
//! For one [`OpKey`](crate::collective::OpKey) at most one verdict is ever sent, and a commit only when all
//! of its roster in scope voted Complete with the same fingerprint (rule 4), also across a restart (rule 17).
//!
//! # The parts
//!
//! [`Run`] is its parts, each with private fields: the *office* (who is on the line, what is said to them, what is
//! still to be done), the *groups* (each with its epoch, attendance, links, ballots, collectives, and a phase), the *gate*
//! for newcomers, the *evidence* about peers and the *claims* of those who resume. A handler borrows those that it needs,
//! and its type says so: `Calls` cannot touch evidence or claims, `Inquiry` no group. What a handler must not do in the
//! middle of something it puts on the agenda. Epochs, registrations and rebuilds concern all parts and are handled by
//! `Run` itself.
//!
//! # What it does not do
//!
//! It opens no connections and sees no tensor. It does not find out who is alive: it is told. It is one run's
//! machine; a service that holds several keeps one per run id.

mod admission;
mod agenda;
mod attendance;
mod ballots;
mod calls;
mod claims;
mod config;
mod directory;
mod eviction;
mod facts;
mod groups;
mod mismatch;
mod office;
mod operations;
mod outbox;
mod paths;
mod peers;
mod rebuild;
mod returning;
mod rewiring;
mod run;
mod states;
mod status;
pub(crate) mod survey;
mod testimony;
#[cfg(test)]
mod tests;
mod usage;
mod witnesses;

pub use config::Config;
pub use facts::{Facts, FactsError, FactsStamp, GroupFacts};
pub use peers::Sign;
pub use run::{Action, ConnectionId, Counters, Note, Run};
pub(crate) use states::ConnectionState;
pub use status::{EventStatus, KickStatus, PortStatus, RefusalStatus, ReignStatus, RunStatus, Status};
pub use survey::SolveToken;
