//! Broken links: rules 4, 16, 20 (a report never condemns).

use super::bench::*;
use crate::collective::around::{self, Plan};
use crate::collective::circuit::Budget;
use crate::topology::Answer;
use std::collections::BTreeSet;

fn broken(from: u8, to: u8, epoch: u64, dialling: bool) -> ToCoordinator {
    let error = "reset".to_owned();
    ToCoordinator::LinkBroken { group: 0, epoch, from: id(from), to: id(to), dialling, error }
}

const PROCEED: ToPeer = ToPeer::Proceed { group: 0, epoch: 1 };

fn reason(from: u8, to: u8) -> AbortReason {
    AbortReason::LinkBroken { from: id(from), to: id(to), error: "reset".to_owned() }
}

fn ring(record: &EpochRecord) -> Vec<PeerId> {
    record.ring.iter().map(|rank| record.roster[*rank as usize].id).collect()
}

#[test]
fn a_broken_link_aborts_and_the_same_ring_is_tried_again() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    let refusal = Refusal::Link { from: id(1), to: id(2), error: "reset".to_owned() };
    bench.say(1, ToCoordinator::Refuse { key: key(1, 0, 0), reason: refusal });
    bench.assert_told(&[1, 2, 3], &[abort(key(1, 0, 0), reason(1, 2))]);
    // Both ends report one break: that is one blame. Calls that come before it is settled are told the same.
    bench.say(2, broken(1, 2, 1, false));
    bench.say(3, initiate(key(1, 0, 1)));
    bench.assert_told(&[1, 2, 3], &[abort(key(1, 0, 1), reason(1, 2))]);
    bench.wait(ms(25));
    bench.assert_told(&[1, 2, 3], &[ToPeer::Proceed { group: 0, epoch: 1 }]);
    assert_eq!(bench.lost(), []);
}

#[test]
fn a_link_that_was_blamed_twice_is_planned_around() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, broken(1, 2, 1, false));
    bench.wait(ms(25));
    bench.clear();
    bench.say(2, broken(1, 2, 1, false));
    bench.wait(ms(25));
    let record = bench.epoch(1).unwrap();
    assert_eq!(ring(&record), [id(1), id(3), id(2)]);
    assert_eq!(members(&record), [id(1), id(2), id(3)], "ranks stay");
    assert_eq!(bench.lost(), []);
}

#[test]
fn a_link_that_cannot_be_dialled_is_planned_around_at_once() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(25));
    assert_eq!(ring(&bench.epoch(1).unwrap()), [id(1), id(3), id(2)]);
}

#[test]
fn what_a_link_was_blamed_for_is_forgiven_when_it_works() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, broken(1, 2, 1, false));
    bench.wait(ms(25));
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    bench.all_say(&[1, 2, 3], &ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.say(1, broken(1, 2, 1, false));
    bench.wait(ms(25));
    assert_eq!(bench.epoch(1), None, "the same ring is tried again");
}

#[test]
fn a_link_beside_the_ring_that_was_blamed_twice_is_told_to_all() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    bench.say(1, broken(1, 3, 1, false));
    bench.wait(ms(25));
    // The ring works, which shows nothing about that link.
    bench.all_say(&[1, 2, 3, 4], &initiate(key(1, 0, 0)));
    bench.all_say(&[1, 2, 3, 4], &ToCoordinator::Complete { key: key(1, 0, 0) });
    bench.clear();
    bench.say(3, broken(1, 3, 1, false));
    bench.wait(ms(25));
    let told = bench.epoch(2).unwrap();
    assert_eq!((told.epoch, &told.broken[..]), (2, &[(0, 2)][..]));
    assert_eq!(ring(&told), [id(1), id(2), id(3), id(4)], "the ring stays");
    // It stays known: to the next epochs, and to a coordinator that was restarted.
    bench.say(4, ToCoordinator::Leave { for_good: true });
    let told = bench.epoch(2).unwrap();
    assert_eq!(told.broken, [(0, 2)]);
    let mut restarted = Bench::new();
    for number in [1, 2, 3] {
        restarted.resume(number, resume(number, told.clone()));
    }
    assert_eq!(restarted.run.groups[0].paths.broken().len(), 1);
}

