//! The session alone: a test plays coordinator, executor and program, and looks at every action.

mod broken_links;
mod exclusive;
mod recovery;
mod turns;

use super::*;
use crate::ballot::admission::{self, KIND as ADMISSION};
use crate::collective::{Attempt, BrokenLink, DataType, Fingerprint, OpKey, OpKind, Scope};
use crate::id::PeerId;
use crate::limits::TAGS_MAX;
use crate::membership::Preset;
use crate::time::{Duration, Instant};
use crate::wire::control::*;
use crate::wire::membership::MemberInfo;
use std::sync::Arc;

struct Bench {
    session: Session,
    now: Instant,
}

fn id(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn info(number: u8) -> MemberInfo {
    let address = ([10, 0, 0, number], 7_000).into();
    MemberInfo { id: id(number), address, closed_port: 0, name: format!("p{number}"), meta: Vec::new() }
}

fn registration() -> Registration {
    Registration {
        info: info(1),
        group: 0,
        session: SessionId([7; 16]),
        min_world: 1,
        encryption: Encryption::On,
        witness: None,
    }
}

fn record(epoch: u64, numbers: &[u8]) -> EpochRecord {
    EpochRecord {
        run_epoch: epoch,
        group: 0,
        epoch,
        roster: numbers.iter().map(|number| info(*number)).collect(),
        ring: (0..numbers.len() as u32).rev().collect(),
        decider: Decider::Coordinator,
        global_world_size: numbers.len() as u32,
        joined: Vec::new(),
        left: Vec::new(),
        founder: id(1),
        broken: Vec::new(),
        incumbents: 0,
        ancestors: Vec::new(),
        ballots: Vec::new(),
    }
}

fn fingerprint(retry: bool) -> Fingerprint {
    Fingerprint { retry, ..Fingerprint::new(OpKind::AllReduce, DataType::F32, [8]) }
}

fn key(epoch: u64, seq: u64) -> OpKey {
    OpKey { group: 0, epoch, scope: Scope::Whole, tag: 0, seq }
}

fn lost(number: u8) -> AbortReason {
    AbortReason::PeersLost(vec![(id(number), LossReason::Disconnected)])
}

fn ballot(number: u64) -> BallotId {
    BallotId { kind: ADMISSION, number }
}

fn vote(min_world: u32, number: u64) -> ToCoordinator {
    ToCoordinator::Vote { ballot: ballot(number), wish: admission::wish(min_world) }
}

fn ended(ballot: BallotId, end: BallotEnd) -> ToPeer {
    ToPeer::BallotEnded { ballot, end, run_epoch: 1, global_world_size: 2 }
}

fn agreed(number: u64) -> ToPeer {
    ended(ballot(number), BallotEnd::Agreed(Vec::new()))
}

fn timed_out(number: u64) -> ToPeer {
    ended(ballot(number), BallotEnd::TimedOut(Vec::new()))
}

const PROCEED: ToPeer = ToPeer::Proceed { group: 0, epoch: 1 };

impl Bench {
    /// A session that has begun to connect.
    fn connecting() -> (Self, CallId) {
        let now = Instant::from_nanos(1_000_000_000);
        let mut session = Session::new(Config::preset(Preset::Local), registration());
        let call = session.handle_connect_call(now, 1, now + ms(60_000));
        (Self { session, now }, call)
    }

    /// A session in epoch 1 of these members, with nothing to do.
    fn of(numbers: &[u8]) -> Self {
        let (mut bench, _) = Self::connecting();
        bench.session.handle_connected(bench.now);
        bench.hear(ToPeer::Registered { term: 1 });
        bench.hear(ToPeer::Epoch(record(1, numbers)));
        bench.session.handle_links_up(1);
        bench.hear(agreed(1));
        bench.drain();
        bench
    }

    fn drain(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.session.poll_action()).collect()
    }

    fn hear(&mut self, message: ToPeer) {
        self.session.handle_message(self.now, message);
    }

    fn verdict(&mut self, key: OpKey, verdict: Verdict) -> Vec<Action> {
        self.hear(ToPeer::Verdict { key, verdict });
        self.drain()
    }

    fn abort(&mut self, key: OpKey, reason: AbortReason) -> Vec<Action> {
        self.verdict(key, Verdict::Abort(reason))
    }

    fn call_within(&mut self, retry: bool, timeout: Duration) -> CallId {
        let deadline = self.now + timeout;
        let op = Op { scope: Scope::Whole, tag: 0, fingerprint: fingerprint(retry), deadline, members: None };
        self.session.handle_op_call(self.now, op)
    }

    fn call(&mut self, retry: bool) -> CallId {
        self.call_within(retry, ms(10_000))
    }

    fn performed(&mut self, call: CallId, result: PerformResult) -> Vec<Action> {
        self.session.handle_performed(self.now, call, result);
        self.drain()
    }

    fn wait(&mut self, time: Duration) -> Vec<Action> {
        let until = self.now + time;
        let mut actions = Vec::new();
        let mut rounds = 0;
        while let Some(due) = self.session.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.session.handle_timeout(self.now);
            actions.extend(self.drain());
            rounds += 1;
            assert!(rounds < 1_000, "a timer must not be set to the past for ever");
        }
        self.now = until;
        actions
    }

    /// Loses the connection and has the next one; what was sent on it comes back.
    fn reconnect(&mut self) -> Vec<Action> {
        self.session.handle_disconnected(self.now);
        assert_eq!(self.wait(ms(20)), [Action::Dial]);
        self.session.handle_connected(self.now);
        self.drain()
    }
}

