//! A voter's side of ballots. What they are is said in [`crate::ballot`]; nothing here knows a kind, except that the call
//! which connects is a vote to be let in.
//!
//! A vote is sent when the call is made, and again when the session has resumed and heard what it missed (rule 43). The
//! call ends with the end of its ballot. If that is void it votes again, in the next one, by itself.
//!
//! An outcome that is only the first turn of a call leaves a turn *owed*. The program pays it with `handle_next_turn`, or
//! gives it up, and then the coordinator is told, until it has ended that ballot for all. Who has given up and is told of a
//! first turn after that owes the second all the same, and gives it up at once.

use super::calls::{CallError, CallId, Done, OutReason};
use super::machine::Session;
use crate::ballot::{self, admission};
use crate::collective::RunEpoch;
use crate::id::PeerId;
use crate::limits::WISH_BYTES_MAX;
use crate::time::Instant;
use crate::wire::control::{
    BallotEnd, BallotId, BallotKind, BallotReport, EpochRecord, LossReason, Tally, ToCoordinator, Waiting,
};
use std::collections::{BTreeMap, BTreeSet};

/// A call that waits for the end of a ballot.
#[derive(Clone, Debug, Hash)]
pub(super) struct BallotCall {
    pub(super) id: CallId,
    kind: BallotKind,
    wish: Vec<u8>,
    pub(super) deadline: Instant,
    /// Who came and who went since it was made.
    joined: Vec<PeerId>,
    left: Vec<(PeerId, LossReason)>,
    /// Whether it is the call that connects: if it fails, so does the session.
    pub(super) connects: bool,
    /// Which of the group's ballots it waits in; a newcomer is told by its first epoch.
    number: Option<u64>,
    /// Whether we said that its deadline has passed.
    pub(super) expired: bool,
    /// Whether it is a turn that we owed.
    is_owed: bool,
}

/// How far ballots of one kind have come, for all that we have heard.
#[derive(Clone, Debug, Default, Hash)]
struct Heard {
    tally: Tally,
    outcome: Option<Vec<u8>>,
    /// How the last one ended, if that was without agreement.
    failed: Option<CallError>,
}

/// What a session knows of its group's ballots.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Ballots {
    call: Option<BallotCall>,
    heard: BTreeMap<BallotKind, Heard>,
    /// The turn that our program is about to vote in.
    owed: Option<BallotId>,
    /// One that it gave up, until we hear that it is over.
    given_up: Option<BallotId>,
}

impl BallotCall {
    pub(super) fn kind(&self) -> BallotKind {
        self.kind
    }
}

impl Ballots {
    pub(super) fn call(&self) -> Option<&BallotCall> {
        self.call.as_ref()
    }

    /// What a coordinator may have forgotten.
    pub(super) fn reports(&self) -> Vec<BallotReport> {
        let wish = |kind| self.call.as_ref().filter(|call| call.kind == kind).map(|call| call.wish.clone());
        let mut kinds: BTreeSet<_> = self.heard.keys().copied().collect();
        kinds.extend(self.call.as_ref().map(|call| call.kind));
        kinds
            .into_iter()
            .map(|kind| {
                let Heard { tally, outcome, .. } = self.heard.get(&kind).cloned().unwrap_or_default();
                BallotReport { kind, tally, outcome, wish: wish(kind) }
            })
            .collect()
    }

    fn next(&self, kind: BallotKind) -> u64 {
        self.heard.get(&kind).map_or(0, |heard| heard.tally.ended).saturating_add(1)
    }

    /// An epoch tells how far ballots had come when it began. Of the one that a call waits in we must hear the end itself:
    /// until then we do not know it (rule 43).
    fn learn_tallies(&mut self, record: &EpochRecord) {
        for (kind, tally) in &record.ballots {
            let waits_in = self.call.as_ref().filter(|call| call.kind == *kind).and_then(|call| call.number);
            if waits_in.is_some_and(|number| number <= tally.ended) {
                continue;
            }
            let heard = self.heard.entry(*kind).or_default();
            if tally.agreed > heard.tally.agreed {
                heard.outcome = None;
            }
            if tally.ended > heard.tally.ended {
                heard.failed = None;
            }
            heard.tally = heard.tally.max(*tally);
        }
        self.forget_given_up();
    }

