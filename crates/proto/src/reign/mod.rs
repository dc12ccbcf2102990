//! Which of several coordinators decides (rule 19): a lease elects, and its revision is the term.
//!
//! # The problem
//!
//! Two coordinators that decide at the same time are worse than none. An election among them has to survive a process
//! that is stopped in the middle of a decision, a connection that loses an answer, and a clock that nobody else can read.
//!
//! # The intuition
//!
//! Something that already agrees with itself, an etcd, keeps one key, which ends with a lease. Whoever creates the key
//! reigns, and the revision that created it is the *term*: every later reign has a higher one. The holder renews its
//! lease, and counts how long it lasts from the moment *before* it asked: etcd cannot have counted from earlier. It stops
//! deciding a fifth before that time is over, so it stops before anybody else can begin.
//!
//! ```text
//!   asked               answered           stops deciding    the lease may end for others
//!   |--------------------|-------------------|----------------|----------------> time
//!   0                                        4/5 granted      granted, at the earliest
//! ```
//!
//! # The invariant
//!
//! [`Reign::may_decide`] names a term only while the lease under which that term's key was created lasts for sure. A
//! reign that has ended never goes on: the next one takes a fresh lease, creates the key anew and has a higher term.
//!
//! A lease says nothing of the peers. A leader that they cannot reach is told by those who stand by (`appeal`), and steps
//! down.
//!
//! # What it does not do
//!
//! It cannot stop what left a coordinator in time and arrives late. That is refused by the peers, who promised to obey no
//! lower term than they have seen (rule 17).

mod appeal;
mod machine;
#[cfg(test)]
mod tests;

pub use appeal::{Appeal, Visitors};
pub use machine::{Action, Campaign, Config, Leader, Reign};
