//! Admission: rules 1, 3, 6, 7, 10.

use super::bench::*;

#[test]
fn the_first_peer_is_admitted_alone() {
    let mut bench = Bench::new();
    bench.register(1, 0, 1);
    let record = bench.epoch(1).unwrap();
    assert_eq!((record.epoch, record.run_epoch, members(&record)), (1, 1, vec![id(1)]));
    bench.confirm(&[1], 1);
    bench.assert_told(&[1], &[agreed(1, 1, 1)]);
}

#[test]
fn who_asks_for_more_waits_and_all_come_in_with_one_epoch() {
    let mut bench = Bench::new();
    for number in [3, 1, 2] {
        bench.register(number, 0, 3);
    }
    // In the order of arrival, in the first epoch there is.
    let record = bench.epoch(3).unwrap();
    assert_eq!((record.epoch, members(&record)), (1, vec![id(3), id(1), id(2)]));
    bench.confirm(&[3, 1], 1);
    assert_eq!(bench.told(3), []);
    bench.confirm(&[2], 1);
    bench.assert_told(&[3], &[agreed(1, 3, 1)]);
}

#[test]
fn newcomers_come_in_by_everybodys_vote_and_ranks_keep_their_order() {
    let mut bench = Bench::of(&[5, 3]);
    bench.register(1, 0, 1);
    bench.say(5, vote(1, 2));
    assert_eq!(bench.epoch(5), None);
    bench.say(3, vote(1, 2));
    let record = bench.epoch(3).unwrap();
    assert_eq!((record.epoch, members(&record)), (2, vec![id(5), id(3), id(1)]));
    assert_eq!(record.joined, [id(1)]);
    bench.confirm(&[5, 3, 1], 2);
    bench.assert_told(&[5], &[ToPeer::Epoch(record), agreed(2, 3, 2)]);
}

#[test]
fn a_vote_without_newcomers_ends_at_once() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &vote(1, 2));
    bench.assert_told(&[1, 2], &[agreed(1, 2, 2)]);
}

#[test]
fn a_vote_for_more_than_there_are_stands_until_enough_have_come() {
    let mut bench = Bench::of(&[1]);
    bench.say(1, vote(3, 2));
    bench.register(2, 0, 1);
    assert_eq!(bench.told(1), []);
    bench.register(3, 0, 1);
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1), id(2), id(3)]);
}

#[test]
fn a_newcomer_that_asks_for_too_much_does_not_hold_up_the_others() {
    let mut bench = Bench::of(&[1]);
    bench.register(2, 0, 100);
    bench.register(3, 0, 1);
    bench.say(1, vote(1, 2));
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1), id(3)]);
}

#[test]
fn a_lost_voter_is_no_longer_asked() {
    let mut bench = Bench::of(&[1, 2]);
    bench.register(3, 0, 1);
    bench.say(1, vote(1, 2));
    bench.say(2, ToCoordinator::Leave { for_good: true });
    let record = bench.epoch(1).unwrap();
    assert_eq!((record.epoch, members(&record)), (3, vec![id(1), id(3)]));
}

