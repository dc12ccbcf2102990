//! The store in a world of kills, stops, cuts, broken links and a registrar that may be restarted.
//!
//! Every process is a production member with a program that calls without pause; the registrar is the production one.
//! What travels between them is encoded and decoded. Links deliver frames late, twice and out of order, and break with
//! frames on them; a killed process comes back with nothing. First faults strike; then all is healed, every key is read
//! once more, and the whole history of each key must be one that a single copy could have had.
//!
//! What is checked: every key's history is linearizable, reads included ([`history`]); no call outlives its deadline, unless
//! its process was stopped; lists have what they should; after the heal every call succeeds within a bound, and who waits for
//! a key is woken when it is set. A process is killed at any moment in which every key is with two members,
//! in the middle of somebody's coming or leaving too. Where another one follows it before the store has mended that, keys that
//! just those two held are lost, and no others (`deaths.rs`). Some worlds have clients that are no members (`clients.rs`),
//! and some programs that tell all others something (`broadcasts.rs`).

mod acting;
mod broadcasts;
mod clients;
pub mod cost;
mod deaths;
mod foresight;
pub mod history;
mod programs;
pub mod scenarios;
mod world;

pub use world::{Plan, Sabotage, World};
