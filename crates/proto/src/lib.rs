//! Every decision of Outlast, and nothing else.
//!
//! This crate holds the state machines: who is alive, what was voted, which verdict follows. It has no
//! sockets, no threads, no clock and no entropy of its own; the lints in `clippy.toml` beside the manifest
//! make that a checked fact. Whoever drives a machine passes in the time and what happened, and carries out
//! the actions that come back. The `outlast` crate drives them with real sockets, `sim` with a seeded world,
//! and both run the same code.
//!
//! Every machine has the same face: `handle_*(now, ..)` for what happened, `handle_timeout(now)`,
//! `poll_action()` for what to do, `poll_timeout()` for when to call again.
#![forbid(unsafe_code)]

pub mod agent;
pub mod annals;
pub mod ballot;
pub mod blame;
pub mod collective;
pub mod coordinator;
pub mod id;
pub mod limits;
pub mod membership;
pub mod pace;
pub mod preset;
pub mod reign;
pub mod rendezvous;
pub mod retry;
pub mod rng;
pub mod session;
pub mod state;
pub mod store;
pub mod text;
pub mod time;
pub mod topology;
pub mod wire;
