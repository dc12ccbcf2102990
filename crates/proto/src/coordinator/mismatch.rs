//! Who deviates, when the members' calls differ (rules 7, 42).
//!
//! # The problem
//!
//! A trained member and two newcomers make different calls. If numbers decided, the trained one would be told that
//! it is wrong, would end, and the newcomers would go on from nothing.
//!
//! # The intuition
//!
//! Whoever was there first is right. *Incumbents* are the members of a roster that gave a commit of the whole group:
//! they share something that a newcomer must fit into. So they alone say what the call is, the larger side of them,
//! the one with the oldest member if equal. An incumbent that deviates is refused and stays, and the others' retry
//! waits for it. A newcomer that deviates has committed nothing: it is told its mismatch and put out (rule 20h), and
//! nobody waits for it. While there are no incumbents all are equals, and nobody is put out.
//!
//! # The invariant
//!
//! Nobody is put out on the word of a part of the incumbents that the rest could outvote: as long as that may be, the
//! judgement waits for their calls, and the attempt's deadline bounds the wait.

use super::calls::Calls;
use super::groups::GroupState;
use super::outbox::Timer;
use crate::ballot;
use crate::collective::{Group, OpKey, Scope};
use crate::id::PeerId;
use crate::time::Instant;
use crate::wire::control::{AbortReason, BallotEnd, BallotId, LossReason};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Which of several sides is right.
enum Judgement {
    /// That one, by its index.
    Side(usize),
    /// Somebody's call is needed first.
    Wait,
}

