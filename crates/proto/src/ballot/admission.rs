//! Letting newcomers in: the whole run, unanimously, between collectives.
//!
//! Every accepted peer votes by calling `update_topology`; a newcomer's registration is its vote. When all have voted and
//! nothing runs, whoever makes its group as large as all its voters ask for is admitted, and the changed groups get a new
//! epoch: one for many newcomers, not one for each. A group's ballot ends for all of its members together, when the links
//! are up and it is large enough; until then the votes stand.
//!
//! A newcomer may ask for what cannot be had, such as four members where there would be three. A vote could not let it
//! in, so it is not counted as pending, and no vote waits on its account (rule 10): it waits until others come.

use super::{Hall, Reach, Rules, Seats, Step};
use crate::collective::Group;
use crate::coordinator::ConnectionState;
use crate::id::PeerId;
use crate::wire::control::BallotKind;
use minicbor::{CborLen, Decode, Encode};
use std::collections::BTreeMap;

/// Its number on the wire.
pub const KIND: BallotKind = BallotKind(0);

/// What a voter asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub struct Wish {
    /// How many members its group must have before its call ends; at least one.
    #[n(0)]
    pub min_world: u32,
}

/// The wish of a voter that waits until its group has that many members, as bytes.
pub fn wish(min_world: u32) -> Vec<u8> {
    minicbor::to_vec(Wish { min_world: min_world.max(1) }).expect("a Vec takes every byte")
}

/// How many members the voter of that wish asks for.
pub(crate) fn min_world(wish: &[u8]) -> Option<u32> {
    minicbor::decode(wish).ok().map(|wish: Wish| wish.min_world).filter(|wants| *wants > 0)
}

/// What a vote would make of a group.
pub(crate) struct Prospect {
    /// How many would come in.
    pub(crate) newcomers: usize,
    /// The most members that any of them asks for.
    pub(crate) most: u32,
}

/// The rules of admission.
#[derive(Debug)]
pub(crate) struct Admission;

impl Rules for Admission {
    fn kind(&self) -> BallotKind {
        KIND
    }

    fn name(&self) -> &'static str {
        "update_topology"
    }

    fn call(&self, wish: &[u8]) -> String {
        format!("update_topology(min_world={})", min_world(wish).unwrap_or(1))
    }

    fn state(&self, _wish: &[u8]) -> ConnectionState {
        ConnectionState::VoteAcceptNewPeers
    }

    fn reach(&self) -> Reach {
        Reach::Run
    }

    fn check(&self, wish: &[u8]) -> Result<(), String> {
        match min_world(wish) {
            Some(_) => Ok(()),
            None => Err("does not say how many members it asks for, or says 0".to_owned()),
        }
    }

    fn outcome(&self, _hall: &Hall<'_>, _seats: &Seats<'_>) -> Vec<u8> {
        Vec::new() // Who came in was told with the epoch.
    }

    fn count(&self, hall: &Hall<'_>) -> Step {
        let admissible = admissible(hall);
        if !admissible.is_empty() {
            let agreed = hall.groups().all(Seats::is_unanimous);
            return if agreed { Step::Admit(admissible) } else { Step::Wait };
        }
        // There is nobody to admit: a group's vote is its own affair. The others are not told that anybody waits, and
        // would not come to vote (rule 10).
        let content = |seats: &Seats<'_>| is_content(seats, seats.members.len());
        let over = hall.groups().filter(|seats| seats.is_unanimous() && seats.is_linked && content(seats));
        let over: Vec<_> = over.map(|seats| (seats.group, self.outcome(hall, seats))).collect();
        if over.is_empty() { Step::Wait } else { Step::Agree(over) }
    }
}

/// Whether a group of that size is large enough for everybody in it. Who has not voted is taken to ask for nothing.
fn is_content(seats: &Seats<'_>, size: usize) -> bool {
    seats.wishes().all(|(_, wish)| min_world(wish).is_none_or(|wants| wants as usize <= size))
}

/// What a group would be if a vote were held now. None if nobody could come in: admitting fewer than make it as large as
/// everybody in it asks for would end nobody's call, and cost an epoch each.
pub(crate) fn prospect(hall: &Hall<'_>, group: Group) -> Option<Prospect> {
    let seats = hall.group(group);
    let size = seats.map_or(0, |seats| seats.members.len());
    // Whoever asks for more than there would be waits outside.
    let (prospect, most) = hall.lobby()?.prospect(group, size);
    let content = seats.is_none_or(|seats| is_content(seats, prospect));
    (prospect > size && content).then_some(Prospect { newcomers: prospect - size, most })
}

/// The newcomers whom a vote of all groups would let in now, in the order of their arrival; ranks follow it.
fn admissible(hall: &Hall<'_>) -> BTreeMap<Group, Vec<PeerId>> {
    let Some(lobby) = hall.lobby() else { return BTreeMap::new() };
    let modest = |group: Group| Some((group, lobby.modest(group, prospect(hall, group)?.most)));
    lobby.groups().filter_map(modest).collect()
}

/// How many newcomers a vote of all groups would let in, were it held now (rule 10).
pub(crate) fn pending(hall: &Hall<'_>) -> u32 {
    let Some(lobby) = hall.lobby() else { return 0 };
    let count = |group| prospect(hall, group).map_or(0, |prospect| prospect.newcomers);
    lobby.groups().map(count).sum::<usize>() as u32
}
