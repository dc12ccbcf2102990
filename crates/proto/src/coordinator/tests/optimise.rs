//! A better ring: two turns of votes, a solver that is asked, and a ring in two steps.

use super::bench::*;
use crate::ballot::optimise::{Brought, KIND, RingOutcome, RingWish};
use crate::limits::LINKS_BROUGHT_MAX;
use crate::topology::Answer;
use crate::wire::{decode, encode};

const ALL: [u8; 4] = [1, 2, 3, 4];

fn cast(number: u64, wish: &RingWish) -> ToCoordinator {
    ToCoordinator::Vote { ballot: BallotId { kind: KIND, number }, wish: encode(wish) }
}

fn begin(known: Vec<Brought>) -> RingWish {
    RingWish::Begin { site: String::new(), known }
}

fn measured(found: Vec<Brought>) -> RingWish {
    RingWish::Measured { site: String::new(), found, failed: Vec::new(), trouble: None }
}

fn brought(peer: u8, sends: u64, receives: u64) -> Brought {
    Brought { peer: id(peer), sends, receives, round_trip_us: 100, age_ms: 0 }
}

/// What a peer heard a ballot agreed on.
fn outcome(bench: &mut Bench, number: u8) -> Option<RingOutcome> {
    bench.told(number).into_iter().rev().find_map(|message| match message {
        ToPeer::BallotEnded { end: BallotEnd::Agreed(outcome), .. } => Some(decode(&outcome).unwrap()),
        _ => None,
    })
}

/// Answers every question, as the driver's threads do.
fn solve(bench: &mut Bench) -> usize {
    let questions = std::mem::take(&mut bench.questions);
    for (token, question) in &questions {
        let answer = question.answer(&|| false);
        bench.run.handle_solved(bench.now, *token, &answer);
        bench.drain();
    }
    questions.len()
}

/// What member `from` measured with `to`: it dials whoever has the larger number. 1 -> 3 -> 2 -> 4 -> 1 is fast.
fn found(from: u8) -> Vec<Brought> {
    let rate = |from: u8, to: u8| {
        let fast = [(1, 3), (3, 2), (2, 4), (4, 1)].contains(&(from, to));
        if fast { 100_000_000 } else { 10_000_000 }
    };
    ALL.into_iter().filter(|to| *to > from).map(|to| brought(to, rate(from, to), rate(to, from))).collect()
}

fn prepare(bench: &mut Bench, number: u8) -> Option<u64> {
    bench.told(number).into_iter().find_map(|message| match message {
        ToPeer::Prepare { number, .. } => Some(number),
        _ => None,
    })
}

fn prepared(number: u64, error: Option<&str>) -> ToCoordinator {
    ToCoordinator::Prepared { group: 0, number, error: error.map(str::to_owned) }
}

/// Both turns of votes, up to the question to everybody whether it can make its link.
fn up_to_the_question(bench: &mut Bench, first: u64) -> u64 {
    bench.all_say(&ALL, &cast(first, &begin(Vec::new())));
    bench.clear();
    for number in ALL {
        bench.say(number, cast(first + 1, &measured(found(number))));
    }
    assert_eq!(bench.questions.len(), 1, "the clerk solves nothing itself");
    assert_eq!(solve(bench), 1);
    prepare(bench, 1).expect("a better ring is prepared")
}

fn state(bench: &Bench, number: usize) -> String {
    let status: serde_json::Value = serde_json::from_str(&bench.run.status(bench.now).to_json()).unwrap();
    status["peers"][number]["state"].as_str().unwrap().to_owned()
}

