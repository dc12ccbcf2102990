//! The session alone: a test plays coordinator, executor and program, and looks at every action.

use super::*;
use crate::collective::{DataType, Fingerprint, OpKey, OpKind, Scope};
use crate::id::PeerId;
use crate::limits::TAGS_MAX;
use crate::membership::Preset;
use crate::time::{Duration, Instant};
use crate::wire::control::*;
use crate::wire::membership::MemberInfo;

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
        rounds: Rounds::default(),
        founder: id(1),
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
        bench.hear(ToPeer::TopologyDone { run_epoch: 1, global_world_size: 2, round: 1 });
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
    let ring: Vec<_> = ring.iter().map(|number| id(*number)).collect();
    // The bench's rings run against the order of ranks.
    let members = ring.iter().rev().copied().collect();
    Action::Call(call, Command::Perform { key, ring, members })
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
    bench.hear(ToPeer::TopologyDone { run_epoch: 1, global_world_size: 2, round: 1 });
    let done = Done::Topology { run_epoch: 1, epoch: 1, joined: vec![id(2)], left: Vec::new() };
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
    let end = [fail(call, CallError::Timeout(Vec::new())), send(ToCoordinator::Leave), Action::HangUp];
    assert_eq!(bench.wait(ms(30_000)), end);
    // The same object connects again, with a later generation.
    bench.session.handle_connect_call(bench.now, 1, bench.now + ms(1_000));
    bench.session.handle_connected(bench.now);
    let actions = bench.drain();
    let [Action::Dial, Action::Send(ToCoordinator::Register(_, generation, _))] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(*generation > 1);
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
            send(ToCoordinator::Leave),
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
fn a_collective_that_others_began_while_we_voted_is_not_ours() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.session.handle_topology_call(bench.now, 1, bench.now + ms(1_000));
    bench.drain();
    let (theirs, common) = ("that".to_owned(), "update_topology".to_owned());
    bench.abort(key(1, 0), AbortReason::Mismatch { deviating: vec![id(2)], theirs, common });
    bench.hear(ToPeer::TopologyDone { run_epoch: 1, global_world_size: 2, round: 2 });
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
fn a_part_of_the_group_that_lost_a_member_says_so() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let scope = Scope::Members(vec![id(1), id(3)]);
    let op =
        Op { scope, tag: 5, fingerprint: fingerprint(true), deadline: bench.now + ms(1_000), members: None };
    let call = bench.session.handle_op_call(bench.now, op);
    bench.drain();
    bench.hear(ToPeer::Epoch(EpochRecord { left: vec![(id(3), LossReason::Killed)], ..record(2, &[1, 2]) }));
    bench.drain();
    let error = CallError::PeersLost(vec![(id(3), LossReason::Killed)]);
    assert_eq!(bench.performed(call, PerformResult::Stopped), [fail(call, error)]);
}

#[test]
fn a_call_whose_meaning_depends_on_who_is_there_fails_rather_than_run_among_others() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let gather = |members: &[u8], now: Instant| Op {
        scope: Scope::Whole,
        tag: 5,
        fingerprint: fingerprint(false),
        deadline: now + ms(1_000),
        members: Some(members.iter().map(|number| id(*number)).collect()),
    };
    let call = bench.session.handle_op_call(bench.now, gather(&[1, 2, 3], bench.now));
    assert_eq!(bench.drain().len(), 2, "it runs among those it knows");
    // The epoch ends it undecided, which is nobody's fault; but the next one has not the same members.
    bench.hear(ToPeer::Epoch(EpochRecord { left: vec![(id(3), LossReason::Killed)], ..record(2, &[1, 2]) }));
    bench.drain();
    let error = CallError::PeersLost(vec![(id(3), LossReason::Killed)]);
    assert_eq!(bench.performed(call, PerformResult::Stopped), [fail(call, error.clone())]);
    // A program that has not looked since is told the same, and nobody else is troubled with it.
    let call = bench.session.handle_op_call(bench.now, gather(&[1, 2, 3], bench.now));
    assert_eq!(bench.drain(), [fail(call, error)]);
    bench.session.handle_op_call(bench.now, gather(&[1, 2], bench.now));
    assert_eq!(bench.drain().len(), 2);
}