impl Calls<'_> {
    /// Which of these sides is right, in a scope with those incumbents.
    fn judge(&self, incumbents: &BTreeSet<PeerId>, sides: &[Vec<PeerId>]) -> Judgement {
        let age = |peer: &PeerId| self.office.peers.get(*peer).map_or(u64::MAX, |peer| peer.age);
        let judges = |side: &&Vec<PeerId>| -> Vec<PeerId> {
            let counts = |peer: &&PeerId| incumbents.is_empty() || incumbents.contains(peer);
            side.iter().filter(counts).copied().collect()
        };
        let weight = |(_, side): &(usize, &Vec<PeerId>)| {
            let judges = judges(side);
            (judges.len(), Reverse(judges.iter().map(age).min()))
        };
        let Some((right, side)) = sides.iter().enumerate().max_by_key(weight) else { return Judgement::Wait };
        if incumbents.is_empty() {
            return Judgement::Side(right);
        }
        let is_newcomer = |peer: &PeerId| !incumbents.contains(peer);
        let puts_out = sides.iter().enumerate().any(|(at, side)| at != right && side.iter().any(is_newcomer));
        let heard: usize = sides.iter().map(|side| judges(&side).len()).sum();
        let certain = 2 * judges(&side).len() > incumbents.len() || heard == incumbents.len();
        if puts_out && !certain { Judgement::Wait } else { Judgement::Side(right) }
    }

    /// Who deviates, if calls differ and all of them, or enough time, are in (rule 7).
    pub(super) fn judge_mismatch(&mut self, now: Instant, key: &OpKey) {
        let Some(state) = self.groups.get(key.group).filter(|state| state.epoch == key.epoch) else {
            return;
        };
        let Some(op) = state.operations.attempt(key) else { return };
        let Some(judged_at) = op.judged_at else { return };
        if now < judged_at && op.votes.len() < op.members {
            return;
        }
        if op.calls.len() < 2 {
            // A frame disagreed though the votes do not: try again from the start.
            return self.abort(key, AbortReason::Void);
        }
        let incumbents = state.incumbents_in(&key.scope);
        let callers = |call: usize| op.votes.iter().filter(move |(_, vote)| vote.call == call);
        let sides: Vec<Vec<_>> =
            (0..op.calls.len()).map(|call| callers(call).map(|(id, _)| *id).collect()).collect();
        let Judgement::Side(common) = self.judge(&incumbents, &sides) else { return };
        let deviates = |(_, call): &(_, usize)| *call != common;
        let votes = op.votes.iter().map(|(id, vote)| (*id, vote.call));
        let deviating: Vec<_> = votes.clone().filter(deviates).map(|(id, _)| id).collect();
        let theirs = votes.map(|(_, call)| call).find(|call| *call != common);
        let reason = AbortReason::Mismatch {
            deviating: deviating.clone(),
            theirs: theirs.map_or_else(String::new, |call| op.calls[call].beside(&op.calls[common])),
            common: op.calls[common].beside(&op.calls[theirs.unwrap_or(common)]),
        };
        self.abort(key, reason);
        self.put_newcomers_out(&incumbents, &deviating);
    }

    /// Two kinds of calls in one group, be they ballots or collectives of all, are a mistake of the program, not a reason
    /// to wait (rule 7). Like differing calls they are judged when all have called, or after a moment.
    pub(super) fn judge_mixed_calls(&mut self, now: Instant, group: Group) {
        let settle = self.config.mismatch_settle;
        let Some(state) = self.groups.get_mut(group) else { return };
        let mut sides = sides(state);
        if sides.len() < 2 {
            state.operations.unmix();
            return;
        }
        let judged_at = state.operations.mixed_until(now + settle);
        let heard: usize = sides.iter().map(|side| side.peers.len()).sum();
        if now < judged_at && heard < state.roster.len() {
            return self.office.outbox.schedule(judged_at, Timer::Ops(group));
        }
        let incumbents = state.incumbents_in(&Scope::Whole);
        let peers: Vec<_> = sides.iter().map(|side| side.peers.clone()).collect();
        let Judgement::Side(right) = self.judge(&incumbents, &peers) else { return };
        if let Some(state) = self.groups.get_mut(group) {
            state.operations.unmix();
        }
        let common = sides.remove(right).words;
        for Side { ballot, peers, words } in sides {
            if let Some(id) = ballot {
                peers.iter().for_each(|voter| self.withdraw(*voter));
                self.tell_end(&peers, id, BallotEnd::Mismatch { others: common.clone() });
            } else {
                for key in self.groups.open_keys(group, |scope, _| *scope == Scope::Whole) {
                    let (deviating, theirs, common) = (peers.clone(), words.clone(), common.clone());
                    self.abort(&key, AbortReason::Mismatch { deviating, theirs, common });
                }
            }
            self.put_newcomers_out(&incumbents, &peers);
        }
    }

    /// Newcomers that deviate from incumbents leave, and nobody's retry waits for them (rules 20h, 42).
    fn put_newcomers_out(&mut self, incumbents: &BTreeSet<PeerId>, deviating: &[PeerId]) {
        if incumbents.is_empty() {
            return;
        }
        for peer in deviating.iter().filter(|peer| !incumbents.contains(peer)) {
            self.office.lose(*peer, LossReason::Deviated);
        }
    }
}

/// Those members of a group who make the same kind of call.
struct Side {
    /// The ballot in which they vote; none if they are in collectives.
    ballot: Option<BallotId>,
    peers: Vec<PeerId>,
    /// What they call.
    words: String,
}

/// What the members of a group are in: its collectives of all, and each ballot. Parts of a group may do what they like.
fn sides(state: &GroupState) -> Vec<Side> {
    let mut open = state.ballots.open().peekable();
    if open.peek().is_none() {
        return Vec::new(); // As a rule nobody votes, and there is nothing to look at.
    }
    let whole = state.operations.open().filter(|(scope, ..)| **scope == Scope::Whole);
    let ops: Vec<_> = whole.map(|(.., op)| op).collect();
    let callers: BTreeSet<_> = ops.iter().flat_map(|op| op.votes.keys().copied()).collect();
    let words = ops.first().map(|op| op.calls[0].to_string());
    let collectives =
        words.map(|words| Side { ballot: None, peers: callers.iter().copied().collect(), words });
    let ballots = open.map(|(kind, votes)| Side {
        ballot: Some(state.ballots.current(kind)),
        peers: votes.keys().filter(|voter| !callers.contains(voter)).copied().collect(),
        words: ballot::name(kind).to_owned(),
    });
    collectives.into_iter().chain(ballots).filter(|side| !side.peers.is_empty()).collect()
}
