//! A few members that talk to each other over links that a test holds up, drops or cuts.
//!
//! ```text
//!   test: call -> [caller] ==frames==> [owner] ==frames==> [replica]      nobody dials: every pair is linked
//! ```
//!
//! The registrar is the test itself: it gives views and leases.

use super::{Action, Member, Ticket};
use crate::limits::STORE_PIECE_BYTES;
use crate::preset::Preset;
use crate::store::Config;
use crate::store::layout::{Layout, bucket};
use crate::store::tests::{member, view};
use crate::time::{Duration, Instant};
use crate::wire::decode;
use crate::wire::store::mesh::{Envelope, Hop, Letter};
use crate::wire::store::operation::{Answer, Key, Operation};
use crate::wire::store::views::{FromRegistrar, ToRegistrar};
use crate::wire::store::{MemberId, View};
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
            Letter::Replicated(_) => "replicated",
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
