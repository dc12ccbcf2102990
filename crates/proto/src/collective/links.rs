//! Which data links a peer has, which it is about to have, and what follows when it loses one.
//!
//! # The problem
//!
//! A peer has at most one link towards each other member, which it dialled, and one from it, which it accepted. Both come
//! and go by themselves: a dial takes its time while rosters change, a link breaks while attempts use it, a newer
//! connection takes an older one's place. Whoever holds the sockets must say at any moment which connection *is* the
//! link, whether an answer that comes late still counts, and what becomes of each attempt that had the link which is gone.
//! Wrong answers are quiet: an attempt that waits for nobody, a report about a link that was replaced long ago, two
//! dials of which the wrong one wins.
//!
//! # The intuition
//!
//! That is a table and a few rules, and no bytes. [`Links`] is the table: of each peer and direction, the connection that
//! is the link; of each peer, the dial that is waited for; of each group, the roster that is open. Connections are
//! handles that somebody else gave out. Whoever needs a link [wants](Links::want) it and is told to use this one, to
//! dial, or to wait. Whoever lost one asks [`after_loss`], once for each lane that used it.
//!
//! Links report and never condemn (rule 20): [`Links::hearers`] says which epochs are told, and that is all that a
//! broken link leads to besides.
//!
//! # The invariant
//!
//! One link for a peer and direction, and one dial for a peer. An outcome counts for the dial that is waited for, told
//! apart by its serial, and for no other; a loss is reported if what was lost was the link, and not if it had been
//! replaced or dropped. Nobody is dialled who is in no open roster, and whoever leaves the last one loses its links. (Somebody
//! may dial us before we hear of the epoch in which it does.)
//!
//! # What it does not do
//!
//! It knows no clock: the pace and the end of a dial are those of [`after_dial`](crate::retry::after_dial), and how long
//! a lane waits for its predecessor is for whoever has a clock. It knows no lanes either, nor the further streams of a
//! link (see [`striping`](super::striping)): a link is as good as each of its streams.

mod lane;
mod roster;
#[cfg(test)]
mod tests;

pub use lane::{AfterLoss, LostLane, REDIALS_MAX, after_loss, may_change_links};
pub use roster::Roster;

use super::{Group, GroupEpoch};
use crate::id::PeerId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Which way blocks go on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the other end: we dialled. Blocks go out, credits come in.
    Towards,
    /// From the other end: we accepted. Blocks come in, credits go out.
    From,
}

/// What happened to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It can be used.
    Up,
    /// It broke, or could not be made.
    Down,
}

/// What whoever wants the link towards a peer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<C> {
    /// This connection is the link.
    Use(C),
    /// There is none: dial it there. How that ends is told with [`Links::handle_dialled`].
    Dial {
        /// Where the peer takes links.
        address: SocketAddr,
        /// Tells this dial from earlier ones.
        serial: u64,
    },
    /// There is none yet, and it is being dialled.
    UnderWay,
    /// The peer is in no open roster: there is none, and none can be made.
    NoAddress,
}

/// See the module's essay. `C` is the handle of a connection.
#[derive(Debug)]
pub struct Links<C> {
    me: PeerId,
    towards: BTreeMap<PeerId, C>,
    from: BTreeMap<PeerId, C>,
    /// The dials that are waited for, by their serials.
    dialling: BTreeMap<PeerId, u64>,
    serials: u64,
    rosters: BTreeMap<Group, Roster>,
}

impl<C: Copy + Eq> Links<C> {
    /// No links, and nobody to have any with.
    pub fn new(me: PeerId) -> Self {
        Self {
            me,
            towards: BTreeMap::new(),
            from: BTreeMap::new(),
            dialling: BTreeMap::new(),
            serials: 0,
            rosters: BTreeMap::new(),
        }
    }

    // ---- links ----

    /// The connection that is the link now.
    pub fn link(&self, direction: Direction, peer: PeerId) -> Option<C> {
        match direction {
            Direction::Towards => self.towards.get(&peer).copied(),
            Direction::From => self.from.get(&peer).copied(),
        }
    }

