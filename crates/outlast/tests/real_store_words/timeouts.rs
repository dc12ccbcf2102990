//! For every way in which a call may not end: the text names the true cause.

use crate::members::{Member, Role};
use crate::relay::Relay;
use crate::{all_see, coordinator, free_address, members, role_at, role_of};
use outlast::Coordinator;
use outlast::security::RunSecret;
use rustix::process::Signal;
use std::time::Duration;

/// How long a call may take here: long enough that silence is noticed, short enough that nobody is put out.
pub(crate) const CALL_MS: u64 = 2_500;

pub(crate) fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

/// A get of that key ends at its time, and its text has those parts.
pub(crate) fn assert_timeout(member: &mut Member, key: &str, parts: &[&str]) -> String {
    let outcome = member.done(&format!("get {key} {CALL_MS}"));
    println!("{}", outcome.text);
    let begins = format!("get of {key:?} timed out after ");
    assert!(outcome.text.starts_with(&begins), "{}", outcome.text);
    assert_says(&outcome.text, parts);
    let bound = Duration::from_millis(CALL_MS) + Duration::from_millis(500);
    assert!(outcome.took < bound, "it took {:?}", outcome.took);
    assert!(outcome.text.len() <= 4_096, "{} bytes", outcome.text.len());
    outcome.text
}

#[test]
fn a_key_that_is_absent() {
    let coordinator = coordinator();
    let mut both = members(&coordinator, &["a", "b"]);
    let key = both[0].done("key-of b").text;
    assert_timeout(
        &mut both[0],
        &key,
        &[
            ": the key is absent; the call waits at its owner, rank 1 (b, 127.0.0.1:",
            "\n  times: the store began ",
            "\n  view 2 of 2 members; whoever decides on views is connected for ",
            "\n  owner rank 1 (b, ",
            "says (over links and by datagram): in view 2, key absent, the call waits there for ",
            "\n  replica this member, rank 0",
            "-> [connected for ",
            " messages pending",
            "(since +",
        ],
    );
    let own = both[0].done("key-of a").text;
    assert_timeout(&mut both[0], &own, &[": the key is absent; this member owns it\n"]);
}

#[test]
fn an_owner_that_is_stopped_and_a_replica_that_is() {
    let coordinator = coordinator();
    let mut both = members(&coordinator, &["a", "b"]);
    let (theirs, ours) = (both[0].done("key-of b").text, both[0].done("key-of a").text);
    both[1].signal(Signal::STOP);
    assert_timeout(
        &mut both[0],
        &theirs,
        &[
            ": the key's owner, rank 1 (b, 127.0.0.1:",
            "), is stopped: its kernel accepts connections, and its process answers nothing\n",
            "says nothing; its kernel accepts connections; whoever decides on views heard it ",
        ],
    );
    let (begins, replica) = (format!("set of {ours:?} timed out after "), ", to acknowledge\n");
    let waits = ": the owner, this member, rank 0, waits for its replica, rank 1 (b, 127.0.0.1:";
    let unacknowledged = "1 changes not acknowledged by its replica";
    let text = both[0].done(&format!("set-within {ours} value {CALL_MS}")).text;
    assert_says(&text, &[&begins, waits, replica, unacknowledged]);
    // Another one is there in time.
    let set = both[0].order(&format!("set {ours} value"));
    assert!(both[0].outcome_within(set, Duration::from_secs(1)).is_none(), "it waits for the copy");
    both[1].signal(Signal::CONT);
    assert_eq!(both[0].outcome(set).text, "set");
    assert_eq!(both[1].done(&format!("get {ours} {CALL_MS}")).text, "value");
}

/// A pop is two calls: one finds that there is an element, at the owner alone; the other takes it, which its copy must hear
/// of. Both share the time that the caller gave.
#[test]
fn a_pop_from_a_queue_whose_copy_is_stopped_ends_in_its_time() {
    let coordinator = coordinator();
    let mut both = members(&coordinator, &["a", "b"]);
    let ours = both[0].done("queue-of a").text;
    assert_eq!(both[0].done(&format!("push {ours} element")).text, "pushed");
    both[1].stop();
    let outcome = both[0].done(&format!("pop {ours} {CALL_MS}"));
    assert!(outcome.text.contains(" timed out after "), "{}", outcome.text);
    let bound = Duration::from_millis(CALL_MS) + Duration::from_millis(500);
    assert!(outcome.took < bound, "it took {:?}", outcome.took);
    both[1].signal(Signal::CONT);
}

