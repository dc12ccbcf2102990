//! A session's side of data links: what it tells the coordinator when one is up, broken, measured or dialled again.
//!
//! Links report and never condemn (rule 20). Who holds the sockets says what happened; here it is decided whether that is worth a
//! word. What is said once more when a connection broke is with the rest of a resume, in the machine.

use super::attempts::{Call, Stage};
use super::machine::{Action, Session};
use crate::collective::{BrokenLink, Scope};
use crate::id::PeerId;
use crate::limits::{NAMED_MAX, TEXT_BYTES_MAX};
use crate::time::Duration;
use crate::wire::clip;
use crate::wire::control::{LinkSpeed, ToCoordinator};

impl Session {
    /// All links of that epoch that this peer dials are up.
    pub fn handle_links_up(&mut self, epoch: u64) {
        if let Some(record) = self.record.as_ref().filter(|record| record.epoch == epoch) {
            let group = record.group;
            self.linked = Some(epoch);
            if self.is_up() {
                self.send(ToCoordinator::Connected { group, epoch });
            }
        }
    }

    /// A link of that epoch broke outside of any attempt, or could not be dialled; `silent`, if the other host has
    /// acknowledged nothing for long. One beside the ring matters only to a call that has voted and may have sent over
    /// it: what it sent may be lost. One of the ring that was never up in its epoch could not be dialled, and one that is
    /// silent carries nothing: the next ring must do without either (rule 44).
    pub fn handle_link_broken(&mut self, epoch: u64, broken: BrokenLink, silent: bool) {
        let BrokenLink { from, to, error } = broken;
        if let Some(record) = self.record.as_ref().filter(|record| record.epoch == epoch) {
            let group = record.group;
            let in_ring = record.is_ring_link(from, to);
            let used = |call: &Call| {
                let (scope, kind) = (&call.op.scope, call.op.fingerprint.kind);
                matches!(call.stage, Stage::Complete { .. })
                    && scope.involves(from)
                    && scope.involves(to)
                    && (*scope != Scope::Whole || kind.goes_straight())
            };
            if !in_ring && !self.calls.values().any(used) {
                return;
            }
            let undialled = from == self.registration.info.id && self.linked != Some(epoch);
            let dialling = in_ring && (silent || undialled);
            let error = clip(&error, TEXT_BYTES_MAX);
            let report = ToCoordinator::LinkBroken { group, epoch, from, to, dialling, error };
            if self.is_up() {
                self.send(report);
            } else if self.unreported.len() < NAMED_MAX {
                self.unreported.push(report);
            }
        }
    }

    /// The link of an epoch that may come is sure, or why not: the answer to [`Action::Prepare`]. An answer that nobody
    /// waits for any more is not given: dials take time, and this may be another session by now.
    pub fn handle_prepared(&mut self, number: u64, error: Option<String>) {
        if self.asked.take_if(|asked| *asked == number).is_some() && self.is_up() {
            let group = self.registration.group;
            let error = error.map(|error| clip(&error, TEXT_BYTES_MAX));
            self.send(ToCoordinator::Prepared { group, number, error });
        }
    }

    /// What our link to another member carried in a collective. It is told if the coordinator is there; if not, the next
    /// one will be.
    pub fn handle_link_speed(&mut self, to: PeerId, rate: u64, round_trip: Duration) {
        let is_member = self.record.as_ref().is_some_and(|record| record.rank_of(to).is_some());
        if self.may_vote() && is_member {
            let round_trip_us = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
            let speed = LinkSpeed { to, rate, round_trip_us };
            self.send(ToCoordinator::LinkSpeed(self.registration.group, speed));
        }
    }

    /// A dial that was asked for with [`Action::Redial`] ended. An answer that cannot be given is not waited for.
    ///
    /// If the next in our ring is reached whose link could not be made, that link is made: the coordinator may go on in
    /// this epoch, as nothing has changed, and all may wait for the link in a vote, with no call that would dial it
    /// (rule 8).
    pub fn handle_redialled(&mut self, to: PeerId, error: Option<String>) {
        let me = self.registration.info.id;
        let next = self.record.as_ref().and_then(|record| record.successor_of(me)).map(|info| info.id);
        if error.is_none() && next == Some(to) && !self.is_linked() {
            self.actions.push_back(Action::Relink(to));
        }
        if self.is_up() && self.out.is_none() {
            let group = self.registration.group;
            let error = error.map(|error| error.chars().take(200).collect());
            self.send(ToCoordinator::Redialled { group, to, error });
        }
    }

    /// Whether the link that it dials in this epoch is up.
    pub(super) fn is_linked(&self) -> bool {
        self.record.as_ref().is_some_and(|record| self.linked == Some(record.epoch))
    }
}
