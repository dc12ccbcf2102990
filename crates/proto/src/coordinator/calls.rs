//! Collectives: calls, votes, verdicts.
//!
//! One (scope, tag) has at most one open attempt. The first call opens it; Complete from everybody in scope
//! commits it; anything that makes that impossible aborts it. A verdict is written once and kept until every
//! member is known to have it (rule 18), so that whoever was disconnected learns it later, in order.

use super::Config;
use super::admission::Gate;
use super::directory::clipped;
use super::groups::Groups;
use super::office::Office;
use super::operations::{Call, Called, Completed, Op, Operations};
use super::outbox::Timer;
use super::states::no_member;
use super::usage::Used;
use crate::collective::{BrokenLink, Fingerprint, Group, OpKey, Scope};
use crate::id::PeerId;
use crate::time::{Duration, Instant};
use crate::wire::control::{AbortReason, LossReason, Refusal, ToPeer, Verdict};

/// Whoever makes a call so much later than the first is told of to all: their call was slow, and they may wonder why.
const LATE_MIN: Duration = Duration::from_millis(100);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Handles what members' programs call: collectives and votes. It ends attempts and ballots, and puts nobody out at once;
/// epochs are opened elsewhere.
pub(super) struct Calls<'a> {
    pub(super) config: &'a Config,
    pub(super) office: &'a mut Office,
    pub(super) groups: &'a mut Groups,
    pub(super) gate: &'a mut Gate,
}

