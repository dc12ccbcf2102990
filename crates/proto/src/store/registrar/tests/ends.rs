//! The end of a store, where not everybody hears of it from other members.

use super::*;
use crate::store::Config;

/// What is said over streams, and which are closed; knocks and notes are left out.
fn words(registrar: &mut Registrar) -> Vec<(u64, String)> {
    let mut words = Vec::new();
    while let Some(command) = registrar.poll_command() {
        match command {
            Command::Send(stream, FromRegistrar::Ended(lost)) => {
                let with = lost.map_or_else(|| "for all".to_owned(), |lost| format!("with {}", lost.name));
                words.push((stream.0, format!("ended {with}")));
            }
            Command::Send(stream, FromRegistrar::Out(_)) => words.push((stream.0, "out".to_owned())),
            Command::Send(stream, FromRegistrar::Prepare { .. }) => {
                words.push((stream.0, "prepare".to_owned()));
            }
            Command::Close(stream) => words.push((stream.0, "closed".to_owned())),
            _ => {}
        }
    }
    words
}

fn shutdown_wait() -> u64 {
    Config::preset(Preset::Local).shutdown_wait.as_millis() as u64
}

/// A store with a coordinator, with that many members in its view.
fn of(count: u64) -> Registrar {
    let mut registrar = bootstrapped(count);
    registrar.found_with(1);
    words(&mut registrar);
    registrar
}

fn both(numbers: &[u64], word: &str) -> Vec<(u64, String)> {
    numbers.iter().flat_map(|number| [(*number, word.to_owned()), (*number, "closed".to_owned())]).collect()
}

#[test]
fn who_was_not_told_of_a_shutdown_by_other_members_is_told_when_it_is_time_to_exit() {
    let mut registrar = of(4);
    says(&mut registrar, at(20), 1, ToRegistrar::Ends);
    // One joins in later; the time counts from the first word.
    says(&mut registrar, at(500), 2, ToRegistrar::Ends);
    let ends = at(20 + shutdown_wait());
    let status = registrar.status(at(600)).expect("members");
    assert_eq!(status.change, "the store ends");
    registrar.handle_closed(at(700), StreamId(1));
    while registrar.poll_timeout().is_some_and(|due| due < ends) {
        let due = registrar.poll_timeout().expect("a time");
        registrar.handle_timeout(due);
        assert_eq!(words(&mut registrar), [], "members may still tell each other");
    }
    assert_eq!(registrar.poll_timeout(), Some(ends));
    registrar.handle_timeout(ends);
    assert_eq!(words(&mut registrar), both(&[2, 3, 4], "ended for all"));
    assert!(registrar.is_empty() && !registrar.is_forgettable());
}

#[test]
fn a_member_that_is_stopped_with_its_stream_open_keeps_nobody_from_another_store() {
    let mut registrar = of(2);
    says(&mut registrar, at(20), 1, ToRegistrar::Ends);
    registrar.handle_closed(at(30), StreamId(1));
    // The second is stopped. A third comes too early to be let in, and a fourth when all is over.
    comes(&mut registrar, at(1_000), 3, None, None);
    registrar.handle_timeout(at(1_500));
    assert_eq!(words(&mut registrar), []);
    registrar.handle_timeout(at(20 + shutdown_wait()));
    let told = [both(&[2], "ended for all"), both(&[3], "out")].concat();
    assert_eq!(words(&mut registrar), told, "it was in no view of the store that has ended");
    comes(&mut registrar, at(5_000), 4, None, None);
    registrar.handle_timeout(at(5_100));
    assert_eq!(words(&mut registrar), [(4, "prepare".to_owned())]);
}

#[test]
fn a_store_that_ends_with_a_member_leaves_no_streams_behind_either() {
    let mut registrar = restarted();
    let members: Vec<_> =
        [1, 2].map(|number| StoreMember { ends_store: number == 2, ..member(number) }).into();
    let all = View { members: members.clone(), ..view(1, &[]) };
    for member in members {
        let (number, view) = (member.id.0, Some(all.clone()));
        let register = ToRegistrar::Register { member, view, term: 1, epoch: 1, next: None, founder: None };
        says(&mut registrar, at(10), number, register);
        says(&mut registrar, at(10), number, ToRegistrar::Activated(1));
    }
    words(&mut registrar);
    registrar.handle_closed(at(20), StreamId(2));
    registrar.handle_knock(at(21), MemberId(2), Knocked::Refused);
    let lost = at(21) + Config::preset(Preset::Local).probe_timeout;
    registrar.handle_timeout(lost);
    assert_eq!(words(&mut registrar), [(1, "ended with p2".to_owned())]);
    registrar.handle_timeout(lost + Config::preset(Preset::Local).shutdown_wait);
    assert_eq!(words(&mut registrar), both(&[1], "ended with p2"));
    assert!(registrar.is_empty());
}

#[test]
fn what_a_member_of_an_earlier_store_says_of_its_end_does_not_end_the_one_that_runs() {
    for comes_first in [true, false] {
        let mut registrar = restarted();
        let earlier = View { founder: 3, ..view(5, &[7]) };
        let old = |registrar: &mut Registrar, now| {
            comes(registrar, now, 7, Some(earlier.clone()), None);
            says(registrar, now, 7, ToRegistrar::Ends);
        };
        if comes_first {
            old(&mut registrar, at(50));
        }
        comes(&mut registrar, at(100), 1, Some(view(9, &[1, 2])), None);
        if !comes_first {
            old(&mut registrar, at(150));
        }
        comes(&mut registrar, at(200), 2, Some(view(9, &[1, 2])), None);
        for millis in [300, 2_100, 5_000] {
            registrar.handle_timeout(at(millis));
        }
        let ended = words(&mut registrar).into_iter().filter(|(to, word)| *to < 7 && word.contains("ended"));
        assert_eq!(ended.collect::<Vec<_>>(), [], "the old one comes first: {comes_first}");
    }
}