#[test]
fn a_part_of_the_group_without_a_way_around_is_told_so() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(25));
    bench.clear();
    let part = OpKey { scope: Scope::Members(vec![id(1), id(2)]), ..key(2, 0, 0) };
    bench.all_say(&[1, 2], &initiate(part.clone()));
    bench.say(1, broken(1, 2, 2, true));
    bench.assert_told(&[1, 2], &[abort(part, AbortReason::NoPath { from: id(1), to: id(2) })]);
    // With somebody between them there is a way, and somebody in doubt may be another matter.
    bench.wait(ms(25));
    bench.clear();
    bench.health(2, Sign::Suspect);
    let part = OpKey { scope: Scope::Members(vec![id(1), id(2)]), ..key(2, 0, 1) };
    bench.all_say(&[1, 2], &initiate(part.clone()));
    bench.say(1, broken(1, 2, 2, true));
    bench.assert_told(&[1, 2], &[abort(part, reason(1, 2))]);
}

#[test]
fn where_no_ring_exists_the_end_that_fewer_reach_leaves() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    // Nobody reaches the oldest but 2; it goes, though it is the oldest.
    for from in [2, 3, 4] {
        let epoch = bench.run.groups[0].epoch;
        bench.say(from, broken(from, 1, epoch, true));
        bench.wait(ms(25));
    }
    bench.wait(ms(4_999));
    assert_eq!(bench.lost(), [], "not before there was no ring for dead_after (rule 44)");
    bench.wait(ms(1));
    assert_eq!(bench.lost(), [(id(1), LossReason::Unreachable)]);
    assert_eq!(bench.kicked(1).unwrap().0, KickReason::Evicted);
}

#[test]
fn between_two_the_younger_leaves() {
    let mut bench = Bench::of(&[2, 1]);
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(5_025));
    assert_eq!(bench.lost(), [(id(1), LossReason::Unreachable)]);
    assert_eq!(members(&bench.epoch(2).unwrap()), [id(2)]);
}

/// Lets time pass. These members say that they reach whomever they are asked to dial, the others that they do not; and all
/// ports accept when the coordinator knocks but those of the last ones.
fn argue(bench: &mut Bench, millis: u64, who_reaches: &[u8], closed: &[u8]) {
    for _ in 0..millis / 10 {
        bench.wait(ms(10));
        bench.answer_redials(|(from, _)| who_reaches.iter().any(|number| id(*number) == from));
        for (token, to) in std::mem::take(&mut bench.knocks) {
            let is_closed = closed.iter().any(|number| info(*number).address == to);
            let outcome = if is_closed { ConnectOutcome::Silent } else { ConnectOutcome::Accepted };
            bench.run.handle_connect(bench.now, token, outcome);
        }
        bench.drain();
    }
}

#[test]
fn one_word_against_one_puts_nobody_out() {
    // The older says that it cannot reach the younger, or not be reached by it; the younger says that it reaches the older.
    // Either may lie: the older about its dials, the younger by taking none of them.
    for lies in [vec![(1, 2)], vec![(1, 2), (2, 1)], vec![(2, 1)]] {
        for (older, younger) in [(1, 2), (2, 1)] {
            let mut bench = Bench::of(&[older, younger]);
            bench.answer_knocks(ConnectOutcome::Accepted);
            for _ in 0..100 {
                for (from, to) in &lies {
                    let epoch = bench.run.groups[0].epoch;
                    bench.say(1, broken(*from, *to, epoch, true));
                }
                argue(&mut bench, 500, &[2], &[]);
            }
            assert_eq!(bench.lost(), [], "{lies:?}, and {older} is the older");
        }
    }
}

