//! What really happened to each host: the truth against which opinions are judged.

use super::HostId;
use super::host::Identity;
use outlast_proto::time::{Duration, Instant};

/// A kind of trouble that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ailment {
    /// The process was stopped.
    Stalled,
    /// The host stood still.
    Frozen,
    /// Nothing passed, either way.
    CutOff,
    /// Nothing reached it.
    Deaf,
    /// Nothing left it.
    Mute,
    /// It was on one side of a partition.
    Parted,
    /// A firewall refused for it and dropped what came.
    Rejecting,
    /// A firewall refused connects for it and let datagrams pass.
    RefusingTcp,
    /// Its own paths lost more than everybody's.
    Lossy,
}

/// One stretch of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spell {
    /// What it was.
    pub ailment: Ailment,
    /// When it began.
    pub from: Instant,
    /// When it ended; not yet, if there is nothing here.
    pub until: Option<Instant>,
}

impl Spell {
    /// How long it had lasted at `now`, or in all.
    pub fn lasted(&self, now: Instant) -> Duration {
        self.until.unwrap_or(now).min(now).since(self.from)
    }

    /// Whether it was on at some moment between `from` and `to`.
    pub fn touches(&self, from: Instant, to: Instant) -> bool {
        self.from <= to && self.until.is_none_or(|until| until >= from)
    }
}

/// How one identity ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) identity: Identity,
    pub(crate) boot: u32,
    pub(crate) at: Instant,
}

/// The spells of every host, and the ends of its processes.
#[derive(Clone, Debug, Default)]
pub struct Chronicle {
    spells: Vec<Vec<Spell>>,
    ends: Vec<End>,
    starts: Vec<(Identity, Instant)>,
}

impl Chronicle {
    /// A host's spells, oldest first.
    pub fn spells(&self, host: HostId) -> &[Spell] {
        self.spells.get(host.index()).map_or(&[], Vec::as_slice)
    }

    /// The spells of all hosts.
    pub fn all_spells(&self) -> impl Iterator<Item = (HostId, &Spell)> {
        (0u32..)
            .zip(&self.spells)
            .flat_map(|(host, spells)| spells.iter().map(move |spell| (HostId(host), spell)))
    }

    /// When a process of that identity last ended, if one did.
    pub fn ended(&self, identity: Identity) -> Option<Instant> {
        self.ends.iter().rev().find(|end| end.identity == identity).map(|end| end.at)
    }

    /// Every identity whose process ended, with the moment, oldest first.
    pub fn ends(&self) -> impl Iterator<Item = (Identity, Instant)> {
        self.ends.iter().map(|end| (end.identity, end.at))
    }

    /// When a process of that identity last started.
    pub fn started(&self, identity: Identity) -> Option<Instant> {
        self.starts.iter().rev().find(|(who, _)| *who == identity).map(|&(_, at)| at)
    }

    pub(super) fn add_host(&mut self) {
        self.spells.push(Vec::new());
    }

    pub(super) fn begin(&mut self, host: HostId, ailment: Ailment, now: Instant) {
        let spells = &mut self.spells[host.index()];
        if !spells.iter().any(|spell| spell.ailment == ailment && spell.until.is_none()) {
            spells.push(Spell { ailment, from: now, until: None });
        }
    }

    pub(super) fn end(&mut self, host: HostId, ailment: Ailment, now: Instant) {
        for spell in &mut self.spells[host.index()] {
            if spell.ailment == ailment && spell.until.is_none() {
                spell.until = Some(now);
            }
        }
    }

    pub(super) fn process_ended(&mut self, identity: Identity, boot: u32, at: Instant) {
        self.ends.push(End { identity, boot, at });
    }

    pub(super) fn process_started(&mut self, identity: Identity, at: Instant) {
        self.starts.push((identity, at));
    }
}
