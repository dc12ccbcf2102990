//! One bound (rule 40): whatever keeps the limits has an encoding that a frame carries and the other side takes.

use outlast_proto::ballot::admission;
use outlast_proto::collective::{DataType, Fingerprint, OpKey, OpKind, Scope};
use outlast_proto::coordinator::{self, Action, ConnectionId, Run};
use outlast_proto::id::PeerId;
use outlast_proto::limits::*;
use outlast_proto::membership::Preset;
use outlast_proto::session::{self, Op, PerformResult, Session};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::*;
use outlast_proto::wire::frame::{self, FrameBuffer};
use outlast_proto::wire::membership::{DeathReason, MemberInfo};
use outlast_proto::wire::{Message, decode, encode};

const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn id(number: usize) -> PeerId {
    let mut bytes = [0xff; 16];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    PeerId::from_bytes(bytes)
}

/// A member that says as much of itself as it may.
fn verbose(number: usize) -> MemberInfo {
    MemberInfo {
        id: id(number),
        address: "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap(),
        closed_port: u16::MAX,
        name: "n".repeat(NAME_BYTES_MAX),
        meta: vec![0xff; META_BYTES_MAX],
    }
}

fn brief(number: usize) -> MemberInfo {
    MemberInfo { name: "n".repeat(NAME_BYTES_MAX), meta: Vec::new(), ..verbose(number) }
}

fn registration(info: MemberInfo, min_world: u32) -> Registration {
    let session = SessionId([7; 16]);
    Registration { info, group: 0, session, min_world, encryption: Encryption::On, witness: None }
}

/// Sends it as bytes on a stream, and reads it again.
fn carried<M: Message + PartialEq + std::fmt::Debug>(message: &M) -> usize {
    message.check().expect("it keeps every limit");
    let bytes = encode(message);
    let mut stream = Vec::new();
    frame::append(&bytes, &mut stream);
    let mut buffer = FrameBuffer::new(FRAME_BYTES_MAX);
    buffer.push(&stream);
    let payload = buffer.take().expect("a frame carries it").expect("it is whole");
    assert!(decode::<M>(&payload).expect("the other side takes it") == *message);
    bytes.len()
}

fn farthest() -> Tally {
    Tally { ended: COUNT_MAX, agreed: COUNT_MAX }
}

fn largest_record() -> EpochRecord {
    let members = ROSTER_BYTES_MAX / minicbor::len(verbose(0)) - 1;
    EpochRecord {
        run_epoch: COUNT_MAX,
        group: u32::MAX,
        epoch: COUNT_MAX,
        roster: (0..members).map(verbose).collect(),
        ring: (0..members as u32).rev().collect(),
        decider: Decider::Coordinator,
        global_world_size: u32::MAX,
        joined: (0..MEMBERS_MAX).map(id).collect(),
        left: (0..MEMBERS_MAX).map(|number| (id(number), LossReason::Dead(DeathReason::Silent))).collect(),
        founder: id(0),
        broken: vec![(members as u32 - 1, members as u32 - 2); BROKEN_LINKS_MAX],
        incumbents: members as u32,
        ancestors: vec![Ancestor { founder: id(0), epoch: COUNT_MAX }; ANCESTORS_MAX],
        ballots: (0..BALLOT_KINDS_MAX).map(|at| (BallotKind(u32::MAX - at as u32), farthest())).collect(),
    }
}

#[test]
fn the_largest_epoch_fits() {
    carried(&ToPeer::Epoch(largest_record()));
    // So does the largest group, if its members say little of themselves.
    let members = MEMBERS_MAX;
    let roster = (0..members).map(brief).collect();
    let ring = (0..members as u32).collect();
    carried(&ToPeer::Epoch(EpochRecord { roster, ring, broken: Vec::new(), ..largest_record() }));
}

#[test]
fn the_largest_resume_fits() {
    let record = largest_record();
    let texts = || "t".repeat(BRIEF_TEXT_BYTES_MAX);
    let deviating = (0..BRIEF_NAMED_MAX).map(id).collect();
    let mismatch = AbortReason::Mismatch { deviating, theirs: texts(), common: texts() };
    // As many scopes as list all the members that may be listed, and then as many tags as there may be.
    let scopes = SCOPES_MEMBERS_MAX / SCOPE_MEMBERS_MAX;
    let tags = (0..TAGS_MAX).map(|at| {
        let scope =
            if at < scopes { Scope::Members((0..SCOPE_MEMBERS_MAX).map(id).collect()) } else { Scope::Whole };
        let key =
            OpKey { group: u32::MAX, epoch: COUNT_MAX, scope, tag: u64::MAX - at as u64, seq: COUNT_MAX };
        let counts = vec![u64::MAX; OPEN_TENSORS_MAX / TAGS_MAX];
        let types = (0..counts.len()).map(|at| DataType::ALL[at % 2]).collect();
        let fingerprint = Fingerprint {
            root: Some(id(0)),
            min_world: u32::MAX,
            data_types: Some(types),
            ..Fingerprint::new(OpKind::AllReduceMany, DataType::F32, counts)
        };
        let learned = vec![(key.clone(), Verdict::Abort(mismatch.clone())); LEARNED_MAX + 1];
        TagReport { learned, open: Some(OpenVote { key, fingerprint, timeout_ms: u64::MAX, complete: true }) }
    });
    let resume = Resume {
        registration: registration(verbose(0), u32::MAX),
        generation: u32::MAX,
        term: COUNT_MAX,
        tags: tags.collect(),
        ballots: (0..BALLOT_KINDS_MAX)
            .map(|at| BallotReport {
                kind: BallotKind(u32::MAX - at as u32),
                tally: farthest(),
                outcome: Some(vec![0xff; OUTCOME_BYTES_MAX]),
                wish: Some(vec![0xff; WISH_BYTES_MAX]),
            })
            .collect(),
        record,
        behind_from: Some(COUNT_MAX),
        remembers_from: COUNT_MAX,
        revision: Some(COUNT_MAX),
    };
    let bytes = carried(&ToCoordinator::Resume(resume));
    assert!(bytes > FRAME_BYTES_MAX / 2, "{bytes} bytes are not the largest resume");
}

