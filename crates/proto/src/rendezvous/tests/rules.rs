//! Every rule of every operator: from a state to actions to a state.

use super::cases::{holder, node, play, state, time, written};
use crate::rendezvous::{Action, Context, Operator, Settings, State, apply, decide, sanitise};
use crate::time::{Duration, Instant};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Long ago enough for everything to have happened before it.
const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

struct Case {
    settings: Settings,
    state: State,
    deadline: Instant,
    called: Option<Instant>,
    last_heartbeat: Option<Instant>,
    alive: Option<BTreeSet<String>>,
    out: String,
}

/// `+5s` is in five seconds, `-5s` was five seconds ago.
fn moment(text: &str) -> Instant {
    match text.strip_prefix('-') {
        Some(ago) => NOW - time(ago),
        None => NOW + time(text.trim_start_matches('+')),
    }
}

fn run(commands: &[&str]) -> String {
    let mut case = Case {
        settings: Settings::new(2, 3),
        state: State::default(),
        deadline: NOW + Duration::from_mins(1),
        called: None,
        last_heartbeat: Some(NOW),
        alive: None,
        out: String::new(),
    };
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["nodes", min, max] => {
                case.settings = Settings::new(min.parse().unwrap(), max.parse().unwrap());
            }
            ["state", ..] => case.state = state(&words[1..]),
            ["deadline", at] => case.deadline = moment(at),
            ["called", at] => case.called = Some(moment(at)),
            ["heartbeat", at] => case.last_heartbeat = Some(moment(at)),
            ["alive", ..] => case.alive = Some(words[1..].iter().map(|name| holder(name)).collect()),
            ["join", who] => case.follow(Operator::Join, who),
            ["exit", who] => case.follow(Operator::Exit, who),
            ["close", who] => case.follow(Operator::Close, who),
            ["keep-alive", who] => case.follow(Operator::KeepAlive, who),
            ["count"] => {
                let _ = writeln!(case.out, "waiting {}", case.state.waiting());
            }
            _ => panic!("what is {command:?}?"),
        }
    }
    case.out
}

impl Case {
    /// Applies what the operator chooses until it chooses nothing that changes the state.
    fn follow(&mut self, operator: Operator, who: &str) {
        let me = node(who);
        if let Some(alive) = self.alive.take() {
            for dead in sanitise(&mut self.state, &self.settings, Some(&me), &alive) {
                let _ = writeln!(self.out, "{} is gone", dead.host);
            }
        }
        for _ in 0..8 {
            let context = Context {
                state: &self.state,
                settings: &self.settings,
                node: &me,
                now: NOW,
                deadline: self.deadline,
                last_heartbeat: self.last_heartbeat,
                called: self.called,
            };
            let action = decide(operator, &context);
            let _ = writeln!(self.out, "{who}: {action:?}");
            let before = self.state.clone();
            apply(action, &mut self.state, &self.settings, &me, "");
            if self.state == before {
                assert!(
                    matches!(
                        action,
                        Action::KeepAlive
                            | Action::Sync
                            | Action::ErrorClosed
                            | Action::ErrorTimeout
                            | Action::Finish
                    ),
                    "{action:?} changed nothing"
                );
                let _ = writeln!(self.out, "{}", written(&self.state));
                return;
            }
            if self.state.calling && !before.calling {
                self.called = Some(NOW);
            }
        }
        panic!("{operator:?} does not come to an end: {}", self.out);
    }
}

#[test]
fn join() {
    play("join.txt", include_str!("../testdata/join.txt"), run);
}

#[test]
fn keep_alive_close_and_exit() {
    play("operators.txt", include_str!("../testdata/operators.txt"), run);
}

#[test]
fn nodes_that_are_gone() {
    play("sanitise.txt", include_str!("../testdata/sanitise.txt"), run);
}

#[test]
fn ranks() {
    play("ranks.txt", include_str!("../testdata/ranks.txt"), run);
}
