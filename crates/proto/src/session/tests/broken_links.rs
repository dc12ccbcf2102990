//! Links that break and members that are gone: whom a call names, whom it waits for, and what is dialled again.

use super::*;

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

fn broken_link() -> (AbortReason, CallError) {
    let (from, to, error) = (id(2), id(3), "reset".to_owned());
    (
        AbortReason::LinkBroken { from, to, error: error.clone() },
        CallError::LinkBroken(BrokenLink { from, to, error }),
    )
}

fn without_3() -> ToPeer {
    ToPeer::Epoch(EpochRecord { left: vec![(id(3), LossReason::Killed)], ..record(2, &[1, 2]) })
}

#[test]
fn a_call_that_a_broken_link_ends_names_the_dead_if_somebody_died() {
    let (reason, error) = broken_link();
    let died = CallError::PeersLost(vec![(id(3), LossReason::Killed)]);
    let other_ring = || ToPeer::Epoch(record(2, &[1, 2, 3]));
    for (news, expected) in [(PROCEED, &error), (without_3(), &died), (other_ring(), &error)] {
        let mut bench = Bench::of(&[1, 2, 3]);
        let call = bench.call(false);
        bench.drain();
        assert_eq!(bench.abort(key(1, 0), reason.clone()), [tell(call, Command::Abort)]);
        assert_eq!(bench.performed(call, PerformResult::Stopped), [], "it is not known yet why");
        bench.hear(news.clone());
        assert_eq!(bench.drain().last(), Some(&fail(call, expected.clone())));
        // The same if the news came before the executor let go, or before the program made its call.
        let mut bench = Bench::of(&[1, 2, 3]);
        let call = bench.call(false);
        bench.abort(key(1, 0), reason.clone());
        bench.hear(news.clone());
        bench.drain();
        assert_eq!(bench.performed(call, PerformResult::Stopped), [fail(call, expected.clone())]);
        let mut bench = Bench::of(&[1, 2, 3]);
        bench.abort(key(1, 0), reason.clone());
        bench.hear(news);
        bench.drain();
        let call = bench.call(false);
        assert_eq!(bench.drain(), [fail(call, expected.clone())]);
    }
}

#[test]
fn whom_a_broken_link_concerns_is_not_waited_for_beyond_the_deadline_nor_after_a_cancel() {
    let (reason, error) = broken_link();
    let mut bench = Bench::of(&[1, 2, 3]);
    let call = bench.call_within(false, ms(1_000));
    bench.abort(key(1, 0), reason.clone());
    bench.performed(call, PerformResult::Stopped);
    assert_eq!(bench.wait(ms(999)), []);
    assert_eq!(bench.wait(ms(1)), [fail(call, error)]);
    // What the coordinator concludes later is not the next call's affair.
    let call = bench.call(false);
    bench.hear(PROCEED);
    assert!(matches!(bench.drain()[..], [Action::Send(_), Action::Call(next, _)] if next == call));
    bench.abort(key(1, 1), reason);
    bench.performed(call, PerformResult::Stopped);
    bench.session.handle_cancel(bench.now, call);
    assert_eq!(bench.drain(), [fail(call, CallError::Cancelled)]);
}

#[test]
fn what_a_broken_link_is_in_the_way_of_goes_around_it_or_says_that_it_cannot() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    // From the second to the third, both ways. The bench's ring is 4, 3, 2, 1.
    let broken = vec![(1, 2), (2, 1)];
    let planned = vec![0, 1, 3, 2];
    bench.hear(ToPeer::Epoch(EpochRecord { broken, ring: planned, ..record(2, &[1, 2, 3, 4]) }));
    bench.drain();
    let mut call = |numbers: &[u8]| {
        let scope = match numbers.len() {
            4 => Scope::Whole,
            _ => Scope::Members(numbers.iter().map(|number| id(*number)).collect()),
        };
        let deadline = bench.now + ms(1_000);
        let op = Op { scope, tag: 0, fingerprint: fingerprint(false), deadline, members: None };
        bench.session.handle_op_call(bench.now, op);
        match bench.drain().pop() {
            Some(Action::Call(_, Command::Perform(attempt))) => (attempt.ring.to_vec(), attempt.goes_around),
            other => panic!("{other:?}"),
        }
    };
    let ids = |numbers: &[u8]| numbers.iter().map(|number| id(*number)).collect::<Vec<_>>();
    assert_eq!(call(&[1, 2, 3, 4]), (ids(&[1, 2, 4, 3]), true));
    assert_eq!(call(&[1, 3, 4]), (ids(&[1, 4, 3]), false), "it is in nobody's way here");
    assert_eq!(
        call(&[1, 2, 3]),
        (ids(&[1, 2, 3]), false),
        "no ring of three avoids it; perhaps it is healed"
    );
    // If it is not, the call is over for all, whether it retries or not, and names both ends.
    let mut bench = Bench::of(&[1, 2, 3]);
    let call = bench.call(true);
    bench.drain();
    bench.abort(key(1, 0), AbortReason::NoPath { from: id(2), to: id(3) });
    let error = CallError::NoPath { from: id(2), to: id(3) };
    let text = error.to_string();
    assert!(text.contains(&id(2).to_string()) && text.contains(&id(3).to_string()), "{text}");
    assert_eq!(bench.performed(call, PerformResult::Stopped), [fail(call, error)]);
}

