//! Call k of every member had the same outcome (rules 6 and 8): all were committed under one key, or all failed.
//! Otherwise one program moves on while another tries again, and their next calls do not pair up. The word covers
//! those who go on together: whoever is put out before it is in a commit with the others does not count.

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
    /// By call: how it ended for whom; none if it failed.
    ended: BTreeMap<Place, BTreeMap<PeerId, Option<OpKey>>>,
    /// Two for whom a call ended differently, and which.
    conflicts: Vec<(PeerId, PeerId, Place)>,
}

impl Checker for SameOutcome {
    fn name(&self) -> &'static str {
        "same_outcome"
    }

    fn hear(&mut self, _world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        if let Fact::Out { peer, .. } = fact {
            // It may come back under the same id, and begins anew then.
            self.conflicts.retain(|(a, b, _)| ![a, b].contains(&peer));
            self.ended.values_mut().for_each(|told| drop(told.remove(peer)));
        }
        let Fact::Finished { peer, outcome, place, .. } = fact else { return Ok(()) };
        if let Ok(Done::Committed { contributors, .. }) = outcome {
            let together = |(a, b, _): &&(PeerId, PeerId, Place)| {
                [a, b].contains(&peer) && contributors.contains(a) && contributors.contains(b)
            };
            if let Some((a, b, place)) = self.conflicts.iter().find(together) {
                let (a, b, Place { step, tag, turn, .. }) = (a.short(), b.short(), place);
                return Err(format!(
                    "step {step}, tag {tag}, turn {turn} ended differently for {a} and {b}, and they went on together"
                ));
            }
        }
        let Some(place) = place else { return Ok(()) };
        let key = match outcome {
            Ok(Done::Committed { key, .. }) => Some(key.clone()),
            _ => None,
        };
        let told = self.ended.entry(place.clone()).or_default();
        let others = told.iter().filter(|(other, theirs)| *other != peer && **theirs != key);
        self.conflicts.extend(others.map(|(other, _)| (*other, *peer, place.clone())));
        told.insert(*peer, key);
        // Nobody is a thousand calls behind.
        if self.ended.len() > 4_096 {
            self.ended.pop_first();
        }
        Ok(())
    }
}
