//! Groups: their epochs, their rings, and the links that the rings are made of.
//!
//! An epoch fixes roster, ring and decider (rule 1). A loss makes a smaller epoch at once, without anybody's
//! vote; newcomers come in by a vote only. Links report to us; a link that was blamed twice, or that could
//! not be dialled, counts as broken, and the next ring avoids it. If no ring exists, the end of a broken link
//! that fewer can reach leaves, the younger one if equal (rule 16): a retry must differ from what failed.

use super::ops::TagState;
use super::peers::{Peer, Phase};
use super::rebuild::Rebuild;
use super::returning::Returning;
use super::run::{Note, Run, Timer};
use super::usage::Usage;
use crate::collective::{Group, GroupEpoch, Scope, Tag, around};
use crate::id::PeerId;
use crate::limits::{BROKEN_LINKS_MAX, MEMBERS_MAX, NAMED_MAX};
use crate::time::{Duration, Instant};
use crate::wire::control::{AbortReason, Decider, EpochRecord, LossReason, Rounds, ToPeer};
use std::collections::{BTreeMap, BTreeSet};

/// A link that was blamed this often for an abort counts as broken.
const BLAMES_MAX: u32 = 2;

/// Links that were reported broken a moment ago, and what the system said of each.
#[derive(Clone, Debug, Hash)]
struct Settling {
    until: Instant,
    links: BTreeMap<(PeerId, PeerId), String>,
}

/// One group.
#[derive(Clone, Debug, Hash)]
pub(super) struct GroupState {
    pub(super) epoch: GroupEpoch,
    pub(super) founder: PeerId,
    /// In the order of ranks.
    pub(super) roster: Vec<PeerId>,
    /// How many of them, the first ones, were in a roster that gave a commit of the whole group (rule 42).
    pub(super) incumbents: usize,
    pub(super) ring: Vec<PeerId>,
    /// Members without a connection.
    pub(super) away: BTreeSet<PeerId>,
    /// Members with a standing vote for newcomers.
    pub(super) voters: BTreeSet<PeerId>,
    pub(super) rounds: Rounds,
    /// Who has not reported its link of this epoch yet.
    pub(super) unconfirmed: BTreeSet<PeerId>,
    pub(super) broken: BTreeSet<(PeerId, PeerId)>,
    /// Those that this epoch's record tells: all its members plan by the same list.
    pub(super) broken_told: BTreeSet<(PeerId, PeerId)>,
    /// Whether there are some that it does not.
    broken_untold: bool,
    blames: BTreeMap<(PeerId, PeerId), u32>,
    pub(super) tags: BTreeMap<(Scope, Tag), TagState>,
    /// How many of them each member uses in this epoch.
    pub(super) usage: Usage,
    /// How many have an open attempt.
    pub(super) open_ops: usize,
    /// Some reduce while others vote for newcomers: when it is judged who deviates.
    pub(super) mixed_at: Option<Instant>,
    /// A broken link was reported; its ends have some time to be noticed as lost.
    settling: Option<Settling>,
    /// The size of the whole run that its members were told last.
    pub(super) world_told: u32,
    /// Whether it is known from its members' resumes.
    pub(super) rebuilt: bool,
    /// Members that were told to wait after an abort.
    waiting: bool,
    /// Members that came back and were not told to go on yet (rule 43).
    pub(super) returning: BTreeMap<PeerId, Returning>,
    /// The roster has changed and no epoch says so yet, because no ring was found for it: what is known of the
    /// present epoch may not be told to anybody who does not know it.
    unopened: bool,
    pub(super) rebuild: Option<Rebuild>,
    /// Changes that no epoch has told yet, because no ring could be made for it.
    untold: (Vec<PeerId>, Vec<(PeerId, LossReason)>),
}

impl GroupState {
    pub(super) fn new(founder: PeerId, epoch: GroupEpoch) -> Self {
        Self {
            epoch,
            founder,
            roster: Vec::new(),
            incumbents: 0,
            ring: Vec::new(),
            away: BTreeSet::new(),
            voters: BTreeSet::new(),
            rounds: Rounds::default(),
            unconfirmed: BTreeSet::new(),
            broken: BTreeSet::new(),
            broken_told: BTreeSet::new(),
            broken_untold: false,
            blames: BTreeMap::new(),
            tags: BTreeMap::new(),
            usage: Usage::default(),
            open_ops: 0,
            mixed_at: None,
            settling: None,
            world_told: 0,
            rebuilt: false,
            waiting: false,
            returning: BTreeMap::new(),
            unopened: false,
            rebuild: None,
            untold: (Vec::new(), Vec::new()),
        }
    }

