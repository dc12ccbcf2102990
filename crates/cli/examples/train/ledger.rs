//! What the receipts said, step by step, compared between replicas.
//!
//! Every worker tells of every step that it committed. The ledger keeps the first telling of each step and holds
//! all others against it: the same contributors, the same averaged gradient, the same replica afterwards. A
//! difference in a single bit is an error at once, not a matter of rounding.
//!
//! What it does not do: judge whether the contributors are the right ones. The script knows whom it killed.

use crate::said::Commit;
use anyhow::{Result, ensure};
use std::collections::BTreeMap;

/// One committed step.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// As the first one told it.
    pub(crate) commit: Commit,
    /// Who has told it, and when its call returned.
    pub(crate) by: BTreeMap<String, u64>,
    pub(crate) accuracy: Option<f32>,
}

impl Entry {
    /// When the last of those who told it had it.
    pub(crate) fn last_at(&self) -> u64 {
        self.by.values().copied().max().unwrap_or(self.commit.at)
    }

    /// When the first had it.
    pub(crate) fn first_at(&self) -> u64 {
        self.by.values().copied().min().unwrap_or(self.commit.at)
    }
}

/// All committed steps.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    steps: BTreeMap<u64, Entry>,
    receipts: u64,
}

/// Steps in a row with the same contributors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) contributors: Vec<String>,
    pub(crate) steps: u64,
}

impl Ledger {
    /// Enters what `worker` committed, and compares it with what others told of the same step.
    pub(crate) fn enter(&mut self, worker: &str, commit: &Commit) -> Result<()> {
        let new = || Entry { commit: commit.clone(), by: BTreeMap::new(), accuracy: None };
        let entry = self.steps.entry(commit.step).or_insert_with(new);
        let first = &entry.commit;
        let step = commit.step;
        ensure!(
            first.epoch == commit.epoch && first.contributors == commit.contributors,
            "{worker} committed step {step} with other contributors than the others did"
        );
        ensure!(
            first.hash == commit.hash && first.loss.to_bits() == commit.loss.to_bits(),
            "the averaged gradients of step {step} differ at {worker}: {} and {}",
            first.hash,
            commit.hash
        );
        ensure!(
            first.digest == commit.digest,
            "the replica of {worker} differs after step {step}: {} and {}",
            first.digest,
            commit.digest
        );
        let again = entry.by.insert(worker.to_owned(), commit.at);
        ensure!(again.is_none(), "{worker} committed step {step} twice");
        entry.accuracy = entry.accuracy.or(commit.accuracy);
        self.receipts += 1;
        Ok(())
    }

    pub(crate) fn last_step(&self) -> u64 {
        self.steps.last_key_value().map_or(0, |(step, _)| *step)
    }

    /// All steps, in order.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.steps.values()
    }

    /// The steps that somebody had after that moment.
    pub(crate) fn after(&self, moment: u64) -> impl Iterator<Item = &Entry> {
        self.entries().filter(move |entry| entry.first_at() > moment)
    }

    /// Receipts that were compared.
    pub(crate) fn receipts(&self) -> u64 {
        self.receipts
    }

    /// Steps that took more than one attempt.
    pub(crate) fn retried(&self) -> usize {
        self.entries().filter(|entry| entry.commit.attempts > 1).count()
    }

    /// The last accuracy that somebody measured.
    pub(crate) fn accuracy(&self) -> Option<f32> {
        self.entries().rev().find_map(|entry| entry.accuracy)
    }

    /// Who contributed, over time.
    pub(crate) fn phases(&self) -> Vec<Phase> {
        let mut phases: Vec<Phase> = Vec::new();
        for entry in self.entries() {
            let contributors = &entry.commit.contributors;
            match phases.last_mut() {
                Some(phase) if phase.contributors == *contributors => phase.steps += 1,
                _ => phases.push(Phase { contributors: contributors.clone(), steps: 1 }),
            }
        }
        phases
    }
}