fn initiate(key: OpKey, retry: bool, timeout_ms: u64) -> Action {
    Action::Send(ToCoordinator::Initiate { key, fingerprint: fingerprint(retry), timeout_ms })
}

fn perform(call: CallId, key: OpKey, ring: &[u8]) -> Action {
    let ring: Arc<[_]> = ring.iter().map(|number| id(*number)).collect();
    // The bench's rings run against the order of ranks.
    let members = ring.iter().rev().copied().collect();
    Action::Call(
        call,
        Command::Perform(Attempt { key, ring, members, goes_around: false, decider: Decider::Coordinator }),
    )
}

fn send(message: ToCoordinator) -> Action {
    Action::Send(message)
}

fn ack(key: OpKey) -> Action {
    Action::Send(ToCoordinator::Acknowledge { key })
}

fn tell(call: CallId, command: Command) -> Action {
    Action::Call(call, command)
}

fn fail(call: CallId, error: CallError) -> Action {
    Action::Call(call, Command::Finish(Err(error)))
}

#[test]
fn connecting_registers_opens_the_epoch_and_ends_when_the_group_is_ready() {
    let (mut bench, call) = Bench::connecting();
    assert_eq!(bench.drain(), [Action::Dial]);
    bench.session.handle_connected(bench.now);
    assert_eq!(bench.drain(), [send(ToCoordinator::Register(registration(), 1, 0))]);
    bench.hear(ToPeer::Registered { term: 1 });
    bench.hear(ToPeer::Epoch(record(1, &[1, 2])));
    assert_eq!(bench.drain(), [Action::OpenEpoch(record(1, &[1, 2]))]);
    bench.session.handle_links_up(1);
    assert_eq!(bench.drain(), [send(ToCoordinator::Connected { group: 0, epoch: 1 })]);
    bench.hear(agreed(1));
    let (kind, outcome, joined, left) = (ADMISSION, Vec::new(), vec![id(2)], Vec::new());
    let done = Done::Ballot { kind, outcome, run_epoch: 1, epoch: 1, joined, left };
    assert_eq!(bench.drain(), [tell(call, Command::Finish(Ok(done)))]);
}