#[test]
fn who_measures_what_then_the_solver_then_links_then_the_epoch() {
    let mut bench = Bench::of(&ALL);
    bench.say(1, cast(1, &begin(Vec::new())));
    assert_eq!((state(&bench, 0), state(&bench, 1)), ("VoteOptimizeTopology".into(), "Idle".into()));
    for number in [2, 3, 4] {
        bench.say(number, cast(1, &begin(Vec::new())));
    }
    let Some(RingOutcome::Measure { members, heats }) = outcome(&mut bench, 3) else {
        panic!("who measures what")
    };
    assert_eq!(members, ALL.map(id));
    assert_eq!(heats.iter().flatten().count(), 6, "every pair once: {heats:?}");
    assert_eq!(heats.len(), 3, "two pairs at a time: {heats:?}");
    assert_eq!(state(&bench, 0), "OptimizeTopology", "it measures");
    for number in ALL {
        bench.say(number, cast(2, &measured(found(number))));
    }
    assert_eq!(solve(&mut bench), 1);
    let question = prepare(&mut bench, 1).expect("a better ring is prepared");
    bench.clear();
    bench.all_say(&ALL, &prepared(question, None));
    let record = bench.epoch(2).expect("all are prepared");
    assert_eq!(record.ring, [0, 2, 1, 3]);
    assert_eq!(members_of(&record), ALL.map(id), "ranks stay (rule 3)");
    bench.confirm(&ALL, record.epoch);
    let Some(RingOutcome::Ring { ring, links, promise, before, improved, moonshot, measured_pairs }) =
        outcome(&mut bench, 4)
    else {
        panic!("the ring")
    };
    assert_eq!(ring, [1, 3, 2, 4].map(id));
    assert!(improved && !moonshot && measured_pairs == 6);
    assert_eq!((promise.map(|it| it.rate), before.map(|it| it.rate)), (Some(100_000_000), Some(10_000_000)));
    assert_eq!(links.len(), 12, "every direction of every pair");
    assert!(links[..4].iter().all(|link| link.rate == 100_000_000), "those of the ring first: {links:?}");
    assert_eq!(state(&bench, 0), "Idle");
}

/// Above 32 members the ring used to end with a member called "8 more".
#[test]
fn a_status_tells_the_whole_ring() {
    let all: Vec<u8> = (1..=40).collect();
    let bench = Bench::of(&all);
    let status: serde_json::Value = serde_json::from_str(&bench.run.status(bench.now).to_json()).unwrap();
    let ring: Vec<_> = all.iter().map(|number| format!("p{number}")).collect();
    assert_eq!(status["groups"][0]["ring"], serde_json::json!(ring));
}

fn hints(bench: &Bench) -> String {
    let status: serde_json::Value = serde_json::from_str(&bench.run.status(bench.now).to_json()).unwrap();
    status["groups"][0]["hints"].to_string()
}

fn members_of(record: &EpochRecord) -> Vec<PeerId> {
    members(record)
}

#[test]
fn what_is_known_is_not_measured_again_also_after_a_restart() {
    let mut bench = Bench::of(&ALL);
    let question = up_to_the_question(&mut bench, 1);
    bench.all_say(&ALL, &prepared(question, None));
    let epoch = bench.run.groups[0].epoch;
    bench.confirm(&ALL, epoch);
    bench.clear();
    bench.all_say(&ALL, &cast(3, &begin(Vec::new())));
    let Some(RingOutcome::Measure { heats, .. }) = outcome(&mut bench, 1) else { panic!("a plan") };
    assert_eq!(heats, Vec::<Vec<_>>::new());
    // A coordinator that knows nothing is told by the votes.
    let mut bench = Bench::of(&ALL);
    for number in ALL {
        bench.say(number, cast(1, &begin(found(number))));
    }
    let Some(RingOutcome::Measure { heats, .. }) = outcome(&mut bench, 1) else { panic!("a plan") };
    assert_eq!(heats, Vec::<Vec<_>>::new());
    // The ring is as good as it can be: the next vote changes nothing.
    bench.clear();
    bench.all_say(&ALL, &cast(2, &measured(Vec::new())));
    solve(&mut bench);
    assert!(prepare(&mut bench, 2).is_some(), "this coordinator still has the old ring");
}

