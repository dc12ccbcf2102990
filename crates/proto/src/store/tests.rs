//! Rules of the store, each by itself. How they hold together under faults is `sim`'s to say.

use super::hop::HopLink;
use super::layout::{Layout, bucket};
use super::mesh::{Mesh, link};
use super::record::{Effect, Record};
use super::shelf::Shelf;
use crate::id::PeerId;
use crate::limits::{
    STORE_BUCKETS, STORE_HANDOVER_BYTES, STORE_MESSAGE_BYTES_MAX, STORE_STRANGERS_MAX, STORE_VALUE_BYTES_MAX,
};
use crate::time::Instant;
use crate::wire::store::mesh::{Envelope, Hop, Letter, Request};
use crate::wire::store::operation::{Answer, Key, Objection, Operation};
use crate::wire::store::{Blob, CallName, ClientId, MemberId, StoreMember, View};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn member(number: u64, host: u64) -> StoreMember {
    StoreMember {
        id: MemberId(number),
        peer: PeerId::from_bytes([number as u8; 16]),
        client: ClientId(number),
        rank: number as u32,
        address: ([127, 0, 0, 1], 1).into(),
        closed_port: 0,
        name: format!("p{number}"),
        host,
        ends_store: false,
    }
}

pub(super) fn view(members: impl Iterator<Item = (u64, u64)>) -> View {
    View { epoch: 1, founder: 9, members: members.map(|(number, host)| member(number, host)).collect() }
}

fn blob(text: &str) -> Blob {
    text.as_bytes().into()
}

fn request(client: u64, number: u64, answered_below: u64, operation: Operation) -> Request {
    let call = CallName { client: ClientId(client), number };
    Request {
        call,
        answered_below,
        key: Key::value("key"),
        operation,
        patience_ms: 1_000,
        seen: None,
        again: false,
    }
}

#[test]
fn owner_and_replica_are_on_two_hosts_where_there_are_two() {
    let layout = Layout::new(view((1..=8).map(|number| (number, number % 2))));
    for bucket in 0..STORE_BUCKETS as u16 {
        let holders = layout.holders(bucket).unwrap();
        let replica = holders.replica.unwrap();
        assert_ne!(holders.owner.0 % 2, replica.0 % 2, "bucket {bucket}");
    }
    let alone = Layout::new(view([(1, 0)].into_iter()));
    assert_eq!(alone.holders(0).unwrap().replica, None);
    let one_host = Layout::new(view([(1, 0), (2, 0)].into_iter()));
    assert!(one_host.holders(0).unwrap().replica.is_some());
}

#[test]
fn buckets_are_dealt_evenly_and_only_those_of_who_comes_or_goes_move() {
    let eight = Layout::new(view((1..=8).map(|number| (number, 0))));
    let nine = Layout::new(view((1..=9).map(|number| (number, 0))));
    let mut owned = BTreeMap::<MemberId, usize>::new();
    for bucket in 0..STORE_BUCKETS as u16 {
        *owned.entry(eight.owner(bucket).unwrap()).or_default() += 1;
    }
    let fair = STORE_BUCKETS / 8;
    assert!(owned.values().all(|count| (fair * 3 / 4..fair * 5 / 4).contains(count)), "{owned:?}");
    for bucket in eight.moved(&nine) {
        assert!(nine.holds(MemberId(9), bucket), "bucket {bucket} moved between members that stayed");
    }
}

#[test]
fn what_moves_is_handed_over_by_the_owner_or_else_by_the_replica() {
    let layout = Layout::new(view((1..=3).map(|number| (number, number))));
    let part = bucket(&Key::value("key"));
    let holders = layout.holders(part).unwrap();
    assert_eq!(layout.source(part, |_| false), Some(holders.owner));
    assert_eq!(layout.source(part, |member| member == holders.owner), holders.replica);
    assert_eq!(layout.source(part, |member| holders.has(member)), None);
    assert_eq!(layout.lost(|_| true), STORE_BUCKETS);
}

