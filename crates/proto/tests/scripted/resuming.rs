//! Coming back: to a coordinator that remembers, and to one that was restarted.

use crate::net::*;

#[test]
fn a_coordinator_that_is_restarted_between_two_calls_is_only_a_pause() {
    let mut net = Net::of(&[1, 2, 3]);
    let calls = net.all_call(&[1, 2, 3], &reduce(true));
    net.all_done();
    net.restart_coordinator();
    for number in [1, 2, 3] {
        net.redial(number);
    }
    let next = net.all_call(&[1, 2, 3], &reduce(true));
    net.all_done();
    for (number, call) in calls.into_iter().chain(next) {
        assert!(
            matches!(net.outcome(number, call), Some(Ok(Done::Committed { .. }))),
            "{}",
            net.story(number)
        );
    }
}

fn lost(outcome: Option<&Outcome>) -> bool {
    matches!(outcome, Some(Err(CallError::PeersLost(_))))
}

fn committed(outcome: Option<&Outcome>) -> bool {
    matches!(outcome, Some(Ok(Done::Committed { .. })))
}

#[test]
fn a_call_hears_how_it_ended_in_an_epoch_that_came_and_went_meanwhile() {
    // Rule 43: the epoch alone would let the call go on, and it would be committed with the others' next.
    let mut net = Net::of(&[1, 2, 3, 4, 5]);
    net.cut(3);
    let step_1_of_3 = net.call(3, reduce(false), LONG);
    net.leave(4);
    net.settle();
    let step_1 = net.all_call(&[1, 2, 5], &reduce(false));
    net.settle();
    for (number, call) in step_1 {
        assert!(lost(net.outcome(number, call)), "3 was away: {}", net.story(number));
    }
    net.leave(5);
    net.settle();
    net.redial(3);
    net.settle();
    let step_2 = net.all_call(&[1, 2], &reduce(false));
    net.all_done();
    assert!(lost(net.outcome(3, step_1_of_3)), "{}", net.story(3));
    let step_2_of_3 = net.call(3, reduce(false), LONG);
    net.all_done();
    for (number, call) in step_2.into_iter().chain([(3, step_2_of_3)]) {
        assert!(committed(net.outcome(number, call)), "{}", net.story(number));
    }
}

#[test]
fn a_further_epoch_does_not_release_who_is_still_hearing_what_it_missed() {
    let mut net = Net::of(&[1, 2, 3, 4]);
    net.cut(3);
    net.cut(4);
    let call = net.call(3, reduce(true), LONG);
    net.redial(3);
    net.settle();
    assert!(net.peers[&3].performing.is_empty(), "4 is away: {}", net.story(3));
    net.upload(3);
    net.health(4, Sign::Dead(DeathReason::Exited));
    // The epoch without 4 is there, and the word to go on is not.
    while let Some(message) = net.peers[&3].down.front() {
        if matches!(message, ToPeer::Proceed { .. }) {
            break;
        }
        net.download(3);
    }
    assert_eq!(net.record(3).epoch, 2);
    assert!(net.peers[&3].performing.is_empty(), "{}", net.story(3));
    assert!(matches!(net.download(3), Some(ToPeer::Proceed { epoch: 2, .. })));
    assert!(net.peers[&3].performing.contains_key(&call), "{}", net.story(3));
}

#[test]
fn a_deadline_that_passes_while_we_hear_what_we_missed_is_told_afterwards() {
    let mut net = Net::of(&[1, 2, 3]);
    net.cut(3);
    net.cut(2);
    let call = net.call(3, reduce(true), ms(1_000));
    net.redial(3);
    net.wait(ms(500));
    assert_eq!(net.outcome(3, call), None);
    net.redial(2);
    net.settle();
    assert!(matches!(net.outcome(3, call), Some(Err(CallError::Timeout(_)))), "{}", net.story(3));
    // It is everybody's: the next calls pair up.
    let theirs = net.all_call(&[1, 2], &reduce(true));
    net.settle();
    for (number, call) in theirs {
        assert!(
            matches!(net.outcome(number, call), Some(Err(CallError::Timeout(_)))),
            "{}",
            net.story(number)
        );
    }
}

#[test]
fn a_connection_that_breaks_while_a_member_hears_what_a_rebuild_decided_is_no_breach() {
    // After every message that it hears: what it knows then is something that a member can know.
    for heard in 0..5 {
        let mut net = Net::of(&[1, 2, 3, 4]);
        net.cut(3);
        // Epoch 2, of which 3 does not hear; an attempt in it is aborted because 3 is away.
        net.leave(4);
        net.settle();
        net.call(1, reduce(true), LONG);
        net.settle();
        net.restart_coordinator();
        for number in [1, 2, 3] {
            net.redial(number);
            net.upload(number);
        }
        net.promise(&[1, 2, 3]);
        for _ in 0..heard {
            net.download(3);
        }
        net.cut(3);
        net.redial(3);
        net.settle();
        net.assert_all_in(&[1, 2, 3]);
        assert_eq!(net.record(3).epoch, 2);
    }
}

