//! A peer's side of a run: its session with the coordinator and the calls of its program.
//!
//! # The problem
//!
//! A program calls `all_reduce` and wants an answer: the sum and who contributed, or an error that says what
//! to do. Between the call and the answer peers die, the coordinator is restarted, epochs change, deadlines
//! pass. All members must draw the same conclusions from the same verdicts, or their next calls do not pair.
//!
//! # The intuition
//!
//! A call is a series of *attempts*. Each attempt has a key, is performed by the executor, and ends with
//! exactly one verdict of the coordinator. An abort leads to the next attempt or to an error, by rules that
//! every member applies to the same facts. A verdict on an attempt that this program has not called yet is
//! kept, and the call claims it when it comes: so members that are one operation apart meet again (rule 8).
//!
//! # The invariant
//!
//! After voting Complete a call returns only with the verdict, or the session ends (rule 5). Every call ends
//! by its deadline plus `verdict_grace`. What the session knows is enough to rebuild a coordinator (rule 17).
//!
//! # What it does not do
//!
//! It moves no tensor and opens no connection. It asks: dial, send, perform, abort, undo.

mod attempts;
mod ballots;
mod calls;
mod config;
mod links;
mod machine;
mod status;
mod tags;
#[cfg(test)]
mod tests;
mod transfers;

pub use calls::{CallError, CallId, Command, Done, Op, OutReason, Outcome, PerformResult};
pub use config::Config;
pub use machine::{Action, Session, SlowLink};
pub use status::{CallStatus, KnownGroupStatus, SessionStatus};
pub use transfers::TransferName;