#[test]
fn a_lie_at_the_last_moment_does_not_make_it_look_as_if_both_said_so() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, broken(1, 2, 1, true));
    argue(&mut bench, 5_000, &[2], &[]);
    bench.say(1, broken(2, 1, 1, true));
    bench.wait(ms(30));
    argue(&mut bench, 3_000, &[2], &[]);
    assert_eq!(bench.lost(), []);
}

#[test]
fn before_anybody_leaves_both_ends_were_asked_and_had_their_time_to_answer() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, broken(1, 2, 1, true));
    let mut asked = BTreeSet::new();
    for _ in 0..500 {
        bench.wait(ms(10));
        asked.extend(bench.answer_redials(|_| false));
    }
    assert_eq!(asked, BTreeSet::from([(id(1), id(2)), (id(2), id(1))]));
    assert_eq!(bench.lost(), []);
    bench.wait(ms(30));
    assert_eq!(bench.lost(), [(id(2), LossReason::Unreachable)], "both say so, and 2 is the younger");
}

#[test]
fn who_takes_no_dial_of_the_coordinators_either_leaves_though_it_is_the_older_and_reaches_the_other() {
    // A firewall lets nobody in to 1; all that goes out of it goes well.
    let mut bench = Bench::of(&[1, 2]);
    bench.say(2, broken(2, 1, 1, true));
    argue(&mut bench, 7_000, &[1], &[1]);
    assert_eq!(bench.lost(), [(id(1), LossReason::Unreachable)]);
}

#[test]
fn whom_several_cannot_reach_leaves_though_it_reaches_them() {
    let mut bench = Bench::of(&[1, 2, 3]);
    for from in [2, 3] {
        let epoch = bench.run.groups[0].epoch;
        bench.say(from, broken(from, 1, epoch, true));
        bench.wait(ms(25));
    }
    argue(&mut bench, 7_000, &[1], &[]);
    assert_eq!(bench.lost(), [(id(1), LossReason::Unreachable)]);
}

#[test]
fn who_says_that_it_reaches_nobody_leaves_if_several_reach_it() {
    let mut bench = Bench::of(&[1, 2, 3]);
    for to in [2, 3] {
        let epoch = bench.run.groups[0].epoch;
        bench.say(1, broken(1, to, epoch, true));
        bench.wait(ms(25));
    }
    argue(&mut bench, 7_000, &[2, 3], &[]);
    assert_eq!(bench.lost(), [(id(1), LossReason::Unreachable)]);
}

#[test]
fn who_said_that_it_reaches_another_and_is_in_doubt_since_is_not_believed() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(2, broken(2, 1, 1, true));
    argue(&mut bench, 1_500, &[1], &[]);
    bench.health(1, Sign::Suspect);
    bench.wait(ms(4_000));
    assert_eq!(bench.lost(), [(id(1), LossReason::Unreachable)]);
}

#[test]
fn a_break_that_was_a_death_is_settled_by_the_eviction() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    bench.say(1, broken(1, 2, 1, false));
    bench.close(2);
    bench.wait(ms(100));
    assert!(!bench.told(1).contains(&ToPeer::Proceed { group: 0, epoch: 1 }), "it would fail again");
    bench.health(2, Sign::Dead(DeathReason::Exited));
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1), id(3)]);
}

#[test]
fn a_break_between_others_leaves_a_part_of_the_group_alone() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let part = OpKey { scope: Scope::Members(vec![id(2), id(3)]), ..key(1, 0, 0) };
    bench.all_say(&[2, 3], &initiate(part.clone()));
    bench.say(1, broken(1, 2, 1, false));
    bench.all_say(&[2, 3], &ToCoordinator::Complete { key: part.clone() });
    bench.assert_told(&[2, 3], &[commit(part)]);
}

#[test]
fn a_report_of_an_old_epoch_has_no_effect() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(3, ToCoordinator::Leave { for_good: true });
    bench.all_say(&[1, 2], &initiate(key(2, 0, 0)));
    bench.clear();
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(25));
    bench.assert_told(&[1, 2], &[]);
}

