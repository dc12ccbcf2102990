//! What a registrar says to whom, step by step; above all one that was restarted.

mod claims;
mod ends;
mod unreached;

use super::{Command, FromRegistrar, Knocked, Registrar, StreamId, ToRegistrar};
use crate::id::PeerId;
use crate::preset::Preset;
use crate::store::Config;
use crate::time::{Duration, Instant};
use crate::wire::store::{ClientId, MemberId, StoreMember, View};

fn member(number: u64) -> StoreMember {
    StoreMember {
        id: MemberId(number),
        peer: PeerId::from_bytes([number as u8; 16]),
        client: ClientId(number),
        rank: number as u32,
        address: ([127, 0, 0, 1], number as u16).into(),
        closed_port: 0,
        name: format!("p{number}"),
        host: number,
        ends_store: false,
    }
}

fn view(epoch: u64, members: &[u64]) -> View {
    View { epoch, founder: 9, members: members.iter().map(|number| member(*number)).collect() }
}

fn at(millis: u64) -> Instant {
    Instant::ORIGIN + Duration::from_secs(10) + Duration::from_millis(millis)
}

/// A registrar that was restarted a moment ago, and listens for two seconds.
fn restarted() -> Registrar {
    let mut registrar = Registrar::new(Config::preset(Preset::Local), 1);
    registrar.handle_timeout(at(0));
    registrar.listen(at(2_000));
    registrar
}

/// A member has the stream of its own number.
fn comes(registrar: &mut Registrar, now: Instant, number: u64, view: Option<View>, next: Option<View>) {
    let epoch = next.as_ref().or(view.as_ref()).map_or(0, |view| view.epoch);
    let register =
        ToRegistrar::Register { member: member(number), view, term: 1, epoch, next, founder: None };
    says(registrar, now, number, register);
}

fn says(registrar: &mut Registrar, now: Instant, number: u64, message: ToRegistrar) {
    registrar.handle_message(now, StreamId(number), PeerId::from_bytes([number as u8; 16]), message);
}

/// Who was told that which view is in force, who was given a lease, who was put out.
fn said(registrar: &mut Registrar) -> Vec<String> {
    let mut said = Vec::new();
    while let Some(command) = registrar.poll_command() {
        match command {
            Command::Send(stream, FromRegistrar::Activate { view, .. }) => {
                said.push(format!("{}: view {}", stream.0, view.epoch));
            }
            Command::Send(stream, FromRegistrar::Prepare { view, .. }) => {
                said.push(format!("{}: prepare {}", stream.0, view.epoch));
            }
            Command::Send(stream, FromRegistrar::Granted { .. }) => said.push(format!("{}: lease", stream.0)),
            Command::Send(stream, FromRegistrar::Out(_)) => said.push(format!("{}: out", stream.0)),
            _ => {}
        }
    }
    said
}

fn renew() -> ToRegistrar {
    ToRegistrar::Renew { number: 1, keys: 0, bytes: 0, waits: 0, fetched: None }
}

#[test]
fn a_restarted_registrar_gives_no_lease_before_it_knows_how_things_stand() {
    let mut registrar = restarted();
    comes(&mut registrar, at(10), 1, Some(view(5, &[1, 2])), None);
    says(&mut registrar, at(20), 1, renew());
    assert_eq!(said(&mut registrar), [] as [&str; 0]);
    // All have come, and nobody froze for another view: there is none.
    comes(&mut registrar, at(30), 2, Some(view(5, &[1, 2])), None);
    assert_eq!(said(&mut registrar), ["1: view 5", "2: view 5"]);
    says(&mut registrar, at(40), 1, ToRegistrar::Activated(5));
    says(&mut registrar, at(40), 1, renew());
    assert_eq!(said(&mut registrar), ["1: lease"]);
    says(&mut registrar, at(50), 2, renew());
    assert_eq!(said(&mut registrar), [] as [&str; 0], "it did not say yet that it is in the view");
}

#[test]
fn whoever_may_be_in_a_later_view_is_waited_for() {
    let mut registrar = restarted();
    for number in [1, 2] {
        comes(&mut registrar, at(10), number, Some(view(5, &[1, 2])), Some(view(6, &[1, 2, 3])));
    }
    registrar.handle_timeout(at(2_500));
    assert_eq!(said(&mut registrar), [] as [&str; 0], "the third may be in view 6");
    comes(&mut registrar, at(2_600), 3, Some(view(6, &[1, 2, 3])), None);
    assert_eq!(said(&mut registrar), ["1: view 6", "2: view 6", "3: view 6"]);
}

