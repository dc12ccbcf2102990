//! Clients that are no members, and the members that they ask: one that is stopped is not waited for, and whatever is asked of
//! two of them is done once.

use super::{all_see, coordinator, members};
use crate::members::{Member, PATIENCE};
use crate::waits::until_waiting;
use outlast::Coordinator;
use outlast::store::Client;
use rustix::process::Signal;
use std::time::Duration;

fn client(coordinator: &Coordinator) -> Client {
    let run = "default".parse().expect("a run id");
    Client::new(coordinator.address().to_string(), &run, coordinator.secret()).expect("a client")
}

/// Members in the order in which a client asks them: that of the view.
fn in_order(coordinator: &Coordinator) -> (Vec<Member>, Vec<String>) {
    let names = ["a", "b", "c"];
    let mut members = members(coordinator, &names);
    let order = members[0].done("names").text;
    let rank_of = |name: &str| order.find(name).expect("one of them");
    let mut named: Vec<_> = names.into_iter().zip(members).collect();
    named.sort_by_key(|(name, _)| rank_of(name));
    named.into_iter().map(|(name, member)| (member, name.to_owned())).unzip()
}

#[test]
fn a_client_asks_another_member_when_the_first_is_stopped() {
    let coordinator = coordinator();
    let (mut members, names) = in_order(&coordinator);
    let client = client(&coordinator);
    let key = members[1].done(&format!("key-of {}", names[1])).text;
    assert_eq!(members[1].done(&format!("set {key} here")).text, "set");
    // Before it is asked: nobody waits for it until there is no time for another.
    members[0].stop();
    assert_eq!(client.get(&key, Duration::from_secs(3)).expect("another is asked"), b"here");
    members[0].signal(Signal::CONT);
    all_see(&mut members, 3);
    // While it is asked.
    let late = format!("{key}/late");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.wait(&late, PATIENCE));
        until_waiting(&coordinator, 1, PATIENCE);
        members[0].stop();
        assert_eq!(members[1].done(&format!("set {late} here")).text, "set");
        waits.join().expect("no panic").expect("another is asked");
    });
}

/// The first member has passed the question on, and is stopped when the answer comes. When it goes on it finds that its
/// client has asked somebody else.
#[test]
fn what_a_client_asks_of_two_members_is_done_once() {
    let coordinator = coordinator();
    let (mut members, names) = in_order(&coordinator);
    let client = client(&coordinator);
    let key = members[1].done(&format!("key-of {}", names[2])).text;
    members[2].stop();
    std::thread::scope(|scope| {
        let adds = scope.spawn(|| client.add(&key, 1, PATIENCE));
        // Nobody can be asked whether it was passed on; if it was not, less is tested.
        std::thread::sleep(Duration::from_millis(500));
        assert!(!adds.is_finished(), "its owner is stopped");
        members[0].stop();
        members[2].signal(Signal::CONT);
        assert_eq!(adds.join().expect("no panic").expect("another is asked"), 1);
    });
    members[0].signal(Signal::CONT);
    all_see(&mut members, 3);
    assert_eq!(client.add(&key, 0, PATIENCE).expect("a number"), 1);
}