#[test]
fn of_two_ends_the_one_that_is_in_doubt_leaves() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(2, broken(2, 1, 1, true));
    bench.health(1, Sign::Suspect);
    bench.wait(ms(5_000));
    assert_eq!(bench.lost(), [], "the doubt may pass");
    bench.wait(ms(25));
    assert_eq!(bench.lost(), [(id(1), LossReason::Unreachable)]);
}

#[test]
fn while_a_process_is_stopped_nobody_leaves_because_it_takes_no_dials() {
    let mut bench = Bench::of(&[1, 2]);
    bench.health(1, Sign::Stalled);
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    bench.say(2, broken(2, 1, 1, true));
    bench.wait(ms(9_000));
    assert_eq!(bench.lost(), [], "whether it stays is for its health to say (rule 20)");
    assert_eq!(bench.epoch(1), None, "there is no ring, and an attempt would fail again");
    bench.clear();
    // It runs again, and so does the link.
    bench.health(1, Sign::Alive { acked: None });
    bench.answer_redials(|_| true);
    bench.wait(ms(5_000));
    bench.assert_told(&[1, 2], &[PROCEED]);
    assert_eq!(bench.lost(), []);
}

#[test]
fn an_attempt_waits_until_the_end_of_a_broken_link_is_no_longer_in_doubt() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.health(2, Sign::Suspect);
    bench.say(1, broken(1, 2, 1, false));
    bench.say(1, initiate(key(1, 0, 0)));
    bench.wait(ms(1_000));
    bench.assert_told(&[1, 3], &[abort(key(1, 0, 0), reason(1, 2))]);
    bench.health(2, Sign::Alive { acked: None });
    bench.assert_told(&[1, 3], &[PROCEED]);
    // A link that rests between others waits for nobody's health.
    bench.health(3, Sign::Suspect);
    bench.say(1, broken(1, 2, 1, false));
    bench.say(1, initiate(key(1, 0, 1)));
    bench.wait(ms(25));
    bench.assert_told(&[1, 3], &[abort(key(1, 0, 1), reason(1, 2)), PROCEED]);
}

/// One of three breaks with a link, and has answered the health plane before.
fn break_with_one_that_answered(reporters: &[u8]) -> Bench {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.wait(ms(5));
    let acked = Some(bench.now);
    [1, 2, 3].into_iter().for_each(|peer| bench.health(peer, Sign::Alive { acked }));
    bench.wait(ms(5));
    bench.all_say(&[1, 2, 3], &initiate(key(1, 0, 0)));
    bench.looks.clear();
    for reporter in reporters {
        bench.say(*reporter, broken(1, 2, 1, false));
    }
    bench.assert_told(&[1, 2, 3], &[abort(key(1, 0, 0), reason(1, 2))]);
    bench
}

/// Nobody goes on before the second has given a sign of life, and then all do.
fn assert_goes_on_when_it_answers(bench: &mut Bench) {
    bench.wait(ms(100));
    bench.assert_told(&[1, 3], &[]);
    let acked = Some(bench.now);
    bench.health(2, Sign::Alive { acked });
    bench.assert_told(&[1, 3], &[PROCEED]);
}

#[test]
fn an_attempt_waits_for_a_sign_of_life_of_the_end_that_did_not_report_the_break() {
    let mut bench = break_with_one_that_answered(&[1]);
    assert_eq!(bench.looks, [id(2)], "it is asked at once");
    assert_goes_on_when_it_answers(&mut bench);
}

#[test]
fn a_death_that_is_missed_later_than_its_links_break_is_named_and_not_the_link() {
    let mut bench = break_with_one_that_answered(&[1]);
    bench.wait(ms(100));
    bench.close(2);
    bench.wait(ms(300));
    bench.assert_told(&[1, 3], &[]);
    bench.health(2, Sign::Dead(DeathReason::Exited));
    assert_eq!(members(&bench.epoch(1).unwrap()), [id(1), id(3)]);
    assert!(!bench.told(1).contains(&PROCEED));
}

