//! Calls that are given up: by a client that is no member and asks elsewhere or again, or by a member's own program. What
//! is left of them is in nobody's way.

use super::*;

/// A request of a client that is no member, under that number.
fn request(client: u64, number: u64, key: &Key, operation: Operation, again: bool) -> Request {
    let call = CallName { client: ClientId(client), number };
    let (key, patience_ms, seen) = (key.clone(), 0, None);
    Request { call, answered_below: number, key, operation, patience_ms, seen, again }
}

impl Circle {
    fn call_for(&mut self, number: u64, request: Request) -> Ticket {
        let now = self.now;
        let ticket = self.members.get_mut(&number).unwrap().call_for(now, request, TIMEOUT);
        self.carry_out(number);
        self.settle();
        ticket
    }

    fn waiting_at(&self, number: u64) -> usize {
        self.members[&number].waiting_room.waiting()
    }
}

/// A client that lost its stream comes back to the same member, which hears only then that the first stream is gone.
#[test]
fn a_client_that_asks_again_is_answered_though_its_first_call_is_given_up() {
    let mut circle = Circle::new(4);
    let (key, _, _, others) = circle.key();
    let asked = others[0];
    let first = circle.call_for(asked, request(1_000, 1, &key, Operation::Get, false));
    let second = circle.call_for(asked, request(1_000, 1, &key, Operation::Get, true));
    circle.members.get_mut(&asked).unwrap().abandon(first);
    circle.call(others[1], &key, set("here"));
    circle.settle();
    assert_eq!(circle.answer(asked, second), Some(&value("here")));
    assert_eq!(circle.answer(asked, first), None);
    assert_eq!(circle.members[&asked].calls_under_way(), 0);
}

/// An owner is told below which number all calls are over. One that is on its way is not, whoever else counts as far.
#[test]
fn the_end_of_a_clients_call_does_not_end_our_own_of_the_same_number() {
    let mut circle = Circle::new(4);
    let (key, _, _, others) = circle.key();
    let caller = others[0];
    circle.lost = |letter| matches!(letter, Letter::Request(_));
    let first = circle.call(caller, &key, Operation::Add(1));
    circle.settle();
    circle.lost = |_| false;
    let of_client = circle.call_for(caller, request(1_000, first.0, &key, Operation::Add(10), false));
    assert_eq!(circle.answer(caller, of_client), Some(&Answer::Number(10)));
    let second = circle.call(caller, &key, Operation::Add(100));
    circle.settle();
    assert_eq!(circle.answer(caller, second), Some(&Answer::Number(110)));
    // What was lost is sent again.
    circle.pass(Duration::from_secs(3));
    assert_eq!(circle.answer(caller, first), Some(&Answer::Number(111)));
}

/// No message says that a wait was given up; but one that goes on is told of again and again.
#[test]
fn an_owner_forgets_who_waits_and_is_not_heard_any_more() {
    let mut circle = Circle::new(4);
    let (key, owner, _, others) = circle.key();
    let [goes, stays] = [others[0], others[1]];
    let given_up = circle.call(goes, &key, Operation::Get);
    let kept = circle.call(stays, &key, Operation::Get);
    circle.settle();
    assert_eq!(circle.waiting_at(owner), 2);
    circle.members.get_mut(&goes).unwrap().abandon(given_up);
    circle.pass(Duration::from_secs(40));
    assert_eq!(circle.waiting_at(owner), 1);
    circle.call(owner, &key, set("here"));
    circle.settle();
    assert_eq!(circle.answer(stays, kept), Some(&value("here")));
}