#[test]
fn a_death_in_one_group_leaves_the_other_groups_epoch_alone() {
    let mut bench = Bench::new();
    bench.register(1, 0, 1);
    bench.confirm(&[1], 1);
    bench.register(2, 1, 1);
    bench.register(3, 1, 1);
    bench.say(1, vote(1, 2));
    bench.say(2, ToCoordinator::Connected { group: 1, epoch: 1 });
    bench.say(3, ToCoordinator::Connected { group: 1, epoch: 1 });
    bench.say(1, initiate(key(1, 0, 0)));
    bench.clear();
    bench.say(3, ToCoordinator::Leave { for_good: true });
    // It hears of the run's size alone, and its collective goes on.
    bench.assert_told(&[1], &[ToPeer::World { run_epoch: 3, global_world_size: 2 }]);
    let record = bench.epoch(2).unwrap();
    assert_eq!((record.group, record.epoch, record.run_epoch), (1, 2, 3));
    bench.say(1, ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.assert_told(&[1], &[commit(key(1, 0, 0))]);
}

#[test]
fn a_run_wide_vote_waits_for_other_groups_collectives() {
    let mut bench = Bench::new();
    bench.register(1, 0, 1);
    bench.confirm(&[1], 1);
    bench.register(2, 1, 1);
    bench.say(1, vote(1, 2));
    bench.say(2, ToCoordinator::Connected { group: 1, epoch: 1 });
    bench.say(1, initiate(key(1, 0, 0)));
    bench.register(3, 1, 1);
    bench.clear();
    bench.say(2, vote(1, 2));
    bench.wait(ms(5_000));
    assert_eq!(bench.told(2), []);
    // The verdict tells the other group that somebody waits; so it comes and votes.
    bench.say(1, ToCoordinator::Complete { key: key(1, 0, 0) });
    let verdict = ToPeer::Verdict { key: key(1, 0, 0), verdict: Verdict::Commit { pending: 1 } };
    bench.assert_told(&[1], &[verdict]);
    bench.say(1, vote(1, 3));
    assert_eq!(members(&bench.epoch(2).unwrap()), [id(2), id(3)]);
}

#[test]
fn where_nobody_waits_to_be_admitted_a_groups_vote_is_its_own_affair() {
    // The newcomer for whom they vote has gone; the other group never heard of it, and goes on.
    let mut bench = Bench::new();
    bench.register(1, 0, 1);
    bench.confirm(&[1], 1);
    bench.register(2, 1, 1);
    bench.say(1, vote(1, 2));
    bench.say(2, ToCoordinator::Connected { group: 1, epoch: 1 });
    bench.say(1, initiate(key(1, 0, 0)));
    bench.register(3, 1, 1);
    bench.say(2, vote(1, 2));
    bench.told(2);
    bench.close(3);
    bench.wait(ms(1));
    assert!(matches!(bench.told(2)[..], [ToPeer::BallotEnded { end: BallotEnd::Agreed(_), .. }]));
}

#[test]
fn newcomers_that_wait_are_counted_in_the_verdict() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.register(3, 0, 1);
    bench.all_say(&[1, 2], &ToCoordinator::Complete { key: key(1, 0, 0) });
    let verdict = ToPeer::Verdict { key: key(1, 0, 0), verdict: Verdict::Commit { pending: 1 } };
    bench.assert_told(&[1, 2], &[verdict]);
}

#[test]
fn a_vote_and_a_collective_are_a_mismatch_of_the_fewer() {
    let mut bench = Bench::of(&[1, 2, 3]);
    // The oldest votes first; still the two others are right.
    bench.say(1, vote(1, 2));
    bench.say(2, initiate(key(1, 0, 0)));
    assert_eq!(bench.told(1), []);
    bench.say(3, initiate(key(1, 0, 0)));
    bench.assert_told(&[1], &[mismatched(3, 2, &call(8).to_string())]);
    assert_eq!(bench.told(2), []);
    // It stays accepted, and the others' call waits for it.
    bench.say(1, initiate(key(1, 0, 0)));
    bench.all_say(&[1, 2, 3], &ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.assert_told(&[1, 2, 3], &[commit(key(1, 0, 0))]);
}

#[test]
fn of_a_vote_and_a_collective_the_newer_deviates_if_equal_and_soon() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, vote(1, 2));
    bench.say(2, initiate(key(1, 0, 0)));
    let reason = AbortReason::Mismatch {
        deviating: vec![id(2)],
        theirs: call(8).to_string(),
        common: "update_topology".to_owned(),
    };
    bench.assert_told(&[2], &[abort(key(1, 0, 0), reason)]);
    // With a third that says nothing it takes a moment, not a deadline.
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, initiate(key(1, 0, 0)));
    bench.say(2, vote(1, 2));
    assert_eq!(bench.told(2), []);
    bench.wait(ms(100));
    assert!(matches!(bench.told(2)[..], [ToPeer::BallotEnded { end: BallotEnd::Mismatch { .. }, .. }]));
}

