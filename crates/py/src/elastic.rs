//! A training loop as Python holds it: the runner of the runtime, over Python's communicator and state.
//!
//! What is decided is decided there. Here the interpreter is let go for every wait, tensors are borrowed for an average, and
//! the runner is taken out while a call works with it, so that two threads in one step are refused and no lock is held.

use crate::arguments;
use crate::collective::Job;
use crate::communicator::{Communicator, Shared};
use crate::errors::{self, Purpose, invalid};
use crate::manners::check_process;
use crate::outcome;
use crate::state::SharedState;
use crate::visit::Visit;
use outlast::communicator::NextStep;
use outlast::elastic::{ElasticOptions, Runner};
use outlast::fork::Creator;
use outlast::sync::{lock, owned};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A training loop.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct Elastic {
    creator: Creator,
    shared: Arc<Shared>,
    state: Py<SharedState>,
    /// Gone while a call works with it.
    runner: Mutex<Option<Runner>>,
    /// When the step at hand began, and how long the program had waited in calls by then: what a body waits counts, if it
    /// fails.
    began: Mutex<(Instant, Duration)>,
}

/// Puts the runner back, even if the work panics.
struct PutBack<'a>(&'a Elastic, Option<Runner>);

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        *lock(&self.0.runner) = self.1.take();
    }
}

impl Elastic {
    fn with<R>(&self, work: impl FnOnce(&mut Runner) -> R) -> PyResult<R> {
        check_process(self.creator)?;
        let taken = lock(&self.runner).take();
        let busy = "this training loop is in use by another thread: one thread makes its steps";
        let mut runner = PutBack(self, Some(taken.ok_or_else(|| invalid(busy.to_owned()))?));
        Ok(work(runner.1.as_mut().expect("it was just put there")))
    }
}

#[pymethods]
impl Elastic {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they come by position from a documented constructor")]
    fn new(
        py: Python<'_>,
        comm: &Communicator,
        state: Py<SharedState>,
        min_world: i64,
        extra: Option<Vec<u8>>,
        timeout: Option<f64>,
        verify_every: Option<i64>,
        checkpoint: Option<PathBuf>,
        every: i64,
    ) -> PyResult<Self> {
        let visit = Visit::begin(py);
        let shared = Arc::clone(comm.shared());
        let mut options = ElasticOptions::new().min_world(arguments::members("min_world", min_world)?);
        if let Some(extra) = extra {
            options = options.extra(extra);
        }
        if let Some(timeout) = arguments::seconds("timeout", timeout)? {
            options = options.timeout(timeout);
        }
        if let Some(steps) = verify_every {
            options = options.verify_every(steps_of("verify_every", steps)?);
        }
        let every = steps_of("every", every)?;
        if let Some(folder) = checkpoint {
            options = options.checkpoint(folder, every);
        }
        let comm = shared.open()?;
        let made = state.get().with(|state| visit.away(py, || Runner::new(&comm, state, options)))?;
        let runner = made.map_err(|error| errors::of_call(py, &error, Purpose::Topology))?;
        let creator = Creator::this_process();
        Ok(Self {
            creator,
            shared,
            state,
            runner: Mutex::new(Some(runner)),
            began: Mutex::new((Instant::now(), Duration::ZERO)),
        })
    }

    /// Comes in or back, lets newcomers in, heals: whatever the next step needs. Tells the number of steps before it, this
    /// member's place among those who take samples of it, and how many they are.
    fn begin(&self, py: Python<'_>) -> PyResult<(u64, usize, usize)> {
        let visit = Visit::begin(py);
        let comm = self.shared.open()?;
        let begun = self.with(|runner| {
            let work = |state: &mut outlast::SharedState| {
                // Mostly there is nobody to wait for. Then the interpreter is kept: another thread of the program may not give
                // it back for milliseconds.
                let begun = if runner.is_ready(state) {
                    runner.begin(&comm, state)
                } else {
                    let begun = self.shared.call(py, &visit, |comm| runner.begin(comm, state))?;
                    begun.inspect(|()| self.shared.set_connected())
                };
                let place = begun.and_then(|()| runner.place(&comm));
                PyResult::Ok(place.map(|(place, crew)| (runner.number(), place, crew)))
            };
            self.state.get().with(work)
        })???;
        *lock(&self.began) = (Instant::now(), self.shared.waited());
        begun.map_err(|error| self.shared.raised(py, &error, Purpose::Topology))
    }

