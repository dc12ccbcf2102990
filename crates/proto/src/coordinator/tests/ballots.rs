//! Ballots of any kind, shown with one about nothing.

use super::bench::*;
use crate::ballot::{dummy, dummy_ring};

fn dummy_ballot(number: u64) -> BallotId {
    BallotId { kind: dummy::KIND, number }
}

fn say(number: u64, wish: &[u8]) -> ToCoordinator {
    ToCoordinator::Vote { ballot: dummy_ballot(number), wish: wish.to_vec() }
}

fn ends(bench: &mut Bench, number: u8) -> Vec<(BallotId, BallotEnd)> {
    let end = |message| match message {
        ToPeer::BallotEnded { ballot, end, .. } => Some((ballot, end)),
        _ => None,
    };
    bench.told(number).into_iter().filter_map(end).collect()
}

fn outcome(number: u64, outcome: &[u8]) -> (BallotId, BallotEnd) {
    (dummy_ballot(number), BallotEnd::Agreed(outcome.to_vec()))
}

fn report(ended: u64, outcome: Option<&[u8]>, wish: Option<&[u8]>) -> BallotReport {
    let tally = Tally { ended, agreed: ended };
    let (outcome, wish) = (outcome.map(<[u8]>::to_vec), wish.map(<[u8]>::to_vec));
    BallotReport { kind: dummy::KIND, tally, outcome, wish }
}

#[test]
fn all_hear_what_all_have_said() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, say(1, b"a"));
    assert_eq!(ends(&mut bench, 1), []);
    bench.say(2, say(1, b"b"));
    for number in [1, 2] {
        assert_eq!(ends(&mut bench, number), [outcome(1, b"ab")]);
    }
    // A vote that crossed the news is over; the next one counts.
    bench.say(1, say(1, b"late"));
    bench.say(2, say(2, b"d"));
    bench.say(1, say(2, b"c"));
    assert_eq!(ends(&mut bench, 2), [outcome(2, b"cd")]);
}

#[test]
fn a_lost_voter_is_no_longer_asked() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, say(1, b"a"));
    bench.say(2, say(1, b"b"));
    bench.say(3, ToCoordinator::Leave { for_good: true });
    bench.confirm(&[1, 2], 2);
    assert_eq!(ends(&mut bench, 1), [outcome(1, b"ab")]);
    // The same if it had voted.
    bench.clear();
    bench.say(1, say(2, b"a"));
    bench.say(1, ToCoordinator::Leave { for_good: true });
    bench.confirm(&[2], 3);
    bench.say(2, say(2, b"b"));
    assert_eq!(ends(&mut bench, 2), [outcome(2, b"b")]);
}

#[test]
fn a_vote_outlives_its_connection_and_the_end_is_told_to_whoever_was_away() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(2, say(1, b"b"));
    bench.close(2);
    bench.say(1, say(1, b"a"));
    assert_eq!(ends(&mut bench, 1), [outcome(1, b"ab")]);
    let ballots = [heard(1, 1), vec![report(0, None, Some(b"b"))]].concat();
    bench.resume(2, Resume { ballots, ..resume(2, record(1, &[1, 2])) });
    assert_eq!(ends(&mut bench, 2), [outcome(1, b"ab")]);
    // It is not taken for a vote in the next one.
    bench.say(1, say(2, b"c"));
    assert_eq!(ends(&mut bench, 1), []);
}

#[test]
fn a_restarted_coordinator_tells_the_outcome_that_one_has_heard() {
    let mut bench = Bench::new();
    let with = |ballots| [heard(1, 1), vec![ballots]].concat();
    let ballots = with(report(4, Some(b"so"), None));
    bench.resume(1, Resume { ballots, ..resume(1, record(1, &[1, 2])) });
    let ballots = with(report(3, Some(b"before"), Some(b"b")));
    bench.resume(2, Resume { ballots, ..resume(2, record(1, &[1, 2])) });
    assert_eq!(ends(&mut bench, 2), [outcome(4, b"so")]);
    assert_eq!(ends(&mut bench, 1), []);
}