#[test]
fn who_reports_a_break_itself_has_outlived_it_and_is_not_waited_for() {
    let mut bench = break_with_one_that_answered(&[1, 2]);
    bench.wait(ms(25));
    bench.assert_told(&[1, 2, 3], &[PROCEED]);
}

#[test]
fn who_reported_a_break_may_die_of_the_next_one() {
    let mut bench = break_with_one_that_answered(&[1, 2]);
    bench.wait(ms(20));
    bench.say(3, broken(2, 3, 1, false));
    assert_goes_on_when_it_answers(&mut bench);
}

#[test]
fn a_sign_of_life_that_does_not_come_is_not_waited_for_long() {
    let mut bench = break_with_one_that_answered(&[1]);
    bench.wait(ms(174));
    bench.assert_told(&[1, 3], &[]);
    bench.wait(ms(1));
    bench.assert_told(&[1, 3], &[PROCEED]);
}

#[test]
fn the_way_back_of_a_broken_link_is_used_only_if_it_must_be() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(25));
    let record = bench.epoch(1).unwrap();
    let ring: Vec<_> = record.ring.iter().map(|rank| record.roster[*rank as usize].id).collect();
    let follows = |a, b| (0..4).any(|at| ring[at] == a && ring[(at + 1) % 4] == b);
    assert!(!follows(id(1), id(2)) && !follows(id(2), id(1)), "{ring:?}");
    // Three cannot avoid both.
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(25));
    assert_eq!((members(&bench.epoch(1).unwrap()).len(), bench.lost()), (3, vec![]));
}

#[test]
fn a_break_right_after_an_epoch_that_settled_another_is_settled_too() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, broken(1, 2, 1, false));
    bench.wait(ms(10));
    bench.say(3, ToCoordinator::Leave { for_good: true });
    bench.all_say(&[1, 2], &initiate(key(2, 0, 0)));
    bench.say(2, broken(2, 1, 2, false));
    bench.clear();
    bench.wait(ms(30));
    let told = bench.told(2);
    assert!(matches!(told[..], [ToPeer::Proceed { epoch: 2, .. } | ToPeer::Epoch(_)]), "{told:?}");
}

/// Both directions of every link of `alone` break, as if it had been isolated for a moment.
fn isolate(bench: &mut Bench, alone: u8, others: &[u8]) {
    for other in others {
        for (from, to) in [(alone, *other), (*other, alone)] {
            let epoch = bench.run.groups[0].epoch;
            bench.say(from, broken(from, to, epoch, true));
        }
    }
    bench.wait(ms(25));
}

/// Lets time pass, in which every dial is answered.
fn pass(bench: &mut Bench, millis: u64, well: impl Fn((PeerId, PeerId)) -> bool) {
    for _ in 0..millis / 10 {
        bench.wait(ms(10));
        bench.answer_redials(&well);
    }
}

#[test]
fn a_broken_link_is_dialled_again_with_growing_pauses_and_forgiven_when_it_carries() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, broken(1, 2, 1, true));
    let mut asked = Vec::new();
    for tick in 0..600 {
        bench.wait(ms(10));
        asked.extend(bench.answer_redials(|_| false).into_iter().map(|link| (tick * 10 + 10, link)));
    }
    let moments: Vec<_> = asked.iter().map(|(at, _)| *at).collect();
    assert_eq!(moments, [100, 300, 700, 1_500, 3_100], "the pause doubles");
    assert!(asked.iter().all(|(_, link)| *link == (id(1), id(2))));
    bench.clear();
    bench.wait(ms(400));
    assert_eq!(bench.answer_redials(|_| true), [(id(1), id(2))]);
    bench.wait(ms(25));
    let told = bench.epoch(1).unwrap();
    assert_eq!((told.epoch, told.broken), (3, vec![]), "nothing runs, so all are told at once");
    assert_eq!(bench.run.timers(), 0);
}

