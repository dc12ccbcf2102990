//! Evidence in, evictions out: only for the causes of rule 20.
//!
//! Whoever inquires into a peer's fate needs the times, the office and what was asked so far. It changes no group: that
//! somebody is out is put on the agenda, and its group learns it from there.

use super::Config;
use super::office::Office;
use super::outbox::Timer;
use super::peers::{Knock, Peer, Phase, Sign};
use super::run::{Action, Note};
use crate::id::PeerId;
use crate::membership::{ConnectOutcome, ConnectToken};
use crate::time::{Duration, Instant};
use crate::wire::control::LossReason;
use crate::wire::membership::DeathReason;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// How long a connect may take that asks a peer's kernel.
const KNOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// What was asked about peers, and whether evictions for silence wait.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Evidence {
    /// Whose connects are under way, and which port they try.
    knocks: BTreeMap<u64, (PeerId, Knock)>,
    frozen_until: Option<Instant>,
}

impl Evidence {
    /// A connect ended: whom it was to ask about. None if nobody wants to know any more.
    pub(super) fn take_answered(&mut self, token: ConnectToken) -> Option<(PeerId, Knock)> {
        self.knocks.remove(&token.0)
    }

    /// A peer's session is over: questions about it are not answered to the next one.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.knocks.retain(|_, (asked, _)| *asked != peer);
    }

    /// Nobody is left whose silence could be ours.
    pub(super) fn thaw(&mut self) {
        self.frozen_until = None;
    }

    pub(super) fn footprint(&self) -> usize {
        self.knocks.len()
    }
}

/// Inquires into the fate of peers.
pub(super) struct Inquiry<'a> {
    pub(super) config: &'a Config,
    pub(super) office: &'a mut Office,
    pub(super) evidence: &'a mut Evidence,
}

