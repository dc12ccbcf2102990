//! Collectives: calls, votes, verdicts.
//!
//! One (scope, tag) has at most one open attempt. The first call opens it; Complete from everybody in scope
//! commits it; anything that makes that impossible aborts it. A verdict is written once and kept until every
//! member is known to have it (rule 18), so that whoever was disconnected learns it later, in order.

use super::outbox::Timer;
use super::run::Run;
use super::usage::Used;
use crate::collective::{Fingerprint, Group, GroupEpoch, OpKey, Scope, Seq};
use crate::id::PeerId;
use crate::limits::{CALLS_MAX, UNCLAIMED_MAX};
use crate::time::{Duration, Instant};
use crate::wire::control::{AbortReason, LossReason, Refusal, ToPeer, Verdict};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::discriminant;

/// One member's vote in an attempt.
#[derive(Clone, Debug, Hash)]
pub(super) struct Vote {
    /// Index into the attempt's fingerprints.
    pub(super) call: usize,
    pub(super) complete: bool,
}

/// One open attempt.
#[derive(Clone, Debug, Hash)]
pub(super) struct Op {
    pub(super) opened: Instant,
    pub(super) deadline: Instant,
    /// How many must say Complete; an epoch's roster does not change.
    pub(super) members: usize,
    pub(super) votes: BTreeMap<PeerId, Vote>,
    completes: usize,
    /// The different calls that were made; one if all agree.
    pub(super) calls: Vec<Fingerprint>,
    /// Calls differ: when it is judged who deviates.
    pub(super) judged_at: Option<Instant>,
}

impl Op {
    /// When it is to be looked at next. A judgement that was due and waits for somebody's call waits until the
    /// deadline.
    fn due(&self, now: Instant) -> Instant {
        self.judged_at.filter(|at| *at > now).map_or(self.deadline, |at| at.min(self.deadline))
    }
}

/// A verdict, and who is not known to have it.
#[derive(Clone, Debug, Hash)]
struct Kept {
    key: OpKey,
    /// The first of the attempts, up to `key`, that ended like this one after the other.
    first: Seq,
    verdict: Verdict,
    unknowing: BTreeSet<PeerId>,
}

/// One (scope, tag).
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct TagState {
    pub(super) next_seq: Seq,
    pub(super) open: Option<Op>,
    /// Whether this epoch has seen it.
    used: bool,
    kept: VecDeque<Kept>,
}

impl TagState {
    pub(super) fn footprint(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |op| op.votes.len() + op.calls.len());
        1 + open + self.kept.iter().map(|kept| 1 + kept.unknowing.len()).sum::<usize>()
    }

    /// Keeps a verdict until these have learned it (rule 18).
    pub(super) fn keep(&mut self, key: OpKey, verdict: Verdict, unknowing: &[PeerId]) {
        let first = key.seq;
        self.kept.push_back(Kept { key, first, verdict, unknowing: unknowing.iter().copied().collect() });
    }

    /// Keeps like aborts that the same members do not know as one. Somebody who is away misses one for every call that
    /// the others make and give up, and being away is no reason to put anybody out before its time (rule 20).
    fn join_like(&mut self) {
        let mut joined: VecDeque<Kept> = VecDeque::new();
        for kept in std::mem::take(&mut self.kept) {
            match joined.back_mut() {
                Some(last) if last.is_like(&kept) => (last.key, last.verdict) = (kept.key, kept.verdict),
                _ => joined.push_back(kept),
            }
        }
        self.kept = joined;
    }

    fn drop_known(&mut self) {
        while self.kept.pop_front_if(|kept| kept.unknowing.is_empty()).is_some() {}
    }

    /// A peer knows the verdicts on all attempts before that one.
    pub(super) fn learned_before(&mut self, peer: PeerId, epoch: GroupEpoch, seq: Seq) {
        for kept in &mut self.kept {
            if (kept.key.epoch, kept.key.seq) < (epoch, seq) {
                kept.unknowing.remove(&peer);
            }
        }
        self.drop_known();
    }

    /// A peer knows the verdict on that attempt and those before it.
    pub(super) fn learned(&mut self, peer: PeerId, epoch: GroupEpoch, seq: Seq) {
        self.learned_before(peer, epoch, seq.saturating_add(1));
    }

    /// A peer is gone; nothing is kept for it.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.learned_before(peer, GroupEpoch::MAX, Seq::MAX);
    }

    /// A rebuild found it in use in the present epoch. True if that is news.
    pub(super) fn reuse(&mut self) -> bool {
        !std::mem::replace(&mut self.used, true)
    }

    /// The group's epoch ends: numbering restarts. False if nothing is left to remember.
    pub(super) fn next_epoch(&mut self) -> bool {
        self.next_seq = 0;
        self.used = false;
        !self.kept.is_empty()
    }

    /// What a peer that comes back has not learned yet, in order.
    pub(super) fn unlearned(&self, peer: PeerId) -> Vec<(OpKey, Verdict)> {
        let unlearned = self.kept.iter().filter(|kept| kept.unknowing.contains(&peer));
        unlearned.flat_map(Kept::each).collect()
    }
}

