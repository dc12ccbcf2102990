//! Each checker of the heart, proven by a bug that it must find.

use outlast_proto::session::Done;
use outlast_proto::wire::control::{EpochRecord, LossReason};
use outlast_sim::heart::runner::{self, Script};
use outlast_sim::heart::{Fact, Fault, Sabotage, World, scenarios};
use outlast_sim::report::Report;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

fn script(name: &str, seed: u64) -> Script {
    (scenarios::find(name).expect("the scenario exists").script)(seed)
}

fn found(report: &Report, checker: &str) -> bool {
    report.violations.iter().any(|violation| violation.checker == checker)
}

/// Some seed of the scenario must show the bug to that checker; without the bug none of those that were tried does.
fn assert_found(name: &str, sabotage: Sabotage, checker: &str) {
    let play = |seed, sabotage| {
        let mut script = script(name, seed);
        script.settings.sabotage = sabotage;
        runner::run(name, seed, &script, false)
    };
    let finds = (0..20).find(|seed| found(&play(*seed, Some(sabotage)), checker));
    let seed = finds.unwrap_or_else(|| panic!("{checker} does not find {sabotage:?}"));
    for honest in (0..=seed).map(|seed| play(seed, None)) {
        assert!(honest.passed(), "{honest}");
    }
}

/// The same where the bug is one in what is told of the world.
fn assert_noticed(name: &str, checker: &str, spoil: impl Fn(&World, &mut Fact)) {
    let noticed = |seed| {
        let report = runner::run_with(name, seed, &script(name, seed), false, |world, facts| {
            facts.iter_mut().for_each(|(_, fact)| spoil(world, fact));
        });
        found(&report, checker)
    };
    let seed = (1..10).find(|seed| noticed(*seed)).unwrap_or_else(|| panic!("{checker} notices nothing"));
    for honest in (1..=seed).map(|seed| runner::run(name, seed, &script(name, seed), false)) {
        assert!(honest.passed(), "{honest}");
    }
}

#[test]
fn one_verdict_finds_a_peer_that_is_told_another() {
    assert_found("heart-kills", Sabotage::FlipVerdict, "one_verdict");
}

#[test]
fn commit_needs_all_finds_a_commit_without_everybodys_word() {
    assert_found("heart-calm", Sabotage::ForgeComplete, "commit_needs_all");
}

#[test]
fn a_reign_under_a_term_of_before_is_found() {
    assert_found("heart-kept", Sabotage::LoseFacts, "no_panic");
}

#[test]
fn exact_values_finds_data_that_was_not_restored() {
    assert_found("heart-kills", Sabotage::SkipUndo, "exact_values");
}

#[test]
fn deadlines_finds_a_call_that_outlives_its_own() {
    assert_found("heart-cuts", Sabotage::ForgetTimers, "deadlines");
}

#[test]
fn deadlines_finds_an_executor_that_is_done_and_deaf() {
    assert_found("heart-kills", Sabotage::DeafWhileFlushing, "deadlines");
}

#[test]
fn decodable_finds_a_byte_that_is_another_when_it_arrives() {
    assert_found("heart-kills", Sabotage::SpoilByte, "decodable");
}

#[test]
fn no_false_eviction_finds_a_living_peer_put_out() {
    assert_found("heart-calm", Sabotage::AccuseTheLiving, "no_false_eviction");
}

#[test]
fn no_false_eviction_finds_a_peer_whose_resume_is_not_heard() {
    assert_found("heart-cuts", Sabotage::DropResumes, "no_false_eviction");
}

#[test]
fn same_outcome_finds_a_member_that_is_not_told_how_a_call_ended() {
    assert_found("heart-programs", Sabotage::HideAnAbort, "same_outcome");
}

#[test]
fn ghosts_finds_a_peer_that_is_out_and_not_told() {
    assert_found("heart-stops", Sabotage::KeepEvictionsSecret, "ghosts");
}

#[test]
fn remembered_finds_a_coordinator_that_is_not_told_what_happened_before_it() {
    assert_found("heart-coordinator", Sabotage::LoseMemories, "remembered");
}

#[test]
fn causes_finds_a_peer_that_is_told_to_leave_for_nothing() {
    assert_noticed("heart-stops", "causes", |_, fact| {
        if let Fact::Lost { reason, .. } = fact {
            *reason = LossReason::Left;
        }
    });
}

