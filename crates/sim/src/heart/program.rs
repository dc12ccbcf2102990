//! The program that every peer runs: the same steps everywhere.
//!
//! It connects, agrees with the others on the step (newcomers do not know it), then makes the step's calls,
//! several tags at a time. An error that asks for a retry is answered with the same call again. When a receipt
//! says that newcomers wait, it votes for them and agrees on the step again.

use outlast_proto::collective::{DataType, Fingerprint, OpKind, Scope, Tag};
use outlast_proto::id::PeerId;
use outlast_proto::rng::Rng;
use std::time::Duration;

/// The tag on which the step is agreed.
pub(super) const SYNC_TAG: Tag = 99;

/// What a program may do.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Most tags at a time.
    pub tags_max: u64,
    /// Whether it uses parts of its group.
    pub scopes: bool,
    /// Whether some calls do not retry by themselves.
    pub single_attempts: bool,
    /// Shortest and longest timeout of a call.
    pub timeout: (Duration, Duration),
}

impl Default for Habits {
    fn default() -> Self {
        let timeout = (Duration::from_secs(2), Duration::from_secs(20));
        Self { tags_max: 3, scopes: true, single_attempts: true, timeout }
    }
}

/// One call of one step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Planned {
    pub(super) tag: Tag,
    pub(super) scope: Scope,
    pub(super) retry: bool,
    pub(super) timeout: Duration,
}

impl Planned {
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let call = Fingerprint::new(OpKind::AllReduce, DataType::F32, [self.tag + 1]);
        Fingerprint { retry: self.retry, ..call }
    }
}

/// How the step is agreed on.
pub(super) fn sync(habits: &Habits) -> Planned {
    Planned { tag: SYNC_TAG, scope: Scope::Whole, retry: true, timeout: habits.timeout.1 }
}

/// The calls of a step. `members` are those who agreed on the step last, the same on all of them. The first
/// call involves everybody and tells how many newcomers wait.
pub(super) fn step(habits: &Habits, seed: u64, step: u64, me: PeerId, members: &[PeerId]) -> Vec<Planned> {
    let mut rng = Rng::from_seed(seed ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let tags = 1 + rng.below(habits.tags_max.max(1) as usize) as u64;
    let (shortest, longest) = habits.timeout;
    let mut calls = Vec::new();
    for tag in 0..tags {
        let part = rng.below(members.len().max(1)).max(1);
        let whole = tag == 0 || !habits.scopes || part >= members.len() || rng.chance(0.4);
        let scope = if whole {
            Scope::Whole
        } else {
            let mut chosen = members.to_vec();
            rng.shuffle(&mut chosen);
            chosen.truncate(part);
            chosen.sort_unstable();
            Scope::Members(chosen)
        };
        let retry = !habits.single_attempts || rng.chance(0.7);
        let timeout = shortest + longest.saturating_sub(shortest).mul_f64(rng.unit());
        if scope.involves(me) {
            calls.push(Planned { tag, scope, retry, timeout });
        }
    }
    calls
}
