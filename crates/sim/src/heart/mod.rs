//! A world for the heart: one coordinator, many peers, streams that keep order and break, collectives.
//!
//! # The problem
//!
//! Whether a collective is a transaction shows only where things die in the middle: between two verdicts of one
//! round, between a vote and its stream, between the data and the word about it. Those moments last microseconds
//! on real machines.
//!
//! # The intuition
//!
//! The real [`Run`](outlast_proto::coordinator::Run) and the real [`Session`](outlast_proto::session::Session)
//! talk over simulated streams, and the real [`Links`](outlast_proto::collective::links::Links) decide about simulated
//! data links. Everything around them is a model that cannot be fooled: the executor moves
//! *sets of contributions* instead of numbers, so a result that holds the wrong data, or data of the wrong
//! step, is seen at once; programs are identical on all peers and begin again from the last agreed step, so
//! calls that do not pair up are seen as well.
//!
//! # The invariant
//!
//! One seed, one story. Safety first: faults strike, and every checker looks at every fact. Then liveness:
//! everything is healed, and every living peer must commit again within a bound.
//!
//! # What it does not do
//!
//! It runs no sockets, no threads and no tensors: the edges of the runtime have tests of their own. Worlds that do
//! not ask for the membership machine derive what the health plane would say from the truth, with a delay, so
//! that thousands of seeds can be played; `heart-health` runs the machine itself.

mod acting;
pub mod checkers;
pub mod cost;
mod data;
mod executor;
mod facts;
mod fault;
mod faulting;
mod health;
mod links;
mod process;
mod program;
pub mod runner;
pub mod scenarios;
mod stream;
mod training;
mod wires;
mod world;

pub use data::Buffer;
pub use facts::{Fact, Place};
pub use fault::{Fault, Sabotage};
pub use process::{CastVote, Process};
pub use program::Habits;
pub use world::{Coordinator, Settings, World};