    fn learn_end(&mut self, ballot: BallotId, end: Result<Vec<u8>, Option<CallError>>) {
        let heard = self.heard.entry(ballot.kind).or_default();
        let is_last = ballot.number >= heard.tally.ended;
        match end {
            Ok(outcome) if ballot.number >= heard.tally.agreed => {
                (heard.outcome, heard.tally.agreed) = (Some(outcome), ballot.number);
            }
            Err(error) if is_last => heard.failed = error,
            Ok(_) | Err(_) => {}
        }
        heard.tally.ended = heard.tally.ended.max(ballot.number);
        self.forget_given_up();
    }

    /// Whether that ballot is over, for all that we have heard.
    fn is_over(&self, ballot: BallotId) -> bool {
        self.next(ballot.kind) > ballot.number
    }

    /// Whether the program is about to vote in that ballot, or has.
    fn goes_on_in(&self, ballot: BallotId) -> bool {
        self.owed == Some(ballot) || self.call.as_ref().and_then(BallotCall::ballot) == Some(ballot)
    }

    fn forget_given_up(&mut self) {
        self.given_up = self.given_up.filter(|ballot| !self.is_over(*ballot));
    }

    /// How the last ballot of a kind ended that had no agreement.
    fn failure(&self, kind: BallotKind) -> CallError {
        let failed = self.heard.get(&kind).and_then(|heard| heard.failed.clone());
        let unknown =
            || CallError::GivenUp(format!("{} ended before this member had voted", ballot::name(kind)));
        failed.unwrap_or_else(unknown)
    }

    /// Takes the call that waits in that ballot or one before it.
    fn take(&mut self, ballot: BallotId) -> Option<BallotCall> {
        let over = |number: u64| number <= ballot.number;
        self.call.take_if(|call| call.kind == ballot.kind && call.number.is_some_and(over))
    }
}

impl Session {
    /// The program wants its group to agree on something. Refused while another such call, or a collective, is in flight.
    pub fn handle_ballot_call(
        &mut self,
        _now: Instant,
        kind: BallotKind,
        wish: Vec<u8>,
        deadline: Instant,
    ) -> CallId {
        self.handle_turn_given_up();
        let call = self.next_call();
        let ballot = BallotId { kind, number: self.ballots.next(kind) };
        self.begin_vote(call, ballot, wish, deadline, false);
        call
    }

    /// The program votes in the turn that it owes. If that is over meanwhile, the call ends as it did.
    pub fn handle_next_turn(
        &mut self,
        now: Instant,
        kind: BallotKind,
        wish: Vec<u8>,
        deadline: Instant,
    ) -> CallId {
        let Some(ballot) = self.ballots.owed.take_if(|owed| owed.kind == kind) else {
            return self.handle_ballot_call(now, kind, wish, deadline);
        };
        let call = self.next_call();
        self.begin_vote(call, ballot, wish, deadline, true);
        call
    }

    /// The program does not go on with what it has begun: whoever waits for it need not.
    pub fn handle_turn_given_up(&mut self) {
        if let Some(ballot) = self.ballots.owed.take() {
            self.give_up(ballot);
        }
    }

    /// Whether the turn that the program owes is over for everybody.
    pub fn is_turn_over(&self) -> bool {
        self.ballots.owed.is_some_and(|ballot| self.ballots.is_over(ballot))
    }

    /// Tells the coordinator, now or when we have resumed.
    fn give_up(&mut self, ballot: BallotId) {
        if !self.ballots.is_over(ballot) {
            self.ballots.given_up = Some(ballot);
            self.tell_given_up();
        }
    }

    pub(super) fn tell_given_up(&mut self) {
        if let Some(ballot) = self.ballots.given_up.filter(|_| self.may_vote()) {
            self.send(ToCoordinator::TakeBack { ballot });
        }
    }

    fn begin_vote(&mut self, id: CallId, ballot: BallotId, wish: Vec<u8>, deadline: Instant, is_owed: bool) {
        let refused = match self.out().cloned() {
            Some(reason) => Some(CallError::Out(reason)),
            None if is_owed && self.ballots.is_over(ballot) => Some(self.ballots.failure(ballot.kind)),
            None => self.may_begin_vote().err().or_else(|| {
                let (bytes, name) = (wish.len(), ballot::name(ballot.kind));
                (bytes > WISH_BYTES_MAX).then(|| {
                    let text = format!("{bytes} bytes of {name} are too many, the limit is {WISH_BYTES_MAX}");
                    CallError::Failed(text)
                })
            }),
        };
        if let Some(error) = refused {
            return self.finish(id, Err(error));
        }
        let mut call = BallotCall::new(id, ballot.kind, wish, deadline, Some(ballot.number));
        call.is_owed = is_owed;
        self.ballots.call = Some(call);
        self.vote();
    }

