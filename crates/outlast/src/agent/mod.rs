//! Starting workers and watching them: what drives the agent's machine.
//!
//! The decisions are in [`outlast_proto::agent`]; here are the processes. Each worker has a keeper between itself and the
//! agent, a process that sees its end at once and lets nothing outlive it (`keeper.rs`). [`Driver`] is a loop on one
//! thread that waits for keepers, orders and timers and for nothing else: whoever shows logs or talks to a coordinator
//! does so on a thread of its own, and holds up no worker's replacement.
//!
//! What a driver does not know (which program, which environment, whom to tell) it asks of a [`Crew`].

mod driver;
mod keeper;
mod witness;
mod worker;

pub use driver::{Crew, Driver, Orders};
pub use outlast_proto::agent::{
    Abandoned, Budget, BudgetError, Config, Elastic, Ending, Fact, Failure, Life, Outcome,
};
pub use outlast_proto::wire::control::ProcessName;
pub use witness::{ExitWitness, WitnessError};
pub use worker::{Launch, Streams, process_name};