#[test]
fn a_connect_waits_for_a_coordinator_as_long_as_its_caller_does_and_leaves_nothing_behind() {
    let (mut bench, call) = Bench::connecting();
    bench.drain();
    bench.session.handle_disconnected(bench.now);
    assert!(bench.wait(ms(40_000)).iter().all(|action| *action == Action::Dial));
    assert_eq!(bench.session.out(), None);
    // One that is known, and not admitted in time, says goodbye.
    bench.session.handle_connected(bench.now);
    bench.hear(ToPeer::Registered { term: 1 });
    bench.drain();
    let end = [
        fail(call, CallError::Timeout(Vec::new())),
        send(ToCoordinator::Leave { for_good: false }),
        Action::HangUp,
    ];
    assert_eq!(bench.wait(ms(30_000)), end);
    // The same object connects again: that is a session of its own (rule 45).
    let before = bench.session.registration.session;
    bench.session.handle_connect_call(bench.now, 1, bench.now + ms(1_000));
    bench.session.handle_connected(bench.now);
    let actions = bench.drain();
    let [Action::Dial, Action::Send(ToCoordinator::Register(registration, 1, _))] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(registration.session.succeeds(before) && !before.succeeds(registration.session));
}

#[test]
fn a_collective_initiates_performs_completes_and_returns_with_the_verdict() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    assert_eq!(bench.drain(), [initiate(key(1, 0), true, 10_000), perform(call, key(1, 0), &[2, 1])]);
    assert_eq!(
        bench.performed(call, PerformResult::Done),
        [send(ToCoordinator::Complete { key: key(1, 0) })]
    );
    let done = Done::Committed {
        key: key(1, 0),
        contributors: vec![id(1), id(2)],
        rank: 0,
        world_size: 2,
        attempts: 1,
        pending: 4,
    };
    assert_eq!(
        bench.verdict(key(1, 0), Verdict::Commit { pending: 4 }),
        [tell(call, Command::Commit), tell(call, Command::Finish(Ok(done))),]
    );
    bench.call(true);
    assert_eq!(bench.drain()[0], initiate(key(1, 1), true, 10_000));
}

#[test]
fn an_abort_while_bytes_move_stops_the_executor_first() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.drain();
    assert_eq!(bench.abort(key(1, 0), lost(2)), [tell(call, Command::Abort)]);
    assert_eq!(bench.performed(call, PerformResult::Stopped), [], "it waits until it may go on");
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), [initiate(key(1, 1), true, 10_000), perform(call, key(1, 1), &[2, 1])]);
}

#[test]
fn an_executor_that_was_done_before_the_abort_is_undone() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(false);
    bench.drain();
    bench.abort(key(1, 0), lost(2));
    let error = CallError::PeersLost(vec![(id(2), LossReason::Disconnected)]);
    assert_eq!(bench.performed(call, PerformResult::Done), [tell(call, Command::Undo), fail(call, error)]);
}

#[test]
fn an_abort_after_complete_undoes() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    assert_eq!(bench.abort(key(1, 0), lost(2)), [tell(call, Command::Undo)]);
    // A new epoch also lets it go on, among those who are left.
    bench.hear(ToPeer::Epoch(record(2, &[1])));
    assert_eq!(
        bench.drain(),
        [
            Action::OpenEpoch(record(2, &[1])),
            initiate(key(2, 0), true, 10_000),
            perform(call, key(2, 0), &[1]),
        ]
    );
}

#[test]
fn a_verdict_on_a_call_that_is_still_to_come_is_the_calls_verdict() {
    // One that retries goes on with the next attempt; one that does not has its error.
    let mut bench = Bench::of(&[1, 2]);
    assert_eq!(bench.abort(key(1, 0), AbortReason::Cancelled { by: id(2) }), [ack(key(1, 0))]);
    let call = bench.call(true);
    assert_eq!(bench.drain()[0], initiate(key(1, 1), true, 10_000));
    bench.performed(call, PerformResult::Done);
    bench.verdict(key(1, 1), Verdict::Commit { pending: 0 });

    bench.abort(key(1, 2), lost(2));
    let call = bench.call(false);
    let error = CallError::PeersLost(vec![(id(2), LossReason::Disconnected)]);
    assert_eq!(bench.drain(), [fail(call, error)]);
}

