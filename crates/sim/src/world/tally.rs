//! Proof that a fault struck.
//!
//! A test that injects loss and sees no packet lost has tested nothing. Every way in which the world can
//! spoil something counts here, and a script whose faults left no mark is a failed run.

use std::fmt;
use std::ops::AddAssign;

/// One way in which something was spoiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Effect {
    /// A packet was lost by chance.
    LostByChance,
    /// A packet ran into a cut: of a host, of a pair or of a partition.
    LostToCut,
    /// A packet reached a host that stood still.
    LostToFrozen,
    /// A packet reached a host without a process.
    LostToDead,
    /// A packet found the socket's buffer full.
    LostToFullBuffer,
    /// A datagram was dropped where UDP is blocked.
    LostToUdpBlock,
    /// A packet was dropped by a firewall.
    LostToFirewall,
    /// A packet arrived twice.
    Duplicated,
    /// A packet was overtaken.
    Reordered,
    /// A packet waited for a stopped process.
    WaitedForStall,
    /// A timer fired more than 20 ms late, because its process or host stood still.
    LateTimer,
    /// A kernel accepted for a stopped process.
    AcceptedForStalled,
    /// A kernel refused for a process that is gone.
    RefusedForDead,
    /// A firewall refused for a living process.
    RefusedByFirewall,
    /// A proxy accepted for a host that would not have.
    AcceptedByProxy,
    /// A connect got no answer.
    ConnectSilent,
    /// A process's clock jumped.
    ClockJumped,
    /// A process was killed.
    Killed,
    /// A process was started again.
    Restarted,
    /// A process left politely.
    Left,
}

const EFFECTS: [Effect; 20] = [
    Effect::LostByChance,
    Effect::LostToCut,
    Effect::LostToFrozen,
    Effect::LostToDead,
    Effect::LostToFullBuffer,
    Effect::LostToUdpBlock,
    Effect::LostToFirewall,
    Effect::Duplicated,
    Effect::Reordered,
    Effect::WaitedForStall,
    Effect::LateTimer,
    Effect::AcceptedForStalled,
    Effect::RefusedForDead,
    Effect::RefusedByFirewall,
    Effect::AcceptedByProxy,
    Effect::ConnectSilent,
    Effect::ClockJumped,
    Effect::Killed,
    Effect::Restarted,
    Effect::Left,
];

/// How often each effect was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; EFFECTS.len()]);

impl Tally {
    /// Every effect there is.
    pub fn effects() -> impl Iterator<Item = Effect> {
        EFFECTS.into_iter()
    }

    /// How often `effect` was seen.
    pub fn count(&self, effect: Effect) -> u64 {
        self.0[effect as usize]
    }

    pub(super) fn add(&mut self, effect: Effect) {
        self.0[effect as usize] += 1;
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = EFFECTS.into_iter().filter(|&effect| self.count(effect) > 0);
        let words: Vec<_> = seen.map(|effect| format!("{effect:?} {}", self.count(effect))).collect();
        f.write_str(&words.join(", "))
    }
}
