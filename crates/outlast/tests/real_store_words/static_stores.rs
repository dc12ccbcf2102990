//! Stores without a coordinator (rule 29), with real processes: what goes on, what waits, and what is said meanwhile, when a
//! member is stopped, killed, or back under its rank.

use crate::members::{Member, PATIENCE};
use crate::timeouts::{CALL_MS, assert_says, assert_timeout};
use crate::{all_see, free_address, role_of};
use outlast::security::RunSecret;
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A store of so many, all in the view.
struct Static {
    address: SocketAddr,
    secret: RunSecret,
    members: Vec<Member>,
}

impl Static {
    fn of(count: u32) -> Self {
        let (address, secret) = (free_address(), RunSecret::generate());
        let members: Vec<_> =
            (0..count).map(|rank| Member::start(&role_of(address, &secret, rank, count))).collect();
        members.iter().for_each(|member| assert_eq!(member.joined(), "in"));
        let mut store = Self { address, secret, members };
        all_see(&mut store.members, count as usize);
        store
    }

    fn kill(&mut self, rank: usize) {
        self.members[rank].kill();
    }

    /// Starts the process of that rank again; it is let in.
    fn restart(&mut self, rank: usize) {
        let world = self.members.len() as u32;
        self.members[rank] = Member::start(&role_of(self.address, &self.secret, rank as u32, world));
        assert_eq!(self.members[rank].joined(), "in");
    }

    /// Something that one of them owns.
    fn key_of(&mut self, owner: usize, asked: usize) -> String {
        self.members[asked].done(&format!("key-of m{owner}")).text
    }
}

/// Nobody takes over from a member that is only silent, whether it decides on views or not.
#[test]
fn of_two_one_waits_for_the_other_that_is_stopped_and_says_so() {
    for (asks, other) in [(0, 1), (1, 0)] {
        let mut store = Static::of(2);
        let key = store.key_of(other, asks);
        store.members[other].stop();
        let owner = format!(": the key's owner, rank {other} (m{other}, 127.0.0.1:");
        let says = "), is stopped: its kernel accepts connections, and its process answers nothing";
        assert_timeout(&mut store.members[asks], &key, &[&owner, says]);
        store.members[other].signal(Signal::CONT);
        all_see(&mut store.members, 2);
        assert_eq!(store.members[asks].done(&format!("set {key} here")).text, "set");
        assert_eq!(store.members[other].done(&format!("get {key} {CALL_MS}")).text, "here");
    }
}

#[test]
#[ignore = "a minute: make soak"]
fn of_two_one_waits_for_the_other_that_is_stopped_however_long() {
    for (asks, other) in [(0, 1), (1, 0)] {
        let mut store = Static::of(2);
        let key = store.key_of(other, asks);
        assert_eq!(store.members[asks].done(&format!("set {key} before")).text, "set");
        store.members[other].stop();
        // Longer than any member of a run would be waited for.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(25) {
            let text = store.members[asks].done(&format!("set-within {key} after {CALL_MS}")).text;
            assert_says(&text, &[" timed out after "]);
        }
        store.members[other].signal(Signal::CONT);
        all_see(&mut store.members, 2);
        assert_eq!(store.members[asks].done(&format!("set {key} last")).text, "set");
        assert_eq!(store.members[other].done(&format!("get {key} {CALL_MS}")).text, "last");
    }
}

#[test]
fn of_two_the_first_goes_on_alone_when_the_other_was_killed() {
    let mut store = Static::of(2);
    let key = store.key_of(1, 0);
    assert_eq!(store.members[1].done("fill key 50").text, "filled");
    store.kill(1);
    let set = store.members[0].done(&format!("set {key} alone"));
    assert_eq!(set.text, "set");
    println!("the first went on alone after {:?}", set.took);
    assert_eq!(store.members[0].done("ranks").text, "[0]");
    assert_eq!(store.members[0].done("missing key 50").text, "");
    store.restart(1);
    assert_eq!(store.members[1].done("ranks").text, "[0, 1]");
    assert_eq!(store.members[1].done("missing key 50").text, "");
    assert_eq!(store.members[1].done(&format!("get {key} {CALL_MS}")).text, "alone");
}

/// Whoever decides on views is away, so nobody does.
#[test]
fn of_two_the_second_waits_until_the_first_that_was_killed_is_back() {
    let mut store = Static::of(2);
    let key = store.key_of(0, 1);
    assert_eq!(store.members[1].done("fill key 50").text, "filled");
    store.kill(0);
    let owner = format!(": the key's owner, rank 0 (m0, {}), is gone: ", store.address);
    let says = "whoever decides on views is not connected for ";
    assert_timeout(&mut store.members[1], &key, &[&owner, says]);
    store.restart(0);
    assert_eq!(store.members[0].done("missing key 50").text, "");
    assert_eq!(store.members[1].done(&format!("set {key} here")).text, "set");
    assert_eq!(store.members[0].done("ranks").text, "[0, 1]");
}

#[test]
fn of_three_one_waits_and_says_that_the_majority_is_lost() {
    let mut store = Static::of(3);
    assert_eq!(store.members[0].done("fill key 50").text, "filled");
    let lost = [1, 2].map(|rank| store.key_of(rank, 0));
    [1, 2].iter().for_each(|rank| store.members[*rank].signal(Signal::KILL));
    [1, 2].iter().for_each(|rank| store.kill(*rank));
    let deadline = Instant::now() + PATIENCE;
    for key in lost {
        let words = "the majority of the 3 members of view ";
        // It takes a moment to know of both.
        let text = loop {
            let text = store.members[0].done(&format!("set-within {key} value {CALL_MS}")).text;
            assert_says(&text, &[" timed out after "]);
            if text.contains(words) {
                break text;
            }
            assert!(Instant::now() < deadline, "{words:?} is not what it says: {text}");
        };
        println!("{text}");
        assert_says(
            &text,
            &[
                " is lost (away: ",
                "rank 1 (m1, 127.0.0.1:",
                "rank 2 (m2, 127.0.0.1:",
                "): calls wait until they are back\n",
            ],
        );
    }
    assert_eq!(store.members[0].done("ranks").text, "[0, 1, 2]");
}

#[test]
fn of_three_one_that_was_killed_is_back_under_its_rank_and_nothing_is_lost() {
    let mut store = Static::of(3);
    assert_eq!(store.members[0].done("fill key 100").text, "filled");
    store.kill(2);
    // The others do not wait for it.
    assert_eq!(store.members[1].done("fill later 100").text, "filled");
    store.restart(2);
    all_see(&mut store.members, 3);
    for member in &mut store.members {
        assert_eq!(member.done("ranks").text, "[0, 1, 2]");
        assert_eq!(member.done("missing key 100").text, "");
        assert_eq!(member.done("missing later 100").text, "");
    }
}