#[test]
fn if_all_who_may_be_in_a_later_view_are_dead_the_earlier_one_goes_on() {
    let mut registrar = restarted();
    for number in [1, 2] {
        comes(&mut registrar, at(10), number, Some(view(5, &[1, 2])), Some(view(6, &[1, 2, 3])));
    }
    registrar.handle_timeout(at(1_900));
    registrar.handle_knock(at(1_900), MemberId(3), Knocked::Refused);
    says(&mut registrar, at(1_990), 1, renew());
    assert_eq!(said(&mut registrar), [] as [&str; 0], "a lease of the one before us may last until then");
    registrar.handle_timeout(at(2_000));
    assert_eq!(said(&mut registrar), ["1: view 5", "2: view 5"]);
    // Should it come after all, it joins anew.
    comes(&mut registrar, at(2_100), 3, Some(view(6, &[1, 2, 3])), None);
    assert_eq!(said(&mut registrar), ["3: out"]);
}

#[test]
fn who_comes_with_a_view_that_has_passed_joins_anew() {
    let mut registrar = restarted();
    comes(&mut registrar, at(10), 1, Some(view(5, &[1, 2, 3])), None);
    comes(&mut registrar, at(20), 2, Some(view(6, &[2, 3])), None);
    comes(&mut registrar, at(30), 3, Some(view(6, &[2, 3])), None);
    assert_eq!(said(&mut registrar), ["1: out", "2: view 6", "3: view 6"]);
}

#[test]
fn a_view_that_is_given_up_leaves_nothing_frozen() {
    let mut registrar = Registrar::new(Config::preset(Preset::Local), 1);
    registrar.handle_timeout(at(0));
    comes(&mut registrar, at(0), 1, None, None);
    registrar.handle_timeout(at(20));
    says(&mut registrar, at(21), 1, ToRegistrar::Prepared(1));
    says(&mut registrar, at(22), 1, ToRegistrar::Ready(1));
    while let Some(command) = registrar.poll_command() {
        if let Command::Decide(view) = command {
            registrar.handle_decided(at(22), view.epoch);
        }
    }
    says(&mut registrar, at(23), 1, ToRegistrar::Activated(1));
    comes(&mut registrar, at(30), 2, None, None);
    registrar.handle_timeout(at(50));
    assert_eq!(said(&mut registrar), ["1: prepare 2", "2: prepare 2"]);
    says(&mut registrar, at(51), 1, ToRegistrar::Prepared(2));
    // The newcomer dies before it froze anything.
    registrar.handle_closed(at(60), StreamId(2));
    registrar.handle_knock(at(61), MemberId(2), Knocked::Refused);
    registrar.handle_timeout(at(200));
    assert_eq!(said(&mut registrar), ["1: view 1"]);
}

/// A store without a coordinator, with that many members in its first view.
fn bootstrapped(count: u64) -> Registrar {
    let mut registrar = restarted();
    registrar.found_with(count as usize);
    let members: Vec<_> = (1..=count).collect();
    (1..=count).for_each(|number| comes(&mut registrar, at(10), number, Some(view(1, &members)), None));
    (1..=count).for_each(|number| says(&mut registrar, at(10), number, ToRegistrar::Activated(1)));
    said(&mut registrar);
    registrar
}

/// That one is cut off, or killed; the others are heard for so long.
fn without(
    registrar: &mut Registrar,
    gone: &[u64],
    knocked: Knocked,
    count: u64,
    millis: u64,
) -> Vec<String> {
    gone.iter().for_each(|number| registrar.handle_closed(at(20), StreamId(*number)));
    for now in (30..millis).step_by(100) {
        for number in (1..=count).filter(|number| !gone.contains(number)) {
            says(registrar, at(now), number, renew());
        }
        gone.iter().for_each(|number| registrar.handle_knock(at(now), MemberId(*number), knocked));
        registrar.handle_timeout(at(now));
    }
    said(registrar).into_iter().filter(|word| !word.ends_with("lease")).collect()
}

