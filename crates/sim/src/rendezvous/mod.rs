//! A rendezvous of up to a thousand nodes: joining, dying, stopping, returning, with a register that may be restarted.
//!
//! Each node is a production machine with a program like an agent's: it meets, trains, looks now and then whether
//! somebody waits or was lost, and meets again. The register is the production register. In between is a network with
//! delays, in which answers may be lost with their connection. First faults strike and nothing wrong may be agreed;
//! then all is healed and everybody must find a place within a bound.
//!
//! What is checked, in [`checkers`]: all who finish a round name the same participants in the same order, themselves
//! at their rank; survivors of the round before keep their order; no round is smaller than min or larger than max;
//! nobody writes whose lease has run out; no operation takes more writes than its bound; and in the end nobody is
//! stranded.

mod acting;
pub mod checkers;
pub mod scenarios;
mod world;

pub use world::{Plan, Sabotage, World};
