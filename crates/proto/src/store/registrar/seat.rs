//! One member, as its registrar sees it.

use super::{Knocked, StreamId};
use crate::store::config::Config;
use crate::time::{Duration, Instant};
use crate::wire::store::StoreMember;

/// Whether a member can be counted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has its place.
    There,
    /// It is dead: it answers nobody.
    Dead,
    /// It was waited for long enough. It may still answer somebody until its lease is over.
    GivenUp,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Seat {
    pub(super) member: StoreMember,
    stream: Option<StreamId>,
    /// When it was last heard, over its stream.
    heard: Instant,
    pub(super) lease_until: Option<Instant>,
    /// The highest epochs that it froze for, has all for, and is in.
    pub(super) prepared: u64,
    pub(super) ready: u64,
    pub(super) activated: u64,
    pub(super) leaves: bool,
    /// It is not let in before then: nobody who came from its host reached a member.
    pub(super) not_before: Option<Instant>,
    /// How much had come of what it fetches when it last said so, and when that became more.
    fetched: Option<u64>,
    pub(super) progressed: Instant,
    /// The epoch of the view that it came with, zero if none, and whether it had frozen for another one. None if it has
    /// not come.
    pub(super) brought: Option<(u64, bool)>,
    /// Its process is somebody else by now, and has thrown away what it held.
    pub(super) is_forgotten: bool,
    /// Keys, bytes, waits.
    pub(super) holds: (u64, u64, u64),
    /// The last answer of its kernel, and since when it is the same.
    knocked: Option<(Knocked, Instant)>,
    knock_at: Option<Instant>,
    is_knocking: bool,
}

/// A stream that says nothing for so many fifths of a lease makes its registrar ask the kernel.
const SILENT_FIFTHS: u32 = 3;

impl Seat {
    /// A member without a stream.
    pub(super) fn absent(now: Instant, member: StoreMember) -> Self {
        Self {
            member,
            stream: None,
            heard: now,
            lease_until: None,
            prepared: 0,
            ready: 0,
            activated: 0,
            leaves: false,
            not_before: None,
            fetched: None,
            progressed: now,
            brought: None,
            is_forgotten: false,
            holds: (0, 0, 0),
            knocked: None,
            knock_at: Some(now),
            is_knocking: false,
        }
    }

    pub(super) fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    pub(super) fn is_attached(&self) -> bool {
        self.stream.is_some()
    }

    /// It has a stream now. The one before, if there was one.
    pub(super) fn attach(&mut self, now: Instant, stream: StreamId) -> Option<StreamId> {
        self.hear(now);
        self.stream.replace(stream).filter(|old| *old != stream)
    }

    /// That stream is closed. Whether it was its last.
    pub(super) fn detach(&mut self, now: Instant, stream: StreamId) -> bool {
        if self.stream != Some(stream) {
            return false;
        }
        self.stream = None;
        (self.knocked, self.knock_at) = (None, Some(now));
        true
    }

    /// How long ago it was heard; none without a stream.
    pub(super) fn heard_ago(&self, now: Instant) -> Option<Duration> {
        self.stream.map(|_| now.since(self.heard))
    }

    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
        (self.knocked, self.knock_at) = (None, None);
    }

    /// It has said how much has come of what it fetches. Nothing is held against whoever cannot say so.
    pub(super) fn told_of(&mut self, now: Instant, fetched: Option<u64>) {
        if fetched.is_none() || fetched != self.fetched {
            (self.fetched, self.progressed) = (fetched, now);
        }
    }

    pub(super) fn knocked(&mut self, now: Instant, knocked: Knocked, interval: Duration) {
        self.is_knocking = false;
        if self.knock_at.is_none() {
            return;
        }
        if self.knocked.is_none_or(|(before, _)| before != knocked) {
            self.knocked = Some((knocked, now));
        }
        self.knock_at = Some(now + interval);
    }

    /// Where to knock, if it is time.
    pub(super) fn knocks(&mut self, now: Instant, config: &Config) -> bool {
        if self.is_silent(now, config) && self.knock_at.is_none() {
            self.knock_at = Some(now);
        }
        let knocks = !self.is_knocking && self.knock_at.is_some_and(|at| now >= at);
        self.is_knocking |= knocks;
        knocks
    }

    pub(super) fn lease_over(&self, now: Instant) -> bool {
        self.lease_until.is_none_or(|until| now >= until)
    }

    /// It has said nothing for long enough to wonder.
    pub(super) fn is_silent(&self, now: Instant, config: &Config) -> bool {
        now.since(self.heard) >= config.view_lease * SILENT_FIFTHS / 5
    }

    /// It may be in the next view, if it is in none yet.
    pub(super) fn may_come(&self, now: Instant, config: &Config) -> bool {
        let waits = self.not_before.is_some_and(|at| now < at);
        self.is_attached() && !waits && self.fate(now, config) == Fate::There
    }

    /// It has no lease any more, and does not answer.
    pub(super) fn is_absent(&self, now: Instant, config: &Config) -> bool {
        self.is_silent(now, config) && self.lease_until.is_some_and(|until| now >= until)
    }

    /// Rule 20b: refused, and nothing heard for one probe timeout since. Or it has said itself that it is no more.
    pub(super) fn is_dead(&self, now: Instant, config: &Config) -> bool {
        self.is_forgotten
            || matches!(self.knocked, Some((Knocked::Refused, since)) if now >= since + config.probe_timeout)
    }

    pub(super) fn fate(&self, now: Instant, config: &Config) -> Fate {
        if self.is_dead(now, config) {
            return Fate::Dead;
        }
        if now >= self.given_up_at(config) { Fate::GivenUp } else { Fate::There }
    }

    fn given_up_at(&self, config: &Config) -> Instant {
        // Whose kernel accepts again after a silence has only just become able to come back.
        let since = match self.knocked {
            Some((Knocked::Accepted, since)) if self.stream.is_none() => since.max(self.heard),
            _ => self.heard,
        };
        since + self.patience(config)
    }

    /// It was given up, and waited for once more as long because nobody else holds what it holds.
    pub(super) fn is_overdue(&self, now: Instant, config: &Config) -> bool {
        now >= self.given_up_at(config) + config.dead_after
    }

    /// How long it is waited for.
    fn patience(&self, config: &Config) -> Duration {
        match self.knocked {
            Some((Knocked::Accepted, _)) if self.stream.is_none() => {
                config.control_grace.max(config.view_lease)
            }
            Some((Knocked::Accepted, _)) => config.stall_budget,
            _ => config.dead_after,
        }
    }

    /// When something about it may change by itself. (A lease that runs out matters while a change waits for it; to look
    /// once too often does no harm.)
    pub(super) fn dues(&self, config: &Config) -> impl Iterator<Item = Instant> + use<> {
        let silent = self.heard + config.view_lease * SILENT_FIFTHS / 5;
        let knock = match self.knock_at {
            Some(at) => (!self.is_knocking).then_some(at),
            None => Some(silent),
        };
        let given_up = self.given_up_at(config);
        let dead = match self.knocked {
            Some((Knocked::Refused, since)) => Some(since + config.probe_timeout),
            _ => None,
        };
        let overdue = given_up + config.dead_after;
        [knock, Some(given_up), Some(overdue), dead, self.lease_until, self.not_before].into_iter().flatten()
    }
}
