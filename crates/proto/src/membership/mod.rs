//! Who is alive: SWIM with Lifeguard, and with the kernel as a witness.
//!
//! # The problem
//!
//! A group of processes wants one answer to "who is here?", within a second of a death, and never a wrong
//! one about somebody who lives. Silence cannot give that answer: a process that was stopped for five seconds
//! and a host that burned down are equally silent.
//!
//! # The intuition
//!
//! Silence is where the questions start, not where they end. Each member pings one other per interval, in a
//! shuffled sweep. No ack: ask relays to try, and meanwhile ask the *kernel* of the silent member by opening
//! TCP connections to its port. An accept means the process exists and is not running (*stalled*); a refusal
//! means that it is gone; no answer at all means that the host or the path is gone. What one member saw is
//! testimony: it travels, others look for themselves, and only enough testimony of the right kind is a death.
//!
//! # The invariant
//!
//! A member that can still send and receive is never declared dead: every path to a death record needs a
//! window in which it answered nobody who testified (rules 20 to 22), and any sign of life in that window
//! ends the case. A member that finds its own timers late does not testify at all.
//!
//! # What it does not do
//!
//! It moves no packets and opens no connections: it asks for them ([`Action`]). It evicts nobody from a run:
//! that is the coordinator's, to whom this is evidence. It uses no multicast.

mod case;
mod config;
mod dissemination;
mod event;
mod joining;
mod local_health;
mod machine;
mod news;
mod probing;
mod table;
#[cfg(test)]
mod tests;

pub use config::{Config, PairPolicy, Preset};
pub use event::{Action, ConnectOutcome, ConnectToken, Event, Health, Member, Path, Source};
pub use machine::Membership;
