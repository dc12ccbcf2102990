//! How far a group's state has come, as the coordinator remembers it: by committed steps, and beyond everybody's death.

use super::bench::*;
use crate::ballot::sync::{KIND, Outcome, Wish};
use crate::state::election::{Healed, NoDonor, Offer, Strategy};
use crate::state::{Digest, Revision};

/// A member that was never in an agreement offers that.
fn offer(number: u64, revision: Revision, was_agreed: bool) -> ToCoordinator {
    let (strategy, outline, root) =
        (Strategy::Popular, Digest::of(b"o"), Digest::of(&revision.to_be_bytes()));
    let offer = Offer { revision: Some(revision), strategy, outline, root, was_agreed };
    ToCoordinator::Vote { ballot: BallotId { kind: KIND, number }, wish: Wish::Offer(offer, None).encode() }
}

/// What the last sync that this peer heard of came to.
fn heard(bench: &mut Bench, number: u8) -> Option<Outcome> {
    let outcome = |message| match message {
        ToPeer::BallotEnded { end: BallotEnd::Agreed(outcome), .. } => Outcome::decode(&outcome).ok(),
        _ => None,
    };
    bench.told(number).into_iter().filter_map(outcome).next_back()
}

/// A committed step of everybody.
fn step(bench: &mut Bench, numbers: &[u8], epoch: u64, seq: u64, step: u64) {
    let key = key(epoch, 0, seq);
    let fingerprint = Fingerprint { step: Some(step), ..call(8) };
    let initiate = ToCoordinator::Initiate { key: key.clone(), fingerprint, timeout_ms: 10_000 };
    bench.all_say(numbers, &initiate);
    bench.all_say(numbers, &ToCoordinator::Complete { key });
}

fn behind(best: Revision, last: Revision) -> Outcome {
    Outcome::NoDonor { last: Some(last), why: NoDonor::Behind { best, last } }
}

#[test]
fn a_newcomer_whose_donor_died_does_not_begin_below_the_committed_steps() {
    let mut bench = Bench::of(&[1]);
    step(&mut bench, &[1], 1, 0, 949);
    bench.register(2, 0, 1);
    bench.say(1, vote(1, 2));
    bench.confirm(&[1, 2], 2);
    bench.say(1, ToCoordinator::Leave { for_good: true });
    bench.confirm(&[2], 3);
    bench.clear();
    bench.say(2, offer(1, 0, false));
    assert_eq!(heard(&mut bench, 2), Some(behind(0, 950)));
    // Loaded from a checkpoint it would go on.
    bench.say(2, offer(2, 900, true));
    let told = heard(&mut bench, 2);
    let Some(Outcome::Elected { elected, .. }) = told else { panic!("{told:?}") };
    assert_eq!(elected.revision, 900);
    // From then on that is the count: what was reached before does not stand in the way of those who go on.
    let ballot = BallotId { kind: KIND, number: 3 };
    bench.say(2, ToCoordinator::Vote { ballot, wish: Wish::Done(elected.root, Healed::default()).encode() });
    step(&mut bench, &[2], 3, 0, 900);
    bench.clear();
    bench.say(2, offer(4, 901, true));
    let told = heard(&mut bench, 2);
    assert!(matches!(told, Some(Outcome::Elected { elected, .. }) if elected.last == Some(901)), "{told:?}");
}

/// The holders had gone out for a moment, and a member with an old checkpoint, alone for that moment, went on in their place.
#[test]
fn nobody_is_elected_below_the_floor_while_others_wait_outside() {
    let mut bench = Bench::of(&[1]);
    step(&mut bench, &[1], 1, 0, 949);
    bench.register(2, 0, 1);
    bench.say(1, vote(1, 2));
    bench.confirm(&[1, 2], 2);
    bench.say(1, ToCoordinator::Leave { for_good: false });
    bench.confirm(&[2], 3);
    bench.register(3, 0, 1);
    bench.clear();
    bench.say(2, offer(1, 900, true));
    let outside = Outcome::NoDonor { last: Some(950), why: NoDonor::OthersOutside };
    assert_eq!(heard(&mut bench, 2), Some(outside));
    bench.say(2, vote(1, 3));
    bench.confirm(&[2, 3], 4);
    bench.clear();
    bench.say(2, offer(2, 900, true));
    bench.say(3, offer(2, 950, true));
    let told = heard(&mut bench, 2);
    let Some(Outcome::Elected { elected, donors, .. }) = told else { panic!("{told:?}") };
    assert_eq!((elected.revision, donors), (950, vec![id(3)]));
}

