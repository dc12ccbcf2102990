//! A deterministic world for the machines in `proto`.
//!
//! # The problem
//!
//! What breaks a distributed system is an order of events that nobody wrote a test for, and on real machines
//! such an order comes once a month and never again under a debugger.
//!
//! # The intuition
//!
//! The machines have no clock, no sockets and no entropy of their own. So a world that hands them all three
//! from one seed can run any order of events, run it faster than life, and run it again. Here a [`world::World`]
//! holds hosts with a kernel and a process each, and a network between them that loses, delays, repeats,
//! reorders and cuts. A [`script::Script`] says what goes wrong and when; a storm draws one from the seed, a
//! scenario spells one out. [`runner::run`] plays it in two phases: *safety*, in which faults strike and
//! nothing wrong may ever be said, then *liveness*, in which everything is healed and all must agree again
//! within a bound.
//!
//! # The invariant
//!
//! The same seed gives the same trace hash, on every machine. A failure is therefore a scenario's name and a
//! number, and the report prints the command that replays it.
//!
//! # What it does not do
//!
//! It does not judge sockets, threads or encryption: the lab and the tests with real processes do. It models
//! one process per host; several processes that share a fate are several hosts under one fault.

pub mod checkers;
pub mod explore;
pub mod heart;
pub mod nodes;
pub mod rendezvous;
pub mod report;
pub mod runner;
pub mod scale;
pub mod scenarios;
pub mod script;
pub mod store;
pub mod storm;
pub mod table;
pub mod world;