#[test]
fn a_ring_that_is_hardly_better_is_not_wired() {
    let mut bench = Bench::of(&ALL);
    bench.all_say(&ALL, &cast(1, &begin(Vec::new())));
    bench.clear();
    for number in ALL {
        let close = found(number).into_iter().map(|link| Brought {
            sends: if link.sends > 50_000_000 { 10_300_000 } else { link.sends },
            receives: if link.receives > 50_000_000 { 10_300_000 } else { link.receives },
            ..link
        });
        bench.say(number, cast(2, &measured(close.collect())));
    }
    solve(&mut bench);
    let Some(RingOutcome::Ring { improved, ring, .. }) = outcome(&mut bench, 1) else { panic!("the ring") };
    assert!(!improved && ring == ALL.map(id));
}

#[test]
fn a_link_that_cannot_be_made_fails_and_the_retry_differs() {
    let mut bench = Bench::of(&ALL);
    let question = up_to_the_question(&mut bench, 1);
    bench.clear();
    bench.say(3, prepared(question, Some("refused")));
    let Some(RingOutcome::Failed { why }) = outcome(&mut bench, 2) else { panic!("it failed") };
    assert!(why.contains("as it was"), "{why}");
    assert_eq!(bench.run.groups[0].ring, ALL.map(id), "failure keeps the old ring");
    assert_eq!(state(&bench, 1), "OptimizeTopologyFailed");
    // The retry avoids 3 -> 2, and takes the second best. It is measured anew, but for that link.
    bench.all_say(&ALL, &cast(3, &begin(Vec::new())));
    bench.clear();
    let rate = |from: u8, to: u8| match (from, to) {
        (3, 2) | (2, 3) => 0,
        (1, 3) | (2, 4) | (4, 1) => 100_000_000,
        (3, 4) | (4, 2) | (2, 1) => 50_000_000,
        _ => 10_000_000,
    };
    bench.wait(ms(1)); // The newest figure counts.
    for number in ALL {
        bench.say(number, cast(4, &measured(told_by(number, &ALL, rate, |_, _| 100))));
    }
    let (_, question) = bench.questions[0].clone();
    assert_eq!(question.costs.of(2, 1), crate::topology::NO_LINK);
    solve(&mut bench);
    let again = prepare(&mut bench, 1).expect("the second best is prepared");
    bench.all_say(&ALL, &prepared(again, None));
    assert_eq!(bench.run.groups[0].ring, [1, 3, 4, 2].map(id));
}

#[test]
fn a_link_in_use_that_is_not_dialled_in_time_is_no_reason_for_a_slower_ring() {
    let mut bench = Bench::of(&ALL);
    let question = up_to_the_question(&mut bench, 1);
    bench.clear();
    // 4 -> 1 is in both rings. Its far end was stopped for a moment.
    bench.say(4, prepared(question, Some("silent")));
    let Some(RingOutcome::Failed { .. }) = outcome(&mut bench, 2) else { panic!("it failed") };
    bench.all_say(&ALL, &cast(3, &begin(Vec::new())));
    bench.clear();
    bench.all_say(&ALL, &cast(4, &measured(Vec::new())));
    assert_eq!(solve(&mut bench), 1);
    let question = prepare(&mut bench, 1).expect("the better ring is prepared again");
    bench.all_say(&ALL, &prepared(question, None));
    let epoch = bench.run.groups[0].epoch;
    bench.confirm(&ALL, epoch);
    let Some(RingOutcome::Ring { ring, before, .. }) = outcome(&mut bench, 1) else { panic!("the ring") };
    assert_eq!((ring, before.map(|it| it.rate)), ([1, 3, 2, 4].map(id).to_vec(), Some(10_000_000)));
}

#[test]
fn what_was_refused_is_forgiven_where_the_ring_needs_it() {
    let mut bench = Bench::of(&ALL);
    let question = up_to_the_question(&mut bench, 1);
    bench.say(3, prepared(question, Some("refused")));
    // Two are left, and their ring has 3 -> 2.
    bench.say(1, ToCoordinator::Leave { for_good: true });
    bench.say(4, ToCoordinator::Leave { for_good: true });
    let epoch = bench.run.groups[0].epoch;
    bench.confirm(&[2, 3], epoch);
    bench.all_say(&[2, 3], &cast(3, &begin(Vec::new())));
    bench.clear();
    bench.all_say(&[2, 3], &cast(4, &measured(Vec::new())));
    solve(&mut bench);
    let Some(RingOutcome::Ring { ring, .. }) = outcome(&mut bench, 2) else { panic!("the ring") };
    assert_eq!(ring, [2, 3].map(id));
}

