//! Groups: their epochs, their rings, and the links that the rings are made of.
//!
//! An epoch fixes roster, ring and decider (rule 1). A loss makes a smaller epoch at once, without anybody's
//! vote; newcomers come in by a vote only. Links report to us; a link that was blamed twice, or that could
//! not be dialled, counts as broken, and the next ring avoids it. If no ring exists, the end of a broken link
//! that fewer can reach leaves, the younger one if equal (rule 16): a retry must differ from what failed.

use super::ops::TagState;
use super::peers::Phase;
use super::rebuild::Rebuild;
use super::ring;
use super::run::{Note, Run, Timer};
use crate::collective::{Group, GroupEpoch, Scope, Tag};
use crate::id::PeerId;
use crate::time::Instant;
use crate::wire::control::{AbortReason, Decider, EpochRecord, LossReason, ToPeer};
use std::collections::{BTreeMap, BTreeSet};

/// A link that was blamed this often for an abort counts as broken.
const BLAMES_MAX: u32 = 2;

/// A link that was reported broken a moment ago.
#[derive(Clone, Debug)]
struct Settling {
    until: Instant,
    reason: AbortReason,
}

/// One group.
#[derive(Debug, Default)]
pub(super) struct GroupState {
    pub(super) epoch: GroupEpoch,
    /// In the order of ranks.
    pub(super) roster: Vec<PeerId>,
    pub(super) ring: Vec<PeerId>,
    /// Who has not reported its link of this epoch yet.
    pub(super) unconfirmed: BTreeSet<PeerId>,
    pub(super) broken: BTreeSet<(PeerId, PeerId)>,
    blames: BTreeMap<(PeerId, PeerId), u32>,
    pub(super) tags: BTreeMap<(Scope, Tag), TagState>,
    /// A broken link was reported; its ends have some time to be noticed as lost.
    settling: Option<Settling>,
    /// Members that were told to wait after an abort.
    waiting: bool,
    pub(super) rebuild: Option<Rebuild>,
    /// Changes that no epoch has told yet, because no ring could be made for it.
    untold: (Vec<PeerId>, Vec<(PeerId, LossReason)>),
}

impl GroupState {
    pub(super) fn has_open_ops(&self) -> bool {
        self.tags.values().any(|tag| tag.open.is_some())
    }
}

impl Run {
    pub(super) fn global_world_size(&self) -> u32 {
        self.groups.values().map(|group| group.roster.len() as u32).sum()
    }