    pub(super) fn footprint(&self) -> usize {
        let tags: usize = self.tags.values().map(TagState::footprint).sum();
        let settling = self.settling.as_ref().map_or(0, |settling| settling.links.len());
        let untold = self.untold.0.len() + self.untold.1.len();
        let used = self.usage.footprint();
        self.roster.len() + 2 * self.broken.len() + self.blames.len() + tags + settling + untold + used
    }

    /// All links of the ring carried a collective to its end: what they were blamed for is forgiven. What goes
    /// straight between members uses other links, too, and of those nothing was shown.
    pub(super) fn forgive_links(&mut self) {
        let ring = &self.ring;
        if !self.blames.is_empty() {
            for (at, from) in ring.iter().enumerate() {
                self.blames.remove(&(*from, ring[(at + 1) % ring.len()]));
            }
        }
    }

    /// Members who were there first, of those whom a scope involves (rule 42).
    pub(super) fn incumbents_in(&self, scope: &Scope) -> BTreeSet<PeerId> {
        self.roster.iter().take(self.incumbents).copied().filter(|peer| scope.involves(*peer)).collect()
    }

    /// Whether the epoch's record is what its members agreed on.
    pub(super) fn is_tellable(&self) -> bool {
        self.rebuild.is_none() && !self.unopened
    }

    /// Whether attempts can succeed, for all that is known.
    pub(super) fn is_settled(&self) -> bool {
        self.is_tellable() && self.away.is_empty() && self.settling.is_none()
    }

    /// Whether members were told to wait; they are told to go on now.
    pub(super) fn take_waiting(&mut self) -> bool {
        std::mem::take(&mut self.waiting)
    }

    fn uses_broken(&self) -> bool {
        let ring = &self.ring;
        ring.len() > 1
            && (0..ring.len()).any(|at| self.broken.contains(&(ring[at], ring[(at + 1) % ring.len()])))
    }
}

impl Run {
    pub(super) fn global_world_size(&self) -> u32 {
        self.groups.values().map(|group| group.roster.len() as u32).sum()
    }