#[test]
fn an_owner_that_is_killed_while_nobody_decides_on_views() {
    let coordinator = coordinator();
    let mut both = members(&coordinator, &["a", "b"]);
    let key = both[0].done("key-of b").text;
    drop(coordinator);
    both[1].kill();
    assert_timeout(
        &mut both[0],
        &key,
        &[
            ": the key's owner, rank 1 (b, 127.0.0.1:",
            "), is gone: its kernel refuses connections; whoever decides on views is not connected for ",
            "Connection refused",
            "-> [disconnected for ",
        ],
    );
    // What it owns itself it may not answer for either, without a lease.
    let own = both[0].done("key-of a").text;
    assert_timeout(
        &mut both[0],
        &own,
        &[
            ": this member owns the key, but has not been heard by whoever decides on views: its lease has run out;",
        ],
    );
}

/// Two members, each behind a relay, so that what passes between them can be stopped. Streams to the coordinator do not
/// go through them.
fn behind_relays(coordinator: &Coordinator) -> (Vec<Role>, Vec<Relay>) {
    let apart = ["a", "b"].map(|name| {
        let listen = free_address();
        let relay = Relay::to(listen);
        let role = Role {
            listen: Some(listen.to_string()),
            advertise: Some(relay.address.to_string()),
            ..role_at(coordinator, name)
        };
        (role, relay)
    });
    apart.into_iter().unzip()
}

#[test]
fn a_route_on_which_streams_are_blocked() {
    let coordinator = coordinator();
    let (roles, relays) = behind_relays(&coordinator);
    let mut both: Vec<_> = roles.iter().map(Member::start).collect();
    all_see(&mut both, 2);
    let key = both[0].done("key-of b").text;
    assert_eq!(both[0].done(&format!("set {key} value")).text, "set");
    relays.iter().for_each(|relay| relay.shut(false));
    assert_timeout(
        &mut both[0],
        &key,
        &[
            &format!(
                "(b, {}), lives and answers datagrams, but the route is cut: this member, rank ",
                relays[1].address
            ),
            "disconnected for ",
            "says (by datagram): in view ",
            ", key present",
        ],
    );
    relays.iter().for_each(|relay| relay.shut(true));
    assert_timeout(
        &mut both[0],
        &key,
        &[
            &format!("(b, {}), lives, for it was heard by whoever decides on views ", relays[1].address),
            " ago, but nothing passes between this member and it: the network between them is cut\n",
            "says nothing; ",
        ],
    );
}

#[test]
fn a_member_that_was_never_connected() {
    let coordinator = coordinator();
    let (roles, relays) = behind_relays(&coordinator);
    relays.iter().for_each(|relay| relay.shut(false));
    // Somebody is to be in the next view whom it never reaches.
    let mut first = Member::start(&roles[0]);
    assert_eq!(first.joined(), "in");
    let _second = Member::start(&roles[1]);
    let named = format!("(b, {})", relays[1].address);
    let mut text = String::new();
    // The second process may take its time to start.
    for _ in 0..8 {
        text = first.done(&format!("get never {CALL_MS}")).text;
        if text.contains(&named) {
            break;
        }
    }
    println!("{text}");
    assert_says(
        &text,
        &["get of \"never\" timed out after ", "\n  never connected with this member: rank ", &named],
    );
    // It is left out after a while, long before it gives up by itself, and the store goes on.
    let set = first.done("set key value");
    assert_eq!(set.text, "set");
    assert!(set.took < Duration::from_secs(15), "frozen for {:?}", set.took);
}

#[test]
fn a_member_that_was_never_started() {
    let (address, secret) = (free_address(), RunSecret::generate());
    let role = |rank, join_ms| Role { join_ms, ..role_of(address, &secret, rank, 3) };
    // The one that decides on views gives up last.
    let decides = Member::start(&role(0, 12_000));
    let waits = Member::start(&role(1, 5_000));
    let expected = "joining the store took longer than 5s: 1 of 3 members never connected: rank 2";
    assert_eq!(waits.joined(), expected);
    drop(waits);
    let text = decides.joined();
    assert_says(&text, &["members never connected: rank ", "rank 2"]);
    drop(decides);
    let alone = Member::start(&role(2, CALL_MS));
    let text = alone.joined();
    assert_says(&text, &[&format!("{address}, which decides on views, cannot be reached: "), "refused"]);
}
