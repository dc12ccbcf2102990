//! One run as the clerk serves it.
//!
//! The machine of a run decides, and touches nothing of the world. What its decisions reach lies here, beside it: the lines
//! of its peers, our own member of its health group, what its peers are called, and how far its facts are written down. All of
//! it lives and ends with the machine, so that a run which is dropped, after a panic, at the end of a reign or because nobody
//! is in it, leaves nothing behind (rule 40): every line is closed because its queue is, and the member says goodbye.
//!
//! Nothing here knows of another run, or of the clerk.

use super::Queue;
use super::health::{HealthStarter, RunHealth};
use crate::clock;
use crate::coordinator::history::{self, Names};
use crate::presets::Warned;
use outlast_proto::coordinator::{ConnectionId, FactsStamp, Note, Run};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::time::Instant;
use outlast_proto::wire::control::ToPeer;
use outlast_proto::wire::membership::MemberInfo;
use std::collections::BTreeMap;
use std::time::Duration;

/// How old an answer about the status may be.
const STATUS_AGE_MAX: Duration = Duration::from_millis(50);

/// One run and what it needs of the world.
pub(super) struct ServedRun {
    machine: Run,
    /// What the flight recorder calls it, and its questions carry.
    number: u64,
    lines: BTreeMap<ConnectionId, Queue>,
    health: RunHealth,
    names: Names,
    /// Peers with another preset that were warned of.
    warned: Warned,
    empty_since: Option<std::time::Instant>,
    /// What was last said of it, and when.
    status: Option<(Instant, String)>,
    /// What was last written down of it.
    written: Option<FactsStamp>,
    /// What is being written down.
    writing: Option<FactsStamp>,
}

/// How far the facts of this moment are written down.
pub(super) enum Record {
    Written,
    BeingWritten,
    /// They have that stamp, and nobody was told to write them down.
    Due(FactsStamp),
}

impl ServedRun {
    pub(super) fn new(machine: Run, number: u64) -> Self {
        Self {
            machine,
            number,
            lines: BTreeMap::new(),
            health: RunHealth::default(),
            names: Names::default(),
            warned: Warned::default(),
            empty_since: None,
            status: None,
            written: None,
            writing: None,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn machine(&self) -> &Run {
        &self.machine
    }

    pub(super) fn machine_mut(&mut self) -> &mut Run {
        &mut self.machine
    }

    /// Our own member of its health group.
    pub(super) fn health(&mut self) -> &mut RunHealth {
        &mut self.health
    }

    /// Tells the machine what the health plane says of everybody now.
    pub(super) fn pass_on_health(&mut self, now: Instant) {
        self.health.pass_on(now, &mut self.machine);
    }

    /// Looks after our own member of the health group, and passes on what it says. What happened to it, if anything did.
    pub(super) fn look_after_health(
        &mut self,
        now: Instant,
        starter: &mut HealthStarter,
        run: &RunId,
    ) -> Option<String> {
        self.health.forget_strangers(&self.machine);
        let incident = self.health.mend(now, starter, run);
        if let Some(text) = &incident {
            self.machine.handle_wall_clock(now, history::unix_us());
            self.machine.handle_incident(now, text);
        }
        self.pass_on_health(now);
        incident
    }
}

/// Its lines.
impl ServedRun {
    pub(super) fn seat(&mut self, id: ConnectionId, line: Queue) {
        self.lines.insert(id, line);
        self.empty_since = None;
    }

    pub(super) fn line(&self, id: ConnectionId) -> Option<&Queue> {
        self.lines.get(&id)
    }

    /// Forgets a line, which closes it unless the caller keeps its queue.
    pub(super) fn hang_up(&mut self, id: ConnectionId) -> Option<Queue> {
        self.lines.remove(&id)
    }

    /// Closes every line, and says which there were.
    pub(super) fn hang_up_all(&mut self) -> impl Iterator<Item = ConnectionId> + use<> {
        std::mem::take(&mut self.lines).into_keys()
    }

    /// Puts a message into a peer's queue. One that is full belongs to a peer that does not read: it loses its
    /// connection.
    pub(super) fn send(&mut self, id: ConnectionId, message: ToPeer) {
        if self.lines.get(&id).is_some_and(|line| line.try_send(message).is_err()) {
            self.lines.remove(&id);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.machine.is_empty() && self.lines.is_empty()
    }

    /// Since when nobody is in it, as far as somebody has looked.
    pub(super) fn empty_since(&self) -> Option<std::time::Instant> {
        self.empty_since
    }

    /// Looks whether somebody is in it, and says for how long nobody is.
    pub(super) fn look_whether_empty(&mut self) -> Duration {
        if !self.is_empty() {
            self.empty_since = None;
            return Duration::ZERO;
        }
        self.empty_since.get_or_insert_with(std::time::Instant::now).elapsed()
    }
}

/// What is said of it.
impl ServedRun {
    /// A peer has introduced itself to a coordinator of that preset. What is odd about it, once, in words.
    pub(super) fn introduce(
        &mut self,
        now: Instant,
        peer: PeerId,
        info: &MemberInfo,
        preset: &str,
    ) -> Option<String> {
        self.names.name(peer, &info.name);
        let warning = self.warned.of(info, preset, "the coordinator")?;
        self.machine.handle_incident(now, &warning);
        Some(warning)
    }

    /// Remembers what the machine has noted, if people want to know it, and gives it back in words.
    pub(super) fn remember(&mut self, note: &Note) -> Option<String> {
        let text = self.names.words(note)?;
        let now = clock::now();
        self.machine.handle_wall_clock(now, history::unix_us());
        self.machine.handle_incident(now, &text);
        Some(text)
    }

    /// What was said of it a moment ago.
    pub(super) fn recent_status(&self, now: Instant) -> Option<&str> {
        let recent = self.status.as_ref().filter(|(at, _)| now.since(*at) < STATUS_AGE_MAX);
        recent.map(|(_, text)| text.as_str())
    }

    pub(super) fn keep_status(&mut self, now: Instant, text: String) {
        self.status = Some((now, text));
    }
}

/// What is written down of it.
impl ServedRun {
    pub(super) fn record(&self) -> Record {
        let stamp = self.machine.facts_stamp();
        if self.written == Some(stamp) {
            Record::Written
        } else if self.writing == Some(stamp) {
            Record::BeingWritten
        } else {
            Record::Due(stamp)
        }
    }

    /// Facts of that stamp are written down.
    pub(super) fn note_written(&mut self, stamp: FactsStamp) {
        self.written = Some(stamp);
    }

    /// Facts of that stamp are being written down.
    pub(super) fn note_writing(&mut self, stamp: FactsStamp) {
        self.writing = Some(stamp);
    }
}
