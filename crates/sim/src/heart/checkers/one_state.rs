//! Members that committed a step together, or finished a sync together, hold the same state under the same revision; no torn
//! state is ever elected; nobody is healed to less than it held; and a commit is one step further, whatever became of
//! the coordinator (rules 25 and 26).

use super::{Checker, Fact, World};
use outlast_proto::collective::OpKey;
use outlast_proto::id::PeerId;
use outlast_proto::state::Revision;
use outlast_proto::time::Instant;
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
    states: BTreeMap<Made, (Revision, u64, PeerId)>,
    reached: BTreeMap<PeerId, Revision>,
}

impl OneState {
    fn compare(&mut self, made: Made, peer: PeerId, revision: Revision, contents: u64) -> Result<(), String> {
        let first = self.states.entry(made).or_insert((revision, contents, peer));
        let (theirs, other) = ((first.0, first.1), first.2);
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

impl Checker for OneState {
    fn name(&self) -> &'static str {
        "one_state"
    }

    fn hear(&mut self, _world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Trained { peer, founder, key, revision, contents } => {
                if let Some(before) = self.reached.get(peer).filter(|before| **before + 1 != *revision) {
                    return Err(format!("{} committed revision {revision} after {before}", peer.short()));
                }
                self.compare(Made::Commit(*founder, key.clone()), *peer, *revision, *contents)
            }
            Fact::Synced { peer, founder, outcome, revision, contents, held } => {
                if let Some(held) = held.filter(|held| held > revision) {
                    return Err(format!(
                        "{} held revision {held} and was healed to {revision}",
                        peer.short()
                    ));
                }
                self.compare(Made::Sync(*founder, outcome.clone()), *peer, *revision, *contents)
            }
            Fact::Elected { revision, torn, .. } => match torn.first() {
                Some(peer) => Err(format!("{} is torn and gives revision {revision}", peer.short())),
                None => Ok(()),
            },
            Fact::Out { peer, .. } => {
                // It begins with a sync, perhaps of another training.
                self.reached.remove(peer);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
