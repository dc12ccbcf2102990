//! What a version of the future might add, made by hand: no software writes it yet.

use super::families::{
    Family, Policy, ballot_ended, call, epoch, families, key, open_vote, peer, registration, resume,
};
use super::register::snapshot;
use super::{store, sync};
use crate::ballot::optimise::{RingOutcome, RingWish};
use crate::ballot::sync::{Outcome, Wish};
use crate::collective::{DataType, Fingerprint, OpKey, OpKind, Quantisation, ReduceOp, Scope};
use crate::state::election::{NoDonor, Strategy};
use crate::wire::control::*;
use crate::wire::hatch::Hatch;
use crate::wire::inspect::{Inspect, Inspected};
use crate::wire::membership::{Body, DeathReason, Packet, Record, SignOfLife, Silence};
use crate::wire::register::{Fate, FromRegister, ToRegister};
use crate::wire::store::account::Datagram;
use crate::wire::store::client::{FromClient, ToClient};
use crate::wire::store::mesh::{Hop, Letter};
use crate::wire::store::operation::{Answer, Objection, Operation, Space};
use crate::wire::store::views::{FromRegistrar, ToRegistrar};
use crate::wire::{InvalidMessage, Message, decode};
use minicbor::Encode;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// No enum has more variants.
pub(super) const VARIANTS_TRIED: u8 = 200;
/// Variants that nobody knows: one with nothing in it, and one with a number, a text and a variant of its own.
const UNKNOWN: [&[u8]; 2] =
    [&[0x82, 0x18, 250, 0x80], &[0x82, 0x18, 251, 0x83, 0x01, 0x63, b'n', b'e', b'w', 0x82, 0x18, 252, 0x80]];
/// A field that nobody knows.
const FIELD: &[u8] = &[0x82, 0x18, 42, 0x63, b'n', b'e', b'w'];

/// Which variant these bytes are.
pub(super) fn variant_of(bytes: &[u8]) -> u8 {
    match bytes {
        [0x82, 0x18, variant, ..] | [0x82, variant @ 0..0x18, ..] => *variant,
        other => panic!("not a variant: {other:02x?}"),
    }
}

/// No struct or variant has as many fields.
const FIELDS: u8 = 20;

/// The same array of fields with one more behind all that this version knows. Optional ones at the end are not written;
/// in between they are nothing.
fn with_a_field(fields: &[u8]) -> Vec<u8> {
    let count = fields[0].wrapping_sub(0x80);
    assert!(count < FIELDS, "a short array, not {:#x}", fields[0]);
    let nothing = vec![0xf6; usize::from(FIELDS - count)];
    [&[0x80 + FIELDS + 1], &fields[1..], &nothing, FIELD].concat()
}

#[test]
fn fields_of_the_future_are_skipped() {
    for family in families().iter().filter(|family| family.name != "Header") {
        for (name, bytes) in family.lines() {
            let newer = match (family.policy, bytes[1]) {
                (None, _) => with_a_field(&bytes),
                (Some(_), 0x18) => [&bytes[..3], &with_a_field(&bytes[3..])].concat(),
                (Some(_), _) => [&bytes[..2], &with_a_field(&bytes[2..])].concat(),
            };
            assert_eq!((family.reread)(&newer).as_ref(), Ok(&bytes), "{name}");
        }
    }
}

/// A message in which a value is exchanged for one that nobody knows, and what is to become of it.
struct Carrier {
    /// Whose variant.
    family: &'static str,
    /// What becomes of each form of it: nothing, if all is well.
    wrong: Vec<String>,
}

/// Messages that hold `one` and the `other` value differ first in the number of the variant: there it is.
fn carrier<M, T>(
    family: &'static str,
    (one, other): (&T, &T),
    message: impl Fn(&T) -> M,
    expected: Option<&M>,
) -> Carrier
where
    M: Message + Debug + PartialEq,
    T: Encode<()>,
{
    let bytes = |message: M| minicbor::to_vec(message).expect("a Vec takes every byte");
    let (with_one, with_other) = (bytes(message(one)), bytes(message(other)));
    let differing = with_one.iter().zip(&with_other).position(|(one, other)| one != other);
    let start = differing.expect("two different messages") - 1;
    let one = minicbor::to_vec(one).expect("a Vec takes every byte");
    let end = start + one.len();
    assert_eq!(with_one[start..end], one, "{family} is not where it should be");
    let wrong = UNKNOWN.iter().filter_map(|unknown| {
        let newer = [&with_one[..start], *unknown, &with_one[end..]].concat();
        match (decode::<M>(&newer), expected) {
            (Ok(read), Some(expected)) if read == *expected => None,
            (Err(InvalidMessage::Newer(_)), None) => None,
            (other, _) => Some(format!("{family}: {other:?}")),
        }
    });
    Carrier { family, wrong: wrong.collect() }
}

