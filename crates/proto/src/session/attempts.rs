//! Attempts: how a call becomes a series of them, and how each ends.
//!
//! The rule behind every branch here: what follows from a verdict depends on the verdict and on what all
//! members have in common (the fingerprint, the epoch's record), never on what only this member knows, such
//! as its clock. So all draw the same conclusion, and their next attempts pair up (rule 8). A deadline is no
//! exception: the first to pass is made a verdict, and the verdict ends the call for all (rule 6).

use super::calls::{CallError, CallId, Command, Done, Op, OutReason, PerformResult};
use super::machine::{Session, millis};
use super::tags::{Abandoned, Learned, TagMemory, ends_call, name_lost};
use crate::collective::{Attempt, BrokenLink, OpKey, Scope, Tag, around};
use crate::id::PeerId;
use crate::limits::TEXT_BYTES_MAX;
use crate::time::Instant;
use crate::wire::clip;
use crate::wire::control::{AbortReason, Decider, EpochRecord, LossReason, Refusal, ToCoordinator, Verdict};
use std::collections::BTreeSet;

/// A person who pressed Ctrl-C does not wait for the whole grace: this part of it is enough for a round trip to
/// a coordinator that answers (100 ms in the `lan` preset).
const CANCEL_GRACE_DIVISOR: u32 = 100;

/// Where an attempt is.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) enum Stage {
    /// Between attempts.
    Waiting,
    /// The executor moves bytes; an abort may have arrived meanwhile, or we gave up.
    Performing { key: OpKey, aborted: Option<AbortReason>, refused: Option<Refusal> },
    /// We said Complete.
    Complete { key: OpKey },
    /// We gave up before Complete, and wait for the verdict to say what that means for all.
    Refused { key: OpKey, reason: Refusal },
    /// A broken link ended the call. A link is often missed before its end is known to be dead: what the program
    /// is told waits until the coordinator says that all are here, or who is not (rule 8).
    Settling { error: CallError },
}

impl Stage {
    pub(super) fn key(&self) -> Option<&OpKey> {
        match self {
            Self::Waiting | Self::Settling { .. } => None,
            Self::Performing { key, .. } | Self::Complete { key } | Self::Refused { key, .. } => Some(key),
        }
    }
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Call {
    pub(super) op: Op,
    pub(super) stage: Stage,
    attempts: u32,
    /// When the program gave it up.
    pub(super) cancelled: Option<Instant>,
    /// Why this process could not do its part in the present attempt, and whether it could in another.
    failure: Option<(String, bool)>,
    /// Why the call cannot be had at all.
    denied: Option<CallError>,
    /// What gives the last attempt's verdict (rule 11).
    decider: Decider,
    /// The last attempt's members in the order of ranks, our rank and the group's size.
    contributors: Vec<PeerId>,
    rank: usize,
    world_size: usize,
}

impl Call {
    pub(super) fn new(op: Op) -> Self {
        let stage = Stage::Waiting;
        Self {
            op,
            stage,
            attempts: 0,
            cancelled: None,
            failure: None,
            denied: None,
            decider: Decider::Coordinator,
            contributors: Vec::new(),
            rank: 0,
            world_size: 0,
        }
    }
}

/// After such an abort attempts wait until the coordinator says that they can succeed again.
fn holds(reason: &AbortReason) -> bool {
    matches!(reason, AbortReason::PeersLost(_) | AbortReason::LinkBroken { .. } | AbortReason::NoPath { .. })
}

/// The ring of those in scope, and whether what goes straight between members must go around it instead, because
/// a link between two of them is broken. It follows from the record alone, so all members have the same. Where no
/// ring avoids what is broken the usual way is tried: perhaps it works again.
fn way(record: &EpochRecord, scope: &Scope) -> (Vec<PeerId>, bool) {
    let ring = record.ring.iter().map(|rank| record.roster[*rank as usize].id);
    let ring: Vec<_> = ring.filter(|peer| scope.involves(*peer)).collect();
    let broken = record.broken_links().filter(|(from, to)| scope.involves(*from) && scope.involves(*to));
    let broken: BTreeSet<_> = broken.collect();
    if broken.is_empty() {
        return (ring, false);
    }
    match around::plan(&ring, &broken) {
        Some(ring) => (ring, true),
        None => (ring, false),
    }
}

impl Session {
    pub(super) fn attempt_all(&mut self, now: Instant) {
        let waiting: Vec<_> =
            self.calls.iter().filter(|(_, call)| call.stage == Stage::Waiting).map(|(id, _)| *id).collect();
        for id in waiting {
            self.attempt(now, id);
        }
    }

