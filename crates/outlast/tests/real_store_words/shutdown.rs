//! Shutting down: everybody is told, everybody returns, whatever happens to one of them meanwhile.

use crate::members::{Member, Role};
use crate::relay::Relay;
use crate::{all_see, coordinator, free_address, role_at, role_of};
use outlast::security::RunSecret;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Two seconds for all to join in, two for exit, fifty milliseconds for the last words.
const BOUND: Duration = Duration::from_millis(4_050);
/// What a busy machine may add.
const GRACE: Duration = Duration::from_millis(950);
const SHUT_DOWN: &str = "the store was shut down";

/// What happens to the last of the members, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    Stopped,
    Killed,
    Unreachable,
}

/// A store of that many, each of whom waits for a key that never comes; the last one is behind a relay.
fn waiting(count: usize) -> (outlast::Coordinator, Vec<Member>, Vec<u64>, Relay) {
    let coordinator = coordinator();
    let listen = free_address();
    let relay = Relay::to(listen);
    let (listen, advertise) = (Some(listen.to_string()), Some(relay.address.to_string()));
    let mut members: Vec<_> = (0..count)
        .map(|place| {
            let role = role_at(&coordinator, &format!("m{place}"));
            let last = Role { listen: listen.clone(), advertise: advertise.clone(), ..role.clone() };
            Member::start(if place + 1 == count { &last } else { &role })
        })
        .collect();
    members.iter().for_each(|member| assert_eq!(member.joined(), "in"));
    all_see(&mut members, count);
    let waits = members.iter_mut().map(|member| member.order("get never 60000")).collect();
    (coordinator, members, waits, relay)
}

/// The first of so many shuts the store down; so long after that something happens to the last one.
fn shut_down(count: usize, fault: Fault, after: Duration) {
    let (_coordinator, mut members, waits, relay) = waiting(count);
    let strike = |member: &mut Member| match fault {
        Fault::Nothing => {}
        Fault::Stopped => member.signal(Signal::STOP),
        Fault::Killed => member.kill(),
        Fault::Unreachable => relay.shut(true),
    };
    let begun = Instant::now();
    if after.is_zero() {
        strike(&mut members[count - 1]);
    }
    let shut = members[0].order("shutdown");
    if !after.is_zero() {
        std::thread::sleep(after);
        strike(&mut members[count - 1]);
    }
    let case = format!("{count} members, {fault:?} after {after:?}");
    let outcome = members[0].outcome_within(shut, BOUND + GRACE).unwrap_or_else(|| panic!("{case}: no end"));
    assert_eq!(outcome.text, "shut", "{case}");
    let sound = if fault == Fault::Nothing { count } else { count - 1 };
    for (place, member) in members[..sound].iter().enumerate() {
        let left = (BOUND + GRACE).saturating_sub(begun.elapsed());
        let failed = member.outcome_within(waits[place], left);
        let failed = failed.unwrap_or_else(|| panic!("{case}: {place} waits on"));
        assert_eq!(failed.text, SHUT_DOWN, "{case}");
    }
    println!("{case}: {:?}", begun.elapsed());
    if fault == Fault::Stopped {
        // It finds out when it goes on.
        members[count - 1].signal(Signal::CONT);
        assert_eq!(members[count - 1].outcome(waits[count - 1]).text, SHUT_DOWN, "{case}");
    }
}

#[test]
fn a_store_of_one_of_two_and_of_nine_ends_for_all() {
    [1, 2, 9].into_iter().for_each(|count| shut_down(count, Fault::Nothing, Duration::ZERO));
}

#[test]
fn a_member_that_is_stopped_before_or_during_a_shutdown_holds_nobody_up() {
    for after in [0, 5, 40] {
        shut_down(3, Fault::Stopped, Duration::from_millis(after));
    }
}

#[test]
fn a_member_that_is_killed_before_or_during_a_shutdown_holds_nobody_up() {
    for after in [0, 5, 40] {
        shut_down(3, Fault::Killed, Duration::from_millis(after));
    }
}

#[test]
fn a_member_that_cannot_be_reached_holds_nobody_up() {
    for after in [0, 5] {
        shut_down(3, Fault::Unreachable, Duration::from_millis(after));
    }
}

/// One shuts the store down, everybody hears of it, and then it dies with the others' answers on their way.
#[test]
fn whoever_shuts_a_store_down_may_die_meanwhile() {
    let (_coordinator, mut members, waits, _relay) = waiting(4);
    // Somebody does not answer, so the first phase takes its time.
    members[3].signal(Signal::STOP);
    let begun = Instant::now();
    members[0].order("shutdown");
    std::thread::sleep(Duration::from_millis(500));
    members[0].kill();
    for (member, wait) in members[1..3].iter().zip(&waits[1..3]) {
        let left = (BOUND + GRACE).saturating_sub(begun.elapsed());
        let failed = member.outcome_within(*wait, left).expect("it ends");
        assert_eq!(failed.text, SHUT_DOWN);
    }
}

#[test]
fn whoever_was_to_end_the_store_is_named_with_and_without_a_coordinator() {
    let named = |members: &mut Vec<Member>, place: usize, words: &str| {
        let count = members.len();
        all_see(members, count);
        let waits: Vec<_> = members.iter_mut().map(|member| member.order("get never 60000")).collect();
        members[place].kill();
        for (at, member) in members.iter().enumerate().filter(|(at, _)| *at != place) {
            let text = member.outcome(waits[at]).text;
            assert!(text.starts_with(words), "{words:?} is not what it says: {text}");
        }
    };
    let coordinator = coordinator();
    let mut members: Vec<_> = (0..4_usize)
        .map(|place| {
            let role = role_at(&coordinator, &format!("m{place}"));
            let member = Member::start(&Role { ends_store: place == 3, ..role });
            assert_eq!(member.joined(), "in");
            member
        })
        .collect();
    named(&mut members, 3, "store was shut down on rank 3 (m3, 127.0.0.1:");
    // Without a coordinator: any of them, and the one that decides on views.
    for place in [2, 0] {
        let (address, secret) = (free_address(), RunSecret::generate());
        let start =
            |rank: u32| Member::start(&Role { ends_store: true, ..role_of(address, &secret, rank, 3) });
        let mut members: Vec<_> = (0..3).map(start).collect();
        named(&mut members, place, &format!("store was shut down on rank {place} (m{place}, 127.0.0.1:"));
    }
}

#[test]
#[ignore = "minutes long: make soak"]
fn all_of_it_with_one_to_nine_members() {
    for count in 1..=9 {
        shut_down(count, Fault::Nothing, Duration::ZERO);
        for fault in [Fault::Stopped, Fault::Killed, Fault::Unreachable] {
            for after in [0, 1, 5, 20, 60].map(Duration::from_millis) {
                if count > 1 {
                    shut_down(count, fault, after);
                }
            }
        }
    }
}