    /// The members of a group went; the rest goes on in a new epoch.
    pub(super) fn shrink_group(&mut self, now: Instant, group: Group, left: &[(PeerId, LossReason)]) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        let gone: BTreeSet<_> = left.iter().map(|(peer, _)| *peer).collect();
        let roster: Vec<_> = state.roster.iter().copied().filter(|peer| !gone.contains(peer)).collect();
        for peer in &gone {
            state.tags.values_mut().for_each(|tag| tag.forget(*peer));
            state.broken.retain(|(a, b)| a != peer && b != peer);
            state.blames.retain(|(a, b), _| a != peer && b != peer);
        }
        if let Some(rebuild) = &mut state.rebuild {
            rebuild.without(&gone);
        }
        self.open_epoch(now, group, roster, Vec::new(), left.to_vec());
    }

    /// Ends the group's epoch and begins the next. Survivors keep their relative order (rule 3).
    pub(super) fn open_epoch(
        &mut self,
        now: Instant,
        group: Group,
        roster: Vec<PeerId>,
        joined: Vec<PeerId>,
        mut left: Vec<(PeerId, LossReason)>,
    ) {
        let state = self.groups.entry(group).or_default();
        if state.rebuild.is_some() {
            // Nothing is decided before everybody has resumed or gone; then one epoch says it all.
            state.roster = roster;
            if let Some(rebuild) = &mut state.rebuild {
                rebuild.left.append(&mut left);
            }
            return self.try_finish_rebuild(now, group);
        }
        let reason =
            if left.is_empty() { AbortReason::EpochOver } else { AbortReason::PeersLost(left.clone()) };
        self.abort_all(now, group, &reason);

        let state = self.groups.entry(group).or_default();
        state.tags.retain(|_, tag| tag.next_epoch());
        for tag in state.tags.values_mut() {
            joined.iter().for_each(|peer| tag.begin(*peer));
        }
        // The order of the ring is kept for those who stay; newcomers come last.
        let mut order: Vec<_> = state.ring.iter().copied().filter(|peer| roster.contains(peer)).collect();
        order.extend(roster.iter().copied().filter(|peer| !state.ring.contains(peer)));
        let Some(ring) = ring::plan(&order, &state.broken) else {
            state.roster = roster;
            state.ring = order;
            state.untold.0.extend(joined);
            state.untold.1.extend(left);
            return self.give_up_unreachable(now, group);
        };
        let (mut came, mut went) = std::mem::take(&mut state.untold);
        came.extend(joined);
        came.retain(|peer| roster.contains(peer));
        went.extend(left);
        state.epoch += 1;
        state.roster = roster;
        state.ring = ring;
        state.unconfirmed = state.roster.iter().copied().collect();
        state.settling = None;
        state.waiting = false;
        let (epoch, size) = (state.epoch, state.roster.len());
        self.note(Note::Epoch(group, epoch, size));
        let record = self.record(group, came, went);
        for peer in self.groups[&group].roster.clone() {
            self.tell(peer, ToPeer::Epoch(record.clone()));
        }
    }

    /// The group's epoch as it is told to a member.
    pub(super) fn record(
        &self,
        group: Group,
        joined: Vec<PeerId>,
        left: Vec<(PeerId, LossReason)>,
    ) -> EpochRecord {
        let state = &self.groups[&group];
        let rank: BTreeMap<_, _> =
            state.roster.iter().enumerate().map(|(rank, peer)| (*peer, rank as u32)).collect();
        EpochRecord {
            run_epoch: self.run_epoch,
            group,
            epoch: state.epoch,
            roster: state.roster.iter().filter_map(|peer| Some(self.peers.get(peer)?.info.clone())).collect(),
            ring: state.ring.iter().map(|peer| rank[peer]).collect(),
            decider: Decider::Coordinator,
            global_world_size: self.global_world_size(),
            joined,
            left,
        }
    }

    /// No ring exists: of the ends of broken links, the one that fewest can reach leaves.
    fn give_up_unreachable(&mut self, now: Instant, group: Group) {
        let state = &self.groups[&group];
        let reach = |peer: PeerId| {
            let usable = |other: &&PeerId| {
                **other != peer
                    && !state.broken.contains(&(peer, **other))
                    && !state.broken.contains(&(**other, peer))
            };
            state.roster.iter().filter(usable).count()
        };
        let age = |peer: PeerId| self.peers.get(&peer).map_or(0, |peer| peer.age);
        let ends: BTreeSet<_> = state.broken.iter().flat_map(|(a, b)| [*a, *b]).collect();
        let victim = ends
            .into_iter()
            .filter(|peer| state.roster.contains(peer))
            .min_by_key(|peer| (reach(*peer), std::cmp::Reverse(age(*peer))));
        let Some(victim) = victim else { return };
        self.lose(now, victim, LossReason::Unreachable);
    }

    /// A member's link to its successor is up.
    pub(super) fn link_up(&mut self, now: Instant, peer: PeerId, group: Group, epoch: GroupEpoch) {
        let Some(state) = self.groups.get_mut(&group).filter(|state| state.epoch == epoch) else {
            self.counters.stale += 1;
            return;
        };
        // It answers the epoch, so it has everything that was said before it.
        state.tags.values_mut().for_each(|tag| tag.learned_all(peer));
        if state.unconfirmed.remove(&peer) && state.unconfirmed.is_empty() {
            self.try_topology(now);
        }
    }

    /// A data link broke. The attempts that use it are aborted; nobody is condemned.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn link_broken(
        &mut self,
        now: Instant,
        reporter: PeerId,
        group: Group,
        epoch: GroupEpoch,
        link: (PeerId, PeerId),
        dialling: bool,
        error: &str,
    ) {
        if reporter != link.0 && reporter != link.1 {
            return self.kick(now, reporter, "reported a link that is not its own");
        }
        let Some(state) = self.groups.get_mut(&group).filter(|state| state.epoch == epoch) else {
            self.counters.stale += 1;
            return;
        };
        if !state.ring.contains(&link.0) || !state.ring.contains(&link.1) {
            return;
        }
        let (from, to) = link;
        if state.settling.is_none() {
            // One break is reported by both ends and by every collective on it: that is one blame.
            let blames = state.blames.entry(link).or_default();
            *blames += if dialling { BLAMES_MAX } else { 1 };
            if *blames >= BLAMES_MAX {
                state.broken.insert(link);
            }
        }
        let until = now + self.config.link_settle;
        let reason = AbortReason::LinkBroken { from, to, error: error.to_owned() };
        state.settling.get_or_insert(Settling { until, reason: reason.clone() });
        self.abort_all(now, group, &reason);
        self.schedule(until, Timer::LinkSettle(group));
    }

    /// The ends of a broken link had their time to be noticed as lost. If they are all here, go on: with the
    /// same ring once, with another one if the link is broken for good.
    pub(super) fn settle(&mut self, now: Instant, group: Group) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        if state.rebuild.is_some() {
            return;
        }
        if state.settling.as_ref().is_some_and(|settling| now < settling.until) {
            return;
        }
        state.settling = None;
        let ring = &state.ring;
        let uses_broken = (0..ring.len())
            .any(|at| ring.len() > 1 && state.broken.contains(&(ring[at], ring[(at + 1) % ring.len()])));
        let roster = state.roster.clone();
        if roster.iter().any(|peer| self.peers.get(peer).is_some_and(|peer| peer.lost_since.is_some())) {
            return; // It resumes or is evicted; either settles it.
        }
        if uses_broken {
            self.open_epoch(now, group, roster, Vec::new(), Vec::new());
        } else {
            self.proceed(group);
        }
    }

    /// Members that wait after an abort may go on in the same epoch.
    fn proceed(&mut self, group: Group) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        if !std::mem::take(&mut state.waiting) {
            return;
        }
        let epoch = state.epoch;
        for peer in state.roster.clone() {
            self.tell(peer, ToPeer::Proceed { group, epoch });
        }
    }

    /// A collective of the whole group went around the ring: what its links were blamed for is made good.
    /// Otherwise every link of a long run would collect its two blames in the end.
    pub(super) fn forgive_links(&mut self, group: Group) {
        if let Some(state) = self.groups.get_mut(&group) {
            state.blames.clear();
        }
    }

    /// After such an abort members wait for `Proceed` or a new epoch before they retry.
    pub(super) fn make_wait(&mut self, group: Group) {
        if let Some(state) = self.groups.get_mut(&group) {
            state.waiting = true;
        }
    }

    /// Why an attempt in this scope could not succeed now, if so.
    pub(super) fn unsettled(&self, group: Group, scope: &Scope) -> Option<AbortReason> {
        let state = self.groups.get(&group)?;
        let listed = match scope {
            Scope::Whole => &state.roster,
            Scope::Members(members) => members,
        };
        let away = |peer: &PeerId| {
            !state.roster.contains(peer) || self.peers.get(peer).is_none_or(|peer| peer.lost_since.is_some())
        };
        let lost: Vec<_> =
            listed.iter().copied().filter(away).map(|peer| (peer, LossReason::Disconnected)).collect();
        match &state.settling {
            _ if !lost.is_empty() => Some(AbortReason::PeersLost(lost)),
            Some(settling) => Some(settling.reason.clone()),
            None => None,
        }
    }

    /// The accepted peers of the whole run.
    pub(super) fn accepted(&self) -> impl Iterator<Item = (&PeerId, &super::peers::Peer)> {
        self.peers.iter().filter(|(_, peer)| peer.phase == Phase::Accepted)
    }
}
