//! What an agent does about its workers: start, replace, give up, stop.
//!
//! # The problem
//!
//! An agent starts the workers of one host and keeps them up. A worker may end at any moment, and its end means
//! different things: that it is done, that it crashed and should be replaced, that it crashes whenever it is started,
//! or that it did what it was told. Meanwhile a person presses Ctrl-C, or a cloud announces that it takes the machine
//! away. Whatever comes together in whatever order, the agent ends, and with the right number.
//!
//! # The intuition
//!
//! Each worker has a *slot*; who lives there, one after the other, are its *lives*. A failed life is followed by the
//! next one as long as the slot's [`Budget`] allows it. With [`Elastic::Inplace`] nobody else notices. With
//! [`Elastic::Restart`] all slots are emptied first and filled together, in a new *round*, as torchrun does it.
//!
//! ```text
//!              met                    all done
//!   meeting ---------> working ------------------------------> over
//!      ^                  |                                     ^
//!      |                  | told to stop, a budget is used up,  |
//!      |                  | a round is over                     |
//!      |                  v                                     |
//!      '------------- stopping ---------------------------------'
//!        next round    a signal, the grace time, then SIGKILL
//! ```
//!
//! # The invariant
//!
//! A slot holds one life at a time: the next one starts only after everything that the last one left behind is gone.
//! From the moment at which it is told to stop, an agent whose processes can be killed at all ends within the grace
//! time. The exit code is that of the failure that ended the run, and not of those that followed from it.
//!
//! # What it does not do
//!
//! It starts no process and sends no signal; it asks for that. It knows nothing of ranks, hosts and rendezvous: a
//! driver that has *met* the others knows.

mod budget;
mod ending;
mod machine;
#[cfg(test)]
mod tests;

pub use budget::{Budget, BudgetError};
pub use ending::{Abandoned, Ending, Failure, Outcome};
pub use machine::{Action, Agent, Config, Elastic, Fact, Life};
