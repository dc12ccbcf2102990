//! The coordinator's own member of a run's health group.
//!
//! Whether a peer lives is for the health plane to say, and a coordinator has an ear of its own there (decision 9): one
//! member in each run's group, with a port and a thread of its own. It gets to know every peer that registers, and what it
//! hears is passed on to the run's machine as signs. It decides nothing: the machine evicts (rule 20).
//!
//! Its thread asserts what it takes for granted, and may be wrong. What it said last would stand for ever then: the living would
//! stay alive, and so would the dead. So another member takes its place, gets to know everybody that the last one had met, and the
//! run's events tell of it (rule 40). One that breaks again and again is left out for a while (see `strikes`), and losses
//! are noticed by connections alone meanwhile.

use crate::coordinator::strikes::{STRIKES_MAX, Strikes};
use crate::membership::{Health, Membership, Preset};
use crate::recorder::Recorder;
use crate::security::Credentials;
use outlast_proto::coordinator::{Run, Sign};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::time::Instant;
use outlast_proto::wire::membership::MemberInfo;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How the coordinator's own members of the health groups are set up.
#[derive(Clone, Copy, Debug)]
pub(in crate::coordinator) struct HealthSettings {
    pub(in crate::coordinator) preset: Preset,
    pub(in crate::coordinator) stall_budget: Option<Duration>,
    pub(in crate::coordinator) dead_after: Option<Duration>,
}

/// Starts the members of all runs.
pub(super) struct HealthStarter {
    settings: HealthSettings,
    credentials: Credentials,
    /// Where members listen: at any port there.
    listen: SocketAddr,
    recorder: Arc<Recorder>,
    /// Members whose thread broke.
    strikes: Strikes,
}

impl HealthStarter {
    pub(super) fn new(
        settings: HealthSettings,
        credentials: Credentials,
        coordinator: SocketAddr,
        recorder: Arc<Recorder>,
    ) -> Self {
        let listen = SocketAddr::new(coordinator.ip(), 0);
        Self { settings, credentials, listen, recorder, strikes: Strikes::default() }
    }

    pub(super) fn preset(&self) -> Preset {
        self.settings.preset
    }

    /// A member that gets to know these peers, and whomever they know.
    fn start(&self, run: &RunId, met: &BTreeMap<PeerId, MemberInfo>) -> Option<Membership> {
        let mut member = Membership::builder()
            .listen(self.listen)
            .preset(self.settings.preset)
            .credentials(self.credentials.clone())
            .run_id(run.clone())
            .name("coordinator")
            .join(met.values().map(|info| info.address.to_string()));
        if let Some(budget) = self.settings.stall_budget {
            member = member.stall_budget(budget);
        }
        if let Some(silence) = self.settings.dead_after {
            member = member.dead_after(silence);
        }
        match member.start() {
            Ok(member) => {
                member.record_in(&self.recorder);
                Some(member)
            }
            Err(error) => {
                tracing::error!(%run, %error, "no health for this run; evictions will be slower");
                None
            }
        }
    }
}

/// See the module's essay.
#[derive(Default)]
pub(super) struct RunHealth {
    /// There is none before the first peer, nor where none could be started or it broke too often.
    member: Option<Membership>,
    /// Peers whose addresses were given to our member as seeds, as they described themselves last.
    met: BTreeMap<PeerId, MemberInfo>,
    /// Whether it broke too often.
    is_given_up: bool,
}

impl RunHealth {
    /// Our member gets to know a peer.
    pub(super) fn meet(&mut self, starter: &HealthStarter, run: &RunId, peer: PeerId, info: &MemberInfo) {
        if self.met.insert(peer, info.clone()).is_some() {
            return;
        }
        match &self.member {
            Some(member) => member.join(&[info.address]),
            None if self.is_given_up => {}
            None => self.member = starter.start(run, &self.met),
        }
    }

    /// Forgets whom it has met and the run does not know: of those who came and went before they were admitted nobody tells us.
    pub(super) fn forget_strangers(&mut self, machine: &Run) {
        self.met.retain(|peer, _| machine.knows(*peer));
    }

    /// Lets another member take the place of one whose thread has panicked. What people are to know of it.
    pub(super) fn mend(&mut self, now: Instant, starter: &mut HealthStarter, run: &RunId) -> Option<String> {
        if self.member.as_ref().is_some_and(Membership::is_broken) {
            // Its last word is not passed on any more. There is nobody left to say goodbye.
            self.member = None;
            self.is_given_up = starter.strikes.strike(now, run);
            if !self.is_given_up {
                self.begin_anew(starter, run);
                return Some(
                    "what watches this run's health panicked, and began anew: report this bug".to_owned(),
                );
            }
            return Some(format!(
                "what watches this run's health panicked {STRIKES_MAX} times, and rests for some minutes: losses are noticed \
                 later meanwhile; report this bug"
            ));
        }
        if self.is_given_up && starter.strikes.given_up_for(now, run).is_none() {
            self.is_given_up = false;
            self.begin_anew(starter, run);
            return Some("this run's health is watched again".to_owned());
        }
        None
    }

    /// Starts another member. It is told of everybody by name too, so that somebody who dies in this very moment is
    /// asked after, and missed, although it has never answered that one.
    fn begin_anew(&mut self, starter: &HealthStarter, run: &RunId) {
        self.member = starter.start(run, &self.met);
        if let Some(member) = &self.member {
            member.rosters().tell(&self.met.values().cloned().collect::<Vec<_>>());
        }
    }

    /// Tells the machine what is known of everybody now.
    pub(super) fn pass_on(&self, now: Instant, machine: &mut Run) {
        let Some(member) = &self.member else { return };
        let active = member.active().unwrap_or_default();
        let failed = member.failed().unwrap_or_default();
        for member in active.iter().chain(&failed) {
            let (sign, since) = match member.health {
                Health::Alive => (Sign::Alive { acked: member.acked }, now),
                Health::Stalled { since } => (Sign::Stalled, since),
                Health::Suspect { since, .. } => (Sign::Suspect, since),
                Health::Dead { since, reason } => (Sign::Dead(reason), since),
                // Goodbyes bind over the control connection only (rule 39): who said one elsewhere is not heard of.
                Health::Left { since } => (Sign::Suspect, since),
            };
            if let Some(acked) = member.acked {
                machine.handle_answer(member.info.id, acked);
            }
            machine.handle_health_since(now, member.info.id, sign, since);
        }
    }

    /// There is evidence against that peer: it is probed now.
    pub(super) fn look(&self, peer: PeerId) {
        if let Some(member) = &self.member {
            member.look(peer);
        }
    }

    /// That peer has just registered: what was held against it is over (rule 45).
    pub(super) fn renew(&self, info: MemberInfo) {
        if let Some(member) = &self.member {
            member.renew(info);
        }
    }

    /// That peer was taken out of the run.
    pub(super) fn evict(&mut self, peer: PeerId) {
        self.met.remove(&peer);
        if let Some(member) = &self.member {
            member.evict(peer);
        }
    }
}
