//! The runtime of Outlast: it drives the machines of `outlast-proto` with real sockets, threads and clocks.
//!
//! Decisions live in `outlast-proto`; this crate carries them out. What arrives from outside passes
//! [`security`] first.

pub mod clock;
pub mod fork;
pub mod port;
pub mod security;
