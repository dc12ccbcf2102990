//! A process acts: it makes the calls of its program, and does what follows from their ends.

use super::data::Buffer;
use super::facts::{Fact, Place};
use super::process::{CallState, CastVote, Phase};
use super::program::{self, Habits, Next, Planned, SYNC_TAG, Ways};
use super::world::{Event, World};
use outlast_proto::ballot::optimise::{self, RingOutcome};
use outlast_proto::ballot::{dummy, sync};
use outlast_proto::collective::{OpKind, Scope};
use outlast_proto::session::{CallError, CallId, Done, Op, OutReason, Outcome};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire;
use std::collections::VecDeque;

/// How long the calls may take that connect and vote.
const PATIENCE: Duration = Duration::from_secs(30);

impl World {
    pub(super) fn begin_call(
        &mut self,
        process: usize,
        id: CallId,
        planned: Option<Planned>,
        deadline: Instant,
        before: Buffer,
    ) {
        let now = self.now;
        let process = &mut self.processes[process];
        let state = CallState {
            planned,
            deadline,
            stopped_before: process.stopped_for(now),
            before: before.clone(),
            buffer: before,
            saved: None,
            executing: None,
            told: VecDeque::new(),
        };
        process.calls.insert(id, state);
    }

    pub(super) fn call(&mut self, process: usize, mut planned: Planned) {
        let now = self.now;
        let deadline = now + planned.timeout;
        let Habits { cancels, mismatches, .. } = self.settings.habits;
        let peer = &mut self.processes[process];
        // Only calls that the others go on with can be left and joined again. The first call of a newcomer is the
        // one on which it is judged (rule 42), so that one is made right.
        let may_stray = planned.retry && planned.tag != SYNC_TAG;
        planned.deviates = may_stray && mismatches > 0.0 && peer.rng.chance(mismatches);
        let cancelled = (may_stray && cancels > 0.0 && peer.rng.chance(cancels)).then(|| peer.rng.unit());
        let (scope, tag, fingerprint) = (planned.scope.clone(), planned.tag, planned.fingerprint());
        let before = match planned.kind {
            OpKind::Barrier => Buffer::default(),
            _ => Buffer::new([((peer.id, peer.step), 1)].into()),
        };
        let in_scope = || peer.members.iter().copied().filter(|member| scope.involves(*member)).collect();
        let members = (!planned.kind.may_retry()).then(in_scope);
        // The call's thread must be there before it is told anything.
        let id = peer.session.handle_op_call(now, Op { scope, tag, fingerprint, deadline, members });
        if planned.deviates {
            self.deviated = true;
            self.line(|| format!("process {process} makes another call than the others on tag {tag}"));
        }
        self.begin_call(process, id, Some(planned), deadline, before);
        if let Some(share) = cancelled {
            self.after(Duration::from_millis(300).mul_f64(share), Event::Cancel(process, id));
        }
        self.drain_peer(process);
    }

    /// The program gives a call up, if it is not over.
    pub(super) fn cancel(&mut self, process: usize, id: CallId) {
        let now = self.now;
        if self.processes[process].calls.contains_key(&id) {
            self.line(|| format!("process {process} gives call {} up", id.0));
            self.processes[process].cancelled = now;
            self.processes[process].session.handle_cancel(now, id);
            self.drain_peer(process);
        }
    }

