//! The coordinator alone: each test hands in what peers say and looks at every action that comes back.

mod admission;
mod annals;
mod ballots;
mod bench;
mod claims;
mod collectives;
mod evictions;
mod facts;
mod incumbents;
mod links;
mod optimise;
mod rebuilding;
mod revisions;
mod sessions;
mod speeds;
mod states;
mod witnesses;
