//! The runtime of Outlast: it drives the machines of `outlast-proto` with real sockets, threads and clocks.
//!
//! Decisions live in `outlast-proto`; this crate carries them out. What arrives from outside passes
//! [`security`] first.

pub mod agent;
// What is hidden here is for our own tests, benchmarks and commands, and is promised to nobody.
#[doc(hidden)]
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
pub mod elastic;
#[cfg(feature = "etcd")]
pub mod etcd;
#[doc(hidden)]
pub mod executor;
pub mod fork;
mod health;

#[doc(hidden)]
pub mod link;
pub mod membership;
#[doc(hidden)]
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
pub use elastic::Elastic;
pub use membership::Membership;
pub use outlast_proto::text;
pub use outlast_proto::topology;
pub use rendezvous::Rendezvous;
pub use state::SharedState;

/// The examples of the README are compiled with the documentation tests, so that they stay true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