    /// The next sample numbers of this member.
    fn samples(&self, py: Python<'_>, count: i64) -> PyResult<Vec<u64>> {
        let count = steps_of("samples", count)?;
        let comm = self.shared.open()?;
        let taken = self.with(|runner| runner.samples(&comm, count))?;
        taken.map_err(|error| errors::of_call(py, &error, Purpose::Collective))
    }

    /// Averages tensors in place.
    fn average(&self, py: Python<'_>, tensors: Vec<Bound<'_, PyAny>>, weight: f64) -> PyResult<Py<PyAny>> {
        let visit = Visit::begin(py);
        let job = Job::in_place(&tensors)?;
        self.shared.check_flight(&job)?;
        let ending = self.with(|runner| {
            let work = |state: &mut outlast::SharedState| {
                let average =
                    |comm: &outlast::Communicator| runner.average(comm, state, job.buffers(), weight);
                self.shared.call(py, &visit, average)
            };
            self.state.get().with(work)
        })???;
        drop(job);
        self.shared.give(py, &ending.map(Some).map_err(Arc::new))
    }

    /// The block is through. Tells whether its step is committed.
    fn end(&self, py: Python<'_>) -> PyResult<bool> {
        let visit = Visit::begin(py);
        let ended = self.with(|runner| {
            let work = |state: &mut outlast::SharedState| {
                // The interpreter is kept for what takes a moment, as in `begin`.
                if runner.will_save() { visit.away(py, || runner.end(state)) } else { runner.end(state) }
            };
            self.state.get().with(work)
        })??;
        ended.map_err(|error| errors::of_call(py, &error, Purpose::Collective))
    }

    /// The block failed: because a call on this communicator asks for it to be done again, or to come back; or for another
    /// reason. Tells whether the step is to be done again; not if the loop's time is up, all that its body waited included.
    fn abandon(&self, action: Option<&str>) -> PyResult<bool> {
        let action = match action {
            Some("retry") => NextStep::Retry,
            Some("rejoin") => NextStep::Rejoin,
            _ => NextStep::Fatal,
        };
        let (began, before) = *lock(&self.began);
        // A call of another thread may have begun long before this step, and several wait at once.
        let waited = self.shared.waited().saturating_sub(before).min(began.elapsed());
        self.with(|runner| runner.abandon_for(action, waited))
    }

    /// Steps that were committed so far.
    #[getter]
    fn number(&self) -> PyResult<u64> {
        self.with(|runner| runner.number())
    }

    /// Whether the step at hand is.
    #[getter]
    fn committed(&self) -> PyResult<bool> {
        self.with(|runner| runner.is_committed())
    }

    /// How many samples were used so far, and how many below the last of them wait to be handed out again.
    #[getter]
    fn samples_used(&self) -> PyResult<(u64, u64)> {
        self.with(|runner| (runner.ledger().consumed(), runner.ledger().open()))
    }

    #[getter]
    fn extra<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let extra = self.with(|runner| runner.extra().to_vec())?;
        Ok(PyBytes::new(py, &extra))
    }

    #[setter]
    fn set_extra(&self, py: Python<'_>, extra: Vec<u8>) -> PyResult<()> {
        let changed = self.with(|runner| runner.set_extra(extra))?;
        changed.map_err(|error| errors::of_call(py, &error, Purpose::Collective))
    }

    /// How many syncs there were, and what the last one found.
    fn syncs(&self, py: Python<'_>) -> PyResult<(u64, Option<Py<PyAny>>)> {
        let (count, report) = self.with(|runner| (runner.syncs(), runner.last_sync().cloned()))?;
        let report = report.map(|report| outcome::sync_report(py, &report)).transpose()?;
        Ok((count, report))
    }

    /// The newest checkpoint that this member wrote, and why the last one was not written.
    fn saved(&self) -> PyResult<(Option<u64>, Option<String>)> {
        self.with(|runner| {
            let (saved, failure) = runner.saved();
            (saved, failure.map(str::to_owned))
        })
    }

    /// Waits for a checkpoint that is being written.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let visit = Visit::begin(py);
        self.with(|runner| visit.away(py, || runner.close()))
    }
}

impl Drop for Elastic {
    fn drop(&mut self) {
        let runner = owned(&mut self.runner).take();
        // In a forked child nothing of ours may be touched: not even to let it go.
        if self.creator.check().is_err() {
            let _ = ManuallyDrop::new(runner);
        }
    }
}

fn steps_of(name: &str, count: i64) -> PyResult<u64> {
    u64::try_from(count).map_err(|_| invalid(format!("{name}={count}: it is a whole number from 0 on")))
}