#[test]
fn the_way_back_of_a_broken_link_is_not_asked_for_where_the_ring_would_not_be_taken() {
    let mut bench = Bench::of(&ALL);
    let broken = (id(3), id(1));
    bench.run.groups.get_mut(0).unwrap().paths.take_for_broken(broken);
    let rate = |from: u8, to: u8| match (from, to) {
        (1, 3) | (3, 2) | (2, 4) | (4, 1) => 100_000_000,
        (1, 4) | (4, 3) | (2, 1) => 50_000_000,
        _ => 10_000_000,
    };
    bench.all_say(&ALL, &cast(1, &begin(Vec::new())));
    bench.clear();
    for number in ALL {
        bench.say(number, cast(2, &measured(told_by(number, &ALL, rate, |_, _| 100))));
    }
    assert_eq!(solve(&mut bench), 1);
    let question = prepare(&mut bench, 1).expect("the best of those that avoid both directions");
    bench.all_say(&ALL, &prepared(question, None));
    let ring = bench.run.groups[0].ring.clone();
    assert_eq!(ring, [1, 4, 3, 2].map(id));
    let three = [1, 2, 3].map(id);
    let avoided = bench.run.groups[0].paths.avoided(&three);
    assert_eq!(avoided, [broken].into(), "three have no ring without the one direction or the other");
}

/// What was measured in this call is a few links of many: a ring by these alone would be any.
#[test]
fn a_coordinator_that_was_restarted_between_the_votes_has_all_begin_again() {
    let mut bench = Bench::new();
    let plan = encode(&RingOutcome::Measure { members: ALL.map(id).to_vec(), heats: vec![vec![(0, 3)]] });
    for number in ALL {
        let found = if number == 1 { vec![brought(4, 10_000_000, 100_000_000)] } else { Vec::new() };
        let (tally, wish) = (Tally { ended: 1, agreed: 1 }, Some(encode(&measured(found))));
        let report = BallotReport { kind: KIND, tally, outcome: Some(plan.clone()), wish };
        let ballots = [heard(1, 1), vec![report]].concat();
        bench.resume(number, Resume { ballots, ..resume(number, record(1, &ALL)) });
    }
    bench.confirm(&ALL, 1);
    assert_eq!(bench.questions.len(), 0, "nothing is concluded from one pair");
    assert_eq!(ALL.map(|number| outcome(&mut bench, number)), [const { Some(RingOutcome::Again) }; 4]);
    // Everybody brings what it knows, and nothing is measured twice.
    for number in ALL {
        bench.say(number, cast(3, &begin(found(number))));
    }
    let Some(RingOutcome::Measure { heats, .. }) = outcome(&mut bench, 1) else { panic!("a plan") };
    assert_eq!(heats, Vec::<Vec<_>>::new());
    bench.all_say(&ALL, &cast(4, &measured(Vec::new())));
    assert_eq!(solve(&mut bench), 1);
    assert!(prepare(&mut bench, 1).is_some());
}

/// It used to be counted at every answer, with all that is known of all links, for nothing.
#[test]
fn while_a_ring_is_being_prepared_nothing_is_counted() {
    let mut bench = Bench::of(&ALL);
    let question = up_to_the_question(&mut bench, 1);
    let is_counted = |bench: &Bench| {
        let hall =
            crate::coordinator::ballots::hall(&bench.run.office, &bench.run.groups, &bench.run.gate, KIND);
        hall.groups().any(|seats| seats.is_unanimous() && seats.is_linked)
    };
    bench.all_say(&[1, 2, 3], &prepared(question, None));
    assert!(!is_counted(&bench));
    bench.say(4, prepared(question, Some("refused")));
    assert!(!is_counted(&bench), "the ballot is over");
    let question = up_to_the_question(&mut bench, 3);
    bench.all_say(&ALL, &prepared(question, None));
    let epoch = bench.run.groups[0].epoch;
    bench.all_say(&[1, 2, 3], &ToCoordinator::Connected { group: 0, epoch });
    bench.clear();
    bench.say(4, ToCoordinator::Connected { group: 0, epoch });
    assert!(
        matches!(outcome(&mut bench, 1), Some(RingOutcome::Ring { .. })),
        "it is counted when all have it"
    );
}