/// A message of a kind that nobody knows.
fn whole<M: Message + Debug>(family: &'static str) -> Carrier {
    let refused = |bytes: &&[u8]| match decode::<M>(bytes) {
        Err(InvalidMessage::Newer(_)) => None,
        other => Some(format!("{family}: {other:?}")),
    };
    Carrier { family, wrong: UNKNOWN.iter().filter_map(refused).collect() }
}

fn initiate(fingerprint: Fingerprint) -> ToCoordinator {
    ToCoordinator::Initiate { key: key(), fingerprint, timeout_ms: 60_000 }
}

/// What a peer says that comes back in the middle of a call.
fn resumed(fingerprint: Fingerprint) -> ToCoordinator {
    told(Verdict::Commit { pending: 9 }, Some(OpenVote { fingerprint, ..open_vote() }))
}

fn told(verdict: Verdict, open: Option<OpenVote>) -> ToCoordinator {
    let tags = vec![TagReport { learned: vec![(key(), verdict)], open }];
    ToCoordinator::Resume(Resume { tags, ..resume() })
}

fn judged(verdict: Verdict) -> ToPeer {
    ToPeer::Verdict { key: key(), verdict }
}

/// A call, in both messages that carry one.
fn calls() -> Vec<Carrier> {
    let mut carriers = Vec::new();
    for message in [initiate, resumed] {
        // What would be read as "no quantisation" if it were skipped.
        carriers.push(carrier(
            "Quantisation",
            (&Quantisation::Int4, &Quantisation::Int8),
            |quantisation| message(Fingerprint { quantisation: Some(*quantisation), ..call() }),
            None,
        ));
        let kinds = (&OpKind::AllReduce, &OpKind::Barrier);
        carriers.push(carrier("OpKind", kinds, |kind| message(Fingerprint { kind: *kind, ..call() }), None));
        let types = (&DataType::U8, &DataType::F64);
        let typed = |data_type: &_| message(Fingerprint { data_type: *data_type, ..call() });
        carriers.push(carrier("DataType", types, typed, None));
        let list = |data_type: &_| Some(vec![DataType::F32, *data_type]);
        let typed = |data_type: &_| message(Fingerprint { data_types: list(data_type), ..call() });
        carriers.push(carrier("DataType", types, typed, None));
        let ops = (&ReduceOp::Sum, &ReduceOp::Max);
        carriers.push(carrier("ReduceOp", ops, |op| message(Fingerprint { op: *op, ..call() }), None));
    }
    carriers
}

fn control() -> Vec<Carrier> {
    let scopes = (&Scope::Whole, &key().scope);
    let scoped = |scope: &Scope| ToCoordinator::Complete { key: OpKey { scope: scope.clone(), ..key() } };
    let aborted = |reason: &AbortReason| Verdict::Abort(reason.clone());
    let (by, void) = (AbortReason::Cancelled { by: peer(9) }, AbortReason::Void);
    let verdicts = (&aborted(&by), &Verdict::Commit { pending: 99 });
    let registered = |encryption: &Encryption| {
        ToCoordinator::Register(Registration { encryption: *encryption, ..registration() }, 3, 4)
    };
    let kicked = |reason: &_| ToPeer::Kicked { reason: *reason, text: "why".to_owned(), term: 4 };
    let kicks = (&KickReason::Superseded, &KickReason::Limit);
    let refuse = |reason: &Refusal| ToCoordinator::Refuse { key: key(), reason: reason.clone() };
    let refusals = (&Refusal::Mismatch { peer: peer(9) }, &Refusal::Deadline);
    vec![
        whole::<ToCoordinator>("ToCoordinator"),
        whole::<ToPeer>("ToPeer"),
        carrier("Scope", scopes, scoped, None),
        carrier("Verdict", verdicts, |verdict| judged(verdict.clone()), None),
        carrier("Verdict", verdicts, |verdict| told(verdict.clone(), None), None),
        carrier("AbortReason", (&by, &void), |reason| judged(aborted(reason)), None),
        carrier("AbortReason", (&by, &void), |reason| told(aborted(reason), None), None),
        carrier("BallotEnd", (&BallotEnd::Void, &BallotEnd::Unknown), |end| ballot_ended(end.clone()), None),
        carrier("Encryption", (&Encryption::Off, &Encryption::On), registered, None),
        carrier("KickReason", kicks, kicked, Some(&kicked(&KickReason::NotKnown))),
        carrier("Refusal", refusals, refuse, Some(&refuse(&Refusal::Cancelled))),
    ]
}