#[test]
fn a_restarted_coordinator_counts_the_votes_that_were_not_answered() {
    let mut bench = Bench::new();
    for (number, wish) in [(1, b"a"), (2, b"b")] {
        let ballots = [heard(1, 1), vec![report(3, Some(b"before"), Some(wish))]].concat();
        bench.resume(number, Resume { ballots, ..resume(number, record(1, &[1, 2])) });
    }
    bench.confirm(&[1, 2], 1);
    assert_eq!(ends(&mut bench, 2), [outcome(4, b"ab")]);
}

#[test]
fn two_ballots_in_one_group_are_a_mismatch_like_a_ballot_and_a_collective() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, say(1, b"a"));
    bench.say(2, vote(1, 2));
    bench.say(3, vote(1, 2));
    let refused = BallotEnd::Mismatch { others: "update_topology".to_owned() };
    assert_eq!(ends(&mut bench, 1), [(dummy_ballot(1), refused)]);
    assert_eq!(ends(&mut bench, 2), []);
    // It corrects itself, and its number was not used up.
    bench.say(1, vote(1, 2));
    bench.assert_told(&[1, 2, 3], &[agreed(1, 3, 2)]);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(3, say(1, b"c"));
    let refused = BallotEnd::Mismatch { others: call(8).to_string() };
    assert_eq!(ends(&mut bench, 3), [(dummy_ballot(1), refused)]);
}

#[test]
fn the_ballot_of_a_group_waits_for_no_other_group_and_names_nobody_of_it() {
    let mut bench = Bench::of(&[1, 2]);
    bench.register(11, 1, 1);
    bench.all_say(&[1, 2], &vote(1, 2));
    bench.say(11, ToCoordinator::Connected { group: 1, epoch: 1 });
    bench.clear();
    bench.say(1, say(1, b"a"));
    bench.say(1, ToCoordinator::Expired { ballot: dummy_ballot(1) });
    let told = ends(&mut bench, 2);
    let [(ballot, BallotEnd::TimedOut(waiting))] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*ballot, dummy_ballot(1));
    assert_eq!(waiting.iter().map(|waiting| waiting.peer).collect::<Vec<_>>(), [id(2)]);
    bench.all_say(&[1, 2], &say(2, b"x"));
    assert_eq!(ends(&mut bench, 1).last(), Some(&outcome(2, b"xx")));
}

#[test]
fn kinds_that_are_not_known_and_wishes_that_mean_nothing_are_answered() {
    let mut bench = Bench::of(&[1, 2]);
    let ballot = BallotId { kind: BallotKind(77), number: 1 };
    bench.say(1, ToCoordinator::Vote { ballot, wish: b"new".to_vec() });
    assert_eq!(ends(&mut bench, 1), [(ballot, BallotEnd::Unknown)]);
    bench.say(1, say(1, &[0; dummy::WISH_BYTES_MAX + 1]));
    assert_eq!(bench.kicked(1).unwrap().0, KickReason::Breach);
}

fn turn(number: u64) -> ToCoordinator {
    let ballot = BallotId { kind: dummy_ring::KIND, number };
    ToCoordinator::Vote { ballot, wish: vec![1] }
}

/// What a peer was asked to prepare: the ring as ranks, and the question's number.
fn asked(bench: &mut Bench, number: u8) -> Option<(Vec<u32>, u64)> {
    bench.told(number).into_iter().find_map(|message| match message {
        ToPeer::Prepare { record, number } => Some((record.ring, number)),
        _ => None,
    })
}

fn answer(number: u64, error: Option<&str>) -> ToCoordinator {
    ToCoordinator::Prepared { group: 0, number, error: error.map(str::to_owned) }
}

