//! Puts the evidence together when a call has failed, and asks [`Diagnosis`] what it means.

use super::Communicator;
use super::error::Error;
use outlast_proto::blame::{Diagnosis, Evidence, Party};
use outlast_proto::collective::{Fingerprint, Tag};
use outlast_proto::id::PeerId;
use outlast_proto::session::CallError;
use std::time::Duration;

impl Communicator {
    /// The error of a collective: what was called, what became of it, and what is to blame.
    pub(super) fn diagnosed(
        &self,
        error: CallError,
        fingerprint: &Fingerprint,
        tag: Tag,
        timeout: Duration,
    ) -> Error {
        let call = format!("{fingerprint} under tag {tag}");
        let diagnosis = self.diagnosis(&error, &call);
        let mut error = self.control.explained(error.into());
        if let Some(diagnosis) = diagnosis {
            error = error.blaming(diagnosis);
        }
        error.of_call(call, timeout)
    }

    fn diagnosis(&self, error: &CallError, call: &str) -> Option<Diagnosis> {
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
                let evidence = Evidence {
                    call,
                    waited_for: waiting.iter().map(party).collect(),
                    others: self.control.view().peers.len().saturating_sub(1),
                    coordinator_away: self.control.alone_for(),
                    stood_still: None,
                };
                Some(Diagnosis::of_timeout(&evidence))
            }
            CallError::PeersLost(lost) => {
                let lost: Vec<_> = lost.iter().map(|(peer, reason)| (name(*peer), *reason)).collect();
                Some(Diagnosis::of_loss(&lost))
            }
            CallError::LinkBroken { from, to, .. } => Some(Diagnosis::BrokenLink(name(*from), name(*to))),
            _ => None,
        }
    }

    /// What our own health plane says that is worse than alive; nothing if it knows no better than the coordinator.
    fn health_of(&self, peer: PeerId) -> Option<&'static str> {
        let find = |list: Vec<crate::membership::Member>| {
            list.into_iter().find(|member| member.info.id == peer).map(|member| member.health.word())
        };
        let active = self.membership.active().ok().and_then(find);
        let word = active.or_else(|| self.membership.failed().ok().and_then(find))?;
        (word != "alive").then_some(word)
    }
}