#[test]
fn a_process_that_could_not_take_part_says_why_and_is_not_called_cancelled() {
    // (retries, whether another attempt may do better, the error if it does not go on)
    for (retry, again, fails) in
        [(true, false, true), (false, false, true), (false, true, true), (true, true, false)]
    {
        let mut bench = Bench::of(&[1, 2]);
        let call = bench.call(retry);
        bench.drain();
        let refused = bench.performed(call, PerformResult::Failed { why: "no memory".to_owned(), again });
        assert!(matches!(refused[..], [Action::Send(ToCoordinator::Refuse { .. })]), "{refused:?}");
        let actions = bench.abort(key(1, 0), AbortReason::Cancelled { by: id(1) });
        let failed = actions.contains(&fail(call, CallError::Failed("no memory".to_owned())));
        assert_eq!(failed, fails, "retry {retry}, again {again}: {actions:?}");
        assert_eq!(actions.contains(&initiate(key(1, 1), retry, 10_000)), !fails, "{actions:?}");
    }
}

#[test]
fn too_few_are_too_few() {
    let mut bench = Bench::of(&[1, 2]);
    let fingerprint = Fingerprint { min_world: 2, ..fingerprint(true) };
    let op = Op { scope: Scope::Whole, tag: 0, fingerprint, deadline: bench.now + ms(1_000), members: None };
    let call = bench.session.handle_op_call(bench.now, op);
    bench.drain();
    bench.abort(key(1, 0), lost(2));
    bench.performed(call, PerformResult::Stopped);
    bench.hear(ToPeer::Epoch(record(2, &[1])));
    let actions = bench.drain();
    assert_eq!(actions[1..], [fail(call, CallError::TooFewPeers { have: 1, want: 2 })]);
}

#[test]
fn a_resume_carries_everything_and_goes_on_only_when_told() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.verdict(key(1, 0), Verdict::Commit { pending: 0 });
    let call = bench.call(true);
    bench.drain();
    bench.performed(call, PerformResult::Done);
    bench.wait(ms(100));
    let vote = OpenVote { key: key(1, 1), fingerprint: fingerprint(true), timeout_ms: 9_880, complete: true };
    let learned = vec![(key(1, 0), Verdict::Commit { pending: 0 })];
    let expected = Resume {
        registration: registration(),
        generation: 2,
        term: 1,
        record: record(1, &[1, 2]),
        tags: vec![TagReport { learned, open: Some(vote) }],
        topology_vote: None,
        rounds: Rounds { ended: 1, done: 1 },
        remembers_from: 0,
    };
    assert_eq!(bench.reconnect(), [send(ToCoordinator::Resume(expected))]);
    bench.hear(ToPeer::Resumed { term: 1 });
    assert_eq!(
        bench.drain(),
        [
            send(ToCoordinator::Connected { group: 0, epoch: 1 }),
            send(ToCoordinator::Complete { key: key(1, 1) }),
        ]
    );
    assert_eq!(bench.abort(key(1, 1), lost(1)), [tell(call, Command::Undo)]);
    bench.hear(PROCEED);
    assert_eq!(bench.drain()[0], initiate(key(1, 2), true, 9_880));
}

#[test]
fn what_happens_while_a_resume_is_on_its_way_is_said_after_it() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.drain();
    bench.reconnect();
    // Done before the coordinator has answered; a vote for newcomers in the same moment; a link breaks.
    assert_eq!(bench.performed(call, PerformResult::Done), []);
    bench.session.handle_topology_call(bench.now, 1, bench.now + ms(1_000));
    bench.session.handle_link_broken(1, id(1), id(2), false, "reset".to_owned());
    assert_eq!(bench.drain(), []);
    bench.hear(ToPeer::Resumed { term: 1 });
    let (from, to, error) = (id(1), id(2), "reset".to_owned());
    assert_eq!(
        bench.drain()[1..],
        [
            send(ToCoordinator::LinkBroken { group: 0, epoch: 1, from, to, dialling: false, error }),
            send(ToCoordinator::Complete { key: key(1, 0) }),
            send(ToCoordinator::VoteTopology { min_world: 1, round: 2 }),
        ]
    );
}

