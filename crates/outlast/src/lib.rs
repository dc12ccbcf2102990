//! The runtime of Outlast: it drives the machines of `outlast-proto` with real sockets, threads and clocks.
//!
//! Decisions live in `outlast-proto`; this crate carries them out. What arrives from outside passes
//! [`security`] first.

pub mod agent;
pub mod bare_ring;
mod baton;
#[cfg(test)]
#[path = "baton/explored.rs"]
mod baton_explored;
#[cfg(test)]
#[path = "baton/tests.rs"]
mod baton_tests;
mod bell;
pub mod clock;
pub mod communicator;
pub mod coordinator;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod executor;
pub mod fork;
mod health;

pub mod link;
pub mod membership;
pub mod port;
mod probe;
pub mod rendezvous;
mod runtime;
pub mod security;
pub mod settings;
pub mod state;
mod sync;
pub mod watch;
pub mod workers;

pub use communicator::Communicator;
pub use coordinator::Coordinator;
pub use membership::Membership;
pub use outlast_proto::text;
pub use outlast_proto::topology;
pub use rendezvous::Rendezvous;
pub use state::SharedState;

/// The examples of the README are compiled with the documentation tests, so that they stay true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
