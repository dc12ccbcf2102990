//! The comparison: ours and the baseline under the same faults, seeds and network, as tables for people.
//!
//! Every cell comes from worlds that differ in nothing but the health plane inside. What is measured is what
//! the members themselves say and send; the truth comes from the world.

mod measure;
mod outcome;
mod render;

pub use measure::{Cell, Trouble, cell};
pub use outcome::{Outcome, SCENARIOS, outcome};
pub use render::write_between_markers;

use crate::nodes::{Candidate, MembershipNode};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Group sizes, each with how many trials are played of every trouble.
    pub sizes: Vec<(u32, usize)>,
    /// How many seeds each scenario with a fixed outcome gets.
    pub outcome_seeds: u64,
    /// How many cells are measured at the same time.
    pub jobs: usize,
}

impl Plan {
    /// Everything: minutes.
    pub fn full() -> Self {
        let sizes = vec![(2, 60), (3, 60), (8, 60), (64, 40), (512, 16), (2_000, 2)];
        Self { sizes, outcome_seeds: 20, jobs: 2 }
    }

    /// Enough to see that everything works: seconds.
    pub fn quick() -> Self {
        Self { sizes: vec![(2, 3), (8, 3), (64, 2)], outcome_seeds: 2, jobs: 2 }
    }
}

/// One measurement: whose, where, under what.
struct Measurement {
    candidate: &'static str,
    members: u32,
    loss: f64,
    trouble: Trouble,
    cell: Cell,
}

const LOSSES: [f64; 2] = [0.0, 0.1];

type Job = (u32, usize, f64, Trouble, bool);

/// Measures everything and returns the tables as Markdown. `progress` is told what is done.
pub fn tables(plan: &Plan, progress: impl Fn(&str) + Sync) -> String {
    let mut jobs: Vec<Job> = Vec::new();
    for &(members, trials) in &plan.sizes {
        for loss in LOSSES {
            for trouble in Trouble::ALL {
                jobs.push((members, trials, loss, trouble, false));
                if cfg!(feature = "baseline") {
                    // The baseline searches its table for every word it hears: large groups get fewer trials.
                    let trials = if members >= 512 { trials.div_ceil(4) } else { trials };
                    jobs.push((members, trials, loss, trouble, true));
                }
            }
        }
    }
    // The largest first, so that no thread is left alone with the longest.
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(jobs[at].0));
    let (next, measured) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            scope.spawn(|| {
                while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let measurement = measure(&jobs[at]);
                    progress(&render::progress_line(&measurement));
                    measured.lock().expect("no thread panics with the lock").push((at, measurement));
                }
            });
        }
    });
    let mut measured = measured.into_inner().expect("all threads are done");
    measured.sort_by_key(|(at, _)| *at);
    let measured: Vec<Measurement> = measured.into_iter().map(|(_, measurement)| measurement).collect();

    let mut text = String::new();
    render::settings(&mut text, plan);
    render::detection(&mut text, &measured);
    render::stalls(&mut text, &measured);
    render::traffic(&mut text, &measured);
    let _infallible = writeln!(text);
    outcomes(&mut text, plan, &progress);
    text
}

fn measure(&(members, trials, loss, trouble, baseline): &Job) -> Measurement {
    #[cfg(feature = "baseline")]
    if baseline {
        let cell = cell::<crate::nodes::FocaNode>(members, loss, trouble, trials);
        return Measurement { candidate: crate::nodes::FocaNode::NAME, members, loss, trouble, cell };
    }
    assert!(!baseline, "the baseline is compiled in by the feature of that name");
    let cell = cell::<MembershipNode>(members, loss, trouble, trials);
    Measurement { candidate: MembershipNode::NAME, members, loss, trouble, cell }
}

fn outcomes(text: &mut String, plan: &Plan, progress: impl Fn(&str)) {
    render::outcome_header(text);
    for (name, _) in SCENARIOS {
        let ours = outcome::<MembershipNode>(name, plan.outcome_seeds);
        render::outcome_row(text, name, MembershipNode::NAME, &ours);
        #[cfg(feature = "baseline")]
        {
            let theirs = outcome::<crate::nodes::FocaNode>(name, plan.outcome_seeds);
            render::outcome_row(text, name, crate::nodes::FocaNode::NAME, &theirs);
        }
        progress(name);
    }
}