#[test]
fn up_to_four_members_are_a_ring_and_more_have_shortcuts() {
    for count in 1..=4_u64 {
        let mesh = Mesh::new(&view((1..=count).map(|number| (number, 0))));
        let most = [0, 0, 1, 2, 2][count as usize];
        assert!((1..=count).all(|number| mesh.neighbours(MemberId(number)).count() == most), "{count}");
    }
    for count in [5, 16, 64, 500] {
        let view = view((1..=count).map(|number| (number, 0)));
        let mesh = Mesh::new(&view);
        assert_eq!(mesh, Mesh::new(&view), "the same view gives the same mesh");
        let links: usize = (1..=count).map(|number| mesh.neighbours(MemberId(number)).count()).sum();
        assert!(links <= 6 * count as usize, "{count} members have {links} ends of links");
        let farthest =
            (1..=count).filter_map(|to| mesh.routes(MemberId(1), &BTreeSet::new()).hops(MemberId(to))).max();
        assert!(farthest.unwrap() <= 8, "{count} members: {farthest:?} hops");
    }
}

#[test]
fn a_broken_link_is_gone_around_and_every_member_hears_a_broadcast_once() {
    let view = view((1..=20).map(|number| (number, 0)));
    let mesh = Mesh::new(&view);
    let me = MemberId(1);
    let first = mesh.neighbours(me).next().unwrap();
    let broken = BTreeSet::from([link(me, first)]);
    let around = mesh.routes(me, &broken);
    assert_ne!(around.next_hop(first), Some(first));
    assert!(around.hops(first).unwrap() >= 2);
    for broken in [BTreeSet::new(), broken] {
        let tree = mesh.routes(me, &broken);
        let mut heard = BTreeMap::<MemberId, u32>::from([(me, 1)]);
        for member in &view.members {
            tree.children(member.id).for_each(|child| *heard.entry(child).or_default() += 1);
        }
        assert_eq!(heard.len(), 20);
        assert!(heard.values().all(|times| *times == 1), "{heard:?}");
    }
}

fn envelope(text: &str) -> Envelope {
    Envelope {
        epoch: 1,
        from: MemberId(1),
        to: Some(MemberId(2)),
        hops: 0,
        number: 0,
        piece: 0,
        pieces: 1,
        contents: blob(text),
        floods: false,
    }
}

/// Hands every frame over; what the reader got.
fn deliver(frames: Vec<Hop>, reader: &mut HopLink, back: &mut Vec<Hop>) -> Vec<String> {
    let now = Instant::ORIGIN;
    let got = frames.into_iter().filter_map(|hop| reader.handle(now, hop, back));
    got.map(|envelope| String::from_utf8(envelope.contents.to_vec()).unwrap()).collect()
}

/// Two ends that have greeted each other.
fn linked(now: Instant) -> (HopLink, HopLink) {
    let (mut one, mut two) =
        (HopLink::new(now, MemberId(1), MemberId(2)), HopLink::new(now, MemberId(2), MemberId(1)));
    let (to_two, to_one) = (one.handle_connected(now), two.handle_connected(now));
    deliver(vec![to_one], &mut one, &mut Vec::new());
    deliver(vec![to_two], &mut two, &mut Vec::new());
    (one, two)
}

#[test]
fn a_connection_that_breaks_loses_nothing_and_repeats_nothing() {
    let now = Instant::from_nanos(7);
    let (mut one, mut two) =
        (HopLink::new(now, MemberId(1), MemberId(2)), HopLink::new(now, MemberId(2), MemberId(1)));
    let (mut to_two, mut to_one) = (vec![one.handle_connected(now)], vec![two.handle_connected(now)]);
    deliver(std::mem::take(&mut to_one), &mut one, &mut to_two);
    deliver(std::mem::take(&mut to_two), &mut two, &mut to_one);
    one.send(now, envelope("a"), &mut to_two);
    one.send(now, envelope("b"), &mut to_two);
    // Only the first of them arrives, twice; then the connection is gone.
    let first = to_two[0].clone();
    assert_eq!(deliver(vec![first.clone(), first], &mut two, &mut to_one), ["a"]);
    one.handle_disconnected(now);
    two.handle_disconnected(now);
    one.send(now, envelope("c"), &mut Vec::new());
    let (mut to_two, mut to_one) = (vec![one.handle_connected(now)], vec![two.handle_connected(now)]);
    deliver(std::mem::take(&mut to_one), &mut one, &mut to_two);
    assert_eq!(deliver(to_two, &mut two, &mut to_one), ["b", "c"]);
    let acknowledged = two.acknowledge();
    deliver(acknowledged.into_iter().collect(), &mut one, &mut Vec::new());
    assert_eq!(one.pending(), 0);
}

