//! Every order of events of a small run: the near ones first, none left out.
//!
//! # The problem
//!
//! A storm of seeds finds what is likely. The faults that survive it are orders of five or ten events that nobody
//! thought of: a message that overtakes the close of the connection before it, a coordinator that dies between two
//! sends, a peer that comes back one epoch late. Each needs two peers, one call and one or two faults. That is few
//! enough to try *everything*.
//!
//! # The intuition
//!
//! The machines are values: they can be copied, compared by their hash, and driven from any state in any direction.
//! [`search`] begins at one state, lets each thing happen that may happen there, and goes on from every state that
//! it has not seen. [`run`] is the model that is searched: the production coordinator and the production sessions,
//! untouched, with streams, programs, executors and a clock around them that do whatever the contract of each allows.
//! Because the search is breadth first, a failure comes with a shortest schedule. The schedule is text; it replays.
//!
//! What keeps the number of states small, and why nothing is lost by it:
//! - *Breaking a stream is noticing it.* A connection that is broken and not noticed behaves like one whose messages
//!   are slow. So there is no event "breaks", only "the peer notices" and "the coordinator notices", each at any
//!   point of what is under way; what was not delivered by then is lost. A coordinator that dies between two sends is
//!   one whose peers notice at different points.
//! - *Time stands still until a timer needs it.* The clock jumps from timer to timer, in their order; what is equally
//!   due fires in any order; between two jumps any number of messages may arrive or not, so a message may still be
//!   slower than a timer. States that differ only in how long something took are then the same state. The pause
//!   before dialling again is set to zero for the same reason: it would only mark who noticed first.
//! - *A result needs a meeting.* The bytes of an attempt are one bit: all members were at it at one moment. From then
//!   on each may hold the result or be stopped, independently.
//! - *Who can only read, reads.* Once no connection can break any more, a message to a process that can do nothing
//!   else is delivered before anything else happens: nothing that the others do depends on when.
//! - *Names carry no history.* Connections are numbered per process, not in the order of dialling. Nothing is kept of
//!   a killed process but what it sent and what it had completed.
//!
//! # The invariant
//!
//! In every state, with checkers in `run::checkers`: one verdict per attempt, whoever hears it (rule 4); a commit has
//! everybody's Complete with equal fingerprints (rules 4, 17); call k ends in the same way for all who are still in
//! (rule 8); a call returns with its data as promised (rule 5); no honest peer is blamed and none is put out without
//! a cause of rule 20; every accepted peer is in a roster; no machine panics. In every state in which nothing is
//! under way: if faults end here and time goes on, every call returns before its deadline. So nothing hangs.
//!
//! # What it does not do
//!
//! It proves nothing beyond its bounds: so many peers, calls, breaks, kills, restarts, severed links, calls given up,
//! clock jumps. The bounds of each exploration are in [`plans`], and an exploration says whether it saw all states
//! within them. The health plane tells the truth and kernels do not testify; dials succeed at once; links of a new
//! epoch come up at once, and break only while they carry something; a deadline passes only where a plan says so, and
//! nobody waits for a verdict beyond its grace; who is out does not come back. The world of seeds beside it
//! ([`heart`](crate::heart)) has all of that, larger, and samples it.
//!
//! The search knows nothing of runs: another world is another implementation of [`search::Model`]. [`views`] is the store
//! while its view changes, [`reign`] two coordinators with one lease.

pub mod held;
pub mod planned;
pub mod plans;
pub mod reign;
pub mod run;
pub mod search;
pub mod views;