#[test]
fn members_one_operation_apart_meet_again_in_the_next_epoch() {
    // The others' call was aborted twice before this program made it.
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.abort(key(1, 0), lost(3));
    bench.hear(ToPeer::Epoch(record(2, &[1, 2])));
    bench.abort(key(2, 0), lost(2));
    bench.drain();
    bench.call(true);
    assert_eq!(bench.drain(), [], "on hold");
    bench.hear(ToPeer::Proceed { group: 0, epoch: 2 });
    assert_eq!(bench.drain()[0], initiate(key(2, 1), true, 10_000));
}

#[test]
fn a_call_that_waits_takes_a_verdict_at_once() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.abort(key(1, 0), lost(2));
    bench.performed(call, PerformResult::Stopped);
    // On hold; another member's deadline passes, for all.
    let timeout = AbortReason::Timeout(Vec::new());
    assert_eq!(bench.abort(key(1, 1), timeout), [ack(key(1, 1)), fail(call, CallError::Timeout(Vec::new()))]);
}

#[test]
fn a_deadline_while_bytes_move_is_made_a_verdict() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call_within(true, ms(500));
    bench.drain();
    let refuse = ToCoordinator::Refuse { key: key(1, 0), reason: Refusal::Deadline };
    assert_eq!(bench.wait(ms(500)), [tell(call, Command::Abort), send(refuse)]);
    assert_eq!(bench.performed(call, PerformResult::Stopped), []);
    let waiting = AbortReason::Timeout(Vec::new());
    assert_eq!(bench.abort(key(1, 0), waiting), [fail(call, CallError::Timeout(Vec::new()))]);
}

#[test]
fn a_deadline_on_hold_is_made_a_verdict_too() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call_within(true, ms(500));
    bench.abort(key(1, 0), lost(2));
    bench.performed(call, PerformResult::Stopped);
    assert_eq!(bench.wait(ms(500)), [initiate(key(1, 1), true, 0)]);
    let waiting = Waiting {
        peer: id(2),
        name: "p2".to_owned(),
        health: "disconnected".to_owned(),
        last_call: String::new(),
        age_ms: 0,
    };
    let named = AbortReason::Timeout(vec![waiting.clone()]);
    assert_eq!(bench.abort(key(1, 1), named), [fail(call, CallError::Timeout(vec![waiting]))]);
}

#[test]
fn an_abort_after_the_deadline_does_not_end_the_call_for_us_alone() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call_within(true, ms(500));
    bench.drain();
    bench.performed(call, PerformResult::Done);
    bench.wait(ms(600));
    assert_eq!(
        bench.abort(key(1, 0), AbortReason::Cancelled { by: id(2) }),
        [tell(call, Command::Undo), initiate(key(1, 1), true, 0),]
    );
}

#[test]
fn without_a_verdict_after_complete_the_session_fences_itself() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call_within(true, ms(500));
    bench.performed(call, PerformResult::Done);
    assert_eq!(bench.wait(ms(5_499)), []);
    assert_eq!(
        bench.wait(ms(1)),
        [
            send(ToCoordinator::Leave { for_good: false }),
            Action::HangUp,
            tell(call, Command::Undo),
            fail(call, CallError::Out(OutReason::OutcomeUnknown)),
        ]
    );
    assert_eq!(bench.session.out(), Some(&OutReason::OutcomeUnknown));
    let call = bench.call(true);
    assert_eq!(bench.drain(), [fail(call, CallError::Out(OutReason::OutcomeUnknown))]);
}

