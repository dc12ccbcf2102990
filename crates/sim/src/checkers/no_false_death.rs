//! No live member is declared dead.
//!
//! # What a member is owed
//!
//! Invariant 3 of the design: no death under processor starvation, stalls within the budget and 10 % loss.
//! Rules 20 to 22 say when a death is due, and so what may excuse one. A declaration about a member is excused
//! only if
//!
//! - its process had ended, or ended and was started again under the same name a moment ago;
//! - its process was stopped for longer than `stall_budget` (20d);
//! - nothing could leave its host, or the host stood still, for the suspicion time (20e);
//! - nothing could reach it for `dead_after`, whether it talked or not (20e). It may have been cut off first and deaf
//!   then: what follows without a break is one;
//! - a firewall refused connects for it and dropped what it should hear: it is saved by what it says, and storms
//!   lose some of that. Without loss the scenario `reject-all` allows no such death;
//! - a firewall refused for it while it was also stopped or unreachable: that looks like an exit (20b); or a
//!   while before it was stopped: then its kernel is not believed (22);
//! - a firewall refused for it while whoever declares it was away himself: it had nothing else to go by (20b);
//! - whoever declares it could itself not hear or not be heard for the suspicion time: its list is its own
//!   affair, because the others look for themselves. A stop or a freeze of its own is no such excuse;
//! - there was a partition for the suspicion time, or somebody else was cut off for `dead_after`: from the
//!   other side it is everybody else who fell silent, and its list spreads when the cut heals (21).
//!
//! Each excuse holds for a while after its cause has ended, because news travels; then it lapses. Loss, delay,
//! reordering, repetition, leaping clocks, blocked UDP, a cut between two members and anybody else's troubles
//! excuse nothing.

use super::Checker;
use crate::world::{Ailment, Chronicle, HealthNode, HealthNotice, HostId, Identity, Spell, What, World};
use outlast_proto::membership::Config;
use outlast_proto::time::{Duration, Instant};

/// For how long after a firewall refused for the living its host's kernel may go unbelieved (rule 22), so that a
/// stop looks like silence.
const KERNEL_DISTRUSTED: Duration = Duration::from_mins(1);

/// No live member is declared dead.
pub struct NoFalseDeath {
    config: Config,
}

impl NoFalseDeath {
    /// A checker of what these settings entitle a member to.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// For how long after trouble has ended its echo may still be heard.
    fn aftermath(&self) -> Duration {
        self.config.suspicion_min * self.config.suspicion_max_factor + Duration::from_secs(2)
    }

