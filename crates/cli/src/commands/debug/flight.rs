//! Flight records of several processes, and their clocks.
//!
//! Who wrote a record is an *actor*: a peer, or a coordinator. Each brings times of its own host's clock. Those are believed as
//! long as they are possible: a message is heard after it was sent. If they are not, the actor's clock is moved to the
//! middle of what its messages to and from the coordinator allow. Without a coordinator's record a clock is moved only if
//! verdicts, which all hear at about the same time, are apart by more than a network can explain.

use anyhow::Context as _;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Verdicts that are further apart than this, in the median, mean that clocks differ.
const APART_US: i64 = 100_000;

/// Who wrote a record.
#[derive(Debug)]
pub(super) struct Actor {
    /// What people call it.
    pub(super) label: String,
    pub(super) header: Map<String, Value>,
    /// By how much its times were moved, in microseconds.
    pub(super) moved_us: i64,
    /// The latest of its times, which is when it was asked.
    pub(super) asked_us: i64,
    numbers: BTreeSet<u64>,
}

impl Actor {
    pub(super) fn is_coordinator(&self) -> bool {
        self.header.get("role").and_then(Value::as_str) == Some("coordinator")
    }

    /// The first half of its id, as records have it.
    fn key(&self) -> Option<&str> {
        self.header.get("id").and_then(Value::as_str)?.get(..16)
    }
}

/// Something that happened.
#[derive(Debug)]
pub(super) struct Event {
    /// Index of the actor.
    pub(super) actor: usize,
    pub(super) time_us: i64,
    pub(super) fields: Map<String, Value>,
}

impl Event {
    pub(super) fn text(&self, key: &str) -> &str {
        self.fields.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.fields.get(key).and_then(Value::as_u64)
    }

    pub(super) fn is(&self, what: &str, name: &str) -> bool {
        self.text("what") == what && self.text("name") == name
    }

    /// The attempt that it belongs to: group, epoch, tag, number.
    pub(super) fn place(&self) -> Option<Place> {
        Some([self.number("group")?, self.number("epoch")?, self.number("tag")?, self.number("seq")?])
    }
}

/// Group, epoch, tag and number of an attempt.
pub(super) type Place = [u64; 4];

/// What several processes did.
#[derive(Debug, Default)]
pub(super) struct Flight {
    pub(super) actors: Vec<Actor>,
    /// The oldest first, once clocks are aligned.
    pub(super) events: Vec<Event>,
    names: BTreeMap<String, String>,
}