impl Kept {
    /// Whether the other follows this one and can be kept with it.
    fn is_like(&self, next: &Self) -> bool {
        let reason = |kept: &Self| match &kept.verdict {
            Verdict::Abort(reason) => Some(discriminant(reason)),
            Verdict::Commit { .. } => None,
        };
        self.key.epoch == next.key.epoch
            && self.key.seq + 1 == next.first
            && reason(self).is_some_and(|ours| reason(next) == Some(ours))
            && self.unknowing == next.unknowing
    }

    /// The verdicts one by one, oldest first.
    fn each(&self) -> impl Iterator<Item = (OpKey, Verdict)> {
        (self.first..=self.key.seq).map(|seq| (OpKey { seq, ..self.key.clone() }, self.verdict.clone()))
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
        if !self.office.peers.is_member(from, key.group) {
            return self.office.kick(from, &self.no_member(from, "initiated in", key.group));
        }
        let strangers = match &key.scope {
            Scope::Members(listed) => {
                !listed.iter().all(|peer| self.office.peers.is_member(*peer, key.group))
            }
            Scope::Whole => false,
        };
        let Some(state) = self.groups.get_mut(&key.group) else { return };
        if key.epoch > state.epoch || !key.scope.involves(from) {
            let text = format!("initiated {key}, the group is in epoch {}", state.epoch);
            return self.office.kick(from, &text);
        }
        if key.epoch < state.epoch {
            self.office.count_stale();
            return; // The new epoch is on its way to it.
        }
        if strangers {
            return self
                .office
                .kick(from, &format!("initiated {key}, some of whom are no members of the group"));
        }
        let place = (key.scope.clone(), key.tag);
        let used = state.tags.get(&place).is_some_and(|tag| tag.used);
        if !used && let Some(peer) = state.usage.without_room(from, &key.scope) {
            // Nothing was begun for it: no verdict follows, and no number is used up.
            let Used { tags, listed } = state.usage.of(peer);
            let (tags, listed) = (tags as u32, listed as u32);
            return self.office.tell(from, ToPeer::Denied { key, peer, tags, listed });
        }
        let tag = state.tags.entry(place).or_default();
        if !std::mem::replace(&mut tag.used, true) {
            state.usage.add(&key.scope);
        }
        if key.seq < tag.next_seq {
            self.office.count_stale();
            return; // Its verdict is on its way to it.
        }
        if key.seq > tag.next_seq {
            let text = format!("initiated {key} while seq {} is next", tag.next_seq);
            return self.office.kick(from, &text);
        }
        tag.learned_before(from, key.epoch, key.seq);
        let words = format!("{fingerprint}");
        let deadline = now + Duration::from_millis(timeout_ms);
        if tag.open.is_none() {
            state.open_ops += 1;
        }
        let op = tag.open.get_or_insert_with(|| Op {
            opened: now,
            deadline,
            members: match &key.scope {
                Scope::Whole => state.roster.len(),
                Scope::Members(listed) => listed.len(),
            },
            votes: BTreeMap::new(),
            completes: 0,
            calls: Vec::new(),
            judged_at: None,
        });
        if let Some(vote) = op.votes.get(&from) {
            if op.calls[vote.call] != fingerprint {
                return self.office.kick(from, &format!("initiated {key} twice, with different calls"));
            }
        } else {
            let call = op.calls.iter().position(|known| *known == fingerprint).unwrap_or_else(|| {
                op.calls.push(fingerprint);
                op.calls.len() - 1
            });
            op.votes.insert(from, Vote { call, complete: false });
        }
        op.deadline = op.deadline.min(deadline);
        if op.calls.len() > CALLS_MAX {
            op.judged_at = Some(now);
        } else if op.calls.len() > 1 {
            op.judged_at.get_or_insert(now + self.config.mismatch_settle);
        }
        let wake = op.due(now);
        self.office.outbox.schedule(wake, Timer::Ops(key.group));
        if let Some(peer) = self.office.peers.get_mut(from) {
            peer.last_call = (words, now);
        }
        self.withdraw(from); // Whoever reduces waits in no ballot any more.
        if timeout_ms == 0 {
            return self.time_out(now, &key); // It waited in vain for the attempt to become possible.
        }
        if let Some(reason) = self.unsettled(key.group, &key.scope) {
            return self.abort(&key, reason);
        }
        self.judge_mixed_calls(now, key.group);
        self.judge_mismatch(now, &key);
    }

