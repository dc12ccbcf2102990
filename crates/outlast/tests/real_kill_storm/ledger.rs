//! The books of a storm, and how they are held against each other.
//!
//! A collective that somebody committed must have been committed by every contributor that lives. One exception is right: who is
//! put out has voted and hears no verdict any more, and the others may have committed that call with its vote. So each time
//! that somebody is put out it may miss one call of each tag, the one that it was in, and no other: nothing that it tells
//! before is of a later call, and everything that it tells afterwards is of a later epoch.
//!
//! Nothing here knows of processes; `ledger_tests.rs` plays it through.

use std::collections::{BTreeMap, BTreeSet};

/// Epoch, tag and seq.
pub(crate) type Key = (u64, u64, u64);

/// What all who committed a collective must have in common, and who they are.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) contributors: Vec<String>,
    pub(crate) hash: String,
    pub(crate) by: BTreeSet<String>,
}

/// What one worker told of itself, in order.
#[derive(Debug, Default)]
pub(crate) struct Account {
    commits: Vec<Key>,
    /// How many commits it had told of each time it was put out.
    put_out_after: Vec<usize>,
}

impl Account {
    pub(crate) fn commit(&mut self, key: Key) {
        self.commits.push(key);
    }

    pub(crate) fn put_out(&mut self) {
        self.put_out_after.push(self.commits.len());
    }

    /// Which times it may have been put out in the call of that key.
    fn times_put_out_in(&self, (epoch, tag, seq): Key) -> impl Iterator<Item = usize> {
        let is_earlier = move |(its_epoch, its_tag, its_seq): &Key| {
            *its_epoch < epoch || *its_epoch == epoch && (*its_tag != tag || *its_seq < seq)
        };
        let times = self.put_out_after.iter().enumerate();
        let times = times.filter(move |(_, told)| {
            let (before, after) = self.commits.split_at(**told);
            before.iter().all(is_earlier) && after.iter().all(|(its_epoch, ..)| *its_epoch > epoch)
        });
        times.map(|(time, _)| time)
    }
}

/// Whoever lives, contributed to a collective that others committed, and says nothing of it without having been put out in it.
pub(crate) fn silent<'a>(
    ledger: &BTreeMap<Key, Entry>,
    living: &[(&'a str, &Account)],
) -> Vec<(Key, Vec<&'a str>)> {
    let mut missed = BTreeSet::new();
    let mut found = Vec::new();
    for (key, entry) in ledger {
        let is_silent = |id: &str| entry.contributors.iter().any(|name| name == id) && !entry.by.contains(id);
        let mut silent = Vec::new();
        for (id, account) in living.iter().filter(|(id, _)| is_silent(id)) {
            // Each time excuses one call of each tag.
            let excused = account.times_put_out_in(*key).any(|time| missed.insert((*id, time, key.1)));
            if !excused {
                silent.push(*id);
            }
        }
        if !silent.is_empty() {
            found.push((*key, silent));
        }
    }
    found
}
