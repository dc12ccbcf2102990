//! Collectives: calls, votes, verdicts.
//!
//! One (scope, tag) has at most one open attempt. The first call opens it; Complete from everybody in scope
//! commits it; anything that makes that impossible aborts it. A verdict is written once and kept until every
//! member is known to have it (rule 18), so that whoever was disconnected learns it later, in order.

use super::run::{Run, Timer};
use crate::collective::{Fingerprint, Group, GroupEpoch, OpKey, OpKind, Scope, Seq, Tag};
use crate::id::PeerId;
use crate::limits::{OPEN_TAGS_MAX, UNCLAIMED_MAX};
use crate::time::{Duration, Instant};
use crate::wire::control::{AbortReason, LossReason, Refusal, ToPeer, Verdict, Waiting};
use std::collections::{BTreeMap, VecDeque};

/// One member's vote in an attempt.
#[derive(Clone, Debug)]
pub(super) struct Vote {
    /// Index into the attempt's fingerprints.
    call: usize,
    pub(super) complete: bool,
}

/// One open attempt.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) opened: Instant,
    pub(super) deadline: Instant,
    pub(super) votes: BTreeMap<PeerId, Vote>,
    completes: usize,
    /// The different calls that were made; one if all agree.
    pub(super) calls: Vec<Fingerprint>,
    /// Calls differ: when it is judged who deviates.
    judged_at: Option<Instant>,
}

/// A verdict that not everybody is known to have.
#[derive(Clone, Debug)]
struct Kept {
    serial: u64,
    key: OpKey,
    verdict: Verdict,
    unknowing: u32,
}

/// One (scope, tag).
#[derive(Clone, Debug, Default)]
pub(super) struct TagState {
    pub(super) next_seq: Seq,
    pub(super) open: Option<Op>,
    kept: VecDeque<Kept>,
    /// Up to which verdict each member is known to have learned.
    cursors: BTreeMap<PeerId, u64>,
    serial: u64,
}

impl TagState {
    pub(super) fn keep(&mut self, key: OpKey, verdict: Verdict, members: usize) {
        self.serial += 1;
        self.kept.push_back(Kept { serial: self.serial, key, verdict, unknowing: members as u32 });
    }

    fn advance(&mut self, peer: PeerId, to: u64) {
        let from = self.cursors.insert(peer, to).unwrap_or(0);
        for kept in &mut self.kept {
            if kept.serial > from && kept.serial <= to {
                kept.unknowing = kept.unknowing.saturating_sub(1);
            }
        }
        while self.kept.front().is_some_and(|kept| kept.unknowing == 0) {
            self.kept.pop_front();
        }
    }

    /// A peer joins: what was before is not its business.
    pub(super) fn begin(&mut self, peer: PeerId) {
        self.cursors.insert(peer, self.serial);
    }

    /// A peer has everything that was written so far.
    pub(super) fn learned_all(&mut self, peer: PeerId) {
        let to = self.serial;
        self.advance(peer, to);
    }

    /// A peer knows the verdict on that attempt and those before it.
    pub(super) fn learned(&mut self, peer: PeerId, epoch: GroupEpoch, seq: Seq) {
        let known = |kept: &&Kept| (kept.key.epoch, kept.key.seq) <= (epoch, seq);
        if let Some(to) = self.kept.iter().take_while(known).last().map(|kept| kept.serial)
            && self.cursors.get(&peer).is_none_or(|at| *at < to)
        {
            self.advance(peer, to);
        }
    }

    /// A peer is gone; nothing is kept for it.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.learned_all(peer);
        self.cursors.remove(&peer);
    }

    /// The group's epoch ends: numbering restarts. False if nothing is left to remember.
    pub(super) fn next_epoch(&mut self) -> bool {
        self.next_seq = 0;
        !self.kept.is_empty()
    }

    /// What a peer that comes back has not learned yet, in order.
    pub(super) fn unlearned(&self, peer: PeerId) -> Vec<(OpKey, Verdict)> {
        let from = self.cursors.get(&peer).copied().unwrap_or(0);
        let unlearned = self.kept.iter().filter(|kept| kept.serial > from);
        unlearned.map(|kept| (kept.key.clone(), kept.verdict.clone())).collect()
    }
}

impl Run {
    fn tag(&mut self, key: &OpKey) -> Option<&mut TagState> {
        let state = self.groups.get_mut(&key.group).filter(|state| state.epoch == key.epoch)?;
        state.tags.get_mut(&(key.scope.clone(), key.tag))
    }

