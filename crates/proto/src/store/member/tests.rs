//! A few members that talk to each other over links that a test holds up, drops or cuts.
//!
//! ```text
//!   test: call -> [caller] ==frames==> [owner] ==frames==> [replica]      nobody dials: every pair is linked
//! ```
//!
//! The registrar is the test itself: it gives views and leases.

mod broadcasts;
mod given_up;

use super::{Action, Member, Ticket};
use crate::limits::{STORE_PIECE_BYTES, STORE_STRANGERS_MAX, STORE_WAITERS_MAX};
use crate::preset::Preset;
use crate::store::Config;
use crate::store::layout::{Layout, bucket};
use crate::store::mesh::Mesh;
use crate::store::tests::{member, view};
use crate::time::{Duration, Instant};
use crate::wire::store::mesh::{Envelope, Hop, Letter, Request};
use crate::wire::store::operation::{Answer, Key, Operation};
use crate::wire::store::views::{FromRegistrar, ToRegistrar};
use crate::wire::store::{CallName, ClientId, MemberId, View};
use crate::wire::{decode, encode};
use std::collections::{BTreeMap, VecDeque};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Members with the numbers from one on.
struct Circle {
    now: Instant,
    members: BTreeMap<u64, Member>,
    under_way: VecDeque<(u64, u64, Hop)>,
    /// Letters that were carried, and between whom.
    carried: Vec<(u64, u64, Letter)>,
    ended: Vec<(u64, Ticket, Answer)>,
    /// Broadcasts that programs heard, and how long they were.
    heard: Vec<(u64, usize)>,
    /// Whoever this is true of is not delivered, and comes again with the next connection.
    lost: fn(&Letter) -> bool,
}

impl Circle {
    fn new(count: u64) -> Self {
        let now = Instant::ORIGIN + Duration::from_secs(1);
        let config = Config { view_lease: Duration::from_hours(1), ..Config::preset(Preset::Lan) };
        let new = |number| (number, Member::new(now, config.clone(), member(number, number)));
        let members = (1..=count).map(new).collect();
        let mut circle = Self {
            now,
            members,
            under_way: VecDeque::new(),
            carried: Vec::new(),
            ended: Vec::new(),
            heard: Vec::new(),
            lost: |_| false,
        };
        circle.enter(1, None, &[]);
        for (one, other) in (1..=count).flat_map(|one| (one + 1..=count).map(move |other| (one, other))) {
            circle.members.get_mut(&one).unwrap().handle_connected(now, MemberId(other));
            circle.members.get_mut(&other).unwrap().handle_connected(now, MemberId(one));
            circle.carry_out(one);
            circle.carry_out(other);
        }
        circle.settle();
        circle
    }

    fn view(&self, epoch: u64) -> View {
        View { epoch, ..view(self.members.keys().map(|number| (*number, *number))) }
    }

    /// Brings all who are there into the view of that epoch.
    fn enter(&mut self, epoch: u64, ends: Option<View>, gone: &[MemberId]) {
        let view = self.view(epoch);
        self.order(&FromRegistrar::Prepare { term: 1, view: view.clone(), ends });
        self.order(&FromRegistrar::Fetch { term: 1, epoch, gone: gone.to_vec() });
        self.settle();
        self.order(&FromRegistrar::Activate { term: 1, view });
        self.settle();
        self.order(&FromRegistrar::Settled(epoch));
        self.settle();
        self.carried.clear();
    }

    fn order(&mut self, order: &FromRegistrar) {
        let numbers: Vec<_> = self.members.keys().copied().collect();
        for number in numbers {
            let now = self.now;
            self.members.get_mut(&number).unwrap().handle_order(now, order.clone());
            self.carry_out(number);
        }
    }

