//! What a peer remembers of one (scope, tag).
//!
//! Verdicts come whether this program has made the call or not, because all members must number their attempts
//! alike. A verdict on a call that is still to come is kept, and the call takes it as if it had been there
//! (rule 8). A call that ended here while it goes on elsewhere leaves its *ghost*: the verdicts on the others'
//! further attempts are the ghost's, not the next call's. The next call takes the ghost's place: "do it again"
//! means to join the others in what they are still doing. If it is another call than the ghost's, it waits for the verdict
//! on what the ghost had voted for, and takes it: a peer has one vote on an attempt.
//!
//! *Bounds.* A program may not call for days while others try and time out, and whoever lives and does not call is
//! never put out (rule 20). So verdicts that wait for calls are kept as runs, the kind and how many of it, and a run
//! costs the same however long it is. If even the runs are too many the oldest are merged, so that the number of each
//! kind stays: as many calls end as ended for the others.

use crate::collective::{Fingerprint, GroupEpoch, OpKey, Seq};
use crate::id::PeerId;
use crate::limits::{BRIEF_NAMED_MAX, BRIEF_TEXT_BYTES_MAX, LEARNED_MAX, UNCLAIMED_MAX};
use crate::wire::clip;
use crate::wire::control::{AbortReason, LossReason, Refusal, Verdict};
use std::collections::VecDeque;
use std::mem::discriminant;

/// What became of a verdict that arrived.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Learned {
    /// It is old news.
    Known,
    /// The program has not made that call yet: kept for it.
    Kept,
    /// The call that it belongs to ended without it, or nobody needs it.
    Dropped,
    /// It cannot be: a commit needs our vote.
    Impossible,
}

/// Verdicts of one kind, one after the other, that wait for calls.
#[derive(Clone, Debug, Hash)]
struct Unclaimed {
    /// The latest.
    reason: AbortReason,
    count: u64,
}

/// An attempt that a call had voted for when it ended here without a verdict.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Abandoned {
    pub(super) key: OpKey,
    /// What the vote was for.
    pub(super) call: Fingerprint,
    /// Why it was given up.
    pub(super) reason: Refusal,
}

/// One (scope, tag).
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct TagMemory {
    epoch: GroupEpoch,
    next_seq: Seq,
    learned: VecDeque<(OpKey, Verdict)>,
    /// The last commit, once it has dropped out of what was learned last: whoever lags can only wait for this
    /// one or a later one, because it must have completed all commits before.
    commit: Option<(OpKey, Verdict)>,
    unclaimed: VecDeque<Unclaimed>,
    /// Whether the call that ended here retries elsewhere.
    ghost: Option<bool>,
    /// The attempt that it had voted for, if its verdict is not here yet.
    left: Option<Abandoned>,
}

impl TagMemory {
    /// The number of the next attempt in that epoch. A new epoch starts at zero.
    pub(super) fn next_seq(&mut self, epoch: GroupEpoch) -> Seq {
        if self.epoch < epoch {
            (self.epoch, self.next_seq) = (epoch, 0);
        }
        self.next_seq
    }