#[test]
fn another_ring_is_prepared_by_all_before_its_epoch_opens() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &turn(1));
    let (ring, question) = asked(&mut bench, 1).expect("it is asked");
    assert_eq!(ring, [2, 1, 0]);
    bench.all_say(&[1, 2], &answer(question, None));
    assert_eq!(bench.epoch(1), None);
    bench.say(3, answer(question, None));
    let record = bench.epoch(1).expect("all are prepared");
    assert_eq!((record.epoch, record.run_epoch, record.ring.clone()), (2, 1, vec![2, 1, 0]));
    assert_eq!(members(&record), [id(1), id(2), id(3)], "ranks stay");
    // The ballot ends when the links of the new epoch are up.
    bench.clear();
    bench.confirm(&[1, 2, 3], 2);
    let told = ends(&mut bench, 2);
    assert!(matches!(told[..], [(_, BallotEnd::Agreed(_))]), "{told:?}");
}

#[test]
fn a_ring_that_somebody_cannot_wire_leaves_everything_as_it_is() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &turn(1));
    let (_, question) = asked(&mut bench, 1).expect("it is asked");
    bench.say(2, answer(question, Some("refused")));
    assert_eq!(bench.epoch(1), None);
    assert!(matches!(ends(&mut bench, 3)[..], [(_, BallotEnd::Agreed(_))]));
    // Answers that come later are about nothing.
    bench.all_say(&[1, 3], &answer(question, None));
    assert_eq!(bench.epoch(1), None);
}

#[test]
fn a_collective_in_flight_is_not_aborted_by_a_new_ring() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &turn(1));
    let (_, question) = asked(&mut bench, 1).expect("it is asked");
    // A part of the group has something of its own to do meanwhile.
    let part = OpKey { scope: Scope::Members(vec![id(2)]), ..key(1, 5, 0) };
    bench.say(2, initiate(part.clone()));
    bench.say(2, turn(1));
    bench.all_say(&[1, 2, 3], &answer(question, None));
    assert_eq!(bench.epoch(1), None, "it waits");
    bench.say(2, ToCoordinator::Complete { key: part });
    assert_eq!(bench.epoch(1).map(|record| record.epoch), Some(2));
}

#[test]
fn who_was_away_is_asked_again_and_whoever_is_lost_is_not_waited_for() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    bench.all_say(&[1, 2, 3, 4], &turn(1));
    let (_, question) = asked(&mut bench, 1).expect("it is asked");
    bench.all_say(&[1, 2, 3], &answer(question, None));
    bench.close(4);
    let wish =
        BallotReport { kind: dummy_ring::KIND, tally: Tally::default(), outcome: None, wish: Some(vec![1]) };
    let ballots = [heard(1, 1), vec![wish]].concat();
    bench.resume(4, Resume { ballots, ..resume(4, record(1, &[1, 2, 3, 4])) });
    assert_eq!(asked(&mut bench, 4).map(|(_, question)| question), Some(question));
    // It leaves after all: the others are asked about a ring without it.
    bench.clear();
    bench.say(4, ToCoordinator::Leave { for_good: true });
    bench.confirm(&[1, 2, 3], 2);
    let (ring, again) = asked(&mut bench, 1).expect("it is asked");
    assert_eq!(ring.len(), 3);
    assert_ne!(again, question);
    bench.all_say(&[1, 2, 3], &answer(question, None));
    assert_eq!(bench.epoch(1), None, "that was another question");
    bench.all_say(&[1, 2, 3], &answer(again, None));
    assert_eq!(bench.epoch(1).map(|record| record.epoch), Some(3));
}

#[test]
fn a_ring_over_a_broken_link_is_refused_before_anybody_is_asked() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    let (from, to, error) = (id(1), id(2), "no route".to_owned());
    bench.say(1, ToCoordinator::LinkBroken { group: 0, epoch: 1, from, to, dialling: true, error });
    bench.wait(ms(100));
    let epoch = bench.run.groups[0].epoch;
    bench.confirm(&[1, 2, 3, 4], epoch);
    bench.clear();
    bench.all_say(&[1, 2, 3, 4], &turn(1));
    assert_eq!(asked(&mut bench, 1), None);
    assert!(matches!(ends(&mut bench, 2)[..], [(_, BallotEnd::Agreed(_))]));
    assert_eq!(bench.run.groups[0].epoch, epoch, "no epoch that changes nothing");
}