    /// A member that dies, and the view without it.
    fn kill(&mut self, number: u64, epoch: u64) {
        let ends = self.view(epoch - 1);
        self.members.remove(&number);
        self.under_way.retain(|(from, to, _)| *from != number && *to != number);
        let left: Vec<_> = self.members.keys().copied().collect();
        for other in left {
            let now = self.now;
            self.members.get_mut(&other).unwrap().handle_disconnected(now, MemberId(number));
            self.carry_out(other);
        }
        self.enter(epoch, Some(ends), &[MemberId(number)]);
    }

    fn carry_out(&mut self, number: u64) {
        let now = self.now;
        while let Some(action) = self.members.get_mut(&number).and_then(Member::poll_action) {
            match action {
                Action::Send(to, hop) => self.under_way.push_back((number, to.0, hop)),
                Action::Connect(other) => {
                    if self.members.contains_key(&other.id.0) {
                        self.members.get_mut(&number).unwrap().handle_connected(now, other.id);
                        self.members.get_mut(&other.id.0).unwrap().handle_connected(now, MemberId(number));
                        self.carry_out(other.id.0);
                    } else {
                        self.members.get_mut(&number).unwrap().handle_unreachable(now, other.id);
                    }
                }
                Action::Tell(ToRegistrar::Renew { number: asked, .. }) => {
                    let granted = FromRegistrar::Granted { number: asked, lease_ms: 3_600_000 };
                    self.members.get_mut(&number).unwrap().handle_order(now, granted);
                }
                Action::Deliver(_, payload) => self.heard.push((number, payload.len())),
                Action::Finish(ticket, result) => {
                    let answer = result.unwrap_or_else(|error| panic!("{number}: {error}"));
                    self.ended.push((number, ticket, answer));
                }
                _ => {}
            }
        }
    }

    /// Delivers one frame. False if there is none.
    fn deliver_one(&mut self) -> bool {
        let Some((from, to, hop)) = self.under_way.pop_front() else { return false };
        if let Hop::Carry { envelope: Envelope { contents, pieces: 1, .. }, .. } = &hop {
            let letter = decode::<Letter>(contents).unwrap();
            if (self.lost)(&letter) {
                return true;
            }
            self.carried.push((from, to, letter));
        }
        let now = self.now;
        if let Some(member) = self.members.get_mut(&to) {
            member.handle_hop(now, MemberId(from), hop);
            self.carry_out(to);
        }
        true
    }

    fn settle(&mut self) {
        while self.deliver_one() {}
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let due = self.members.values().filter_map(Member::poll_timeout).min();
            self.now = due.filter(|due| *due < end).unwrap_or(end).max(self.now);
            let numbers: Vec<_> = self.members.keys().copied().collect();
            for number in numbers {
                let now = self.now;
                self.members.get_mut(&number).unwrap().handle_timeout(now);
                self.carry_out(number);
            }
            self.settle();
            if self.now >= end {
                return;
            }
        }
    }

    fn call(&mut self, number: u64, key: &Key, operation: Operation) -> Ticket {
        let now = self.now;
        let ticket = self.members.get_mut(&number).unwrap().call(now, key.clone(), operation, TIMEOUT);
        self.carry_out(number);
        ticket
    }

    fn answer(&self, number: u64, ticket: Ticket) -> Option<&Answer> {
        let of = |ended: &&(u64, Ticket, Answer)| (ended.0, ended.1) == (number, ticket);
        self.ended.iter().find(of).map(|(_, _, answer)| answer)
    }

    /// A key, its owner, its replica, and the others.
    fn key(&self) -> (Key, u64, u64, Vec<u64>) {
        let layout = Layout::new(self.view(1));
        let key = Key::value("key");
        let holders = layout.holders(bucket(&key)).unwrap();
        let (owner, replica) = (holders.owner.0, holders.replica.unwrap().0);
        let others =
            self.members.keys().copied().filter(|number| ![owner, replica].contains(number)).collect();
        (key, owner, replica, others)
    }

    fn words(&self) -> Vec<(u64, u64, &'static str)> {
        let word = |letter: &Letter| match letter {
            Letter::Request(_) => "request",
            Letter::Replicate { .. } => "replicate",
            Letter::Replicated(..) => "replicated",
            Letter::Reply { .. } => "reply",
            Letter::HowFar(_) => "how far",
            _ => "something else",
        };
        self.carried.iter().map(|(from, to, letter)| (*from, *to, word(letter))).collect()
    }
}

