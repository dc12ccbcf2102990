//! A live peer is never put out because another died (invariant 3): every eviction has its cause in what befell
//! this very peer, or the coordinator (rule 20); and honest peers are never kicked. What peers are told is in
//! `causes`.

use super::super::wires::SLOW_DIAL;
use super::{Checker, Fact, World};
use outlast_proto::id::PeerId;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::LossReason;
use outlast_proto::wire::membership::DeathReason;
use std::collections::{BTreeMap, BTreeSet};

/// How long after a block ended a death may still be its consequence.
const AFTERMATH: Duration = Duration::from_secs(2);
/// The same of a dial that the block swallowed, and that was still under way when it ended: once it has run out comes the
/// longest pause, then a dial that meets a busy machine, and the way of the resume.
pub(super) const LAST_REDIAL: Duration = LONGEST_PAUSE.saturating_add(SLOW_DIAL).saturating_add(AFTERMATH);
/// See `session::Config::redial`.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// See above.
#[derive(Default)]
pub struct NoFalseEviction {
    /// Whose session is over, and who opened no epoch in another since: there is nothing that it could resume.
    out: BTreeSet<PeerId>,
    /// When a peer last heard how something ended: until it hears again, it is as far back as a block left it, and
    /// others may have gone on for longer than they remember (`coordinator/testimony.rs`).
    heard: BTreeMap<PeerId, Instant>,
}

impl Checker for NoFalseEviction {
    fn name(&self) -> &'static str {
        "no_false_eviction"
    }

    fn hear(&mut self, world: &World, at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Lost { coordinator, peer, reason } => {
                return self.lost(world, at, *coordinator, *peer, *reason);
            }
            Fact::Out { peer, .. } => drop(self.out.insert(*peer)),
            Fact::Opened { peer, .. } => {
                self.out.remove(peer);
                self.heard.insert(*peer, at);
            }
            Fact::Heard { peer, .. } => drop(self.heard.insert(*peer, at)),
            _ => {}
        }
        Ok(())
    }
}

impl NoFalseEviction {
    fn lost(
        &self,
        world: &World,
        at: Instant,
        coordinator: usize,
        peer: PeerId,
        reason: LossReason,
    ) -> Result<(), String> {
        let Some(process) = world.process_of(peer) else { return Ok(()) };
        // Who is out already, and has another name, is no longer there under this one.
        let gone = !process.lives() || process.id() != peer;
        let blocked = at.since(process.blocked_until) < AFTERMATH || process.stopped.is_some();
        let swallowed = process.swallowed_until > process.blocked_until
            && at.since(process.swallowed_until) < LAST_REDIAL;
        // Only where a coordinator was rebuilt can it be that nobody remembers.
        let behind =
            coordinator > 0 && self.heard.get(&peer).is_some_and(|heard| *heard < process.blocked_until);
        let index = world.processes.iter().position(|other| other.id() == process.id()).unwrap_or(0);
        let fair = match reason {
            LossReason::Left | LossReason::Disconnected => true,
            _ if world.coordinators[coordinator].deposed => true,
            // It obeys a higher term: what a coordinator of the past says of it concerns nobody (rule 17).
            _ if world.coordinators[coordinator].run.term() < process.obeyed => true,
            LossReason::Killed | LossReason::Dead(DeathReason::Refused | DeathReason::Exited) => gone,
            // Of the ends of a broken link one must go, and the trouble may be the other's (rule 16).
            LossReason::Unreachable => {
                let cut_off = |other: &super::super::Process| {
                    other.group() == process.group() && at.since(other.blocked_until) < AFTERMATH
                };
                gone || world.link_victims.contains(&index) || world.processes.iter().any(cut_off)
            }
            LossReason::NotResumed if self.out.contains(&peer) => true,
            LossReason::NotResumed => gone || behind || blocked || swallowed,
            LossReason::Dead(_) => gone || blocked,
            // Nobody honest breaks the protocol.
            _ => false,
        };
        if fair { Ok(()) } else { Err(format!("{} was put out though it lives: {reason:?}", peer.short())) }
    }
}
