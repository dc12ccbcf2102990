//! Moving leaves between members, on links of its own.
//!
//! ```text
//!   receiver                                donor
//!      | -- question: hashes of root R ------> |
//!      | <------ all leaf hashes, extra ------ |   checked: they hash to R
//!      | -- leaf 3, leaf 4, leaf 9 .. -------> |   as many at once as the plan allows
//!      | <------ leaf 3 ---------------------- |   copied, hashed again, then sent (rule 27)
//!        checked against its hash, put in place
//! ```
//!
//! A heal moves gigabytes for minutes while nothing else of the group runs. It has streams of its own (through the one
//! port, with a purpose of their own), because what collectives need of a link (frames of many operations, credit,
//! aborts at any byte) it does not need: one side asks, the other answers. Each stream has a thread at each end.
//!
//! A donor serves a bounded number of streams. Whoever comes when it is full is told so by its [`porter`], and comes again
//! after a pause; so one donor heals any number of receivers, some after the others.
//!
//! The invariant on the receiver: a leaf is read into memory of the stream's own, and reaches the caller's tensor only if
//! its hash is the elected one. The invariant on the donor: the caller's tensors are touched only under the lock of the
//! [`Stall`](donor::Stall), for as long as it takes to copy one leaf; so a sync that ends takes them back at once,
//! whatever the network does (rule 15).

pub(crate) mod donor;
mod porter;
pub(crate) mod receiver;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use stream::Stream;