/// There is one decider so far, so a place with two of them is made by hand.
fn decider() -> Carrier {
    let record = ToPeer::Epoch(EpochRecord { left: Vec::new(), joined: Vec::new(), ..epoch() });
    let bytes = minicbor::to_vec(&record).expect("a Vec takes every byte");
    let ring = minicbor::to_vec(&epoch().ring).expect("a Vec takes every byte");
    let known =
        [ring.clone(), minicbor::to_vec(Decider::Coordinator).expect("a Vec takes every byte")].concat();
    let start = bytes.windows(known.len()).position(|window| window == known).expect("the decider");
    let refused = |unknown: &&[u8]| {
        let newer = [&bytes[..start + ring.len()], *unknown, &bytes[start + known.len()..]].concat();
        match decode::<ToPeer>(&newer) {
            Err(InvalidMessage::Newer(_)) => None,
            other => Some(format!("Decider: {other:?}")),
        }
    };
    Carrier { family: "Decider", wrong: UNKNOWN.iter().filter_map(refused).collect() }
}

/// Why members went, in both messages that say so.
fn losses() -> Vec<Carrier> {
    let list = |reason: &LossReason| vec![(peer(1), LossReason::Kicked), (peer(2), *reason)];
    let record = |reason: &LossReason| ToPeer::Epoch(EpochRecord { left: list(reason), ..epoch() });
    let verdict = |reason: &LossReason| judged(Verdict::Abort(AbortReason::PeersLost(list(reason))));
    let (reasons, vague) = ((&LossReason::Unreachable, &LossReason::Left), &LossReason::NotKnown);
    let deaths = (&DeathReason::Evicted, &DeathReason::Silent);
    let dead = |reason: &DeathReason| LossReason::Dead(*reason);
    vec![
        carrier("LossReason", reasons, record, Some(&record(vague))),
        carrier("LossReason", reasons, verdict, Some(&verdict(vague))),
        carrier("DeathReason", deaths, |reason| record(&dead(reason)), Some(&record(vague))),
        carrier("DeathReason", deaths, |reason| verdict(&dead(reason)), Some(&verdict(vague))),
    ]
}

fn health() -> Vec<Carrier> {
    let (member, incarnation, accuser, voucher) = (peer(8), 2, peer(1), peer(2));
    let (first, last) =
        (Record::Leave { member, incarnation }, Record::Leave { member: peer(9), incarnation });
    let suspect = |kind: &_| Record::Suspect { member, incarnation, accuser, kind: *kind, age_ms: 90 };
    let vouch =
        |kind: &_| Record::Vouch { member, incarnation, voucher, kind: *kind, age_ms: 1, silent_ms: 4_000 };
    let out = |reason: &_| Record::Out { member, incarnation, reason: *reason, age_ms: 700 };
    let (ping, ack) = (Body::Ping { probe: 300, wants_table: true }, Body::Ack { probe: 300 });
    let packet = |body: Option<&Body>, record: Option<Record>| {
        let records = [Some(first.clone()), record, Some(last.clone())].into_iter().flatten().collect();
        Packet { body: body.cloned(), records }
    };
    let news = |record: Record| packet(Some(&ping), Some(record));
    let without = packet(Some(&ping), None);
    let records = (&suspect(&Silence::Refused), &vouch(&SignOfLife::Acked));
    let silences = (&Silence::Refused, &Silence::Silent);
    let signs = (&SignOfLife::Kernel, &SignOfLife::Acked);
    let deaths = (&DeathReason::Deaf, &DeathReason::Exited);
    vec![
        carrier("Body", (&ping, &ack), |body| packet(Some(body), None), Some(&packet(None, None))),
        carrier("Record", records, |record| news(record.clone()), Some(&without)),
        carrier("Silence", silences, |kind| news(suspect(kind)), Some(&without)),
        carrier("SignOfLife", signs, |kind| news(vouch(kind)), Some(&without)),
        carrier("DeathReason", deaths, |reason| news(out(reason)), Some(&without)),
    ]
}