#[test]
fn a_link_that_was_given_up_acknowledges_what_it_carries_when_it_is_back() {
    let now = Instant::ORIGIN;
    let (mut one, mut other) =
        (HopLink::new(now, MemberId(1), MemberId(2)), HopLink::new(now, MemberId(2), MemberId(1)));
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let meet = |one: &mut HopLink, other: &mut HopLink| {
        let (mut there, mut back) = (vec![one.handle_connected(now)], vec![other.handle_connected(now)]);
        let (mut more, mut none) = (Vec::new(), Vec::new());
        there.drain(..).for_each(|hop| assert!(other.handle(now, hop, &mut none).is_none()));
        back.drain(..).for_each(|hop| assert!(one.handle(now, hop, &mut more).is_none()));
        more
    };
    assert!(meet(&mut one, &mut other).is_empty());
    one.send(now, envelope("came"), &mut there);
    assert_eq!(deliver(std::mem::take(&mut there), &mut other, &mut back), ["came"]);
    // The second one is lost with the connection, and goes another way.
    one.send(now, envelope("lost"), &mut there);
    there.clear();
    one.handle_disconnected(now);
    other.handle_disconnected(now);
    assert_eq!(one.hand_back().len(), 2, "neither was acknowledged");
    assert!(meet(&mut one, &mut other).is_empty());
    one.send(now, envelope("later"), &mut there);
    assert_eq!(deliver(std::mem::take(&mut there), &mut other, &mut back), ["later"]);
    let acknowledgement = other.acknowledge().expect("something has come");
    assert!(one.handle(now, acknowledgement, &mut back).is_none());
    assert_eq!((one.pending(), one.silent_since()), (0, None));
    // While there is a connection nothing is handed back: it may be on its way.
    one.send(now, envelope("last"), &mut there);
    assert!(one.hand_back().is_empty() && one.pending() == 1);
}

/// Whoever was stopped reads its old connection to the end, and what it says of it may leave by the next one.
#[test]
fn what_comes_before_the_greeting_of_a_connection_acknowledges_nothing() {
    let now = Instant::from_nanos(7);
    let (mut one, mut two) = linked(now);
    let mut old = Vec::new();
    (0..3).for_each(|_| one.send(now, envelope("old"), &mut old));
    one.handle_disconnected(now);
    assert_eq!(one.hand_back().len(), 3);
    one.send(now, envelope("new"), &mut Vec::new());
    deliver(old, &mut two, &mut Vec::new());
    let late = two.acknowledge().expect("three have come");
    let (to_two, to_one) = (one.handle_connected(now), two.handle_connected(now));
    let mut out = vec![to_two];
    deliver(vec![late], &mut one, &mut out);
    assert_eq!(one.pending(), 1, "it was never sent");
    deliver(vec![to_one], &mut one, &mut out);
    assert_eq!(deliver(out, &mut two, &mut Vec::new()), ["new"]);
}

/// What it says of our numbers was so before we began to count anew for it.
#[test]
fn a_greeting_that_comes_twice_is_taken_once() {
    let now = Instant::from_nanos(7);
    let (mut one, mut two) = linked(now);
    one.handle_disconnected(now);
    assert!(one.hand_back().is_empty());
    let (to_two, greeting) = (one.handle_connected(now), two.handle_connected(now));
    deliver(vec![greeting.clone()], &mut one, &mut Vec::new());
    deliver(vec![to_two], &mut two, &mut Vec::new());
    let mut out = Vec::new();
    one.send(now, envelope("first"), &mut out);
    assert_eq!(deliver(std::mem::take(&mut out), &mut two, &mut Vec::new()), ["first"]);
    let acknowledgement = two.acknowledge().expect("one has come");
    deliver(vec![acknowledgement, greeting], &mut one, &mut out);
    one.send(now, envelope("second"), &mut out);
    assert_eq!(deliver(out, &mut two, &mut Vec::new()), ["second"]);
}

