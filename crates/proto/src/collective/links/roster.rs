//! The open roster of one group, as far as links are concerned: who can be dialled, and who is next to us in the ring.

use super::{Change, Direction};
use crate::collective::GroupEpoch;
use crate::id::PeerId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// See the module's first line.
#[derive(Debug)]
pub struct Roster {
    epoch: GroupEpoch,
    addresses: BTreeMap<PeerId, SocketAddr>,
    successor: Option<PeerId>,
    predecessor: Option<PeerId>,
}

impl Roster {
    /// The members in ring order, seen by `me`. Who is alone, or is no member, has no neighbours.
    pub(super) fn new(me: PeerId, epoch: GroupEpoch, ring: Vec<(PeerId, SocketAddr)>) -> Self {
        let place = ring.iter().position(|(peer, _)| *peer == me).filter(|_| ring.len() > 1);
        let neighbour = |offset: usize| place.map(|place| ring[(place + offset) % ring.len()].0);
        Self {
            epoch,
            successor: neighbour(1),
            predecessor: neighbour(ring.len().saturating_sub(1)),
            addresses: ring.into_iter().collect(),
        }
    }

    /// Its epoch.
    pub fn epoch(&self) -> GroupEpoch {
        self.epoch
    }

    /// To whom this peer sends in the ring.
    pub fn successor(&self) -> Option<PeerId> {
        self.successor
    }

    /// Who sends to this peer in the ring.
    pub fn predecessor(&self) -> Option<PeerId> {
        self.predecessor
    }

    /// Where a member takes links.
    pub fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.addresses.get(&peer).copied()
    }

    /// Whether it lists the peer.
    pub fn contains(&self, peer: PeerId) -> bool {
        self.addresses.contains_key(&peer)
    }

    /// Its members.
    pub fn into_members(self) -> impl Iterator<Item = PeerId> {
        self.addresses.into_keys()
    }

    /// Whether it is told what happened to a link. A ring is told of its two links here. That one beside the ring broke
    /// is told by the end that sends: it may have sent all that it had to, and nobody else may know.
    pub(super) fn hears(&self, direction: Direction, peer: PeerId, change: Change) -> bool {
        let neighbour = match direction {
            Direction::Towards => self.successor,
            Direction::From => self.predecessor,
        };
        let beside = direction == Direction::Towards && change == Change::Down && self.contains(peer);
        neighbour == Some(peer) || beside
    }
}