    /// Begins the next attempt of a call, if nothing stands in its way.
    pub(super) fn attempt(&mut self, now: Instant, id: CallId) {
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.stage == Stage::Waiting) else { return };
        let memory = self.tags.entry((call.op.scope.clone(), call.op.tag)).or_default();
        if let Some((reason, count)) = memory.claim(call.op.fingerprint.retry) {
            call.attempts = call.attempts.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
            return self.aborted(now, id, reason);
        }
        let Some(record) = self.record.clone() else { return };
        if !self.may_vote() {
            return;
        }
        if let Err(error) = self.enlist(&record, id) {
            return self.fail(id, error);
        }
        let Some(call) = self.calls.get(&id) else { return };
        let expired = now >= call.op.deadline;
        let memory = self.tags.entry((call.op.scope.clone(), call.op.tag)).or_default();
        if memory.waits_for_another(record.epoch, &call.op.fingerprint) {
            // Until the verdict is here; or until there is no more time for it.
            if expired {
                self.abandon(id, CallError::Timeout(Vec::new()));
            }
            return;
        }
        if self.hold && !expired {
            return;
        }
        let Some(call) = self.calls.get_mut(&id) else { return };
        let (scope, tag) = (call.op.scope.clone(), call.op.tag);
        let seq = self.tags.entry((scope.clone(), tag)).or_default().next_seq(record.epoch);
        let key = OpKey { group: record.group, epoch: record.epoch, scope, tag, seq };
        let fingerprint = call.op.fingerprint.clone();
        let decider = record.decider;
        call.decider = decider;
        if expired {
            // A vote that waits for nothing: its verdict tells everybody that the call timed out.
            call.stage = Stage::Refused { key: key.clone(), reason: Refusal::Deadline };
            return self.tell_decider(id, ToCoordinator::Initiate { key, fingerprint, timeout_ms: 0 });
        }
        let (ring, goes_around) = way(&record, &key.scope);
        call.attempts += 1;
        call.failure = None;
        call.stage = Stage::Performing { key: key.clone(), aborted: None, refused: None };
        let timeout_ms = millis(call.op.deadline.since(now)).max(1);
        let members = call.contributors[..].into();
        self.tell_decider(id, ToCoordinator::Initiate { key: key.clone(), fingerprint, timeout_ms });
        let attempt = Attempt { key, ring: ring.into(), members, goes_around, decider };
        self.command(id, Command::Perform(attempt));
    }

    /// The one place where a vote on an attempt leaves: it goes to what decides in the attempt's epoch (rule 11).
    pub(super) fn tell_decider(&mut self, id: CallId, vote: ToCoordinator) {
        let Some(call) = self.calls.get(&id) else { return };
        match call.decider {
            Decider::Coordinator => self.send(vote),
        }
    }

    /// Who takes part in the next attempt; an error if it cannot be made in this epoch.
    fn enlist(&mut self, record: &EpochRecord, id: CallId) -> Result<(), CallError> {
        let me = self.registration.info.id;
        let Some(call) = self.calls.get(&id) else { return Ok(()) };
        let scope = &call.op.scope;
        let members: Vec<_> =
            record.roster.iter().map(|info| info.id).filter(|peer| scope.involves(*peer)).collect();
        // Whom it needs, if that is not simply whoever is here.
        let needed = match (&call.op.members, scope) {
            (Some(known), _) => Some(known).filter(|known| **known != members),
            (None, Scope::Members(listed)) => Some(listed).filter(|listed| listed.len() > members.len()),
            (None, Scope::Whole) => None,
        };
        if let Some(needed) = needed {
            let lost = needed.iter().filter(|peer| !members.contains(peer));
            let lost: Vec<_> = lost.map(|peer| (*peer, self.loss_of(*peer))).collect();
            if lost.is_empty() {
                let text = format!("{} members take part, {} were expected", members.len(), needed.len());
                return Err(CallError::GivenUp(text));
            }
            return Err(CallError::PeersLost(lost));
        }
        let want = call.op.fingerprint.min_world;
        if members.len() < want as usize {
            return Err(CallError::TooFewPeers { have: members.len(), want });
        }
        let Some(call) = self.calls.get_mut(&id) else { return Ok(()) };
        call.contributors = members;
        call.rank = record.rank_of(me).unwrap_or(0);
        call.world_size = record.roster.len();
        Ok(())
    }

