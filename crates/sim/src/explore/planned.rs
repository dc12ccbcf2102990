//! An exploration of any world, as the command and the tests see it.
//!
//! Worlds differ in their states and events. Who runs one only wants to know how many states there were, and how to see a
//! failure again.

use super::search::{self, Limits, Model, Replayed, Violation};
use std::str::FromStr;

/// One exploration: what of, and how far.
#[derive(Clone, Debug)]
pub struct Planned<M> {
    /// Its name.
    pub name: &'static str,
    /// What of.
    pub model: M,
    /// How far.
    pub limits: Limits,
    /// What to give to `outlast-sim explore` to get it again.
    pub options: String,
}

impl<M> Planned<M> {
    /// A plan that has a name.
    pub fn new(name: &'static str, model: M, limits: Limits) -> Self {
        Self { name, model, limits, options: format!("--plan {name}") }
    }
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Report {
    /// Distinct states.
    pub states: usize,
    /// Events that were tried.
    pub transitions: usize,
    /// The most events from the beginning.
    pub depth: usize,
    /// Whether every state within the model's own bounds was seen.
    pub whole: bool,
    /// The first failure.
    pub failure: Option<Told>,
}

/// A failure, in words.
#[derive(Clone, Debug)]
pub struct Told {
    /// What is wrong.
    pub violation: Violation,
    /// The events that lead there, to be played again.
    pub schedule: String,
    /// What each of them meant.
    pub story: Vec<String>,
}

/// An exploration of some world.
pub trait Exploration {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What to give to `outlast-sim explore` to get it again.
    fn options(&self) -> &str;

    /// Explores; `layer` is told of every depth that is done, as [`search::explore`] has it.
    fn explore(&self, layer: &mut dyn FnMut(usize, usize, usize)) -> Report;

    /// Plays a schedule again. An error says what in it cannot be read or cannot happen.
    fn replay(&self, schedule: &str) -> Result<Replayed, String>;
}

impl<M: Model> Exploration for Planned<M>
where
    M::Event: PartialEq + FromStr<Err = String>,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn options(&self) -> &str {
        &self.options
    }

    fn explore(&self, layer: &mut dyn FnMut(usize, usize, usize)) -> Report {
        let explored = search::explore(&self.model, self.limits, layer);
        let failure = explored.failure.map(|failure| {
            let story = search::replay(&self.model, &failure.schedule).map(|replayed| replayed.story);
            let schedule = search::write_schedule(&failure.schedule);
            Told { violation: failure.violation, schedule, story: story.unwrap_or_default() }
        });
        let search::Explored { states, transitions, depth, whole, .. } = explored;
        Report { states, transitions, depth, whole, failure }
    }

    fn replay(&self, schedule: &str) -> Result<Replayed, String> {
        search::replay(&self.model, &search::parse_schedule(schedule)?)
    }
}

/// Explores, and says what is wrong in one text that is fit for a test.
pub fn explore_whole(plan: &dyn Exploration) -> Result<Report, String> {
    let report = plan.explore(&mut |_, _, _| ());
    if let Some(failure) = &report.failure {
        return Err(format!(
            "{}: {}\n{}\nagain: outlast-sim explore {} --replay \"{}\"",
            plan.name(),
            failure.violation,
            failure.story.join("\n"),
            plan.options(),
            failure.schedule
        ));
    }
    if !report.whole {
        return Err(format!("{} has more states than its limits allow", plan.name()));
    }
    Ok(report)
}
