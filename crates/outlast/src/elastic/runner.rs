//! Carries out what a training's course says: for a loop whose state is held elsewhere.
//!
//! [`Elastic`](super::Elastic) holds communicator, state and this. A binding to another language holds them in its own
//! objects and calls, in this order: `begin`; `samples` any number of times; `average` once; then `end`, if the body
//! of the step is through, or `abandon`, if it failed. Whoever calls `begin` without having ended the last step has abandoned it.

use super::ElasticOptions;
use super::scribe::Scribe;
use super::weighing;
use crate::communicator::{
    Call, CallBuffers, Communicator, Error, Interrupt, NextStep, OpKind, Receipt, SyncOptions, SyncReport,
    TensorMut,
};
use crate::state::{CheckpointError, NoDonor, Revision, SharedState};
use crate::watch;
use outlast_proto::id::PeerId;
use outlast_proto::limits::STATE_EXTRA_BYTES_MAX;
use outlast_proto::session::{CallError, OutReason};
use outlast_proto::state::chronicle::{Chronicle, Told};
use outlast_proto::state::course::{Course, Failure, Move};
use outlast_proto::state::ledger::Ledger;
use outlast_proto::wire::control::KickReason;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// What the ledger of samples may need of the extra bytes.
const LEDGER_BYTES: usize = 2 << 20;

/// A pause looks up this often.
const BEAT: Duration = Duration::from_millis(20);

/// Where a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between two steps.
    Idle,
    /// The body runs, and took so many samples.
    Open { taken: u64 },
    /// The average failed. Whether the step is to be done again, or the program is told.
    Failed { again: bool },
    /// The average is committed, and the state is torn until the body is through. Whether we were the first contributor.
    Committed { first: bool },
    /// It is committed, and there was no mean: the state stays what it was.
    Void,
}

/// A training loop without its state.
#[derive(Debug)]
pub struct Runner {
    course: Course,
    chronicle: Chronicle,
    phase: Phase,
    min_world: NonZeroU32,
    timeout: Duration,
    /// How long we have waited for others since the last commit.
    waited: Duration,
    interrupt: Interrupt,
    scribe: Option<Scribe>,
    /// The chronicle of the step before, as it was written: memory for the next.
    written: Vec<u8>,
    /// Gradients that were multiplied by their weight: memory for the next step, for as long as there is need of it.
    copies: Vec<Vec<u8>>,
    syncs: u64,
    last_sync: Option<SyncReport>,
}

impl Runner {
    /// A loop that begins with what `state` holds, or with the newest checkpoint, which is loaded into it.
    pub fn new(comm: &Communicator, state: &mut SharedState, options: ElasticOptions) -> Result<Self, Error> {
        let ElasticOptions { min_world, extra, timeout, verify_every, checkpoint, interrupt } = options;
        let invalid = |text: String| Error::InvalidArgument(text);
        let min_world = NonZeroU32::new(min_world.unwrap_or(1))
            .ok_or_else(|| invalid("min_world=0: a step needs at least one member".to_owned()))?;
        // A state that was trained before brings its own bytes, as a checkpoint does, and which samples it has used.
        if let Some(extra) = extra.filter(|_| !Chronicle::is_in(state.extra())) {
            state.set_extra(extra).map_err(|error| invalid(error.to_string()))?;
        }
        let scribe = match checkpoint {
            Some((folder, every)) => {
                match state.load(&folder) {
                    Ok(path) => tracing::info!(path = %path.display(), "a checkpoint was loaded"),
                    Err(CheckpointError::Nothing(_)) => {}
                    Err(error) => return Err(error.into()),
                }
                Some(Scribe::new(folder, every))
            }
            None => None,
        };
        let chronicle = Self::read(state)?;
        check_extra(&chronicle.extra)?;
        let mut written = Vec::new();
        chronicle.encode_to(&mut written);
        state.swap_extra(&mut written).map_err(|error| invalid(error.to_string()))?;
        let number = state.revision().unwrap_or(0);
        Ok(Self {
            course: Course::new(number, verify_every, comm.is_in()),
            chronicle,
            phase: Phase::Idle,
            min_world,
            timeout: timeout.unwrap_or_else(|| comm.default_timeout()),
            waited: Duration::ZERO,
            interrupt: interrupt.unwrap_or_default(),
            scribe,
            written,
            copies: Vec::new(),
            syncs: 0,
            last_sync: None,
        })
    }

    fn read(state: &SharedState) -> Result<Chronicle, Error> {
        let damaged =
            |error| Error::InvalidArgument(format!("the extra bytes of this state are damaged: {error}"));
        Chronicle::of(state.extra()).map_err(damaged)
    }

    /// Steps that were committed so far.
    pub fn number(&self) -> Revision {
        self.course.number()
    }