#[test]
fn a_link_that_healed_while_calls_are_open_is_told_in_a_quiet_moment() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(25));
    bench.all_say(&[1, 2, 3], &initiate(key(2, 0, 0)));
    bench.wait(ms(100));
    assert_eq!(bench.answer_redials(|_| true).len(), 1);
    bench.clear();
    bench.wait(ms(1_000));
    bench.assert_told(&[1, 2, 3], &[]);
    bench.all_say(&[1, 2, 3], &ToCoordinator::Complete { key: key(2, 0, 0) });
    bench.wait(ms(100));
    assert_eq!(bench.epoch(3).unwrap().broken, []);
}

#[test]
fn a_link_that_breaks_again_before_its_healing_was_told_costs_no_epoch() {
    let mut bench = Bench::of(&[1, 2, 3]);
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(25));
    assert_eq!(bench.epoch(1).unwrap().epoch, 2);
    bench.confirm(&[1, 2, 3], 2);
    bench.all_say(&[1, 2, 3], &initiate(key(2, 0, 0)));
    bench.wait(ms(100));
    assert_eq!(bench.answer_redials(|_| true).len(), 1);
    // The link of a dial from before.
    bench.say(1, broken(1, 2, 2, true));
    bench.wait(ms(100));
    assert_eq!(bench.run.groups[0].epoch, 2, "all know that it is broken");
    // Once it carries again for good, that is told.
    while bench.answer_redials(|_| true).is_empty() {
        bench.wait(ms(10));
    }
    bench.wait(ms(200));
    assert_eq!(bench.epoch(3).unwrap().broken, []);
}

#[test]
fn a_link_that_heals_and_breaks_in_turn_is_tried_ever_more_rarely() {
    let mut bench = Bench::of(&[1, 2, 3]);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        let epoch = bench.run.groups[0].epoch;
        bench.say(1, broken(1, 2, epoch, true));
        let since = bench.now;
        while bench.answer_redials(|_| true).is_empty() {
            bench.wait(ms(10));
        }
        pauses.push(bench.now.since(since).as_millis());
        bench.wait(ms(100));
    }
    assert_eq!(pauses, [100, 200, 400, 800]);
    // A collective over it forgives.
    let epoch = bench.run.groups[0].epoch;
    bench.all_say(&[1, 2, 3], &initiate(key(epoch, 0, 0)));
    bench.all_say(&[1, 2, 3], &ToCoordinator::Complete { key: key(epoch, 0, 0) });
    let ring = bench.run.groups[0].ring.clone();
    let at = ring.iter().position(|peer| *peer == id(1)).unwrap();
    if ring[(at + 1) % 3] == id(2) {
        bench.say(1, broken(1, 2, epoch, true));
        bench.wait(ms(100));
        assert_eq!(bench.answer_redials(|_| true).len(), 1);
    }
}

#[test]
fn a_moment_of_isolation_costs_nobody_its_place_when_another_dies_later() {
    let mut bench = Bench::of(&[1, 2, 3, 4, 5]);
    isolate(&mut bench, 1, &[2, 3]);
    pass(&mut bench, 10_000, |_| false);
    assert_eq!(bench.lost(), []);
    // Now one of the two dies that reach it. The other paths have healed, which nobody has noticed yet.
    bench.clear();
    bench.health(5, Sign::Dead(DeathReason::Exited));
    assert_eq!(members(&bench.epoch(2).unwrap()), [id(1), id(2), id(3), id(4)], "who is in is told at once");
    let dialled = bench.answer_redials(|_| true);
    assert!(!dialled.is_empty(), "all broken links are dialled (rule 44)");
    while !bench.answer_redials(|_| true).is_empty() {}
    bench.wait(ms(500));
    assert_eq!(bench.lost(), [(id(5), LossReason::Dead(DeathReason::Exited))], "nobody else");
    let epoch = bench.run.groups[0].epoch;
    bench.clear();
    bench.all_say(&[1, 2, 3, 4], &initiate(key(epoch, 0, 0)));
    bench.all_say(&[1, 2, 3, 4], &ToCoordinator::Complete { key: key(epoch, 0, 0) });
    bench.assert_told(&[1, 2, 3, 4], &[commit(key(epoch, 0, 0))]);
}

