//! The heart under every kind of fault, a few hundred seeds of it. Thousands: `outlast-sim soak --scenario heart-`.

use outlast_proto::ballot::optimise::RingOutcome;
use outlast_sim::heart::Fact;
use outlast_sim::heart::runner;
use outlast_sim::heart::scenarios;

/// Plays that many seeds of a scenario, on two threads.
fn play(name: &str, seeds: std::ops::Range<u64>) {
    let scenario = scenarios::find(name).expect("the scenario exists");
    let half = |first: u64| {
        for seed in seeds.clone().skip(first as usize).step_by(2) {
            let report = runner::run(name, seed, &(scenario.script)(seed), false);
            assert!(report.passed(), "{report}");
            assert!(report.converged_after.is_some(), "{report}");
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        half(0);
        other.join().expect("the other half has passed, too");
    });
}

#[test]
fn nothing_goes_wrong_where_nothing_goes_wrong() {
    play("heart-calm", 0..20);
}

#[test]
fn kills() {
    play("heart-kills", 0..60);
}

#[test]
fn cuts_of_control() {
    play("heart-cuts", 0..50);
}

#[test]
fn broken_links() {
    play("heart-links", 0..40);
}

#[test]
fn stopped_processes() {
    play("heart-stops", 0..40);
}

#[test]
fn coordinators_that_die() {
    play("heart-coordinator", 0..60);
}

/// With `--backend file:` a coordinator's successor knows its term, its epochs and who was in.
#[test]
fn coordinators_that_die_and_kept_facts() {
    play("heart-kept", 0..60);
    play("heart-kept-crash-points", 0..400);
}

#[test]
fn a_coordinator_that_dies_after_each_of_its_messages() {
    // Every point of one world with a death, and of one without.
    play("heart-crash-points", 0..800);
}

#[test]
fn a_deposed_coordinator_that_lives_on() {
    play("heart-two-terms", 0..60);
}

#[test]
fn a_deposed_coordinator_of_two_groups() {
    play("heart-two-terms-groups", 0..60);
}

#[test]
fn peers_that_come_back_as_themselves() {
    play("heart-rejoin", 0..80);
}

#[test]
fn health_by_the_membership_machine() {
    play("heart-health", 0..12);
    play("heart-health", 500_030..500_036);
    // A member that stood still since before a restart was evicted like a silent one.
    play("heart-health", 61_004_321..61_004_322);
    // A link broke again before its healing was told, and an epoch was opened that changed nothing.
    play("heart-health", 81_001_408..81_001_409);
}

#[test]
fn a_group_that_suffers_beside_one_that_must_not_notice() {
    play("heart-groups", 0..20);
}

#[test]
fn a_group_that_must_lose_nobody_while_the_coordinator_dies() {
    play("heart-bystanders", 0..20);
}

#[test]
fn programs_that_move_on_after_an_error() {
    play("heart-programs", 0..40);
}

/// A member was stopped when the other one of its group dialled it. When it could be reached again nothing had changed, so nobody
/// dialled, and their votes for newcomers waited for the link.
#[test]
fn a_link_that_could_not_be_dialled_is_made_while_all_wait_in_a_vote() {
    play("heart-programs", 9_990_030..9_990_031);
}

/// Elections, torn states and revision numbers, through every kind of fault and a coordinator that dies at any message.
#[test]
fn training_loops() {
    play("heart-training", 0..20);
    play("heart-training-crash-points", 0..200);
}

/// A member was healed, the other gave the sync up, and the copy no longer counted as agreed on: when all who had gone on
/// were lost, an older checkpoint was elected in its place.
#[test]
fn a_copy_of_what_was_agreed_on_is_never_healed_to_less() {
    play("heart-training", 9_804_604..9_804_605);
}

/// A kind of ballot that says nothing about lost voters, resumes and restarts survives them all.
#[test]
fn ballots_about_nothing() {
    play("heart-ballots", 0..40);
    play("heart-ballot-crash-points", 0..400);
}