#[test]
fn before_complete_a_call_returns_without_a_verdict_when_its_grace_is_over() {
    let mut bench = Bench::of(&[1, 2]);
    bench.session.handle_disconnected(bench.now);
    let call = bench.call_within(true, ms(500));
    let actions = bench.wait(ms(5_500));
    assert_eq!(actions.last(), Some(&fail(call, CallError::Timeout(Vec::new()))));
    assert_eq!(bench.session.out(), None);
}

#[test]
fn a_call_that_ended_here_alone_leaves_its_verdicts_to_its_ghost() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.abort(key(1, 0), lost(2));
    bench.performed(call, PerformResult::Stopped);
    bench.session.handle_cancel(bench.now, call);
    assert_eq!(bench.drain(), [fail(call, CallError::Cancelled)]);
    // The others go on with that call: two more attempts, the second of which ends it for them.
    bench.abort(key(1, 1), lost(2));
    bench.abort(key(1, 2), AbortReason::Timeout(Vec::new()));
    bench.hear(PROCEED);
    bench.drain();
    // The next call is the next call. What comes after the end of the ghost is kept for it.
    bench.abort(key(1, 3), AbortReason::Cancelled { by: id(2) });
    bench.call(true);
    assert_eq!(bench.drain()[0], initiate(key(1, 4), true, 10_000));
}

#[test]
fn another_call_waits_for_the_verdict_on_what_a_cancelled_one_had_voted_for() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(false);
    bench.performed(call, PerformResult::Mismatch { peer: id(2) });
    bench.session.handle_cancel(bench.now, call);
    bench.drain();
    // The coordinator still listens to the others: no verdict comes in the moment that a cancelled call waits for it.
    assert_eq!(bench.wait(ms(200)), [fail(call, CallError::Cancelled)]);
    // To begin the same attempt with another call would be a breach of protocol.
    bench.call(true);
    assert_eq!(bench.drain(), []);
    let told = bench.abort(key(1, 0), AbortReason::Cancelled { by: id(1) });
    assert_eq!(told[..2], [ack(key(1, 0)), initiate(key(1, 1), true, 10_000)]);
    // The same call again joins what it had voted for.
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Mismatch { peer: id(2) });
    bench.session.handle_cancel(bench.now, call);
    bench.wait(ms(200));
    bench.call(true);
    assert_eq!(bench.drain()[0], initiate(key(1, 0), true, 10_000));
}

/// A call that differed was refused, cancelled and abandoned; the next one, which differs from it, waits.
fn another_call_waits(next_retries: bool) -> (Bench, CallId) {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(!next_retries);
    bench.performed(call, PerformResult::Mismatch { peer: id(2) });
    bench.session.handle_cancel(bench.now, call);
    bench.wait(ms(200));
    let next = bench.call(next_retries);
    assert_eq!(bench.drain(), []);
    (bench, next)
}

#[test]
fn another_call_goes_on_when_what_a_cancelled_one_had_voted_for_is_void() {
    // The votes agreed after all: the frame was a stray one, and the attempt costs a number and nothing else.
    for retry in [true, false] {
        let (mut bench, next) = another_call_waits(retry);
        let go_on = [ack(key(1, 0)), initiate(key(1, 1), retry, 10_000), perform(next, key(1, 1), &[2, 1])];
        assert_eq!(bench.abort(key(1, 0), AbortReason::Void), go_on);
    }
}

#[test]
fn another_call_is_not_blamed_for_what_a_cancelled_one_had_voted_for() {
    let mismatch = || {
        let (theirs, common) = ("that".to_owned(), "this".to_owned());
        AbortReason::Mismatch { deviating: vec![id(1)], theirs, common }
    };
    // It does what the others do who were right: one that retries goes on, one that does not is told who deviated.
    let (mut bench, next) = another_call_waits(true);
    let go_on = [ack(key(1, 0)), initiate(key(1, 1), true, 10_000), perform(next, key(1, 1), &[2, 1])];
    assert_eq!(bench.abort(key(1, 0), mismatch()), go_on);
    let (mut bench, next) = another_call_waits(false);
    let given_up = CallError::GivenUp(format!("{} called that", id(1).short()));
    assert_eq!(bench.abort(key(1, 0), mismatch()), [ack(key(1, 0)), fail(next, given_up)]);
}