fn set(text: &str) -> Operation {
    Operation::Set(text.as_bytes().into())
}

fn value(text: &str) -> Answer {
    Answer::Value(text.as_bytes().into())
}

#[test]
fn a_change_is_answered_by_the_replica_and_acknowledged_later() {
    let mut circle = Circle::new(4);
    let (key, owner, replica, others) = circle.key();
    let caller = others[0];
    let ticket = circle.call(caller, &key, set("one"));
    circle.settle();
    assert_eq!(circle.answer(caller, ticket), Some(&Answer::Done));
    let three = vec![(caller, owner, "request"), (owner, replica, "replicate"), (replica, caller, "reply")];
    assert_eq!(circle.words(), three);
    circle.pass(Duration::from_millis(30));
    assert_eq!(circle.words()[3..], [(replica, owner, "replicated")]);
}

#[test]
fn an_acknowledgement_rides_on_what_the_replica_has_to_say_anyway() {
    let mut circle = Circle::new(4);
    let (key, owner, replica, others) = circle.key();
    circle.call(others[0], &key, set("one"));
    circle.settle();
    circle.carried.clear();
    circle.call(replica, &key, Operation::Get);
    circle.settle();
    let words = vec![(replica, owner, "replicated"), (replica, owner, "request"), (owner, replica, "reply")];
    assert_eq!(circle.words(), words);
    circle.pass(Duration::from_millis(30));
    assert_eq!(circle.words().len(), 3, "it was said");
}

#[test]
fn who_reads_what_it_wrote_waits_for_no_acknowledgement() {
    let mut circle = Circle::new(4);
    let (key, owner, _, others) = circle.key();
    let caller = others[0];
    circle.call(caller, &key, set("one"));
    circle.settle();
    circle.carried.clear();
    let ticket = circle.call(caller, &key, Operation::Get);
    circle.settle();
    assert_eq!(circle.answer(caller, ticket), Some(&value("one")));
    assert_eq!(circle.words(), [(caller, owner, "request"), (owner, caller, "reply")]);
}

#[test]
fn somebody_else_reads_a_change_when_the_replica_has_it_and_not_before() {
    let mut circle = Circle::new(4);
    let (key, owner, replica, others) = circle.key();
    circle.lost = |letter| matches!(letter, Letter::Replicate { .. });
    circle.call(others[0], &key, set("one"));
    let ticket = circle.call(others[1], &key, Operation::Get);
    circle.settle();
    circle.pass(Duration::from_millis(500));
    assert_eq!(circle.answer(others[1], ticket), None, "only the owner has it");
    // The owner tells its replica again, and then all goes its way.
    circle.lost = |_| false;
    circle.pass(Duration::from_secs(2));
    assert_eq!(circle.answer(others[1], ticket), Some(&value("one")));
    assert!(circle.words().contains(&(replica, owner, "replicated")));
}

#[test]
fn an_owner_that_lets_somebody_wait_asks_how_far_its_replica_is() {
    let mut circle = Circle::new(4);
    let (key, owner, replica, others) = circle.key();
    circle.call(others[0], &key, set("one"));
    circle.settle();
    circle.carried.clear();
    let before = circle.now;
    let ticket = circle.call(others[1], &key, Operation::Get);
    circle.settle();
    assert_eq!(circle.answer(others[1], ticket), Some(&value("one")));
    assert_eq!(circle.now, before);
    let words = [
        (others[1], owner, "request"),
        (owner, replica, "how far"),
        (replica, owner, "replicated"),
        (owner, others[1], "reply"),
    ];
    assert_eq!(circle.words(), words);
}

