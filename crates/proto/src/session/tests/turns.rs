//! Calls of two votes: a turn that is owed is paid, given up, or over.

use super::*;
use crate::ballot::optimise::{KIND, RingOutcome};

fn turn(number: u64) -> BallotId {
    BallotId { kind: KIND, number }
}

fn first_turn_agreed(number: u64) -> ToPeer {
    let outcome = RingOutcome::Measure { members: vec![id(1), id(2)], heats: Vec::new() };
    ended(turn(number), BallotEnd::Agreed(crate::wire::encode(&outcome)))
}

fn given_up_by(number: u8, ballot: u64) -> ToPeer {
    let who = Waiting {
        peer: id(number),
        name: format!("p{number}"),
        health: "alive".to_owned(),
        last_call: "optimize_topology".to_owned(),
        age_ms: 1,
    };
    ended(turn(ballot), BallotEnd::GivenUp(who))
}

fn take_back(number: u64) -> Action {
    send(ToCoordinator::TakeBack { ballot: turn(number) })
}

fn cast(number: u64, wish: &[u8]) -> Action {
    send(ToCoordinator::Vote { ballot: turn(number), wish: wish.to_vec() })
}

impl Bench {
    fn begin(&mut self) -> CallId {
        self.session.handle_ballot_call(self.now, KIND, b"begin".to_vec(), self.now + ms(60_000))
    }

    fn go_on(&mut self) -> CallId {
        self.session.handle_next_turn(self.now, KIND, b"go on".to_vec(), self.now + ms(60_000))
    }

    /// A session whose program has heard the outcome of the first turn.
    fn owing() -> Self {
        let mut bench = Self::of(&[1, 2]);
        bench.begin();
        bench.hear(first_turn_agreed(1));
        bench.drain();
        bench
    }
}

#[test]
fn a_program_that_gives_up_between_its_votes_says_so_and_one_that_goes_on_does_not() {
    let mut bench = Bench::owing();
    bench.session.handle_turn_given_up();
    assert_eq!(bench.drain(), [take_back(2)]);
    bench.session.handle_turn_given_up();
    assert_eq!(bench.drain(), [], "once");
    let mut bench = Bench::owing();
    bench.go_on();
    bench.session.handle_turn_given_up();
    assert_eq!(bench.drain(), [cast(2, b"go on")]);
    // Cancelled in the second vote: the same word.
    let mut bench = Bench::owing();
    let call = bench.go_on();
    bench.drain();
    bench.session.handle_cancel(bench.now, call);
    assert_eq!(bench.drain(), [take_back(2), fail(call, CallError::Cancelled)]);
}

#[test]
fn what_could_not_be_said_is_said_after_the_resume() {
    let mut bench = Bench::owing();
    bench.session.handle_disconnected(bench.now);
    bench.session.handle_turn_given_up();
    bench.wait(ms(20));
    bench.session.handle_connected(bench.now);
    bench.hear(ToPeer::Resumed { term: 1 });
    bench.drain();
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), [take_back(2)]);
    // Until it is heard that it is over.
    bench.hear(given_up_by(1, 2));
    bench.reconnect();
    bench.hear(ToPeer::Resumed { term: 1 });
    bench.drain();
    bench.hear(PROCEED);
    assert_eq!(bench.drain(), []);
}

#[test]
fn whoever_comes_to_its_second_vote_when_it_is_over_is_told_how_it_ended() {
    let mut bench = Bench::owing();
    assert!(!bench.session.is_turn_over());
    bench.hear(given_up_by(2, 2));
    assert!(bench.session.is_turn_over(), "whoever still works may stop");
    let call = bench.go_on();
    let actions = bench.drain();
    let [Action::Call(id, Command::Finish(Err(CallError::GivenUp(why))))] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(*id == call && why.contains("p2") && why.contains("optimize_topology"), "{why}");
    // The next call is a new one.
    bench.begin();
    assert_eq!(bench.drain(), [cast(3, b"begin")]);
    // The same where a deadline passed meanwhile.
    let mut bench = Bench::owing();
    bench.hear(ended(turn(2), BallotEnd::TimedOut(Vec::new())));
    let call = bench.go_on();
    assert_eq!(bench.drain(), [fail(call, CallError::Timeout(Vec::new()))]);
}

#[test]
fn who_gave_up_before_it_heard_of_the_first_turn_owes_the_second_all_the_same() {
    let mut bench = Bench::of(&[1, 2]);
    let call = bench.begin();
    bench.drain();
    bench.session.handle_cancel(bench.now, call);
    assert_eq!(bench.drain(), [take_back(1), fail(call, CallError::Cancelled)]);
    bench.hear(first_turn_agreed(1)); // It had been counted before the word came.
    assert_eq!(bench.drain(), [take_back(2)]);
}

#[test]
fn who_gives_up_and_calls_again_votes_in_the_ballot_after_that() {
    let mut bench = Bench::owing();
    bench.begin();
    assert_eq!(bench.drain(), [take_back(2), cast(2, b"begin")], "it began anew without a word");
    bench.hear(given_up_by(1, 2));
    assert_eq!(bench.drain(), [cast(3, b"begin")]);
}
