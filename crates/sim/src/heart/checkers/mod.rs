//! What must be true of the heart, always: one invariant of DESIGN per file, each proven by a planted bug in
//! `tests/heart_planted_bugs.rs`.

mod commit_needs_all;
mod deadlines;
mod decodable;
mod exact_values;
mod group_isolation;
mod no_false_eviction;
mod no_two_terms;
mod one_verdict;
mod stale_epochs;

pub use commit_needs_all::CommitNeedsAll;
pub use deadlines::Deadlines;
pub use decodable::Decodable;
pub use exact_values::ExactValues;
pub use group_isolation::GroupIsolation;
pub use no_false_eviction::NoFalseEviction;
pub use no_two_terms::NoTwoTerms;
pub use one_verdict::OneVerdict;
pub use stale_epochs::StaleEpochs;

use super::{Fact, World};
use crate::report::Violation;
use outlast_proto::time::Instant;

/// One invariant.
pub trait Checker {
    /// Its name, as reports give it.
    fn name(&self) -> &'static str;

    /// Something happened.
    fn hear(&mut self, _world: &World, _at: Instant, _fact: &Fact) -> Result<(), String> {
        Ok(())
    }

    /// The run is over.
    fn finish(&mut self, _world: &World) -> Result<(), String> {
        Ok(())
    }
}

/// All checkers of one run.
pub struct Suite {
    checkers: Vec<Box<dyn Checker>>,
    violations: Vec<Violation>,
}

impl Suite {
    /// All of them.
    pub fn new() -> Self {
        Self {
            checkers: vec![
                Box::new(OneVerdict::default()),
                Box::new(CommitNeedsAll::default()),
                Box::new(ExactValues::default()),
                Box::new(Deadlines),
                Box::new(Decodable),
                Box::new(NoFalseEviction),
                Box::new(StaleEpochs::default()),
                Box::new(NoTwoTerms::default()),
                Box::new(GroupIsolation::default()),
            ],
            violations: Vec::new(),
        }
    }

    /// Lets everybody hear a fact.
    pub fn hear(&mut self, world: &World, at: Instant, fact: &Fact) {
        for checker in &mut self.checkers {
            if let Err(what) = checker.hear(world, at, fact) {
                self.violations.push(Violation { checker: checker.name(), at, what });
            }
        }
    }

    /// The run is over.
    pub fn finish(&mut self, world: &World) {
        for checker in &mut self.checkers {
            if let Err(what) = checker.finish(world) {
                self.violations.push(Violation { checker: checker.name(), at: world.now(), what });
            }
        }
    }

    /// Something else that must not be.
    pub fn report(&mut self, at: Instant, checker: &'static str, what: String) {
        self.violations.push(Violation { checker, at, what });
    }

    /// What must never be, and was.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}