#[test]
fn whoever_forgot_a_link_begins_to_count_anew() {
    let now = Instant::from_nanos(7);
    let (mut one, mut two) =
        (HopLink::new(now, MemberId(1), MemberId(2)), HopLink::new(now, MemberId(2), MemberId(1)));
    let greet = |one: &mut HopLink, two: &mut HopLink| {
        let (mut to_two, mut to_one) = (vec![one.handle_connected(now)], vec![two.handle_connected(now)]);
        deliver(std::mem::take(&mut to_one), one, &mut to_two);
        deliver(to_two, two, &mut to_one)
    };
    greet(&mut one, &mut two);
    let mut out = Vec::new();
    one.send(now, envelope("a"), &mut out);
    two.send(now, envelope("x"), &mut out);
    deliver(vec![out.remove(0)], &mut two, &mut Vec::new());
    deliver(out, &mut one, &mut Vec::new());
    let mut two = HopLink::new(Instant::from_nanos(8), MemberId(2), MemberId(1));
    one.handle_disconnected(now);
    one.send(now, envelope("b"), &mut Vec::new());
    // It never heard of what was acknowledged to its predecessor, only of what is still open.
    assert!(greet(&mut one, &mut two).contains(&"b".to_owned()));
    let mut out = Vec::new();
    two.send(now, envelope("y"), &mut out);
    assert_eq!(deliver(out, &mut one, &mut Vec::new()), ["y"], "its first frame is not taken for an old one");
}

#[test]
fn a_call_is_done_once_however_often_it_is_asked_for() {
    let mut record = Record::default();
    let any = |_: ClientId| true;
    let add = |number, below| request(1, number, below, Operation::Add(1));
    assert_eq!(record.apply(&add(1, 1), any), Effect::Changed(Answer::Number(1)));
    assert_eq!(record.apply(&add(1, 1), any), Effect::Again(Answer::Number(1)));
    assert_eq!(record.apply(&add(2, 2), any), Effect::Changed(Answer::Number(2)));
    // The client has had the answer of the first: a copy that comes now went astray.
    assert_eq!(record.apply(&add(1, 1), any), Effect::Over);
    // That something changed nothing is remembered, too.
    let pop = |number| request(2, number, number, Operation::Pop);
    assert_eq!(record.apply(&pop(1), any), Effect::Same(Answer::Nothing));
    record.apply(&request(3, 1, 1, Operation::Push(blob("element"))), any);
    assert_eq!(record.apply(&pop(1), any), Effect::Again(Answer::Nothing));
    // And it moves with the key.
    let (_, mut moved) = Record::received(record.carried(&Key::value("key")));
    assert_eq!(moved, record);
    assert_eq!(moved.apply(&add(2, 2), any), Effect::Again(Answer::Number(2)));
}

#[test]
fn compare_set_does_with_missing_keys_what_torch_does() {
    let any = |_: ClientId| true;
    let mut record = Record::default();
    let mut number = 0;
    let mut set = |record: &mut Record, expected: &str, desired: &str| {
        number += 1;
        record.apply(&request(1, number, number, Operation::CompareSet(blob(expected), blob(desired))), any)
    };
    assert_eq!(set(&mut record, "x", "y"), Effect::Same(Answer::Value(blob("x"))));
    assert_eq!(set(&mut record, "", "a"), Effect::Changed(Answer::Done));
    assert_eq!(set(&mut record, "b", "c"), Effect::Same(Answer::Value(blob("a"))));
    assert_eq!(set(&mut record, "a", "c"), Effect::Changed(Answer::Done));
}