impl Flight {
    /// Adds one file.
    pub(super) fn add(&mut self, text: &str) -> anyhow::Result<()> {
        let mut actor = None;
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let value: Value =
                serde_json::from_str(line).with_context(|| format!("line {} is not JSON", at + 1))?;
            let Value::Object(fields) = value else { anyhow::bail!("line {} is not a JSON object", at + 1) };
            if fields.contains_key("flight") {
                actor = Some(self.meet(fields));
                continue;
            }
            let actor = actor.context("its first line does not say whose it is (\"flight\")")?;
            let time_us = fields.get("time_us").and_then(Value::as_i64);
            let time_us = time_us.with_context(|| format!("line {} has no time_us", at + 1))?;
            let number = fields.get("number").and_then(Value::as_u64).unwrap_or(0);
            // Two dumps of one process overlap.
            if self.actors[actor].numbers.insert(number) {
                self.events.push(Event { actor, time_us, fields });
            }
        }
        anyhow::ensure!(actor.is_some(), "it is empty");
        Ok(())
    }

    fn meet(&mut self, header: Map<String, Value>) -> usize {
        let word = |key: &str| header.get(key).and_then(Value::as_str).unwrap_or_default();
        let asked_us = header.get("time_us").and_then(Value::as_i64).unwrap_or(0);
        let label = match word("id").get(..8) {
            Some(short) => format!("{} {short}", word("name")),
            None if word("name").is_empty() => {
                format!("process {}", header.get("pid").unwrap_or(&Value::Null))
            }
            None => word("name").to_owned(),
        };
        let names = header.get("names").and_then(Value::as_object).cloned().unwrap_or_default();
        for (key, name) in names {
            let name = name.as_str().unwrap_or_default();
            // A coordinator's runs are numbered; peers' keys are random.
            if !key.starts_with("00000000") {
                self.names
                    .entry(key.clone())
                    .or_insert_with(|| format!("{name} {}", key.get(..8).unwrap_or("")));
            }
        }
        let same = |actor: &Actor| {
            let keys = ["role", "id", "name", "host", "pid"];
            keys.iter().all(|key| actor.header.get(*key) == header.get(*key))
        };
        if let Some(at) = self.actors.iter().position(same) {
            self.actors[at].asked_us = self.actors[at].asked_us.max(asked_us);
            return at;
        }
        self.actors.push(Actor { label, header, moved_us: 0, asked_us, numbers: BTreeSet::new() });
        self.actors.len() - 1
    }

    /// What people call the peer with that half of an id.
    pub(super) fn peer(&self, key: &str) -> String {
        self.names.get(key).cloned().unwrap_or_else(|| key.get(..8).unwrap_or(key).to_owned())
    }

    /// The peer that an event of a coordinator is about, as an actor.
    pub(super) fn actor_of(&self, event: &Event) -> Option<usize> {
        let key = event.fields.get("peer").and_then(Value::as_str)?;
        self.actors.iter().position(|actor| actor.key() == Some(key))
    }

    /// Moves clocks where they are impossible, and sorts.
    pub(super) fn align(&mut self) {
        let coordinator = self.actors.iter().position(Actor::is_coordinator);
        let moves: Vec<_> = (0..self.actors.len())
            .map(|actor| match coordinator {
                Some(coordinator) if actor != coordinator => self.bounds(actor, coordinator).correction(),
                Some(_) => 0,
                None => self.apart(actor),
            })
            .collect();
        for (actor, by) in self.actors.iter_mut().zip(&moves) {
            actor.moved_us = *by;
            actor.asked_us += by;
        }
        for event in &mut self.events {
            event.time_us += moves[event.actor];
            event.fields.insert("time_us".to_owned(), event.time_us.into());
        }
        self.events.sort_by_key(|event| (event.time_us, event.number("number")));
    }

    /// Messages between a peer and the coordinator that both have recorded: sent and heard, as indices of events.
    pub(super) fn messages(&self, peer: usize, coordinator: usize) -> Vec<(usize, usize)> {
        let key = |event: &Event| Some((event.text("name").to_owned(), event.place()?));
        let of = |actor: usize, what: &str| {
            let mut found: HashMap<_, usize> = HashMap::new();
            for (at, event) in self.events.iter().enumerate() {
                if event.actor != actor || event.text("what") != what {
                    continue;
                }
                // What the coordinator says to all names nobody.
                let concerns = actor != coordinator
                    || event.fields.get("peer").is_none()
                    || self.actor_of(event) == Some(peer);
                if let (true, Some(key)) = (concerns, key(event)) {
                    found.entry(key).or_insert(at);
                }
            }
            found
        };
        let pair = |sent: HashMap<_, usize>, heard: &HashMap<_, usize>| -> Vec<_> {
            sent.into_iter().filter_map(|(key, at)| Some((at, *heard.get(&key)?))).collect()
        };
        let mut pairs = pair(of(peer, "sent"), &of(coordinator, "heard"));
        pairs.extend(pair(of(coordinator, "sent"), &of(peer, "heard")));
        pairs.sort_unstable();
        pairs
    }

    fn bounds(&self, peer: usize, coordinator: usize) -> Bounds {
        let mut bounds = Bounds { least: i64::MIN, most: i64::MAX };
        for (sent, heard) in self.messages(peer, coordinator) {
            let (sent, heard) = (&self.events[sent], &self.events[heard]);
            let difference = heard.time_us - sent.time_us;
            if sent.actor == peer {
                bounds.most = bounds.most.min(difference);
            } else {
                bounds.least = bounds.least.max(-difference);
            }
        }
        bounds
    }

    /// By how much a peer's clock is off from the first actor's, by the verdicts that both heard.
    fn apart(&self, actor: usize) -> i64 {
        let verdicts = |actor: usize| -> HashMap<_, _> {
            let of = self.events.iter().filter(|event| event.actor == actor);
            let heard = of.filter(|event| event.is("heard", "Commit"));
            heard.filter_map(|event| Some((event.place()?, event.time_us))).collect()
        };
        let (first, own) = (verdicts(0), verdicts(actor));
        let mut apart: Vec<_> =
            own.iter().filter_map(|(place, time)| Some(first.get(place)? - time)).collect();
        apart.sort_unstable();
        let median = apart.get(apart.len() / 2).copied().unwrap_or(0);
        if median.abs() > APART_US { median } else { 0 }
    }
}

/// What may be added to a peer's times so that nothing is heard before it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    least: i64,
    most: i64,
}

impl Bounds {
    /// Nothing, if that is possible; otherwise the middle, or the nearest where only one side is known.
    fn correction(self) -> i64 {
        if self.least <= 0 && self.most >= 0 {
            return 0;
        }
        match (self.least, self.most) {
            (i64::MIN, most) => most,
            (least, i64::MAX) => least,
            (least, most) => least.midpoint(most),
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