#[test]
fn causes_finds_a_coordinator_that_sends_peers_away_before_they_had_their_time() {
    assert_found("heart-coordinator", Sabotage::NoGrace, "causes");
}

#[test]
fn bystanders_finds_a_peer_lost_in_a_group_that_nothing_befell() {
    assert_found("heart-bystanders", Sabotage::AccuseBystander, "bystanders");
}

#[test]
fn one_outcome_finds_two_outcomes_and_one_without_a_vote() {
    assert_noticed("heart-ballots", "one_outcome", |_, fact| {
        if let Fact::BallotAgreed { outcome, vote: Some(vote), .. } = fact {
            outcome.retain(|byte| !vote.wish.contains(byte));
        }
    });
    assert_noticed("heart-ballots", "one_outcome", |_, fact| {
        if let Fact::BallotAgreed { peer, outcome, .. } = fact {
            outcome.extend_from_slice(peer.as_bytes());
        }
    });
}

#[test]
fn liveness_finds_those_who_are_never_told_to_go_on() {
    assert_found("heart-cuts", Sabotage::DropProceed, "liveness");
}

/// Attempts go on over what is no link, and nobody dials another.
#[test]
fn liveness_finds_a_lost_link_that_is_taken_for_the_link() {
    assert_found("heart-links", Sabotage::KeepLostLinks, "liveness");
}

#[test]
fn stale_epochs_finds_a_commit_of_an_old_epoch() {
    assert_noticed("heart-kills", "stale_epochs", |_, fact| {
        if let Fact::Finished { outcome: Ok(Done::Committed { key, .. }), .. } = fact {
            key.epoch -= 1;
        }
    });
}

#[test]
fn no_two_terms_finds_a_lower_term_that_decides_after_a_higher() {
    assert_noticed("heart-coordinator", "no_two_terms", |world, fact| {
        if let Fact::Heard { process: 0, term, .. } = fact {
            *term = if world.now().as_millis() % 2_000 < 1_000 { 1 } else { 2 };
        }
    });
}

#[test]
fn group_isolation_finds_an_epoch_that_names_others_and_one_without_a_reason() {
    assert_noticed("heart-groups", "group_isolation", |_, fact| {
        if let Fact::Opened { record, .. } = fact {
            record.group = 1 - record.group;
        }
    });
    // Every epoch of a history is told with the roster and the ways of the first one.
    let first = RefCell::new(BTreeMap::new());
    assert_noticed("heart-groups", "group_isolation", |_, fact| {
        if let Fact::Opened { record, .. } = fact {
            let mut first = first.borrow_mut();
            let same: &EpochRecord = first.entry(record.founder).or_insert_with(|| record.clone());
            let ways = (same.roster.clone(), same.ring.clone(), same.broken.clone());
            (record.roster, record.ring, record.broken) = ways;
        }
    });
}

#[test]
fn one_state_finds_a_training_that_begins_anew_below_what_it_had_reached() {
    // One who trains alone is killed, and whoever takes its place brings nothing.
    let play = |sabotage| {
        let mut script = script("heart-training", 1);
        (script.settings.peers, script.settings.groups, script.settings.sabotage) = (1, 1, sabotage);
        let respawn = Some(Duration::from_millis(500));
        script.faults = vec![(Duration::from_secs(2), Fault::Kill { group: None, respawn })];
        runner::run("heart-training", 1, &script, false)
    };
    assert!(found(&play(Some(Sabotage::TakeSilenceForGoodbye)), "one_state"));
    let honest = play(None);
    assert!(honest.violations.is_empty(), "{:?}", honest.violations);
}

#[test]
fn one_state_finds_replicas_that_differ_a_torn_donor_and_a_model_that_lost() {
    assert_noticed("heart-training", "one_state", |_, fact| {
        if let Fact::Trained { contents, peer, .. } = fact {
            *contents ^= u64::from(peer.as_bytes()[0]);
        }
    });
    assert_noticed("heart-training", "one_state", |_, fact| {
        if let Fact::Elected { torn, peer, .. } = fact {
            torn.push(*peer);
        }
    });
    assert_noticed("heart-training", "one_state", |_, fact| {
        if let Fact::Synced { held, revision, .. } = fact {
            *held = Some(*revision + 1);
        }
    });
    assert_noticed("heart-training", "one_state", |_, fact| {
        if let Fact::Trained { revision, .. } = fact {
            *revision *= 2;
        }
    });
}
