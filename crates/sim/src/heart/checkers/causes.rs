//! Nobody is told to leave without a cause of rule 20 or 41 that is its own: that others had trouble is no excuse, and
//! that a coordinator had some is one for as long only as the rules and the times of the preset allow.
//!
//! - *Evicted*: a coordinator lost this very peer, for a reason which `no_false_eviction` judges.
//! - *Superseded*: judged when it is said. Those who were in have the control grace of a coordinator that has just come to
//!   the address to tell it who they are (rule 41): nobody hears before its end that the run goes on without it, and
//!   whoever was told to go on by this coordinator never does. (A reign that a peer missed from its beginning to its end
//!   counts, too.) Unless a coordinator has lost this very peer, or this one was deposed for a while and the peer knows
//!   better; or the peer was let in with the last words of a coordinator, which nobody else has heard: the others go on at
//!   once, and to them it is a stranger (rule 41).
//! - A session that finds no coordinator ends when it has been away for as long as it may; then whatever kept it away has
//!   ended a moment ago, if at all. One that finds only a coordinator of a lower term, which does not know it, may not
//!   believe that and waits as long (rule 17).
//! - A verdict that does not come was kept from this peer, or waits with a rebuilt coordinator for those who may still come
//!   back (rule 17), or the program itself gave the call up.

use super::no_false_eviction::LAST_REDIAL;
use super::{Checker, Fact, World};
use outlast_proto::collective::GroupEpoch;
use outlast_proto::id::PeerId;
use outlast_proto::membership::Preset;
use outlast_proto::preset::Times;
use outlast_proto::session::OutReason;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::{KickReason, LossReason};
use std::collections::{BTreeMap, BTreeSet};

const TIMES: Times = Preset::Local.times();
/// A coordinator that has just come to the address hears contradicting claims out, and a second time if it stood still
/// meanwhile, before it greets those who made them.
const HEARING: Duration = TIMES.control_grace.saturating_mul(2).saturating_add(LAST_REDIAL);
/// One that is rebuilt decides when everybody has come back or is given up: who is away for the longer of both times
/// in which that may be, after as long as somebody may take to be missed.
const REBUILDING: Duration = HEARING.saturating_add(TIMES.control_lost_after);
/// How long a call that the program gave up waits for its verdict, and a moment.
const AFTER_CANCEL: Duration = Duration::from_millis(500);

/// See above.
#[derive(Default)]
pub struct Causes {
    lost: BTreeSet<PeerId>,
    /// The last epoch that each peer has opened, and who founded it.
    last: BTreeMap<PeerId, (PeerId, GroupEpoch)>,
}

impl Checker for Causes {
    fn name(&self) -> &'static str {
        "causes"
    }

    fn hear(&mut self, world: &World, at: Instant, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Lost { peer, reason, .. } => {
                if !matches!(reason, LossReason::Left | LossReason::Disconnected) {
                    self.lost.insert(*peer);
                }
                Ok(())
            }
            Fact::Superseded { coordinator, peer, reigned, was_let_on, is_behind } => {
                let had_its_time = *reigned >= TIMES.control_grace && !was_let_on;
                if *is_behind || had_its_time || self.lost.contains(peer) || self.is_ahead(*peer) {
                    return Ok(());
                }
                Err(format!(
                    "coordinator {coordinator}, at the address for {reigned:?}, superseded {} (let on: {was_let_on})",
                    peer.short()
                ))
            }
            Fact::Opened { peer, record, .. } => {
                self.last.insert(*peer, (record.founder, record.epoch));
                Ok(())
            }
            Fact::Out { process, peer, reason } => self.out(world, at, *process, *peer, reason),
            _ => Ok(()),
        }
    }
}

impl Causes {
    /// Whether that peer has opened an epoch that nobody else with its founder has come to.
    fn is_ahead(&self, peer: PeerId) -> bool {
        let Some((founder, epoch)) = self.last.get(&peer) else { return false };
        let others = self.last.iter().filter(|(other, (same, _))| **other != peer && same == founder);
        let newest = others.map(|(_, (_, newest))| newest).max();
        newest.is_some_and(|newest| newest < epoch)
    }

    fn out(
        &mut self,
        world: &World,
        at: Instant,
        index: usize,
        peer: PeerId,
        reason: &OutReason,
    ) -> Result<(), String> {
        let process = &world.processes[index];
        let blocked_until = process.blocked_until.max(process.swallowed_until);
        let own = at.since(blocked_until) < LAST_REDIAL || process.stopped.is_some();
        let coordinator = at.since(world.coordinator_trouble_until);
        let fair = match reason {
            OutReason::Kicked(KickReason::Evicted, _) => self.lost.contains(&peer),
            OutReason::Kicked(KickReason::Superseded, _) => true, // Judged when it was said.
            OutReason::CoordinatorLost => {
                let lower_term = at.since(process.turned_away) < LAST_REDIAL;
                let away = at.since(process.went_down());
                away >= TIMES.control_lost_after && (own || coordinator < HEARING || lower_term)
            }
            OutReason::OutcomeUnknown => {
                own || coordinator < REBUILDING || at.since(process.cancelled) < AFTER_CANCEL
            }
            OutReason::Left | OutReason::NotConnected => true,
            _ => false,
        };
        self.lost.remove(&peer); // What was held against this session is not held against the next (rule 45).
        if fair {
            return Ok(());
        }
        let (own, down) = (at.since(blocked_until), at.since(process.went_down()));
        Err(format!(
            "process {index} is out for nothing that befell it: {reason:?} (it was last cut off {own:?} ago, its \
             coordinator {coordinator:?} ago; away for {down:?})"
        ))
    }
}