impl Calls<'_> {
    /// The collectives of a key's group, if its epoch goes on.
    fn operations(&mut self, key: &OpKey) -> Option<&mut Operations> {
        let state = self.groups.get_mut(key.group).filter(|state| state.epoch == key.epoch)?;
        Some(&mut state.operations)
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
            return self
                .office
                .kick(from, &no_member(self.office, self.groups, from, "initiated in", key.group));
        }
        let strangers = match &key.scope {
            Scope::Members(listed) => {
                !listed.iter().all(|peer| self.office.peers.is_member(*peer, key.group))
            }
            Scope::Whole => false,
        };
        let Some(state) = self.groups.get_mut(key.group) else { return };
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
        if state.attendance.votes(from) {
            state.operations.learned_before(from, key.epoch);
        }
        let words = format!("{fingerprint} under tag {}", key.tag);
        let call = Call {
            from,
            key: &key,
            fingerprint,
            deadline: now + Duration::from_millis(timeout_ms),
            members: match &key.scope {
                Scope::Whole => state.roster.len(),
                Scope::Members(listed) => listed.len(),
            },
            settle: self.config.mismatch_settle,
        };
        let wake = match state.operations.call(now, call) {
            Called::Open(wake) => wake,
            Called::Stale => return self.office.count_stale(),
            Called::Breach(text) => return self.office.kick(from, &text),
            Called::Denied(peer, Used { tags, listed }) => {
                let (tags, listed) = (tags as u32, listed as u32);
                return self.office.tell(from, ToPeer::Denied { key, peer, tags, listed });
            }
        };
        self.office.outbox.schedule(wake, Timer::Ops(key.group));
        if let Some(peer) = self.office.peers.get_mut(from) {
            peer.last_call = (words, now);
        }
        self.withdraw(from); // Whoever reduces waits in no ballot any more.
        if timeout_ms == 0 {
            return self.time_out(now, &key); // It waited in vain for the attempt to become possible.
        }
        if let Some(reason) = self.groups.get(key.group).and_then(|state| state.unsettled(&key.scope)) {
            return self.abort(&key, reason);
        }
        self.judge_mixed_calls(now, key.group);
        self.judge_mismatch(now, &key);
    }

    /// A member holds the result.
    pub(super) fn complete(&mut self, from: PeerId, key: &OpKey) {
        let completed = self.operations(key).map_or(Completed::Stale, |held| held.complete(from, key));
        match completed {
            Completed::Waits => {}
            Completed::ByAll => {
                let pending = self.pending();
                self.write_verdict(key, Verdict::Commit { pending });
            }
            Completed::Stale => self.office.count_stale(),
            Completed::Breach(text) => self.office.kick(from, &text),
        }
    }

    /// A member gives an attempt up before it said Complete. After that it may only ask for an abort, because its
    /// program cancelled the call: its Complete stands, and as long as there is no verdict we may grant it.
    /// A link that it blames is returned, to be looked at.
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        from: PeerId,
        key: &OpKey,
        reason: Refusal,
    ) -> Option<BrokenLink> {
        let judged_at = now + self.config.mismatch_settle;
        let Some(operations) = self.operations(key).filter(|held| held.is_current(key)) else {
            self.office.count_stale();
            return None;
        };
        let vote = operations.attempt(key).and_then(|op| op.votes.get(&from))?;
        if vote.complete && reason != Refusal::Cancelled {
            self.office.kick(from, &format!("refused {key} after completing it"));
            return None;
        }
        match reason {
            Refusal::Deadline => self.time_out(now, key),
            Refusal::Cancelled => self.abort(key, AbortReason::Cancelled { by: from }),
            // The votes will show who deviates; if they agree after all, the frame was a stray one.
            Refusal::Mismatch { .. } => {
                operations.judge_by(key, judged_at);
                self.office.outbox.schedule(judged_at, Timer::Ops(key.group));
            }
            Refusal::Link { from, to, error } => return Some(BrokenLink { from, to, error }),
        }
        None
    }

    pub(super) fn acknowledge(&mut self, from: PeerId, key: &OpKey) {
        if self.office.peers.is_member(from, key.group)
            && key.scope.involves(from)
            && let Some(state) = self.groups.get_mut(key.group)
        {
            state.operations.learned(from, key);
        }
    }

    /// A deadline, or the time to judge differing calls, may have come.
    pub(super) fn review_ops(&mut self, now: Instant, group: Group) {
        for key in self.groups.open_keys(group, |_, op| now >= op.deadline) {
            self.time_out(now, &key);
        }
        for key in self.groups.open_keys(group, |_, op| op.judged_at.is_some_and(|at| now >= at)) {
            self.judge_mismatch(now, &key);
        }
        self.judge_mixed_calls(now, group);
        if let Some(due) = self.groups.get(group).and_then(|state| state.operations.due(now)) {
            self.office.outbox.schedule(due, Timer::Ops(group));
        }
    }

    /// The first deadline ends the call for all, and says who was waited for (rule 6).
    fn time_out(&mut self, now: Instant, key: &OpKey) {
        let members = self.groups.members_in(key.group, &key.scope);
        let Some(op) = self.operations(key).and_then(|held| held.attempt(key).cloned()) else { return };
        let called_by_all = op.votes.len() == op.members;
        let waiting = |peer: &&PeerId| match op.votes.get(peer) {
            None => true,
            Some(vote) => called_by_all && !vote.complete,
        };
        let mut list = self.office.peers.waiting_list(now, members.iter().filter(waiting));
        // A training loop makes the same call again and again: having made the last one is not having made this one.
        let call = op.calls.first().map(|call| format!("{call} under tag {}", key.tag));
        let call = call.map(|call| clipped(&call));
        for one in list.iter_mut().filter(|one| !op.votes.contains_key(&one.peer)) {
            if call.as_ref() == Some(&one.last_call) {
                one.last_call += " (an earlier one)";
            }
        }
        self.abort(key, AbortReason::Timeout(list));
    }

    /// A member lost its connection: the attempts that still need its word end now (rule 4).
    pub(super) fn abort_ops_without(&mut self, group: Group, peer: PeerId, why: LossReason) {
        let needs = |scope: &Scope, op: &Op| {
            scope.involves(peer) && op.votes.get(&peer).is_none_or(|vote| !vote.complete)
        };
        for key in self.groups.open_keys(group, needs) {
            self.abort(&key, AbortReason::PeersLost(vec![(peer, why)]));
        }
    }

    pub(super) fn abort_all(&mut self, group: Group, reason: &AbortReason) {
        for key in self.groups.open_keys(group, |_, _| true) {
            self.abort(&key, reason.clone());
        }
    }

    pub(super) fn abort(&mut self, key: &OpKey, reason: AbortReason) {
        let waits = |reason: &AbortReason| {
            use AbortReason::{LinkBroken, NoPath, PeersLost};
            matches!(reason, PeersLost(_) | LinkBroken { .. } | NoPath { .. })
        };
        if waits(&reason)
            && let Some(state) = self.groups.get_mut(key.group)
        {
            // Members wait for `Proceed` or a new epoch before they retry.
            state.attendance.hold();
        }
        self.write_verdict(key, Verdict::Abort(reason));
    }

    /// Writes the one verdict on an attempt and sends it to everybody in scope.
    fn write_verdict(&mut self, key: &OpKey, verdict: Verdict) {
        let members = self.groups.members_in(key.group, &key.scope);
        let Some(state) = self.groups.get_mut(key.group).filter(|state| state.epoch == key.epoch) else {
            return;
        };
        let Some(closed) = state.operations.close(key, verdict.clone(), &members) else { return };
        let mut late = None;
        match verdict {
            Verdict::Commit { .. } => {
                late = closed.last.filter(|(_, behind)| *behind >= LATE_MIN);
                self.office.counters.commits += 1;
                if key.scope == Scope::Whole {
                    state.incumbents = state.roster.len();
                }
                self.gate.forgive(&members);
                if key.scope == Scope::Whole && closed.used_ring {
                    state.forgive_links();
                }
                if let Some(step) = closed.step.filter(|_| key.scope == Scope::Whole) {
                    self.groups.set_revision_of_all(key.group, step + 1);
                }
            }
            Verdict::Abort(_) => self.office.counters.aborts += 1,
        }
        let members = self.groups.listening(key.group, members);
        if let Some((peer, behind)) = late {
            let behind_ms = millis(behind);
            self.office.tell_all(&members, ToPeer::CalledLast { key: key.clone(), peer, behind_ms });
        }
        self.office.tell_all(&members, ToPeer::Verdict { key: key.clone(), verdict });
        for peer in closed.dropped {
            if self.office.peers.get(peer).is_some_and(|peer| peer.connection.is_none()) {
                self.office.lose(peer, LossReason::NotResumed);
            }
        }
        self.office.agenda.count_votes();
    }
}
