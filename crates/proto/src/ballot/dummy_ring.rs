//! A ballot about which way round: for tests, and the smallest that changes the ring.
//!
//! The first member's wish says whether the ring goes by rank or against it. All hear all wishes, whether the ring could
//! be wired or not: a real kind would say that in its outcome, too.

use super::optimise::is_same;
use super::{Hall, Reach, Rules, Seats, Step};
use crate::coordinator::ConnectionState;
use crate::id::PeerId;
use crate::wire::control::BallotKind;
use std::collections::BTreeMap;

/// Its number on the wire.
pub const KIND: BallotKind = BallotKind(u32::MAX - 1);

/// The rules of it.
#[derive(Debug)]
pub(crate) struct DummyRing;

/// The ring that the votes ask for: against the ranks if the first member's wish ends with an odd byte.
fn wanted(seats: &Seats<'_>) -> Vec<PeerId> {
    let odd = seats.wishes().next().and_then(|(_, wish)| wish.last()).is_some_and(|byte| byte % 2 == 1);
    let mut ring = seats.members.to_vec();
    if odd {
        ring.reverse();
    }
    ring
}

impl Rules for DummyRing {
    fn kind(&self) -> BallotKind {
        KIND
    }

    fn name(&self) -> &'static str {
        "dummy_ring"
    }

    fn state(&self, _wish: &[u8]) -> ConnectionState {
        ConnectionState::Vote("VoteDummyRing")
    }

    fn reach(&self) -> Reach {
        Reach::Group
    }

    fn check(&self, wish: &[u8]) -> Result<(), String> {
        super::dummy::Dummy.check(wish)
    }

    fn outcome(&self, hall: &Hall<'_>, seats: &Seats<'_>) -> Vec<u8> {
        super::dummy::Dummy.outcome(hall, seats)
    }

    fn count(&self, hall: &Hall<'_>) -> Step {
        let ready = || hall.groups().filter(|seats| seats.is_unanimous() && seats.is_linked);
        let is_settled = |seats: &&Seats<'_>| {
            let wanted = wanted(seats);
            is_same(seats.ring, &wanted)
                || seats.refused_ring.is_some_and(|refused| is_same(refused, &wanted))
        };
        let agreed: Vec<_> =
            ready().filter(is_settled).map(|seats| (seats.group, self.outcome(hall, seats))).collect();
        let rings: BTreeMap<_, _> = ready().map(|seats| (seats.group, wanted(seats))).collect();
        match (agreed.is_empty(), rings.is_empty()) {
            (false, _) => Step::Agree(agreed), // The other groups are counted again at once.
            (true, false) => Step::Rewire(rings),
            (true, true) => Step::Wait,
        }
    }
}