    /// The members of a group that a scope involves.
    pub(super) fn members_in(&self, group: Group, scope: &Scope) -> Vec<PeerId> {
        let Some(state) = self.groups.get(&group) else { return Vec::new() };
        state.roster.iter().copied().filter(|peer| scope.involves(*peer)).collect()
    }

    /// A member's program made a call.
    pub(super) fn initiate(
        &mut self,
        now: Instant,
        from: PeerId,
        key: OpKey,
        fingerprint: Fingerprint,
        timeout_ms: u64,
    ) {
        let Some(state) = self.groups.get_mut(&key.group).filter(|state| state.roster.contains(&from)) else {
            return self.kick(
                now,
                from,
                &format!("initiated in group {}, of which it is no member", key.group),
            );
        };
        if key.epoch > state.epoch || !key.scope.involves(from) {
            let text = format!("initiated {key}, the group is in epoch {}", state.epoch);
            return self.kick(now, from, &text);
        }
        if key.epoch < state.epoch {
            self.counters.stale += 1;
            return; // The new epoch is on its way to it.
        }
        let place = (key.scope.clone(), key.tag);
        if !state.tags.contains_key(&place) && state.tags.len() >= OPEN_TAGS_MAX {
            return self.kick(now, from, &format!("uses more than {OPEN_TAGS_MAX} tags at once"));
        }
        let tag = state.tags.entry(place).or_default();
        if key.seq < tag.next_seq {
            self.counters.stale += 1;
            return; // Its verdict is on its way to it.
        }
        if key.seq > tag.next_seq {
            let text = format!("initiated {key} while seq {} is next", tag.next_seq);
            return self.kick(now, from, &text);
        }
        let words = format!("{fingerprint}");
        if let Some(before) = key.seq.checked_sub(1) {
            tag.learned(from, key.epoch, before);
        }
        let deadline = now + Duration::from_millis(timeout_ms);
        let op = tag.open.get_or_insert_with(|| Op {
            opened: now,
            deadline,
            votes: BTreeMap::new(),
            completes: 0,
            calls: Vec::new(),
            judged_at: None,
        });
        op.deadline = op.deadline.min(deadline);
        let call = op.calls.iter().position(|known| *known == fingerprint).unwrap_or_else(|| {
            op.calls.push(fingerprint);
            op.calls.len() - 1
        });
        op.votes.entry(from).or_insert(Vote { call, complete: false });
        if op.calls.len() > 1 && op.judged_at.is_none() {
            op.judged_at = Some(now + self.config.mismatch_settle);
        }
        let mut wake = op.deadline;
        if let Some(judged_at) = op.judged_at {
            wake = wake.min(judged_at);
        }
        self.schedule(wake, Timer::Ops(key.group));
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.last_call = (words, now);
            peer.vote = None; // Whoever reduces no longer waits for newcomers.
        }
        if let Some(reason) = self.unsettled(key.group, &key.scope) {
            return self.abort(now, &key, reason);
        }
        self.judge_mixed_calls(now, key.group);
        self.judge_mismatch(now, &key);
    }

    /// A member holds the result.
    pub(super) fn complete(&mut self, now: Instant, from: PeerId, key: &OpKey) {
        let members = self.members_in(key.group, &key.scope).len();
        let Some(tag) = self.tag(key).filter(|tag| tag.next_seq == key.seq) else {
            self.counters.stale += 1;
            return;
        };
        let Some(op) = &mut tag.open else {
            return self.kick(now, from, &format!("completed {key}, which nobody has begun"));
        };
        let Some(vote) = op.votes.get_mut(&from) else {
            return self.kick(now, from, &format!("completed {key} without having initiated it"));
        };
        if !std::mem::replace(&mut vote.complete, true) {
            op.completes += 1;
        }
        // Rule 4: every member of the roster in the scope, with one fingerprint.
        if op.completes == members && op.calls.len() == 1 {
            let pending = self.pending();
            self.write_verdict(now, key, Verdict::Commit { pending });
        }
    }

    /// A member gives an attempt up before it said Complete.
    pub(super) fn refuse(&mut self, now: Instant, from: PeerId, key: &OpKey, reason: Refusal) {
        let judged_at = now + self.config.mismatch_settle;
        let Some(tag) = self.tag(key).filter(|tag| tag.next_seq == key.seq) else {
            self.counters.stale += 1;
            return;
        };
        let Some(vote) = tag.open.as_ref().and_then(|op| op.votes.get(&from)) else { return };
        if vote.complete {
            return self.kick(now, from, &format!("refused {key} after completing it"));
        }
        match reason {
            Refusal::Deadline => self.time_out(now, key),
            Refusal::Cancelled => self.abort(now, key, AbortReason::Cancelled { by: from }),
            // The votes will show who deviates; if they agree after all, the frame was a stray one.
            Refusal::Mismatch { .. } => {
                if let Some(op) = &mut tag.open {
                    op.judged_at.get_or_insert(judged_at);
                }
                self.schedule(judged_at, Timer::Ops(key.group));
            }
            Refusal::Link { from: a, to: b, error } => {
                self.link_broken(now, from, key.group, key.epoch, (a, b), false, &error);
            }
        }
    }

    pub(super) fn acknowledge(&mut self, from: PeerId, key: &OpKey) {
        if let Some(state) = self.groups.get_mut(&key.group)
            && let Some(tag) = state.tags.get_mut(&(key.scope.clone(), key.tag))
        {
            tag.learned(from, key.epoch, key.seq);
        }
    }

    /// Who deviates, if calls differ and all of them, or enough time, are in (rule 7).
    fn judge_mismatch(&mut self, now: Instant, key: &OpKey) {
        let members = self.members_in(key.group, &key.scope).len();
        let ages: BTreeMap<_, _> = self.peers.iter().map(|(id, peer)| (*id, peer.age)).collect();
        let Some(op) = self.tag(key).and_then(|tag| tag.open.as_ref()) else { return };
        let Some(judged_at) = op.judged_at else { return };
        if now < judged_at && op.votes.len() < members {
            return;
        }
        if op.calls.len() < 2 {
            // A frame disagreed though the votes do not: try again from the start.
            return self.abort(now, key, AbortReason::EpochOver);
        }
        // The largest side is right; among equal ones the side with the oldest member.
        let side =
            |call: usize| op.votes.iter().filter(move |(_, vote)| vote.call == call).map(|(id, _)| *id);
        let weight = |call: &usize| {
            let oldest = side(*call).map(|id| ages.get(&id).copied().unwrap_or(u64::MAX)).min();
            (side(*call).count(), std::cmp::Reverse(oldest))
        };
        let common = (0..op.calls.len()).max_by_key(weight).unwrap_or(0);
        let deviating: Vec<_> =
            op.votes.iter().filter(|(_, vote)| vote.call != common).map(|(id, _)| *id).collect();
        let theirs = op.votes.values().find(|vote| vote.call != common).map(|vote| vote.call);
        let reason = AbortReason::Mismatch {
            deviating,
            theirs: theirs.map_or_else(String::new, |call| op.calls[call].to_string()),
            common: op.calls[common].to_string(),
        };
        self.abort(now, key, reason);
    }

    /// A deadline, or the time to judge differing calls, may have come.
    pub(super) fn review_ops(&mut self, now: Instant, group: Group) {
        let Some(state) = self.groups.get(&group) else { return };
        let key = |(place, tag): (&(Scope, Tag), &TagState)| OpKey {
            group,
            epoch: state.epoch,
            scope: place.0.clone(),
            tag: place.1,
            seq: tag.next_seq,
        };
        let due = |op: &Op| now >= op.deadline || op.judged_at.is_some_and(|at| now >= at);
        let keys: Vec<_> = state
            .tags
            .iter()
            .filter(|(_, tag)| tag.open.as_ref().is_some_and(due))
            .map(|(place, tag)| (key((place, tag)), tag.open.as_ref().is_some_and(|op| now >= op.deadline)))
            .collect();
        for (key, late) in keys {
            if late { self.time_out(now, &key) } else { self.judge_mismatch(now, &key) }
        }
    }

    /// The first deadline ends the call for all, and says who was waited for (rule 6).
    fn time_out(&mut self, now: Instant, key: &OpKey) {
        let members = self.members_in(key.group, &key.scope);
        let Some(op) = self.tag(key).and_then(|tag| tag.open.clone()) else { return };
        let called_by_all = members.iter().all(|peer| op.votes.contains_key(peer));
        let waiting = |peer: &&PeerId| match op.votes.get(peer) {
            None => true,
            Some(vote) => called_by_all && !vote.complete,
        };
        let list = members.iter().filter(waiting).map(|peer| self.waiting(now, *peer)).collect();
        self.abort(now, key, AbortReason::Timeout(list));
    }

    pub(super) fn waiting(&self, now: Instant, peer: PeerId) -> Waiting {
        let record = self.peers.get(&peer);
        Waiting {
            peer,
            name: record.map_or_else(String::new, |peer| peer.info.name.clone()),
            health: match record {
                Some(peer) if peer.lost_since.is_some() => "disconnected".to_owned(),
                Some(peer) => peer.health_word().to_owned(),
                None => "gone".to_owned(),
            },
            last_call: record.map_or_else(String::new, |peer| peer.last_call.0.chars().take(200).collect()),
            age_ms: record.map_or(0, |peer| now.since(peer.last_call.1).as_millis() as u64),
        }
    }

    /// A member lost its connection: the attempts that still need its word end now (rule 4).
    pub(super) fn abort_ops_without(&mut self, now: Instant, group: Group, peer: PeerId, why: LossReason) {
        let needs = |scope: &Scope, op: &Op| {
            scope.involves(peer) && op.votes.get(&peer).is_none_or(|vote| !vote.complete)
        };
        for key in self.open_keys(group, needs) {
            self.abort(now, &key, AbortReason::PeersLost(vec![(peer, why)]));
        }
    }

    pub(super) fn abort_all(&mut self, now: Instant, group: Group, reason: &AbortReason) {
        for key in self.open_keys(group, |_, _| true) {
            self.abort(now, &key, reason.clone());
        }
    }

    pub(super) fn open_keys(&self, group: Group, fits: impl Fn(&Scope, &Op) -> bool) -> Vec<OpKey> {
        let Some(state) = self.groups.get(&group) else { return Vec::new() };
        let mut keys = Vec::new();
        for ((scope, tag), held) in &state.tags {
            if held.open.as_ref().is_some_and(|op| fits(scope, op)) {
                let (scope, tag, seq) = (scope.clone(), *tag, held.next_seq);
                keys.push(OpKey { group, epoch: state.epoch, scope, tag, seq });
            }
        }
        keys
    }

    pub(super) fn abort(&mut self, now: Instant, key: &OpKey, reason: AbortReason) {
        if matches!(reason, AbortReason::PeersLost(_) | AbortReason::LinkBroken { .. }) {
            self.make_wait(key.group);
        }
        self.write_verdict(now, key, Verdict::Abort(reason));
    }

    /// Writes the one verdict on an attempt and sends it to everybody in scope.
    pub(super) fn write_verdict(&mut self, now: Instant, key: &OpKey, verdict: Verdict) {
        let members = self.members_in(key.group, &key.scope);
        let Some(tag) = self.tag(key) else { return };
        assert_eq!(tag.next_seq, key.seq, "a verdict is written once, for the attempt that is open");
        let calls = tag.open.take().map(|op| op.calls).unwrap_or_default();
        tag.next_seq += 1;
        tag.keep(key.clone(), verdict.clone(), members.len());
        let overfull = tag.kept.len() > UNCLAIMED_MAX;
        match verdict {
            Verdict::Commit { .. } => {
                self.counters.commits += 1;
                let moved_bytes = calls.iter().any(|call| call.kind != OpKind::Barrier);
                if key.scope == Scope::Whole && moved_bytes {
                    self.forgive_links(key.group);
                }
            }
            Verdict::Abort(_) => self.counters.aborts += 1,
        }
        for peer in &members {
            self.tell(*peer, ToPeer::Verdict { key: key.clone(), verdict: verdict.clone() });
        }
        if overfull {
            // Whoever is away for so long that this much piles up must join anew.
            let away = |peer: &&PeerId| self.peers.get(peer).is_some_and(|peer| peer.connection.is_none());
            let away: Vec<_> = members.iter().filter(away).copied().collect();
            for peer in away {
                self.lose(now, peer, LossReason::NotResumed);
            }
        }
        self.try_topology(now);
    }

    /// Newcomers that wait, as every member learns it with a commit (rule 10).
    pub(super) fn pending(&self) -> u32 {
        let waits = |peer: &&super::peers::Peer| peer.phase == super::peers::Phase::Registered;
        self.peers.values().filter(waits).count() as u32
    }
}