/// Whoever is being healed has voted, and is waited for: named nowhere, nobody knew that all had been told, and all went out.
#[test]
fn a_sync_that_ends_while_somebody_is_healed_names_it() {
    let mut bench = Bench::of(&[1, 2]);
    bench.say(1, offer(1, 5, true));
    bench.say(2, offer(1, 3, true));
    let Some(Outcome::Elected { elected, .. }) = heard(&mut bench, 1) else { panic!("nothing was elected") };
    let ballot = BallotId { kind: KIND, number: 2 };
    let wish = |wish: Wish| ToCoordinator::Vote { ballot, wish: wish.encode() };
    bench.say(2, wish(Wish::Healing(elected.root, 1, 9)));
    bench.say(1, wish(Wish::Done(elected.root, Healed::default())));
    bench.clear();
    bench.say(1, ToCoordinator::Expired { ballot });
    for number in [1, 2] {
        let told = bench.told(number);
        let [ToPeer::BallotEnded { end: BallotEnd::TimedOut(waiting), .. }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(waiting.iter().map(|waiting| waiting.peer).collect::<Vec<_>>(), [id(2)]);
    }
}

/// What a newcomer is told that is let in now and offers that.
fn founds_with(bench: &mut Bench, number: u8, revision: Revision) -> Option<Outcome> {
    bench.register(number, 0, 1);
    let epoch = bench.epoch(number).expect("it is in").epoch;
    bench.confirm(&[number], epoch);
    bench.clear();
    bench.say(number, offer(1, revision, false));
    heard(bench, number)
}

fn dies(bench: &mut Bench, number: u8) {
    bench.health(number, Sign::Dead(DeathReason::Exited));
    bench.close(number);
    bench.answer_knocks(ConnectOutcome::Refused);
    bench.wait(ms(30_000));
}

/// A loop that reconnects, a fence, a program that fails: the training goes on. It was forgotten, and whoever came first
/// began from nothing.
#[test]
fn a_goodbye_that_is_not_for_good_does_not_end_the_count() {
    let mut bench = Bench::of(&[1]);
    step(&mut bench, &[1], 1, 0, 7);
    bench.say(1, ToCoordinator::Leave { for_good: false });
    assert_eq!(founds_with(&mut bench, 3, 0), Some(behind(0, 8)));
    // Nor does a process that begins again from the beginning.
    let mut bench = Bench::of(&[1]);
    step(&mut bench, &[1], 1, 0, 7);
    let again = Registration { session: registration(1, 0, 1).session.next(), ..registration(1, 0, 1) };
    let at = bench.connection();
    bench.at.insert(1, at);
    bench.say(1, ToCoordinator::Register(again, 1, 0));
    bench.say(1, ToCoordinator::Leave { for_good: true });
    assert_eq!(founds_with(&mut bench, 3, 0), Some(behind(0, 8)));
}

/// Somebody that was let in, and found nobody who could give, ends its program in good order.
#[test]
fn a_goodbye_of_who_never_held_the_state_does_not_end_the_count() {
    let mut bench = Bench::of(&[1]);
    step(&mut bench, &[1], 1, 0, 7);
    bench.register(2, 0, 1);
    bench.say(1, vote(1, 2));
    bench.confirm(&[1, 2], 2);
    dies(&mut bench, 1);
    bench.say(2, ToCoordinator::Leave { for_good: true });
    assert_eq!(founds_with(&mut bench, 3, 0), Some(behind(0, 8)));
    // Nor of one that never came in; it is not held against it when it does, and dies.
    let mut bench = Bench::of(&[1]);
    step(&mut bench, &[1], 1, 0, 7);
    bench.register(2, 0, 1);
    bench.say(2, ToCoordinator::Leave { for_good: true });
    bench.register(2, 0, 1);
    bench.say(1, vote(1, 2));
    bench.confirm(&[1, 2], 2);
    step(&mut bench, &[1, 2], 2, 0, 8);
    [1, 2].into_iter().for_each(|number| dies(&mut bench, number));
    assert_eq!(founds_with(&mut bench, 3, 0), Some(behind(0, 9)));
    // One that was given it holds it.
    let mut bench = Bench::of(&[1]);
    bench.say(1, offer(1, 8, true));
    let Some(Outcome::Elected { elected, .. }) = heard(&mut bench, 1) else { panic!("nothing was elected") };
    let ballot = BallotId { kind: KIND, number: 2 };
    bench.say(1, ToCoordinator::Vote { ballot, wish: Wish::Done(elected.root, Healed::default()).encode() });
    bench.say(1, ToCoordinator::Leave { for_good: true });
    let told = founds_with(&mut bench, 3, 0);
    assert!(matches!(told, Some(Outcome::Elected { elected, .. }) if elected.revision == 0), "{told:?}");
}

/// A coordinator that was restarted knew the last sync, and none of the steps since.
#[test]
fn the_count_of_steps_outlives_a_coordinator() {
    let resumed = |revision, number| Resume { revision, ..resume(number, record(1, &[1, 2])) };
    let mut bench = Bench::new();
    bench.resume(1, resumed(Some(999), 1));
    bench.resume(2, resumed(Some(1_000), 2));
    [1, 2].into_iter().for_each(|number| dies(&mut bench, number));
    assert_eq!(founds_with(&mut bench, 3, 0), Some(behind(0, 1_000)));
}

/// The step that everybody had completed when the coordinator died is committed by the next one, and counts.
#[test]
fn a_step_that_a_rebuild_commits_is_in_the_count() {
    let mut bench = Bench::new();
    let key = key(1, 0, 0);
    let fingerprint = Fingerprint { step: Some(1_000), ..call(8) };
    let open = OpenVote { key: key.clone(), fingerprint, timeout_ms: 10_000, complete: true };
    for number in [1, 2] {
        let tags = vec![TagReport { learned: Vec::new(), open: Some(open.clone()) }];
        let revision = Some(1_000);
        bench.resume(number, Resume { tags, revision, ..resume(number, record(1, &[1, 2])) });
    }
    [1, 2].into_iter().for_each(|number| dies(&mut bench, number));
    assert_eq!(founds_with(&mut bench, 3, 0), Some(behind(0, 1_001)));
    // Both hold it, so that the last one can end it.
    let mut bench = Bench::new();
    for number in [1, 2] {
        let tags = vec![TagReport { learned: Vec::new(), open: Some(open.clone()) }];
        bench.resume(number, Resume { tags, ..resume(number, record(1, &[1, 2])) });
    }
    bench.all_say(&[1, 2], &ToCoordinator::Leave { for_good: true });
    let told = founds_with(&mut bench, 3, 0);
    assert!(matches!(told, Some(Outcome::Elected { elected, .. }) if elected.revision == 0), "{told:?}");
}

#[test]
fn the_count_outlives_the_deaths_of_all_and_ends_with_their_goodbye() {
    for (with_goodbye, expected) in [(false, Some(behind(0, 8))), (true, None)] {
        let mut bench = Bench::of(&[1, 2]);
        step(&mut bench, &[1, 2], 1, 0, 7);
        if with_goodbye {
            bench.all_say(&[1, 2], &ToCoordinator::Leave { for_good: true });
        } else {
            for number in [1, 2] {
                bench.health(number, Sign::Dead(DeathReason::Exited));
                bench.close(number);
                bench.answer_knocks(ConnectOutcome::Refused);
                bench.wait(ms(30_000));
            }
        }
        bench.register(3, 0, 1);
        let epoch = bench.epoch(3).expect("it is in").epoch;
        bench.confirm(&[3], epoch);
        bench.clear();
        bench.say(3, offer(1, 0, false));
        match (heard(&mut bench, 3), expected) {
            (told, Some(expected)) => assert_eq!(told, Some(expected)),
            (told, None) => {
                assert!(
                    matches!(told, Some(Outcome::Elected { elected, .. }) if elected.revision == 0),
                    "{told:?}"
                );
            }
        }
    }
}
