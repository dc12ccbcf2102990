//! A commit means that every contributor had said Complete (invariant 2), but for those who died or were put out
//! while a coordinator was rebuilt: then the word of all who are left is enough (rule 17).

use super::{Checker, Fact, World};
use outlast_proto::collective::{GroupEpoch, OpKey};
use outlast_proto::id::PeerId;
use outlast_proto::session::Done;
use outlast_proto::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// See above.
#[derive(Default)]
pub struct CommitNeedsAll {
    completed: BTreeMap<OpKey, BTreeSet<PeerId>>,
    /// Who was put out, and the first epoch that it opened when it was back: commits before it may be told late.
    lost: BTreeMap<PeerId, Option<GroupEpoch>>,
    /// By attempt: contributors of whom it is known. Who completed or is lost stays so.
    judged: BTreeMap<OpKey, Vec<PeerId>>,
}

impl Checker for CommitNeedsAll {
    fn name(&self) -> &'static str {
        "commit_needs_all"
    }

    fn hear(&mut self, world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Completed { peer, key } => {
                self.completed.entry(key.clone()).or_default().insert(*peer);
            }
            // Who gave its session up while a coordinator was away was not asked either (rule 17).
            Fact::Lost { peer, .. } | Fact::Out { peer, .. } => {
                self.lost.insert(*peer, None);
            }
            Fact::Opened { peer, record, .. } => {
                if let Some(back) = self.lost.get_mut(peer) {
                    back.get_or_insert(record.epoch);
                }
            }
            Fact::Finished { process, outcome: Ok(Done::Committed { key, contributors, .. }), .. } => {
                if self.judged.get(key) == Some(contributors) {
                    return Ok(());
                }
                let none = BTreeSet::new();
                let completed = self.completed.get(key).unwrap_or(&none);
                let silent = |peer: &&PeerId| {
                    let lives = world
                        .process_of(**peer)
                        .is_some_and(|process| process.lives() && process.id() == **peer);
                    let was_out =
                        self.lost.get(*peer).is_some_and(|back| back.is_none_or(|back| key.epoch < back));
                    lives && !completed.contains(*peer) && !was_out
                };
                if let Some(peer) = contributors.iter().find(silent) {
                    return Err(format!("process {process} committed {key} without {}", peer.short()));
                }
                self.judged.insert(key.clone(), contributors.clone());
            }
            _ => {}
        }
        Ok(())
    }
}
