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
    bench.say(1, ToCoordinator::Leave);
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

#[test]
fn the_count_outlives_the_deaths_of_all_and_ends_with_their_goodbye() {
    for (with_goodbye, expected) in [(false, Some(behind(0, 8))), (true, None)] {
        let mut bench = Bench::of(&[1, 2]);
        step(&mut bench, &[1, 2], 1, 0, 7);
        if with_goodbye {
            bench.all_say(&[1, 2], &ToCoordinator::Leave);
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
