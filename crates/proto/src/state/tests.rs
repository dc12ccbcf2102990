//! Members with real bytes: offers, an election, and heals whose bytes are counted.

mod elections;
mod heals;
mod outlines;
mod transfers;
mod world;
