//! What is known of the group and its coordinator, for the calls of the program.
//!
//! Two pictures of the group are kept apart. The session knows it as it is, and calls that are under way ask for that. The
//! program sees a [`SeenGroup`], which changes only when one of its calls ends: between two calls ranks and sizes stay as
//! they are, whatever happens meanwhile.

use super::{Control, State};
use crate::clock;
use crate::communicator::error::{Error, seconds};
use crate::communicator::receipt::Peer;
use crate::sync::{Arc, lock, sleep_while};
use outlast_proto::collective::{Group, OpKey};
use outlast_proto::id::PeerId;
use outlast_proto::session::{CallError, OutReason, Session};
use outlast_proto::time::Duration;
use outlast_proto::wire::control::{EpochRecord, LossReason};
use std::net::SocketAddr;

/// What the program sees of the group; replaced only when one of its calls ends.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SeenGroup {
    /// Our rank in the group.
    pub rank: usize,
    /// The group's epoch.
    pub epoch: u64,
    /// Members of all groups.
    pub global_world_size: u32,
    /// The members of the group in the order of ranks; their health is not filled in.
    pub peers: Vec<Peer>,
}

impl Control {
    pub(in crate::communicator) fn seen(&self) -> Arc<SeenGroup> {
        Arc::clone(&lock(&self.seen))
    }

    /// Lets the program see the group as it is.
    pub(in crate::communicator) fn refresh(&self) {
        let state = lock(&self.state);
        let known = self.seen();
        let changed = |record: &&EpochRecord| {
            (record.epoch, state.session.global_world_size()) != (known.epoch, known.global_world_size)
        };
        let seen = state.session.record().filter(changed);
        let seen = seen.map(|record| seen_of(record, self.me, &state.session));
        drop(state);
        if let Some(seen) = seen {
            *lock(&self.seen) = Arc::new(seen);
        }
    }

    /// The group and its members in the order of ranks, as they are now.
    pub(in crate::communicator) fn present(&self) -> Result<(Group, Vec<PeerId>), Error> {
        let state = lock(&self.state);
        let Some(record) = state.session.record() else {
            let reason = state.session.out().cloned().unwrap_or(OutReason::NotConnected);
            return Err(CallError::Out(reason).into());
        };
        Ok((record.group, record.roster.iter().map(|info| info.id).collect()))
    }

    /// The ring of that epoch, if it is the present one.
    pub(in crate::communicator) fn ring(&self, epoch: u64) -> Vec<PeerId> {
        let state = lock(&self.state);
        let record = state.session.record().filter(|record| record.epoch == epoch);
        let place = |record: &EpochRecord| {
            record
                .ring
                .iter()
                .filter_map(|rank| record.roster.get(*rank as usize))
                .map(|info| info.id)
                .collect()
        };
        record.map_or_else(Vec::new, place)
    }

    /// Where a member can be reached.
    pub(in crate::communicator) fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        let state = lock(&self.state);
        state.session.record()?.roster.iter().find(|info| info.id == peer).map(|info| info.address)
    }

    /// Whether all know that no link can be made between the two, in one direction at least.
    pub(in crate::communicator) fn is_broken(&self, one: PeerId, other: PeerId) -> bool {
        let state = lock(&self.state);
        let is_theirs = |link: (PeerId, PeerId)| link == (one, other) || link == (other, one);
        state.session.record().is_some_and(|record| record.broken_links().any(is_theirs))
    }

    /// For how long an admitted peer has been without its coordinator, or was when its session ended.
    pub(in crate::communicator) fn alone_for(&self) -> Option<Duration> {
        let state = lock(&self.state);
        let now = clock::now();
        state.alone_since.map(|since| now.since(since)).or(state.alone_at_end)
    }

    /// Who made that call last, if it was long after the first.
    pub(in crate::communicator) fn called_last(&self, key: &OpKey) -> Option<(PeerId, Duration)> {
        let state = lock(&self.state);
        let told = state.called_last.iter().find(|(told, ..)| told == key);
        told.map(|(_, peer, behind)| (*peer, *behind))
    }

    /// A member's name and id, for people.
    pub(in crate::communicator) fn name_of(&self, peer: PeerId) -> String {
        let seen = self.seen();
        let name = seen.peers.iter().find(|known| known.id == peer).map(|known| known.name.clone());
        let name = name.or_else(|| self.news.name_of(peer));
        name.map_or_else(|| peer.short(), |name| format!("{name} {}", peer.short()))
    }

    /// An error of a call with what only this side knows: where the coordinator was looked for, and for how long.
    pub(in crate::communicator) fn explained(&self, error: Error) -> Error {
        if error.cause() != Some(&CallError::Out(OutReason::CoordinatorLost)) {
            return error;
        }
        let state = lock(&self.state);
        let last = state.unreached.as_ref().map(|unreached| format!("; last: {unreached}"));
        let (address, limit) = (&self.coordinator, seconds(state.session.config().control_lost_after));
        let last = last.unwrap_or_default();
        let text = format!("nothing answered at {address} for {limit} (control_lost_after){last}");
        drop(state);
        error.knowing(text)
    }

    /// Why a peer went that was a member not long ago.
    pub(in crate::communicator) fn departure(&self, peer: PeerId) -> Option<LossReason> {
        lock(&self.state).session.departure(peer)
    }

    /// Whether a peer that a link was lost to is no member soon. If it is alive it answers within the time after
    /// which a link counts as silent, and nothing is waited for beyond that or beyond `deadline`.
    pub(in crate::communicator) fn is_gone_soon(&self, peer: PeerId, deadline: std::time::Instant) -> bool {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let is_here =
            |state: &mut State| state.session.record().is_some_and(|record| record.rank_of(peer).is_some());
        let state = lock(&self.state);
        let mut state = sleep_while(&self.epoch_opened, state, left.min(self.silent_after), is_here);
        !is_here(&mut state)
    }
}

fn seen_of(record: &EpochRecord, me: PeerId, session: &Session) -> SeenGroup {
    SeenGroup {
        rank: record.rank_of(me).unwrap_or(0),
        epoch: record.epoch,
        global_world_size: session.global_world_size(),
        peers: record
            .roster
            .iter()
            .enumerate()
            .map(|(rank, info)| Peer {
                id: info.id,
                rank,
                group: record.group,
                name: info.name.clone(),
                address: info.address,
                health: "unknown",
            })
            .collect(),
    }
}