    /// Whether a call that concerns the whole group could be begun now. Such calls come one at a time, and not beside
    /// collectives: the others would wait for both (rule 7).
    ///
    /// # Errors
    /// What is in flight.
    pub fn may_begin_vote(&self) -> Result<(), CallError> {
        if let Some(call) = &self.ballots.call {
            return Err(CallError::VoteInFlight { name: ballot::name(call.kind) });
        }
        let tags: Vec<_> = self.calls.values().map(|call| call.op.tag).collect();
        if tags.is_empty() { Ok(()) } else { Err(CallError::CollectivesInFlight { tags }) }
    }

    /// The program has something else to say in the ballot that it waits in. The new wish takes the place of the old one.
    pub fn handle_ballot_change(&mut self, id: CallId, wish: Vec<u8>) {
        if let Some(call) = self.ballots.call.as_mut().filter(|call| call.id == id && !call.expired) {
            call.wish = wish;
            self.vote();
        }
    }

    /// The program is ready for newcomers.
    pub fn handle_admission_call(&mut self, now: Instant, min_world: u32, deadline: Instant) -> CallId {
        self.handle_ballot_call(now, admission::KIND, admission::wish(min_world), deadline)
    }

    /// The call that connects: a newcomer's registration is its vote.
    pub(super) fn wait_for_admission(&mut self, id: CallId, min_world: u32, deadline: Instant) {
        let mut call = BallotCall::new(id, admission::KIND, admission::wish(min_world), deadline, None);
        call.connects = true;
        self.ballots.call = Some(call);
    }

    /// Says what the call at hand asks for.
    pub(super) fn vote(&mut self) {
        if let Some(call) = self.ballots.call.as_ref().filter(|call| !call.expired)
            && let Some(ballot) = call.ballot()
            && self.may_vote()
        {
            let wish = call.wish.clone();
            self.send(ToCoordinator::Vote { ballot, wish });
        }
    }

    /// A ballot ended, for all or for us.
    pub(super) fn ballot_ended(&mut self, ballot: BallotId, end: BallotEnd, run_epoch: RunEpoch) {
        let me = self.registration.info.id;
        let error = match end {
            BallotEnd::Agreed(outcome) => {
                self.ballots.learn_end(ballot, Ok(outcome.clone()));
                let agreement = ballot::rules(ballot.kind).and_then(|rules| rules.agreement(&outcome));
                if let Some(agreement) = agreement.filter(|agreement| agreement.is_of(me)) {
                    self.revision = Some(agreement.revision);
                }
                let next = BallotId { number: ballot.number.saturating_add(1), ..ballot };
                let owed = ballot::rules(ballot.kind).is_some_and(|rules| rules.goes_on(&outcome));
                let Some(BallotCall { id, kind, joined, left, .. }) = self.ballots.take(ballot) else {
                    // We had voted, and gave it up before we heard of it.
                    if owed && !self.ballots.goes_on_in(next) {
                        self.give_up(next);
                    }
                    return;
                };
                self.ballots.owed = owed.then_some(next);
                let epoch = self.record().map_or(0, |record| record.epoch);
                return self.finish(id, Ok(Done::Ballot { kind, outcome, run_epoch, epoch, joined, left }));
            }
            BallotEnd::TimedOut(waiting) => self.ballot_timed_out(ballot.kind, waiting),
            BallotEnd::GivenUp(who) if who.peer != me => {
                let name = ballot::name(ballot.kind);
                CallError::GivenUp(format!("{} {} gave {name} up", who.name, who.peer.short()))
            }
            // We gave it up ourselves. Whoever waits in it has called again since.
            BallotEnd::Void | BallotEnd::GivenUp(_) => {
                self.ballots.learn_end(ballot, Err(None));
                let next = self.ballots.next(ballot.kind);
                if let Some(mut call) = self.ballots.take(ballot) {
                    call.number = Some(next);
                    self.ballots.call = Some(call);
                    self.vote();
                }
                return;
            }
            BallotEnd::Mismatch { others } => {
                let ours = ballot::name(ballot.kind).to_owned();
                return self.refused(ballot.kind, CallError::Mismatch { ours, others });
            }
            BallotEnd::Unknown => {
                let name = ballot::name(ballot.kind);
                let text =
                    format!("the coordinator is older than this peer and does not know {name}: update it");
                return self.refused(ballot.kind, CallError::Failed(text));
            }
        };
        self.ballots.learn_end(ballot, Err(Some(error.clone())));
        if let Some(call) = self.ballots.take(ballot) {
            self.fail_ballot(&call, error);
        }
    }