    /// The program takes its next step.
    pub(super) fn go_on(&mut self, process: usize) {
        let now = self.now;
        let habits = self.settings.habits.clone();
        if habits.trains && self.processes[process].phase != Phase::Starting {
            return self.train_on(process);
        }
        match self.processes[process].phase {
            Phase::Starting => {
                let first = self.processes[process].obeyed == 0 && (process as u32) < self.settings.peers;
                let group = self.processes[process].group;
                let (peers, groups) = (self.settings.peers, self.settings.groups);
                let all = (0..peers).filter(|index| index % groups == group).count() as u32;
                let min_world = if first && now < Instant::from_nanos(2_000_000_000) { all } else { 1 };
                let deadline = now + PATIENCE;
                self.processes[process].phase = Phase::Connecting;
                self.forget_links(process);
                let id = self.processes[process].session.handle_connect_call(now, min_world, deadline);
                self.begin_call(process, id, None, deadline, Buffer::default());
                self.drain_peer(process);
            }
            Phase::Connecting | Phase::Voting => self.agree(process),
            Phase::Agreeing | Phase::Thinking => {
                let peer = &mut self.processes[process];
                let again = std::mem::take(&mut peer.agree_again);
                if std::mem::take(&mut peer.pending) > 0 {
                    peer.phase = Phase::Voting;
                    return self.vote(process);
                }
                if again {
                    return self.agree(process);
                }
                let step = peer.step.unwrap_or(0);
                let seed = self.settings.seed;
                if peer.balloted != Some(step) && program::ballot(&habits, seed, step).is_some() {
                    peer.phase = Phase::Balloting;
                    return self.cast_vote(process);
                }
                peer.phase = Phase::Stepping;
                let mut calls = program::step(&habits, seed, step, peer.id, &peer.members);
                peer.rng.shuffle(&mut calls);
                peer.open = calls.len();
                for planned in calls {
                    self.call(process, planned);
                }
            }
            Phase::Balloting if self.processes[process].measures.is_some() => self.cast_vote(process),
            Phase::Balloting => {
                let peer = &mut self.processes[process];
                (peer.balloted, peer.phase) = (peer.step, Phase::Thinking);
                self.go_on(process);
            }
            Phase::Stepping | Phase::Syncing | Phase::Healing | Phase::Gone => {}
        }
    }

    fn agree(&mut self, process: usize) {
        self.processes[process].phase = Phase::Agreeing;
        self.processes[process].open = 1;
        self.call(process, program::sync(&self.settings.habits));
    }

    pub(super) fn vote(&mut self, process: usize) {
        let (now, deadline) = (self.now, self.now + PATIENCE);
        let id = self.processes[process].session.handle_admission_call(now, 1, deadline);
        self.begin_call(process, id, None, deadline, Buffer::default());
        self.drain_peer(process);
    }

    /// Votes in a ballot about nothing, or in a turn of one for a better ring.
    fn cast_vote(&mut self, process: usize) {
        let (now, deadline) = (self.now, self.now + PATIENCE);
        let peer = &mut self.processes[process];
        let kind = program::ballot(&self.settings.habits, self.settings.seed, peer.step.unwrap_or(0));
        peer.votes_cast += 1;
        let ways = Ways { seed: self.settings.seed, step: peer.step.unwrap_or(0), me: peer.id };
        let roster = || peer.session.record().into_iter().flat_map(|record| &record.roster);
        let members = roster().count();
        let mut is_owed = false;
        let wish = match (kind, peer.measures.take()) {
            (Some(optimise::KIND), Some(dialled)) => {
                is_owed = true;
                ways.measured(&dialled)
            }
            (Some(optimise::KIND), None) => ways.begin(roster().map(|info| info.id)),
            _ => [(process as u32).to_be_bytes(), peer.votes_cast.to_be_bytes()].concat(),
        };
        peer.ballot = Some(CastVote { wish: wish.clone(), term: peer.obeyed, members });
        let kind = kind.unwrap_or(dummy::KIND);
        let id = if is_owed {
            peer.session.handle_next_turn(now, kind, wish, deadline)
        } else {
            peer.session.handle_ballot_call(now, kind, wish, deadline)
        };
        self.begin_call(process, id, None, deadline, Buffer::default());
        self.drain_peer(process);
    }