#[test]
fn while_no_ring_exists_calls_wait_and_go_on_when_a_link_carries_again() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, broken(1, 2, 1, true));
    bench.wait(ms(25));
    bench.clear();
    bench.all_say(&[1, 2], &initiate(key(1, 0, 0)));
    let waits = |message: &ToPeer| {
        matches!(message, ToPeer::Verdict { verdict: Verdict::Abort(AbortReason::LinkBroken { .. }), .. })
    };
    let told = bench.told(2);
    assert!(matches!(&told[..], [message] if waits(message)), "{told:?}");
    bench.wait(ms(3_000));
    bench.clear();
    // A call whose time is up is told so.
    bench.say(1, ToCoordinator::Initiate { key: key(1, 0, 1), fingerprint: call(8), timeout_ms: 0 });
    assert!(matches!(
        &bench.told(2)[..],
        [ToPeer::Verdict { verdict: Verdict::Abort(AbortReason::Timeout(_)), .. }]
    ));
    bench.wait(ms(500));
    bench.clear();
    bench.answer_redials(|_| true);
    bench.assert_told(&[1, 2], &[PROCEED]);
    bench.wait(ms(10_000));
    assert_eq!(bench.lost(), []);
}

#[test]
fn that_somebody_must_leave_is_counted_anew_after_a_change_and_after_a_success() {
    let mut bench = Bench::of(&[1, 2, 3, 4]);
    isolate(&mut bench, 1, &[2, 3, 4]);
    pass(&mut bench, 4_900, |_| false);
    bench.say(4, ToCoordinator::Leave { for_good: true });
    pass(&mut bench, 3_000, |_| false);
    assert_eq!(bench.lost(), [(id(4), LossReason::Left)], "the roster changed");
    // One link of four carries again: no ring yet, but the count begins again.
    bench.clear();
    pass(&mut bench, 3_000, |link| link == (id(1), id(2)));
    assert_eq!(bench.lost(), []);
    pass(&mut bench, 5_000, |_| false);
    assert_eq!(bench.lost(), [(id(1), LossReason::Unreachable)]);
}

#[test]
fn where_a_ring_is_neither_found_nor_disproved_nobody_leaves() {
    let numbers: Vec<u8> = (1..=32).collect();
    let mut bench = Bench::of(&numbers);
    // Three crowds that meet in two members only: nothing simple proves that there is no ring.
    let crowd = |number: u8| number.checked_sub(3).map(|number| number / 10);
    for from in &numbers {
        for to in &numbers {
            if let (Some(a), Some(b)) = (crowd(*from), crowd(*to))
                && a != b
            {
                bench.run.groups.get_mut(0).unwrap().paths.take_for_broken((id(*from), id(*to)));
            }
        }
    }
    bench.say(10, broken(10, 20, 1, true));
    bench.wait(ms(5_100));
    assert!(bench.run.groups[0].paths.is_stuck());
    assert_eq!(bench.lost(), [], "the search goes on (rule 16)");
}