#[test]
fn a_rebuild_commits_nothing_that_was_not_one_call() {
    let mut net = Net::of(&[1, 2]);
    let one = net.call(1, barrier(), LONG);
    let two = net.call(2, broadcast(2), LONG);
    // A barrier moves nothing; the root of a small broadcast has sent all of it without credit. Both complete.
    net.done(1, one);
    net.done(2, two);
    // The coordinator dies before it hears of it.
    net.restart_coordinator();
    net.redial(1);
    net.redial(2);
    net.settle();
    assert!(!committed(net.outcome(1, one)) && !committed(net.outcome(2, two)));
    // The next attempts show who deviates.
    net.wait(ms(1_000));
    let mismatch = |outcome: Option<&Outcome>| matches!(outcome, Some(Err(CallError::Mismatch { .. })));
    assert!(mismatch(net.outcome(1, one)) || mismatch(net.outcome(2, two)));
}

#[test]
fn a_rebuild_that_finds_no_ring_puts_nobody_out_for_its_numbers() {
    let mut net = Net::of(&[1, 2, 3]);
    let (from, to, error) = (id(1), id(2), "cut".to_owned());
    let report = ToCoordinator::LinkBroken { group: 0, epoch: 1, from, to, dialling: true, error };
    net.peer(1).up.push_back(report);
    net.settle();
    net.wait(ms(200));
    assert_eq!(net.record(1).epoch, 2, "it is planned around");
    net.all_call(&[1, 2, 3], &reduce(true));
    net.all_done();
    // The coordinator dies, and so does 3.
    net.restart_coordinator();
    net.redial(1);
    net.redial(2);
    net.settle();
    // A call of 1 runs out of time while the rebuild waits for 3.
    net.call(1, reduce(true), ms(300));
    net.wait(ms(301));
    net.health(3, Sign::Dead(DeathReason::Exited));
    net.settle();
    for number in [1, 2] {
        let breach = matches!(net.out(number), Some(OutReason::Kicked(KickReason::Breach, _)));
        assert!(!breach, "{}", net.story(number));
    }
}

#[test]
fn who_was_lost_in_a_rebuild_is_not_expected_again_and_is_told() {
    let mut net = Net::of(&[1, 2, 3, 4]);
    // 4 is evicted and does not hear of it; its record is old.
    net.cut(4);
    net.health(4, Sign::Dead(DeathReason::Silent));
    net.settle();
    assert_eq!(net.record(1).epoch, 2);
    net.restart_coordinator();
    net.redial(4);
    net.promise(&[4]);
    net.health(1, Sign::Alive { acked: None });
    net.health(2, Sign::Alive { acked: None });
    net.health(3, Sign::Dead(DeathReason::Exited));
    // The others come with a newer record, in which 3 is.
    net.redial(1);
    net.redial(2);
    net.settle();
    assert_eq!((net.record(1).epoch, net.members(1)), (1_001, vec![id(1), id(2)]));
    net.redial(3);
    net.settle();
    assert!(matches!(net.out(3), Some(OutReason::Kicked(KickReason::Evicted, _))), "{:?}", net.out(3));
    let calls = net.all_call(&[1, 2], &reduce(true));
    net.all_done();
    for (number, call) in calls {
        assert!(committed(net.outcome(number, call)), "{}", net.story(number));
    }
}

/// Nobody answered on the new connection, so the peer waited for its coordinator until it gave the session up.
#[test]
fn who_is_put_out_in_the_moment_in_which_it_resumes_is_told_on_the_connection_that_it_came_on() {
    let mut net = Net::of(&[1, 2, 3]);
    net.wait(ms(1));
    let acked = Some(net.now);
    net.health(3, Sign::Alive { acked });
    // Its port refuses. As long as its connection is open, for all that we know, that is not enough (rule 20b).
    net.health(3, Sign::Dead(DeathReason::Refused));
    net.settle();
    net.assert_all_in(&[1, 2, 3]);
    // It comes back before we have noticed that it was gone: what its resume ends is what kept it in.
    net.hang_up(3);
    net.redial(3);
    net.settle();
    let out = net.out(3);
    assert!(matches!(out, Some(OutReason::Kicked(KickReason::Evicted, _))), "{out:?} {}", net.story(3));
    assert_eq!(net.members(1), [id(1), id(2)]);
}
