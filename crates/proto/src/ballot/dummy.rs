//! A ballot about nothing: for tests, and the smallest that a kind can be.
//!
//! Every member of a group says some bytes, and all hear all of them. It says nothing about lost voters, resumes or
//! restarts, and the simulator holds it to the promises of all ballots.

use super::{Hall, Reach, Rules, Seats};
use crate::coordinator::ConnectionState;
use crate::wire::control::BallotKind;

/// Its number on the wire.
pub const KIND: BallotKind = BallotKind(u32::MAX);

/// Longest wish, so that the outcome of a large group stays within its bound.
pub const WISH_BYTES_MAX: usize = 16;

/// The rules of the dummy.
#[derive(Debug)]
pub(crate) struct Dummy;

impl Rules for Dummy {
    fn kind(&self) -> BallotKind {
        KIND
    }

    fn name(&self) -> &'static str {
        "dummy_ballot"
    }

    fn state(&self, _wish: &[u8]) -> ConnectionState {
        ConnectionState::Vote("VoteDummy")
    }

    fn reach(&self) -> Reach {
        Reach::Group
    }

    fn check(&self, wish: &[u8]) -> Result<(), String> {
        let bytes = wish.len();
        if bytes <= WISH_BYTES_MAX { Ok(()) } else { Err(format!("{bytes} bytes, at most {WISH_BYTES_MAX}")) }
    }

    fn outcome(&self, _hall: &Hall<'_>, seats: &Seats<'_>) -> Vec<u8> {
        seats.wishes().flat_map(|(_, wish)| wish.iter().copied()).collect()
    }
}
