//! The crier: notes what happens to the run, and sees to it that members remember it (see [`crate::annals`]).
//!
//! The driver puts into words what the machine has noted, because it knows names, and hands it in. Members are told at
//! once, unless they were told something a moment ago: then what comes together is told together, so that a crowd that goes
//! at once costs every member a few messages and not thousands. A newcomer is told everything when it is let in; a member
//! that resumes brings what it remembers and is told what it lacks.

use super::office::Office;
use super::outbox::Timer;
use super::peers::Phase;
use super::run::Run;
use crate::annals::Annals;
use crate::id::PeerId;
use crate::limits::INCIDENTS_MAX;
use crate::time::{Duration, Instant};
use crate::wire::control::{Incident, ToPeer};

/// Members are told at most so often.
const PAUSE: Duration = Duration::from_millis(100);

/// See the module's essay.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Crier {
    annals: Annals,
    /// A moment, and what the clock on the wall said then.
    clock: Option<(Instant, u64)>,
    /// What members have yet to hear, the oldest first.
    untold: Vec<Incident>,
    /// Until then they are not told anything.
    quiet_until: Option<Instant>,
}

impl Crier {
    fn wall(&self, now: Instant) -> u64 {
        let (then, wall) = self.clock.unwrap_or((now, 0));
        wall.saturating_add(u64::try_from(now.since(then).as_micros()).unwrap_or(u64::MAX))
    }
}

impl Run {
    /// The clock on the wall says so many microseconds since 1970. Incidents get their times by it.
    pub fn handle_wall_clock(&mut self, now: Instant, unix_us: u64) {
        self.office.crier.clock = Some((now, unix_us));
    }

    /// Something happened that people will want to know. Returns it as it is kept.
    pub fn handle_incident(&mut self, now: Instant, text: &str) -> Incident {
        self.office.note_incident(now, text)
    }

    /// What happened to the run lately.
    pub fn annals(&self) -> &Annals {
        &self.office.crier.annals
    }
}

impl Office {
    fn note_incident(&mut self, now: Instant, text: &str) -> Incident {
        let incident = self.crier.annals.note(self.crier.wall(now), text);
        self.crier.untold.push(incident.clone());
        let surplus = self.crier.untold.len().saturating_sub(INCIDENTS_MAX);
        self.crier.untold.drain(..surplus);
        match self.crier.quiet_until.filter(|until| now < *until) {
            Some(until) => self.outbox.schedule(until, Timer::Annals),
            None => self.cry(now),
        }
        incident
    }

    /// Tells the members what they have yet to hear.
    pub(super) fn cry(&mut self, now: Instant) {
        let untold = std::mem::take(&mut self.crier.untold);
        if untold.is_empty() {
            return;
        }
        self.crier.quiet_until = Some(now + PAUSE);
        let accepted = self.peers.iter().filter(|(_, peer)| peer.phase == Phase::Accepted);
        let members: Vec<_> = accepted.map(|(id, _)| id).collect();
        self.tell_all(&members, ToPeer::Annals(untold));
    }

    /// Tells a newcomer what happened before it was let in.
    pub(super) fn tell_annals(&mut self, peer: PeerId) {
        self.tell_lacking(peer, &[]);
    }

    /// A member that resumed brings what it remembers.
    pub(super) fn remembered(&mut self, now: Instant, from: PeerId, told: Vec<Incident>) {
        if self.peers.get(from).is_some_and(|peer| peer.phase == Phase::Accepted) {
            self.tell_lacking(from, &told);
            let wall = self.crier.wall(now);
            self.crier.annals.recall(wall, told);
        }
    }

    fn tell_lacking(&mut self, peer: PeerId, told: &[Incident]) {
        let lacking = self.crier.annals.lacking(told);
        if !lacking.is_empty() {
            self.tell(peer, ToPeer::Annals(lacking));
        }
    }
}
