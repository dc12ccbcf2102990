//! What is explored: who calls what, what goes wrong how often, and which bug is planted.

use super::event::ProcessNumber;
use super::state::Budget;
use outlast_proto::collective::{DataType, Fingerprint, OpKind, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::time::{Duration, Instant};

/// When everything begins.
pub(super) const BEGINNING: Instant = Instant::from_nanos(1_000_000_000);
/// Timers that would fire later than this are left alone while faults strike. Everything that a run waits for by
/// itself is earlier, and the deadlines of calls are later.
const HORIZON: Instant = Instant::from_nanos(40_000_000_000);
/// The same where deadlines may pass: they do, and the time after which a call ends for one member alone does not
/// (decision 10).
const SHORT_HORIZON: Instant = Instant::from_nanos(5_000_000_000);
/// What a call's program is prepared to wait.
pub(super) const TIMEOUT: Duration = Duration::from_mins(1);
/// The same for a call whose deadline may pass while faults strike.
pub(super) const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// One call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// An all-reduce that retries by itself.
    Reduce,
    /// An all-reduce that does not.
    ReduceOnce,
    /// A barrier: nothing moves, so each is done as soon as it has begun.
    Barrier,
    /// A small broadcast by process 0, which is done as soon as it has begun.
    Broadcast,
    /// An all-reduce that retries, with a deadline that may pass.
    ReduceSoon,
    /// An all-reduce of processes 0 and 1 alone.
    ReducePart,
    /// A vote for newcomers.
    Vote,
    /// A newcomer connects. Only the first call of a program may be this: all others are in from the beginning.
    Join,
    /// Goodbye.
    Leave,
}

impl Step {
    /// Reads a program: one letter per call.
    pub fn program(text: &str) -> Result<Vec<Self>, String> {
        let step = |letter| match letter {
            'r' => Ok(Self::Reduce),
            'o' => Ok(Self::ReduceOnce),
            'b' => Ok(Self::Barrier),
            'c' => Ok(Self::Broadcast),
            't' => Ok(Self::ReduceSoon),
            's' => Ok(Self::ReducePart),
            'v' => Ok(Self::Vote),
            'j' => Ok(Self::Join),
            'l' => Ok(Self::Leave),
            other => Err(format!(
                "{other:?} is no call: write r (all-reduce), o (all-reduce, once), t (all-reduce, short \
                 deadline), s (all-reduce of the first two), b (barrier), c (broadcast), v (vote for newcomers), \
                 j (join), l (leave)"
            )),
        };
        text.chars().map(step).collect()
    }

    /// The letter that stands for it.
    pub fn letter(self) -> char {
        match self {
            Self::Reduce => 'r',
            Self::ReduceOnce => 'o',
            Self::Barrier => 'b',
            Self::Broadcast => 'c',
            Self::ReduceSoon => 't',
            Self::ReducePart => 's',
            Self::Vote => 'v',
            Self::Join => 'j',
            Self::Leave => 'l',
        }
    }

    /// Whether its members try again after an abort.
    pub(super) fn retries(self) -> bool {
        matches!(self, Self::Reduce | Self::ReduceSoon | Self::ReducePart | Self::Barrier)
    }

    /// How long its program is prepared to wait for it.
    pub(super) fn timeout(self) -> Duration {
        if self == Self::ReduceSoon { SHORT_TIMEOUT } else { TIMEOUT }
    }

    /// Whom it involves.
    pub(super) fn scope(self) -> Scope {
        if self == Self::ReducePart { Scope::Members(vec![id_of(0), id_of(1)]) } else { Scope::Whole }
    }

    /// The call as all members must make it.
    pub(super) fn fingerprint(self) -> Fingerprint {
        match self {
            Self::Reduce | Self::ReduceSoon | Self::ReducePart => {
                Fingerprint::new(OpKind::AllReduce, DataType::F32, [8])
            }
            Self::ReduceOnce => {
                Fingerprint { retry: false, ..Fingerprint::new(OpKind::AllReduce, DataType::F32, [8]) }
            }
            Self::Barrier | Self::Vote | Self::Join | Self::Leave => {
                Fingerprint::new(OpKind::Barrier, DataType::F32, [0])
            }
            Self::Broadcast => {
                let root = Some(id_of(0));
                Fingerprint { root, ..Fingerprint::new(OpKind::Broadcast, DataType::F32, [8]) }
            }
        }
    }
}

/// A bug that is planted to see a checker find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Process 1 is told an abort where the others are told a commit.
    FlipVerdict,
    /// The coordinator hears that process 1 has completed as soon as it has begun.
    ForgeComplete,
    /// The program of process 1 is not told that a call failed, and makes it again.
    RepeatFailed,
    /// Process 1's votes arrive with a number that is one too high.
    SkipNumbers,
    /// The checker is told that process 1 is in no roster once a connection has been lost.
    UnlistMember,
    /// Nobody is told to go on.
    DropProceed,
    /// An executor does not undo.
    SkipUndo,
    /// The health plane calls process 1 dead though it lives.
    AccuseTheLiving,
}

/// What is explored.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What each process calls, one after the other.
    pub programs: Vec<Vec<Step>>,
    /// What goes wrong at most.
    pub budget: Budget,
    /// A planted bug.
    pub sabotage: Option<Sabotage>,
}

impl Setup {
    /// So many processes with the same program, written as letters.
    pub fn new(processes: usize, program: &str, budget: Budget) -> Self {
        let program = Step::program(program).unwrap_or_else(|error| panic!("{error}"));
        Self { programs: vec![program; processes], budget, sabotage: None }
    }

    pub(super) fn step(&self, process: ProcessNumber, at: usize) -> Option<Step> {
        self.programs[usize::from(process)].get(at).copied()
    }

    /// Whether that call holds its result without anybody else.
    pub(super) fn is_alone(&self, process: ProcessNumber, at: usize) -> bool {
        match self.step(process, at) {
            Some(Step::Barrier) => true,
            Some(Step::Broadcast) => process == 0,
            _ => false,
        }
    }

    /// Whether two have the same program: only then both must see the same.
    pub(super) fn agree(&self, one: ProcessNumber, other: ProcessNumber) -> bool {
        self.programs[usize::from(one)] == self.programs[usize::from(other)]
    }

    /// Whether that process comes later than the others.
    pub(super) fn is_newcomer(&self, process: ProcessNumber) -> bool {
        self.step(process, 0) == Some(Step::Join)
    }

    /// How far the clock may jump while faults strike.
    pub(super) fn horizon(&self) -> Instant {
        if self.has_deadlines() { SHORT_HORIZON } else { HORIZON }
    }

    /// Whether deadlines may pass while faults strike.
    pub(super) fn has_deadlines(&self) -> bool {
        self.programs.iter().flatten().any(|step| *step == Step::ReduceSoon)
    }
}

/// As whom a process takes part.
pub(super) fn id_of(process: ProcessNumber) -> PeerId {
    PeerId::from_bytes([process + 1; 16])
}

pub(super) fn process_of(id: PeerId) -> ProcessNumber {
    id.as_bytes()[0] - 1
}