#[test]
fn without_a_coordinator_more_than_half_go_on_and_fewer_wait_and_say_so() {
    let mut registrar = bootstrapped(3);
    assert_eq!(without(&mut registrar, &[3], Knocked::Silent, 3, 8_000), ["1: prepare 2", "2: prepare 2"]);
    let mut registrar = bootstrapped(3);
    let words = without(&mut registrar, &[2, 3], Knocked::Silent, 3, 30_000);
    assert_eq!(
        words.last().map(String::as_str),
        Some("1: view 1"),
        "what was frozen is served again: {words:?}"
    );
    let status = registrar.status(at(30_000)).unwrap();
    assert!(status.change.contains("the majority of the 3 members of view 1 is lost"), "{}", status.change);
    assert!(status.change.contains("rank 2"), "{}", status.change);
    // One is back, and that is enough.
    comes(&mut registrar, at(30_100), 2, Some(view(1, &[1, 2, 3])), None);
    let words = said(&mut registrar);
    assert!(words.iter().any(|word| word.starts_with("1: prepare")), "{words:?}");
}

#[test]
fn of_two_one_goes_on_alone_only_if_the_other_is_dead_for_certain() {
    let mut registrar = bootstrapped(2);
    assert_eq!(without(&mut registrar, &[2], Knocked::Silent, 2, 30_000), [] as [&str; 0]);
    let mut registrar = bootstrapped(2);
    assert_eq!(without(&mut registrar, &[2], Knocked::Refused, 2, 300), ["1: prepare 2"]);
}

#[test]
fn a_restarted_registrar_without_a_coordinator_goes_on_with_a_majority_only() {
    let mut registrar = restarted();
    registrar.found_with(3);
    comes(&mut registrar, at(10), 1, Some(view(4, &[1, 2, 3])), None);
    assert_eq!(without(&mut registrar, &[2, 3], Knocked::Refused, 3, 30_000), [] as [&str; 0]);
    comes(&mut registrar, at(30_100), 2, Some(view(4, &[1, 2, 3])), None);
    let words = said(&mut registrar);
    assert!(words.starts_with(&["1: view 4".to_owned(), "2: view 4".to_owned()]), "{words:?}");
}

/// It has come before anybody could say who was there in the life before.
#[test]
fn of_two_the_one_that_decides_on_views_is_back_and_takes_its_own_place() {
    let mut registrar = restarted();
    registrar.found_with(2);
    let mut newcomer = member(7);
    newcomer.address = member(1).address;
    let register =
        ToRegistrar::Register { member: newcomer, view: None, term: 0, epoch: 0, next: None, founder: None };
    says(&mut registrar, at(10), 7, register);
    comes(&mut registrar, at(20), 2, Some(view(4, &[1, 2])), None);
    for now in (30..3_000).step_by(100) {
        [2, 7].iter().for_each(|number| says(&mut registrar, at(now), *number, renew()));
        // Where it listened somebody else answers by now.
        registrar.handle_knock(at(now), MemberId(1), Knocked::Accepted);
        registrar.handle_timeout(at(now));
    }
    let words = said(&mut registrar);
    for word in ["2: view 4", "2: prepare 5", "7: prepare 5"] {
        assert!(words.iter().any(|said| said == word), "{word:?} was not said: {words:?}");
    }
}

#[test]
fn who_listens_where_somebody_listened_before_has_taken_its_place() {
    let mut registrar = bootstrapped(2);
    registrar.handle_closed(at(20), StreamId(2));
    let mut newcomer = member(7);
    newcomer.address = member(2).address;
    let register =
        ToRegistrar::Register { member: newcomer, view: None, term: 0, epoch: 0, next: None, founder: None };
    says(&mut registrar, at(30), 7, register);
    registrar.handle_timeout(at(60));
    assert_eq!(said(&mut registrar), ["1: prepare 2", "7: prepare 2"]);
}

#[test]
fn who_is_stopped_while_a_view_is_prepared_is_left_out_once_its_lease_is_over() {
    let mut registrar = bootstrapped(3);
    registrar.found_with(1);
    (1..=3).for_each(|number| says(&mut registrar, at(20), number, renew()));
    comes(&mut registrar, at(30), 4, None, None);
    registrar.handle_timeout(at(60));
    let words = said(&mut registrar);
    assert!(
        words.contains(&"3: prepare 2".to_owned()) && words.contains(&"4: prepare 2".to_owned()),
        "{words:?}"
    );
    // The third says nothing any more, though its stream is open.
    for now in (100..1_500).step_by(100) {
        [1, 2, 4].iter().for_each(|number| says(&mut registrar, at(now), *number, renew()));
        registrar.handle_timeout(at(now));
    }
    let words: Vec<_> = said(&mut registrar).into_iter().filter(|word| word.contains("prepare")).collect();
    assert_eq!(words, ["1: prepare 3", "2: prepare 3", "4: prepare 3"]);
}

