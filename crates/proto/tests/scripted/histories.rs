//! Rebuilds without members who may know more (rule 41): what follows is a history of its own.

use crate::net::*;

/// 3 is evicted and does not know it; the others have gone on to epoch 2 and committed there. Then the coordinator dies,
/// and of all members only 3 comes to the next one before its patience ends.
fn carried_on_by_who_was_out() -> Net {
    let mut net = Net::of(&[1, 2, 3]);
    net.cut(3);
    net.health(3, Sign::Dead(DeathReason::Silent));
    let calls = net.all_call(&[1, 2], &reduce(true));
    net.all_done();
    assert!(calls.iter().all(|(number, call)| net.outcome(*number, *call).is_some()));
    assert_eq!(net.record(1).epoch, 2);
    net.restart_coordinator();
    net.redial(3);
    net.promise(&[3]);
    for number in [1, 2] {
        net.health(number, Sign::Dead(DeathReason::Exited));
    }
    net.wait(ms(2_001));
    assert_eq!(net.members(3), [id(3)], "{}", net.story(3));
    net
}

fn told_to_join(net: &Net, number: u8) -> bool {
    matches!(net.out(number), Some(OutReason::Kicked(KickReason::Superseded, _)))
}

fn all_commit(net: &mut Net, numbers: &[u8]) {
    let calls = net.all_call(numbers, &reduce(true));
    net.all_done();
    for (number, call) in calls {
        let committed = matches!(net.outcome(number, call), Some(Ok(Done::Committed { .. })));
        assert!(committed, "{}", net.story(number));
    }
}

#[test]
fn what_an_evicted_member_carries_on_is_not_the_history_that_others_know_more_of() {
    let mut net = carried_on_by_who_was_out();
    let (known, since) = (net.record(1).clone(), net.record(3).clone());
    assert!(!since.is_akin(&known) && since.epoch > known.epoch + 100, "{since:?}");
    // Who knows more is a stranger to what is served, and joins it.
    net.redial(1);
    net.settle();
    assert!(told_to_join(&net, 1), "{}", net.story(1));
    net.vote(3, 1);
    net.settle();
    net.join(1, 0, 1);
    net.settle();
    net.vote(3, 1);
    net.settle();
    assert_eq!(net.members(1), [id(3), id(1)]);
    all_commit(&mut net, &[1, 3]);
}

#[test]
fn two_histories_of_one_group_are_not_mixed_in_a_later_rebuild() {
    // All three orders in which they can come: alone first, alone last, in between.
    for order in [[3, 1, 2], [1, 2, 3], [1, 3, 2]] {
        let mut net = carried_on_by_who_was_out();
        all_commit(&mut net, &[3]);
        net.restart_coordinator();
        for number in order {
            net.redial(number);
            net.settle();
        }
        net.wait(ms(2_001));
        // The history that more have come back to goes on, with what it knew.
        assert!(told_to_join(&net, 3), "{order:?}: {}", net.story(3));
        net.assert_all_in(&[1, 2]);
        assert_eq!((net.record(1).epoch, net.members(1)), (2, vec![id(1), id(2)]));
        all_commit(&mut net, &[1, 2]);
    }
}

/// A coordinator was rebuilt without 3, and has told that to one of the others only.
fn half_told(heard: u8) -> Net {
    let mut net = Net::of(&[1, 2, 3]);
    net.restart_coordinator();
    net.redial(1);
    net.redial(2);
    net.promise(&[1, 2]);
    net.health(3, Sign::Dead(DeathReason::Exited));
    while net.download(heard).is_some() {}
    assert_eq!((net.members(heard).len(), net.members(3 - heard).len()), (2, 3));
    net
}

#[test]
fn who_has_not_heard_of_a_new_history_is_in_it_all_the_same() {
    // Whether its connection breaks, or the coordinator dies; and whoever of the two comes back first.
    for (restart, order) in [(false, [2, 2]), (true, [1, 2]), (true, [2, 1])] {
        let mut net = half_told(1);
        let name = net.record(1).founder;
        if restart {
            net.restart_coordinator();
        } else {
            net.cut(2);
        }
        for number in order {
            if net.peers[&number].at.is_none() {
                net.redial(number);
                net.settle();
            }
        }
        net.assert_all_in(&[1, 2]);
        assert_eq!((net.record(2).founder, net.members(2)), (name, vec![id(1), id(2)]));
        all_commit(&mut net, &[1, 2]);
    }
}

#[test]
fn no_two_rebuilds_begin_the_same_history() {
    // Who heard of the first one is gone; the other goes through the next rebuild alone. 1 is the first in both rosters,
    // or 2 is the first in the second.
    for (heard, other) in [(2, 1), (1, 2)] {
        let mut net = half_told(heard);
        let (first, before) = (net.record(heard).clone(), net.record(other).clone());
        net.restart_coordinator();
        net.redial(other);
        net.promise(&[other]);
        for gone in [heard, 3] {
            net.health(gone, Sign::Dead(DeathReason::Exited));
        }
        net.wait(ms(2_001));
        let second = net.record(other);
        assert!(second.is_akin(&before) && !second.is_akin(&first), "{first:?} {second:?}");
    }
}
