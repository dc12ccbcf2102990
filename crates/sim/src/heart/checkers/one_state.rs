//! Members that committed a step together, or finished a sync together, hold the same state under the same revision; no torn
//! state is ever elected; nobody is healed to less than it held; and a commit is one step further, whatever became of
//! the coordinator (rules 25 and 26).
//!
//! Nor does a group begin below what it had reached with something that nobody ever agreed on, whoever came and went
//! meanwhile. What it had reached is what its coordinator can know: a new one knows what those told who were with it when it
//! had heard all of them. It is over when the last one who has it says goodbye for good.

use super::super::process::{Phase, Process};
use super::super::training::Training;
use super::{Checker, Fact, World};
use outlast_proto::collective::OpKey;
use outlast_proto::id::PeerId;
use outlast_proto::state::Revision;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::LossReason;
use std::collections::BTreeMap;

/// What made a state the same for several members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Made {
    Commit(PeerId, OpKey),
    Sync(PeerId, Vec<u8>),
}

/// See above.
#[derive(Default)]
pub struct OneState {
    /// What each of these made, and who has heard of it.
    states: BTreeMap<Made, (Revision, u64, Vec<PeerId>)>,
    reached: BTreeMap<PeerId, Revision>,
    /// The same of groups, whoever is in them, while that coordinator has the address.
    floors: BTreeMap<u32, Revision>,
    coordinator: Option<usize>,
    /// When another one had it.
    changed: Instant,
}

impl OneState {
    fn compare(&mut self, made: Made, peer: PeerId, revision: Revision, contents: u64) -> Result<(), String> {
        let first = self.states.entry(made).or_insert((revision, contents, Vec::new()));
        first.2.push(peer);
        let (theirs, other) = ((first.0, first.1), first.2[0]);
        self.reached.insert(peer, revision);
        if self.states.len() > 4_096 {
            self.states.pop_first();
        }
        if theirs == (revision, contents) {
            return Ok(());
        }
        let (a, b) = (peer.short(), other.short());
        Err(format!("{a} holds {contents:x} as revision {revision}, {b} {:x} as {}", theirs.1, theirs.0))
    }
}

impl OneState {
    /// Whether this peer hears only now what others have heard before: it was stopped, and they may be further.
    fn is_late(&self, made: &Made, peer: PeerId) -> bool {
        self.states.get(made).is_some_and(|(_, _, heard)| !heard.contains(&peer))
    }

    fn group(world: &World, peer: PeerId) -> Option<u32> {
        world.process_of(peer).map(Process::group)
    }

    /// A group agreed on that revision. It may be a lower one, if it is of the same training.
    fn agreed(&mut self, world: &World, group: Option<u32>, revision: Revision) {
        // What was said under the coordinator before, and is told only now, the new one cannot know.
        if let Some(group) = group.filter(|_| world.now() != self.changed) {
            self.floors.insert(group, revision);
        }
    }

    /// A peer said goodbye for good. If it has what its group had reached the training may be over; whoever goes on with it
    /// will say so. It may have yet to hear of the last commit.
    fn said_goodbye(&mut self, world: &World, peer: PeerId) {
        let gone = |process: &&Process| process.phase == Phase::Gone && process.killed.is_none();
        let Some(process) = world.process_of(peer).filter(gone) else { return };
        let known = process.training.as_ref().and_then(Training::known);
        let floor = self.floors.get(&process.group()).copied();
        if known.is_some_and(|known| Some(known + 1) >= floor) {
            self.floors.remove(&process.group());
        }
    }
}

impl Checker for OneState {
    fn name(&self) -> &'static str {
        "one_state"
    }

    fn hear(&mut self, world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        if self.coordinator != world.at_address {
            (self.coordinator, self.changed) = (world.at_address, world.now());
            self.floors.clear();
        }
        match fact {
            Fact::Trained { peer, founder, key, revision, contents } => {
                if let Some(before) = self.reached.get(peer).filter(|before| **before + 1 != *revision) {
                    return Err(format!("{} committed revision {revision} after {before}", peer.short()));
                }
                let made = Made::Commit(*founder, key.clone());
                if !self.is_late(&made, *peer) {
                    self.agreed(world, Self::group(world, *peer), *revision);
                }
                self.compare(made, *peer, *revision, *contents)
            }
            Fact::Synced { peer, founder, outcome, revision, contents, held, was_agreed } => {
                if let Some(held) = held.filter(|held| held > revision) {
                    return Err(format!(
                        "{} held revision {held} and was healed to {revision}",
                        peer.short()
                    ));
                }
                let made = Made::Sync(*founder, outcome.clone());
                if self.is_late(&made, *peer) {
                    return self.compare(made, *peer, *revision, *contents);
                }
                let floor = Self::group(world, *peer).and_then(|group| self.floors.get(&group).copied());
                if let Some(floor) = floor.filter(|floor| !was_agreed && revision < floor) {
                    return Err(format!(
                        "{} begins with revision {revision}, which nobody had agreed on, after {floor}",
                        peer.short()
                    ));
                }
                self.agreed(world, Self::group(world, *peer), *revision);
                self.compare(made, *peer, *revision, *contents)
            }
            Fact::Elected { revision, torn, .. } => match torn.first() {
                Some(peer) => Err(format!("{} is torn and gives revision {revision}", peer.short())),
                None => Ok(()),
            },
            Fact::Rebuilt { coordinator, group, known } => {
                if let Some(known) = known.filter(|_| self.coordinator == Some(*coordinator)) {
                    self.agreed(world, Some(*group), known);
                }
                Ok(())
            }
            Fact::Lost { peer, reason: LossReason::Left, .. } => {
                self.said_goodbye(world, *peer);
                Ok(())
            }
            Fact::Out { peer, .. } => {
                // It begins with a sync, perhaps of another training.
                self.reached.remove(peer);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