#[test]
fn who_is_lost_while_all_measure_is_not_waited_for() {
    let mut bench = Bench::of(&ALL);
    bench.all_say(&ALL, &cast(1, &begin(Vec::new())));
    bench.clear();
    for number in [1, 2, 3] {
        bench.say(number, cast(2, &measured(found(number))));
    }
    assert_eq!(bench.questions.len(), 0, "it waits for the fourth");
    bench.say(4, ToCoordinator::Leave { for_good: true });
    bench.confirm(&[1, 2, 3], 2);
    assert_eq!(solve(&mut bench), 1);
    let again = prepare(&mut bench, 1);
    if let Some(question) = again {
        bench.all_say(&[1, 2, 3], &prepared(question, None));
        bench.confirm(&[1, 2, 3], 3);
    }
    let Some(RingOutcome::Ring { ring, links, .. }) = outcome(&mut bench, 2) else { panic!("the ring") };
    assert_eq!(ring.len(), 3);
    assert_eq!(links.len(), 6, "what the fourth knew went with it");
}

#[test]
fn one_that_begins_again_makes_all_begin_again() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &cast(1, &begin(Vec::new())));
    bench.clear();
    bench.say(1, cast(2, &measured(vec![brought(2, 10, 10)])));
    bench.say(2, cast(2, &begin(Vec::new())));
    assert_eq!(outcome(&mut bench, 1), Some(RingOutcome::Again));
    assert_eq!(outcome(&mut bench, 2), Some(RingOutcome::Again));
}

#[test]
fn a_group_whose_links_cannot_be_measured_says_why() {
    let mut bench = Bench::of(&[1, 2]);
    bench.all_say(&[1, 2], &cast(1, &begin(Vec::new())));
    bench.clear();
    let trouble = Some("10.0.0.2:7000 is silent".to_owned());
    let nothing = RingWish::Measured { site: String::new(), found: Vec::new(), failed: vec![id(2)], trouble };
    bench.say(1, cast(2, &nothing));
    bench.say(2, cast(2, &measured(Vec::new())));
    let Some(RingOutcome::Failed { why }) = outcome(&mut bench, 2) else { panic!("it failed") };
    assert!(why.contains("10.0.0.2:7000 is silent"), "{why}");
    // Next time the other one dials.
    bench.all_say(&[1, 2], &cast(3, &begin(Vec::new())));
    let Some(RingOutcome::Measure { heats, .. }) = outcome(&mut bench, 1) else { panic!("a plan") };
    assert_eq!(heats, [[(1, 0)]]);
}

#[test]
fn a_lie_about_links_is_a_breach_if_it_cannot_be_true_and_harmless_otherwise() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, cast(1, &begin(vec![brought(2, u64::MAX, 1)])));
    assert_eq!(bench.kicked(1).unwrap().0, KickReason::Breach);
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, cast(1, &begin(vec![brought(9, 1, 1), brought(1, 1, 1)])));
    bench.say(2, cast(1, &begin(Vec::new())));
    let Some(RingOutcome::Measure { heats, .. }) = outcome(&mut bench, 2) else { panic!("a plan") };
    assert_eq!(heats.iter().flatten().count(), 1, "strangers' links say nothing about ours");
    let strangers =
        (0..LINKS_BROUGHT_MAX as u128).map(|number| PeerId::from_bytes((1000 + number).to_be_bytes()));
    let known = strangers.map(|peer| Brought { peer, ..brought(2, 1, 1) }).collect();
    bench.say(1, cast(2, &begin(known)));
    let failed = vec![id(7)];
    let nothing = RingWish::Measured { site: String::new(), found: Vec::new(), failed, trouble: None };
    bench.say(2, cast(2, &nothing));
    let survey = &bench.run.groups[0].survey;
    assert_eq!(
        (survey.links.len(), survey.footprint()),
        (0, 4),
        "and take no room: two hosts, two that began"
    );
}