#[test]
fn who_waited_for_a_key_hears_of_it_without_another_question() {
    let mut circle = Circle::new(4);
    let (key, _, _, others) = circle.key();
    let waits = circle.call(others[1], &key, Operation::Await);
    circle.settle();
    circle.call(others[0], &key, set("one"));
    circle.settle();
    assert_eq!(circle.answer(others[1], waits), Some(&Answer::Done));
    assert!(!circle.words().iter().any(|(_, _, word)| *word == "how far"));
}

#[test]
fn as_many_calls_wait_as_may_and_the_next_one_is_refused() {
    let mut circle = Circle::new(4);
    let (key, owner, _, others) = circle.key();
    circle.members.get_mut(&owner).unwrap().waiting_room.crowd(STORE_WAITERS_MAX - 1);
    let last = circle.call(others[0], &key, Operation::Get);
    circle.settle();
    assert_eq!(circle.answer(others[0], last), None);
    let refused = circle.call(others[1], &key, Operation::Get);
    let mut failed = Vec::new();
    while let Some((from, to, hop)) = circle.under_way.pop_front() {
        let now = circle.now;
        circle.members.get_mut(&to).unwrap().handle_hop(now, MemberId(from), hop);
        if to != others[1] {
            circle.carry_out(to);
            continue;
        }
        while let Some(action) = circle.members.get_mut(&to).and_then(Member::poll_action) {
            match action {
                Action::Finish(ticket, Err(failure)) => failed.push((ticket, failure.to_string())),
                Action::Send(other, hop) => circle.under_way.push_back((to, other.0, hop)),
                _ => {}
            }
        }
    }
    let [(ticket, text)] = &failed[..] else { panic!("one fails: {failed:?}") };
    assert_eq!(*ticket, refused);
    assert!(text.contains("as many calls wait at the key's owner as may"), "{text}");
    // Whoever does not have to wait is served, and makes room.
    circle.call(others[1], &key, set("here"));
    circle.settle();
    assert_eq!(circle.answer(others[0], last), Some(&value("here")));
    assert_eq!(circle.members[&owner].waiting_room.waiting(), STORE_WAITERS_MAX - 1);
}

#[test]
fn an_answer_that_the_replica_took_with_it_comes_from_the_owner() {
    let mut circle = Circle::new(4);
    let (key, _, replica, others) = circle.key();
    circle.lost = |letter| matches!(letter, Letter::Reply { .. });
    let ticket = circle.call(others[0], &key, Operation::Add(5));
    circle.settle();
    assert_eq!(circle.answer(others[0], ticket), None);
    circle.lost = |_| false;
    circle.kill(replica, 2);
    assert_eq!(circle.answer(others[0], ticket), Some(&Answer::Number(5)), "done once");
}

#[test]
fn an_answer_of_a_view_that_has_passed_is_not_taken() {
    let mut circle = Circle::new(4);
    let key = Key::queue("key");
    let holder = Layout::new(circle.view(1)).owner(bucket(&key)).unwrap().0;
    let after = view((1..=4).filter(|number| *number != holder).map(|number| (number, number)));
    let heir = Layout::new(after).owner(bucket(&key)).unwrap().0;
    let caller = *circle.members.keys().find(|number| ![holder, heir].contains(number)).unwrap();
    // "Nothing there" is on its way when the owner dies with all that it knew of it.
    let ticket = circle.call(caller, &key, Operation::Pop);
    while !circle.carried.iter().any(|(_, _, letter)| matches!(letter, Letter::Request(_))) {
        assert!(circle.deliver_one());
    }
    let says = |frame: &&(u64, u64, Hop)| frame.0 == holder && frame.1 == caller;
    let late = circle.under_way.iter().find(says).cloned().expect("the answer");
    circle.under_way.clear();
    circle.lost = |letter| matches!(letter, Letter::Request(_));
    circle.kill(holder, 2);
    assert_eq!(circle.answer(caller, ticket), None);
    // It comes in a hand between, from the view before.
    let Hop::Carry { envelope, .. } = late.2 else { panic!() };
    let (now, hand) = (circle.now, *circle.members.keys().find(|number| **number != caller).unwrap());
    let hop = Hop::Carry { number: u64::MAX / 2, received: 0, envelope };
    circle.members.get_mut(&caller).unwrap().handle_hop(now, MemberId(hand), hop);
    circle.carry_out(caller);
    assert_eq!(circle.answer(caller, ticket), None, "the call was sent again, and may yet find something");
    circle.lost = |_| false;
    let pushed = circle.call(hand, &key, Operation::Push(b"element"[..].into()));
    circle.settle();
    assert_eq!(circle.answer(hand, pushed), Some(&Answer::Done));
    circle.pass(Duration::from_secs(2));
    assert_eq!(circle.answer(caller, ticket), Some(&value("element")), "popped, and told so");
}

