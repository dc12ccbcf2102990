//! Two peers never get different verdicts on one attempt (invariant 2). The word covers the members of the next
//! epoch (rule 5): whoever is put out, or dies, before it shares an epoch with the other does not count, not even if it
//! comes back under its own id.

use super::{Checker, Fact, World};
use outlast_proto::collective::OpKey;
use outlast_proto::id::PeerId;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::Verdict;
use std::collections::{BTreeMap, BTreeSet};

/// See above.
#[derive(Default)]
pub struct OneVerdict {
    heard: BTreeMap<(PeerId, OpKey), BTreeMap<PeerId, bool>>,
    conflicts: BTreeSet<(PeerId, OpKey)>,
    /// By peer: the last epoch it opened, and with whom.
    last: BTreeMap<PeerId, (u64, BTreeSet<PeerId>)>,
}

impl Checker for OneVerdict {
    fn name(&self) -> &'static str {
        "one_verdict"
    }

    fn hear(&mut self, _world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Heard { peer, key, verdict, founder, .. } => {
                let commit = matches!(verdict, Verdict::Commit { .. });
                let told = self.heard.entry((*founder, key.clone())).or_default();
                if told.insert(*peer, commit).is_some_and(|before| before != commit) {
                    return Err(format!("{} was told both verdicts on {key}", peer.short()));
                }
                // All before were told the same, or it is a conflict already.
                if told.values().next().is_some_and(|other| *other != commit)
                    || told.values().next_back().is_some_and(|other| *other != commit)
                {
                    self.conflicts.insert((*founder, key.clone()));
                }
            }
            Fact::Opened { peer, record, .. } => {
                let roster = record.roster.iter().map(|info| info.id).collect();
                self.last.insert(*peer, (record.epoch, roster));
                for (founder, key) in self.conflicts.iter().filter(|(_, key)| key.epoch < record.epoch) {
                    self.judge(*founder, key)?;
                }
            }
            Fact::Out { peer, .. } => {
                self.last.remove(peer);
                for told in self.heard.values_mut() {
                    told.remove(peer);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, world: &World) -> Result<(), String> {
        // At the end: whoever lives and is still in the very epoch of a conflict was not put out either.
        for (founder, key) in &self.conflicts {
            self.judge(*founder, key)?;
            let told = &self.heard[&(*founder, key.clone())];
            let still = |peer: &&PeerId| {
                let lives = world.process_of(**peer).is_some_and(|process| {
                    process.lives() && process.id() == **peer && process.session.record().is_some()
                });
                lives && self.last.get(peer).is_some_and(|(epoch, _)| *epoch == key.epoch)
            };
            let verdicts: BTreeSet<_> =
                told.iter().filter(|(peer, _)| still(peer)).map(|(_, v)| *v).collect();
            if verdicts.len() > 1 {
                return Err(format!("living members of one epoch were told different verdicts on {key}"));
            }
        }
        Ok(())
    }
}

impl OneVerdict {
    fn judge(&self, founder: PeerId, key: &OpKey) -> Result<(), String> {
        let told = &self.heard[&(founder, key.clone())];
        for (a, verdict) in told {
            for (b, _) in told.iter().filter(|(_, other)| *other != verdict) {
                let together = |x: &PeerId, y: &PeerId| {
                    self.last.get(x).is_some_and(|(epoch, roster)| *epoch > key.epoch && roster.contains(y))
                };
                if together(a, b) && together(b, a) {
                    let (a, b) = (a.short(), b.short());
                    return Err(format!(
                        "{a} and {b} were told different verdicts on {key} and went on together"
                    ));
                }
            }
        }
        Ok(())
    }
}