    /// Why a death declared at `at` is not a false one; `None` if it is.
    pub fn excuse(
        &self,
        chronicle: &Chronicle,
        observer: HostId,
        subject: Identity,
        at: Instant,
    ) -> Option<&'static str> {
        if let Some(ended) = chronicle.ended(subject).filter(|ended| *ended <= at) {
            let restarted = chronicle.started(subject).filter(|start| *start > ended);
            let echo = self.config.dead_after + self.aftermath();
            if restarted.is_none_or(|start| at < start || at.since(start) < echo) {
                return Some("its process had ended");
            }
        }
        let own = chronicle.spells(subject.host);
        let recent = |spell: &&Spell| spell.from <= at && spell.touches(at - self.aftermath(), at);
        let own: Vec<Spell> = own.iter().filter(recent).copied().collect();
        let observer = chronicle.spells(observer);
        if own.iter().any(|spell| matches!(spell.ailment, Ailment::RefusingTcp | Ailment::Rejecting))
            && observer.iter().any(|spell| recent(&spell))
        {
            return Some("behind a firewall, and declared by somebody who was away");
        }
        if self.cannot_tell(observer, at) {
            return Some("declared by somebody who could not hear or not be heard");
        }
        let lately = |spell: &&Spell| spell.from <= at && spell.touches(at - KERNEL_DISTRUSTED, at);
        let firewalled = chronicle
            .spells(subject.host)
            .iter()
            .filter(lately)
            .any(|spell| matches!(spell.ailment, Ailment::RefusingTcp | Ailment::Rejecting));
        let udp_blocked =
            chronicle.all_spells().any(|(_, spell)| spell.ailment == Ailment::UdpBlocked && recent(&spell));
        let deaf = own.iter().filter(|spell| spell.ailment == Ailment::Deaf);
        let unreached = deaf.map(|spell| without_a_break(spell, chronicle.spells(subject.host)).lasted(at));
        if unreached.max() > Some(self.config.dead_after.mul_f64(0.8)) {
            return Some("out of reach and deaf for dead_after");
        }
        self.own_excuse(&own, firewalled, udp_blocked, at)
            .or_else(|| self.others_excuse(chronicle, subject.host, at))
    }

    /// Whether an observer's own troubles kept it from knowing better.
    fn cannot_tell(&self, spells: &[Spell], at: Instant) -> bool {
        spells.iter().any(|spell| {
            let unreachable = matches!(
                spell.ailment,
                Ailment::CutOff | Ailment::Deaf | Ailment::Mute | Ailment::Rejecting | Ailment::Lossy
            );
            let recent = spell.from <= at && spell.touches(at - self.aftermath(), at);
            unreachable && recent && spell.lasted(at) > self.config.suspicion_min.mul_f64(0.8)
        })
    }

    fn own_excuse(
        &self,
        own: &[Spell],
        firewalled: bool,
        udp_blocked: bool,
        at: Instant,
    ) -> Option<&'static str> {
        // A setting is met a little early by clocks that are read a little apart.
        let nearly = |time: Duration| time.mul_f64(0.8);
        for spell in own {
            let lasted = spell.lasted(at);
            let overlaps =
                |other: &Spell| other != spell && other.touches(spell.from, spell.until.unwrap_or(at));
            match spell.ailment {
                Ailment::Stalled if lasted > nearly(self.config.stall_budget) => {
                    return Some("stopped for longer than the stall budget");
                }
                Ailment::Stalled if firewalled => {
                    return Some("stopped while its kernel's word was not believed because of a firewall");
                }
                Ailment::Frozen | Ailment::CutOff | Ailment::Mute | Ailment::Parted | Ailment::Lossy => {
                    let together = lasted
                        + own
                            .iter()
                            .filter(|other| other.ailment != Ailment::UdpBlocked && overlaps(other))
                            .map(|s| s.lasted(at))
                            .sum();
                    if together > nearly(self.config.suspicion_min) {
                        return Some("out of reach for the suspicion time");
                    }
                }
                Ailment::Deaf | Ailment::Rejecting if lasted > nearly(self.config.dead_after) => {
                    return Some("deaf for dead_after");
                }
                Ailment::Rejecting if lasted > self.config.probe_interval => {
                    return Some("a firewall refused for it, and what it said meanwhile may have been lost");
                }
                Ailment::Deaf if udp_blocked => {
                    return Some("deaf, so no stream works, where others have nothing but streams");
                }
                Ailment::Rejecting | Ailment::RefusingTcp | Ailment::Deaf if own.iter().any(overlaps) => {
                    return Some("stopped or unreachable behind a firewall or a one-way cut");
                }
                _ => {}
            }
        }
        None
    }

    fn others_excuse(&self, chronicle: &Chronicle, subject: HostId, at: Instant) -> Option<&'static str> {
        let long = self.config.dead_after.mul_f64(0.8);
        chronicle
            .all_spells()
            .filter(|(host, _)| *host != subject)
            .filter(|(_, spell)| {
                matches!(
                    spell.ailment,
                    Ailment::CutOff | Ailment::Deaf | Ailment::Mute | Ailment::Rejecting | Ailment::Lossy
                )
            })
            .find(|(_, spell)| {
                spell.from <= at && spell.touches(at - self.aftermath(), at) && spell.lasted(at) > long
            })
            .map(|_| "somebody else was cut off for dead_after and took the others for dead")
    }
}

/// That spell, from when its host was first out of reach without a break.
fn without_a_break(spell: &Spell, spells: &[Spell]) -> Spell {
    let mut whole = *spell;
    let cuts = spells.iter().filter(|cut| {
        matches!(cut.ailment, Ailment::CutOff | Ailment::Deaf | Ailment::Frozen | Ailment::Parted)
    });
    let mut cuts: Vec<_> = cuts.collect();
    cuts.sort_unstable_by_key(|cut| std::cmp::Reverse(cut.until.map_or(u64::MAX, Instant::as_nanos)));
    for cut in cuts {
        if cut.touches(whole.from, whole.from) {
            whole.from = whole.from.min(cut.from);
        }
    }
    whole
}

impl<N: HealthNode> Checker<N> for NoFalseDeath {
    fn name(&self) -> &'static str {
        "no_false_death"
    }

    fn hear(
        &mut self,
        world: &World<N>,
        at: Instant,
        observer: HostId,
        notice: HealthNotice,
    ) -> Result<(), String> {
        let What::Died(reason) = notice.what else { return Ok(()) };
        match self.excuse(world.chronicle(), observer, notice.subject, at) {
            Some(_) => Ok(()),
            None => Err(format!("{observer} declared {} dead ({reason:?}), who lives", notice.subject)),
        }
    }
}