#[test]
fn the_longest_annals_fit() {
    let text = "\u{10ffff}".repeat(INCIDENT_CHARS_MAX);
    let all = vec![Incident { at_us: u64::MAX, text }; INCIDENTS_MAX];
    carried(&ToCoordinator::Remembered(all.clone()));
    carried(&ToPeer::Annals(all));
    let more = vec![Incident { at_us: 0, text: String::new() }; INCIDENTS_MAX + 1];
    assert!(ToCoordinator::Remembered(more).check().is_err());
    let longer = Incident { at_us: 0, text: "x".repeat(INCIDENT_CHARS_MAX + 1) };
    assert!(ToPeer::Annals(vec![longer]).check().is_err());
}

/// A resume within every limit hit the assert of the frame; the session's task panicked, and nobody heard of it.
#[test]
fn a_peer_of_many_scopes_resumes() {
    let members: Vec<_> = (0..64).map(brief).collect();
    let ms = Duration::from_millis;
    let mut session = Session::new(session::Config::preset(Preset::Local), registration(brief(0), 1));
    session.handle_connect_call(NOW, 1, NOW + ms(60_000));
    session.handle_connected(NOW);
    session.handle_message(NOW, ToPeer::Registered { term: 1 });
    let record = EpochRecord {
        group: 0,
        epoch: 1,
        ring: (0..64).collect(),
        roster: members.clone(),
        joined: Vec::new(),
        left: Vec::new(),
        ballots: Vec::new(),
        broken: Vec::new(),
        incumbents: 0,
        ..largest_record()
    };
    session.handle_message(NOW, ToPeer::Epoch(record));
    let (ballot, end) = (BallotId { kind: admission::KIND, number: 1 }, BallotEnd::Agreed(Vec::new()));
    session.handle_message(NOW, ToPeer::BallotEnded { ballot, end, run_epoch: 1, global_world_size: 64 });
    // Twelve parts of the group, ten tags each, ten calls under each; the last ones are open.
    for without in 1..13 {
        let part = members.iter().map(|info| info.id).filter(|peer| *peer != id(without)).collect();
        let scope = Scope::Members(part);
        for (tag, seq) in (0..10).flat_map(|tag| (0..10).map(move |seq| (tag, seq))) {
            let fingerprint = Fingerprint::new(OpKind::AllReduce, DataType::F32, [8]);
            let (scope, deadline) = (scope.clone(), NOW + ms(60_000));
            let op = Op { scope: scope.clone(), tag, fingerprint, deadline, members: None };
            let call = session.handle_op_call(NOW, op);
            session.handle_performed(NOW, call, PerformResult::Done);
            if seq < 9 {
                let key = OpKey { group: 0, epoch: 1, scope, tag, seq };
                let verdict = Verdict::Commit { pending: 0 };
                session.handle_message(NOW, ToPeer::Verdict { key, verdict });
            }
        }
    }
    while session.poll_action().is_some() {}
    session.handle_disconnected(NOW);
    session.handle_timeout(NOW + ms(600));
    session.handle_connected(NOW + ms(600));
    let resume = std::iter::from_fn(|| session.poll_action()).find_map(|action| match action {
        session::Action::Send(message @ ToCoordinator::Resume(_)) => Some(message),
        _ => None,
    });
    let bytes = carried(&resume.expect("it resumes"));
    assert!(bytes > 1 << 20, "{bytes} bytes");
}

/// The epoch of a very large group hit the same assert.
#[test]
fn peers_come_in_until_the_roster_is_full_and_all_hear_of_it() {
    let mut run = Run::new(coordinator::Config::preset(Preset::Local));
    let full = ROSTER_BYTES_MAX / minicbor::len(verbose(0));
    let mut refused = None;
    for number in 0..MEMBERS_MAX {
        let at = ConnectionId(number as u64 + 1);
        let message = ToCoordinator::Register(registration(verbose(number), full as u32), 1, 0);
        run.handle_message(NOW, at, id(number), message);
        let mut told = std::iter::from_fn(|| run.poll_action());
        if number + 1 == full {
            let epoch = told.find_map(|action| match action {
                Action::SendAll(all, message @ ToPeer::Epoch(_)) if all.len() == full => Some(message),
                _ => None,
            });
            assert!(carried(&epoch.expect("all are admitted")) > 1 << 20);
            continue;
        }
        let kicked = told.find_map(|action| match action {
            Action::Send(_, ToPeer::Kicked { reason, text, .. }) => Some((reason, text)),
            _ => None,
        });
        if kicked.is_some() {
            refused = Some((number, kicked));
            break;
        }
    }
    let Some((number, Some((KickReason::Limit, text)))) = refused else { panic!("{refused:?}") };
    assert_eq!(number, full);
    assert!(text.contains("use shorter ones"), "{text}");
    // A status of all of them fits as well.
    let status = run.status(NOW).to_json();
    assert!(status.len() <= STATUS_BYTES_MAX, "{} bytes", status.len());
    carried(&ToPeer::Status(status));
}