/// Two members that voted for newcomers waited for a link for ever: one had been stopped when the other dialled it, nothing of the
/// epoch had changed when it was reached again, and there was no call that would have dialled.
#[test]
fn a_link_that_could_not_be_dialled_is_made_when_its_other_end_is_reached() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    // The bench's ring is 4, 3, 2, 1.
    let redialled = |bench: &mut Bench, to, error: Option<&str>| {
        bench.session.handle_redialled(id(to), error.map(str::to_owned));
        bench.drain()
    };
    let answer = |to, error: Option<&str>| {
        send(ToCoordinator::Redialled { group: 0, to: id(to), error: error.map(str::to_owned) })
    };
    assert_eq!(redialled(&mut bench, 4, None), [answer(4, None)], "its link is up");
    bench.hear(ToPeer::Epoch(record(2, &[1, 2, 3, 4])));
    bench.session.handle_link_broken(2, BrokenLink::towards(id(1), id(4), "silent"), true);
    bench.drain();
    assert_eq!(redialled(&mut bench, 4, Some("silent")), [answer(4, Some("silent"))]);
    assert_eq!(redialled(&mut bench, 3, None), [answer(3, None)], "it is not the next in the ring");
    assert_eq!(redialled(&mut bench, 4, None), [Action::Relink(id(4)), answer(4, None)]);
    bench.session.handle_links_up(2);
    bench.drain();
    assert_eq!(redialled(&mut bench, 4, None), [answer(4, None)]);
}

/// What was said of it was lost with the connection, and a vote of the whole group waited for that link for ever.
#[test]
fn a_link_whose_failure_may_not_have_been_heard_is_dialled_once_more() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    bench.hear(ToPeer::Epoch(record(2, &[1, 2, 3, 4])));
    bench.session.handle_link_broken(2, BrokenLink::towards(id(1), id(4), "silent"), true);
    bench.drain();
    let resumed = |bench: &mut Bench| {
        bench.reconnect();
        bench.hear(ToPeer::Resumed { term: 1 });
        bench.drain()
    };
    assert_eq!(resumed(&mut bench), [Action::Relink(id(4))]);
    bench.session.handle_links_up(2);
    bench.drain();
    assert_eq!(resumed(&mut bench), [send(ToCoordinator::Connected { group: 0, epoch: 2 })]);
}

#[test]
fn a_link_beside_the_ring_is_reported_if_what_was_sent_over_it_may_be_lost() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    // The bench's ring is 4, 3, 2, 1.
    let report = |dialling| {
        let (group, epoch, from, to, error) = (0, 1, id(1), id(3), "silent".to_owned());
        send(ToCoordinator::LinkBroken { group, epoch, from, to, dialling, error })
    };
    let breaks = |bench: &mut Bench| {
        bench.session.handle_link_broken(1, BrokenLink::towards(id(1), id(3), "silent"), true);
        bench.drain()
    };
    assert_eq!(breaks(&mut bench), [], "nobody used it");
    let fingerprint = Fingerprint::new(OpKind::Scatter, DataType::F32, [8]);
    let deadline = bench.now + ms(1_000);
    let op = Op { scope: Scope::Whole, tag: 0, fingerprint, deadline, members: None };
    let call = bench.session.handle_op_call(bench.now, op);
    bench.drain();
    assert_eq!(breaks(&mut bench), [], "the executor says itself what it means for its attempt");
    bench.performed(call, PerformResult::Done);
    assert_eq!(breaks(&mut bench), [report(false)]);
    bench.verdict(key(1, 0), Verdict::Commit { pending: 0 });
    bench.call(true);
    bench.drain();
    assert_eq!(breaks(&mut bench), [], "a ring does not use it");
}

#[test]
fn a_link_that_was_never_up_or_is_silent_is_one_that_the_next_ring_must_do_without() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    // The bench's ring is 4, 3, 2, 1; the links of epoch 1 are up, those of epoch 2 are not yet.
    let breaks = |bench: &mut Bench, epoch, (from, to), silent| {
        bench.session.handle_link_broken(epoch, BrokenLink::towards(id(from), id(to), "broken"), silent);
        bench.drain().into_iter().find_map(|action| match action {
            Action::Send(ToCoordinator::LinkBroken { dialling, .. }) => Some(dialling),
            _ => None,
        })
    };
    assert_eq!(breaks(&mut bench, 1, (1, 4), false), Some(false), "it was up, and may be dialled again");
    assert_eq!(breaks(&mut bench, 1, (1, 4), true), Some(true));
    bench.hear(ToPeer::Epoch(record(2, &[1, 2, 3, 4])));
    bench.drain();
    assert_eq!(breaks(&mut bench, 2, (1, 4), false), Some(true), "it could not be dialled");
    assert_eq!(breaks(&mut bench, 2, (2, 1), false), Some(false), "that is for its other end to say");
    bench.session.handle_links_up(2);
    bench.drain();
    assert_eq!(breaks(&mut bench, 2, (1, 4), false), Some(false));
    assert_eq!(breaks(&mut bench, 1, (1, 4), true), None, "of an epoch that is over");
}
