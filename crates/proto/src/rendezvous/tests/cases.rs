//! Text cases: a name, a picture, what is done, and what must come of it.
//!
//! ```text
//! == the name
//! # a picture
//! nodes 2 3
//! ----
//! what comes out
//! ```

use crate::rendezvous::{Node, Seat, State};
use crate::time::Duration;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Plays every case of a file and compares what comes out. All that differ are told at once.
pub(super) fn play(file: &str, text: &str, run: impl Fn(&[&str]) -> String) {
    let mut wrong = String::new();
    let cases: Vec<&str> = text.split("\n== ").skip(1).collect();
    assert!(!cases.is_empty(), "no case in {file}");
    for case in cases {
        let (name, body) = case.split_once('\n').expect("a case has a body");
        let (input, expected) = body.split_once("----\n").expect("a case says what comes out");
        assert!(input.lines().any(|line| line.starts_with('#')), "{file}: {name}: a picture is missing");
        let commands: Vec<&str> =
            input.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        let got = run(&commands);
        if got.trim() != expected.trim() {
            let _ = write!(wrong, "\n{file}: {name}\n--- expected\n{}\n--- got\n{got}", expected.trim());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

pub(super) fn node(name: &str) -> Node {
    Node { host: name.to_owned(), pid: 1, local_id: 0 }
}

pub(super) fn holder(name: &str) -> String {
    node(name).to_string()
}

/// `5s` or `20ms`.
pub(super) fn time(text: &str) -> Duration {
    match text.strip_suffix("ms") {
        Some(number) => Duration::from_millis(number.parse().expect("a number of milliseconds")),
        None => Duration::from_secs_f64(text.trim_end_matches('s').parse().expect("a number of seconds")),
    }
}

/// Reads `round=3 complete participants=a:0,b:1 wait=c spare=d roster=a,b`.
pub(super) fn state(words: &[&str]) -> State {
    let mut state = State::default();
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let names = || value.split(',').filter(|name| !name.is_empty());
        let set = || names().map(node).collect::<BTreeSet<Node>>();
        match key {
            "round" => state.round = value.parse().expect("a number"),
            "complete" => state.complete = true,
            "closed" => state.closed = true,
            "calling" => {
                state.calling = true;
                state.calls = 1;
            }
            "participants" => {
                for name in names() {
                    let (name, rank) = name.split_once(':').unwrap_or((name, "0"));
                    let rank = rank.parse().expect("a rank");
                    let seat = Seat { rank, address: String::new() };
                    state.participants.insert(node(name), seat);
                }
            }
            "wait" => state.wait_list = set(),
            "spare" => state.redundancy_list = set(),
            "roster" => state.roster = names().map(node).collect(),
            other => panic!("what is {other:?}?"),
        }
    }
    state
}

/// The same, written. Ranks only once they mean something.
pub(super) fn written(state: &State) -> String {
    let mut text = format!("round={}", state.round);
    let flags = [(state.complete, "complete"), (state.closed, "closed"), (state.calling, "calling")];
    for (_, name) in flags.iter().filter(|(is_set, _)| *is_set) {
        let _ = write!(text, " {name}");
    }
    let seat = |(node, seat): (&Node, &Seat)| {
        if state.complete { format!("{}:{}", node.host, seat.rank) } else { node.host.clone() }
    };
    let hosts = |nodes: &BTreeSet<Node>| nodes.iter().map(|node| node.host.clone()).collect::<Vec<_>>();
    for (name, list) in [
        ("participants", state.participants.iter().map(seat).collect()),
        ("wait", hosts(&state.wait_list)),
        ("spare", hosts(&state.redundancy_list)),
    ] {
        if !list.is_empty() {
            let _ = write!(text, " {name}={}", list.join(","));
        }
    }
    text
}