    /// Whether `peer` is an accepted member of that group.
    pub(super) fn is_member(&self, peer: PeerId, group: Group) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.phase == Phase::Accepted && peer.group == group)
    }

    /// Members of a group went; the rest goes on in a new epoch.
    pub(super) fn shrink_group(&mut self, now: Instant, group: Group, left: Vec<(PeerId, LossReason)>) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        self.world_changed = true;
        let gone: BTreeSet<_> = left.iter().map(|(peer, _)| *peer).collect();
        let roster: Vec<_> = state.roster.iter().copied().filter(|peer| !gone.contains(peer)).collect();
        state.away.retain(|peer| !gone.contains(peer));
        state.voters.retain(|peer| !gone.contains(peer));
        state.unconfirmed.retain(|peer| !gone.contains(peer));
        state.returning.retain(|peer, _| !gone.contains(peer));
        state.broken.retain(|(a, b)| !gone.contains(a) && !gone.contains(b));
        state.blames.retain(|(a, b), _| !gone.contains(a) && !gone.contains(b));
        if let Some(rebuild) = &mut state.rebuild {
            // Nothing is decided before everybody has resumed or gone; then one epoch says it all.
            rebuild.without(left);
            state.roster = roster;
            return self.try_finish_rebuild(now, group);
        }
        self.open_epoch(group, roster, Vec::new(), left);
    }

    /// Ends the group's epoch and begins the next. Survivors keep their relative order (rule 3).
    pub(super) fn open_epoch(
        &mut self,
        group: Group,
        roster: Vec<PeerId>,
        joined: Vec<PeerId>,
        left: Vec<(PeerId, LossReason)>,
    ) {
        let reason = if left.is_empty() { AbortReason::Void } else { AbortReason::PeersLost(left.clone()) };
        self.abort_all(group, &reason);
        let Some(&first) = roster.first() else {
            // Nobody is left to tell. Should the group be founded again, its numbers go on.
            if let Some(state) = self.groups.remove(&group) {
                self.epoch_floor = self.epoch_floor.max(state.epoch);
            }
            self.world_changed = true;
            return;
        };
        let floor = self.epoch_floor;
        let state = self.groups.entry(group).or_insert_with(|| GroupState::new(first, floor));
        for tag in state.tags.values_mut() {
            left.iter().for_each(|(peer, _)| tag.forget(*peer));
        }
        // The order of the ring is kept for those who stay; newcomers come last.
        let members: BTreeSet<_> = roster.iter().copied().collect();
        let placed: BTreeSet<_> = state.ring.iter().copied().collect();
        let mut order: Vec<_> = state.ring.iter().copied().filter(|peer| members.contains(peer)).collect();
        order.extend(roster.iter().copied().filter(|peer| !placed.contains(peer)));
        // Whoever stays keeps its place before whoever comes, so the incumbents remain a prefix (rule 42).
        state.incumbents =
            state.roster[..state.incumbents].iter().filter(|peer| members.contains(peer)).count();
        state.roster = roster;
        // A stream needs both directions of a path: the way back of a broken link is used only if it must be.
        let shunned = state.broken.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect();
        let ring = around::plan(&order, &shunned).or_else(|| around::plan(&order, &state.broken));
        let Some(ring) = ring else {
            state.ring = order;
            state.unopened = true;
            state.untold.0.extend(joined);
            state.untold.1.extend(left);
            return self.give_up_unreachable(group);
        };
        // Only now the old epoch is over. Before that, its numbers are still those by which its members are judged.
        state.tags.retain(|_, tag| tag.next_epoch());
        state.usage = Usage::default();
        state.unopened = false;
        let (mut came, mut went) = std::mem::take(&mut state.untold);
        came.extend(joined);
        came.retain(|peer| members.contains(peer));
        went.extend(left);
        state.epoch += 1;
        state.ring = ring;
        state.unconfirmed = members;
        state.settling = None;
        state.waiting = false;
        state.broken_told = state.broken.clone();
        state.broken_untold = false;
        let (epoch, size) = (state.epoch, state.roster.len());
        self.note(Note::Epoch(group, epoch, size));
        let record = self.record(group, came, went);
        if let Some(state) = self.groups.get_mut(&group) {
            state.world_told = record.global_world_size;
        }
        let roster = self.groups[&group].roster.clone();
        self.tell_all(&roster, ToPeer::Epoch(record));
        self.heard_epoch(group);
        self.release(group);
        self.world_changed = true;
    }

    /// Tells the members of groups that stay as they are how large the run is now. Without it they would learn it only
    /// from the next epoch of their own, or from a vote. A coordinator that was just started may not know all groups
    /// yet: what its members knew counts, until the others have had their time to come back.
    pub(super) fn tell_world(&mut self, now: Instant) {
        let (run_epoch, global_world_size) = (self.run_epoch, self.global_world_size());
        let known_by = self.born.map_or(now, |born| born + self.config.control_lost_after);
        let (mut told, mut later) = (Vec::new(), false);
        for state in self.groups.values_mut().filter(|state| state.rebuild.is_none()) {
            if state.rebuilt && global_world_size < state.world_told && now < known_by {
                later = true;
            } else if std::mem::replace(&mut state.world_told, global_world_size) != global_world_size {
                told.extend_from_slice(&state.roster);
            }
        }
        if later {
            self.schedule(known_by, Timer::World);
        }
        self.tell_all(&told, ToPeer::World { run_epoch, global_world_size });
    }

    /// The group's epoch as it is told to a member.
    pub(super) fn record(
        &self,
        group: Group,
        mut joined: Vec<PeerId>,
        mut left: Vec<(PeerId, LossReason)>,
    ) -> EpochRecord {
        let state = &self.groups[&group];
        joined.truncate(MEMBERS_MAX);
        left.truncate(MEMBERS_MAX);
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
            rounds: state.rounds,
            founder: state.founder,
            broken: state
                .broken_told
                .iter()
                .filter_map(|(from, to)| Some((*rank.get(from)?, *rank.get(to)?)))
                .take(BROKEN_LINKS_MAX)
                .collect(),
            incumbents: state.incumbents as u32,
        }
    }

    /// No ring exists: of the ends of broken links, the one that fewest can reach leaves.
    fn give_up_unreachable(&mut self, group: Group) {
        let state = &self.groups[&group];
        let members: BTreeSet<_> = state.roster.iter().copied().collect();
        // Whom a broken link in either direction separates it from.
        let mut cut_from: BTreeMap<PeerId, BTreeSet<PeerId>> = BTreeMap::new();
        for (a, b) in state.broken.iter().filter(|(a, b)| members.contains(a) && members.contains(b)) {
            cut_from.entry(*a).or_default().insert(*b);
            cut_from.entry(*b).or_default().insert(*a);
        }
        // Of whom there are doubts already, because it is away or the health plane does not call it alive, is
        // reached by fewer still.
        let rank =
            |peer: &PeerId| self.peers.get(peer).map_or((true, 0), |peer| (peer.is_doubtful(), peer.age));
        let victim = cut_from.iter().max_by_key(|(peer, cut)| {
            let (doubtful, age) = rank(peer);
            (doubtful, cut.len(), age)
        });
        let victim = victim.map(|(peer, _)| *peer);
        if let Some(victim) = victim {
            self.lose(victim, LossReason::Unreachable);
        }
    }

    /// A member's link to its successor is up.
    pub(super) fn link_up(&mut self, peer: PeerId, group: Group, epoch: GroupEpoch) {
        if !self.is_member(peer, group) {
            return self.kick(peer, &format!("reported links of group {group}, of which it is no member"));
        }
        let Some(state) = self.groups.get_mut(&group).filter(|state| state.epoch == epoch) else {
            self.counters.stale += 1;
            return;
        };
        // It answers the epoch, so it has everything that was said before the epoch.
        state.tags.values_mut().for_each(|tag| tag.learned_before(peer, epoch, 0));
        if state.unconfirmed.remove(&peer) && state.unconfirmed.is_empty() {
            self.count_topology = true;
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
        let (from, to) = link;
        if (reporter != from && reporter != to) || from == to || !self.is_member(reporter, group) {
            return self.kick(reporter, "reported a link that is not its own");
        }
        let both = self.is_member(from, group) && self.is_member(to, group);
        // A stopped process takes no connections and a silent host answers none: that says nothing about the
        // link. Whether such a peer stays is for its health to say (rule 20), and nobody is unreachable before.
        let doubtful = [from, to].iter().any(|end| self.peers.get(end).is_some_and(Peer::is_doubtful));
        let until = now + self.config.link_settle;
        let Some(state) = self.groups.get_mut(&group).filter(|state| state.epoch == epoch && both) else {
            self.counters.stale += 1;
            return;
        };
        // Known to be broken before it was tried now.
        let known = !doubtful && state.broken.contains(&link);
        let settling = state.settling.get_or_insert(Settling { until, links: BTreeMap::new() });
        let until = settling.until;
        if settling.links.len() < NAMED_MAX && settling.links.insert(link, error.to_owned()).is_none() {
            // One break is reported by both ends and by every collective on it: that is one blame.
            let blames = state.blames.entry(link).or_default();
            *blames += match (doubtful, dialling) {
                (true, _) => 0,
                (false, true) => BLAMES_MAX,
                (false, false) => 1,
            };
            if *blames >= BLAMES_MAX {
                state.broken_untold |= state.broken.insert(link);
            }
        }
        let reason = AbortReason::LinkBroken { from, to, error: error.to_owned() };
        for key in self.open_keys(group, |scope, _| scope.involves(from) && scope.involves(to)) {
            if known && !self.has_way(group, &key.scope) {
                self.abort(&key, AbortReason::NoPath { from, to });
            } else {
                self.abort(&key, reason.clone());
            }
        }
        self.schedule(until, Timer::LinkSettle(group));
    }

    /// Whether the members in scope have a ring among themselves that avoids the broken links.
    fn has_way(&self, group: Group, scope: &Scope) -> bool {
        let Some(state) = self.groups.get(&group) else { return false };
        let members: Vec<_> = state.ring.iter().copied().filter(|peer| scope.involves(*peer)).collect();
        around::plan(&members, &state.broken).is_some()
    }

    /// The ends of a broken link had their time to be noticed as lost. If they are all here, go on: with the
    /// same ring once, with another one if the link is broken for good. As long as the health plane doubts an end,
    /// an attempt would only fail again, and nobody could say yet whether a link or a peer was lost (rule 8): the
    /// doubt is waited for, and no longer than it can last.
    pub(super) fn settle(&mut self, now: Instant, group: Group) {
        let Some(state) = self.groups.get_mut(&group).filter(|state| state.rebuild.is_none()) else { return };
        if let Some(settling) = &state.settling {
            let doubtful = |end: &PeerId| self.peers.get(end).is_some_and(Peer::is_doubtful);
            let in_doubt = settling.links.keys().any(|(a, b)| doubtful(a) || doubtful(b));
            let until = settling.until + if in_doubt { self.config.dead_after } else { Duration::ZERO };
            if now < until {
                return self.schedule(until, Timer::LinkSettle(group));
            }
        }
        state.settling = None;
        if !state.away.is_empty() {
            return; // They resume or are evicted; either settles it.
        }
        // What goes straight between members must go around it, too, and all must know (rule 16).
        if state.uses_broken() || state.broken_untold {
            let roster = state.roster.clone();
            return self.open_epoch(group, roster, Vec::new(), Vec::new());
        }
        self.release(group);
    }

    /// Whether a link of the group was reported broken, and nothing was concluded from it yet.
    pub(super) fn is_settling(&self, group: Group) -> bool {
        self.groups.get(&group).is_some_and(|state| state.settling.is_some())
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
        let away = state.away.iter().filter(|peer| scope.involves(**peer));
        let lost: Vec<_> = away.map(|peer| (*peer, LossReason::Disconnected)).collect();
        if !lost.is_empty() {
            return Some(AbortReason::PeersLost(lost));
        }
        let mut links = state.settling.iter().flat_map(|settling| &settling.links);
        let ((from, to), error) = links.find(|((a, b), _)| scope.involves(*a) && scope.involves(*b))?;
        Some(AbortReason::LinkBroken { from: *from, to: *to, error: error.clone() })
    }
}