#[test]
fn what_is_long_is_not_sent_again_while_it_is_on_its_way() {
    let mut circle = Circle::new(4);
    let (key, owner, _, others) = circle.key();
    let long = vec![7; 20 * STORE_PIECE_BYTES];
    let ticket = circle.call(others[0], &key, Operation::Set(long[..].into()));
    // A slow link: a piece a second, for longer than it takes to lose patience. Whatever else is said is heard at once.
    let is_piece = |(from, to, hop): &(u64, u64, Hop)| {
        let is_long = matches!(hop, Hop::Carry { envelope, .. } if envelope.pieces > 1);
        (*from, *to) == (others[0], owner) && is_long
    };
    let mut pieces = VecDeque::new();
    for _ in 0..60 {
        circle.now += Duration::from_secs(1);
        for number in 1..=4 {
            let now = circle.now;
            circle.members.get_mut(&number).unwrap().handle_timeout(now);
            circle.carry_out(number);
        }
        while let Some(frame) = circle.under_way.pop_front() {
            if is_piece(&frame) {
                pieces.push_back(frame);
            } else {
                circle.under_way.push_front(frame);
                circle.deliver_one();
            }
        }
        assert!(pieces.len() <= 20, "{} pieces wait", pieces.len());
        circle.under_way.extend(pieces.pop_front());
        circle.deliver_one();
    }
    assert!(pieces.is_empty(), "{} pieces more than there are", pieces.len());
    assert_eq!(circle.answer(others[0], ticket), Some(&Answer::Done));
}

/// Whether a frame carries a piece of something long.
fn is_piece((_, _, hop): &(u64, u64, Hop)) -> bool {
    matches!(hop, Hop::Carry { envelope, .. } if envelope.pieces > 1)
}

impl Circle {
    fn order_one(&mut self, number: u64, order: &FromRegistrar) {
        let now = self.now;
        self.members.get_mut(&number).unwrap().handle_order(now, order.clone());
        self.carry_out(number);
    }

    /// The view of that epoch, with the same members, is prepared and fetched for; nobody has begun it.
    fn prepare(&mut self, epoch: u64) -> FromRegistrar {
        let (view, ends) = (self.view(epoch), Some(self.view(epoch - 1)));
        self.order(&FromRegistrar::Prepare { term: 1, view: view.clone(), ends });
        self.order(&FromRegistrar::Fetch { term: 1, epoch, gone: Vec::new() });
        self.settle();
        FromRegistrar::Activate { term: 1, view }
    }

    /// Delivers frames until that many pieces of something long have come.
    fn deliver_pieces(&mut self, count: usize) {
        let mut come = 0;
        while come < count {
            come += usize::from(self.under_way.front().is_some_and(is_piece));
            assert!(self.deliver_one(), "{come} pieces came");
        }
    }
}