    /// Whether the average of this step is committed.
    pub fn is_committed(&self) -> bool {
        matches!(self.phase, Phase::Committed { .. } | Phase::Void)
    }

    /// Which samples are used.
    pub fn ledger(&self) -> &Ledger {
        &self.chronicle.ledger
    }

    /// What the last sync found and did.
    pub fn last_sync(&self) -> Option<&SyncReport> {
        self.last_sync.as_ref()
    }

    /// How many syncs there were.
    pub fn syncs(&self) -> u64 {
        self.syncs
    }

    /// The newest checkpoint that this member wrote, and why the last one was not written.
    pub fn saved(&mut self) -> (Option<Revision>, Option<&str>) {
        self.scribe.as_mut().map_or((None, None), Scribe::saved)
    }

    /// The program's bytes.
    pub fn extra(&self) -> &[u8] {
        &self.chronicle.extra
    }

    /// Changes the program's bytes, from this step's revision on.
    pub fn set_extra(&mut self, extra: Vec<u8>) -> Result<(), Error> {
        if !matches!(self.phase, Phase::Committed { .. }) {
            let text = "extra bytes change with the state: inside a step, after its average";
            return Err(Error::InvalidArgument(text.to_owned()));
        }
        check_extra(&extra)?;
        self.chronicle.extra = extra;
        Ok(())
    }

    /// Whether the next step can begin at once: there is nobody to wait for.
    pub fn is_ready(&self, state: &SharedState) -> bool {
        self.course.next() == Move::Step && !state.is_torn()
    }

    /// Does whatever must be done before the next step: comes in, lets others in, heals.
    pub fn begin(&mut self, comm: &Communicator, state: &mut SharedState) -> Result<(), Error> {
        self.phase = Phase::Idle;
        // Where a sync comes next anyway, that one heals it.
        if state.is_torn() && self.course.next() == Move::Step {
            self.course.handle_torn();
        }
        loop {
            let at = self.course.next();
            if at == Move::Step {
                self.phase = Phase::Open { taken: 0 };
                return Ok(());
            }
            let began = Instant::now();
            let outcome = self.pause().and_then(|()| self.go(at, comm, state));
            self.waited += began.elapsed();
            if let Err(error) = outcome
                && !self.failed(at, &error)
            {
                return Err(error);
            }
        }
    }