#[test]
fn numbers_are_checked_and_nothing_changes_when_they_are_none() {
    let any = |_: ClientId| true;
    let mut record = Record::default();
    record.apply(&request(1, 1, 1, Operation::Set(blob("many"))), any);
    let add = |number, amount| request(1, number, number, Operation::Add(amount));
    assert_eq!(record.apply(&add(2, 1), any), Effect::Same(Answer::Refused(Objection::NotANumber)));
    record.apply(&request(1, 3, 3, Operation::Set(blob(&i64::MAX.to_string()))), any);
    assert_eq!(record.apply(&add(4, 1), any), Effect::Same(Answer::Refused(Objection::Overflow)));
}

#[test]
fn bytes_are_counted_up_and_down() {
    let any = |_: ClientId| true;
    let mut shelf = Shelf::default();
    shelf.apply(&request(1, 1, 1, Operation::Set(blob(&"x".repeat(1_000)))), any);
    let full = shelf.bytes();
    assert!((1_000..2_000).contains(&full), "{full}");
    shelf.apply(&request(1, 2, 2, Operation::Delete), any);
    assert!(shelf.bytes() < 500, "{}", shelf.bytes());
    shelf.forget(|_| false);
    assert_eq!(shelf.bytes(), 0);
}

#[test]
fn a_bucket_is_handed_over_in_messages_of_bounded_size() {
    let any = |_: ClientId| true;
    let (mut shelf, mut keys) = (Shelf::default(), 0);
    let part = bucket(&Key::value("0"));
    for number in 0..200_000_u64 {
        let key = Key::value(number.to_string());
        if bucket(&key) == part {
            let mut set = request(1, number + 1, 1, Operation::Set(blob(&"v".repeat(100_000))));
            set.key = key;
            shelf.apply(&set, any);
            keys += 1;
        }
    }
    let (mut got, mut after, mut messages) = (Vec::new(), None, 0);
    loop {
        let (records, finished) = shelf.export(&[part], after.as_ref());
        after = records.last().map(|record| record.key.clone());
        got.extend(records);
        messages += 1;
        if finished == 1 {
            break;
        }
    }
    assert_eq!(got.len(), keys);
    assert!(messages > 2, "{keys} keys in {messages} messages");
    let mut other = Shelf::default();
    other.replace(BTreeMap::from([(part, got)]));
    assert_eq!(other.bytes(), shelf.bytes());
}

/// What a record takes as it is handed over.
fn handed_over(record: &mut Record) -> usize {
    let records = vec![record.carried(&Key::queue("queue"))];
    minicbor::len(Letter::Records { epoch: 1, finished: 1, records })
}

/// A queue above two gigabytes made every view impossible that moved it: its record fits no message (rule 40).
#[test]
fn a_queue_that_would_fit_no_message_refuses_the_next_element() {
    let any = |_: ClientId| true;
    let (mut record, large) = (Record::default(), Blob::from(vec![0; STORE_VALUE_BYTES_MAX]));
    let push = |number| request(1, number, number, Operation::Push(large.clone()));
    assert_eq!(record.apply(&push(1), any), Effect::Changed(Answer::Done));
    assert_eq!(record.apply(&push(2), any), Effect::Changed(Answer::Done));
    assert_eq!(record.apply(&push(3), any), Effect::Same(Answer::Refused(Objection::TooLong)));
    let length = handed_over(&mut record);
    assert!(length <= STORE_MESSAGE_BYTES_MAX, "{length}");
    // Once there is room there is room.
    record.apply(&request(1, 4, 4, Operation::Pop), any);
    assert_eq!(record.apply(&push(5), any), Effect::Changed(Answer::Done));
}

