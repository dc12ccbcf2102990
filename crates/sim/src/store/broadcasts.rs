//! Broadcasts (rule 30): each is heard once by everybody who is present from its sending to its end.
//!
//! Present is who is in the sender's view when it is sent and knows of a view with the sender, and whose session lasts until all is judged, in the calm: it was
//! not killed, did not leave, and was not put out and born again. It may be stopped and cut off meanwhile. A broadcast
//! whose sender is gone may be heard by some only; but nobody ever hears one twice, nor its own, whatever happens.

use super::world::{Sabotage, World};
use crate::world::stage::Stage as _;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::store::MemberId;
use std::collections::BTreeMap;

/// How often a bug strikes, where it is about broadcasts.
const SPOILED: f64 = 0.02;
/// How long what was sent last may be on its way when all is calm.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// One broadcast.
#[derive(Debug)]
pub(crate) struct Cast {
    sender: MemberId,
    sent: Instant,
    /// Who else was there, and how often each has heard it.
    heard: BTreeMap<MemberId, u32>,
}

impl World {
    /// A program tells all others something.
    pub(super) fn broadcast(&mut self, number: usize) {
        let (now, id, name) = (self.now, self.processes[number].id, self.values);
        let view = self.member(number).view().cloned();
        let Some(view) = view.filter(|view| view.place(id).is_some()) else { return };
        // Whoever is let in by a view that it has yet to hear of comes meanwhile.
        let knows_us = |other: &MemberId| {
            let process = self.processes.iter().find(|process| process.id == *other);
            let view = process.and_then(|process| process.member.as_ref()?.view());
            view.is_some_and(|view| view.place(id).is_some())
        };
        let others = view.members.iter().map(|member| member.id).filter(|member| *member != id);
        let heard = others.filter(knows_us).map(|member| (member, 0)).collect();
        self.casts.insert(name, Cast { sender: id, sent: now, heard });
        self.broadcasts.0 += 1;
        self.member(number).broadcast(now, name.to_le_bytes()[..].into());
        self.pump(number);
    }

    pub(super) fn broadcast_heard(&mut self, number: usize, payload: &[u8]) {
        let id = self.processes[number].id;
        let times = match self.plan.sabotage {
            Some(Sabotage::LostBroadcast) if self.rng.chance(SPOILED) => 0,
            Some(Sabotage::RepeatedBroadcast) if self.rng.chance(SPOILED) => 2,
            _ => 1,
        };
        let name = payload.try_into().ok().map(u64::from_le_bytes);
        let cast = name.and_then(|name| self.casts.get_mut(&name));
        let Some(cast) = cast.filter(|cast| cast.sender != id) else {
            return self.violate("broadcasts", format!("process {number} hears what nobody else has sent"));
        };
        let heard = cast.heard.entry(id).or_default();
        *heard += times;
        self.broadcasts.1 += 1;
        if *heard > 1 {
            let what = format!("process {number} hears a broadcast of {:?} {heard} times", cast.sender);
            self.violate("broadcasts", what);
        }
    }

    /// All is calm: whoever was there all the time has heard everything that was sent by somebody who still is.
    pub(super) fn judge_broadcasts(&mut self) {
        let is_missed = |world: &World, cast: &Cast| -> Option<MemberId> {
            let is_here = |id: MemberId| {
                world.processes.iter().any(|process| process.id == id && process.member.is_some())
            };
            let missed = cast.heard.iter().find(|(id, heard)| **heard == 0 && is_here(**id));
            missed.map(|(id, _)| *id).filter(|_| is_here(cast.sender))
        };
        let ends = self.now + LAST_WORDS;
        let all_heard = |world: &World| world.casts.values().all(|cast| is_missed(world, cast).is_none());
        if self.play_until(ends, all_heard) {
            return;
        }
        let missed = self.casts.values().find_map(|cast| Some((is_missed(self, cast)?, cast)));
        if let Some((missed, cast)) = missed {
            let Cast { sender, sent, .. } = cast;
            let what = format!(
                "{missed:?} was there all the time and has not heard what {sender:?} sent at {sent:?}"
            );
            self.violate("broadcasts", what);
        }
    }
}