    pub(super) fn finished(&mut self, process: usize, call: CallId, outcome: Outcome) {
        let now = self.now;
        let Some(state) = self.processes[process].calls.remove(&call) else { return };
        let stopped = self.processes[process].stopped_for(now).saturating_sub(state.stopped_before);
        self.line(|| {
            let tag = state.planned.as_ref().map(|planned| (planned.tag, planned.kind.name()));
            format!("process {process}: call {} {tag:?} ends: {}", call.0, words(&outcome))
        });
        let peer = &self.processes[process];
        let place = state.planned.as_ref().filter(|planned| planned.tag != SYNC_TAG).and_then(|planned| {
            let (base, step, turn) = (peer.agreed.clone()?, peer.step?, planned.turn);
            Some(Place { base, step, scope: planned.scope.clone(), tag: planned.tag, turn })
        });
        let next = match (&outcome, &state.planned) {
            (Err(error), Some(planned)) => Some(planned.after(&self.settings.habits, error)),
            _ => None,
        };
        let for_all = outcome.is_ok() || matches!(next, Some(Next::MoveOn | Next::AgainTogether));
        self.fact(Fact::Finished {
            process,
            peer: peer.id,
            kind: state.planned.as_ref().map(|planned| planned.kind),
            root: state.planned.as_ref().and_then(|planned| planned.root),
            outcome: outcome.clone(),
            before: state.planned.is_some().then(|| state.before.clone()),
            after: state.planned.is_some().then(|| state.buffer.clone()),
            deadline: state.deadline,
            stopped,
            place: place.filter(|_| for_all),
        });
        if self.processes[process].phase == Phase::Gone {
            return;
        }
        match (outcome, state.planned) {
            (Err(CallError::Out(reason)), _) => self.out(process, reason),
            (Err(_), Some(planned)) => self.failed(process, planned, next.unwrap_or(Next::Again)),
            // The others are further: whoever is told so goes on with them. What has timed out is over for all.
            (Err(CallError::Mismatch { .. }), None) if self.processes[process].phase == Phase::Balloting => {
                self.processes[process].ballot = None;
                self.after(Duration::ZERO, Event::Program(process));
            }
            (Err(error), None) => {
                let out = self.processes[process].session.out().cloned();
                match out {
                    Some(reason) => self.out(process, reason),
                    None if self.settings.habits.trains => self.ballot_failed(process, &error),
                    None if self.processes[process].phase == Phase::Balloting => self.cast_vote(process),
                    None => self.vote(process), // The same again.
                }
            }
            (Ok(Done::Ballot { kind, outcome, .. }), _) if kind == sync::KIND => {
                self.synced(process, outcome);
            }
            (Ok(Done::Ballot { kind, outcome, .. }), _) if kind == optimise::KIND => {
                self.ring_turn(process, &outcome);
            }
            (Ok(Done::Ballot { .. }), _) => {
                self.processes[process].ballot = None;
                self.after(Duration::ZERO, Event::Program(process));
            }
            (Ok(Done::Committed { contributors, pending, attempts, key, .. }), planned) => {
                let peer = &mut self.processes[process];
                peer.extra_attempts += u64::from(attempts - 1);
                if key.scope == Scope::Whole {
                    peer.commits += 1;
                }
                let tag = planned.map(|planned| planned.tag);
                if self.settings.habits.trains {
                    self.trained(process, key, &contributors, pending);
                    return self.call_done(process);
                }
                let peer = &mut self.processes[process];
                if tag == Some(SYNC_TAG) {
                    let steps = state.buffer.keys().filter_map(|(_, step)| *step);
                    peer.step = Some(steps.max().unwrap_or(0));
                    peer.members = contributors;
                    peer.agreed = peer.session.record().map(|record| (record.founder, key));
                }
                if tag == Some(0) {
                    peer.pending = pending;
                }
                self.call_done(process);
            }
        }
    }

