//! The program that every peer runs: the same steps everywhere.
//!
//! It connects, agrees with the others on the step (newcomers do not know it), then makes the step's calls,
//! several tags at a time; before some steps it votes in a ballot about nothing. When a receipt says that newcomers wait, it votes for them and agrees on the step again.
//!
//! What a call's error leads to is drawn with the call, so it is the same on all members: some calls are made
//! again, after others the program moves on. That is why all members must hear the same end of a call: if one
//! moves on and another tries again, the next calls pair up data of different steps, and a checker sees it.

use outlast_proto::ballot::optimise::{self, Brought, RingWish};
use outlast_proto::ballot::{dummy, dummy_ring};
use outlast_proto::collective::{DataType, Fingerprint, OpKind, Scope, Tag};
use outlast_proto::id::PeerId;
use outlast_proto::rng::Rng;
use outlast_proto::session::CallError;
use outlast_proto::wire::{self, control::BallotKind};
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
    /// Whether it also makes barriers and broadcasts.
    pub kinds: bool,
    /// Whether it moves on after some errors; otherwise it makes every call until it succeeds.
    pub moves_on: bool,
    /// Whether it votes in a ballot about nothing before some steps.
    pub ballots: bool,
    /// Whether it is a training loop: it syncs a state when somebody came, and every commit changes it.
    pub trains: bool,
    /// How often one peer gives a call up.
    pub cancels: f64,
    /// How often one peer of a training gives a sync up between its two votes.
    pub gives_syncs_up: f64,
    /// How often one peer makes another call than the rest, and corrects itself when it is told.
    pub mismatches: f64,
    /// Shortest and longest timeout of a call.
    pub timeout: (Duration, Duration),
}

impl Default for Habits {
    fn default() -> Self {
        let timeout = (Duration::from_secs(2), Duration::from_secs(20));
        Self {
            tags_max: 3,
            scopes: true,
            single_attempts: true,
            kinds: false,
            moves_on: false,
            ballots: false,
            trains: false,
            cancels: 0.0,
            gives_syncs_up: 0.0,
            mismatches: 0.0,
            timeout,
        }
    }
}

/// One call of one step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Planned {
    pub(super) kind: OpKind,
    pub(super) tag: Tag,
    pub(super) scope: Scope,
    pub(super) root: Option<PeerId>,
    pub(super) retry: bool,
    pub(super) timeout: Duration,
    /// Whether the program goes on without it when it has failed for all.
    pub(super) moves_on: bool,
    /// Whether this peer makes it differently.
    pub(super) deviates: bool,
    /// How often it ended for all in this step.
    pub(super) turn: u32,
    /// Which step of a training it commits.
    pub(super) step: Option<u64>,
}

/// What follows from a call's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The same call again.
    Again,
    /// It has failed for everybody: the program goes on without it.
    MoveOn,
    /// It has failed for everybody: the same call again.
    AgainTogether,
    /// Whether the others' call has ended, too, is not known: leave, and come back.
    Leave,
}

impl Planned {
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let count = if self.deviates { 1_000 } else { self.tag + 1 };
        let count = Some(count).filter(|_| self.kind != OpKind::Barrier);
        let call = Fingerprint::new(self.kind, DataType::F32, count);
        Fingerprint { retry: self.retry, root: self.root, step: self.step, ..call }
    }

    /// What every member's program does after that error. Only what all members hear alike may be taken for the
    /// end of the call everywhere.
    pub(super) fn after(&self, habits: &Habits, error: &CallError) -> Next {
        let for_all = match error {
            CallError::Timeout(waiting) if waiting.is_empty() && habits.moves_on => return Next::Leave,
            CallError::Timeout(_) | CallError::CameTooLate => habits.moves_on,
            CallError::NoPath { .. } => true,
            CallError::PeersLost(_)
            | CallError::LinkBroken(_)
            | CallError::GivenUp(_)
            | CallError::Mismatch { .. } => !self.retry,
            _ => false,
        };
        match for_all {
            false => Next::Again,
            true if self.moves_on => Next::MoveOn,
            true => Next::AgainTogether,
        }
    }
}

