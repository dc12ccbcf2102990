//! A commit gives exactly the sum over the receipt's contributors, of one step, the same for all; any error
//! leaves the caller's data as it was (invariants 2 and 4, rules 4 and 8).

use super::{Checker, Fact, World};
use crate::heart::Buffer;
use outlast_proto::collective::{OpKey, OpKind};
use outlast_proto::id::PeerId;
use outlast_proto::session::{CallError, Done};
use outlast_proto::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// An attempt, its contributors, and the founder of their history: where all were out, numbers begin again.
type Performed = (OpKey, Vec<PeerId>, Option<PeerId>);

/// See above.
#[derive(Default)]
pub struct ExactValues {
    /// Who was told last, what, and of how many newcomers.
    results: BTreeMap<Performed, (PeerId, Buffer, u32)>,
}

impl Checker for ExactValues {
    fn name(&self) -> &'static str {
        "exact_values"
    }

    fn hear(&mut self, world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        let Fact::Finished { process, peer, kind, root, outcome, before, after, .. } = fact else {
            return Ok(());
        };
        let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
        let (key, contributors, pending) = match outcome {
            Ok(Done::Committed { key, contributors, pending, .. }) => (key, contributors, *pending),
            Err(CallError::Mismatch { ours, others }) if !world.deviated => {
                return Err(format!("process {process} was told that {ours} differs from {others}"));
            }
            Err(error) if before != after => {
                return Err(format!(
                    "process {process} failed with {error:?}, and its data is changed: {after:?}"
                ));
            }
            Ok(Done::Ballot { .. }) | Err(_) => return Ok(()),
        };
        let founder = world.processes[*process].session.record().map(|record| record.founder);
        let place = (key.clone(), contributors.clone(), founder);
        // What is equal to a result that was looked at needs no second look.
        if self.results.get(&place).is_none_or(|(_, result, _)| result != after) {
            let peers: BTreeSet<_> = after.keys().map(|(peer, _)| *peer).collect();
            let expected = match (kind, root) {
                (Some(OpKind::Barrier), _) => BTreeSet::new(),
                (_, Some(root)) => [*root].into(),
                (_, None) => contributors.iter().copied().collect(),
            };
            if peers != expected || after.values().any(|count| *count != 1) {
                return Err(format!("process {process} committed {key} of {contributors:?} with {after:?}"));
            }
            let steps: BTreeSet<_> = after.keys().filter_map(|(_, step)| *step).collect();
            if steps.len() > 1 {
                return Err(format!(
                    "process {process} committed {key} over data of different steps {steps:?}"
                ));
            }
        }
        let mine = || (*peer, after.clone(), pending);
        let (first, result, told) = self.results.entry(place).or_insert_with(mine);
        if result != after {
            return Err(format!("process {process} committed {key} with another result than others"));
        }
        // A coordinator that was restarted may not know what one told who is no more.
        let lives = world.process_of(*first).is_some_and(|other| other.lives() && other.id() == *first);
        if *told != pending && lives {
            return Err(format!(
                "process {process} heard of {pending} newcomers with {key}, another of {told}"
            ));
        }
        (*first, *told) = (*peer, pending);
        Ok(())
    }
}
