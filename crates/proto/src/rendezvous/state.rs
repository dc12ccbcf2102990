//! What all nodes agree on: one small message in a register.

use super::Node;
use crate::limits::{NODE_ADDRESS_BYTES_MAX, REGISTER_BYTES_MAX, RENDEZVOUS_NODES_MAX};
use crate::wire::{InvalidMessage, Message, decode, encode, printable, within};
use minicbor::{CborLen, Decode, Encode};
use std::collections::{BTreeMap, BTreeSet};

/// The version of the state that this software writes. An older node would drop what it does not know when it writes,
/// so it refuses a newer version instead.
const VERSION: u16 = 1;

/// The state of a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct State {
    #[n(0)]
    version: u16,
    /// The number of the round that is open or complete.
    #[n(1)]
    pub round: u64,
    /// Whether it is complete: its participants have their ranks, and nobody joins it any more.
    #[n(2)]
    pub complete: bool,
    /// Whether the rendezvous is over for good.
    #[n(3)]
    pub closed: bool,
    /// Whether the last call of an open round is under way.
    #[n(4)]
    pub calling: bool,
    /// How many last calls this round has had; it tells one from the next.
    #[n(5)]
    pub calls: u32,
    /// Who is in this round.
    #[n(6)]
    pub participants: BTreeMap<Node, Seat>,
    /// Who waits for the next round.
    #[n(7)]
    pub wait_list: BTreeSet<Node>,
    /// Who waits for a place: the round is full.
    #[n(8)]
    pub redundancy_list: BTreeSet<Node>,
    /// The participants of the last round that was complete, by rank.
    #[n(9)]
    pub roster: Vec<Node>,
}

/// A participant's place in a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Seat {
    /// Its rank, once the round is complete.
    #[n(0)]
    pub rank: u32,
    /// Where it can be reached, in words of its own.
    #[n(1)]
    pub address: String,
}

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the round.
    Participant,
    /// On the wait list.
    Waiting,
    /// On the redundancy list.
    Spare,
}

/// Why a value is not the state of a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Somebody else writes there, or the bytes are damaged.
    #[error("the value is not the state of a rendezvous: {0}; does something else use this run id?")]
    Invalid(#[from] InvalidMessage),
    /// Written by newer software.
    #[error(
        "the state of the rendezvous has version {theirs}, this software knows {VERSION}; update this node"
    )]
    Newer {
        /// Its version.
        theirs: u16,
    },
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            round: 0,
            complete: false,
            closed: false,
            calling: false,
            calls: 0,
            participants: BTreeMap::new(),
            wait_list: BTreeSet::new(),
            redundancy_list: BTreeSet::new(),
            roster: Vec::new(),
        }
    }
}

impl State {
    /// The state as a value for the register.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a value of the register.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StateError> {
        // The version comes first and keeps its place; what follows may have another shape in another version.
        let mut reader = minicbor::Decoder::new(bytes);
        if let (Ok(Some(1..)), Ok(theirs)) = (reader.array(), reader.u16())
            && theirs > VERSION
        {
            return Err(StateError::Newer { theirs });
        }
        Ok(decode(bytes)?)
    }

    /// Where a node stands; `None` if it is in no list.
    pub fn place(&self, node: &Node) -> Option<Place> {
        if self.participants.contains_key(node) {
            Some(Place::Participant)
        } else if self.wait_list.contains(node) {
            Some(Place::Waiting)
        } else {
            self.redundancy_list.contains(node).then_some(Place::Spare)
        }
    }

    /// Nodes in all lists.
    pub fn nodes(&self) -> usize {
        self.participants.len() + self.wait_list.len() + self.redundancy_list.len()
    }

    /// Who was in the complete round and is neither in it any more nor waits for the next: lost, or gone for good.
    pub fn departed(&self) -> impl Iterator<Item = &Node> {
        let gone = |node: &&Node| !self.participants.contains_key(*node) && !self.wait_list.contains(*node);
        self.roster.iter().filter(|_| self.complete).filter(gone)
    }

    /// Why the participants of a complete round should meet again, as a number: nodes that wait, and participants that
    /// are gone.
    pub fn waiting(&self) -> usize {
        self.wait_list.len() + self.departed().count()
    }
}

impl Message for State {
    const BYTES_MAX: usize = REGISTER_BYTES_MAX;
    fn check(&self) -> Result<(), InvalidMessage> {
        within("nodes", self.nodes(), RENDEZVOUS_NODES_MAX)?;
        within("roster", self.roster.len(), RENDEZVOUS_NODES_MAX)?;
        let listed = self.participants.keys().chain(&self.wait_list).chain(&self.redundancy_list);
        listed.chain(&self.roster).try_for_each(Node::check)?;
        for seat in self.participants.values() {
            within("address", seat.address.len(), NODE_ADDRESS_BYTES_MAX)?;
            printable("address", &seat.address)?;
        }
        let ranks: BTreeSet<u32> = self.participants.values().map(|seat| seat.rank).collect();
        if self.complete && ranks.len() < self.participants.len() {
            let value = format!("{} participants have {} ranks", self.participants.len(), ranks.len());
            return Err(InvalidMessage::Meaningless { field: "ranks", value });
        }
        Ok(())
    }
}
