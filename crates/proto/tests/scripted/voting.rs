//! What members agree on, and who is right where they do not.

use crate::net::*;

/// The fields of a receipt that are agreed; the attempts are each member's own.
fn agreed(outcome: Option<&Outcome>) -> Option<(OpKey, Vec<PeerId>, usize, u32)> {
    let Some(Ok(Done::Committed { key, contributors, world_size, pending, .. })) = outcome else {
        return None;
    };
    Some((key.clone(), contributors.clone(), *world_size, *pending))
}

#[test]
fn receipts_agree_however_often_the_coordinator_is_restarted_and_whoever_heard_the_verdict() {
    // Of the three that have completed, so many hear the verdict; then the coordinator dies. A newcomer waits, so that
    // what is pending is not simply zero.
    for heard in 0..=3 {
        let mut net = Net::of(&[1, 2, 3]);
        net.join(4, 0, 1);
        net.settle();
        let calls = net.all_call(&[1, 2, 3], &reduce(true));
        // One attempt is lost to some of them: attempts differ.
        net.upload(1);
        net.restart_coordinator();
        for number in [1, 2, 3] {
            net.redial(number);
        }
        net.redial(4);
        net.settle();
        for number in [1, 2, 3] {
            for call in net.peers[&number].performing.keys().copied().collect::<Vec<_>>() {
                net.done(number, call);
            }
            net.upload(number);
        }
        for number in 1..=heard {
            while net.download(number).is_some() {}
        }
        net.restart_coordinator();
        for number in [1, 2, 3] {
            net.redial(number);
        }
        net.all_done();
        let receipts: Vec<_> =
            calls.iter().map(|(number, call)| agreed(net.outcome(*number, *call))).collect();
        assert!(receipts[0].is_some(), "{heard} heard: {}", net.story(1));
        assert!(receipts.iter().all(|receipt| *receipt == receipts[0]), "{heard} heard: {receipts:?}");
    }
}

#[test]
fn a_trained_member_goes_on_without_newcomers_that_differ() {
    let mut net = Net::of(&[1]);
    let first = net.call(1, reduce(true), LONG);
    net.all_done();
    assert!(agreed(net.outcome(1, first)).is_some());
    for newcomer in [2, 3] {
        net.join(newcomer, 0, 3);
    }
    net.settle();
    net.vote(1, 1);
    net.settle();
    assert_eq!((net.record(1).roster.len(), net.record(1).incumbents), (3, 1));
    // The coordinator's death does not change who was there first.
    net.restart_coordinator();
    for number in [1, 2, 3] {
        net.redial(number);
    }
    net.settle();
    let strange = Fingerprint::new(OpKind::AllReduce, DataType::F64, [1_000]);
    let theirs = [2, 3].map(|number| (number, net.call(number, strange.clone(), LONG)));
    let ours = net.call(1, reduce(true), LONG);
    net.settle();
    for (number, call) in theirs {
        let outcome = net.outcome(number, call);
        assert!(matches!(outcome, Some(Err(CallError::Mismatch { .. }))), "{}", net.story(number));
        assert!(matches!(net.out(number), Some(OutReason::Kicked(KickReason::Evicted, _))));
    }
    net.all_done();
    assert_eq!(agreed(net.outcome(1, ours)).map(|receipt| receipt.1), Some(vec![id(1)]), "{}", net.story(1));
}

#[test]
fn who_does_not_call_stays_however_often_another_times_out() {
    let mut net = Net::of(&[1, 2]);
    for _ in 0..600 {
        let call = net.call(1, barrier(), ms(1_000));
        net.wait(ms(1_001));
        assert!(matches!(net.outcome(1, call), Some(Err(CallError::Timeout(_)))), "{}", net.story(1));
    }
    net.assert_all_in(&[1, 2]);
    // Its calls end as the other's did, and then they are together again.
    for _ in 0..600 {
        let call = net.call(2, barrier(), LONG);
        assert!(matches!(net.outcome(2, call), Some(Err(CallError::CameTooLate))), "{}", net.story(2));
    }
    let calls = net.all_call(&[1, 2], &barrier());
    net.all_done();
    assert!(calls.iter().all(|(number, call)| agreed(net.outcome(*number, *call)).is_some()));
}

#[test]
fn parts_of_a_group_that_use_few_tags_each_disturb_nobody() {
    let numbers: Vec<u8> = (1..=8).collect();
    let mut net = Net::of(&numbers);
    for tag in 0..300 {
        let mut calls = Vec::new();
        for pair in numbers.chunks(2) {
            let scope = Scope::Members(pair.iter().map(|number| id(*number)).collect());
            calls.extend(
                pair.iter()
                    .map(|number| (*number, net.call_in(*number, scope.clone(), tag, reduce(true), LONG))),
            );
        }
        net.all_done();
        assert!(
            calls.iter().all(|(number, call)| agreed(net.outcome(*number, *call)).is_some()),
            "tag {tag}"
        );
    }
    net.assert_all_in(&numbers);
}