/// Seventeen members: one more than the solver proves a best ring for. The quick answer is made bad on purpose.
fn many() -> (Bench, Vec<u8>) {
    let all: Vec<u8> = (1..=17).collect();
    let mut bench = Bench::of(&all);
    bench.run.config.ring_steps = (1, 1_000);
    (bench, all)
}

fn vote_both(bench: &mut Bench, all: &[u8], first: u64) {
    bench.all_say(all, &cast(first, &begin(Vec::new())));
    bench.clear();
    for number in all {
        // By rank is fast, everything else slow.
        let rate = |from: u8, to: u8| if to == from % 17 + 1 { 100_000_000 } else { 20_000_000 };
        let found = all.iter().filter(|to| **to > *number);
        let found = found.map(|to| brought(*to, rate(*number, *to), rate(*to, *number))).collect();
        bench.say(*number, cast(first + 1, &measured(found)));
    }
}

#[test]
fn a_moonshot_is_adopted_at_the_next_vote_and_dropped_when_somebody_leaves() {
    let (mut bench, all) = many();
    // The ring is by rank, the best there is. Spoil it: the quick search finds a slow one, and it is taken for a
    // group whose ring is broken.
    bench.run.groups.get_mut(0).unwrap().ring.swap(3, 9);
    vote_both(&mut bench, &all, 1);
    let (token, question) = bench.questions.pop().expect("a question");
    let slow: Vec<usize> = (0..17).map(|at| at * 5 % 17).collect();
    assert_eq!(
        question.costs.ring(&slow).map(|cost| cost.slowest),
        question.costs.ring(&[0, 2]).map(|c| c.slowest)
    );
    bench.run.handle_solved(bench.now, token, &Answer::Found(slow));
    bench.drain();
    let Some(RingOutcome::Ring { improved: false, .. }) = outcome(&mut bench, 1) else {
        panic!("nothing better yet")
    };
    // The search goes on behind it.
    let (background, asked) = bench.questions.pop().expect("a moonshot");
    assert_eq!((asked.steps, &asked.costs), (1_000, &question.costs));
    let best: Vec<usize> = (0..17).collect();
    bench.run.handle_solved(bench.now, background, &Answer::Found(best));
    bench.drain();
    assert!(prepare(&mut bench, 1).is_none(), "nobody asked yet");
    assert!(hints(&bench).contains("found in the background"), "{}", hints(&bench));
    // The next vote: the quick answer is bad again, and the moonshot's is there.
    vote_both(&mut bench, &all, 3);
    let (token, _) = bench.questions.pop().expect("a question");
    let again: Vec<usize> = (0..17).map(|at| at * 5 % 17).collect();
    bench.run.handle_solved(bench.now, token, &Answer::Found(again));
    bench.drain();
    let question = prepare(&mut bench, 1).expect("it is prepared");
    bench.all_say(&all, &prepared(question, None));
    let epoch = bench.run.groups[0].epoch;
    bench.confirm(&all, epoch);
    let Some(RingOutcome::Ring { improved: true, moonshot: true, ring, .. }) = outcome(&mut bench, 1) else {
        panic!("adopted")
    };
    assert_eq!(ring.len(), 17);
    assert_eq!(hints(&bench), "[]");
    assert!(bench.questions.is_empty(), "the same question is not asked again");
    // A link has changed: that is another question.
    bench.all_say(&all, &cast(5, &begin(Vec::new())));
    bench.say(1, cast(6, &measured(vec![brought(2, 90_000_000, 20_000_000)])));
    for number in &all[1..] {
        bench.say(*number, cast(6, &measured(Vec::new())));
    }
    let (token, _) = bench.questions.pop().expect("a question");
    bench.run.handle_solved(bench.now, token, &Answer::Found((0..17).collect()));
    bench.drain();
    let (last, _) = bench.questions.pop().expect("a moonshot again");
    // Somebody leaves: the search that began with the last agreement is called off, and its answer is no news.
    bench.say(17, ToCoordinator::Leave { for_good: true });
    assert_eq!(bench.called_off, [background, last], "one that is replaced, and one that is dropped");
    bench.run.handle_solved(bench.now, last, &Answer::Found((0..17).collect()));
    bench.drain();
    assert!(bench.run.groups[0].survey.moonshot(&(1..=16).map(id).collect::<Vec<_>>()).is_none());
}

