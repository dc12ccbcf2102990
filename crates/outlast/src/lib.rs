//! Collectives that outlast the machines that run them: the runtime and its API.

pub mod executor;
pub mod link;
