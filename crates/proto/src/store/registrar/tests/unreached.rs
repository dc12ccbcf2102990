//! A newcomer that is heard by its registrar and by nobody else.

use super::super::{Command, FromRegistrar, Knocked, Registrar, StreamId, ToRegistrar};
use super::{at, bootstrapped, comes, said, says};
use crate::wire::store::MemberId;

/// A registrar with the first in its view. The second comes; both have frozen what moves, and the first has all it needs.
fn with_a_newcomer() -> Registrar {
    let mut registrar = bootstrapped(1);
    registrar.found_with(1);
    comes(&mut registrar, at(100), 2, None, None);
    registrar.handle_timeout(at(150));
    assert_eq!(said(&mut registrar), ["1: prepare 2", "2: prepare 2"]);
    says(&mut registrar, at(160), 1, ToRegistrar::Prepared(2));
    says(&mut registrar, at(160), 2, ToRegistrar::Prepared(2));
    says(&mut registrar, at(160), 1, ToRegistrar::Ready(2));
    registrar
}

fn renews(registrar: &mut Registrar, now: u64, number: u64, fetched: Option<u64>) {
    says(registrar, at(now), number, ToRegistrar::Renew { number: 1, keys: 0, bytes: 0, waits: 0, fetched });
}

/// Both renew for so long. What was said, but for leases.
fn renewed(
    registrar: &mut Registrar,
    times: std::ops::Range<u64>,
    fetched: impl Fn(u64) -> Option<u64>,
) -> Vec<String> {
    for now in times.step_by(100) {
        renews(registrar, now, 1, Some(0));
        renews(registrar, now, 2, fetched(now));
    }
    said(registrar).into_iter().filter(|word| !word.ends_with("lease")).collect()
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_newcomer_that_reaches_no_member_is_left_out_and_what_was_frozen_is_served_again() {
    let mut registrar = with_a_newcomer();
    assert_eq!(renewed(&mut registrar, 200..5_200, |_| Some(0)), NOTHING, "it is waited for");
    assert_eq!(renewed(&mut registrar, 5_200..5_300, |_| Some(0)), ["2: out", "1: view 1"]);
    assert_eq!(registrar.view().map(|view| view.epoch), Some(1));
}

#[test]
fn the_newcomer_and_the_log_are_told_why() {
    let mut registrar = with_a_newcomer();
    for now in (200..5_300).step_by(100) {
        renews(&mut registrar, now, 1, Some(0));
        renews(&mut registrar, now, 2, Some(0));
    }
    let (mut logged, mut told) = (String::new(), String::new());
    while let Some(command) = registrar.poll_command() {
        match command {
            Command::Note(text) => logged = text,
            Command::Send(StreamId(2), FromRegistrar::Out(text)) => told = text,
            _ => {}
        }
    }
    let says_so =
        logged.starts_with("store view 2 is given up: rank 2 (p2, 127.0.0.1:2) is heard here, but for 5s");
    assert!(says_so, "{logged}");
    assert!(told.contains("reaches whoever decides on views, but for 5s nothing came to it"), "{told}");
}

#[test]
fn it_registers_anew_and_waits_longer_each_time_until_somebody_from_its_host_gets_in() {
    let mut registrar = with_a_newcomer();
    renewed(&mut registrar, 200..5_300, |_| Some(0));
    // It comes back at once, under another name, and may not freeze the store at once.
    comes(&mut registrar, at(5_300), 3, None, None);
    let waits = |command| matches!(command, Command::Send(StreamId(3), FromRegistrar::Waits(_)));
    assert!(std::iter::from_fn(|| registrar.poll_command()).any(waits), "it is told so");
    let both = |registrar: &mut Registrar, times: std::ops::Range<u64>| {
        for now in times.step_by(100) {
            renews(registrar, now, 1, Some(0));
            renews(registrar, now, 3, Some(0));
            registrar.handle_timeout(at(now));
        }
        said(registrar).into_iter().filter(|word| !word.ends_with("lease")).collect::<Vec<_>>()
    };
    assert_eq!(both(&mut registrar, 5_400..10_200), NOTHING);
    assert_eq!(both(&mut registrar, 10_200..10_300), ["1: prepare 3", "3: prepare 3"]);
    says(&mut registrar, at(10_300), 1, ToRegistrar::Prepared(3));
    says(&mut registrar, at(10_300), 3, ToRegistrar::Prepared(3));
    says(&mut registrar, at(10_300), 1, ToRegistrar::Ready(3));
    assert_eq!(both(&mut registrar, 10_400..15_400), ["3: out", "1: view 1"]);
    comes(&mut registrar, at(15_500), 4, None, None);
    registrar.handle_timeout(at(25_200));
    assert!(!said(&mut registrar).contains(&"4: prepare 4".to_owned()), "twice as long");
    registrar.handle_timeout(at(25_400));
    assert!(said(&mut registrar).contains(&"4: prepare 4".to_owned()));
    for number in [1, 4] {
        says(&mut registrar, at(25_500), number, ToRegistrar::Prepared(4));
        says(&mut registrar, at(25_500), number, ToRegistrar::Ready(4));
    }
    registrar.handle_decided(at(25_500), 4);
    comes(&mut registrar, at(25_600), 5, None, None);
    registrar.handle_timeout(at(25_700));
    assert!(said(&mut registrar).contains(&"5: prepare 5".to_owned()), "all is well with that host");
}

#[test]
fn a_newcomer_to_whom_more_comes_is_waited_for_however_long_it_takes() {
    let mut registrar = with_a_newcomer();
    assert_eq!(renewed(&mut registrar, 200..60_000, |now| Some(now / 3_000)), NOTHING);
    says(&mut registrar, at(60_000), 2, ToRegistrar::Ready(2));
    registrar.handle_decided(at(60_000), 2);
    assert_eq!(said(&mut registrar), ["1: view 2", "2: view 2"]);
}

#[test]
fn one_that_cannot_say_how_much_has_come_is_waited_for_too() {
    let mut registrar = with_a_newcomer();
    assert_eq!(renewed(&mut registrar, 200..60_000, |_| None), NOTHING);
}

#[test]
fn while_a_member_is_stopped_nothing_is_held_against_the_newcomer() {
    let mut registrar = with_a_newcomer();
    // Its kernel accepts connects all the while: it is waited for, being the only one that has anything.
    for now in (200..12_000).step_by(100) {
        renews(&mut registrar, now, 2, Some(0));
        registrar.handle_knock(at(now), MemberId(1), Knocked::Accepted);
    }
    assert_eq!(said(&mut registrar), NOTHING);
    assert_eq!(
        renewed(&mut registrar, 12_000..16_900, |_| Some(0)),
        NOTHING,
        "it has only just begun to hand over"
    );
    assert_eq!(renewed(&mut registrar, 16_900..17_200, |_| Some(0)), ["2: out", "1: view 1"]);
}