    /// What the program is told. Where nobody is waited for who is here, those are missing who are not.
    fn ballot_timed_out(&self, kind: BallotKind, waiting: Vec<Waiting>) -> CallError {
        let call = self.ballots.call().filter(|call| call.kind == kind);
        let want = call.filter(|_| kind == admission::KIND).and_then(|call| admission::min_world(&call.wish));
        let have = self.record().map_or(0, |record| record.roster.len());
        match want {
            Some(want) if waiting.is_empty() && have < want as usize => CallError::TooFewCame { have, want },
            _ => CallError::timed_out(waiting, self.registration.info.id),
        }
    }

    /// Our vote was not taken; the ballot goes on without us.
    fn refused(&mut self, kind: BallotKind, error: CallError) {
        if let Some(call) = self.ballots.call.take_if(|call| call.kind == kind) {
            self.fail_ballot(&call, error);
        }
    }

    /// Who came and went, and how far ballots had come when the epoch began.
    pub(super) fn note_epoch(
        &mut self,
        record: &EpochRecord,
        before: &[PeerId],
        lost: &[(PeerId, LossReason)],
    ) {
        self.ballots.learn_tallies(record);
        let Some(call) = &mut self.ballots.call else { return };
        call.left.extend(lost);
        let me = self.registration.info.id;
        let here: BTreeSet<_> = record.roster.iter().map(|info| info.id).collect();
        let came =
            record.roster.iter().map(|info| info.id).filter(|peer| !before.contains(peer) && *peer != me);
        call.joined.extend(came);
        call.joined.retain(|peer| here.contains(peer));
        call.number.get_or_insert(record.tally(call.kind).ended.saturating_add(1));
    }

    /// A ballot whose deadline passed is over for the whole group, not for us alone (rule 6).
    pub(super) fn expire_ballot(&mut self, now: Instant) {
        let (may_vote, grace) = (self.may_vote(), self.config.verdict_grace);
        let Some(call) = self.ballots.call.as_mut().filter(|call| now >= call.deadline) else { return };
        if call.connects || now.since(call.deadline) >= grace {
            return self.abandon_ballot(CallError::Timeout(Vec::new()));
        }
        if let Some(ballot) = call.ballot().filter(|_| may_vote && !call.expired) {
            call.expired = true;
            self.send(ToCoordinator::Expired { ballot });
        }
    }

    /// Gives the call up for us alone. One that was to connect us leaves nothing behind.
    pub(super) fn abandon_ballot(&mut self, error: CallError) {
        let Some(call) = self.ballots.call.take() else { return };
        match call.ballot().filter(|_| !call.connects) {
            Some(ballot) if call.is_owed => self.give_up(ballot),
            Some(ballot) if self.is_connected() => self.send(ToCoordinator::TakeBack { ballot }),
            Some(_) | None => {}
        }
        self.fail_ballot(&call, error);
    }

    fn fail_ballot(&mut self, call: &BallotCall, error: CallError) {
        self.finish(call.id, Err(error));
        if call.connects {
            self.end(OutReason::NotConnected);
        }
    }

    /// The session is over, and the call with it.
    pub(super) fn end_ballots(&mut self, reason: &OutReason) {
        if let Some(call) = std::mem::take(&mut self.ballots).call {
            self.finish(call.id, Err(CallError::Out(reason.clone())));
        }
    }
}

impl BallotCall {
    fn new(id: CallId, kind: BallotKind, wish: Vec<u8>, deadline: Instant, number: Option<u64>) -> Self {
        let (joined, left) = (Vec::new(), Vec::new());
        let (connects, expired, is_owed) = (false, false, false);
        Self { id, kind, wish, deadline, joined, left, connects, number, expired, is_owed }
    }

    fn ballot(&self) -> Option<BallotId> {
        Some(BallotId { kind: self.kind, number: self.number? })
    }
}