/// Whoever is in a view first sends its long requests anew; their readers begin it in the middle of them.
#[test]
fn a_view_that_begins_keeps_the_pieces_that_were_sent_in_it() {
    for begins_first in [true, false] {
        let mut circle = Circle::new(4);
        let (key, owner, replica, others) = circle.key();
        let caller = others[0];
        let activate = circle.prepare(2);
        let long = vec![7; 6 * STORE_PIECE_BYTES];
        if begins_first {
            circle.order_one(caller, &activate);
            circle.settle();
        }
        let ticket = circle.call(caller, &key, Operation::Set(long[..].into()));
        circle.deliver_pieces(3);
        if !begins_first {
            // What was sent in the view before is sent anew: the rest of it comes, and is of no use.
            circle.order_one(caller, &activate);
        }
        for number in [owner, replica, others[1]] {
            circle.order_one(number, &activate);
        }
        circle.settle();
        circle.pass(Duration::from_secs(2));
        assert_eq!(
            circle.answer(caller, ticket),
            Some(&Answer::Done),
            "the caller was first: {begins_first}"
        );
    }
}

/// A view to come with a fifth member; and two keys of one owner and one replica, of which it moves the first.
fn with_a_fifth(circle: &Circle) -> (FromRegistrar, Key, Key, u64, u64) {
    let (now, next) = (circle.view(1), View { epoch: 2, ..view((1..=5).map(|number| (number, number))) });
    let (layout, after) = (Layout::new(now.clone()), Layout::new(next.clone()));
    let keys = (0..10_000).map(|number| Key::value(format!("key/{number}")));
    let (moved, unmoved): (Vec<_>, Vec<_>) =
        keys.partition(|key| layout.holders(bucket(key)) != after.holders(bucket(key)));
    let holders = layout.holders(bucket(&moved[0])).unwrap();
    let stays = unmoved.into_iter().find(|key| layout.holders(bucket(key)) == Some(holders)).unwrap();
    let prepare = FromRegistrar::Prepare { term: 1, view: next, ends: Some(now) };
    (prepare, moved[0].clone(), stays, holders.owner.0, holders.replica.unwrap().0)
}

/// The replica has frozen what moves, and the owner has yet to hear of it: what it does meanwhile to a bucket that moves is
/// not done by the replica. What does not move is served all the while.
#[test]
fn a_change_on_a_slot_that_moves_holds_up_no_change_on_one_that_does_not() {
    let mut circle = Circle::new(4);
    let (prepare, moves, stays, owner, replica) = with_a_fifth(&circle);
    let others: Vec<_> = (1..=4).filter(|number| ![owner, replica].contains(number)).collect();
    circle.order_one(replica, &prepare);
    let before = circle.now;
    let moved = circle.call(others[0], &moves, set("moves"));
    circle.settle();
    let tickets = [
        (others[0], circle.call(others[0], &stays, set("one"))),
        (owner, circle.call(owner, &stays, set("two"))),
        (others[1], circle.call(others[1], &stays, Operation::Get)),
    ];
    circle.settle();
    circle.pass(Duration::from_millis(1));
    let answers = tickets.map(|(number, ticket)| circle.answer(number, ticket).cloned());
    assert_eq!(answers, [Some(Answer::Done), Some(Answer::Done), Some(value("one"))]);
    assert_eq!(circle.answer(others[0], moved), None, "its new holders may have fetched it");
    // The view is given up: what was frozen is done in the same moment.
    let activate = FromRegistrar::Activate { term: 1, view: circle.view(1) };
    circle.order_one(replica, &activate);
    circle.settle();
    assert_eq!(circle.answer(others[0], moved), Some(&Answer::Done));
    assert!(circle.now.since(before) < Duration::from_millis(10));
}