/// How the step is agreed on.
pub(super) fn sync(habits: &Habits) -> Planned {
    Planned {
        kind: OpKind::AllReduce,
        tag: SYNC_TAG,
        scope: Scope::Whole,
        root: None,
        retry: true,
        timeout: habits.timeout.1,
        moves_on: false,
        deviates: false,
        turn: 0,
        step: None,
    }
}

/// In which ballot members vote before that step: about nothing, about the way round, or for a better ring.
pub(super) fn ballot(habits: &Habits, seed: u64, step: u64) -> Option<BallotKind> {
    let mut rng = Rng::from_seed(seed ^ step.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let kind = [dummy::KIND, dummy_ring::KIND, optimise::KIND][rng.below(3)];
    (habits.ballots && rng.chance(0.5)).then_some(kind)
}

/// What a member's links are like in a step: drawn anew for each, so that the ring changes often.
pub(super) struct Ways {
    pub(super) seed: u64,
    pub(super) step: u64,
    pub(super) me: PeerId,
}

impl Ways {
    fn drawn(&self, from: PeerId, to: PeerId) -> Rng {
        let ends = from.as_bytes().iter().chain(to.as_bytes());
        let sum = |sum: u64, byte: &u8| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte);
        Rng::from_seed(ends.fold(self.seed ^ self.step, sum))
    }

    fn to(&self, peer: PeerId) -> Brought {
        let rate = |from, to| 1_000_000 + self.drawn(from, to).below(100_000_000) as u64;
        let (sends, receives) = (rate(self.me, peer), rate(peer, self.me));
        Brought { peer, sends, receives, round_trip_us: 500, age_ms: 0 }
    }

    /// Whether something of that likelihood is so for the pair in this step.
    fn is_so(&self, peer: PeerId, likelihood: f64, salt: u64) -> bool {
        let other = Ways { seed: self.seed.wrapping_add(salt), ..*self };
        other.drawn(self.me, peer).chance(likelihood)
    }

    /// The first vote for a better ring. Most links are known, as if collectives had shown them; the rest is to be measured.
    pub(super) fn begin(&self, members: impl Iterator<Item = PeerId>) -> Vec<u8> {
        let known = members.filter(|peer| *peer > self.me && self.is_so(*peer, 0.8, 1));
        let known = known.map(|peer| self.to(peer)).collect();
        wire::encode(&RingWish::Begin { site: String::new(), known })
    }

    /// The second: what came of measuring with those that it was to dial. Now and then that fails.
    pub(super) fn measured(&self, dialled: &[PeerId]) -> Vec<u8> {
        let (found, failed): (Vec<_>, Vec<_>) = dialled.iter().partition(|peer| self.is_so(**peer, 0.9, 2));
        let found = found.into_iter().map(|peer| self.to(peer)).collect();
        wire::encode(&RingWish::Measured { site: String::new(), found, failed, trouble: None })
    }
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
        let mut chosen = members.to_vec();
        let scope = if whole {
            Scope::Whole
        } else {
            rng.shuffle(&mut chosen);
            chosen.truncate(part);
            chosen.sort_unstable();
            Scope::Members(chosen.clone())
        };
        let retry = !habits.single_attempts || rng.chance(0.7);
        let timeout = shortest + longest.saturating_sub(shortest).mul_f64(rng.unit());
        let kinds = [OpKind::AllReduce, OpKind::AllReduce, OpKind::Barrier, OpKind::Broadcast];
        let kind = if habits.kinds { kinds[rng.below(4)] } else { OpKind::AllReduce };
        let retry = retry && kind.may_retry();
        let root = kind.has_root().then(|| chosen[rng.below(chosen.len())]);
        // Whoever is missing in a broadcast is missed the next time, too.
        let moves_on = habits.moves_on && (rng.chance(0.5) || kind == OpKind::Broadcast);
        if scope.involves(me) {
            let deviates = false;
            let (turn, step) = (0, None);
            calls.push(Planned { kind, tag, scope, root, retry, timeout, moves_on, deviates, turn, step });
        }
    }
    calls
}