#[test]
fn a_refusal_that_was_lost_is_said_again() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    let broken = PerformResult::LinkBroken { from: id(1), to: id(2), error: "reset".to_owned() };
    bench.performed(call, broken);
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 1 });
    let reason = Refusal::Link { from: id(1), to: id(2), error: "reset".to_owned() };
    assert_eq!(bench.drain().last(), Some(&send(ToCoordinator::Refuse { key: key(1, 0), reason })));
}

#[test]
fn a_lower_term_is_refused_and_nothing_it_says_counts() {
    let mut bench = Bench::of(&[1, 2]);
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 5 });
    bench.drain();
    let call = bench.call(true);
    bench.hear(PROCEED);
    bench.performed(call, PerformResult::Done);
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 4 });
    assert_eq!(bench.drain(), [Action::HangUp]);
    assert_eq!(bench.verdict(key(1, 0), Verdict::Commit { pending: 0 }), []);
    assert!(!bench.session.is_connected());
    // Nor does it put anybody out.
    bench.wait(ms(100));
    bench.session.handle_connected(bench.now);
    bench.drain();
    bench.hear(ToPeer::Kicked { reason: KickReason::Evicted, text: String::new(), term: 4 });
    assert_eq!(bench.drain(), [Action::HangUp]);
    assert_eq!(bench.session.out(), None);
    // One that says nothing of its term has nothing to say either.
    bench.wait(ms(1_000));
    bench.session.handle_connected(bench.now);
    bench.drain();
    assert_eq!(bench.verdict(key(1, 0), Verdict::Commit { pending: 0 }), []);
}

#[test]
fn a_term_that_grows_disturbs_nothing() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.abort(key(1, 0), lost(2));
    bench.performed(call, PerformResult::Stopped);
    bench.hear(ToPeer::Resumed { term: 3 });
    assert_eq!(bench.drain(), [send(ToCoordinator::Promise { term: 3 })], "still on hold");
}

#[test]
fn without_a_coordinator_for_too_long_the_session_is_over() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call_within(true, ms(60_000));
    bench.drain();
    bench.session.handle_disconnected(bench.now);
    let mut actions = bench.wait(ms(9_999));
    actions.retain(|action| *action != Action::Dial);
    assert_eq!(actions, []);
    let end = [
        Action::HangUp,
        tell(call, Command::Abort),
        tell(call, Command::Undo),
        fail(call, CallError::Out(OutReason::CoordinatorLost)),
    ];
    assert_eq!(bench.wait(ms(1)), end);
}

#[test]
fn a_kick_ends_everything_and_restores_the_callers_data() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.drain();
    let vote = bench.session.handle_topology_call(bench.now, 1, bench.now + ms(1_000));
    bench.drain();
    bench.hear(ToPeer::Kicked { reason: KickReason::Evicted, text: "away".to_owned(), term: 1 });
    let out = || CallError::Out(OutReason::Kicked(KickReason::Evicted, "away".to_owned()));
    assert_eq!(
        bench.drain(),
        [
            Action::HangUp,
            tell(call, Command::Abort),
            tell(call, Command::Undo),
            fail(call, out()),
            fail(vote, out()),
        ]
    );
    assert_eq!(bench.performed(call, PerformResult::Done), []);
}

#[test]
fn a_commit_that_cannot_be_ours_ends_the_session() {
    let mut bench = Bench::of(&[1, 2]);
    assert_eq!(bench.verdict(key(1, 0), Verdict::Commit { pending: 0 }).last(), Some(&Action::HangUp));
    assert_eq!(bench.session.out(), Some(&OutReason::OutcomeUnknown));
}