#[test]
fn a_cancelled_call_that_said_complete_asks_for_an_abort_and_soon_fences_itself() {
    let withdraw = |key| Action::Send(ToCoordinator::Refuse { key, reason: Refusal::Cancelled });
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.drain();
    bench.session.handle_cancel(bench.now, call);
    assert_eq!(bench.drain(), [withdraw(key(1, 0))]);
    let undo = Action::Call(call, Command::Undo);
    let told = bench.abort(key(1, 0), AbortReason::Cancelled { by: id(1) });
    assert_eq!(told, [undo, fail(call, CallError::Cancelled)]);

    // A commit that was written before counts.
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.session.handle_cancel(bench.now, call);
    bench.drain();
    let told = bench.verdict(key(1, 1), Verdict::Commit { pending: 0 });
    assert_eq!(told[0], Action::Call(call, Command::Commit));

    // Nobody answers: a moment, not the whole grace.
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.session.handle_cancel(bench.now, call);
    bench.drain();
    let told = bench.wait(ms(200));
    assert_eq!(told.last(), Some(&fail(call, CallError::Out(OutReason::OutcomeUnknown))));
}

#[test]
fn doing_it_again_joins_the_others_in_what_they_are_still_doing() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.drain();
    bench.session.handle_cancel(bench.now, call);
    bench.performed(call, PerformResult::Stopped);
    assert_eq!(
        bench.abort(key(1, 0), AbortReason::Cancelled { by: id(1) }),
        [fail(call, CallError::Cancelled)]
    );
    let again = bench.call(true);
    assert_eq!(bench.drain()[0], initiate(key(1, 1), true, 10_000));
    bench.performed(again, PerformResult::Done);
    bench.verdict(key(1, 1), Verdict::Commit { pending: 0 });
    // The ghost is gone: what comes now is for the call to come.
    bench.abort(key(1, 2), lost(2));
    let call = bench.call(false);
    let error = CallError::PeersLost(vec![(id(2), LossReason::Disconnected)]);
    assert_eq!(bench.drain(), [fail(call, error)]);
}

#[test]
fn who_deviates_is_told_and_the_others_try_again() {
    let mismatch = |deviating: u8| AbortReason::Mismatch {
        deviating: vec![id(deviating)],
        theirs: "that".to_owned(),
        common: "this".to_owned(),
    };
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Mismatch { peer: id(2) });
    let ours = fingerprint(true).to_string();
    let error = CallError::Mismatch { ours, others: "this".to_owned() };
    assert_eq!(bench.abort(key(1, 0), mismatch(1)), [fail(call, error)]);
    let call = bench.call(true);
    bench.drain();
    bench.performed(call, PerformResult::Mismatch { peer: id(2) });
    assert_eq!(bench.abort(key(1, 1), mismatch(2))[0], initiate(key(1, 2), true, 10_000));
    bench.performed(call, PerformResult::Done);
    bench.verdict(key(1, 2), Verdict::Commit { pending: 0 });
    let call = bench.call(false);
    bench.drain();
    bench.performed(call, PerformResult::Mismatch { peer: id(2) });
    let actions = bench.abort(key(1, 3), mismatch(2));
    assert!(
        matches!(&actions[..], [Action::Call(_, Command::Finish(Err(CallError::GivenUp(_))))]),
        "{actions:?}"
    );
}

