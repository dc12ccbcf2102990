//! Who is in, what was voted, which verdict follows: the coordinator of one run.
//!
//! # The problem
//!
//! Peers come and go while collectives are under way. Every survivor must learn the same outcome of every
//! collective and the same membership after it, even when the one who says so is itself killed in the middle
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
//! of its roster in scope voted Complete with the same fingerprint (rule 4), even across a restart (rule 17).
//!
//! # The parts
//!
//! [`Run`] is its parts, each with private fields: the *office* (who is on the line, what is said to them, what they remember, what is
//! still to be done), the *groups* (each with its epoch, attendance, links, ballots, collectives, and a phase), the *gate*
//! for newcomers, the *evidence* about peers, the *claims* of those who resume and the *witnesses* of processes that end.
//! A handler borrows those that it needs, and its type says so:
//!
//! | handler | handles | office | groups, gate | evidence | claims | files |
//! |---|---|---|---|---|---|---|
//! | `Inquiry` | who is to be evicted | x | | x | | `eviction` |
//! | `Calls` | collectives and votes; opens no epoch | x | x | | | `calls`, `ballots`, `mismatch` |
//! | `Epochs` | epochs, links, rings, what votes lead to | x | x | | | `epochs`, `paths`, `rewiring`, `returning`, `admission` |
//! | `Sessions` | who comes, comes back and goes; rebuilds | x | x | x | x | `sessions`, `claims`, `rebuild` |
//!
//! A wider one lends its parts to a narrower one, never the other way. What a handler must not do in the middle of
//! something it puts on the agenda. [`Run`] itself only hands on what came, keeps the timers and does what is on the agenda
//! (`run`), and answers how things stand (`status`, `facts`).
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
mod crier;
mod directory;
mod epochs;
mod eviction;
mod facts;
mod groups;
mod holders;
mod mismatch;
mod office;
mod operations;
mod outbox;
pub(crate) mod paths;
mod peers;
mod rebuild;
mod returning;
mod rewiring;
mod run;
mod sessions;
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
