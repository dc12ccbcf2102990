//! One sample of everything that travels.

use super::{register, store, sync};
use crate::ballot::optimise::{Brought, Promise, RingOutcome, RingWish, Told};
use crate::collective::frame::{FrameKind, Header, OpName};
use crate::collective::{DataType, Fingerprint, Layout, OpKey, OpKind, Quantisation, ReduceOp, Scope};
use crate::id::PeerId;
use crate::state::election::Strategy;
use crate::wire::control::*;
use crate::wire::hatch::{HATCH_NAME_BYTES, HATCH_PROOF_BYTES, Hatch};
use crate::wire::hello::{Hello, Versions};
use crate::wire::inspect::{Inspect, Inspected};
use crate::wire::membership::{Body, DeathReason, MemberInfo, Packet, Record, SignOfLife, Silence};
use crate::wire::{self, Message};
use minicbor::{Decode, Encode};
use std::fmt::Debug;
use std::sync::Arc;

/// What a reader does with a variant that it does not know; `docs/protocol/wire.md` says it to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// The item that holds it is left out, the rest counts.
    Skip,
    /// It is read as one that says "not known".
    Vague,
    /// The message is refused, and the two sides part in words.
    Part,
}

/// One type that travels.
pub(super) struct Family {
    /// Its name.
    pub(super) name: &'static str,
    /// What is done with unknown variants; none for types without variants.
    pub(super) policy: Option<Policy>,
    /// What a value is called, and its bytes.
    samples: Vec<(String, Vec<u8>)>,
    /// Reads bytes and writes what was read.
    pub(super) reread: fn(&[u8]) -> Result<Vec<u8>, String>,
    /// Whether the reader knows that variant.
    pub(super) knows: fn(u8) -> bool,
}

impl Family {
    /// A name and the bytes of each sample.
    pub(super) fn lines(&self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let name = |at: usize, word: &str| {
            let before = self.samples[..at].iter().filter(|(other, _)| other == word).count();
            let number = if before == 0 { String::new() } else { format!(".{}", before + 1) };
            format!("{}.{word}{number}", self.name)
        };
        self.samples.iter().enumerate().map(move |(at, (word, bytes))| (name(at, word), bytes.clone()))
    }
}