#[test]
fn the_deadline_of_a_vote_is_made_known_and_ends_with_the_news() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.session.handle_topology_call(bench.now, 3, bench.now + ms(500));
    assert_eq!(bench.drain(), [send(ToCoordinator::VoteTopology { min_world: 3, round: 2 })]);
    assert_eq!(bench.wait(ms(500)), [send(ToCoordinator::TopologyExpired { round: 2 })]);
    // The vote may have ended well in the same moment: then it has.
    bench.hear(ToPeer::TopologyDone { run_epoch: 1, global_world_size: 2, round: 2 });
    assert!(matches!(&bench.drain()[..], [Action::Call(done, Command::Finish(Ok(_)))] if *done == call));
    let call = bench.session.handle_topology_call(bench.now, 3, bench.now + ms(500));
    bench.wait(ms(500));
    bench.hear(ToPeer::TopologyTimeout { round: 3, waiting: Vec::new() });
    assert_eq!(bench.drain(), [fail(call, CallError::Timeout(Vec::new()))]);
    // No news at all: it ends for us alone, in time.
    let call = bench.session.handle_topology_call(bench.now, 3, bench.now + ms(500));
    bench.drain();
    assert_eq!(
        bench.wait(ms(5_500)),
        [
            send(ToCoordinator::TopologyExpired { round: 4 }),
            send(ToCoordinator::VoteTopology { min_world: 0, round: 4 }),
            fail(call, CallError::Timeout(Vec::new())),
        ]
    );
}

#[test]
fn news_of_an_earlier_vote_does_not_end_a_later_one() {
    let mut bench = Bench::of(&[1, 2]);
    bench.hear(ToPeer::TopologyTimeout { round: 2, waiting: Vec::new() });
    bench.session.handle_topology_call(bench.now, 1, bench.now + ms(500));
    assert_eq!(bench.drain(), [send(ToCoordinator::VoteTopology { min_world: 1, round: 3 })]);
    bench.hear(ToPeer::TopologyTimeout { round: 2, waiting: Vec::new() });
    assert_eq!(bench.drain(), []);
}

#[test]
fn different_tags_are_bounded_and_old_ones_make_room() {
    let mut bench = Bench::of(&[1]);
    let op = |tag: u64, now: Instant| Op {
        scope: Scope::Whole,
        tag,
        fingerprint: fingerprint(true),
        deadline: now + ms(1_000),
        members: None,
    };
    for tag in 0..TAGS_MAX as u64 {
        let call = bench.session.handle_op_call(bench.now, op(tag, bench.now));
        bench.performed(call, PerformResult::Done);
        bench.verdict(OpKey { tag, ..key(1, 0) }, Verdict::Commit { pending: 0 });
    }
    let call = bench.session.handle_op_call(bench.now, op(5_000, bench.now));
    assert_eq!(bench.drain(), [fail(call, CallError::TooManyTags { tags: TAGS_MAX })]);
    bench.hear(ToPeer::Epoch(record(2, &[1])));
    bench.drain();
    bench.session.handle_op_call(bench.now, op(5_000, bench.now));
    assert_eq!(bench.drain().len(), 2);
    // It says that it has forgotten something.
    let actions = bench.reconnect();
    assert!(
        matches!(&actions[..], [Action::Send(ToCoordinator::Resume(Resume { remembers_from: 2, .. }))]),
        "{actions:?}"
    );
}

#[test]
fn the_last_commit_is_remembered_however_many_aborts_follow() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.call(true);
    bench.performed(call, PerformResult::Done);
    bench.verdict(key(1, 0), Verdict::Commit { pending: 0 });
    for seq in 1..40 {
        bench.abort(key(1, seq), AbortReason::Cancelled { by: id(2) });
    }
    let actions = bench.reconnect();
    let [Action::Send(ToCoordinator::Resume(resume))] = &actions[..] else { panic!("{actions:?}") };
    let learned = &resume.tags[0].learned;
    assert_eq!(learned[0], (key(1, 0), Verdict::Commit { pending: 0 }));
    assert_eq!(learned.last().unwrap().0, key(1, 39));
    assert!(learned.len() <= crate::limits::LEARNED_MAX + 1);
}
