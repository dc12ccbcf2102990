//! What must never be.

use super::acting::Leases;
use crate::report::Violation;
use outlast_proto::rendezvous::{Node, Round, Settings};
use outlast_proto::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::fmt;

/// Writes that one operation may take, with a thousand nodes that write at once.
pub const WRITES_MAX: u32 = 64;
/// Rounds that a group may still need once nothing goes wrong any more: what was under way, one for those who return, one
/// for each who is late.
pub const ROUNDS_MAX: usize = 12;

/// Something that a node did.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A node finished a round, in that era of the register.
    Joined {
        /// Who.
        node: Node,
        /// The era.
        era: u64,
        /// What it was told.
        round: Round,
    },
    /// A write of a node was accepted.
    Wrote {
        /// Who.
        node: Node,
    },
    /// An operation of a node ended.
    Ended {
        /// Whose.
        node: Node,
        /// How many writes it took.
        writes: u32,
    },
}

/// All checkers, and what they remember.
#[derive(Debug)]
pub struct Checkers {
    settings: Settings,
    /// What the first who finished it said of each round.
    rounds: BTreeMap<(u64, u64), Vec<Node>>,
    leases: Leases,
    /// Rounds that began after the last fault; `None` while faults strike.
    calm_rounds: Option<usize>,
    /// What was found.
    pub violations: Vec<Violation>,
    /// The most writes that one operation took, all of them, and how many operations there were.
    pub writes: (u32, u64, u64),
}

impl Checkers {
    pub(super) fn new(settings: Settings) -> Self {
        let (rounds, leases) = (BTreeMap::new(), Leases::default());
        Self { settings, rounds, leases, calm_rounds: None, violations: Vec::new(), writes: (0, 0, 0) }
    }

    /// No fault strikes any more.
    pub(super) fn calm(&mut self) {
        self.calm_rounds = Some(0);
    }

    pub(super) fn renewed(&mut self, now: Instant, holder: &str, lease: Duration) {
        self.leases.renew(holder.to_owned(), now + lease);
    }

    pub(super) fn see(&mut self, now: Instant, fact: &Fact) {
        match fact {
            Fact::Joined { node, era, round } => self.joined(now, node, *era, round),
            Fact::Wrote { node } => {
                if !self.leases.lasts(&node.to_string(), now) {
                    self.violate(now, "lease", format!("{node} wrote after its lease had run out"));
                }
            }
            Fact::Ended { node, writes } => {
                self.writes =
                    (self.writes.0.max(*writes), self.writes.1 + u64::from(*writes), self.writes.2 + 1);
                if *writes > WRITES_MAX {
                    self.violate(
                        now,
                        "bounded_writes",
                        format!("{node} took {writes} writes for one operation"),
                    );
                }
            }
        }
    }

    fn joined(&mut self, now: Instant, node: &Node, era: u64, round: &Round) {
        let names: Vec<Node> = round.participants.iter().map(|(node, _)| node.clone()).collect();
        if names.get(round.rank as usize) != Some(node) {
            self.violate(now, "agreement", format!("{node} is not at its own rank {}", round.rank));
        }
        let (min, max) = (self.settings.min_nodes, self.settings.max_nodes);
        if !(min..=max).contains(&names.len()) {
            let what = format!("round {} has {} participants, not {min} to {max}", round.round, names.len());
            self.violate(now, "bounds", what);
        }
        if !self.rounds.contains_key(&(era, round.round)) {
            self.counted(now, round.round);
        }
        let known = self.rounds.entry((era, round.round)).or_insert_with(|| names.clone());
        if *known != names {
            let what = format!("{node} has other participants in round {} than others", round.round);
            return self.violate(now, "agreement", what);
        }
        let before = self.rounds.range(..(era, round.round)).next_back();
        let Some((_, before)) =
            before.filter(|((last, number), _)| *last == era && number + 1 == round.round)
        else {
            return;
        };
        let places = names.iter().filter_map(|name| before.iter().position(|known| known == name));
        if !places.is_sorted() {
            let what = format!("survivors of the round before {} changed their order", round.round);
            self.violate(now, "survivors_keep_order", what);
        }
    }

    /// A round was finished by somebody for the first time.
    fn counted(&mut self, now: Instant, number: u64) {
        let Some(count) = &mut self.calm_rounds else { return };
        *count += 1;
        if *count == ROUNDS_MAX + 1 {
            let what = format!("round {number} is the {count}th after the last fault: they meet without end");
            self.violate(now, "restless", what);
        }
    }

    /// Time is up, and not everybody has a place.
    pub(super) fn stranded(&mut self, now: Instant, standing: &str) {
        self.violate(now, "liveness", format!("somebody is stranded: {standing}"));
    }

    fn violate(&mut self, at: Instant, checker: &'static str, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(Violation { checker, at, what });
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { node, era, round } => {
                let (number, rank, size) = (round.round, round.rank, round.participants.len());
                write!(f, "{node} is in round {number} as rank {rank} of {size} (era {era})")
            }
            Self::Wrote { node } => write!(f, "{node} wrote"),
            Self::Ended { node, writes } => write!(f, "{node} is done after {writes} writes"),
        }
    }
}