    /// Notes a failure. False if the program must be told.
    fn failed(&mut self, at: Move, error: &Error) -> bool {
        let failure = failure(at, error);
        self.course.handle_failed(at, failure);
        if failure == Failure::Passed {
            self.waited = Duration::ZERO;
            return false;
        }
        let again = self.has_time();
        if again {
            tracing::warn!(step = self.number(), why = %error, next = ?self.course.next(), "a step is begun again");
        }
        again
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.waited)
    }

    fn go(&mut self, at: Move, comm: &Communicator, state: &mut SharedState) -> Result<(), Error> {
        let (left, min_world) = (self.left(), self.min_world.get());
        match at {
            Move::Connect => {
                if comm.is_in() {
                    comm.leave_for_now();
                }
                comm.connect_unless(min_world, left, &self.interrupt)?;
                self.course.handle_connected();
            }
            Move::Admit => {
                comm.update_topology_unless(min_world, left, &self.interrupt)?;
                self.course.handle_admitted();
            }
            Move::Sync => {
                let options = SyncOptions::new().timeout(left).interrupt(&self.interrupt);
                let report = comm.sync_state(state, &options)?;
                self.synced(comm, state, report)?;
            }
            Move::Step => {}
        }
        Ok(())
    }

    fn synced(&mut self, comm: &Communicator, state: &SharedState, report: SyncReport) -> Result<(), Error> {
        if !report.members.contains(&comm.peer_id()) {
            let text = "a training loop is for groups of at most 4,096 members: split the group";
            return Err(Error::InvalidArgument(text.to_owned()));
        }
        if !report.diverged.is_empty() {
            let peers: Vec<_> = report.diverged.iter().map(PeerId::short).collect();
            tracing::warn!(revision = report.revision, ?peers, "replicas had diverged and were healed");
        }
        self.chronicle = Self::read(state)?;
        self.course.handle_synced(report.revision, &report.members);
        self.syncs += 1;
        self.last_sync = Some(report);
        Ok(())
    }

    /// Waits before the next try, and answers an interrupt meanwhile.
    fn pause(&self) -> Result<(), Error> {
        let Some(pause) = self.course.pause() else { return Ok(()) };
        let until = Instant::now() + pause.min(self.left());
        let waiting = watch::Waiting::begin();
        loop {
            if waiting.is_given_up() || self.interrupt.is_triggered() {
                return Err(CallError::Cancelled.into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(watch::patience(left.min(BEAT)));
        }
    }

    /// Our place among those who take samples, and how many they are.
    pub fn place(&self, comm: &Communicator) -> Result<(usize, usize), Error> {
        let (crew, me) = (self.course.crew(), comm.peer_id());
        let place = crew.iter().position(|peer| *peer == me);
        place.map(|place| (place, crew.len())).ok_or(Error::Bug("a member that is not among the crew"))
    }

    /// How many take samples.
    pub fn world_size(&self) -> usize {
        self.course.crew().len()
    }

    /// The next sample numbers of this member.
    pub fn samples(&mut self, comm: &Communicator, count: u64) -> Result<Vec<u64>, Error> {
        let Phase::Open { taken } = self.phase else { return Err(self.not_open("samples are taken")) };
        let (place, crew) = self.place(comm)?;
        let after = taken.saturating_add(count);
        Chronicle::check_samples(after, crew).map_err(|error| Error::InvalidArgument(error.to_string()))?;
        self.phase = Phase::Open { taken: after };
        Ok(self.chronicle.ledger.samples(place, crew, taken, count))
    }

    fn not_open(&self, what: &str) -> Error {
        let text = match self.phase {
            Phase::Idle => "inside a step",
            _ => "before the average of a step, and it averages once",
        };
        Error::InvalidArgument(format!("{what} {text}"))
    }

    /// Averages the tensors, in place, in the transaction that commits the step.
    pub fn average(
        &mut self,
        comm: &Communicator,
        state: &mut SharedState,
        buffers: CallBuffers<'_>,
        weight: f64,
    ) -> Result<Receipt, Error> {
        let Phase::Open { taken } = self.phase else { return Err(self.not_open("tensors are averaged")) };
        let invalid = |error: &dyn std::fmt::Display| Error::InvalidArgument(error.to_string());
        let scale = self.chronicle.scale(weight).map_err(|error| invalid(&error))?;
        buffers
            .input_bytes()
            .enumerate()
            .try_for_each(|(at, (data_type, _))| weighing::check(data_type, at))?;
        let (place, crew) = self.place(comm)?;
        let began = Instant::now();
        let tally = Chronicle::tally(scale, taken, place, crew);
        let outcome = self.reduce(comm, buffers, scale, tally, crew);
        self.waited += began.elapsed();
        let (receipt, told) = match outcome {
            Ok(done) => done,
            Err(error) => {
                let again = self.failed(Move::Step, &error);
                self.phase = Phase::Failed { again };
                return Err(error);
            }
        };
        self.waited = Duration::ZERO;
        self.chronicle.commit(&told);
        self.course.handle_committed(&receipt.contributors, receipt.pending);
        comm.note_revision(self.number());
        if let Some(void) = told.void {
            // Nobody has a mean, so nobody changes anything: the state of before is the state of this step.
            self.phase = Phase::Void;
            self.settle(state)?;
            return Err(Error::InvalidArgument(void.to_string()));
        }
        self.phase = Phase::Committed { first: receipt.contributors.first() == Some(&comm.peer_id()) };
        state.begin_change();
        Ok(receipt)
    }

    fn reduce(
        &mut self,
        comm: &Communicator,
        buffers: CallBuffers<'_>,
        scale: f64,
        mut tally: Vec<f64>,
        crew: usize,
    ) -> Result<(Receipt, Told), Error> {
        let is_usual = (scale - 1.0).abs() < f64::EPSILON;
        self.copies.resize_with(if is_usual { 0 } else { buffers.input_bytes().count() }, Vec::new);
        for ((data_type, bytes), copy) in buffers.input_bytes().zip(&mut self.copies) {
            weighing::copy_multiplied(data_type, bytes, scale, copy);
        }
        // Under a name of its own: borrowed for as long as the copies and the tally last.
        let mut buffers: CallBuffers<'_> = buffers;
        buffers.read_from(&self.copies);
        buffers.push_in_place(TensorMut::from(&mut tally[..]));
        let call = Call::avg().step(self.number()).min_world(self.min_world.get()).timeout(self.left());
        let call = call.interrupt(&self.interrupt);
        let receipt = comm.collective_on(OpKind::AllReduceMany, None, &mut buffers, &call)?;
        let contributors = receipt.contributors.len();
        let tally: Vec<f64> = {
            let (_, bytes) =
                buffers.output_bytes().last().ok_or(Error::Bug("a reduction without its tally"))?;
            let (elements, _) = bytes.as_chunks();
            elements.iter().map(|element| f64::from_ne_bytes(*element)).collect()
        };
        let told = Chronicle::told(&tally, crew, contributors);
        if let Some(factor) = told.factor {
            let tensors = buffers.input_bytes().count() - 1;
            for (data_type, bytes) in buffers.output_bytes().take(tensors) {
                weighing::multiply(data_type, bytes, factor);
            }
        }
        Ok((receipt, told))
    }

    /// The state is what this many steps made of it.
    fn settle(&mut self, state: &mut SharedState) -> Result<(), Error> {
        self.chronicle.encode_to(&mut self.written);
        state.swap_extra(&mut self.written).map_err(|error| Error::InvalidArgument(error.to_string()))?;
        state.set_agreed(self.number());
        Ok(())
    }

    /// Whether the end of this step takes a copy of the whole state, to save it.
    pub fn will_save(&self) -> bool {
        let is_due = |scribe: &Scribe| scribe.is_due(self.number());
        self.phase == Phase::Committed { first: true } && self.scribe.as_ref().is_some_and(is_due)
    }

    /// The body of the step is through. Tells whether the step is committed; if not it is to be done again.
    pub fn end(&mut self, state: &mut SharedState) -> Result<bool, Error> {
        let saves = self.will_save();
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Committed { .. } => {
                self.settle(state)?;
                let number = self.number();
                if let Some(scribe) = self.scribe.as_mut().filter(|_| saves) {
                    scribe.save(number, state);
                }
                Ok(true)
            }
            Phase::Void => Ok(true),
            // The program has dealt with the error itself.
            Phase::Failed { .. } => Ok(false),
            Phase::Idle | Phase::Open { .. } => {
                let text = "a step averages exactly once: the others wait for it";
                Err(Error::InvalidArgument(text.to_owned()))
            }
        }
    }

    /// The body of the step failed. Tells whether that is because its average did, and the step is to be done again; if
    /// not the program is told. A committed step that was not ended leaves a torn state.
    pub fn abandon(&mut self) -> bool {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        if matches!(phase, Phase::Committed { .. }) {
            tracing::warn!(step = self.number(), "a step failed after its commit: its state is torn");
        }
        phase == Phase::Failed { again: true }
    }

    /// Another call on the communicator failed in the body of a step that is not committed, and the body has waited for the
    /// others for so long. Tells whether the step is to be done again; not if its time is up.
    pub fn abandon_for(&mut self, action: NextStep, waited: Duration) -> bool {
        let failure = match action {
            NextStep::Fatal => {
                self.abandon();
                return false;
            }
            NextStep::Retry => Failure::Again,
            NextStep::Rejoin => Failure::Out,
        };
        if !matches!(self.phase, Phase::Open { .. }) {
            return self.abandon();
        }
        self.phase = Phase::Idle;
        self.course.handle_failed(Move::Step, failure);
        self.waited += waited;
        self.has_time()
    }

    /// Whether a step that failed may be begun again by itself. Whoever goes on after an error has the whole time again.
    fn has_time(&mut self) -> bool {
        let has_time = !self.left().is_zero();
        if !has_time {
            self.waited = Duration::ZERO;
        }
        has_time
    }

    /// Waits until a checkpoint that is being written is on the disk.
    pub fn close(&mut self) {
        if let Some(scribe) = &mut self.scribe {
            scribe.wait();
        }
    }
}