#[test]
fn who_comes_back_after_the_end_is_told_of_it_and_begins_nothing() {
    let mut registrar = bootstrapped(2);
    registrar.found_with(1);
    says(&mut registrar, at(20), 1, ToRegistrar::Ends);
    registrar.handle_closed(at(30), StreamId(1));
    registrar.handle_closed(at(31), StreamId(2));
    assert!(registrar.is_empty() && !registrar.is_forgettable());
    while registrar.poll_command().is_some() {} // It knocked where it lost a stream.
    // It was stopped, put out, and woke up with nothing but the name of whose store it was.
    let register = |founder| ToRegistrar::Register {
        member: member(2),
        view: None,
        term: 1,
        epoch: 1,
        next: None,
        founder: Some(founder),
    };
    says(&mut registrar, at(9_000), 2, register(9));
    let told = registrar.poll_command();
    assert_eq!(told, Some(Command::Send(StreamId(2), FromRegistrar::Ended(None))));
    registrar.handle_timeout(at(9_100));
    assert_eq!(said(&mut registrar), [] as [&str; 0]);
    // Whoever was in no store before begins a new one.
    comes(&mut registrar, at(9_200), 3, None, None);
    registrar.handle_timeout(at(9_300));
    assert_eq!(said(&mut registrar), ["3: prepare 2"]);
}

/// A registrar that tries a newcomer again and again in one moment never comes to an end.
#[test]
fn a_newcomer_that_falls_silent_while_its_view_is_prepared_is_left_out_until_it_speaks() {
    let mut registrar = Registrar::new(Config::preset(Preset::Local), 1);
    registrar.handle_timeout(at(0));
    comes(&mut registrar, at(0), 1, None, None);
    registrar.handle_timeout(at(50));
    says(&mut registrar, at(60), 1, ToRegistrar::Prepared(1));
    says(&mut registrar, at(60), 1, ToRegistrar::Ready(1));
    registrar.handle_decided(at(60), 1);
    says(&mut registrar, at(60), 1, ToRegistrar::Activated(1));
    comes(&mut registrar, at(100), 2, None, None);
    registrar.handle_timeout(at(150));
    assert_eq!(said(&mut registrar), ["1: prepare 1", "1: view 1", "1: prepare 2", "2: prepare 2"]);
    says(&mut registrar, at(160), 1, ToRegistrar::Prepared(2));
    let silent = Config::preset(Preset::Local).dead_after.as_millis() as u64 + 1_000;
    for now in (200..silent).step_by(200).map(at) {
        says(&mut registrar, now, 1, ToRegistrar::Ask(MemberId(1)));
        says(&mut registrar, now, 1, renew());
        registrar.handle_knock(now, MemberId(2), Knocked::Silent);
    }
    let orders = said(&mut registrar);
    assert!(orders.contains(&"1: view 1".to_owned()), "what was frozen is served again: {orders:?}");
    assert_eq!(orders.iter().filter(|order| order.contains("prepare")).count(), 0, "{orders:?}");
    // It was only slow.
    says(&mut registrar, at(silent), 2, renew());
    assert_eq!(said(&mut registrar), ["1: prepare 3", "2: prepare 3"]);
}

#[test]
fn who_is_away_for_a_moment_is_waited_for_if_everybody_else_leaves() {
    let mut registrar = restarted();
    comes(&mut registrar, at(10), 1, Some(view(5, &[1, 2])), None);
    comes(&mut registrar, at(10), 2, Some(view(5, &[1, 2])), None);
    for number in [1, 2] {
        says(&mut registrar, at(20), number, renew());
        says(&mut registrar, at(20), number, ToRegistrar::Activated(5));
    }
    said(&mut registrar);
    // One cannot be reached for longer than its lease, and the other one says goodbye meanwhile.
    registrar.handle_closed(at(100), StreamId(2));
    registrar.handle_knock(at(110), MemberId(2), Knocked::Silent);
    for time in (200..1_600).step_by(200) {
        says(&mut registrar, at(time), 1, renew());
    }
    said(&mut registrar);
    says(&mut registrar, at(1_600), 1, ToRegistrar::Leave);
    says(&mut registrar, at(1_610), 1, ToRegistrar::Prepared(6));
    registrar.handle_timeout(at(2_000));
    assert!(!said(&mut registrar).contains(&"1: out".to_owned()), "who leaves hands over what it has first");
    assert_eq!(registrar.view().map(|view| view.epoch), Some(5));
    // It is back, and takes over.
    comes(&mut registrar, at(2_100), 2, Some(view(5, &[1, 2])), None);
    let told = said(&mut registrar);
    assert!(told.contains(&"2: prepare 6".to_owned()), "{told:?}");
}