#[test]
fn a_newcomer_that_is_put_out_for_its_call_hears_what_was_wrong_with_it() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.drain();
    let (theirs, common) = ("that".to_owned(), "this".to_owned());
    let actions = bench
        .abort(key(1, 0), AbortReason::Mismatch { deviating: vec![id(1)], theirs, common: common.clone() });
    assert_eq!(actions, [tell(call, Command::Abort)], "the executor holds the caller's data");
    let text = "evicted: it is new".to_owned();
    bench.hear(ToPeer::Kicked { reason: KickReason::Evicted, text, term: 1 });
    let error = CallError::Mismatch { ours: fingerprint(true).to_string(), others: common };
    assert_eq!(bench.drain().last(), Some(&fail(call, error)));
    assert!(matches!(bench.session.out(), Some(OutReason::Kicked(KickReason::Evicted, _))));
}

#[test]
fn a_collective_that_others_began_while_we_voted_is_not_ours() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.session.handle_admission_call(bench.now, 1, bench.now + ms(1_000));
    bench.drain();
    let (theirs, common) = ("that".to_owned(), "update_topology".to_owned());
    bench.abort(key(1, 0), AbortReason::Mismatch { deviating: vec![id(2)], theirs, common });
    bench.hear(agreed(2));
    assert!(matches!(&bench.drain()[..], [Action::Call(done, Command::Finish(Ok(_)))] if *done == call));
    bench.call(false);
    assert_eq!(bench.drain()[0], initiate(key(1, 1), false, 10_000));
}

#[test]
fn what_an_epoch_ends_undecided_goes_on_even_if_it_does_not_retry() {
    // Complete, still moving, given up: whatever it is, others may not even have called yet.
    let mut bench = Bench::of(&[1, 2, 3]);
    let call = bench.call(false);
    bench.performed(call, PerformResult::Done);
    bench.hear(ToPeer::Epoch(record(2, &[1, 2])));
    assert_eq!(
        bench.drain(),
        [
            Action::OpenEpoch(record(2, &[1, 2])),
            tell(call, Command::Undo),
            initiate(key(2, 0), false, 10_000),
            perform(call, key(2, 0), &[2, 1]),
        ]
    );
    bench.hear(ToPeer::Epoch(record(3, &[1])));
    assert_eq!(bench.drain(), [Action::OpenEpoch(record(3, &[1])), tell(call, Command::Abort)]);
    assert_eq!(
        bench.performed(call, PerformResult::Done),
        [tell(call, Command::Undo), initiate(key(3, 0), false, 10_000), perform(call, key(3, 0), &[1]),]
    );
}

#[test]
fn a_void_attempt_costs_a_number_and_nothing_else() {
    let mut bench = Bench::of(&[1, 2]);
    assert_eq!(bench.abort(key(1, 0), AbortReason::Void), [ack(key(1, 0))]);
    let call = bench.call(false);
    assert_eq!(bench.drain()[0], initiate(key(1, 1), false, 10_000));
    bench.performed(call, PerformResult::Done);
    let again = [tell(call, Command::Undo), initiate(key(1, 2), false, 10_000)];
    assert_eq!(bench.abort(key(1, 1), AbortReason::Void)[..2], again);
}

#[test]
fn a_link_of_our_ring_that_got_slower_is_told_and_another_groups_is_not() {
    let mut bench = Bench::of(&[1, 2]);
    let slowed =
        |group| ToPeer::LinkSlowed { group, from: id(1), to: id(2), before: 9_000_000, rate: 4_000_000 };
    bench.hear(slowed(7));
    assert_eq!(bench.drain(), []);
    bench.hear(slowed(0));
    let link = SlowLink { from: id(1), to: id(2), before: 9_000_000, rate: 4_000_000 };
    assert_eq!(bench.drain(), [Action::Slowed(link)]);
}

#[test]
fn the_size_of_the_run_may_change_without_an_epoch() {
    let mut bench = Bench::of(&[1, 2]);
    bench.hear(ToPeer::World { run_epoch: 9, global_world_size: 7 });
    assert_eq!(bench.session.global_world_size(), 7);
    assert_eq!(bench.drain(), []);
}
