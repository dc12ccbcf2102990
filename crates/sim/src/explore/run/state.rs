//! What a state of a run is made of.

use super::event::ProcessNumber;
use crate::explore::held::Held;
use outlast_proto::collective::OpKey;
use outlast_proto::coordinator::{ConnectionId, Run};
use outlast_proto::id::PeerId;
use outlast_proto::session::{CallId, Command, Session};
use outlast_proto::time::Instant;
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use std::collections::{BTreeMap, VecDeque};

/// How many more faults of each kind may strike, and how often the clock may jump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Control connections that break.
    pub breaks: u8,
    /// Processes that are killed.
    pub kills: u8,
    /// Coordinators that are killed and started again.
    pub restarts: u8,
    /// Data links that break between two who live.
    pub severs: u8,
    /// Calls that programs give up.
    pub cancels: u8,
    /// Timers that fire.
    pub timers: u8,
}

/// One connection between a process and the coordinator.
#[derive(Clone, Debug, Hash)]
pub(super) struct Channel {
    pub(super) process: ProcessNumber,
    /// Counts the connections of its process.
    pub(super) number: u8,
    pub(super) up: VecDeque<ToCoordinator>,
    pub(super) down: VecDeque<ToPeer>,
    pub(super) peer_holds: bool,
    pub(super) coordinator_holds: bool,
    /// It did not end by a goodbye: what is under way may be lost.
    pub(super) broken: bool,
}

impl Channel {
    pub(super) fn new(process: ProcessNumber, number: u8) -> Self {
        Self {
            process,
            number,
            up: VecDeque::new(),
            down: VecDeque::new(),
            peer_holds: true,
            coordinator_holds: true,
            broken: false,
        }
    }

    /// Numbered so that it does not matter in which order processes dial.
    pub(super) fn id(&self) -> ConnectionId {
        connection_id(self.process, self.number)
    }
}

pub(super) fn connection_id(process: ProcessNumber, number: u8) -> ConnectionId {
    ConnectionId(u64::from(process) << 8 | u64::from(number))
}

/// An attempt that an executor is at.
#[derive(Clone, Debug, Hash)]
pub(super) struct Performing {
    pub(super) key: OpKey,
    pub(super) ring: Vec<PeerId>,
    /// All of its ring were at it at one moment: each may hold the result from then on.
    pub(super) met: bool,
    /// It was told to stop.
    pub(super) stopping: bool,
}

/// What a call's buffer holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Data {
    /// What the program put there.
    AsBefore,
    /// A result that could be undone.
    Result(OpKey),
    /// A result that cannot.
    Kept(OpKey),
}

/// A call that has not returned.
#[derive(Clone, Debug, Hash)]
pub(super) struct Work {
    pub(super) id: CallId,
    pub(super) attempt: Option<Performing>,
    pub(super) data: Data,
    /// What came while the executor was at it.
    pub(super) told: VecDeque<Command>,
}

/// How a call ended, as far as all members must agree on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ending {
    /// That attempt counted.
    Committed(OpKey),
    /// A vote for newcomers went through, or let this one in.
    Voted,
    /// It failed, in that way.
    Failed(&'static str),
}

/// One process that lives.
#[derive(Clone, Debug, Hash)]
pub(super) struct Process {
    pub(super) session: Held<Session>,
    /// The connection that it holds.
    pub(super) wire: Option<u8>,
    /// How many it has had.
    pub(super) wires: u8,
    pub(super) work: Option<Work>,
    /// How its calls ended, the first one first.
    pub(super) endings: Vec<Ending>,
    /// Whether each attempt on which it heard a verdict was committed.
    pub(super) heard: BTreeMap<OpKey, bool>,
    /// Its program is over because its session is.
    pub(super) out: bool,
}

/// All that the future of a run depends on, and all that is held against it.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) now: Instant,
    pub(super) run: Held<Run>,
    /// None for those that were killed.
    pub(super) processes: Vec<Option<Process>>,
    pub(super) wires: Vec<Held<Channel>>,
    /// Of whose death the health plane knows.
    pub(super) known_dead: Vec<bool>,
    /// Who completed what, and as which of its program's steps: also those who were killed since.
    pub(super) completed: Held<BTreeMap<OpKey, BTreeMap<ProcessNumber, super::Step>>>,
    /// What is left of the bounds.
    pub left: Budget,
    /// When the coordinator was last started again.
    pub(super) restarted: Option<Instant>,
    /// Whether a link between two who live ever broke.
    pub(super) severed: bool,
}

impl std::hash::Hash for State {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        let Self { now, run, processes, wires, known_dead, completed, left, restarted, severed } = self;
        (now, run, processes, known_dead, completed).hash(hasher);
        (wires, left, restarted, severed).hash(hasher);
    }
}

impl State {
    pub(super) fn wire(&self, process: ProcessNumber, number: u8) -> Option<usize> {
        self.wires.iter().position(|wire| (wire.process, wire.number) == (process, number))
    }

    /// The connection that a process holds, if any.
    pub(super) fn held_wire(&self, process: ProcessNumber) -> Option<&Held<Channel>> {
        let number = self.processes[usize::from(process)].as_ref()?.wire?;
        self.wire(process, number).map(|at| &self.wires[at])
    }

    /// Whether a process has been let in, as far as it knows.
    pub(super) fn is_in(&self, process: ProcessNumber) -> bool {
        let process = self.processes[usize::from(process)].as_ref();
        process.is_some_and(|process| process.session.record().is_some())
    }

    /// The processes that take part: alive, and not put out.
    pub(super) fn present(&self) -> impl Iterator<Item = (ProcessNumber, &Process)> {
        let numbered = self.processes.iter().enumerate();
        numbered.filter_map(|(number, process)| {
            process.as_ref().filter(|process| !process.out).map(|process| (number as u8, process))
        })
    }
}
