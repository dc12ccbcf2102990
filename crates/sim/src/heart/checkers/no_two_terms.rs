//! No two terms decide (invariant 7): nobody acts on the word of a lower term than one it has obeyed, and two
//! terms never commit one attempt with different members.

use super::{Checker, Fact, World};
use outlast_proto::collective::OpKey;
use outlast_proto::id::PeerId;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::Verdict;
use std::collections::BTreeMap;

/// See above.
#[derive(Default)]
pub struct NoTwoTerms {
    commits: BTreeMap<(PeerId, OpKey), BTreeMap<PeerId, u64>>,
    /// By lineage: the highest term that was heard to decide, and when.
    highest: BTreeMap<PeerId, (u64, Instant)>,
}

impl Checker for NoTwoTerms {
    fn name(&self) -> &'static str {
        "no_two_terms"
    }

    fn hear(&mut self, _world: &World, at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::ObeyedLowerTerm { process, term, obeyed, .. } => {
                Err(format!("process {process} obeyed term {term} after term {obeyed}"))
            }
            Fact::Heard { peer, key, verdict: Verdict::Commit { .. }, founder, term, .. } => {
                self.commits.entry((*founder, key.clone())).or_default().insert(*peer, *term);
                let (highest, _) = *self.highest.entry(*founder).or_insert((*term, at));
                // An attempt that two terms commit is one that the first had committed and the second was told of.
                if *term < highest {
                    let terms = &self.commits[&(*founder, key.clone())];
                    if terms.values().all(|other| other == term) {
                        return Err(format!("term {term} committed {key} after term {highest} had decided"));
                    }
                }
                self.highest.entry(*founder).and_modify(|(highest, _)| *highest = (*highest).max(*term));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
