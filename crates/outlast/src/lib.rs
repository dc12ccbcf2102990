//! The runtime and the public Rust API of Outlast: the only home of sockets, threads and shared memory.
//!
//! Decisions are made in `outlast_proto`; this crate carries them out.

pub mod clock;
pub mod fork;
