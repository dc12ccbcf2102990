//! Machines against one register, in an order that the text chooses; with a backend that keeps notes, and with one that
//! does not.
//!
//! `do a` carries out a's oldest request and tells it the answer; `ask a` and `hear a` are its two halves, and
//! `lose a` is an answer that never comes. `tell a` is a change that a hears of by itself. `run` does everything that
//! can be done. `stop a` and `go a`: a process that is stopped hears and does nothing, and time passes. `cut a` and
//! `mend a`: every question of a is answered with trouble.

use super::cases::{holder, node, play, state, time, written};
use crate::rendezvous::{
    Failure, Machine, Operation, Outcome, Register, Request, Settings, State, Trouble, Written,
};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::wire::register::Snapshot;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

struct Race {
    now: Instant,
    settings: Settings,
    register: Register,
    keeps_notes: bool,
    nodes: BTreeMap<String, Racer>,
    out: String,
}

struct Racer {
    machine: Machine,
    requests: VecDeque<Request>,
    answers: VecDeque<Answer>,
    heard: u64,
    stopped: bool,
    cut: bool,
    last: Snapshot,
}

enum Answer {
    Told(Snapshot),
    Written(Written, Snapshot),
    Beaten,
}

fn run(commands: &[&str], keeps_notes: bool) -> String {
    let mut race = Race {
        now: Instant::from_nanos(1_000_000_000_000),
        settings: Settings::new(2, 3),
        register: Register::fresh(),
        keeps_notes,
        nodes: BTreeMap::new(),
        out: String::new(),
    };
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (verb, names) = (words[0], &words[1..]);
        match verb {
            "nodes" => race.settings = Settings::new(names[0].parse().unwrap(), names[1].parse().unwrap()),
            "state" => {
                let value = state(names).to_bytes();
                let (now, expected) = (race.now, race.register.snapshot().unwrap().token);
                assert_eq!(race.register.handle_write(now, "", expected, value), Some(Written::Accepted));
            }
            "garbage" => {
                let expected = race.register.snapshot().unwrap().token;
                race.register.handle_write(race.now, "", expected, b"not ours".to_vec());
            }
            "wait" => race.pass(time(names[0])),
            "run" => race.settle(),
            "restart" => race.register = Register::listening(race.now + Duration::from_secs(5), 1),
            "show" => {
                let text = race.register.snapshot().map_or("listens".to_owned(), |told| {
                    let value = told.value.map(|value| State::from_bytes(&value).unwrap());
                    format!("{} at {}", written(&value.unwrap_or_default()), told.token)
                });
                let _ = writeln!(race.out, "{text}");
            }
            _ => names.iter().for_each(|name| race.one(verb, name)),
        }
    }
    race.out
}

impl Race {
    fn one(&mut self, verb: &str, name: &str) {
        let now = self.now;
        if verb == "start" {
            let rng = Rng::from_seed(name.len() as u64);
            let machine = Machine::new(self.settings.clone(), node(name), format!("{name}:1"), rng);
            let racer = Racer {
                machine,
                requests: VecDeque::new(),
                answers: VecDeque::new(),
                heard: 0,
                stopped: false,
                cut: false,
                last: Snapshot::default(),
            };
            self.nodes.insert(name.to_owned(), racer);
            return;
        }
        let racer = self.nodes.get_mut(name).expect("the node was started");
        match verb {
            "next" => racer.machine.handle_operation(now, Operation::Next),
            "close" => racer.machine.handle_operation(now, Operation::Close),
            "cancel" => racer.machine.handle_cancel(now),
            "leave" => racer.machine.handle_operation(now, Operation::Leave),
            "stop" => racer.stopped = true,
            "go" => racer.stopped = false,
            "cut" => racer.cut = true,
            "mend" => racer.cut = false,
            "ask" => self.ask(name),
            "hear" => self.hear(name),
            "do" => {
                self.ask(name);
                self.hear(name);
            }
            "lose" => {
                racer.answers.clear();
                racer.requests.clear();
                racer.machine.handle_trouble(now, Trouble { is_final: false, text: "broke".to_owned() });
            }
            "tell" => {
                if let Some(told) = self.register.snapshot() {
                    racer.machine.handle_snapshot(now, told);
                }
            }
            "bring" => {
                let lease = self.settings.lease();
                let last = racer.last.clone();
                self.register.handle_brought(now, last, lease);
            }
            "waiting" => {
                let waiting = racer.machine.state().map_or(0, State::waiting);
                let _ = writeln!(self.out, "{name}: waiting {waiting}");
            }
            other => panic!("what is {other:?}?"),
        }
        self.drain(name);
    }

