//! What outlives a coordinator, and what the next one makes of it: rules 17, 19, 41.

use super::bench::*;
use crate::coordinator::{Facts, GroupFacts};

#[test]
fn what_a_peer_can_know_is_in_the_facts_before_it_is_told() {
    let mut run = Run::new(Config::preset(Preset::Local));
    let now = Instant::from_nanos(1_000_000_000);
    let (before, stamp) = (run.facts(), run.facts_stamp());
    let register = ToCoordinator::Register(registration(1, 0, 1), 1, 0);
    run.handle_message(now, ConnectionId(1), id(1), register);
    // Nothing was polled yet: whatever will be said is in the facts already.
    let facts = run.facts();
    assert_ne!((facts.clone(), run.facts_stamp()), (before, stamp));
    let told = std::iter::from_fn(|| run.poll_action()).find_map(|action| match action {
        Action::Send(_, ToPeer::Epoch(record)) => Some(record),
        _ => None,
    });
    let told = told.expect("an epoch");
    assert_eq!((facts.run_epoch, facts.floor), (told.run_epoch, told.epoch));
    assert_eq!(
        facts.groups,
        [GroupFacts { group: 0, epoch: told.epoch, roster: vec![id(1)], ring: vec![id(1)] }]
    );
    assert_eq!(Facts::from_bytes(&facts.to_bytes()), Ok(facts));
}

#[test]
fn the_next_reign_counts_on_and_waits_for_those_who_were_in() {
    let mut bench = Bench::of(&[1, 2]);
    let facts = bench.run.facts();
    let until = bench.now + ms(2_000);
    bench.run = Run::new(Config::preset(Preset::Local));
    bench.run.succeed(&facts, until);
    assert!(bench.run.term() > facts.term);
    bench.register(3, 0, 1);
    assert_eq!(bench.epoch(3), None, "members of before may be on their way");
    bench.wait(ms(2_000));
    let record = bench.epoch(3).expect("nobody came");
    assert!(
        record.epoch > facts.floor && record.run_epoch > facts.run_epoch,
        "no number comes twice: {record:?}"
    );
}

#[test]
fn a_reign_that_ends_before_anybody_came_back_hands_on_who_was_in() {
    let mut bench = Bench::of(&[1, 2]);
    let first = bench.run.facts();
    bench.run = Run::new(Config::preset(Preset::Local));
    bench.run.succeed(&first, bench.now + ms(2_000));
    let second = bench.run.facts();
    assert_eq!((&second.groups, second.term), (&first.groups, first.term + 1));
    bench.wait(ms(2_000));
    assert_eq!(bench.run.facts().groups, [], "they had their time");
}

#[test]
fn a_term_from_outside_counts_if_it_is_higher() {
    let mut run = Run::new(Config::preset(Preset::Local));
    run.succeed(&Facts { term: 5, ..Facts::default() }, Instant::ORIGIN);
    run.reign_under(3);
    assert_eq!(run.term(), 6);
    run.reign_under(900);
    assert_eq!((run.term(), run.facts().term), (900, 900));
}

#[test]
fn where_nobody_was_newcomers_are_let_in_at_once() {
    let mut bench = Bench::new();
    let facts = Facts { term: 5, run_epoch: 7, floor: 9, groups: Vec::new() };
    bench.run.succeed(&facts, bench.now + ms(2_000));
    bench.register(1, 0, 1);
    let record = bench.epoch(1).expect("at once");
    assert_eq!((record.run_epoch, record.epoch), (8, 10));
    assert_eq!(bench.run.term(), 6);
}

#[test]
fn damaged_facts_are_an_error_and_no_guess() {
    assert!(Facts::from_bytes(b"nonsense").is_err());
    assert!(Facts::from_bytes(&[]).is_err());
}
