//! A process: a session, a program, the threads of its calls, and what befell it.

use super::data::{Buffer, Executing};
use super::health::Member;
use super::program::Planned;
use super::training::Training;
use outlast_proto::collective::OpKey;
use outlast_proto::collective::links::Links;
use outlast_proto::id::PeerId;
use outlast_proto::rng::Rng;
use outlast_proto::session::{CallId, Command, Session};
use outlast_proto::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// A call as its thread sees it.
#[derive(Debug)]
pub(super) struct CallState {
    /// None for ballots.
    pub(super) planned: Option<Planned>,
    pub(super) deadline: Instant,
    /// How long the process had been stopped, all in all, when the call was made.
    pub(super) stopped_before: Duration,
    pub(super) before: Buffer,
    pub(super) buffer: Buffer,
    /// What would undo a result.
    pub(super) saved: Option<Buffer>,
    pub(super) executing: Option<Executing>,
    /// Told while the executor was still at it.
    pub(super) told: VecDeque<Command>,
}

/// Where the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits a moment, then connects.
    Starting,
    Connecting,
    Voting,
    /// Votes in a ballot about nothing.
    Balloting,
    Agreeing,
    Stepping,
    /// Between two steps.
    Thinking,
    /// In a turn of a sync.
    Syncing,
    /// Between two turns of it.
    Healing,
    Gone,
}

/// A vote in a ballot about nothing, and how things stood when it was cast.
#[derive(Clone, Debug)]
pub struct CastVote {
    /// What it says; no two votes say the same.
    pub wish: Vec<u8>,
    /// The highest term that the voter had obeyed.
    pub term: u64,
    /// How many members its group had.
    pub members: usize,
}

/// One process.
#[derive(Debug)]
pub struct Process {
    pub(super) id: PeerId,
    pub(super) group: u32,
    pub(super) session: Session,
    /// Its member of the health group, if this world has one.
    pub(super) member: Option<Member>,
    pub(super) rng: Rng,
    pub(super) connection: Option<u64>,
    /// How often it dialled.
    pub(super) dials: u64,
    /// Its data links.
    pub(super) links: Links<u64>,
    pub(super) armed: Option<Instant>,
    pub(super) calls: BTreeMap<CallId, CallState>,
    pub(super) serial: u64,
    // The program.
    pub(super) phase: Phase,
    pub(super) step: Option<u64>,
    pub(super) members: Vec<PeerId>,
    pub(super) pending: u32,
    pub(super) open: usize,
    /// Whether the step is agreed again before the next one.
    pub(super) agree_again: bool,
    /// The group's first member, and the call on which the step was agreed last.
    pub(super) agreed: Option<(PeerId, OpKey)>,
    /// The step for which it has voted in a ballot about nothing.
    pub(super) balloted: Option<u64>,
    /// How often it voted in one.
    pub(super) votes_cast: u32,
    /// What it says in the one that it waits in.
    pub(super) ballot: Option<CastVote>,
    /// Whom it was told to measure with, between the two votes for a better ring.
    pub(super) measures: Option<Vec<PeerId>>,
    /// Its training, if this world's programs train.
    pub(super) training: Option<Training>,
    /// Whether it has resumed and was not told to go on yet.
    pub(super) resuming: bool,
    /// When it last gave a call up.
    pub(super) cancelled: Instant,
    /// Collectives of the whole group that were committed.
    pub commits: u64,
    /// Attempts beyond the first that its committed calls needed.
    pub extra_attempts: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    // What befell it.
    /// When it was killed.
    pub killed: Option<Instant>,
    /// Since when it is stopped.
    pub stopped: Option<Instant>,
    pub(super) stopped_total: Duration,
    pub(super) backlog: VecDeque<super::world::Event>,
    /// Until when its control connections fail.
    pub(super) control_cut_until: Instant,
    /// Until when its host is cut off.
    pub(super) isolated_until: Instant,
    /// Since when the trouble lasts that the health plane sees.
    pub(super) silent_since: Option<Instant>,
    /// When anything last stood between it and the coordinator.
    pub blocked_until: Instant,
    /// When its last dial that ran into such a thing is given up: it may outlast what swallowed it.
    pub swallowed_until: Instant,
    /// When its connection to a coordinator that had greeted it was last lost.
    pub(super) went_down: Instant,
    /// When a coordinator last turned it away whose term is lower than one it has obeyed, which it may not believe.
    pub turned_away: Instant,
    /// Which coordinator last told it to go on, after it had joined or resumed there.
    pub(super) let_on_by: Option<usize>,
    /// The highest term it has obeyed under this id.
    pub(super) obeyed: u64,
}

impl Process {
    /// Whether it runs.
    pub fn lives(&self) -> bool {
        self.killed.is_none() && self.phase != Phase::Gone
    }

    /// Whether it can hear anybody now.
    pub(super) fn runs(&self) -> bool {
        self.killed.is_none() && self.stopped.is_none()
    }

    /// What a call's thread is at.
    pub(super) fn executing(&self, call: CallId) -> Option<&Executing> {
        self.calls.get(&call)?.executing.as_ref()
    }

    pub(super) fn is_isolated(&self, now: Instant) -> bool {
        now < self.isolated_until
    }

    /// For how long it could not run since it was born.
    pub(super) fn stopped_for(&self, now: Instant) -> Duration {
        self.stopped_total + self.stopped.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// When its connection to a coordinator that had greeted it was last lost.
    pub fn went_down(&self) -> Instant {
        self.went_down
    }

    /// The id under which it takes part.
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Its group.
    pub fn group(&self) -> u32 {
        self.group
    }
}