    /// Collects what a machine wants, and writes down what people are told.
    fn drain(&mut self, name: &str) {
        let racer = self.nodes.get_mut(name).expect("the node was started");
        while let Some(request) = racer.machine.poll_action() {
            match request {
                Request::Tell(event) => {
                    let error = event.error.map(|error| format!(" ({error})")).unwrap_or_default();
                    if !["joining", "joined", "failed"].contains(&event.name.to_string().as_str()) {
                        let _ = writeln!(self.out, "{name}: {}{error}", event.name);
                    }
                }
                Request::Done(outcome) => {
                    let text = match outcome {
                        Ok(Outcome::Joined(round)) => {
                            let names: Vec<_> =
                                round.participants.iter().map(|(node, _)| node.host.clone()).collect();
                            format!("round {} as rank {} of {}", round.round, round.rank, names.join(" "))
                        }
                        Ok(other) => format!("{other:?}"),
                        Err(Failure::Timeout(_)) => "timed out".to_owned(),
                        Err(other) => other.to_string(),
                    };
                    let _ = writeln!(self.out, "{name}: {text}");
                }
                request => racer.requests.push_back(request),
            }
        }
    }

    fn ask(&mut self, name: &str) {
        let (now, holder) = (self.now, holder(name));
        let racer = self.nodes.get_mut(name).expect("the node was started");
        let answer = match racer.requests.front() {
            None => panic!("{name} has nothing to ask; so far:\n{}", self.out),
            Some(Request::Read) => self.register.snapshot().map(Answer::Told),
            Some(Request::Write { expected, value }) => {
                let fate = self.register.handle_write(now, &holder, *expected, value.clone());
                fate.map(|fate| Answer::Written(fate, self.register.snapshot().expect("it was written")))
            }
            Some(Request::Beat { lease, note }) => {
                let changes = self.register.changes();
                let note = if self.keeps_notes { note.clone() } else { Vec::new() };
                self.register.handle_beat(now, &holder, *lease, note);
                if self.keeps_notes && self.register.changes() > changes {
                    racer.answers.extend(self.register.snapshot().map(Answer::Told));
                }
                Some(Answer::Beaten)
            }
            Some(Request::Release) => {
                self.register.handle_release(now, &holder);
                racer.requests.pop_front();
                return;
            }
            Some(Request::Tell(_) | Request::Done(_)) => unreachable!("drained"),
        };
        if let Some(answer) = answer {
            racer.requests.pop_front();
            racer.answers.push_back(answer);
        }
    }

    /// Tells a node all answers that wait for it.
    fn hear(&mut self, name: &str) {
        let now = self.now;
        let racer = self.nodes.get_mut(name).expect("the node was started");
        while let Some(answer) = racer.answers.pop_front() {
            match answer {
                Answer::Told(told) => {
                    racer.last = told.clone();
                    racer.machine.handle_snapshot(now, told);
                }
                Answer::Written(fate, told) => {
                    racer.last = told.clone();
                    racer.machine.handle_written(now, fate, told);
                }
                Answer::Beaten => racer.machine.handle_beat(now),
            }
        }
        self.drain(name);
    }

    fn settle(&mut self) {
        for _ in 0..1_000 {
            let mut is_quiet = true;
            for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
                let racer = &self.nodes[&name];
                if racer.stopped {
                    continue;
                }
                if racer.cut {
                    if !racer.requests.is_empty() {
                        is_quiet = false;
                        self.one("lose", &name);
                    }
                    continue;
                }
                let told = self.register.snapshot();
                if !racer.requests.is_empty() && (told.is_some() || racer.requests[0] != Request::Read) {
                    is_quiet = false;
                    self.one("do", &name);
                } else if let Some(told) = told.filter(|_| racer.heard != self.register.changes()) {
                    is_quiet = false;
                    let changes = self.register.changes();
                    let racer = self.nodes.get_mut(&name).expect("the node was started");
                    racer.heard = changes;
                    racer.last = told.clone();
                    racer.machine.handle_snapshot(self.now, told);
                    self.drain(&name);
                }
            }
            if is_quiet && !self.pass_a_pause() {
                return;
            }
        }
        panic!("does not settle; so far:\n{}", self.out);
    }

    /// Pauses after a lost write are not worth a line of text.
    fn pass_a_pause(&mut self) -> bool {
        let soon = self.now + Duration::from_millis(999);
        let timeouts = self.nodes.values().filter(|racer| !racer.stopped && !racer.cut);
        let next = timeouts.filter_map(|racer| racer.machine.poll_timeout()).min();
        let Some(next) = next.filter(|next| *next <= soon) else { return false };
        self.now = self.now.max(next);
        self.wake();
        true
    }

    /// Time passes, with everything that it brings.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let awake = self.nodes.values().filter(|racer| !racer.stopped);
            let timeouts = awake.filter_map(|racer| racer.machine.poll_timeout());
            let next = timeouts.chain(self.register.poll_timeout()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            self.wake();
            self.settle();
        }
        self.now = self.now.max(until);
        self.wake();
    }

    fn wake(&mut self) {
        self.register.handle_timeout(self.now);
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            let racer = self.nodes.get_mut(&name).expect("it was listed");
            if !racer.stopped {
                racer.machine.handle_timeout(self.now);
                self.drain(&name);
            }
        }
    }
}

/// At a backend that keeps no notes: every node writes for itself.
#[test]
fn races() {
    play("races.txt", include_str!("../testdata/races.txt"), |commands| run(commands, false));
}

#[test]
fn wishes() {
    play("wishes.txt", include_str!("../testdata/wishes.txt"), |commands| run(commands, true));
}
