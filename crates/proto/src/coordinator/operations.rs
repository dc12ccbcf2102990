//! The collectives of one group: who made which call, who holds a result, and who knows which verdict.
//!
//! One (scope, tag) has at most one open attempt, with the next number. A verdict is written once and kept until every
//! member is known to have it (rule 18), so that whoever was disconnected learns it later, in order.
//!
//! What follows from a call for anybody else is not decided here: whoever hands one in is told what became of it.

use super::usage::{Usage, Used};
use crate::collective::{Fingerprint, Group, GroupEpoch, OpKey, Scope, Seq, Tag};
use crate::id::PeerId;
use crate::limits::{CALLS_MAX, UNCLAIMED_MAX};
use crate::time::{Duration, Instant};
use crate::wire::control::Verdict;
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
    /// Who made the call last of all, and how long after the first.
    last: Option<(PeerId, Duration)>,
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
struct TagState {
    next_seq: Seq,
    open: Option<Op>,
    /// Whether this epoch has seen it.
    used: bool,
    kept: VecDeque<Kept>,
}

impl TagState {
    fn footprint(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |op| op.votes.len() + op.calls.len());
        1 + open + self.kept.iter().map(|kept| 1 + kept.unknowing.len()).sum::<usize>()
    }

    /// Keeps a verdict until these have learned it (rule 18).
    fn keep(&mut self, key: OpKey, verdict: Verdict, unknowing: &[PeerId]) {
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
    fn learned_before(&mut self, peer: PeerId, epoch: GroupEpoch, seq: Seq) {
        for kept in &mut self.kept {
            if (kept.key.epoch, kept.key.seq) < (epoch, seq) {
                kept.unknowing.remove(&peer);
            }
        }
        self.drop_known();
    }

    /// It is in use in the present epoch. True if that is news.
    fn reuse(&mut self) -> bool {
        !std::mem::replace(&mut self.used, true)
    }

    /// The group's epoch ends: numbering restarts. False if nothing is left to remember.
    fn next_epoch(&mut self) -> bool {
        self.next_seq = 0;
        self.used = false;
        !self.kept.is_empty()
    }

    /// What a peer that comes back has not learned yet, in order.
    fn unlearned(&self, peer: PeerId) -> Vec<(OpKey, Verdict)> {
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

/// A call, as a member's program made it.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) from: PeerId,
    pub(super) key: &'a OpKey,
    pub(super) fingerprint: Fingerprint,
    pub(super) deadline: Instant,
    /// How many members its scope has.
    pub(super) members: usize,
    /// How long differing calls are collected.
    pub(super) settle: Duration,
}

/// What became of a call.
#[derive(Debug)]
pub(super) enum Called {
    /// The attempt is open, and is to be looked at then.
    Open(Instant),
    /// Its verdict is on its way to the caller.
    Stale,
    /// That member has no room for one more tag. Nothing was begun: no verdict follows, and no number is used up.
    Denied(PeerId, Used),
    /// What a peer that keeps to the protocol does not do, in words.
    Breach(String),
}

/// What became of a member's word that it holds the result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completed {
    /// Others are waited for.
    Waits,
    /// All who must have said so, of the same call (rule 4).
    ByAll,
    /// The attempt is over.
    Stale,
    /// What a peer that keeps to the protocol does not do, in words.
    Breach(String),
}

/// An attempt that is over.
#[derive(Debug)]
pub(super) struct Closed {
    /// Which step of a training loop it was.
    pub(super) step: Option<u64>,
    /// Whether some call in it uses all links of the ring.
    pub(super) used_ring: bool,
    /// Who made the call last, and how long after the first; none if not all made it.
    pub(super) last: Option<(PeerId, Duration)>,
    /// Who did not know a verdict that was dropped to make room.
    pub(super) dropped: BTreeSet<PeerId>,
}

/// The collectives of one group.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Operations {
    tags: BTreeMap<(Scope, Tag), TagState>,
    /// How many of them each member uses in this epoch.
    usage: Usage,
    /// How many have an open attempt.
    open: usize,
    /// Members make different kinds of calls: when it is judged who deviates.
    mixed_at: Option<Instant>,
}