    /// A member holds the result.
    pub(super) fn complete(&mut self, from: PeerId, key: &OpKey) {
        let Some(tag) = self.tag(key).filter(|tag| tag.next_seq == key.seq) else {
            self.office.count_stale();
            return;
        };
        let Some(op) = &mut tag.open else {
            return self.office.kick(from, &format!("completed {key}, which nobody has begun"));
        };
        let Some(vote) = op.votes.get_mut(&from) else {
            return self.office.kick(from, &format!("completed {key} without having initiated it"));
        };
        if !std::mem::replace(&mut vote.complete, true) {
            op.completes += 1;
        }
        // Rule 4: every member of the roster in the scope, with one fingerprint.
        if op.completes == op.members && op.calls.len() == 1 {
            let pending = self.pending();
            self.write_verdict(key, Verdict::Commit { pending });
        }
    }

    /// A member gives an attempt up before it said Complete. After that it may only ask for an abort, because its
    /// program cancelled the call: its Complete stands, and as long as there is no verdict we may grant it.
    pub(super) fn refuse(&mut self, now: Instant, from: PeerId, key: &OpKey, reason: Refusal) {
        let judged_at = now + self.config.mismatch_settle;
        let Some(tag) = self.tag(key).filter(|tag| tag.next_seq == key.seq) else {
            self.office.count_stale();
            return;
        };
        let Some(vote) = tag.open.as_ref().and_then(|op| op.votes.get(&from)) else { return };
        if vote.complete && reason != Refusal::Cancelled {
            return self.office.kick(from, &format!("refused {key} after completing it"));
        }
        match reason {
            Refusal::Deadline => self.time_out(now, key),
            Refusal::Cancelled => self.abort(key, AbortReason::Cancelled { by: from }),
            // The votes will show who deviates; if they agree after all, the frame was a stray one.
            Refusal::Mismatch { .. } => {
                if let Some(op) = &mut tag.open {
                    op.judged_at.get_or_insert(judged_at);
                }
                self.office.outbox.schedule(judged_at, Timer::Ops(key.group));
            }
            Refusal::Link { from: a, to: b, error } => {
                self.link_broken(now, from, key.group, key.epoch, (a, b), false, &error);
            }
        }
    }

    pub(super) fn acknowledge(&mut self, from: PeerId, key: &OpKey) {
        if self.office.peers.is_member(from, key.group)
            && key.scope.involves(from)
            && let Some(state) = self.groups.get_mut(&key.group)
            && let Some(tag) = state.tags.get_mut(&(key.scope.clone(), key.tag))
        {
            tag.learned(from, key.epoch, key.seq);
        }
    }

