//! What must be true of the heart, always: one invariant of DESIGN per file, each proven by a planted bug in
//! `tests/heart_planted_bugs.rs`.

mod bystanders;
mod causes;
mod commit_needs_all;
mod deadlines;
mod decodable;
mod exact_values;
mod ghosts;
mod group_isolation;
mod no_false_eviction;
mod no_two_terms;
mod one_outcome;
mod one_state;
mod one_verdict;
mod remembered;
mod same_outcome;
mod stale_epochs;

pub use bystanders::Bystanders;
pub use causes::Causes;
pub use commit_needs_all::CommitNeedsAll;
pub use deadlines::Deadlines;
pub use decodable::Decodable;
pub use exact_values::ExactValues;
pub use ghosts::Ghosts;
pub use group_isolation::GroupIsolation;
pub use no_false_eviction::NoFalseEviction;
pub use no_two_terms::NoTwoTerms;
pub use one_outcome::OneOutcome;
pub use one_state::OneState;
pub use one_verdict::OneVerdict;
pub use remembered::Remembered;
pub use same_outcome::SameOutcome;
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

    /// A moment between two events.
    fn look(&mut self, _world: &World) -> Result<(), String> {
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
                Box::new(OneOutcome::default()),
                Box::new(OneState::default()),
                Box::new(CommitNeedsAll::default()),
                Box::new(ExactValues::default()),
                Box::new(Deadlines),
                Box::new(Decodable),
                Box::new(NoFalseEviction::default()),
                Box::new(StaleEpochs::default()),
                Box::new(NoTwoTerms::default()),
                Box::new(GroupIsolation::default()),
                Box::new(SameOutcome::default()),
                Box::new(Ghosts::default()),
                Box::new(Remembered::default()),
                Box::new(Causes::default()),
                Box::new(Bystanders::default()),
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

    /// Lets everybody look at the world as it is now.
    pub fn look(&mut self, world: &World) {
        for checker in &mut self.checkers {
            if let Err(what) = checker.look(world) {
                self.violations.push(Violation { checker: checker.name(), at: world.now(), what });
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