/// Three crowds of eight that meet in two members only: a ring would have to pass one of the two twice, and a look does not see
/// that. With a bridge from one crowd to another there is a ring, and a look does not see that either. The last of the broken
/// links is not reported yet.
fn crowds(has_bridge: bool) -> Bench {
    let numbers: Vec<u8> = (1..=26).collect();
    let crowd = |number: u8| number.checked_sub(3).map(|number| number / 8);
    let are_apart = |(from, to): &(u8, u8)| match (crowd(*from), crowd(*to)) {
        (Some(here), Some(there)) => here != there && !(has_bridge && (*from, *to) == (6, 17)),
        _ => false,
    };
    let all = numbers.iter().flat_map(|from| numbers.iter().map(|to| (*from, *to)));
    let missing: Vec<_> = all.filter(are_apart).collect();
    let members: Vec<_> = numbers.iter().copied().map(id).collect();
    let links: BTreeSet<_> = missing.iter().map(|(from, to)| (id(*from), id(*to))).collect();
    assert_eq!(around::look(&members, &links, Budget::FIRST), Plan::Unknown);
    let mut bench = Bench::of(&numbers);
    let (last, others) = missing.split_last().unwrap();
    let paths = &mut bench.run.groups.get_mut(0).unwrap().paths;
    others.iter().for_each(|(from, to)| paths.take_for_broken((id(*from), id(*to))));
    bench.say(last.0, broken(last.0, last.1, 1, true));
    bench.wait(ms(25));
    bench
}

fn answer(bench: &mut Bench, token: SolveToken, answer: &Answer) {
    bench.run.handle_solved(bench.now, token, answer);
    bench.drain();
}

/// The clerk used to run the solver itself, with everybody waiting.
#[test]
fn a_ring_that_a_look_does_not_find_is_looked_for_elsewhere() {
    let mut bench = crowds(true);
    assert_eq!((bench.questions.len(), bench.epoch(1)), (1, None), "the clerk solves nothing itself");
    let (token, question) = bench.questions.pop().unwrap();
    let ring = [0, 2, 3, 4, 6, 7, 8, 9, 5, 16, 10, 11, 12, 13, 14, 15, 17, 1].into_iter().chain(18..26);
    let ring: Vec<usize> = ring.collect();
    assert!(question.key(&ring).is_some(), "there is one");
    answer(&mut bench, token, &Answer::Found(ring.clone()));
    let record = bench.epoch(1).expect("it is taken");
    assert_eq!(record.ring, ring.iter().map(|at| *at as u32).collect::<Vec<_>>());
    assert_eq!((bench.questions.len(), bench.called_off.len()), (0, 0));
}

#[test]
fn while_a_ring_is_looked_for_elsewhere_nobody_leaves_and_it_is_asked_for_longer_each_time() {
    let mut bench = crowds(false);
    bench.wait(ms(3_000));
    assert_eq!(bench.questions.len(), 1, "it is asked once");
    let (token, first) = bench.questions.pop().unwrap();
    answer(&mut bench, token, &Answer::Unknown);
    assert_eq!(bench.questions.len(), 0, "who has no answer is not asked again at once");
    bench.wait(ms(1_250));
    let (_, second) = bench.questions.pop().expect("it goes on");
    assert!(second.seed != first.seed && second.steps > first.steps && second.costs == first.costs);
    bench.wait(ms(30_000));
    assert_eq!(bench.lost(), [], "nothing is proved against anybody");
}

#[test]
fn a_proof_from_elsewhere_counts() {
    let mut bench = crowds(false);
    let (token, _) = bench.questions.pop().unwrap();
    answer(&mut bench, token, &Answer::None);
    bench.wait(ms(4_000));
    assert_eq!((bench.lost(), bench.questions.len()), (Vec::new(), 0), "before dead_after nobody leaves");
    bench.wait(ms(12_000));
    assert!(!bench.lost().is_empty());
}

#[test]
fn a_ring_is_not_looked_for_any_more_when_members_change() {
    let mut bench = crowds(false);
    let (token, _) = bench.questions.pop().unwrap();
    bench.say(20, ToCoordinator::Leave { for_good: true });
    assert_eq!(bench.called_off, [token]);
    let epoch = bench.run.groups[0].epoch;
    answer(&mut bench, token, &Answer::Found((0..26).collect()));
    assert_eq!(bench.run.groups[0].epoch, epoch, "what comes late is no news");
}