    /// A turn of a vote for a better ring was agreed on.
    fn ring_turn(&mut self, process: usize, outcome: &[u8]) {
        let outcome = wire::decode::<RingOutcome>(outcome).expect("an outcome of ours");
        let peer = &mut self.processes[process];
        let (me, mut delay) = (peer.id, Duration::ZERO);
        peer.ballot = None;
        match &outcome {
            RingOutcome::Measure { members, heats } => {
                let ends =
                    |(dials, dialled): &(u32, u32)| (members[*dials as usize], members[*dialled as usize]);
                let ours = heats.iter().flatten().map(ends).filter(|(dials, _)| *dials == me);
                peer.measures = Some(ours.map(|(_, dialled)| dialled).collect());
                delay = self.some(Duration::from_millis(300));
            }
            RingOutcome::Again => {
                self.fact(Fact::RingTurn { peer: me, outcome });
                return self.cast_vote(process);
            }
            RingOutcome::Ring { .. } | RingOutcome::Failed { .. } => {}
        }
        self.fact(Fact::RingTurn { peer: me, outcome });
        self.after(delay, Event::Program(process));
    }

    fn failed(&mut self, process: usize, mut planned: Planned, next: Next) {
        self.processes[process].errors += 1;
        if self.part_is_gone(process, &planned.scope) {
            return self.call_done(process);
        }
        match next {
            Next::Leave => {
                self.line(|| format!("process {process} does not know how its call ended, and leaves"));
                let now = self.now;
                self.processes[process].session.handle_leave(now, false);
                self.drain_peer(process);
                self.out(process, OutReason::Left);
            }
            Next::MoveOn => {
                // Everybody in the group has heard this; whoever was named may be missing from now on.
                let peer = &mut self.processes[process];
                peer.agree_again |= planned.scope == Scope::Whole && planned.kind == OpKind::Broadcast;
                self.call_done(process);
            }
            Next::Again => self.call(process, planned),
            Next::AgainTogether => {
                planned.turn += 1;
                self.call(process, planned);
            }
        }
    }

    /// One of the step's calls is over.
    fn call_done(&mut self, process: usize) {
        let peer = &mut self.processes[process];
        peer.open = peer.open.saturating_sub(1);
        if peer.open > 0 {
            return;
        }
        if peer.phase == Phase::Stepping {
            peer.step = peer.step.map(|step| step + 1);
            peer.phase = Phase::Thinking;
        }
        let think = self.some(self.settings.think_max);
        self.after(think, Event::Program(process));
    }

    fn part_is_gone(&self, process: usize, scope: &Scope) -> bool {
        let Scope::Members(listed) = scope else { return false };
        let record = self.processes[process].session.record();
        record.is_some_and(|record| listed.iter().any(|peer| record.rank_of(*peer).is_none()))
    }

    /// The session is over: after a moment the process comes back as a newcomer.
    pub(super) fn out(&mut self, process: usize, reason: OutReason) {
        if self.processes[process].phase == Phase::Starting {
            return;
        }
        let peer = self.processes[process].id;
        self.line(|| format!("process {process} is out: {reason}"));
        self.fact(Fact::Out { process, peer, reason });
        let state = &mut self.processes[process];
        state.phase = Phase::Starting;
        (state.step, state.pending, state.open, state.agree_again) = (None, 0, 0, false);
        (state.agreed, state.balloted, state.ballot, state.measures) = (None, None, None, None);
        (state.let_on_by, state.resuming) = (None, false);
        if let Some(training) = &mut state.training {
            training.out();
        }
        state.calls.retain(|_, call| call.executing.is_some());
        self.rename(process);
        let delay = Duration::from_millis(100) + self.some(Duration::from_millis(400));
        self.after(delay, Event::Program(process));
    }
}

fn words(outcome: &Outcome) -> String {
    match outcome {
        Ok(Done::Committed { key, contributors, attempts, pending, .. }) => {
            let size = contributors.len();
            format!("Ok: {key}, {size} contributors, {attempts} attempts, {pending} pending")
        }
        Ok(Done::Ballot { epoch, joined, left, .. }) => {
            format!("Ok: epoch {epoch}, {} joined, {} left", joined.len(), left.len())
        }
        Err(error) => format!("Err: {error:?}"),
    }
}