#[test]
fn variants_of_the_future_are_met_as_their_policies_say() {
    let mut carriers: Vec<_> =
        [calls(), control(), losses(), health(), registers(), rings(), inspections(), syncs(), stores()]
            .into_iter()
            .flatten()
            .collect();
    carriers.push(decider());
    let wrong: Vec<_> = carriers.iter().flat_map(|carrier| &carrier.wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for family in families().iter().filter(|family| family.policy.is_some()) {
        let carried = carriers.iter().any(|carrier| carrier.family == family.name);
        assert!(carried, "no message with an unknown {} was tried", family.name);
    }
}

fn inspections() -> Vec<Carrier> {
    vec![whole::<Inspect>("Inspect"), whole::<Inspected>("Inspected"), whole::<Hatch>("Hatch")]
}

fn rings() -> Vec<Carrier> {
    vec![whole::<RingWish>("RingWish"), whole::<RingOutcome>("RingOutcome")]
}

fn registers() -> Vec<Carrier> {
    let written = |fate: &Fate| FromRegister::Written(*fate, snapshot());
    vec![
        whole::<ToRegister>("ToRegister"),
        whole::<FromRegister>("FromRegister"),
        carrier("Fate", (&Fate::Accepted, &Fate::Lost), written, None),
    ]
}

/// What travels inside votes is read by whoever counts them, and what was agreed on by whoever voted.
fn syncs() -> Vec<Carrier> {
    let strategies = (&Strategy::Popular, &Strategy::SendOnly);
    let reasons = (&NoDonor::NothingToGive, &NoDonor::AllAhead { last: 5 });
    vec![
        whole::<Wish>("Wish"),
        whole::<Outcome>("Outcome"),
        carrier("Strategy", strategies, |strategy| Wish::Offer(sync::offer(*strategy), Some(5)), None),
        carrier("NoDonor", reasons, |why| sync::no_donor(*why), Some(&sync::no_donor(NoDonor::NotKnown))),
    ]
}

fn stores() -> Vec<Carrier> {
    let (get, check) = (Operation::Get, Operation::Check);
    let asked = |operation: &Operation| FromClient::Ask(store::request(operation.clone()));
    let answered = |answer: &Answer| ToClient::Answered { call: store::call(), answer: answer.clone() };
    let refused = |objection: &Objection| answered(&Answer::Refused(*objection));
    let named = |space: &Space| {
        let mut request = store::request(Operation::Get);
        request.key.space = *space;
        FromClient::Ask(request)
    };
    vec![
        whole::<Hop>("Hop"),
        whole::<Letter>("Letter"),
        whole::<ToRegistrar>("ToRegistrar"),
        whole::<FromRegistrar>("FromRegistrar"),
        whole::<FromClient>("FromClient"),
        whole::<ToClient>("ToClient"),
        whole::<Datagram>("Datagram"),
        carrier("Operation", (&get, &check), asked, None),
        carrier("Answer", (&Answer::Done, &Answer::Nothing), answered, None),
        carrier("Objection", (&Objection::Full, &Objection::TooLong), refused, None),
        carrier("Space", (&Space::Values, &Space::Queues), named, None),
    ]
}

/// Every source of this crate, because no list that is kept by hand knows what was added yesterday.
fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the sources") {
            let path = entry.expect("the sources").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                sources.push((path, text));
            }
        }
    }
    sources
}

#[test]
fn every_enum_that_travels_has_a_policy() {
    let families = families();
    let policy = |name: &str| families.iter().find(|family| family.name == name)?.policy;
    let mut found = 0;
    for (path, source) in sources() {
        for name in enums_in(&source) {
            assert!(policy(&name).is_some(), "{name} in {}: give it a policy", path.display());
            found += 1;
        }
    }
    let listed = families.iter().filter(|family| family.policy.is_some()).count();
    assert_eq!(found, listed, "enums in the sources, and those with a policy");
}

/// Left to itself, minicbor reads an optional field away if anything in it is not known.
#[test]
fn optional_fields_with_variants_in_them_name_their_decoder() {
    let families = families();
    let is_family = |word: &str| families.iter().any(|family| family.name == word);
    for (path, source) in sources() {
        let lines: Vec<_> = source.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[0].starts_with("#[n(") && pair[1].contains("Option<"))
        {
            let optional = pair[1].split("Option<").skip(1);
            let mut words = optional.flat_map(|inside| inside.split(|c: char| !c.is_alphanumeric()));
            let holds = words.find(|word| is_family(word));
            assert_eq!(holds, None, "{}: give `{}` a decode_with", path.display(), pair[1]);
        }
    }
}

/// The public enums that derive `Decode`.
fn enums_in(source: &str) -> Vec<String> {
    let (mut names, mut decodes) = (Vec::new(), false);
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[derive(") {
            decodes = line.contains("Decode");
        } else if let Some(rest) = line.strip_prefix("pub enum ").filter(|_| decodes) {
            names.push(rest.split([' ', '{', '<']).next().unwrap_or_default().to_owned());
        }
        decodes &= line.starts_with('#') || line.starts_with("//");
    }
    names
}

#[test]
fn the_page_tells_every_policy() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol/wire.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let row = |family: &Family, policy: Policy| {
        format!("| `{}` | {} |", family.name, format!("{policy:?}").to_lowercase())
    };
    for (family, policy) in families().iter().filter_map(|family| Some((family, family.policy?))) {
        let row = row(family, policy);
        assert!(page.contains(&row), "docs/protocol/wire.md has no row that begins with {row}");
    }
}