/// Elements that were taken are remembered until those who took them go on.
#[test]
fn answers_that_fit_no_message_beside_what_is_held_do_not_travel_and_are_not_given_twice() {
    let any = |_: ClientId| true;
    let (mut record, large) = (Record::default(), Blob::from(vec![0; STORE_VALUE_BYTES_MAX]));
    let push = |number| request(1, number, number, Operation::Push(large.clone()));
    let pop = |client| request(client, 1, 1, Operation::Pop);
    for number in 1..=4 {
        assert_eq!(record.apply(&push(number), any), Effect::Changed(Answer::Done));
        if number <= 2 {
            assert!(matches!(record.apply(&pop(number + 1), any), Effect::Changed(Answer::Value(_))));
        }
    }
    let length = handed_over(&mut record);
    assert!(length <= STORE_MESSAGE_BYTES_MAX, "{length}");
    let (_, mut moved) = Record::received(record.carried(&Key::queue("queue")));
    assert!(matches!(record.apply(&pop(2), any), Effect::Again(Answer::Value(_))), "who stays knows all");
    assert_eq!(moved.apply(&pop(2), any), Effect::Over);
    assert_eq!(moved.apply(&request(9, 1, 1, Operation::Length), any), Effect::Same(Answer::Number(2)));
}

#[test]
fn a_record_that_is_large_travels_alone() {
    let any = |_: ClientId| true;
    let (mut shelf, mut keys) = (Shelf::default(), Vec::new());
    let part = bucket(&Key::value("0"));
    for number in (0..200_000_u64).filter(|number| bucket(&Key::value(number.to_string())) == part).take(6) {
        keys.push(Key::value(number.to_string()));
    }
    keys.sort();
    for (number, key) in (1..).zip(&keys) {
        let length = if number == 3 { 2 * STORE_HANDOVER_BYTES } else { 10 };
        let mut set = request(1, number, 1, Operation::Set(blob(&"v".repeat(length))));
        set.key = key.clone();
        shelf.apply(&set, any);
    }
    let (mut after, mut messages) = (None, Vec::new());
    loop {
        let (records, finished) = shelf.export(&[part], after.as_ref());
        after = records.last().map(|record| record.key.clone());
        messages.push(records.len());
        if finished == 1 {
            break;
        }
    }
    assert_eq!(messages, [2, 1, 3]);
}

#[test]
fn a_record_says_that_it_has_forgotten_strangers_and_whom_it_knows() {
    let (mut record, nobody) = (Record::default(), |_: ClientId| false);
    let add = |client| request(client, 1, 1, Operation::Add(1));
    for client in 1..=STORE_STRANGERS_MAX as u64 {
        record.apply(&add(client), nobody);
    }
    assert!(!record.may_have_forgotten(ClientId(1)) && !record.may_have_forgotten(ClientId(9_999)));
    record.apply(&add(1_000), nobody);
    assert!(record.may_have_forgotten(ClientId(1)), "it was the oldest");
    assert!(record.may_have_forgotten(ClientId(9_999)), "for all it knows");
    assert!(!record.may_have_forgotten(ClientId(2)));
    let (_, moved) = Record::received(record.carried(&Key::value("key")));
    assert!(moved == record && moved.may_have_forgotten(ClientId(1)));
}

/// One client has two calls on their way, and the later one was done and does not travel. The owner that hands the record to a
/// new replica and stays must not do the earlier one: the replica would say that it has it, and have nothing.
#[test]
fn what_is_over_for_a_replica_is_over_for_the_owner_that_it_has_the_record_from() {
    let any = |_: ClientId| true;
    let (mut owner, large) = (Record::default(), Blob::from(vec![0; STORE_VALUE_BYTES_MAX]));
    let push = |number| request(1, number, number, Operation::Push(large.clone()));
    assert_eq!(owner.apply(&push(1), any), Effect::Changed(Answer::Done));
    let pop = request(2, 5, 3, Operation::Pop);
    assert!(matches!(owner.apply(&pop, any), Effect::Changed(Answer::Value(_))));
    for number in 2..=3 {
        assert_eq!(owner.apply(&push(number), any), Effect::Changed(Answer::Done));
    }
    let (_, mut replica) = Record::received(owner.carried(&Key::queue("queue")));
    let earlier = request(2, 3, 3, Operation::Push(blob("element")));
    assert_eq!(replica.apply(&earlier, any), Effect::Over, "otherwise nothing was left out");
    assert_eq!(owner.apply(&earlier, any), Effect::Over);
    assert!(matches!(owner.apply(&pop, any), Effect::Again(Answer::Value(_))), "who stays knows all");
}
