//! What a peer remembers of one (scope, tag).

use crate::collective::{GroupEpoch, OpKey, Seq};
use crate::limits::{LEARNED_MAX, UNCLAIMED_MAX};
use crate::wire::control::{AbortReason, Verdict};
use std::collections::VecDeque;

/// What became of a verdict that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// It is old news.
    Known,
    /// The program has not made that call yet: kept for it.
    Kept,
    /// The call that it belongs to ended without it.
    Dropped,
    /// More verdicts wait for calls than anybody could still pair up.
    Overflow,
    /// It cannot be: a commit needs our vote.
    Impossible,
}

/// One (scope, tag).
#[derive(Clone, Debug, Default)]
pub(super) struct TagMemory {
    epoch: GroupEpoch,
    next_seq: Seq,
    learned: VecDeque<(OpKey, Verdict)>,
    unclaimed: VecDeque<AbortReason>,
    /// Attempts whose call ended before the verdict came, and calls that ended before their attempt began.
    orphan: Option<OpKey>,
    owed: u32,
}

impl TagMemory {
    /// The number of the next attempt in that epoch. A new epoch starts at zero.
    pub(super) fn next_seq(&mut self, epoch: GroupEpoch) -> Seq {
        if self.epoch < epoch {
            (self.epoch, self.next_seq, self.owed, self.orphan) = (epoch, 0, 0, None);
        }
        self.next_seq
    }

    /// Takes down a verdict. True if it is news.
    pub(super) fn learn(&mut self, key: &OpKey, verdict: &Verdict) -> bool {
        self.next_seq(key.epoch);
        if (key.epoch, key.seq) < (self.epoch, self.next_seq) {
            return false;
        }
        self.next_seq = key.seq + 1;
        if self.learned.len() == LEARNED_MAX {
            self.learned.pop_front();
        }
        self.learned.push_back((key.clone(), verdict.clone()));
        true
    }

    /// A verdict arrived for which no call waits.
    pub(super) fn keep(&mut self, key: &OpKey, verdict: &Verdict) -> Learned {
        let orphan = self.orphan.as_ref() == Some(key);
        if !self.learn(key, verdict) {
            return Learned::Known;
        }
        if orphan {
            self.orphan = None;
            return Learned::Dropped;
        }
        if self.owed > 0 {
            self.owed -= 1;
            return Learned::Dropped;
        }
        match verdict {
            Verdict::Commit { .. } => Learned::Impossible,
            Verdict::Abort(_) if self.unclaimed.len() >= UNCLAIMED_MAX => Learned::Overflow,
            Verdict::Abort(reason) => {
                self.unclaimed.push_back(reason.clone());
                Learned::Kept
            }
        }
    }

    /// The verdict that the next call must take, before it may begin an attempt of its own.
    pub(super) fn claim(&mut self) -> Option<AbortReason> {
        self.unclaimed.pop_front()
    }

    /// A call ended without a verdict: the one that is still to come belongs to nobody.
    pub(super) fn abandon(&mut self, key: Option<OpKey>) {
        match key {
            Some(key) => self.orphan = Some(key),
            None => self.owed += 1,
        }
    }

    pub(super) fn learned(&self) -> Vec<(OpKey, Verdict)> {
        self.learned.iter().cloned().collect()
    }
}
