//! Makes the corpus: real messages of each kind, and the ways to get them wrong that are known.

use super::targets;
use outlast_proto::ballot::admission;
use outlast_proto::ballot::sync::{Outcome, Wish};
use outlast_proto::collective::frame::{FrameKind, Header, OpName};
use outlast_proto::collective::{OpKey, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::limits::{
    BLOCK_BYTES_MAX, FRAME_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, REGISTER_NAME_BYTES_MAX, TEXT_BYTES_MAX,
};
use outlast_proto::rendezvous::{Node, Seat, State};
use outlast_proto::state::Digest;
use outlast_proto::state::election::{Elected, Healed, NoDonor, Offer, Strategy};
use outlast_proto::wire::control::{
    AbortReason, Ancestor, BallotEnd, BallotId, Decider, Encryption, EpochRecord, Incident, KickReason,
    LossReason, Registration, SessionId, Tally, ToCoordinator, ToPeer, Verdict, Waiting,
};
use outlast_proto::wire::encode;
use outlast_proto::wire::frame;
use outlast_proto::wire::hatch::{HATCH_NAME_BYTES, HATCH_PROOF_BYTES, Hatch};
use outlast_proto::wire::hello::{Hello, Standing, Version, Versions};
use outlast_proto::wire::inspect::{Inspect, Inspected};
use outlast_proto::wire::membership::{Body, DeathReason, MemberInfo, Packet, Record, SignOfLife, Silence};
use outlast_proto::wire::register::{Fate, FromRegister, Snapshot, ToRegister, Token};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) fn write() {
    for (target, seeds) in [
        ("membership_packet", packets()),
        ("hello", hellos()),
        ("frame", streams()),
        ("data_frame", data_frames()),
        ("to_coordinator", to_coordinator()),
        ("to_peer", to_peer()),
        ("sync_wish", sync_wishes()),
        ("sync_outcome", sync_outcomes()),
        ("to_register", to_register()),
        ("from_register", from_register()),
        ("inspect", inspections()),
        ("hatch", hatches()),
        ("rendezvous_state", rendezvous_states()),
        ("datagram", datagrams()),
    ] {
        for (name, bytes) in &seeds {
            put(target, name, bytes);
        }
    }
    for (name, text) in secrets() {
        put("secret_text", name, text.as_bytes());
    }
    for (name, text) in [
        ("valid-plain", "llama-70b_2.1"),
        ("valid-one-letter", "a"),
        ("invalid-space", "a b"),
        ("invalid-empty", ""),
        ("server-name", "nrwgc3lbfu3tayrpgi.run.outlast"),
    ] {
        put("run_id", name, text.as_bytes());
    }
    put("run_id", "invalid-long", "r".repeat(65).as_bytes());
}

/// Seeds are only ever added: an old one is what an older peer sends.
fn put(target: &str, name: &str, bytes: &[u8]) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let path = folder.join(name);
    if !path.exists() {
        std::fs::write(path, bytes).expect("the seed can be written");
    }
}