fn family<T>(name: &'static str, policy: Option<Policy>, samples: Vec<T>) -> Family
where
    T: Debug + Encode<()> + for<'b> Decode<'b, ()>,
{
    let word = |value: &T| {
        let text = format!("{value:?}");
        text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
    };
    let bytes = |value: &T| minicbor::to_vec(value).expect("a Vec takes every byte");
    Family {
        name,
        policy,
        samples: samples.iter().map(|value| (word(value), bytes(value))).collect(),
        reread: |bytes| {
            let value: T = minicbor::decode(bytes).map_err(|error| error.to_string())?;
            minicbor::to_vec(value).map_err(|error| error.to_string())
        },
        knows: |variant| {
            let nothing = [0x82, 0x18, variant, 0x80];
            !matches!(minicbor::decode::<T>(&nothing), Err(error) if error.is_unknown_variant())
        },
    }
}

/// A family that is a message of its own: its samples also keep every limit.
fn message<T>(name: &'static str, policy: Option<Policy>, samples: Vec<T>) -> Family
where
    T: Debug + PartialEq + Message,
{
    samples.iter().for_each(|sample| {
        assert_eq!(wire::decode::<T>(&wire::encode(sample)).as_ref(), Ok(sample));
    });
    Family {
        reread: |bytes| {
            let value: T = wire::decode(bytes).map_err(|error| error.to_string())?;
            Ok(wire::encode(&value))
        },
        ..family(name, policy, samples)
    }
}

pub(super) fn peer(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

pub(super) fn info() -> MemberInfo {
    MemberInfo {
        id: peer(7),
        address: "[2001:db8::7]:29400".parse().expect("an address"),
        closed_port: 29_401,
        name: "host-7".to_owned(),
        meta: b"rank=7".to_vec(),
    }
}

pub(super) fn key() -> OpKey {
    OpKey { group: 1, epoch: 2, scope: Scope::Members(vec![peer(1), peer(2)]), tag: 3, seq: 4 }
}

pub(super) fn call() -> Fingerprint {
    Fingerprint {
        kind: OpKind::AllReduceMany,
        data_type: DataType::BF16,
        counts: vec![24, 1 << 33],
        op: ReduceOp::Avg,
        retry: true,
        min_world: 2,
        quantisation: Some(Quantisation::Int4),
        root: Some(peer(3)),
        layouts: Layout::new(&[1, 0]).map(|layout| vec![layout, Layout::default()]),
        data_types: Some(vec![DataType::BF16, DataType::F32]),
        step: Some(7),
    }
}

fn witness() -> Witness {
    Witness { agent: peer(3), process: ProcessName { pid: 4_711, start: 1 << 40 } }
}

pub(super) fn registration() -> Registration {
    let session = SessionId([9; 16]);
    Registration { info: info(), group: 1, session, min_world: 2, encryption: Encryption::Off, witness: None }
}

pub(super) fn epoch() -> EpochRecord {
    EpochRecord {
        run_epoch: 9,
        group: 1,
        epoch: 2,
        roster: vec![info(), MemberInfo { id: peer(8), ..info() }],
        ring: vec![1, 0],
        decider: Decider::Coordinator,
        global_world_size: 5,
        joined: vec![peer(7)],
        left: vec![(peer(6), LossReason::Dead(DeathReason::Silent)), (peer(5), LossReason::Left)],
        founder: peer(4),
        broken: vec![(0, 1)],
        incumbents: 1,
        ancestors: vec![Ancestor { founder: peer(3), epoch: 1 }],
        ballots: vec![(BallotKind(0), tally())],
    }
}

fn incident() -> Incident {
    Incident { at_us: 1_794_906_000_000_000, text: "host-7 07070707 joined".to_owned() }
}

fn ballot() -> BallotId {
    BallotId { kind: BallotKind(0), number: 9 }
}

fn tally() -> Tally {
    Tally { ended: 3, agreed: 2 }
}

fn ballot_report() -> BallotReport {
    let (outcome, wish) = (Some(b"outcome".to_vec()), Some(b"wish".to_vec()));
    BallotReport { kind: BallotKind(0), tally: tally(), outcome, wish }
}

pub(super) fn ballot_ended(end: BallotEnd) -> ToPeer {
    ToPeer::BallotEnded { ballot: ballot(), end, run_epoch: 9, global_world_size: 5 }
}

fn ballot_ends() -> Vec<BallotEnd> {
    vec![
        BallotEnd::Agreed(b"outcome".to_vec()),
        BallotEnd::TimedOut(vec![waiting()]),
        BallotEnd::Void,
        BallotEnd::Mismatch { others: "all_reduce".to_owned() },
        BallotEnd::Unknown,
        BallotEnd::GivenUp(waiting()),
    ]
}

fn ring_wishes() -> Vec<RingWish> {
    let link =
        Brought { peer: peer(2), sends: 125_000_000, receives: 12_500_000, round_trip_us: 900, age_ms: 70 };
    let (site, trouble) = ("berlin".to_owned(), Some("silent".to_owned()));
    vec![
        RingWish::Begin { site: site.clone(), known: vec![link] },
        RingWish::Measured { site, found: vec![link], failed: vec![peer(3)], trouble },
    ]
}

fn ring_outcomes() -> Vec<RingOutcome> {
    let promise = Some(Promise { rate: 12_500_000, around_us: 1_800 });
    let told = Told { from: 0, to: 1, rate: 12_500_000, round_trip_us: 900, age_ms: 70 };
    vec![
        RingOutcome::Measure {
            members: vec![peer(1), peer(2), peer(3)],
            heats: vec![vec![(0, 1)], vec![(2, 0)]],
        },
        RingOutcome::Ring {
            ring: vec![peer(2), peer(1)],
            links: vec![told],
            promise,
            before: None,
            improved: true,
            moonshot: false,
            measured_pairs: 1,
        },
        RingOutcome::Failed { why: "why".to_owned() },
        RingOutcome::Again,
    ]
}

pub(super) fn open_vote() -> OpenVote {
    OpenVote { key: key(), fingerprint: call(), timeout_ms: 60_000, complete: true }
}

pub(super) fn resume() -> Resume {
    Resume {
        registration: registration(),
        generation: 3,
        term: 4,
        record: epoch(),
        tags: vec![TagReport {
            learned: vec![(key(), Verdict::Commit { pending: 1 })],
            open: Some(open_vote()),
        }],
        ballots: vec![ballot_report()],
        remembers_from: 1,
        behind_from: Some(1),
        revision: Some(1_000),
    }
}

fn waiting() -> Waiting {
    let (name, health) = ("host-1".to_owned(), "stalled".to_owned());
    Waiting { peer: peer(1), name, health, last_call: "all_reduce".to_owned(), age_ms: 70 }
}

fn to_coordinator() -> Vec<ToCoordinator> {
    let (group, epoch, from, to) = (1, 2, peer(1), peer(2));
    let error = "no route to host".to_owned();
    vec![
        ToCoordinator::Register(registration(), 3, 4),
        ToCoordinator::Resume(resume()),
        ToCoordinator::Connected { group, epoch },
        ToCoordinator::LinkBroken { group, epoch, from, to, dialling: true, error: error.clone() },
        ToCoordinator::Initiate { key: key(), fingerprint: call(), timeout_ms: 60_000 },
        ToCoordinator::Complete { key: key() },
        ToCoordinator::Refuse { key: key(), reason: Refusal::Deadline },
        ToCoordinator::Acknowledge { key: key() },
        ToCoordinator::Leave { for_good: true },
        ToCoordinator::AskStatus,
        ToCoordinator::Promise { term: 5 },
        ToCoordinator::Redialled { group, to, error: Some(error) },
        ToCoordinator::Redialled { group, to, error: None },
        ToCoordinator::LinkSpeed(group, LinkSpeed { to, rate: 12_500_000, round_trip_us: 900 }),
        ToCoordinator::Remembered(vec![incident()]),
        ToCoordinator::Prepared { group, number: 7, error: Some("refused".to_owned()) },
        ToCoordinator::Vote { ballot: ballot(), wish: b"wish".to_vec() },
        ToCoordinator::TakeBack { ballot: ballot() },
        ToCoordinator::Expired { ballot: ballot() },
        ToCoordinator::Register(Registration { witness: Some(witness()), ..registration() }, 3, 4),
        ToCoordinator::Watch { process: witness().process },
        ToCoordinator::Exited { process: witness().process },
    ]
}

fn to_peer() -> Vec<ToPeer> {
    let (group, term, run_epoch, global_world_size) = (1, 4, 9, 5);
    let verdict = |verdict| ToPeer::Verdict { key: key(), verdict };
    vec![
        ToPeer::Registered { term },
        ToPeer::Resumed { term },
        ToPeer::Epoch(epoch()),
        verdict(Verdict::Commit { pending: 2 }),
        verdict(Verdict::Abort(AbortReason::Timeout(vec![waiting()]))),
        ToPeer::Proceed { group, epoch: 2 },
        ToPeer::Kicked { reason: KickReason::Breach, text: "why".to_owned(), term },
        ToPeer::Status("{}".to_owned()),
        ToPeer::Denied { key: key(), peer: peer(1), tags: 1_024, listed: 3 },
        ToPeer::World { run_epoch, global_world_size },
        ToPeer::Redial { group, to: peer(2), address: info().address },
        ToPeer::Prepare { record: epoch(), number: 7 },
        ToPeer::LinkSlowed { group, from: peer(1), to: peer(2), before: 12_500_000, rate: 1_250_000 },
        ToPeer::Annals(vec![incident()]),
        ToPeer::CalledLast { key: key(), peer: peer(1), behind_ms: 3_100 },
        ballot_ended(BallotEnd::Agreed(b"outcome".to_vec())),
    ]
}

fn hatches() -> Vec<Hatch> {
    let [from, to] = ["127.0.0.1:41000", "127.0.0.1:42000"].map(|text| text.parse().expect("an address"));
    let open =
        Hatch::Open { name: [3; HATCH_NAME_BYTES].into(), proof: [4; HATCH_PROOF_BYTES].into(), from, to };
    vec![Hatch::None, open, Hatch::Through, Hatch::Stays]
}

fn inspected() -> Vec<Inspected> {
    let text = || "{}".to_owned();
    vec![Inspected::View(text()), Inspected::Flight(text()), Inspected::Refused("too often".to_owned())]
}

fn records() -> Vec<Record> {
    let (member, incarnation) = (peer(8), 2);
    let reason = DeathReason::Silent;
    vec![
        Record::Alive { info: Arc::new(info()), incarnation: 3 },
        Record::Suspect { member, incarnation, accuser: peer(1), kind: Silence::Refused, age_ms: 90 },
        Record::Vouch {
            member,
            incarnation,
            voucher: peer(2),
            kind: SignOfLife::Kernel,
            age_ms: 120,
            silent_ms: 4_000,
        },
        Record::Dead { member, incarnation, reason, accusers: vec![peer(1), peer(2)] },
        Record::Leave { member, incarnation },
        Record::Out { member, incarnation, reason, age_ms: 700 },
    ]
}

fn bodies() -> Vec<Body> {
    vec![
        Body::Ping { probe: 1, wants_table: true },
        Body::Ack { probe: u64::MAX },
        Body::PingReq { probe: 5, target: peer(3) },
        Body::IndirectAck { probe: 5, answered: false },
    ]
}

fn death_reasons() -> Vec<DeathReason> {
    use DeathReason::*;
    vec![Exited, Refused, Silent, SilentTooLong, StalledTooLong, Deaf, Evicted]
}

fn loss_reasons() -> Vec<LossReason> {
    use LossReason::*;
    vec![
        Left,
        Disconnected,
        Killed,
        NotResumed,
        Dead(DeathReason::Silent),
        Kicked,
        Unreachable,
        Deviated,
        NotKnown,
    ]
}

fn abort_reasons() -> Vec<AbortReason> {
    let (from, to) = (peer(1), peer(2));
    let (theirs, common) = ("barrier".to_owned(), "all_reduce".to_owned());
    vec![
        AbortReason::PeersLost(loss_reasons().into_iter().map(|reason| (peer(3), reason)).collect()),
        AbortReason::LinkBroken { from, to, error: "reset".to_owned() },
        AbortReason::Timeout(vec![waiting()]),
        AbortReason::Mismatch { deviating: vec![from], theirs, common },
        AbortReason::Cancelled { by: to },
        AbortReason::Void,
        AbortReason::NoPath { from, to },
    ]
}

fn refusals() -> Vec<Refusal> {
    let (from, to) = (peer(1), peer(2));
    vec![
        Refusal::Deadline,
        Refusal::Cancelled,
        Refusal::Mismatch { peer: from },
        Refusal::Link { from, to, error: "reset".to_owned() },
    ]
}

fn kick_reasons() -> Vec<KickReason> {
    use KickReason::*;
    vec![Breach, Duplicate, Evicted, Limit, Superseded, Encryption, NotKnown]
}

fn op_kinds() -> Vec<OpKind> {
    use OpKind::*;
    vec![
        Barrier,
        AllReduce,
        AllReduceMany,
        AllGather,
        ReduceScatter,
        Broadcast,
        Reduce,
        Gather,
        Scatter,
        AllToAll,
        SendReceive,
    ]
}

/// Headers of data frames are no CBOR; neither are the digests in them, which both ends must compute alike.
fn data_frames() -> Family {
    let names = [OpName::from(&key()), OpName::transfer(1, (peer(1), peer(2)), 3, 4)];
    let header = |kind, op, length, checksum| Header {
        kind,
        length,
        op,
        fingerprint: call().digest(),
        lap: 7,
        step: 2,
        checksum,
    };
    let headers = names.into_iter().flat_map(|op| {
        [
            header(FrameKind::Block, op, 640, Some(0xfeed)),
            header(FrameKind::Credit, op, 0, None),
            header(FrameKind::Ask, op, 0, None),
        ]
    });
    Family {
        name: "Header",
        policy: None,
        samples: headers.map(|header| (format!("{:?}", header.kind), header.to_bytes().to_vec())).collect(),
        reread: |bytes| {
            let bytes = bytes.try_into().map_err(|_| "not the length of a header".to_owned())?;
            let header = Header::parse(bytes).map_err(|error| error.to_string())?;
            Ok(header.to_bytes().to_vec())
        },
        knows: |_| false,
    }
}

/// Everything that travels. The order is that of the page.
pub(super) fn families() -> Vec<Family> {
    use Policy::{Part, Skip, Vague};
    let hello = Hello {
        versions: Versions::CURRENT,
        run: "run".parse().expect("a run id"),
        peer: peer(1),
        software: "outlast".to_owned(),
        plane: "outlast-control/1".to_owned(),
        key_is_kept: true,
        standing: None,
    };
    let bare = Fingerprint::new(OpKind::Barrier, DataType::U8, []);
    let packet = |body| Packet { body, records: records() };
    vec![
        message("Hello", None, vec![hello]),
        message("ToCoordinator", Some(Part), to_coordinator()),
        message("ToPeer", Some(Part), to_peer()),
        family("Registration", None, vec![registration()]),
        family("Resume", None, vec![resume()]),
        family("TagReport", None, resume().tags),
        family("OpenVote", None, vec![open_vote()]),
        family("EpochRecord", None, vec![epoch()]),
        family("Waiting", None, vec![waiting()]),
        family("BallotReport", None, vec![ballot_report()]),
        family("BallotEnd", Some(Part), ballot_ends()),
        message("RingWish", Some(Part), ring_wishes()),
        message("RingOutcome", Some(Part), ring_outcomes()),
        family(
            "Verdict",
            Some(Part),
            vec![Verdict::Commit { pending: 2 }, Verdict::Abort(AbortReason::Void)],
        ),
        family("AbortReason", Some(Part), abort_reasons()),
        family("LossReason", Some(Vague), loss_reasons()),
        family("KickReason", Some(Vague), kick_reasons()),
        family("Refusal", Some(Vague), refusals()),
        family("Encryption", Some(Part), vec![Encryption::On, Encryption::Off]),
        family("Decider", Some(Part), vec![Decider::Coordinator]),
        family("OpKey", None, vec![key()]),
        family("Scope", Some(Part), vec![Scope::Whole, key().scope]),
        family("Fingerprint", None, vec![call(), bare]),
        family("OpKind", Some(Part), op_kinds()),
        family("DataType", Some(Part), DataType::ALL.to_vec()),
        family("ReduceOp", Some(Part), ReduceOp::ALL.to_vec()),
        family("Quantisation", Some(Part), Quantisation::ALL.to_vec()),
        message("Packet", None, bodies().into_iter().map(|body| packet(Some(body))).collect()),
        family("Body", Some(Skip), bodies()),
        family("Record", Some(Skip), records()),
        message("ToRegister", Some(Part), register::to_register()),
        message("FromRegister", Some(Part), register::from_register()),
        family("Fate", Some(Part), register::fates()),
        message("RendezvousState", None, register::states()),
        message("RendezvousWish", None, register::wishes()),
        message("Inspect", Some(Part), vec![Inspect::View, Inspect::Flight]),
        message("Inspected", Some(Part), inspected()),
        message("Hatch", Some(Part), hatches()),
        message("Wish", Some(Part), sync::wishes()),
        message("Outcome", Some(Part), sync::outcomes()),
        family("Strategy", Some(Part), Strategy::ALL.to_vec()),
        family("NoDonor", Some(Vague), sync::no_donors()),
        family("Offer", None, Strategy::ALL.map(sync::offer).to_vec()),
        family("Elected", None, vec![sync::elected()]),
        family("Healed", None, vec![sync::healed()]),
        message("Hop", Some(Part), store::hops()),
        message("Letter", Some(Part), store::letters()),
        message("ToRegistrar", Some(Part), store::to_registrar()),
        message("FromRegistrar", Some(Part), store::from_registrar()),
        message("FromClient", Some(Part), store::from_client()),
        message("ToClient", Some(Part), store::to_client()),
        message("Datagram", Some(Part), store::datagrams()),
        family("Operation", Some(Part), store::operations()),
        family("Answer", Some(Part), store::answers()),
        family("Objection", Some(Part), store::objections()),
        family("Space", Some(Part), store::spaces()),
        family("StoreView", None, vec![store::view()]),
        family("Silence", Some(Skip), vec![Silence::Silent, Silence::Refused]),
        family("SignOfLife", Some(Skip), vec![SignOfLife::Acked, SignOfLife::Heard, SignOfLife::Kernel]),
        family("DeathReason", Some(Skip), death_reasons()),
        data_frames(),
    ]
}
