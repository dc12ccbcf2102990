//! The store: keys and values for bootstrap and control data, held by its members.
//!
//! # The problem
//!
//! Processes that are about to train together must find each other, agree on small things and wait for one another. A
//! server for that is one more thing that can die, and with it everything that it knew. So the members hold the keys
//! themselves; and since members die, each key is with two of them.
//!
//! # The intuition
//!
//! A *view* is a list of members with an epoch. From it everybody computes the same owner and the same replica of every
//! key ([`layout`]), and the same mesh of links ([`mesh`]). The owner does what it is asked in the order in which it is
//! asked; what changes something goes to the replica, and is answered when the replica has it ([`member`]). So a key has
//! one history, and any one death leaves somebody who knows all of it.
//!
//! When members come or go a *registrar* decides on the next view and brings everybody there in steps ([`registrar`]):
//! what moves is frozen, fetched, and only then served by its new holders. A member answers only while its *lease*
//! lasts, so one that is cut off falls silent before anybody takes its place.
//!
//! # The invariants
//!
//! - Operations on one key are linearizable; an acknowledged change survives any one death (rules 28, 30).
//! - A call that is asked again is done once (rule 30).
//! - Nobody obeys an epoch or a term that has passed.
//! - No call outlives its deadline.
//!
//! # What it does not do
//!
//! It writes nothing to disk: when both holders of a key die before a third has it, the key is gone. It is not for
//! tensors. Operations on several keys are not atomic.

pub mod config;
pub mod diagnosis;
pub mod hop;
pub mod layout;
pub mod member;
pub mod mesh;
pub mod record;
pub mod refusals;
pub mod registrar;
pub mod shelf;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use member::{Action, Ending, Failure, Member, Ticket};
pub use registrar::Registrar;