#[test]
fn a_moonshot_that_found_nothing_is_asked_for_again() {
    let (mut bench, all) = many();
    let by_rank = || Answer::Found((0..17).collect());
    for first in [1, 3] {
        vote_both(&mut bench, &all, first);
        let (token, _) = bench.questions.pop().expect("a question");
        bench.run.handle_solved(bench.now, token, &by_rank());
        bench.drain();
        let (background, _) = bench.questions.pop().expect("a moonshot");
        bench.run.handle_solved(bench.now, background, &Answer::Unknown);
        bench.drain();
    }
    assert_eq!(bench.called_off, [], "there was nothing to call off");
}

fn take_back(number: u64) -> ToCoordinator {
    ToCoordinator::TakeBack { ballot: BallotId { kind: KIND, number } }
}

/// Who is said to have given that ballot up.
fn gave_up(bench: &mut Bench, number: u8) -> Option<(u64, PeerId)> {
    bench.told(number).into_iter().rev().find_map(|message| match message {
        ToPeer::BallotEnded { ballot, end: BallotEnd::GivenUp(who), .. } => Some((ballot.number, who.peer)),
        _ => None,
    })
}

/// The others used to wait for it until their deadline.
#[test]
fn who_gives_up_between_the_two_votes_ends_them_for_all_and_is_named() {
    let mut bench = Bench::of(&ALL);
    // In the first one it only takes its vote back: the others wait for it as for anybody who has not called.
    bench.say(1, cast(1, &begin(Vec::new())));
    bench.say(1, take_back(1));
    assert!(ALL.into_iter().all(|number| gave_up(&mut bench, number).is_none()));
    bench.all_say(&ALL, &cast(1, &begin(Vec::new())));
    bench.clear();
    bench.say(2, cast(2, &measured(found(2))));
    bench.say(4, take_back(2));
    for number in ALL {
        assert_eq!(gave_up(&mut bench, number), Some((2, id(4))));
    }
    // Whoever says so twice, or votes in what is over, changes nothing; the next call goes through.
    bench.say(4, take_back(2));
    bench.say(3, cast(2, &measured(found(3))));
    assert!(ALL.into_iter().all(|number| bench.told(number).is_empty()));
    assert_eq!(state(&bench, 2), "Idle");
    up_to_the_question(&mut bench, 3);
    // Its vote stood already, and the ring was being prepared.
    bench.clear();
    bench.say(1, take_back(4));
    assert_eq!(gave_up(&mut bench, 3), Some((4, id(1))));
}

#[test]
fn a_restarted_coordinator_knows_by_the_outcome_that_a_second_vote_is_owed() {
    let mut bench = Bench::new();
    let outcome = encode(&RingOutcome::Measure { members: vec![id(1), id(2)], heats: Vec::new() });
    let report = |wish: Option<RingWish>| {
        let (tally, wish) = (Tally { ended: 1, agreed: 1 }, wish.map(|wish| encode(&wish)));
        let report = BallotReport { kind: KIND, tally, outcome: Some(outcome.clone()), wish };
        [heard(1, 1), vec![report]].concat()
    };
    let ballots = report(Some(measured(Vec::new())));
    bench.resume(1, Resume { ballots, ..resume(1, record(1, &[1, 2])) });
    bench.resume(2, Resume { ballots: report(None), ..resume(2, record(1, &[1, 2])) });
    bench.confirm(&[1, 2], 1);
    bench.clear();
    bench.say(2, take_back(2));
    assert_eq!(gave_up(&mut bench, 1), Some((2, id(2))));
}