fn peer(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn info(name: &str, meta: Vec<u8>) -> Arc<MemberInfo> {
    let address = "[2001:db8::7]:29400".parse().expect("an address");
    Arc::new(MemberInfo { id: peer(7), address, closed_port: 29_401, name: name.to_owned(), meta })
}

fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let packet = |body, records| encode(&Packet { body, records });
    let alive = Record::Alive { info: info("host-7", b"rank=7".to_vec()), incarnation: 3 };
    let largest = info(&"n".repeat(NAME_BYTES_MAX), vec![0xff; META_BYTES_MAX]);
    let (member, incarnation) = (peer(8), 2);
    let every_record = vec![
        alive.clone(),
        Record::Suspect { member, incarnation, accuser: peer(1), kind: Silence::Refused, age_ms: 90 },
        Record::Vouch {
            member,
            incarnation,
            voucher: peer(2),
            kind: SignOfLife::Kernel,
            age_ms: 120,
            silent_ms: 4_000,
        },
        Record::Dead { member, incarnation, reason: DeathReason::Silent, accusers: vec![peer(1), peer(2)] },
        Record::Leave { member: peer(9), incarnation: 0 },
    ];
    let ping = packet(Some(Body::Ping { probe: 1, wants_table: true }), vec![alive]);
    let mut trailing = ping.clone();
    trailing.push(0);
    vec![
        ("valid-ping-join", ping.clone()),
        ("valid-ack", packet(Some(Body::Ack { probe: u64::MAX }), Vec::new())),
        ("valid-ping-req", packet(Some(Body::PingReq { probe: 5, target: peer(3) }), Vec::new())),
        ("valid-indirect-ack", packet(Some(Body::IndirectAck { probe: 5, answered: false }), Vec::new())),
        ("valid-every-record", packet(None, every_record)),
        ("valid-largest-member", packet(None, vec![Record::Alive { info: largest, incarnation: u32::MAX }])),
        ("invalid-cut-off", ping[..ping.len() - 1].to_vec()),
        ("invalid-trailing", trailing),
        ("invalid-array-of-2-pow-64", vec![0x82, 0xf6, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    ]
}

fn hatches() -> Vec<(&'static str, Vec<u8>)> {
    let [from, to] = ["[::1]:41000", "[::1]:42000"].map(|text| text.parse().expect("an address"));
    let open =
        Hatch::Open { name: [3; HATCH_NAME_BYTES].into(), proof: [4; HATCH_PROOF_BYTES].into(), from, to };
    let open = encode(&open);
    vec![
        ("valid-none", encode(&Hatch::None)),
        ("valid-open", open.clone()),
        ("valid-through", encode(&Hatch::Through)),
        ("valid-stays", encode(&Hatch::Stays)),
        ("invalid-cut-off", open[..open.len() - 1].to_vec()),
        ("invalid-variant", vec![0x82, 0x04, 0x80]),
    ]
}

fn hellos() -> Vec<(&'static str, Vec<u8>)> {
    let hello = |newest| Hello {
        versions: Versions::of(newest),
        run: "fuzz".parse().expect("a run id"),
        peer: peer(1),
        software: "outlast 0.1.0".to_owned(),
        plane: "outlast-health/1".to_owned(),
        key_is_kept: false,
        standing: None,
    };
    let current = encode(&hello(Version { major: 1, minor: 0 }));
    let mut future = current.clone();
    future[0] += 1;
    future.extend_from_slice(&[0x82, 0x01, 0x61, b'x']);
    vec![
        ("valid-1.0", current.clone()),
        ("valid-2.7", encode(&hello(Version { major: 2, minor: 7 }))),
        (
            "valid-with-a-kept-key",
            encode(&Hello { key_is_kept: true, ..hello(Version { major: 1, minor: 0 }) }),
        ),
        (
            "valid-of-one-that-stands-by",
            encode(&Hello {
                key_is_kept: true,
                standing: Some(Standing { term: 7, leads: false, leader: "10.0.0.1:29400".to_owned() }),
                ..hello(Version { major: 2, minor: 0 })
            }),
        ),
        ("valid-with-a-field-of-the-future", future),
        ("invalid-cut-off", current[..20].to_vec()),
        (
            "invalid-text-of-2-gigabytes",
            vec![0x85, 0x82, 0x82, 1, 0, 0x82, 1, 0, 0x7a, 0x7f, 0xff, 0xff, 0xff],
        ),
    ]
}

fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let stream = |piece: u8, payloads: &[&[u8]]| {
        let mut bytes = vec![piece];
        for payload in payloads {
            frame::append(payload, &mut bytes);
        }
        bytes
    };
    let mut too_long = vec![0];
    too_long.extend_from_slice(&(FRAME_BYTES_MAX as u32 + 1).to_be_bytes());
    let whole = stream(2, &[b"one", b"", b"three"]);
    vec![
        ("valid-in-pieces", whole.clone()),
        ("valid-at-once", stream(255, &[&[7; 200]])),
        ("invalid-cut-off", whole[..whole.len() - 1].to_vec()),
        ("invalid-too-long", too_long),
        ("invalid-empty", Vec::new()),
    ]
}

fn data_frames() -> Vec<(&'static str, Vec<u8>)> {
    let op = OpName { group: 1, epoch: 2, scope: 3, tag: 4, seq: 5 };
    let header = |kind, length, checksum| {
        Header { kind, length, op, fingerprint: 6, lap: 7, step: 8, checksum }.to_bytes().to_vec()
    };
    let block = header(FrameKind::Block, BLOCK_BYTES_MAX as u32, Some(9));
    let (mut foreign, mut too_long) = (block.clone(), block.clone());
    foreign[0] ^= 1;
    too_long[4..8].fill(0xff);
    vec![
        ("valid-block", block.clone()),
        ("valid-credit", header(FrameKind::Credit, 0, None)),
        ("valid-ask", header(FrameKind::Ask, 0, Some(9))),
        ("invalid-foreign", foreign),
        ("invalid-too-long", too_long),
        ("invalid-cut-off", block[..block.len() - 1].to_vec()),
    ]
}

fn op_key() -> OpKey {
    OpKey { group: 1, epoch: 2, scope: Scope::Members(vec![peer(1), peer(2)]), tag: 3, seq: 4 }
}

fn to_coordinator() -> Vec<(&'static str, Vec<u8>)> {
    let registration = Registration {
        info: (*info("host-7", Vec::new())).clone(),
        group: 1,
        session: SessionId([9; 16]),
        min_world: 2,
        encryption: Encryption::Off,
        witness: None,
    };
    let broken = ToCoordinator::LinkBroken {
        group: 1,
        epoch: 2,
        from: peer(1),
        to: peer(2),
        dialling: true,
        error: "no route to host".to_owned(),
    };
    let complete = encode(&ToCoordinator::Complete { key: op_key() });
    let vote = ToCoordinator::Vote { ballot: admission_ballot(), wish: admission::wish(4) };
    vec![
        ("valid-register", encode(&ToCoordinator::Register(registration, 1, 2))),
        ("valid-ballot-vote", encode(&vote)),
        ("valid-link-broken", encode(&broken)),
        ("valid-remembered", encode(&ToCoordinator::Remembered(incidents()))),
        ("valid-complete", complete.clone()),
        ("valid-leave", encode(&ToCoordinator::Leave { for_good: true })),
        ("invalid-cut-off", complete[..complete.len() - 1].to_vec()),
        ("invalid-array-of-2-pow-64", vec![0x82, 0x01, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    ]
}

fn inspections() -> Vec<(&'static str, Vec<u8>)> {
    let account = encode(&Inspected::View("{\"standing\":\"in\"}".to_owned()));
    vec![
        ("valid-ask-view", encode(&Inspect::View)),
        ("valid-ask-flight", encode(&Inspect::Flight)),
        ("invalid-cut-off", account[..account.len() - 1].to_vec()),
        ("valid-view", account),
        ("valid-flight", encode(&Inspected::Flight("{\"flight\":1}\n".to_owned()))),
        ("valid-refused", encode(&Inspected::Refused("ask again in 0.1 s".to_owned()))),
    ]
}

fn incidents() -> Vec<Incident> {
    let incident = |at_us, text: &str| Incident { at_us, text: text.to_owned() };
    vec![incident(1_794_906_000_000_000, "p3 was lost"), incident(1_794_906_000_000_001, "group 0: epoch 8")]
}

fn sync_wishes() -> Vec<(&'static str, Vec<u8>)> {
    let (outline, root) = (Digest::of(b"outline"), Digest::of(b"root"));
    let offer = |revision, strategy| Offer { revision, strategy, outline, root, was_agreed: true };
    let healed = Healed { keys: vec!["layer.0.weight".to_owned()], count: 3 };
    let done = encode(&Wish::Done(root, healed));
    vec![
        ("valid-offer", encode(&Wish::Offer(offer(Some(6), Strategy::SendOnly), Some(5)))),
        ("valid-offer-of-nothing", encode(&Wish::Offer(offer(None, Strategy::Popular), None))),
        ("valid-done", done.clone()),
        ("valid-failed", encode(&Wish::Failed(root, "no donor is left".to_owned()))),
        ("valid-apart", encode(&Wish::Apart(root))),
        ("invalid-cut-off", done[..done.len() - 1].to_vec()),
        ("invalid-of-the-future", vec![0x82, 0x18, 250, 0x80]),
    ]
}

fn sync_outcomes() -> Vec<(&'static str, Vec<u8>)> {
    let (outline, root) = (Digest::of(b"outline"), Digest::of(b"root"));
    let elected =
        Elected { last: Some(5), revision: 6, outline, root, unremembered: false, was_agreed: false };
    let healed = Healed { keys: vec!["layer.0.weight".to_owned()], count: 3 };
    let members = vec![peer(1), peer(2), peer(3)];
    let finished = encode(&Outcome::Finished { revision: 6, healed: vec![(peer(3), healed)], members });
    let reasons = vec![(peer(2), "it began again".to_owned())];
    let (donors, diverged) = (vec![peer(1), peer(2)], vec![peer(3)]);
    vec![
        ("valid-elected", encode(&Outcome::Elected { elected, donors, diverged })),
        ("valid-finished", finished.clone()),
        ("valid-failed", encode(&Outcome::Failed { last: None, reasons })),
        ("valid-no-donor", encode(&Outcome::NoDonor { last: Some(5), why: NoDonor::NothingToGive })),
        ("invalid-cut-off", finished[..finished.len() - 1].to_vec()),
        ("invalid-array-of-2-pow-64", vec![0x82, 0x00, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    ]
}

fn admission_ballot() -> BallotId {
    BallotId { kind: admission::KIND, number: 9 }
}

fn snapshot() -> Snapshot {
    let alive = ["host-1_7_0", "host-2_9_1"].map(str::to_owned).into();
    let notes = BTreeMap::new();
    Snapshot { value: Some(b"value".to_vec()), token: Token { era: 1, revision: 5 }, alive, notes }
}

fn noted() -> Snapshot {
    Snapshot { notes: [("host-1_7_0".to_owned(), wish().into())].into(), ..snapshot() }
}

fn wish() -> Vec<u8> {
    let node = Node { host: "host-1".to_owned(), pid: 7, local_id: 0 };
    encode(&outlast_proto::rendezvous::Wish { node, after: Some(3), address: "host-1:29400".to_owned() })
}

fn to_register() -> Vec<(&'static str, Vec<u8>)> {
    let open = |register: &str, note: Option<Vec<u8>>| ToRegister::Open {
        register: register.to_owned(),
        holder: "host-1_7_0".to_owned(),
        lease_ms: 15_000,
        brought: Some(snapshot()),
        note: note.map(Into::into),
    };
    let write = ToRegister::Write { expected: snapshot().token, value: b"next".to_vec() };
    vec![
        ("valid-open", encode(&open("rendezvous", None))),
        ("valid-open-note", encode(&open("rendezvous", Some(wish())))),
        ("valid-write", encode(&write)),
        ("valid-read", encode(&ToRegister::Read)),
        ("valid-beat", encode(&ToRegister::Beat { lease_ms: 15_000, note: None })),
        ("valid-beat-note", encode(&ToRegister::Beat { lease_ms: 15_000, note: Some(wish().into()) })),
        ("valid-release", encode(&ToRegister::Release)),
        ("invalid-name", encode(&open(&"r".repeat(REGISTER_NAME_BYTES_MAX + 1), None))),
        ("invalid-lease", encode(&ToRegister::Beat { lease_ms: u32::MAX, note: None })),
    ]
}

fn from_register() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("valid-told", encode(&FromRegister::Told(snapshot()))),
        ("valid-told-notes", encode(&FromRegister::Told(noted()))),
        ("valid-empty", encode(&FromRegister::Told(Snapshot::default()))),
        ("valid-written", encode(&FromRegister::Written(Fate::Lost, snapshot()))),
        ("valid-beaten", encode(&FromRegister::Beaten)),
        ("valid-refused", encode(&FromRegister::Refused("too many".to_owned()))),
        ("invalid-refused", encode(&FromRegister::Refused("r".repeat(TEXT_BYTES_MAX + 1)))),
    ]
}

fn rendezvous_states() -> Vec<(&'static str, Vec<u8>)> {
    let node = |host: &str| Node { host: host.to_owned(), pid: 7, local_id: 1 };
    let mut full = State::default();
    (full.round, full.complete, full.calls) = (3, true, 1);
    for (rank, host) in ["a", "b"].into_iter().enumerate() {
        full.participants.insert(node(host), Seat { rank: rank as u32, address: format!("{host}:1") });
        full.roster.push(node(host));
    }
    full.wait_list.insert(node("c"));
    full.redundancy_list.insert(node("d"));
    let mut twice = full.clone();
    twice.participants.values_mut().for_each(|seat| seat.rank = 0);
    vec![
        ("valid-empty", State::default().to_bytes()),
        ("valid-full", full.to_bytes()),
        ("invalid-ranks", twice.to_bytes()),
        // A version of the future, in a shape of its own.
        ("invalid-newer", vec![0x82, 0x18, 0x63, 0xf6]),
    ]
}

fn to_peer() -> Vec<(&'static str, Vec<u8>)> {
    let epoch = EpochRecord {
        run_epoch: 3,
        group: 1,
        epoch: 2,
        roster: vec![(*info("host-7", Vec::new())).clone()],
        ring: vec![0],
        decider: Decider::Coordinator,
        global_world_size: 1,
        joined: vec![peer(7)],
        left: vec![(peer(8), LossReason::Dead(DeathReason::Silent))],
        founder: peer(7),
        broken: vec![(0, 0)],
        incumbents: 1,
        ancestors: vec![Ancestor { founder: peer(8), epoch: 2 }],
        ballots: vec![(admission::KIND, Tally { ended: 2, agreed: 1 })],
    };
    let waiting = Waiting {
        peer: peer(1),
        name: "host-1".to_owned(),
        health: "stalled".to_owned(),
        last_call: "all_reduce".to_owned(),
        age_ms: 70,
    };
    let verdict = |verdict| encode(&ToPeer::Verdict { key: op_key(), verdict });
    let broken_ring = EpochRecord { ring: vec![1], ..epoch.clone() };
    let broken_link = EpochRecord { broken: vec![(0, 7)], ..epoch.clone() };
    let (ballot, end) = (admission_ballot(), BallotEnd::Agreed(b"so be it".to_vec()));
    let ended = ToPeer::BallotEnded { ballot, end, run_epoch: 3, global_world_size: 1 };
    let kicked = ToPeer::Kicked { reason: KickReason::Encryption, text: "other".to_owned(), term: 7 };
    vec![
        ("valid-epoch", encode(&ToPeer::Epoch(epoch))),
        ("valid-commit", verdict(Verdict::Commit { pending: 2 })),
        ("valid-timeout", verdict(Verdict::Abort(AbortReason::Timeout(vec![waiting])))),
        ("valid-kicked", encode(&kicked)),
        ("valid-ballot-ended", encode(&ended)),
        ("valid-annals", encode(&ToPeer::Annals(incidents()))),
        ("invalid-ring", encode(&ToPeer::Epoch(broken_ring))),
        ("invalid-link", encode(&ToPeer::Epoch(broken_link))),
    ]
}

fn datagrams() -> Vec<(&'static str, Vec<u8>)> {
    let seal = |peer, plaintext: &[u8]| {
        let mut sealed = Vec::new();
        targets::guard(peer, 11).seal(plaintext, &mut sealed);
        sealed
    };
    let data = seal(1, b"a packet");
    let mut altered = data.clone();
    altered[60] ^= 1;
    let mut newer = data.clone();
    newer[0] = 2;
    vec![
        ("valid-data", data.clone()),
        ("valid-data-long", seal(1, &[1; 1_000])),
        ("invalid-own-name", seal(2, b"a packet")),
        ("invalid-altered", altered),
        ("invalid-newer-version", newer),
        ("invalid-cut-off", data[..50].to_vec()),
    ]
}

fn secrets() -> Vec<(&'static str, String)> {
    let good = targets::SEED_SECRET;
    vec![
        ("valid-plain", good.to_owned()),
        ("valid-with-white-space", format!("  {good}\r\n")),
        ("invalid-checksum", good.replacen("a4dq", "b4dq", 1)),
        ("invalid-version", good.replacen("-1-", "-9-", 1)),
        ("invalid-cut-off", good[..40].to_owned()),
        ("invalid-password", "correct horse battery staple".to_owned()),
    ]
}
