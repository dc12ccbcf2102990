//! A training loop that is right by construction.
//!
//! ```no_run
//! use outlast::elastic::{Elastic, ElasticOptions};
//! use outlast::{Communicator, SharedState};
//! use std::sync::Arc;
//!
//! let comm = Arc::new(Communicator::builder().coordinator("10.0.0.1:29400").start()?);
//! let mut state = SharedState::new();
//! state.insert("w", vec![0.0_f32; 1000], &[1000])?;
//! let options = ElasticOptions::new().min_world(2).checkpoint("checkpoints", 100);
//! let mut elastic = Elastic::new(comm, state, options)?;
//! while elastic.number() < 1000 {
//!     elastic.step(|step| {
//!         let numbers = step.samples(64)?;
//!         let mut gradient = vec![0.5_f32; 1000]; // from `numbers` and `step.state()`
//!         step.average([&mut gradient[..]], numbers.len() as f64)?;
//!         let weights = step.state_mut()?.get_mut::<f32>("w").expect("it was inserted");
//!         weights.iter_mut().zip(&gradient).for_each(|(weight, slope)| *weight -= 0.1 * slope);
//!         Ok::<_, outlast::communicator::Error>(())
//!     })?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The problem
//!
//! A loop on machines that come and go has to connect and come back, let newcomers in, give them the model, take the mean over
//! whoever contributed, do a failed step again, hand out samples so that none is used twice, and save what was reached.
//! Each of these is a few lines, and written by hand they lose models: a newcomer that is first elects its empty model, a
//! member that was thrown out between a commit and its update trains on with half a step.
//!
//! # The intuition
//!
//! One step is one transaction. Before its commit nothing has happened and the step is done again; its commit makes the
//! step count, on every contributor alike; after it only local code runs. What a member does next is decided by the
//! pure [`Course`](outlast_proto::state::course::Course) from what all have heard alike.
//!
//! # The invariant
//!
//! A state is offered to others under revision n only if it is what n committed steps made of it. Between a commit and the
//! end of the program's update it is *torn*, so an error, a panic or a caller that never comes back leaves it so, and the
//! next step heals it from the others.
//!
//! # What it does not do
//!
//! It does not watch what the program does with the state outside of a step, nor whether its update gives the same bits
//! on every machine: `verify_every` finds out. It keeps no data and shuffles nothing: sample numbers are for the program to
//! map.

mod runner;
mod scribe;
mod weighing;

pub use outlast_proto::state::ledger::Ledger;
pub use runner::Runner;

use crate::communicator::{CallBuffers, Communicator, Error, Interrupt, Receipt, SyncReport, TensorMut};
use crate::state::{Revision, SharedState};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a training loop is set up. All members use the same, except for where checkpoints are.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ElasticOptions {
    min_world: Option<u32>,
    extra: Option<Vec<u8>>,
    timeout: Option<Duration>,
    verify_every: Option<NonZeroU64>,
    checkpoint: Option<(PathBuf, NonZeroU64)>,
    interrupt: Option<Interrupt>,
}

impl ElasticOptions {
    /// One member is enough, nothing is verified or saved.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fewest members with which a step is wanted. With fewer, the loop waits for newcomers.
    pub fn min_world(self, members: u32) -> Self {
        Self { min_world: Some(members), ..self }
    }

    /// Bytes of the program's that travel along with the state. A checkpoint or another member's state replaces them.
    pub fn extra(self, extra: impl Into<Vec<u8>>) -> Self {
        Self { extra: Some(extra.into()), ..self }
    }

    /// How long to wait for the others, all waits together, before a step without a commit is an error; the communicator's
    /// default otherwise. The program's own computing does not count.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Compare all members' states after every so many steps; zero is never.
    pub fn verify_every(self, steps: u64) -> Self {
        Self { verify_every: NonZeroU64::new(steps), ..self }
    }

    /// Save every so many steps to `folder/<revision>`, and begin with the newest that is whole; zero only begins with it.
    pub fn checkpoint(self, folder: impl Into<PathBuf>, every: u64) -> Self {
        let every = NonZeroU64::new(every).unwrap_or(NonZeroU64::MAX);
        Self { checkpoint: Some((folder.into(), every)), ..self }
    }

    /// What gives waits up from another thread.
    pub fn interrupt(self, interrupt: &Interrupt) -> Self {
        Self { interrupt: Some(interrupt.clone()), ..self }
    }
}

/// A training loop: a communicator, a state, and how far it has come.
#[derive(Debug)]
pub struct Elastic {
    comm: Arc<Communicator>,
    state: SharedState,
    runner: Runner,
}