    /// Somebody needs the link towards `peer`.
    pub fn want(&mut self, peer: PeerId) -> Wanted<C> {
        if let Some(link) = self.towards.get(&peer) {
            return Wanted::Use(*link);
        }
        if self.dialling.contains_key(&peer) {
            return Wanted::UnderWay;
        }
        let Some(address) = self.address(peer) else { return Wanted::NoAddress };
        self.serials += 1;
        self.dialling.insert(peer, self.serials);
        Wanted::Dial { address, serial: self.serials }
    }

    /// A dial ended, well or not. `true` if that was waited for: an outcome of an earlier dial, or of one to somebody who
    /// has left since, has no effect, and its connection is closed.
    #[must_use]
    pub fn handle_dialled(&mut self, peer: PeerId, serial: u64) -> bool {
        let awaited = self.dialling.get(&peer) == Some(&serial);
        if awaited {
            self.dialling.remove(&peer);
        }
        awaited
    }

    /// A connection was made, and is the link from now on. Returns the one that it replaces, which is to be closed: its
    /// other end has a newer one, so it is lost without being missed.
    #[must_use]
    pub fn handle_up(&mut self, direction: Direction, peer: PeerId, link: C) -> Option<C> {
        self.side(direction).insert(peer, link)
    }

    /// A connection is gone. `true` if it was the link, which is told to its [hearers](Self::hearers); one that was
    /// replaced or dropped before is missed by nobody.
    #[must_use]
    pub fn handle_lost(&mut self, direction: Direction, peer: PeerId, link: C) -> bool {
        let side = self.side(direction);
        let was_link = side.get(&peer) == Some(&link);
        if was_link {
            side.remove(&peer);
        }
        was_link
    }

    /// The epochs that are told what happened to a link.
    pub fn hearers(
        &self,
        direction: Direction,
        peer: PeerId,
        change: Change,
    ) -> impl Iterator<Item = (Group, GroupEpoch)> + '_ {
        let hears = move |roster: &Roster| roster.hears(direction, peer, change);
        self.rosters
            .iter()
            .filter(move |(_, roster)| hears(roster))
            .map(|(group, roster)| (*group, roster.epoch()))
    }

    fn side(&mut self, direction: Direction) -> &mut BTreeMap<PeerId, C> {
        match direction {
            Direction::Towards => &mut self.towards,
            Direction::From => &mut self.from,
        }
    }

    // ---- rosters ----

    /// Whether this epoch may follow what is open: epochs of a group only grow.
    pub fn may_open(&self, group: Group, epoch: GroupEpoch) -> bool {
        self.rosters.get(&group).is_none_or(|open| open.epoch() < epoch)
    }

    /// The roster that a ring makes, seen from here.
    pub fn roster_of(&self, epoch: GroupEpoch, ring: Vec<(PeerId, SocketAddr)>) -> Roster {
        Roster::new(self.me, epoch, ring)
    }

    /// A roster opens. Returns the one before, some of whose members may be [strangers](Self::drop_stranger) now.
    pub fn open(&mut self, group: Group, roster: Roster) -> Option<Roster> {
        self.rosters.insert(group, roster)
    }

    /// A group has no roster any more. Returns the one that it had.
    pub fn close(&mut self, group: Group) -> Option<Roster> {
        self.rosters.remove(&group)
    }

    /// The open roster of a group.
    pub fn roster(&self, group: Group) -> Option<&Roster> {
        self.rosters.get(&group)
    }

    /// Who comes after this peer in any ring.
    pub fn successors(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.rosters.values().filter_map(Roster::successor)
    }

    /// Where a peer takes links, by any open roster.
    pub fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.rosters.values().find_map(|roster| roster.address(peer))
    }

    /// If the peer is in no roster any more: a dial to it is not waited for, and its links are to be closed. They are no
    /// longer links by then, so that they are lost without being missed.
    #[must_use]
    pub fn drop_stranger(&mut self, peer: PeerId) -> [Option<C>; 2] {
        if self.address(peer).is_some() {
            return [None, None];
        }
        self.dialling.remove(&peer);
        [self.towards.remove(&peer), self.from.remove(&peer)]
    }
}
