//! The lab against real kernels: real namespaces, real sockets, real processes, real SIGKILL.
//!
//! Needs root; without it every test says SKIPPED and passes. Run serially: the tests measure time.

mod cleanup;
mod common;
mod faults;
mod links;
