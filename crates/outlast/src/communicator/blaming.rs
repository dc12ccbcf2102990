//! Puts the evidence together when a call has failed, and asks [`Diagnosis`] what it means.

use super::Communicator;
use super::error::Error;
use super::news::{Event, Lost, Mark, SlowStep};
use crate::clock;
use crate::executor::Strain;
use crate::membership::{DeathReason, Health, Member};
use crate::sync::lock;
use outlast_proto::blame::{Diagnosis, Evidence, Labour, Party, SlowCall};
use outlast_proto::collective::{BrokenLink, Fingerprint, OpKey, Tag};
use outlast_proto::id::PeerId;
use outlast_proto::pace::Like;
use outlast_proto::session::{CallError, OutReason};
use std::time::Duration;

/// What a link did, with a name for people.
fn labour(strain: Strain, name: impl Fn(PeerId) -> String) -> Labour {
    let Strain { peer, bytes, busy, elapsed } = strain;
    Labour { to: name(peer), bytes, busy, elapsed }
}

impl Communicator {
    /// The error of a collective: what was called, what became of it, and what is to blame.
    pub(super) fn diagnosed(
        &self,
        error: CallError,
        fingerprint: &Fingerprint,
        tag: Tag,
        timeout: Duration,
        strain: Option<Strain>,
    ) -> Error {
        let call = format!("{fingerprint} under tag {tag}");
        let diagnosis = self.diagnosis(&error, &call, strain);
        let mut error = self.control.explained(error.into());
        if let Some(diagnosis) = diagnosis {
            error = error.blaming(diagnosis);
        }
        error.of_call(call, timeout)
    }

    /// A call ended well. If it took much longer than its like, the program and the log are told what is to blame.
    pub(super) fn mind_the_pace(
        &self,
        like: Like,
        took: Duration,
        tell: impl FnOnce(Duration, Duration) -> SlowStep,
    ) {
        let usual = lock(&self.pace).note(clock::now(), like, took);
        if let Some(usual) = usual {
            self.control.news().tell(vec![Event::SlowStep(tell(took, usual))]);
        }
    }

    /// What is known of a slow call, and what follows from it.
    pub(super) fn slow_step(
        &self,
        (key, fingerprint): (&OpKey, &Fingerprint),
        (took, usual): (Duration, Duration),
        attempts: u32,
        lost: &[Lost],
        (mark, stalls): (Mark, u64),
        strain: Option<Strain>,
    ) -> SlowStep {
        let name = |peer: PeerId| self.control.name_of(peer);
        // How long is known of the longest only; if this process was late meanwhile, that is the best guess.
        let was_late = self.membership.stalls() > stalls;
        let stood_still = if was_late { self.membership.counters().lateness_max } else { Duration::ZERO };
        let slow = SlowCall {
            took,
            usual,
            attempts,
            lost: lost.iter().map(|lost| (lost.name.clone(), lost.reason)).collect(),
            coordinator_away: self.control.news().away_since(mark),
            stood_still: stood_still.min(took),
            called_last: self.control.called_last(key).map(|(peer, behind)| (name(peer), behind)),
            labour: strain.map(|strain| labour(strain, name)),
        };
        let call = format!("{fingerprint} under tag {}", key.tag);
        SlowStep { call, took, usual, diagnosis: Diagnosis::of_slow_call(&slow) }
    }

    fn diagnosis(&self, error: &CallError, call: &str, strain: Option<Strain>) -> Option<Diagnosis> {
        let name = |peer: PeerId| self.control.name_of(peer);
        match error {
            CallError::Timeout(waiting) => {
                let party = |one: &outlast_proto::wire::control::Waiting| Party {
                    name: one.name.clone(),
                    // What is known here may be newer than the coordinator's word.
                    health: self.health_of(one.peer).unwrap_or(&one.health).to_owned(),
                    last_call: one.last_call.clone(),
                    age: Duration::from_millis(one.age_ms),
                };
                // The coordinator passes on the first letters of a long call only.
                let call: String = call.chars().take(200).collect();
                let labour = strain.map(|strain| labour(strain, name));
                let evidence = Evidence {
                    call,
                    waited_for: waiting.iter().map(party).collect(),
                    others: self.control.seen().peers.len().saturating_sub(1),
                    coordinator_away: self.control.alone_for(),
                    stood_still: None,
                    labour,
                };
                Some(Diagnosis::of_timeout(&evidence))
            }
            CallError::PeersLost(lost) => {
                let lost: Vec<_> = lost.iter().map(|(peer, reason)| (name(*peer), *reason)).collect();
                Some(Diagnosis::of_loss(&lost))
            }
            CallError::LinkBroken(BrokenLink { from, to, .. }) => {
                let end = |peer: PeerId| (name(peer), self.health_of(peer).unwrap_or("alive"));
                Some(Diagnosis::of_broken_link(end(*from), end(*to)))
            }
            CallError::Out(OutReason::CoordinatorLost | OutReason::OutcomeUnknown) => {
                self.control.alone_for().map(Diagnosis::CoordinatorAway)
            }
            _ => None,
        }
    }

    /// What our own health plane says that is worse than alive; nothing if it knows no better than the coordinator. Whoever
    /// was declared dead for silence alone counts as silent: the process may be well on the other side of a cut.
    fn health_of(&self, peer: PeerId) -> Option<&'static str> {
        use DeathReason::{Deaf, Silent, SilentTooLong};
        let word = |health: Health| match health {
            Health::Dead { reason: Silent | SilentTooLong | Deaf, .. } => "suspect",
            Health::Dead { reason: DeathReason::StalledTooLong, .. } => "stalled",
            other => other.word(),
        };
        let find = |list: Vec<Member>| {
            list.into_iter().find(|member| member.info.id == peer).map(|member| word(member.health))
        };
        let active = self.membership.active().ok().and_then(find);
        let word = active.or_else(|| self.membership.failed().ok().and_then(find))?;
        (word != "alive").then_some(word)
    }
}