#[test]
fn ballots_meet_what_they_must_survive() {
    let (mut lost, mut again, mut restarted) = (0, 0, 0);
    for (name, seeds) in [("heart-ballots", 0..30), ("heart-ballot-crash-points", 100..130)] {
        let scenario = scenarios::find(name).expect("the scenario exists");
        for seed in seeds {
            let report = runner::run_with(name, seed, &(scenario.script)(seed), false, |_, facts| {
                for (_, fact) in facts {
                    let Fact::BallotAgreed { outcome, vote: Some(vote), term, resuming, .. } = fact else {
                        continue;
                    };
                    lost += usize::from(outcome.len() / vote.wish.len() < vote.members);
                    again += usize::from(*resuming);
                    restarted += usize::from(*term > vote.term);
                }
            });
            assert!(report.passed(), "{report}");
        }
    }
    assert!(
        lost >= 10 && again >= 5 && restarted >= 5,
        "outcomes without a voter that was lost: {lost}; heard after a resume: {again}; told by a coordinator that was \
         started after the vote: {restarted}"
    );
}

/// Votes for a better ring go through all that they can come to.
#[test]
fn better_rings_meet_what_they_must_survive() {
    let (mut measured, mut again, mut improved, mut failed) = (0, 0, 0, 0);
    for (name, seeds) in [("heart-ballots", 0..30), ("heart-ballot-crash-points", 100..160)] {
        let scenario = scenarios::find(name).expect("the scenario exists");
        for seed in seeds {
            let report = runner::run_with(name, seed, &(scenario.script)(seed), false, |_, facts| {
                for (_, fact) in facts {
                    let Fact::RingTurn { outcome, .. } = fact else { continue };
                    match outcome {
                        RingOutcome::Measure { heats, .. } => measured += usize::from(!heats.is_empty()),
                        RingOutcome::Again => again += 1,
                        RingOutcome::Ring { improved: is_better, .. } => improved += usize::from(*is_better),
                        RingOutcome::Failed { .. } => failed += 1,
                    }
                }
            });
            assert!(report.passed(), "{report}");
        }
    }
    assert!(
        measured >= 10 && again >= 5 && improved >= 10 && failed >= 5,
        "something to measure: {measured}; begun again: {again}; better rings: {improved}; failed: {failed}"
    );
}

#[test]
fn everything_at_once() {
    play("heart-mixed", 0..60);
    // Found a peer that a run which began afresh was closed to.
    play("heart-mixed", 201_157..201_158);
    // A peer that came back heard of verdicts in an epoch that it did not know.
    play("heart-mixed", 201_919..201_920);
    // Rebuilds after which no ring was left: an honest peer was kicked for its numbers.
    play("heart-mixed", 900_301..900_302);
    play("heart-mixed", 905_906..905_907);
    // Rebuilds that lost somebody, and expected it again.
    play("heart-mixed", 903_224..903_225);
    play("heart-mixed", 910_332..910_333);
    // A moment of isolation, remembered: a living peer was evicted when another died.
    play("heart-mixed", 915_492..915_493);
}

#[test]
fn hundreds_of_peers() {
    play("heart-large", 0..2);
}

#[test]
fn seeds_that_found_a_fault_once_stay_right() {
    // Verdicts that nobody remembered any more were skipped; an answer was given in the next session.
    let found = [
        ("heart-mixed", 5_018_507),
        ("heart-ballots", 6_000_918),
        ("heart-training-crash-points", 31_000_010),
        ("heart-training", 51_000_419),
        ("heart-training", 51_003_777),
        ("heart-ballots", 51_001_979),
        // Who lost its connection again before it had heard all that it had missed was never told.
        ("heart-rejoin", 120_004_510),
        // What the simulator got wrong: a term that ended a history taken for one that decided in it, bytes that leave slowly
        // after all faults, a leaver held for alive, a new term that somebody who waits is told of, a former life that was not
        // told to go on.
        ("heart-ballots", 150_002_602),
        ("heart-calm", 120_004_178),
        ("heart-training", 120_003_533),
        ("heart-two-terms-groups", 120_004_563),
        ("heart-two-terms", 150_002_838),
    ];
    for (name, seed) in found {
        play(name, seed..seed + 1);
    }
}

#[test]
fn one_seed_one_story() {
    let scenario = scenarios::find("heart-mixed").expect("the scenario exists");
    let hash = |seed| runner::run("heart-mixed", seed, &(scenario.script)(seed), false).trace_hash;
    assert_eq!(hash(3), hash(3));
    assert_ne!(hash(3), hash(4));
}
