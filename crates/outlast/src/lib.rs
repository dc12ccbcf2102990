//! The runtime of Outlast: it drives the machines of `outlast-proto` with real sockets, threads and clocks.
//!
//! Decisions live in `outlast-proto`; this crate carries them out. What arrives from outside passes
//! [`security`] first.

pub mod agent;
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
pub mod fork;
mod health;
mod linger;
pub mod membership;
mod presets;
mod probe;
pub mod recorder;
pub mod rendezvous;
mod runtime;
pub mod security;
pub mod settings;
pub mod state;
pub mod store;
pub mod watch;
pub mod workers;

// These are not part of the public interface. Our own tests, benchmarks and commands see them, with the feature `internals`.
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "some of it is for those who see it")]
mod bare_ring;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod bare_ring;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "some of it is for those who see it")]
mod executor;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod executor;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "some of it is for those who see it")]
mod link;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod link;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "some of it is for those who see it")]
mod planted;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod planted;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "some of it is for those who see it")]
mod port;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod port;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "some of it is for those who see it")]
mod sync;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod sync;

pub use communicator::Communicator;
pub use coordinator::Coordinator;
pub use elastic::Elastic;
pub use membership::Membership;
pub use outlast_proto::text;
pub use outlast_proto::topology;
pub use rendezvous::Rendezvous;
pub use state::SharedState;
pub use store::Store;

/// The examples of the README are compiled with the documentation tests, so that they stay true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
