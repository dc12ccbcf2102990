//! Shared state: the same bits everywhere, healed only where they differ.
//!
//! # The problem
//!
//! The members of a group hold copies of one model. A newcomer has none, a survivor of a failed step may have half of
//! one, and now and then a bit flips and nobody says so. All must end with the same bits; and a gigabyte of
//! which a hundredth differs must not cost a gigabyte.
//!
//! # The intuition
//!
//! A state is an [`Outline`] (keys, types, shapes) and bytes. The bytes are cut into *leaves* of 1 MiB, each with a
//! hash, and one hash over all of them is the *root* ([`tree`]). Members tell the coordinator their outline's digest,
//! their root and their revision: a few dozen bytes, whatever the size of the model. It *elects* what counts
//! ([`election`]). Whoever holds something else fetches the list of leaf hashes from a *donor*, sees which leaves
//! differ, and pulls those from all donors at once ([`transfer`]). Whoever already agrees moves nothing.
//!
//! # The invariant
//!
//! A byte that was not verified against the elected root never reaches a caller's tensor; and a state in which some
//! leaves are new and others old is never a donor or a candidate (rule 26).
//!
//! # What it does not do
//!
//! It sees no tensor and hashes no leaf: leaves are hashed where the memory is. The hashes find accidents, not
//! adversaries: members are trusted with the model as they are with its gradients (rule 39).

pub mod chronicle;
pub mod course;
pub mod election;
pub mod frame;
pub mod ledger;
mod outline;
#[cfg(test)]
mod tests;
pub mod transfer;
pub mod tree;

pub use outline::{Difference, InvalidOutline, Outline, TensorInfo};
pub use tree::{Digest, LEAF_BYTES};

/// The version of a group's shared state. It grows by one with each sync that changes it, or with each step of a
/// training loop that is bound to it.
pub type Revision = u64;