/// What one measured with all who come after it, at these speeds, and with round trips of so many microseconds.
fn told_by(from: u8, all: &[u8], rate: impl Fn(u8, u8) -> u64, trip: impl Fn(u8, u8) -> u32) -> Vec<Brought> {
    let link =
        |to: u8| Brought { round_trip_us: trip(from, to), ..brought(to, rate(from, to), rate(to, from)) };
    all.iter().filter(|to| **to > from).map(|to| link(*to)).collect()
}

#[test]
fn around_a_broken_link_goes_the_fastest_ring_that_is_left() {
    let all = [1, 2, 3, 4, 5];
    let mut bench = Bench::of(&all);
    let rate = |from: u8, to: u8| match (from, to) {
        (1, 2) | (2, 3) | (3, 4) | (4, 5) | (5, 1) => 100_000_000,
        (2, 5) | (5, 3) | (4, 1) => 60_000_000,
        _ => 10_000_000,
    };
    bench.all_say(&all, &cast(1, &begin(Vec::new())));
    for number in all {
        bench.say(number, cast(2, &measured(told_by(number, &all, rate, |_, _| 100))));
    }
    assert_eq!(solve(&mut bench), 1);
    assert_eq!(bench.run.groups[0].ring, all.map(id), "by rank is best");
    let (from, to) = (id(2), id(3));
    let plain = crate::collective::around::plan(&all.map(id), &[(from, to), (to, from)].into());
    let report =
        ToCoordinator::LinkBroken { group: 0, epoch: 1, from, to, dialling: true, error: "reset".to_owned() };
    bench.say(2, report);
    bench.wait(ms(25));
    assert_eq!(bench.run.groups[0].ring, [1, 2, 5, 3, 4].map(id));
    assert_ne!(plain, Some([1, 2, 5, 3, 4].map(id).to_vec()), "without speeds it is another one");
}

#[test]
fn sites_that_nobody_named_are_found_and_what_they_share_is_measured_once_from_then_on() {
    let all = [1, 2, 3, 4, 5, 6];
    let mut bench = Bench::of(&all);
    // Odd ones here, even ones there: by rank the ring crosses six times.
    let is_near = |from: u8, to: u8| from % 2 == to % 2;
    let rate = |from, to| if is_near(from, to) { 100_000_000 } else { 20_000_000 };
    let trip = |from, to| if is_near(from, to) { 300 } else { 8_000 };
    bench.all_say(&all, &cast(1, &begin(Vec::new())));
    let Some(RingOutcome::Measure { heats, .. }) = outcome(&mut bench, 1) else { panic!("a plan") };
    assert_eq!(heats.iter().flatten().count(), 15, "nothing is known yet");
    bench.clear();
    for number in all {
        bench.say(number, cast(2, &measured(told_by(number, &all, rate, trip))));
    }
    solve(&mut bench);
    let question = prepare(&mut bench, 1).expect("a better ring");
    bench.all_say(&all, &prepared(question, None));
    let ring = bench.run.groups[0].ring.clone();
    let crossings = (0..6).filter(|at| ring[*at].as_bytes()[0] % 2 != ring[(at + 1) % 6].as_bytes()[0] % 2);
    assert_eq!(crossings.count(), 2, "{ring:?}");
    let epoch = bench.run.groups[0].epoch;
    bench.confirm(&all, epoch);
    bench.clear();
    bench.sleep(crate::topology::STALE_AFTER);
    bench.all_say(&all, &cast(3, &begin(Vec::new())));
    let Some(RingOutcome::Measure { heats, .. }) = outcome(&mut bench, 1) else { panic!("a plan") };
    assert_eq!(heats.iter().flatten().count(), 7, "three in each site, and one between them");
}