#[test]
fn a_change_that_takes_long_to_come_holds_up_no_change_of_another_key() {
    let mut circle = Circle::new(4);
    let (_, long, short, owner, replica) = with_a_fifth(&circle);
    let others: Vec<_> = (1..=4).filter(|number| ![owner, replica].contains(number)).collect();
    let large = vec![7; 20 * STORE_PIECE_BYTES];
    let slow = circle.call(owner, &long, Operation::Set(large[..].into()));
    let behind = circle.call(others[0], &long, Operation::Append(b"!"[..].into()));
    // Pieces on their way to the replica stay where they are.
    let mut pieces = VecDeque::new();
    let hold_up = |circle: &mut Circle, pieces: &mut VecDeque<_>| {
        while let Some(frame) = circle.under_way.pop_front() {
            if is_piece(&frame) && frame.1 == replica {
                pieces.push_back(frame);
            } else {
                circle.under_way.push_front(frame);
                circle.deliver_one();
            }
        }
    };
    hold_up(&mut circle, &mut pieces);
    let quick =
        [owner, others[0], others[1]].map(|number| (number, circle.call(number, &short, Operation::Add(1))));
    hold_up(&mut circle, &mut pieces);
    for (at, (number, ticket)) in quick.into_iter().enumerate() {
        assert_eq!(circle.answer(number, ticket), Some(&Answer::Number(at as i64 + 1)));
    }
    assert_eq!((circle.answer(owner, slow), circle.answer(others[0], behind)), (None, None));
    // Changes of one key keep their order.
    circle.under_way.extend(pieces);
    circle.settle();
    assert_eq!(circle.answer(owner, slow), Some(&Answer::Done));
    assert_eq!(circle.answer(others[0], behind), Some(&Answer::Done));
    let [one, two] = [owner, replica].map(|number| circle.members[&number].has_of(&long));
    assert!(one == two && matches!(one, Some(Answer::Value(held)) if held.ends_with(b"\x07!")));
}

/// One that is lost is told again, however much is done meanwhile behind it.
#[test]
fn what_is_done_behind_it_does_not_make_a_lost_change_forgotten() {
    let mut circle = Circle::new(4);
    let (_, lost, other, owner, replica) = with_a_fifth(&circle);
    let caller = (1..=4).find(|number| ![owner, replica].contains(number)).unwrap();
    let ticket = circle.call(caller, &lost, set("lost"));
    // Its link carries, but the hand that it came to died with it: nobody sends the frame again.
    let replicates = |hop: &Hop| match hop {
        Hop::Carry { envelope, .. } => matches!(decode(&envelope.contents), Ok(Letter::Replicate { .. })),
        _ => false,
    };
    while !circle.under_way.iter().any(|(_, _, hop)| replicates(hop)) {
        assert!(circle.deliver_one());
    }
    for (_, _, hop) in circle.under_way.iter_mut().filter(|(_, _, hop)| replicates(hop)) {
        let Hop::Carry { envelope, .. } = hop else { continue };
        envelope.contents = encode(&Letter::HowFar(0)).into();
    }
    circle.settle();
    for _ in 0..20 {
        circle.call(owner, &other, Operation::Add(1));
        circle.pass(Duration::from_millis(100));
    }
    assert_eq!(circle.answer(caller, ticket), Some(&Answer::Done));
}

/// A client that is no member asks one that dies with the answer, and while it looks for another one so many others change
/// the key that nobody remembers its call.
#[test]
fn a_call_that_may_have_been_done_and_forgotten_is_not_done_again() {
    let mut circle = Circle::new(4);
    let (key, owner, _, others) = circle.key();
    let add = |circle: &mut Circle, client: u64, again| {
        let call = CallName { client: ClientId(client), number: 1 };
        let operation = Operation::Add(1);
        let request = Request {
            call,
            answered_below: 1,
            key: key.clone(),
            operation,
            patience_ms: 0,
            seen: None,
            again,
        };
        let now = circle.now;
        let ticket = circle.members.get_mut(&others[0]).unwrap().call_for(now, request, TIMEOUT);
        circle.carry_out(others[0]);
        circle.settle();
        circle.answer(others[0], ticket).cloned()
    };
    assert_eq!(add(&mut circle, 1_000, false), Some(Answer::Number(1)));
    for at in 1..=STORE_STRANGERS_MAX as u64 {
        assert_eq!(add(&mut circle, 1_000 + at, false), Some(Answer::Number(at as i64 + 1)));
    }
    assert_eq!(add(&mut circle, 1_000, true), None, "nobody knows");
    // Who is known is answered, and who says that it is new is believed.
    let last = STORE_STRANGERS_MAX as i64 + 1;
    assert_eq!(add(&mut circle, 1_000 + STORE_STRANGERS_MAX as u64, true), Some(Answer::Number(last)));
    assert_eq!(add(&mut circle, 5_000, false), Some(Answer::Number(last + 1)));
    assert_eq!(circle.members[&owner].has_of(&key), Some(value(&(last + 1).to_string())));
}