impl Inquiry<'_> {
    /// Finds out, while the peer lives, whether its kernel's refusal will be worth anything (rule 22).
    pub(super) fn try_kernel(&mut self, peer: PeerId) {
        let Some(record) = self.office.peers.get(peer) else { return };
        let (port, closed) = (record.info.address, record.info.closed_port);
        if closed != 0 {
            self.knock(peer, Knock::TrialPort, port);
            self.knock(peer, Knock::TrialClosed, SocketAddr::new(port.ip(), closed));
        }
    }

    /// Finds out whether a peer takes dials that another says it cannot reach.
    pub(super) fn try_path(&mut self, peer: PeerId) {
        if let Some(port) = self.office.peers.get(peer).map(|record| record.info.address) {
            self.knock(peer, Knock::Path, port);
        }
    }

    fn knock(&mut self, peer: PeerId, knock: Knock, to: SocketAddr) {
        let token = ConnectToken(self.office.outbox.number());
        // A port belongs to one process: where another one proves to listen, this one does not (rule 45).
        let disputed = (knock == Knock::Lost && self.office.peers.is_disputed(peer)).then_some(peer);
        self.evidence.knocks.insert(token.0, (peer, knock));
        self.office.outbox.act(Action::Connect { token, to, timeout: KNOCK_TIMEOUT, disputed });
    }

    pub(super) fn knocked(&mut self, now: Instant, peer: PeerId, knock: Knock, outcome: ConnectOutcome) {
        let Some(record) = self.office.peers.get_mut(peer) else { return };
        match (knock, outcome) {
            (Knock::TrialPort, ConnectOutcome::Accepted) => record.accepts = Some(true),
            (Knock::TrialPort, ConnectOutcome::Refused) => record.accepts = Some(false),
            (Knock::TrialClosed, ConnectOutcome::Refused) => record.refuses = Some(true),
            (Knock::TrialClosed, ConnectOutcome::Accepted) => record.refuses = Some(false),
            (Knock::Lost, _) if record.lost_since.is_none() => {}
            (Knock::Lost, ConnectOutcome::Refused) => {
                record.refused_at = Some(now);
                // A firewall refuses for the living, too. Whoever lives must have the chance to say so before
                // the refusal counts.
                self.office.outbox.act(Action::Look(peer));
                self.review_lost(now, peer);
            }
            // A process that is being killed closes one socket after another: its port may accept a moment
            // longer than its connection lived. Ask again.
            (Knock::Lost, _) => {
                record.knock_at = Some(now + self.config.probe_timeout);
                self.review_lost(now, peer);
            }
            (Knock::Path, ConnectOutcome::Accepted) => record.takes_dials = Some((now, true)),
            (Knock::Path, ConnectOutcome::Refused | ConnectOutcome::Silent) => {
                record.takes_dials = Some((now, false));
            }
            (Knock::TrialPort | Knock::TrialClosed | Knock::Path, _) => {}
        }
    }

    /// The health plane says how a peer is.
    pub(super) fn note_sign(&mut self, now: Instant, peer: PeerId, sign: Sign) {
        let Some(record) = self.office.peers.get_mut(peer) else { return };
        record.sign = sign;
        if let Sign::Alive { acked: Some(acked) } = sign {
            if record.refused_at.is_some_and(|refused| acked > refused) {
                record.refused_at = None; // It answered since: the refusal was somebody else's (rule 22).
                record.knock_at.get_or_insert(now + self.config.probe_timeout);
            }
            self.note_answer(peer, acked);
        }
        if matches!(sign, Sign::Dead(_)) {
            self.review_lost(now, peer);
        }
    }

    /// The health plane had an answer from a peer then. One from before it registered was given in another session (rule
    /// 45).
    pub(super) fn note_answer(&mut self, peer: PeerId, acked: Instant) {
        if let Some(record) = self.office.peers.get_mut(peer) {
            record.answered |= acked > record.registered;
            // What a process said before it was killed may be read a moment after its connection closed.
            let last_words = self.config.probe_timeout / 2;
            record.outlived |= record.lost_since.is_some_and(|lost| acked > lost + last_words);
        }
    }

    /// Is that peer to be evicted now? If not, when is it to be looked at again?
    pub(super) fn review_lost(&mut self, now: Instant, peer: PeerId) {
        self.forgive_own_lateness(now, peer);
        let Some(record) = self.office.peers.get(peer) else { return };
        if let Some(reason) = self.cause(now, record) {
            let silence = match reason {
                LossReason::Dead(reason) => {
                    matches!(reason, DeathReason::Silent | DeathReason::SilentTooLong | DeathReason::Deaf)
                }
                LossReason::NotResumed => !matches!(record.sign, Sign::Alive { .. } | Sign::Stalled),
                _ => false,
            };
            match self.frozen(now, silence) {
                Some(until) => self.office.outbox.schedule(until, Timer::Lost(peer)),
                None => self.office.lose(peer, reason),
            }
            return;
        }
        let Some(lost) = record.lost_since else { return };
        let config = self.config;
        let moments = [
            record.refused_at.map(|refused| refused + config.probe_timeout),
            record.knock_at.filter(|_| record.kernel_trusted()),
            Some(lost + config.control_grace),
            Some(lost + config.control_lost_after),
        ];
        let due = |moment: &Instant| *moment <= now;
        if record.knock_at.as_ref().is_some_and(due) && record.kernel_trusted() {
            let port = record.info.address;
            if let Some(record) = self.office.peers.get_mut(peer) {
                record.knock_at = None;
            }
            self.knock(peer, Knock::Lost, port);
        }
        if let Some(next) = moments.into_iter().flatten().filter(|moment| !due(moment)).min() {
            self.office.outbox.schedule(next, Timer::Lost(peer));
        }
    }

    /// A coordinator that stood still while it should have waited for a peer's answer cannot say that none came: the
    /// peer may have stood still with it (a frozen machine), or its answer is not read yet. It asks again.
    fn forgive_own_lateness(&mut self, now: Instant, peer: PeerId) {
        let patience = self.config.probe_timeout;
        let Some(record) = self.office.peers.get_mut(peer) else { return };
        let unheard = record.refused_at.filter(|refused| record.heard <= *refused);
        let due = unheard.map(|refused| refused + patience);
        if due.is_some_and(|due| now.since(due) > patience / 2) && record.lost_since.is_some() {
            record.refused_at = Some(now);
            self.office.outbox.act(Action::Look(peer));
        }
    }

    /// The cause for which a peer may be evicted now, if there is one.
    fn cause(&self, now: Instant, peer: &Peer) -> Option<LossReason> {
        // That we evicted it ourselves, under an earlier registration, is no news.
        if let Sign::Dead(reason) = peer.sign
            && reason != DeathReason::Evicted
        {
            // A refusal alone does not outweigh a control connection that is open (rule 20b wants both).
            if reason != DeathReason::Refused || (peer.lost_since.is_some() && peer.answered) {
                return Some(LossReason::Dead(reason));
            }
        }
        let lost = peer.lost_since?;
        let quiet =
            |refused: Instant| peer.heard <= refused && now.since(refused) >= self.config.probe_timeout;
        // Who never answered the health plane cannot be missed there: it has its control grace (rule 20b).
        // Who outlived its connection was not killed when that closed. If it is since, others miss it too, and say so.
        if peer.answered && !peer.outlived && peer.refused_at.is_some_and(quiet) {
            return Some(LossReason::Killed);
        }
        let away = now.since(lost);
        let alive = matches!(peer.sign, Sign::Alive { .. });
        let stalled = matches!(peer.sign, Sign::Stalled);
        if away >= self.config.control_lost_after || (away >= self.config.control_grace && !alive && !stalled)
        {
            return Some(LossReason::NotResumed);
        }
        None
    }

    /// More than half of the peers silent at once: more likely it is us. Evictions for silence wait (rule 21).
    fn frozen(&mut self, now: Instant, silence: bool) -> Option<Instant> {
        if !silence {
            return None;
        }
        match self.evidence.frozen_until {
            Some(until) if now < until => return Some(until),
            // It waited its time, and they are still silent.
            Some(until) if now < until + self.config.dead_after => return None,
            _ => {}
        }
        let silent = |peer: &Peer| match peer.sign {
            Sign::Dead(reason) => !matches!(reason, DeathReason::Refused | DeathReason::Exited),
            Sign::Suspect => true,
            Sign::Alive { .. } | Sign::Stalled => false,
        };
        let accepted = || self.office.peers.iter().filter(|(_, peer)| peer.phase == Phase::Accepted);
        let count = accepted().filter(|(_, peer)| silent(peer)).count();
        let accepted = accepted().count();
        if accepted < 2 || 2 * count <= accepted {
            return None;
        }
        let until = now + self.config.dead_after;
        self.evidence.frozen_until = Some(until);
        self.office.outbox.note(Note::Frozen);
        Some(until)
    }
}
