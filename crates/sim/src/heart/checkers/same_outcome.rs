//! Call k of every member had the same outcome (rules 6 and 8): all were committed under one key, or all failed.
//! Otherwise one program moves on while another tries again, and their next calls do not pair up. The word covers
//! those who go on together: whoever is put out before it is in a commit with the others does not count, nor does a commit
//! that either had completed before the call in question ended for it, and that is only told late.

use super::{Checker, Fact, World};
use crate::heart::Place;
use outlast_proto::collective::OpKey;
use outlast_proto::id::PeerId;
use outlast_proto::session::Done;
use outlast_proto::time::Instant;
use std::collections::BTreeMap;

/// See above.
#[derive(Default)]
pub struct SameOutcome {
    /// By call: how it ended for whom, none if it failed, and when.
    ended: BTreeMap<Place, BTreeMap<PeerId, (Option<OpKey>, Moment)>>,
    /// Who completed which attempt, and when.
    completed: BTreeMap<OpKey, BTreeMap<PeerId, Moment>>,
    conflicts: Vec<Conflict>,
    now: Moment,
}

/// How many facts were heard before: an order, not a time.
type Moment = u64;

/// A call that ended differently for two members, and when it did so for each.
struct Conflict {
    place: Place,
    members: [(PeerId, Moment); 2],
}

impl Conflict {
    fn is_about(&self, peer: &PeerId) -> bool {
        self.members.iter().any(|(member, _)| member == peer)
    }
}

impl SameOutcome {
    /// Two who went on together in the attempt `key`, which `peer` hears to be committed, though a call before it had
    /// ended differently for them.
    fn gone_on_together(&self, peer: &PeerId, key: &OpKey, contributors: &[PeerId]) -> Option<&Conflict> {
        let completed = |member: &PeerId| self.completed.get(key).and_then(|told| told.get(member)).copied();
        let went_on = |(member, ended): &(PeerId, Moment)| {
            contributors.contains(member) && completed(member).is_none_or(|moment| moment > *ended)
        };
        self.conflicts.iter().find(|conflict| conflict.is_about(peer) && conflict.members.iter().all(went_on))
    }
}

impl Checker for SameOutcome {
    fn name(&self) -> &'static str {
        "same_outcome"
    }

    fn hear(&mut self, _world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        self.now += 1;
        match fact {
            Fact::Completed { peer, key } => {
                self.completed.entry(key.clone()).or_default().insert(*peer, self.now);
            }
            Fact::Out { peer, .. } => {
                // It may come back under the same id, and begins anew then.
                self.conflicts.retain(|conflict| !conflict.is_about(peer));
                self.ended.values_mut().for_each(|told| drop(told.remove(peer)));
                for told in self.completed.values_mut() {
                    told.remove(peer);
                }
            }
            _ => {}
        }
        let Fact::Finished { peer, outcome, place, .. } = fact else { return Ok(()) };
        let committed = match outcome {
            Ok(Done::Committed { key, contributors, .. }) => Some((key, contributors)),
            _ => None,
        };
        if let Some((key, contributors)) = committed
            && let Some(conflict) = self.gone_on_together(peer, key, contributors)
        {
            let [a, b] = conflict.members.map(|(member, _)| member.short());
            let Place { step, tag, turn, .. } = &conflict.place;
            return Err(format!(
                "step {step}, tag {tag}, turn {turn} ended differently for {a} and {b}, and they went on together"
            ));
        }
        let Some(place) = place else { return Ok(()) };
        let key = committed.map(|(key, _)| key.clone());
        let told = self.ended.entry(place.clone()).or_default();
        for (other, (theirs, moment)) in told.iter() {
            if other != peer && *theirs != key {
                let members = [(*other, *moment), (*peer, self.now)];
                self.conflicts.push(Conflict { place: place.clone(), members });
            }
        }
        told.insert(*peer, (key, self.now));
        // Nobody is a thousand calls behind.
        if self.ended.len() > 4_096 {
            self.ended.pop_first();
        }
        if self.completed.len() > 4_096 {
            self.completed.pop_first();
        }
        Ok(())
    }
}