#[test]
fn who_is_beside_no_neighbour_of_whoever_shuts_down_hears_of_it_over_the_link_that_it_has() {
    let mut circle = Circle::new(4);
    let neighbours: Vec<_> = Mesh::new(&circle.view(1)).neighbours(MemberId(1)).collect();
    let opposite = (2..=4).find(|number| !neighbours.contains(&MemberId(*number))).unwrap();
    // Both neighbours are stopped.
    let now = circle.now;
    circle.members.get_mut(&1).unwrap().shutdown(now);
    circle.carry_out(1);
    circle.under_way.retain(|(_, to, _)| !neighbours.contains(&MemberId(*to)));
    circle.settle();
    let heard = circle.carried.iter().filter(|(_, to, letter)| {
        *to == opposite && matches!(letter, Letter::Shutdown { by } if *by == MemberId(1))
    });
    assert_eq!(heard.count(), 1);
}

#[test]
fn that_the_store_ends_is_said_again_to_a_registrar_that_may_not_have_heard_it() {
    let mut circle = Circle::new(2);
    let now = circle.now;
    let last_words = |circle: &Circle| -> Vec<_> {
        circle.members.values().map(|member| member.last_word().is_some()).collect()
    };
    assert_eq!(last_words(&circle), [false, false]);
    circle.members.get_mut(&1).unwrap().shutdown(now);
    circle.carry_out(1);
    assert_eq!(last_words(&circle), [true, false]);
    while circle.under_way.iter().any(|(_, to, _)| *to == 2) {
        circle.deliver_one();
    }
    assert_eq!(last_words(&circle), [true, true], "it has joined in");
    // Who is somebody else by now has no store to end.
    let reborn = circle.members.get_mut(&2).unwrap();
    reborn.be_reborn(now, MemberId(7));
    assert_eq!(last_words(&circle), [true, false]);
    // Nor does it end the next one when the time is over in which it would have.
    let late = now + Duration::from_secs(10);
    let reborn = circle.members.get_mut(&2).unwrap();
    reborn.handle_timeout(late);
    let ended = std::iter::from_fn(|| reborn.poll_action()).any(|action| matches!(action, Action::Ended(_)));
    reborn.handle_timeout(late + Duration::from_secs(1));
    let ended =
        ended || std::iter::from_fn(|| reborn.poll_action()).any(|action| matches!(action, Action::Ended(_)));
    assert!(!ended && reborn.last_word().is_none());
    let mut leaves = Circle::new(2);
    leaves.members.get_mut(&1).unwrap().gone(now);
    assert_eq!(last_words(&leaves), [false, false], "the store goes on without it");
}

/// That a link carries again is told after that it broke, and may come before it: the first news went another way.
#[test]
fn an_old_report_of_a_broken_link_does_not_undo_a_newer_one() {
    let mut circle = Circle::new(4);
    let (one, two, three) = (MemberId(1), MemberId(2), MemberId(3));
    for (number, broken) in [(900, vec![three]), (902, Vec::new()), (901, vec![three])] {
        let contents = encode(&Letter::Broken(broken.clone())).as_slice().into();
        let envelope = Envelope {
            epoch: 1,
            from: two,
            to: None,
            hops: 0,
            number,
            piece: 0,
            pieces: 1,
            contents,
            floods: true,
        };
        let hop = Hop::Carry { number: u64::MAX / 2 + number, received: 0, envelope };
        let now = circle.now;
        circle.members.get_mut(&1).unwrap().handle_hop(now, two, hop);
        let links = circle.members[&1].post.broken_links(one);
        assert_eq!(links.is_empty(), number != 900, "after {number}: {links:?}");
    }
}