#[test]
fn the_first_deadline_of_a_vote_ends_it_for_the_group_and_names_who_was_waited_for() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2], &vote(1, 2));
    bench.wait(ms(1_000));
    bench.say(1, expired(2));
    for number in [1, 2, 3] {
        let told = bench.told(number);
        let [
            ToPeer::BallotEnded {
                ballot: BallotId { number: 2, .. }, end: BallotEnd::TimedOut(waiting), ..
            },
        ] = &told[..]
        else {
            panic!("{told:?}")
        };
        assert_eq!(waiting.iter().map(|waiting| waiting.peer).collect::<Vec<_>>(), [id(3)]);
    }
    // A vote that crossed the news is over, too; the next one counts.
    bench.say(3, vote(1, 2));
    bench.all_say(&[1, 2], &vote(1, 3));
    assert_eq!(bench.told(1), []);
    bench.say(3, vote(1, 3));
    bench.assert_told(&[1, 2, 3], &[agreed(1, 3, 3)]);
}

#[test]
fn a_vote_taken_back_no_longer_counts() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, vote(1, 2));
    bench.say(1, ToCoordinator::TakeBack { ballot: ballot(2) });
    bench.say(2, vote(1, 2));
    bench.assert_told(&[1, 2], &[]);
}

fn committed_pending(bench: &mut Bench, numbers: &[u8], key: OpKey) -> u32 {
    bench.clear();
    bench.all_say(numbers, &initiate(key.clone()));
    bench.all_say(numbers, &ToCoordinator::Complete { key });
    match &bench.told(numbers[0])[..] {
        [ToPeer::Verdict { verdict: Verdict::Commit { pending }, .. }] => *pending,
        told => panic!("{told:?}"),
    }
}

/// A newcomer that asks for more than there can be was counted for ever, and every step paid for a vote that let nobody in.
#[test]
fn who_asks_for_what_cannot_be_had_is_not_pending_and_holds_up_no_vote() {
    let mut bench = Bench::of(&[1, 2]);
    bench.register(11, 1, 1);
    // Group 1 is founded once all of group 0 have voted.
    bench.all_say(&[1, 2], &vote(1, 2));
    bench.say(11, ToCoordinator::Connected { group: 1, epoch: 1 });
    bench.register(3, 0, 4);
    assert_eq!(committed_pending(&mut bench, &[1, 2], key(1, 0, 0)), 0);
    let status = bench.run.status(bench.now).to_json();
    let sentence = "p3 waits for group 0 to have 4 members: there would be 3 with all that wait";
    assert!(status.contains(sentence), "{status}");
    assert!(!status.contains("update_topology\""), "{status}");
    // Group 0 votes on its own; group 1, which was not told that anybody waits, is not waited for.
    bench.clear();
    bench.all_say(&[1, 2], &vote(1, 3));
    assert!(matches!(
        bench.told(1)[..],
        [ToPeer::BallotEnded { ballot: BallotId { number: 3, .. }, end: BallotEnd::Agreed(_), .. }]
    ));
    // A fourth makes it possible for both.
    bench.register(4, 0, 1);
    assert_eq!(committed_pending(&mut bench, &[1, 2], key(1, 0, 1)), 2);
    // A member that asks for more than there would be keeps all of them out.
    bench.clear();
    bench.all_say(&[1, 2], &vote(9, 4));
    assert_eq!(bench.run.calls().pending(), 0);
}

/// The size of the run stayed wrong in the other groups until their next vote.
#[test]
fn a_death_in_one_group_tells_the_others_the_size_of_the_run_without_an_epoch_of_theirs() {
    let mut bench = Bench::of(&[1, 2]);
    bench.register(11, 1, 2);
    bench.register(12, 1, 2);
    bench.all_say(&[1, 2], &vote(1, 2));
    bench.all_say(&[11, 12], &ToCoordinator::Connected { group: 1, epoch: 1 });
    let world = |run_epoch, global_world_size| ToPeer::World { run_epoch, global_world_size };
    bench.clear();
    bench.close(2);
    bench.say(12, ToCoordinator::Leave { for_good: true });
    bench.assert_told(&[1], &[world(3, 3)]);
    assert_eq!(bench.epoch(11).map(|record| record.global_world_size), Some(3));
    // One that was away hears it when it comes back.
    let known = EpochRecord { global_world_size: 4, ..record(1, &[1, 2]) };
    bench.resume(2, Resume { ballots: heard(2, 2), ..resume(2, known) });
    assert_eq!(bench.told(2).last(), Some(&world(3, 3)));
    bench.say(11, ToCoordinator::Leave { for_good: true });
    bench.assert_told(&[2], &[world(4, 2)]);
}
