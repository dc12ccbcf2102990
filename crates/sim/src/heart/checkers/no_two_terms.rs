//! No two terms decide (invariant 7): nobody acts on the word of a lower term than one it has obeyed, and no
//! commit that anybody acts on was said by a term after a higher one had begun to decide. What a peer does with itself
//! alone is not decided between two: a term that is rebuilt from its word only tells it the end of its own call. Nor does a
//! term decide in a history that it ends by beginning a new one (rule 41), for it was not heard by all and knows that: it tells its
//! members how their calls ended, and whoever was missed may go on from the old one once nobody of the new one is left.

use super::{Checker, Fact, World};
use outlast_proto::collective::{OpKey, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::Verdict;
use std::collections::BTreeMap;

/// See above.
#[derive(Default)]
pub struct NoTwoTerms {
    /// By lineage and term: when it first said a verdict that anybody heard, and when it last said a commit.
    reigns: BTreeMap<PeerId, BTreeMap<u64, (Instant, Instant)>>,
}

impl Checker for NoTwoTerms {
    fn name(&self) -> &'static str {
        "no_two_terms"
    }

    fn hear(&mut self, world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Opened { process, record, .. } => {
                let term = world.processes[*process].obeyed;
                for ended in &record.ancestors {
                    let reigns = self.reigns.entry(ended.founder).or_default();
                    if reigns.get(&term).is_some_and(|(_, last_commit)| *last_commit == Instant::ORIGIN) {
                        reigns.remove(&term);
                    }
                }
                Ok(())
            }
            Fact::ObeyedLowerTerm { process, term, obeyed, .. } => {
                Err(format!("process {process} obeyed term {term} after term {obeyed}"))
            }
            Fact::Heard { key: OpKey { scope: Scope::Members(members), .. }, .. } if members.len() < 2 => {
                Ok(())
            }
            Fact::Heard { key, verdict, founder, term, sent, .. } => {
                let reigns = self.reigns.entry(*founder).or_default();
                let (first, last) = reigns.entry(*term).or_insert((*sent, Instant::ORIGIN));
                *first = (*first).min(*sent);
                if matches!(verdict, Verdict::Commit { .. }) {
                    *last = (*last).max(*sent);
                }
                let lower = reigns.range(..term).map(|(term, (_, last))| (*term, *last));
                let higher = reigns.range(term + 1..).map(|(term, (first, _))| (*term, *first));
                let first = reigns[term].0;
                if let Some((other, _)) = lower.into_iter().find(|(_, last)| *last > first) {
                    return Err(format!("term {other} committed after term {term} had decided {key}"));
                }
                let commits = reigns[term].1;
                if let Some((other, _)) = higher.into_iter().find(|(_, first)| commits > *first) {
                    return Err(format!("term {term} committed {key} after term {other} had decided"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