    /// The executor is done with an attempt and holds nothing of the caller's any more.
    pub fn handle_performed(&mut self, now: Instant, id: CallId, result: PerformResult) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Stage::Performing { key, aborted, refused } = call.stage.clone() else { return };
        let done = result == PerformResult::Done;
        if done && (aborted.is_some() || refused.is_some()) {
            self.command(id, Command::Undo);
        }
        if let Some(reason) = aborted {
            return self.aborted(now, id, reason);
        }
        let refusal = match (refused, result) {
            // The others were told already; the verdict will say what it means.
            (Some(reason), _) => return self.set_stage(id, Stage::Refused { key, reason }),
            (None, PerformResult::Done) => {
                self.set_stage(id, Stage::Complete { key: key.clone() });
                if self.may_vote() {
                    self.tell_decider(id, ToCoordinator::Complete { key });
                }
                return;
            }
            (None, PerformResult::Stopped) => Refusal::Cancelled,
            (None, PerformResult::Failed { why, again }) => {
                if let Some(call) = self.calls.get_mut(&id) {
                    call.failure = Some((why, again));
                }
                Refusal::Cancelled
            }
            (None, PerformResult::LinkBroken(BrokenLink { from, to, error })) => {
                Refusal::Link { from, to, error: clip(&error, TEXT_BYTES_MAX) }
            }
            (None, PerformResult::Mismatch { peer }) => Refusal::Mismatch { peer },
        };
        self.set_stage(id, Stage::Refused { key: key.clone(), reason: refusal.clone() });
        if self.may_vote() {
            self.tell_decider(id, ToCoordinator::Refuse { key, reason: refusal });
        }
    }

    /// A call's deadline has passed, or it was cancelled and no verdict came of it.
    pub(super) fn overdue(&mut self, now: Instant, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        let cancelled = call.cancelled.is_some();
        let late = now >= self.given_up_at(call);
        match &call.stage {
            // Before Complete a peer may refuse for good and return (rule 5).
            Stage::Waiting | Stage::Refused { .. } if late => {
                let timeout = || CallError::Timeout(Vec::new());
                self.abandon(id, if cancelled { CallError::Cancelled } else { timeout() });
            }
            Stage::Waiting => self.attempt(now, id),
            Stage::Settling { error } => self.fail(id, error.clone()),
            Stage::Performing { aborted: None, refused: None, .. } => self.refuse(now, id, Refusal::Deadline),
            Stage::Complete { .. } if late => self.end(OutReason::OutcomeUnknown),
            Stage::Performing { .. } | Stage::Refused { .. } | Stage::Complete { .. } => {}
        }
    }

    /// When a call stops waiting for its verdict. One that the program cancelled waits for a moment only.
    pub(super) fn given_up_at(&self, call: &Call) -> Instant {
        let grace = self.config.verdict_grace;
        let late = call.op.deadline + grace;
        call.cancelled.map_or(late, |at| late.min(at + grace / CANCEL_GRACE_DIVISOR))
    }

    /// A verdict arrived.
    pub(super) fn verdict(&mut self, now: Instant, key: OpKey, verdict: Verdict) {
        let Some((&id, call)) = self.calls.iter().find(|(_, call)| call.stage.key() == Some(&key)) else {
            return self.unexpected_verdict(now, &key, &verdict);
        };
        let stage = call.stage.clone();
        self.memory((key.scope.clone(), key.tag)).learn(&key, &verdict);
        let reason = match (verdict, &stage) {
            (Verdict::Commit { pending }, Stage::Complete { .. }) => {
                self.command(id, Command::Commit);
                return self.commit(id, key, pending);
            }
            // A commit without our Complete cannot be: whoever says so is no coordinator of ours.
            (Verdict::Commit { .. }, _) => return self.end(OutReason::OutcomeUnknown),
            (Verdict::Abort(reason), _) => reason,
        };
        if holds(&reason) {
            self.hold = true;
        }
        match stage {
            Stage::Performing { key, refused, aborted } => {
                let stopping = aborted.is_some() || refused.is_some();
                self.set_stage(id, Stage::Performing { key, aborted: Some(reason), refused });
                if !stopping {
                    self.command(id, Command::Abort);
                }
            }
            Stage::Complete { .. } => {
                self.command(id, Command::Undo);
                self.aborted(now, id, reason);
            }
            Stage::Refused { .. } => self.aborted(now, id, reason),
            Stage::Waiting | Stage::Settling { .. } => {}
        }
    }

    /// A verdict on an attempt that no call of ours is in.
    fn unexpected_verdict(&mut self, now: Instant, key: &OpKey, verdict: &Verdict) {
        // While we vote in a ballot others began a collective, and were told off: that is not our call.
        let told_off =
            self.votes_in_ballot() && matches!(verdict, Verdict::Abort(AbortReason::Mismatch { .. }));
        let memory = self.memory((key.scope.clone(), key.tag));
        let learned = match told_off {
            false => memory.keep(key, verdict),
            true if memory.learn(key, verdict) => Learned::Dropped,
            true => Learned::Known,
        };
        if let Verdict::Abort(reason) = verdict
            && learned != Learned::Known
            && holds(reason)
        {
            self.hold = true;
        }
        match learned {
            Learned::Known => {}
            Learned::Dropped | Learned::Kept => {
                self.send(ToCoordinator::Acknowledge { key: key.clone() });
                // A call that waits between attempts takes it at once; or what it waited for is over without a trace,
                // and it goes on.
                let waits = |call: &Call| (&call.op.scope, call.op.tag) == (&key.scope, key.tag);
                if let Some(id) = self.calls.iter().find(|(_, call)| waits(call)).map(|(id, _)| *id) {
                    self.attempt(now, id);
                }
            }
            Learned::Impossible => self.end(OutReason::OutcomeUnknown),
        }
    }

    /// The coordinator says that an attempt cannot be made, and that nothing was begun for it.
    pub(super) fn denied(&mut self, key: &OpKey, error: CallError) {
        let Some((&id, call)) = self.calls.iter_mut().find(|(_, call)| call.stage.key() == Some(key)) else {
            return;
        };
        call.denied = Some(error.clone());
        match call.stage.clone() {
            // The executor lets go first. Nobody else takes part, so nothing follows from how it ends.
            Stage::Performing { key, aborted: None, refused } => {
                let (aborted, stopping) = (Some(AbortReason::Void), refused.is_some());
                self.set_stage(id, Stage::Performing { key, aborted, refused });
                if !stopping {
                    self.command(id, Command::Abort);
                }
            }
            Stage::Performing { .. } => {}
            Stage::Complete { .. } => {
                self.command(id, Command::Undo);
                self.fail_denied(id, error);
            }
            Stage::Refused { .. } | Stage::Waiting | Stage::Settling { .. } => self.fail_denied(id, error),
        }
    }

    /// Ends a call for which nothing was begun anywhere, and leaves nothing behind.
    fn fail_denied(&mut self, id: CallId, error: CallError) {
        let place = self.calls.get(&id).map(|call| (call.op.scope.clone(), call.op.tag));
        if let Some(place) = place.filter(|place| self.tags.get(place).is_some_and(TagMemory::is_blank)) {
            self.tags.remove(&place);
        }
        self.fail(id, error);
    }

    fn commit(&mut self, id: CallId, key: OpKey, pending: u32) {
        let Some(call) = self.calls.remove(&id) else { return };
        let Call { op, contributors, rank, world_size, attempts, .. } = call;
        if let Some(step) = op.fingerprint.step.filter(|_| key.scope == Scope::Whole) {
            self.revision = Some(step.saturating_add(1));
        }
        self.finish(id, Ok(Done::Committed { key, contributors, rank, world_size, attempts, pending }));
    }

    /// An attempt was aborted and the caller's data is as it was: try again, or say why not. Every member
    /// decides this from the verdict and the fingerprint alone, so all decide the same (rule 8).
    fn aborted(&mut self, now: Instant, id: CallId, reason: AbortReason) {
        let me = self.registration.info.id;
        let Some(call) = self.calls.get(&id) else { return };
        if let Some(error) = call.denied.clone() {
            return self.fail_denied(id, error);
        }
        let retry = call.op.fingerprint.retry;
        // Whether the others go on with this call, whatever becomes of ours.
        let goes_on = reason == AbortReason::Void || (retry && !ends_call(&reason));
        let given_up = |text: String| Some(CallError::GivenUp(text));
        let error = match reason {
            AbortReason::Timeout(waiting) => Some(CallError::timed_out(waiting, me)),
            // Between attempts a call has voted for nothing: what deviated was another one, which ended here before.
            AbortReason::Mismatch { deviating, common, .. }
                if deviating.contains(&me) && call.stage.key().is_some() =>
            {
                Some(CallError::Mismatch { ours: call.op.fingerprint.to_string(), others: common })
            }
            AbortReason::Cancelled { by } if by == me && call.cancelled.is_some() => {
                Some(CallError::Cancelled)
            }
            _ if call.cancelled.is_some() => Some(CallError::Cancelled),
            _ if let Some((why, false)) = &call.failure => Some(CallError::Failed(why.clone())),
            _ if goes_on => None,
            _ if let Some((why, true)) = &call.failure => Some(CallError::Failed(why.clone())),
            AbortReason::PeersLost(lost) => Some(CallError::PeersLost(lost)),
            AbortReason::LinkBroken { from, to, error } => {
                let error = CallError::LinkBroken(BrokenLink { from, to, error });
                if self.hold {
                    return self.set_stage(id, Stage::Settling { error });
                }
                Some(error)
            }
            AbortReason::Mismatch { deviating, theirs, .. } => {
                let who: Vec<_> = deviating.iter().map(PeerId::short).collect();
                given_up(format!("{} called {theirs}", who.join(", ")))
            }
            AbortReason::Cancelled { by } => given_up(format!("cancelled by {}", by.short())),
            AbortReason::NoPath { from, to } => Some(CallError::NoPath { from, to }),
            AbortReason::Void => None,
        };
        match error {
            Some(error) if goes_on => self.abandon(id, error),
            Some(error) => self.fail(id, error),
            None => {
                self.set_stage(id, Stage::Waiting);
                self.attempt(now, id);
            }
        }
    }

    /// The error of a call that deviates from the others', if the verdict said so and its executor has not let go yet.
    pub(super) fn own_mismatch(&self, call: &Call) -> Option<CallError> {
        let Stage::Performing { aborted: Some(AbortReason::Mismatch { deviating, common, .. }), .. } =
            &call.stage
        else {
            return None;
        };
        let ours = call.op.fingerprint.to_string();
        let mine = deviating.contains(&self.registration.info.id);
        mine.then(|| CallError::Mismatch { ours, others: common.clone() })
    }

    /// A new epoch has begun. What was still open in the old one has no verdict, and will have none: verdicts
    /// are told before the epoch that ends them. It is void for everybody, and the call goes on.
    pub(super) fn void_attempts(&mut self, now: Instant) {
        let Some(epoch) = self.record.as_ref().map(|record| record.epoch) else { return };
        let stale = |call: &Call| call.stage.key().is_some_and(|key| key.epoch < epoch);
        let stale: Vec<_> = self.calls.iter().filter(|(_, call)| stale(call)).map(|(id, _)| *id).collect();
        for id in stale {
            match self.calls.get(&id).map(|call| call.stage.clone()) {
                Some(Stage::Complete { .. }) => {
                    self.command(id, Command::Undo);
                    self.aborted(now, id, AbortReason::Void);
                }
                Some(Stage::Refused { .. }) => self.aborted(now, id, AbortReason::Void),
                Some(Stage::Performing { key, aborted: None, refused }) => {
                    let stopping = refused.is_some();
                    let aborted = Some(AbortReason::Void);
                    self.set_stage(id, Stage::Performing { key, aborted, refused });
                    if !stopping {
                        self.command(id, Command::Abort);
                    }
                }
                Some(Stage::Performing { .. } | Stage::Waiting | Stage::Settling { .. }) | None => {}
            }
        }
    }

    /// What stood in the way is settled. Calls that a broken link has ended are told who was lost with it, if
    /// anybody was; also those whose executor has not let go yet, and those that the program has yet to make.
    pub(super) fn settled(&mut self, lost: &[(PeerId, LossReason)]) {
        let lost_in = |scope: &Scope| -> Vec<_> {
            lost.iter().copied().filter(|(peer, _)| scope.involves(*peer)).collect()
        };
        for ((scope, _), memory) in &mut self.tags {
            memory.name_lost(&lost_in(scope));
        }
        let mut over = Vec::new();
        for (id, call) in &mut self.calls {
            let lost = lost_in(&call.op.scope);
            match &mut call.stage {
                Stage::Settling { error } if lost.is_empty() => over.push((*id, error.clone())),
                Stage::Settling { .. } => over.push((*id, CallError::PeersLost(lost))),
                Stage::Performing { aborted: Some(reason), .. } => name_lost(reason, &lost),
                _ => {}
            }
        }
        for (id, error) in over {
            self.fail(id, error);
        }
    }

    /// What we said or would have said of open attempts, for a coordinator that may not have heard it.
    pub(super) fn votes_again(&self) -> Vec<(CallId, ToCoordinator)> {
        let votes = |call: &Call| match call.stage.clone() {
            Stage::Complete { key } => {
                // The program may have given it up since: then an abort is asked for (rule 5).
                let reason = Refusal::Cancelled;
                let given_up = call.cancelled.map(|_| ToCoordinator::Refuse { key: key.clone(), reason });
                [Some(ToCoordinator::Complete { key }), given_up]
            }
            Stage::Refused { key, reason }
            | Stage::Performing { key, aborted: None, refused: Some(reason) } => {
                [Some(ToCoordinator::Refuse { key, reason }), None]
            }
            Stage::Performing { .. } | Stage::Waiting | Stage::Settling { .. } => [None, None],
        };
        let named = self.calls.iter().map(|(id, call)| (*id, votes(call)));
        named.flat_map(|(id, votes)| votes.into_iter().flatten().map(move |vote| (id, vote))).collect()
    }

    /// Gives an attempt up while the executor is at it: it is told to stop, and the others are told.
    pub(super) fn refuse(&mut self, _now: Instant, id: CallId, reason: Refusal) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Stage::Performing { key, refused, aborted: None } = &mut call.stage else { return };
        if refused.is_some() {
            return;
        }
        *refused = Some(reason.clone());
        let key = key.clone();
        self.command(id, Command::Abort);
        if self.may_vote() {
            self.tell_decider(id, ToCoordinator::Refuse { key, reason });
        }
    }

    /// Ends a call that may go on elsewhere: the verdicts on its further attempts are not the next call's.
    pub(super) fn abandon(&mut self, id: CallId, error: CallError) {
        if let Some(call) = self.calls.get(&id) {
            let place = (call.op.scope.clone(), call.op.tag);
            let fingerprint = call.op.fingerprint.clone();
            let (retry, voted) = match call.stage.clone() {
                Stage::Refused { key, reason } => {
                    (fingerprint.retry, Some(Abandoned { key, call: fingerprint, reason }))
                }
                _ => (fingerprint.retry, None),
            };
            self.tags.entry(place).or_default().abandon(retry, voted);
        }
        self.fail(id, error);
    }

    /// Refuses what the resume had told of as an open vote, and was abandoned since. Nobody else would: the others would
    /// wait for it until their deadline. If the program makes the same call again, that one goes on with the vote.
    pub(super) fn refuse_abandoned(&mut self) {
        let Some(record) = self.record.clone() else { return };
        let is_taken_up = |place: &(Scope, Tag), left: &Abandoned| {
            let same = |call: &Call| (&call.op.scope, call.op.tag) == (&place.0, place.1);
            self.calls.values().any(|call| same(call) && call.op.fingerprint == left.call)
        };
        let left = self.tags.iter().filter_map(|(place, memory)| {
            memory.abandoned(record.epoch).filter(|left| !is_taken_up(place, left)).cloned()
        });
        for Abandoned { key, reason, .. } in left.collect::<Vec<_>>() {
            match record.decider {
                Decider::Coordinator => self.send(ToCoordinator::Refuse { key, reason }),
            }
        }
    }

    fn set_stage(&mut self, id: CallId, stage: Stage) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.stage = stage;
        }
    }

    pub(super) fn fail(&mut self, id: CallId, error: CallError) {
        self.calls.remove(&id);
        self.finish(id, Err(error));
    }
}