fn check_extra(extra: &[u8]) -> Result<(), Error> {
    let most = STATE_EXTRA_BYTES_MAX - LEDGER_BYTES;
    if extra.len() <= most {
        return Ok(());
    }
    let text = format!(
        "{} extra bytes; beside the ledger of samples there is room for {most}: make it a tensor",
        extra.len()
    );
    Err(Error::InvalidArgument(text))
}

/// What an error means for the course.
fn failure(at: Move, error: &Error) -> Failure {
    match error {
        _ if error.cause() == Some(&CallError::Cancelled) => Failure::Passed,
        _ if matches!(error.cause(), Some(CallError::TooFewPeers { .. })) => Failure::TooFew,
        Error::NoDonor(NoDonor::OthersOutside) => Failure::Outside,
        // Even where the program itself has left: a step comes back.
        _ if matches!(error.cause(), Some(CallError::Out(reason)) if !is_refused(reason)) => Failure::Out,
        _ if error.action() == NextStep::Fatal => Failure::Passed,
        Error::SyncFailed { .. } => Failure::Again,
        Error::Call(_) if matches!(at, Move::Sync | Move::Admit) => {
            error.cause().map_or(Failure::Out, |cause| Failure::of_vote(at, cause))
        }
        _ if matches!(at, Move::Sync | Move::Admit) => Failure::Out,
        _ => Failure::Again,
    }
}

/// Whether coming back would be refused in the same way.
fn is_refused(reason: &OutReason) -> bool {
    matches!(reason, OutReason::Kicked(KickReason::Encryption, _))
}
