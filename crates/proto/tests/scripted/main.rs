//! Real sessions and a real coordinator, one message at a time.
//!
//! A test here is a script: who calls what, which message is delivered next, which connection breaks after it, who
//! dies. Most faults of a protocol hide in one order of events, and this is where such an order is written down.
//! What happens in random orders is the simulator's affair; what one machine answers alone is tested beside it.

mod histories;
mod net;
mod resuming;
mod voting;
