//! Samples of what travels in the store.

use super::families::peer;
use crate::wire::store::account::{Account, Datagram, Inquiry, LinkAccount};
use crate::wire::store::client::{FromClient, ToClient};
use crate::wire::store::mesh::{Carried, Envelope, Hop, Letter, Request};
use crate::wire::store::operation::{Answer, Key, Objection, Operation, Space};
use crate::wire::store::views::{FromRegistrar, ToRegistrar};
use crate::wire::store::{Blob, CallName, ClientId, MemberId, StoreMember, View};

fn blob(text: &str) -> Blob {
    text.as_bytes().into()
}

pub(super) fn call() -> CallName {
    CallName { client: ClientId(7), number: 9 }
}

fn member() -> StoreMember {
    StoreMember {
        id: MemberId(3),
        peer: peer(3),
        client: ClientId(7),
        rank: 1,
        address: "[2001:db8::3]:29500".parse().expect("an address"),
        closed_port: 29_501,
        name: "host-3".to_owned(),
        host: 11,
        ends_store: true,
    }
}

pub(super) fn view() -> View {
    View { epoch: 5, founder: 6, members: vec![member(), StoreMember { id: MemberId(4), ..member() }] }
}

pub(super) fn operations() -> Vec<Operation> {
    let value = || blob("value");
    vec![
        Operation::Set(value()),
        Operation::Get,
        Operation::Check,
        Operation::Await,
        Operation::Add(-3),
        Operation::CompareSet(blob(""), value()),
        Operation::Append(value()),
        Operation::Delete,
        Operation::Push(value()),
        Operation::Pop,
        Operation::Length,
        Operation::Look,
    ]
}

pub(super) fn answers() -> Vec<Answer> {
    vec![
        Answer::Done,
        Answer::Value(blob("value")),
        Answer::Nothing,
        Answer::Number(-3),
        Answer::Truth(true),
        Answer::Refused(Objection::Full),
        Answer::Keys(vec![blob("a"), blob("b")], true),
    ]
}

pub(super) fn objections() -> Vec<Objection> {
    use Objection::*;
    vec![NotANumber, Overflow, TooLong, Full, TooManyWait]
}

pub(super) fn spaces() -> Vec<Space> {
    vec![Space::Values, Space::Queues]
}

pub(super) fn request(operation: Operation) -> Request {
    let key = Key::value("key");
    Request {
        call: call(),
        answered_below: 8,
        key,
        operation,
        patience_ms: 1_000,
        seen: Some(7),
        again: true,
    }
}

fn inquiry() -> Inquiry {
    Inquiry { number: 2, call: call(), key: Some(Key::queue("q")), from: MemberId(3) }
}

fn account() -> Account {
    Account {
        number: 2,
        from: MemberId(4),
        epoch: Some(5),
        owns: true,
        present: Some(false),
        waits_ms: Some(70),
        holds: false,
        lease_ms: None,
        moving: true,
        unacknowledged: 1,
        next: Some(MemberId(3)),
        registrar_away_ms: Some(80),
        links: vec![LinkAccount {
            to: MemberId(3),
            carries: true,
            carried: true,
            since_ms: 900,
            pending: 2,
            silent_ms: Some(40),
        }],
    }
}

pub(super) fn letters() -> Vec<Letter> {
    let carried = Carried {
        key: Key::value("key"),
        value: Some(blob("value")),
        queue: vec![blob("element")],
        done: vec![(ClientId(7), 9, Answer::Done)],
        over: vec![(ClientId(7), 8)],
        forgot: true,
    };
    vec![
        Letter::Request(request(Operation::Add(2))),
        Letter::Reply { call: call(), answer: Answer::Done },
        Letter::NotHere { call: call(), epoch: 4 },
        Letter::Replicate {
            number: 3,
            request: request(Operation::Add(2)),
            asked_by: Some(MemberId(4)),
            is_awaited: true,
            after: Some(2),
        },
        Letter::Replicated(3, vec![5]),
        Letter::Pull { epoch: 5, buckets: vec![1, 4_095], after: Some(Key::value("key")) },
        Letter::Records { epoch: 5, finished: 1, records: vec![carried] },
        Letter::Pieces { parcel: 2, count: 32 },
        Letter::ListKeys { call: call(), prefix: blob("k"), after: None },
        Letter::CountKeys(call()),
        Letter::Inquire(inquiry()),
        Letter::Tell(account()),
        Letter::Shutdown { by: MemberId(3) },
        Letter::JoinsIn,
        Letter::Exit { lost: Some(member()) },
        Letter::Broken(vec![MemberId(3)]),
        Letter::Payload(blob("all")),
        Letter::HowFar(3),
    ]
}

pub(super) fn hops() -> Vec<Hop> {
    let envelope = Envelope {
        epoch: 5,
        from: MemberId(3),
        to: Some(MemberId(4)),
        hops: 1,
        number: 2,
        piece: 0,
        pieces: 1,
        contents: blob("body"),
        floods: false,
    };
    vec![
        Hop::Greeting { from: MemberId(3), to: MemberId(4), received: 7, count: 1, others_count: 2 },
        Hop::Carry { number: 8, received: 7, envelope },
        Hop::Received(7),
    ]
}

pub(super) fn to_registrar() -> Vec<ToRegistrar> {
    vec![
        ToRegistrar::Register {
            member: member(),
            view: Some(view()),
            term: 2,
            epoch: 5,
            next: Some(view()),
            founder: Some(6),
        },
        ToRegistrar::Renew { number: 4, keys: 1, bytes: 2, waits: 3, fetched: Some(5) },
        ToRegistrar::Prepared(5),
        ToRegistrar::Ready(5),
        ToRegistrar::Activated(5),
        ToRegistrar::Leave,
        ToRegistrar::Look,
        ToRegistrar::Ends,
        ToRegistrar::Ask(MemberId(3)),
    ]
}

pub(super) fn from_registrar() -> Vec<FromRegistrar> {
    let (term, epoch) = (2, 5);
    vec![
        FromRegistrar::Granted { number: 4, lease_ms: 2_000 },
        FromRegistrar::Prepare { term, view: view(), ends: Some(view()) },
        FromRegistrar::Fetch { term, epoch, gone: vec![MemberId(3)] },
        FromRegistrar::Activate { term, view: view() },
        FromRegistrar::Settled(epoch),
        FromRegistrar::Out("why".to_owned()),
        FromRegistrar::Shown {
            view: Some(view()),
            holdings: vec![(1, 2, 3)],
            waits_for: Some("for whom".to_owned()),
        },
        FromRegistrar::Waits("for whom".to_owned()),
        FromRegistrar::Ended(Some(member())),
        FromRegistrar::Standing { member: MemberId(3), heard_ms: Some(80) },
    ]
}

pub(super) fn from_client() -> Vec<FromClient> {
    let keys = FromClient::Keys { call: call(), prefix: blob("k"), patience_ms: 5 };
    vec![FromClient::Ask(request(Operation::Add(2))), keys]
}

pub(super) fn to_client() -> Vec<ToClient> {
    vec![
        ToClient::Answered { call: call(), answer: Answer::Nothing },
        ToClient::Failed { call: call(), timed_out: true, text: "why".to_owned() },
    ]
}

pub(super) fn datagrams() -> Vec<Datagram> {
    vec![Datagram::Inquire(inquiry()), Datagram::Tell(account())]
}