    /// The epoch that it was last used in.
    pub(super) fn epoch(&self) -> GroupEpoch {
        self.epoch
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_blank(&self) -> bool {
        self.next_seq == 0
            && self.learned.is_empty()
            && self.unclaimed.is_empty()
            && self.ghost.is_none()
            && self.left.is_none()
    }

    /// Takes down a verdict. True if it is news.
    pub(super) fn learn(&mut self, key: &OpKey, verdict: &Verdict) -> bool {
        self.next_seq(key.epoch);
        if (key.epoch, key.seq) < (self.epoch, self.next_seq) {
            return false;
        }
        self.next_seq = key.seq.saturating_add(1);
        self.learned.push_back((key.clone(), brief(verdict)));
        if self.learned.len() > LEARNED_MAX
            && let Some(oldest) = self.learned.pop_front()
            && matches!(oldest.1, Verdict::Commit { .. })
        {
            self.commit = Some(oldest);
        }
        true
    }

    /// A verdict arrived for which no call waits.
    pub(super) fn keep(&mut self, key: &OpKey, verdict: &Verdict) -> Learned {
        if !self.learn(key, verdict) {
            return Learned::Known;
        }
        self.left.take_if(|left| left.key == *key);
        match verdict {
            Verdict::Commit { .. } => Learned::Impossible,
            Verdict::Abort(AbortReason::Void) => Learned::Dropped,
            Verdict::Abort(reason) => {
                if let Some(retry) = self.ghost {
                    if !retry || ends_call(reason) {
                        self.ghost = None;
                    }
                    return Learned::Dropped;
                }
                self.leave_for_later(reason.clone());
                Learned::Kept
            }
        }
    }

    fn leave_for_later(&mut self, reason: AbortReason) {
        match self.unclaimed.back_mut() {
            Some(last) if discriminant(&last.reason) == discriminant(&reason) => {
                last.count = last.count.saturating_add(1);
                last.reason = reason;
            }
            _ => self.unclaimed.push_back(Unclaimed { reason, count: 1 }),
        }
        if self.unclaimed.len() > UNCLAIMED_MAX {
            self.merge_oldest();
        }
    }

    /// Makes two runs of the older half: of verdicts that end a call that retries, and of those that do not. A call
    /// that retries passes over the latter and one that does not is ended by either, so both meet as many as before.
    fn merge_oldest(&mut self) {
        let rest = self.unclaimed.split_off(self.unclaimed.len() / 2);
        let mut merged: Vec<Unclaimed> = Vec::new();
        for run in std::mem::replace(&mut self.unclaimed, rest) {
            match merged.iter_mut().find(|known| ends_call(&known.reason) == ends_call(&run.reason)) {
                Some(known) => known.count = known.count.saturating_add(run.count),
                None => merged.push(run),
            }
        }
        merged.into_iter().rev().for_each(|run| self.unclaimed.push_front(run));
    }

    /// A call begins: whatever a call before it left unfinished, this one joins in.
    pub(super) fn begin(&mut self) {
        self.ghost = None;
    }

    /// The verdict that the next call must take, before it may begin an attempt of its own; and how many like it, if
    /// the call retries and so passes over them.
    pub(super) fn claim(&mut self, retry: bool) -> Option<(AbortReason, u64)> {
        let run = self.unclaimed.front_mut()?;
        let count = if retry && !ends_call(&run.reason) { run.count } else { 1 };
        run.count -= count;
        let claimed = (run.reason.clone(), count);
        self.unclaimed.pop_front_if(|run| run.count == 0);
        Some(claimed)
    }

    /// The broken link that ended a call to come was missed because these were lost.
    pub(super) fn name_lost(&mut self, lost: &[(PeerId, LossReason)]) {
        self.unclaimed.iter_mut().for_each(|run| name_lost(&mut run.reason, lost));
    }

    /// A call ended here that may go on elsewhere, and had voted for that attempt if there is one.
    pub(super) fn abandon(&mut self, retry: bool, attempt: Option<Abandoned>) {
        self.ghost = Some(retry);
        if attempt.is_some() {
            self.left = attempt;
        }
    }

    /// Whether we have voted for the next attempt in that epoch, with another call than this one.
    pub(super) fn waits_for_another(&mut self, epoch: GroupEpoch, call: &Fingerprint) -> bool {
        let next = self.next_seq(epoch);
        let is_next = |left: &Abandoned| (left.key.epoch, left.key.seq) == (epoch, next);
        self.left.as_ref().is_some_and(|left| is_next(left) && left.call != *call)
    }

    /// The attempt of that epoch that a call which ended here had voted for, if it has no verdict yet.
    pub(super) fn abandoned(&self, epoch: GroupEpoch) -> Option<&Abandoned> {
        let next = (self.epoch, self.next_seq);
        self.left.as_ref().filter(|left| left.key.epoch == epoch && (left.key.epoch, left.key.seq) == next)
    }

    /// What was voted for and abandoned so far ended with the connection on which it was said.
    pub(super) fn forget_votes(&mut self) {
        self.left = None;
    }

    /// Whether only a coordinator that was restarted could still ask for it, and only about an old epoch.
    pub(super) fn is_history(&self, epoch: GroupEpoch) -> bool {
        self.epoch < epoch && self.unclaimed.is_empty()
    }

    pub(super) fn learned(&self) -> Vec<(OpKey, Verdict)> {
        let latest = |commit: &&(OpKey, Verdict)| {
            !self.learned.iter().any(|(_, verdict)| matches!(verdict, Verdict::Commit { .. }))
                && Some(&commit.0) != self.learned.front().map(|(key, _)| key)
        };
        self.commit.iter().filter(latest).chain(&self.learned).cloned().collect()
    }
}

/// Whether such an abort ends the call for all, also if it retries.
pub(super) fn ends_call(reason: &AbortReason) -> bool {
    matches!(reason, AbortReason::Timeout(_) | AbortReason::NoPath { .. })
}

/// Blames those who were lost rather than the link that was missed first, if anybody was lost (rule 8). Whether the
/// call goes on is the same for both.
pub(super) fn name_lost(reason: &mut AbortReason, lost: &[(PeerId, LossReason)]) {
    if matches!(reason, AbortReason::LinkBroken { .. }) && !lost.is_empty() {
        *reason = AbortReason::PeersLost(lost.to_vec());
    }
}

/// A verdict as it is remembered for others: what they must decide by it is there, the explanations are short, so that
/// all of them together fit a resume (rule 40).
fn brief(verdict: &Verdict) -> Verdict {
    let short = |text: &str| clip(text, BRIEF_TEXT_BYTES_MAX);
    let Verdict::Abort(mut reason) = verdict.clone() else { return verdict.clone() };
    match &mut reason {
        AbortReason::Timeout(waiting) => waiting.clear(),
        AbortReason::PeersLost(lost) => lost.truncate(BRIEF_NAMED_MAX),
        // Whoever deviates and is not named does the call again, and is judged again.
        AbortReason::Mismatch { deviating, theirs, common } => {
            deviating.truncate(BRIEF_NAMED_MAX);
            (*theirs, *common) = (short(theirs), short(common));
        }
        AbortReason::LinkBroken { error, .. } => *error = short(error),
        AbortReason::Cancelled { .. } | AbortReason::Void | AbortReason::NoPath { .. } => {}
    }
    Verdict::Abort(reason)
}
