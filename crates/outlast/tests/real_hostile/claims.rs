//! A resume is a claim (rule 41). One who holds the secret makes such claims by hand, over a real control connection, while
//! a real run trains; each of them once dissolved a young run, froze it, poisoned its term or ended the coordinator.
//!
//! All of this happens within seconds of the coordinator's start: that is when claims are listened to.

use crate::STEPS;
use crate::cast::Stage;
use crate::holder::Holder;
use outlast_proto::collective::{DataType, Fingerprint, OpKey, OpKind, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::limits::{COUNT_MAX, FRAME_BYTES_MAX, LEARNED_MAX, TAGS_MAX};
use outlast_proto::wire::control::{Decider, EpochRecord, OpenVote, TagReport, ToPeer, Verdict};
use outlast_proto::wire::membership::MemberInfo;
use serde_json::Value;

fn status(stage: &Stage) -> Value {
    serde_json::from_str(&stage.status()).expect("JSON")
}

/// The honest members, as anybody who holds the secret can read of them.
fn honest(stage: &Stage) -> Vec<MemberInfo> {
    let status = status(stage);
    let peers = status["peers"].as_array().expect("peers").iter().map(|peer| {
        let text = |field: &str| peer[field].as_str().expect("a text").to_owned();
        let (id, address) =
            (text("id").parse().expect("an id"), text("address").parse().expect("an address"));
        MemberInfo { id, address, closed_port: 0, name: text("name"), meta: Vec::new() }
    });
    peers.collect()
}

fn record(group: u32, epoch: u64, founder: PeerId, roster: Vec<MemberInfo>) -> EpochRecord {
    EpochRecord {
        run_epoch: epoch,
        group,
        epoch,
        ring: (0..roster.len() as u32).collect(),
        global_world_size: roster.len() as u32,
        roster,
        decider: Decider::Coordinator,
        joined: Vec::new(),
        left: Vec::new(),
        founder,
        broken: Vec::new(),
        incumbents: 1,
        ancestors: Vec::new(),
        ballots: Vec::new(),
    }
}

/// What must not change, whoever claims what: the term, the group's epoch, how many calls were aborted and members evicted.
fn standing(stage: &Stage) -> (Value, Value, Value, Value) {
    let status = status(stage);
    let group = &status["groups"][0];
    (status["term"].clone(), group["epoch"].clone(), status["aborts"].clone(), status["evictions"].clone())
}

/// The claims of one who was never in: alone in the honest members' group, above them, among them, instead of one of them.
fn strangers_claims(liar: &Holder, honest: &[MemberInfo]) -> Vec<EpochRecord> {
    let me = liar.info("usurper");
    let all = || honest.iter().cloned().chain([me.clone()]).collect::<Vec<_>>();
    let mut instead = honest.to_vec();
    instead[0] = me.clone();
    vec![
        record(0, 5, me.id, vec![me.clone()]),
        record(0, 5, honest[0].id, vec![me.clone()]),
        record(0, 1, me.id, all()),
        record(0, 5, honest[0].id, all()),
        record(0, COUNT_MAX - 1, me.id, all()),
        record(0, 2, me.id, instead),
    ]
}

#[test]
fn no_strangers_resume_dissolves_a_young_run() {
    let mut stage = Stage::new(2);
    let (honest, before) = (honest(&stage), standing(&stage));
    for number in 0.. {
        let mut liar = stage.holder("default");
        let Some(claim) = strangers_claims(&liar, &honest).into_iter().nth(number) else { break };
        liar.resume(claim, 1, Vec::new());
        let told = liar.hear_all();
        assert!(!told.is_empty(), "claim {number} is answered before the connection is closed");
        stage.everybody_steps(STEPS / 4, 2);
    }
    assert_eq!(standing(&stage), before);
    stage.everybody_steps(STEPS, 2);
}

/// A vote that admits newcomers is of all groups of a run, so a group that nobody is in would be waited for without end.
#[test]
fn no_invented_group_freezes_a_run() {
    let mut stage = Stage::new(2);
    let (honest, before) = (honest(&stage), standing(&stage));
    let mut alone = stage.holder("default");
    alone.resume(record(7, 5, alone.peer(), vec![alone.info("usurper")]), 1, Vec::new());
    let mut claims_others = stage.holder("default");
    let with_others = honest.iter().cloned().chain([claims_others.info("usurper")]).collect();
    claims_others.resume(record(8, 5, claims_others.peer(), with_others), 1, Vec::new());
    stage.everybody_steps(STEPS, 2);
    let after = standing(&stage);
    // To a coordinator that is so young they may be of the run, so it listens to them, as a higher reign. That aborts nothing.
    assert_eq!((after.1, after.2, after.3), (before.1, before.2, before.3));
    assert!(after.0.as_u64() <= before.0.as_u64().map(|term| term + 2), "{} after {}", after.0, before.0);
    // Both connections are still open on our side, and neither says anything more.
    stage.enter();
    stage.everybody_steps(STEPS, 3);
    let status = status(&stage);
    assert_eq!(
        (&status["evictions"], &status["groups"][0]["world_size"]),
        (&0.into(), &3.into()),
        "{status}"
    );
    drop((alone, claims_others));
}

#[test]
fn no_claimed_term_poisons_a_run() {
    let mut stage = Stage::new(2);
    let (honest, before) = (honest(&stage), standing(&stage));
    for term in [before.0.as_u64().expect("a term") + 1, 1 << 30, COUNT_MAX, u64::MAX] {
        // In its own right, and about the others' group.
        let mut liar = stage.holder("default");
        liar.register_under("poisoner", 99, term);
        let mut resumes = stage.holder("default");
        resumes.resume(record(0, 1, honest[0].id, honest.clone()), term, Vec::new());
        assert!(!resumes.hear_all().is_empty(), "term {term} is answered");
        stage.everybody_steps(STEPS / 4, 2);
        drop(liar);
    }
    assert_eq!(standing(&stage), before);
    // The next reign is above what anybody obeyed, and nobody refuses it.
    stage.restart_coordinator();
    stage.everybody_steps(STEPS, 2);
    let status = status(&stage);
    assert!(status["term"].as_u64() < Some(1 << 20) && status["evictions"] == 0, "{status}");
}

/// One who was let in and knows the record, as a member does.
#[test]
fn a_member_that_claims_a_far_term_is_put_out_alone() {
    let mut stage = Stage::new(2);
    let mut liar = stage.holder("default");
    liar.register("poisoner", 1);
    let mut record = None;
    while record.is_none() {
        match liar.hear_message().expect("it is let in") {
            ToPeer::Epoch(told) => record = Some(told),
            ToPeer::Kicked { text, .. } => panic!("{text}"),
            _ => {}
        }
    }
    let mut again = liar.again();
    again.resume(record.expect("just told"), COUNT_MAX, Vec::new());
    let told = again.hear_all();
    assert!(!told.is_empty(), "it is answered");
    drop((liar, again));
    stage.everybody_steps(STEPS, 2);
    stage.restart_coordinator();
    stage.everybody_steps(STEPS, 2);
    let status = status(&stage);
    assert!(status["term"].as_u64() < Some(1 << 20), "{status}");
}

/// A coordinator that knows nothing must believe what it is told, and liars are there before anybody else.
#[test]
fn liars_at_a_restarted_coordinator_cost_nobody_honest_its_place() {
    let mut stage = Stage::new(2);
    let (honest, address, secret) = (honest(&stage), stage.coordinator(), stage.secret().clone());
    // They knock until somebody answers; what they hear before that is of the old one.
    let lies = move |number: usize| {
        let mut liar = Holder::connect_first(address, &secret, "default");
        let claims = strangers_claims(&liar, &honest);
        let term = [1, 7, COUNT_MAX][number % 3];
        let invented = record(7, 5, liar.peer(), vec![liar.info("usurper")]);
        let claim = claims.into_iter().chain([invented]).nth(number).expect("a claim");
        liar.resume(claim, term, Vec::new());
        liar
    };
    let lies = std::sync::Arc::new(lies);
    stage.stop_coordinator();
    let liars: Vec<_> = (0..7)
        .map(|number| {
            let lies = std::sync::Arc::clone(&lies);
            std::thread::spawn(move || lies(number))
        })
        .collect();
    stage.start_coordinator();
    let liars: Vec<_> = liars.into_iter().map(|liar| liar.join().expect("a liar")).collect();
    stage.everybody_steps(STEPS, 2);
    let status = status(&stage);
    assert!(status["term"].as_u64() < Some(1 << 20) && status["evictions"] == 0, "{status}");
    assert_eq!(status["groups"][0]["world_size"], 2, "{status}");
    drop(liars);
    stage.everybody_steps(STEPS, 2);
}

#[test]
fn messages_that_are_too_large_cost_the_one_who_sends_them() {
    let mut stage = Stage::new(2);
    let (honest, before) = (honest(&stage), standing(&stage));
    // A frame that would be longer than any: announced, and begun.
    for length in [u32::MAX, FRAME_BYTES_MAX as u32 + 1] {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.resize(1 << 20, 7);
        stage.holder("default").shout(&bytes);
        stage.everybody_steps(10, 2);
    }
    let mine = |liar: &Holder| record(0, 5, honest[0].id, vec![liar.info("usurper")]);
    let tag = |tag: u64| {
        let key = |seq| OpKey { group: 0, epoch: 5, scope: Scope::Whole, tag, seq };
        let learned = (0..LEARNED_MAX as u64).map(|seq| (key(seq), Verdict::Commit { pending: 0 }));
        let fingerprint = Fingerprint::new(OpKind::AllReduce, DataType::F32, vec![8; 60]);
        let open = OpenVote { key: key(99), fingerprint, timeout_ms: 60_000, complete: true };
        TagReport { learned: learned.collect(), open: Some(open) }
    };
    // More tags than there may be: it hears which limit.
    let mut liar = stage.holder("default");
    liar.resume(mine(&liar), 1, (0..=TAGS_MAX as u64).map(tag).collect());
    let told = liar.hear_all().join(" ");
    assert!(told.contains("tags") && told.contains("1024"), "{told}");
    // As many as there may be, and a roster of a thousand who do not exist: legal, large, and not believed.
    let mut liar = stage.holder("default");
    let mut claim = mine(&liar);
    claim.roster.extend((0..1_000_u128).map(|number| MemberInfo {
        id: PeerId::from_bytes((1 + number).to_be_bytes()),
        name: "n".repeat(64),
        meta: vec![7; 256],
        ..liar.info("nobody")
    }));
    claim.ring = (0..claim.roster.len() as u32).collect();
    liar.resume(claim, 1, (0..TAGS_MAX as u64).map(tag).collect());
    assert!(!liar.hear_all().is_empty(), "it is answered");
    stage.everybody_steps(STEPS, 2);
    assert_eq!(standing(&stage), before);
}
