//! The engine's epochs: which rosters are open, and what becomes of what belongs to older ones (rule 15).

use super::super::conn::Broken;
use super::super::operation::{End, Operation};
use super::super::{Direction, Stopped};
use super::links::link_up;
use super::{Engine, Output};
use outlast_proto::collective::links::Roster;
use outlast_proto::collective::{Group, GroupEpoch};
use outlast_proto::id::PeerId;
use std::net::SocketAddr;

impl Engine {
    pub(super) fn open_epoch(&mut self, group: Group, epoch: GroupEpoch, ring: Vec<(PeerId, SocketAddr)>) {
        if self.closed || !self.links.may_open(group, epoch) {
            return;
        }
        let roster = self.links.roster_of(epoch, ring);
        let (successor, predecessor) = (roster.successor(), roster.predecessor());
        // Links that closed while they rested are found before the epoch counts: it dials them again, and
        // nobody takes them for links of this epoch that could not be made.
        self.probe(successor.and_then(|peer| self.links.link(Direction::Towards, peer)));
        if let Some(successor) = successor {
            self.probe_stripes(successor);
        }
        self.probe(predecessor.and_then(|peer| self.links.link(Direction::From, peer)));
        let before = self.links.open(group, roster);
        self.close_needless_stripes();
        self.leave_epochs_before(group, epoch);
        self.drop_strangers(before);
        if let Some(peer) = successor {
            self.link_successor(group, peer);
        }
        if let Some(peer) = predecessor
            && self.links.link(Direction::From, peer).is_some()
        {
            self.outputs.push(Output::Event(link_up(group, epoch, peer, Direction::From)));
        }
    }

    /// Reports the link towards the next member of a group's ring, or dials it.
    pub(super) fn link_successor(&mut self, group: Group, peer: PeerId) {
        let Some(roster) = self.links.roster(group).filter(|roster| roster.successor() == Some(peer)) else {
            return;
        };
        let epoch = roster.epoch();
        if self.want_link(peer).is_some() {
            self.outputs.push(Output::Event(link_up(group, epoch, peer, Direction::Towards)));
        }
    }

    pub(super) fn close_epoch(&mut self, group: Group, epoch: GroupEpoch) {
        if self.links.roster(group).is_none_or(|open| open.epoch() != epoch) {
            return;
        }
        let before = self.links.close(group);
        self.leave_epochs_before(group, epoch + 1);
        self.drop_strangers(before);
    }

    /// The group begins anew, and its epochs may be numbered from the start. The links go too, so that no frame
    /// of the old life can be taken for one of the new.
    pub(super) fn forget_group(&mut self, group: Group) {
        let before = self.links.close(group);
        self.leave_epochs_before(group, GroupEpoch::MAX);
        self.desk.forget_group(group);
        self.drop_strangers(before);
    }

    /// Nothing of a group's earlier epochs has an effect from here on (rule 15).
    pub(super) fn leave_epochs_before(&mut self, group: Group, epoch: GroupEpoch) {
        // A receiver may have confirmed a transfer right before it left.
        let sends = |op: &&Operation| op.parts.name.group == group && op.parts.end == Some(End::Sends);
        let senders = self.desk.iter().map(|(_, op)| op).filter(sends);
        let links: Vec<_> = senders.map(|op| op.outgoing[0].conn).collect();
        for conn in links {
            self.probe(conn);
        }
        self.desk.open_epoch(group, epoch);
        // A transfer is the affair of its two ends: it goes on as long as both are members (rule 8).
        let roster = self.links.roster(group).filter(|open| open.epoch() == epoch);
        let stays = |op: &Operation| {
            let mut ends =
                op.outgoing.iter().map(|lane| lane.peer).chain(op.incoming.iter().map(|lane| lane.peer));
            roster.is_some_and(|open| ends.all(|peer| open.contains(peer)))
        };
        let over = |op: &Operation| match op.parts.end {
            Some(_) => !stays(op),
            None => op.parts.name.epoch < epoch,
        };
        for id in self.desk.ids(|op| op.parts.name.group == group && over(op)) {
            self.desk.stop(id, Stopped::Aborted);
        }
        for conn in self.conns.values_mut() {
            conn.parking.forget_before(group, epoch);
            conn.eager.forget_before(group, epoch);
        }
    }

    /// Closes the links to those of its members that are in no roster any more.
    fn drop_strangers(&mut self, before: Option<Roster>) {
        for peer in before.into_iter().flat_map(Roster::into_members) {
            for conn in self.links.drop_stranger(peer).into_iter().flatten() {
                self.lost(conn, &Broken::Misbehaved("the peer is in no roster any more".to_owned()));
            }
        }
    }
}