    /// A deadline, or the time to judge differing calls, may have come.
    pub(super) fn review_ops(&mut self, now: Instant, group: Group) {
        for key in self.open_keys(group, |_, op| now >= op.deadline) {
            self.time_out(now, &key);
        }
        for key in self.open_keys(group, |_, op| op.judged_at.is_some_and(|at| now >= at)) {
            self.judge_mismatch(now, &key);
        }
        self.judge_mixed_calls(now, group);
        let Some(state) = self.groups.get(&group) else { return };
        let due = state.tags.values().filter_map(|tag| Some(tag.open.as_ref()?.due(now)));
        if let Some(due) = due.chain(state.mixed_at.filter(|at| *at > now)).min() {
            self.office.outbox.schedule(due, Timer::Ops(group));
        }
    }

    /// The first deadline ends the call for all, and says who was waited for (rule 6).
    fn time_out(&mut self, now: Instant, key: &OpKey) {
        let members = self.members_in(key.group, &key.scope);
        let Some(op) = self.tag(key).and_then(|tag| tag.open.clone()) else { return };
        let called_by_all = op.votes.len() == op.members;
        let waiting = |peer: &&PeerId| match op.votes.get(peer) {
            None => true,
            Some(vote) => called_by_all && !vote.complete,
        };
        let list = self.office.peers.waiting_list(now, members.iter().filter(waiting));
        self.abort(key, AbortReason::Timeout(list));
    }

    /// A member lost its connection: the attempts that still need its word end now (rule 4).
    pub(super) fn abort_ops_without(&mut self, group: Group, peer: PeerId, why: LossReason) {
        let needs = |scope: &Scope, op: &Op| {
            scope.involves(peer) && op.votes.get(&peer).is_none_or(|vote| !vote.complete)
        };
        for key in self.open_keys(group, needs) {
            self.abort(&key, AbortReason::PeersLost(vec![(peer, why)]));
        }
    }

    pub(super) fn abort_all(&mut self, group: Group, reason: &AbortReason) {
        for key in self.open_keys(group, |_, _| true) {
            self.abort(&key, reason.clone());
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

    pub(super) fn abort(&mut self, key: &OpKey, reason: AbortReason) {
        let waits = |reason: &AbortReason| {
            use AbortReason::{LinkBroken, NoPath, PeersLost};
            matches!(reason, PeersLost(_) | LinkBroken { .. } | NoPath { .. })
        };
        if waits(&reason) {
            self.make_wait(key.group);
        }
        self.write_verdict(key, Verdict::Abort(reason));
    }

    /// Writes the one verdict on an attempt and sends it to everybody in scope.
    fn write_verdict(&mut self, key: &OpKey, verdict: Verdict) {
        let members = self.members_in(key.group, &key.scope);
        let Some(state) = self.groups.get_mut(&key.group).filter(|state| state.epoch == key.epoch) else {
            return;
        };
        let Some(tag) = state.tags.get_mut(&(key.scope.clone(), key.tag)) else { return };
        assert_eq!(tag.next_seq, key.seq, "a verdict is written once, for the attempt that is open");
        let Some(op) = tag.open.take() else { panic!("a verdict is written on an attempt that was begun") };
        state.open_ops -= 1;
        let used_ring = op.calls.iter().any(|call| call.kind.uses_whole_ring());
        tag.next_seq += 1;
        tag.keep(key.clone(), verdict.clone(), &members);
        if tag.kept.len() > UNCLAIMED_MAX {
            tag.join_like();
        }
        // Whoever is away while this much of different kinds piles up must join anew.
        let overfull = tag.kept.len() > UNCLAIMED_MAX;
        let dropped = if overfull { tag.kept.pop_front() } else { None };
        match verdict {
            Verdict::Commit { .. } => {
                self.office.counters.commits += 1;
                if key.scope == Scope::Whole {
                    state.incumbents = state.roster.len();
                }
                self.gate.forgive(&members);
                if key.scope == Scope::Whole && used_ring {
                    state.forgive_links();
                }
            }
            Verdict::Abort(_) => self.office.counters.aborts += 1,
        }
        let members = self.listening(key.group, members);
        self.office.tell_all(&members, ToPeer::Verdict { key: key.clone(), verdict });
        for peer in dropped.into_iter().flat_map(|kept| kept.unknowing) {
            if self.office.peers.get(peer).is_some_and(|peer| peer.connection.is_none()) {
                self.office.lose(peer, LossReason::NotResumed);
            }
        }
        self.office.agenda.count_votes();
    }
}
