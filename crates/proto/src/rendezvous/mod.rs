//! Who is in, agreed: nodes that come and go settle on rounds of participants with ranks.
//!
//! # The problem
//!
//! Some nodes start, nobody knows how many or when. They must agree on who takes part and who has which rank, begin
//! together, and do it again whenever somebody was lost or somebody new waits. Nobody is in charge: whoever could be
//! might be the one that dies.
//!
//! # The intuition
//!
//! All that is agreed is one small [`State`] in a register that can do one thing: compare and set. A node reads the
//! state, decides what *it* should do next, changes its own copy and writes it, on the condition that nobody wrote in
//! between. If somebody did, its change is dropped and it decides again. So there is one history, and every step of it
//! was decided by somebody who knew all the steps before.
//!
//! Three layers, each of which can be read alone:
//!
//! ```text
//!   operator                       action                        function
//!   join, keep-alive,   rules.rs   add-to-participants,  apply.rs  changes the state
//!   close, exit        ---------->  mark-complete, ..   ---------->
//!          ^                                                          |
//!          '---- machine.rs: read, sanitise, decide, apply, write ----'
//! ```
//!
//! What a round goes through:
//!
//! ```text
//!              min reached               last call is over, or max reached
//!   joinable ---------------> last call ------------------------------------> complete
//!    ^   ^                        |                                              |
//!    |   '--- fell below min -----'                                              |
//!    '--------------- the last participant left: the next round -----------------'
//!
//!   who comes while a round is complete: wait list if there is room for it, redundancy list if there is none
//! ```
//!
//! *Who wants in* need not be in the state, either: a node leaves its [`Wish`] beside its lease, and whoever writes grants
//! the wishes of all (`wish.rs`). So a round of N nodes takes one write, not N.
//!
//! *Who is alive* is not in the state. Each node holds a lease in the register and renews it; the register's own clock
//! says which leases ran out, so clocks of different hosts are never compared, and a heartbeat does not collide with
//! anybody's write. A write counts only while its writer's lease lasts. The last call is counted by each participant
//! from when it saw it begin, on its own clock; the first whose time is up completes the round.
//!
//! # The invariant
//!
//! Whoever finishes a round has read it from the register: all finish it with the same participants and ranks. Of two
//! participants of successive rounds the one with the lower rank keeps the lower rank.
//!
//! # What it does not do
//!
//! It talks to no backend: [`Machine`] says what to read and write, a driver does. It moves no data, and what the
//! participants do with each other's addresses is their affair.

mod apply;
mod event;
mod machine;
mod node;
mod record;
mod register;
mod rules;
mod sentry;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod wish;

pub use apply::{apply, sanitise};
pub use event::{Event, EventName};
pub use machine::{Failure, Machine, Operation, Outcome, Request, Round, Trouble};
pub use node::Node;
pub use record::{Draw, Record, RecordError};
pub use register::{Register, Written};
pub use rules::{Action, Context, Operator, decide};
pub use sentry::{Sentry, beat};
pub use settings::{Settings, SettingsError};
pub use state::{Place, Seat, State, StateError};
pub use wish::{Wish, grant, picture, wishes};