impl Operations {
    /// Whether no attempt is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.open == 0
    }

    /// The open attempts.
    pub(super) fn open(&self) -> impl Iterator<Item = (&Scope, Tag, Seq, &Op)> {
        self.tags
            .iter()
            .filter_map(|((scope, tag), held)| Some((scope, *tag, held.next_seq, held.open.as_ref()?)))
    }

    /// The open attempt of that key.
    pub(super) fn attempt(&self, key: &OpKey) -> Option<&Op> {
        self.tags.get(&place(key)).filter(|tag| tag.next_seq == key.seq)?.open.as_ref()
    }

    /// Whether that attempt is the next or the open one of its tag.
    pub(super) fn is_current(&self, key: &OpKey) -> bool {
        self.tags.get(&place(key)).is_some_and(|tag| tag.next_seq == key.seq)
    }

    /// The keys of the open attempts that fit.
    pub(super) fn keys(
        &self,
        group: Group,
        epoch: GroupEpoch,
        fits: impl Fn(&Scope, &Op) -> bool,
    ) -> Vec<OpKey> {
        let fitting = self.open().filter(|(scope, .., op)| fits(scope, op));
        fitting.map(|(scope, tag, seq, _)| OpKey { group, epoch, scope: scope.clone(), tag, seq }).collect()
    }

    /// A member's program made a call.
    pub(super) fn call(&mut self, now: Instant, call: Call<'_>) -> Called {
        let Call { from, key, fingerprint, deadline, members, settle } = call;
        let used = self.tags.get(&place(key)).is_some_and(|tag| tag.used);
        if !used && let Some(peer) = self.usage.without_room(from, &key.scope) {
            return Called::Denied(peer, self.usage.of(peer));
        }
        let tag = self.tags.entry(place(key)).or_default();
        if tag.reuse() {
            self.usage.add(&key.scope);
        }
        if key.seq < tag.next_seq {
            return Called::Stale;
        }
        if key.seq > tag.next_seq {
            return Called::Breach(format!("initiated {key} while seq {} is next", tag.next_seq));
        }
        tag.learned_before(from, key.epoch, key.seq);
        if tag.open.is_none() {
            self.open += 1;
        }
        let op = tag.open.get_or_insert_with(|| Op {
            opened: now,
            deadline,
            members,
            votes: BTreeMap::new(),
            completes: 0,
            calls: Vec::new(),
            judged_at: None,
            last: None,
        });
        if let Some(vote) = op.votes.get(&from) {
            if op.calls[vote.call] != fingerprint {
                return Called::Breach(format!("initiated {key} twice, with different calls"));
            }
        } else {
            let call = op.calls.iter().position(|known| *known == fingerprint).unwrap_or_else(|| {
                op.calls.push(fingerprint);
                op.calls.len() - 1
            });
            op.votes.insert(from, Vote { call, complete: false });
            if op.votes.len() == op.members {
                op.last = Some((from, now.since(op.opened)));
            }
        }
        op.deadline = op.deadline.min(deadline);
        if op.calls.len() > CALLS_MAX {
            op.judged_at = Some(now);
        } else if op.calls.len() > 1 {
            op.judged_at.get_or_insert(now + settle);
        }
        Called::Open(op.due(now))
    }

    /// A member holds the result.
    pub(super) fn complete(&mut self, from: PeerId, key: &OpKey) -> Completed {
        let Some(tag) = self.tags.get_mut(&place(key)).filter(|tag| tag.next_seq == key.seq) else {
            return Completed::Stale;
        };
        let Some(op) = &mut tag.open else {
            return Completed::Breach(format!("completed {key}, which nobody has begun"));
        };
        let Some(vote) = op.votes.get_mut(&from) else {
            return Completed::Breach(format!("completed {key} without having initiated it"));
        };
        if !std::mem::replace(&mut vote.complete, true) {
            op.completes += 1;
        }
        // Rule 4: every member of the roster in the scope, with one fingerprint.
        if op.completes == op.members && op.calls.len() == 1 { Completed::ByAll } else { Completed::Waits }
    }

    /// A frame disagreed: who deviates is judged then, if not earlier.
    pub(super) fn judge_by(&mut self, key: &OpKey, at: Instant) {
        if let Some(op) = self.tags.get_mut(&place(key)).and_then(|tag| tag.open.as_mut()) {
            op.judged_at.get_or_insert(at);
        }
    }

    /// Writes the one verdict on an open attempt, and keeps it until these have learned it.
    pub(super) fn close(&mut self, key: &OpKey, verdict: Verdict, members: &[PeerId]) -> Option<Closed> {
        let tag = self.tags.get_mut(&place(key))?;
        assert_eq!(tag.next_seq, key.seq, "a verdict is written once, for the attempt that is open");
        let Some(op) = tag.open.take() else { panic!("a verdict is written on an attempt that was begun") };
        self.open -= 1;
        tag.next_seq += 1;
        tag.keep(key.clone(), verdict, members);
        if tag.kept.len() > UNCLAIMED_MAX {
            tag.join_like();
        }
        // Whoever is away while this much of different kinds piles up must join anew.
        let overfull = tag.kept.len() > UNCLAIMED_MAX;
        let dropped = if overfull { tag.kept.pop_front() } else { None };
        Some(Closed {
            step: op.calls.first().and_then(|call| call.step),
            last: op.last,
            used_ring: op.calls.iter().any(|call| call.kind.uses_whole_ring()),
            dropped: dropped.map(|kept| kept.unknowing).unwrap_or_default(),
        })
    }

    /// A rebuild found out how an attempt ended; `in_epoch`: of the epoch that goes on.
    pub(super) fn recall(&mut self, key: OpKey, verdict: Verdict, unknowing: &[PeerId], in_epoch: bool) {
        let tag = self.tags.entry(place(&key)).or_default();
        if in_epoch {
            tag.next_seq = tag.next_seq.max(key.seq.saturating_add(1));
            if tag.reuse() {
                self.usage.add(&key.scope);
            }
        }
        tag.keep(key, verdict, unknowing);
    }

    /// A peer knows the verdict on that attempt and those before it.
    pub(super) fn learned(&mut self, peer: PeerId, key: &OpKey) {
        if let Some(tag) = self.tags.get_mut(&place(key)) {
            tag.learned_before(peer, key.epoch, key.seq.saturating_add(1));
        }
    }

    /// A peer knows all verdicts of epochs before that one.
    pub(super) fn learned_before(&mut self, peer: PeerId, epoch: GroupEpoch) {
        self.tags.values_mut().for_each(|tag| tag.learned_before(peer, epoch, 0));
    }

    /// A peer is gone; nothing is kept for it.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.tags.values_mut().for_each(|tag| tag.learned_before(peer, GroupEpoch::MAX, Seq::MAX));
    }

    /// What a peer that comes back has not learned yet of such epochs, the oldest first.
    pub(super) fn unlearned(&self, peer: PeerId, fits: impl Fn(GroupEpoch) -> bool) -> Vec<(OpKey, Verdict)> {
        let unlearned = self.tags.values().flat_map(|tag| tag.unlearned(peer));
        let mut unlearned: Vec<_> = unlearned.filter(|(key, _)| fits(key.epoch)).collect();
        unlearned.sort_by_key(|(key, _)| (key.epoch, key.seq));
        unlearned
    }

    /// The group's epoch ends: numbering restarts, and what nobody must learn is forgotten.
    pub(super) fn next_epoch(&mut self) {
        self.tags.retain(|_, tag| tag.next_epoch());
        self.usage = Usage::default();
    }

    /// Members make different kinds of calls: when it is judged, at the latest then.
    pub(super) fn mixed_until(&mut self, latest: Instant) -> Instant {
        *self.mixed_at.get_or_insert(latest)
    }

    /// It was judged, or all make the same kind of call.
    pub(super) fn unmix(&mut self) {
        self.mixed_at = None;
    }

    /// When something is to be looked at next.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let due = self.open().map(|(.., op)| op.due(now));
        due.chain(self.mixed_at.filter(|at| *at > now)).min()
    }

    pub(super) fn footprint(&self) -> usize {
        self.tags.values().map(TagState::footprint).sum::<usize>() + self.usage.footprint()
    }
}

fn place(key: &OpKey) -> (Scope, Tag) {
    (key.scope.clone(), key.tag)
}