impl Elastic {
    /// A loop over that state. With a checkpoint folder it begins with the newest checkpoint that is whole; a state without a
    /// revision is one that only receives. Nothing is joined before the first step.
    pub fn new(
        comm: Arc<Communicator>,
        mut state: SharedState,
        options: ElasticOptions,
    ) -> Result<Self, Error> {
        let runner = Runner::new(&comm, &mut state, options)?;
        Ok(Self { comm, state, runner })
    }

    /// Steps that were committed so far, by everybody: the revision of the state.
    pub fn number(&self) -> Revision {
        self.runner.number()
    }

    /// The state.
    pub fn state(&self) -> &SharedState {
        &self.state
    }

    /// The program's bytes that travel along.
    pub fn extra(&self) -> &[u8] {
        self.runner.extra()
    }

    /// The communicator.
    pub fn communicator(&self) -> &Arc<Communicator> {
        &self.comm
    }

    /// Which samples are used.
    pub fn ledger(&self) -> &Ledger {
        self.runner.ledger()
    }

    /// What the last sync found and did.
    pub fn last_sync(&self) -> Option<&SyncReport> {
        self.runner.last_sync()
    }

    /// How often states were made the same so far: once for everybody who came, and once for each verification.
    pub fn syncs(&self) -> u64 {
        self.runner.syncs()
    }

    /// How far this member's own checkpoints have come, and why the last one was not written, if it was not.
    pub fn saved(&mut self) -> (Option<Revision>, Option<&str>) {
        self.runner.saved()
    }

    /// One step: comes in or comes back if need be, lets newcomers in, heals, and calls `body`, which takes samples,
    /// computes, averages once, and changes the state. Returns when the step is committed and `body` is through.
    ///
    /// If the average fails because somebody was lost or this peer is out, `body` is called again, with the state and the
    /// samples that count then; what it returned is dropped. Other errors of `body` come back. After the commit every error
    /// does, and the state counts as torn: the next step heals it.
    pub fn step<T, E: From<Error>>(
        &mut self,
        mut body: impl FnMut(&mut Step<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let Self { comm, state, runner } = self;
        loop {
            runner.begin(comm, state)?;
            match body(&mut Step { comm, state, runner }) {
                Ok(value) if runner.end(state)? => return Ok(value),
                Ok(_) => {}
                Err(error) => {
                    if !runner.abandon() {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Waits until a checkpoint that is being written is on the disk. Dropping does so, too.
    pub fn close(&mut self) {
        self.runner.close();
    }
}

/// One step, while its body runs.
#[derive(Debug)]
pub struct Step<'a> {
    comm: &'a Communicator,
    state: &'a mut SharedState,
    runner: &'a mut Runner,
}

impl Step<'_> {
    /// Steps that were committed before this one.
    pub fn number(&self) -> Revision {
        self.runner.number() - u64::from(self.committed())
    }

    /// This member's place among those who take samples of this step.
    pub fn rank(&self) -> usize {
        self.runner.place(self.comm).map_or(0, |(place, _)| place)
    }

    /// How many take samples of this step. Agreed: the same on every member.
    pub fn world_size(&self) -> usize {
        self.runner.world_size()
    }

    /// The next sample numbers of this member: of all numbers from zero on, none is ever used twice, and none is left out.
    pub fn samples(&mut self, count: u64) -> Result<Vec<u64>, Error> {
        self.runner.samples(self.comm, count)
    }

    /// Which samples are used before this step; after its average, with it.
    pub fn ledger(&self) -> &Ledger {
        self.runner.ledger()
    }

    /// The state: to be read before the average, and changed after it.
    pub fn state(&self) -> &SharedState {
        self.state
    }

    /// The state, to be changed. Only once the step is committed.
    pub fn state_mut(&mut self) -> Result<&mut SharedState, Error> {
        if self.committed() {
            return Ok(self.state);
        }
        let text = "the state changes only after the average of a step: before it the step may have to be done again";
        Err(Error::InvalidArgument(text.to_owned()))
    }

    /// Replaces each tensor by `sum(weight * tensor) / sum(weight)` over the contributors. Its commit is the step's. To be
    /// called exactly once. If it fails the tensors are as they were.
    pub fn average<'t>(
        &mut self,
        tensors: impl IntoIterator<Item: Into<TensorMut<'t>>>,
        weight: f64,
    ) -> Result<Receipt, Error> {
        self.runner.average(self.comm, self.state, CallBuffers::in_place(tensors), weight)
    }

    /// The program's bytes that travel along.
    pub fn extra(&self) -> &[u8] {
        self.runner.extra()
    }

    /// Changes the program's bytes that travel along: after the average, and alike on every member.
    pub fn set_extra(&mut self, extra: impl Into<Vec<u8>>) -> Result<(), Error> {
        self.runner.set_extra(extra.into())
    }

    /// Whether the step is committed: it counts, on every contributor.
    pub fn committed(&self) -> bool {
        self.runner.is_committed()
    }
}
