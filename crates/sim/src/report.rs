//! What came of a run.

use crate::world::{Tally, Trace};
use outlast_proto::time::Instant;
use std::fmt;

/// Something that must never be, and was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker says so.
    pub checker: &'static str,
    /// When, in the world's time.
    pub at: Instant,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} [{}] {}", self.at, self.checker, self.what)
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// What must never be, and was. Empty: passed.
    pub violations: Vec<Violation>,
    /// The hash over every event.
    pub trace_hash: u64,
    /// How many events there were.
    pub events: u64,
    /// What the faults did.
    pub tally: Tally,
    /// How long all took to agree after the heal, in world time; `None` if they never did.
    pub converged_after: Option<std::time::Duration>,
    /// The timeline, if it was kept.
    pub timeline: Vec<String>,
}

impl Report {
    /// What came of a world in which nothing is counted but what its trace says.
    pub(crate) fn of_trace(
        scenario: &str,
        seed: u64,
        trace: &Trace,
        violations: Vec<Violation>,
        converged_after: Option<std::time::Duration>,
    ) -> Self {
        Self {
            scenario: scenario.to_owned(),
            seed,
            violations,
            trace_hash: trace.hash(),
            events: trace.events(),
            tally: Tally::default(),
            converged_after,
            timeline: trace.lines().map(str::to_owned).collect(),
        }
    }

    /// Whether nothing was found.
    pub fn passed(&self) -> bool {
        self.violations.is_empty()
    }

    /// The command that runs this again.
    pub fn replay_command(&self) -> String {
        format!("make sim SCENARIO={} SEED={}", self.scenario, self.seed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.passed() {
            write!(
                f,
                "{} seed {}: passed, {} events, trace {:016x}",
                self.scenario, self.seed, self.events, self.trace_hash
            )?;
            return match self.converged_after {
                Some(after) => write!(f, ", agreed {after:.1?} after the heal"),
                None => Ok(()),
            };
        }
        writeln!(f, "{} seed {}: FAILED", self.scenario, self.seed)?;
        for violation in &self.violations {
            writeln!(f, "  {violation}")?;
        }
        write!(f, "  replay: {}", self.replay_command())
    }
}
