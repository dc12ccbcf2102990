//! The communicator as Python holds it.
//!
//! Arguments come by position from `outlast.Communicator`, which names and documents them. A call borrows the
//! tensors' memory, checks what only this side can see (tags and memory in flight, who drives whom), and lets
//! the runtime do the work with the interpreter let go.
//!
//! The program sees rank, world size and epoch change only inside a call or a wait (rule 3), even while
//! operations end in the background. So what it sees is a snapshot, taken anew when one of its calls returns.

use crate::arguments;
use crate::buffer::Tensor;
use crate::collective::{Job, Options, Transfer};
use crate::errors::{self, Purpose, invalid, not_yet};
use crate::in_flight::{Busy, Ending, Flight, InFlight, Outcome, Place};
use crate::manners::{self, LOOK_EVERY, blocking, check_process};
use crate::outcome::{self, Contributors};
use crate::registry;
use crate::state::{self, SharedState};
use crate::visit::Visit;
use outlast::communicator::{Interrupt, SeenGroup};
use outlast::fork::Creator;
use outlast::membership::RunId;
use outlast::sync::{lock, owned};
use outlast::workers::{Lost, Workers};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// How long a question for events waits if it is not told.
const EVENTS: Duration = Duration::from_mins(1);

/// Which threads have made blocking calls.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Drivers {
    #[default]
    Nobody,
    One(ThreadId),
    Several,
}

/// What a communicator, its handles and the registry share.
pub(crate) struct Shared {
    creator: Creator,
    /// The coordinator and the run: communicators of the same run vote together.
    run: (String, RunId),
    /// Gone once it is closed.
    comm: Mutex<Option<Arc<outlast::Communicator>>>,
    /// What the program has seen of the group.
    seen: Mutex<Arc<SeenGroup>>,
    contributors: Mutex<Contributors>,
    pub(crate) in_flight: InFlight,
    workers: Arc<Workers>,
    drivers: Mutex<Drivers>,
    connected: AtomicBool,
    /// Blocking calls that are under way.
    blocked: AtomicUsize,
    /// Nanoseconds that the program has spent in blocking calls.
    waited: AtomicU64,
}

impl Shared {
    pub(crate) fn open(&self) -> PyResult<Arc<outlast::Communicator>> {
        check_process(self.creator)?;
        let comm = lock(&self.comm).clone();
        comm.ok_or_else(|| invalid("this communicator is closed; make a new one".to_owned()))
    }

    /// An error unless this peer is in a run: the one that a collective would raise.
    fn in_a_run(&self, py: Python<'_>) -> PyResult<Arc<outlast::Communicator>> {
        let comm = self.open()?;
        if self.connected.load(Ordering::SeqCst) {
            return Ok(comm);
        }
        match comm.standing() {
            Err(error) => Err(errors::of_call(py, &error, Purpose::Collective)),
            Ok(()) => Err(invalid("not connected yet: another thread is in connect()".to_owned())),
        }
    }

    /// Says goodbye; the object can connect again. `for_good`: its training is over.
    pub(crate) fn leave(&self, for_good: bool) {
        self.connected.store(false, Ordering::SeqCst);
        let comm = lock(&self.comm).clone();
        if let Some(comm) = comm {
            say_goodbye(&comm, for_good);
        }
    }

    /// Whether a thread of the program waits in a call.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::SeqCst) > 0
    }

    /// How long the program has waited in calls so far, all of them together.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    /// Refuses a call by the only thread that drives another communicator of the same run: that one votes on
    /// nothing while this one waits for its vote.
    fn check_driver(self: &Arc<Self>) -> PyResult<()> {
        let me = thread::current().id();
        let mine = *lock(&self.drivers);
        let alone = |drivers: Drivers| drivers == Drivers::One(me);
        let stuck = |other: &Arc<Self>| {
            other.run == self.run
                && other.connected.load(Ordering::SeqCst)
                && !other.is_blocked()
                && alone(*lock(&other.drivers))
        };
        if (mine == Drivers::Nobody || alone(mine)) && registry::others(self).iter().any(stuck) {
            let text = format!(
                "this thread drives another communicator of run {}: each would wait for the other; give each \
                 communicator a thread of its own, or leave() the other first",
                self.run.1
            );
            return Err(invalid(text));
        }
        *lock(&self.drivers) = match mine {
            Drivers::Nobody => Drivers::One(me),
            Drivers::One(other) if other != me => Drivers::Several,
            known => known,
        };
        Ok(())
    }

    /// A blocking call of the program.
    pub(crate) fn call<R: Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        visit: &Visit,
        work: impl FnOnce(&outlast::Communicator) -> R + Send,
    ) -> PyResult<R> {
        self.call_until(py, visit, None, work)
    }

    /// The same, given up as soon as `stop`, a function of the program's, says so.
    fn call_until<R: Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        visit: &Visit,
        stop: Option<Py<PyAny>>,
        work: impl FnOnce(&outlast::Communicator) -> R + Send,
    ) -> PyResult<R> {
        let comm = self.open()?;
        self.call_open(py, visit, stop, &comm, || work(&comm))
    }

    /// The same on a communicator that is known to be open.
    fn call_open<R: Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        visit: &Visit,
        stop: Option<Py<PyAny>>,
        comm: &outlast::Communicator,
        work: impl FnOnce() -> R + Send,
    ) -> PyResult<R> {
        self.check_driver()?;
        drop((self.in_flight.reap(), registry::reap()));
        let blocked = Blocked::new(self);
        let result = blocking(py, visit, stop, work);
        drop(blocked);
        self.look(comm);
        result
    }

    /// What the program has seen of the group. A function of its own, so that the lock is let go before anything of
    /// Python's runs: that may let another thread of the program run, which would wait for the lock with the
    /// interpreter in its hands.
    fn seen(&self) -> Arc<SeenGroup> {
        Arc::clone(&lock(&self.seen))
    }

    /// The program may see now what has changed.
    fn look(&self, comm: &outlast::Communicator) {
        *lock(&self.seen) = comm.seen();
    }

    pub(crate) fn give(&self, py: Python<'_>, ending: &Ending) -> PyResult<Py<PyAny>> {
        match ending {
            Ok(None) => Ok(py.None()),
            Ok(Some(receipt)) => {
                // Taken while it is used, and put back: no lock of ours is held while Python runs.
                let mut known = std::mem::take(&mut *lock(&self.contributors));
                let made = outcome::receipt(py, receipt, &mut known);
                let replaced = std::mem::replace(&mut *lock(&self.contributors), known);
                drop(replaced);
                made
            }
            Err(error) => Err(self.raised(py, error, Purpose::Collective)),
        }
    }

    /// The exception for an error of a call on this communicator. It says whose it is, for a training loop that does a step
    /// again after its own errors and no others.
    pub(crate) fn raised(
        &self,
        py: Python<'_>,
        error: &outlast::communicator::Error,
        purpose: Purpose,
    ) -> PyErr {
        let raised = errors::of_call(py, error, purpose);
        self.note(error);
        let me = lock(&self.comm).as_ref().map(|comm| comm.peer_id().to_string());
        let _ = raised.value(py).setattr("_peer", me);
        raised
    }

    /// It is in a run.
    pub(crate) fn set_connected(&self) {
        self.connected.store(true, Ordering::SeqCst);
    }

    /// Refuses memory and tags that are in flight.
    pub(crate) fn check_flight(&self, job: &Job) -> PyResult<()> {
        self.in_flight.check(Some(job.place()), job.tensors()).map_err(|busy| self.busy(&busy))
    }

    /// Remembers whether an error means that this peer is out.
    fn note(&self, error: &outlast::communicator::Error) {
        if error.action() == outlast::communicator::NextStep::Rejoin {
            self.connected.store(false, Ordering::SeqCst);
        }
    }

    /// Sends work off to a thread, with the memory that it holds.
    fn fly(
        self: &Arc<Self>,
        place: Option<Place>,
        tensors: Vec<Tensor>,
        interrupt: Interrupt,
        work: impl FnOnce() -> Ending + Send + 'static,
    ) -> Handle {
        let outcome = Arc::new(Outcome::default());
        let tag = place.as_ref().map(|place| place.1);
        self.in_flight.add(Flight { place, outcome: Arc::clone(&outcome), tensors });
        self.workers.run(&outcome, work, |lost| Err(Arc::new(of_lost(lost))));
        Handle { shared: Arc::clone(self), outcome, interrupt, tag }
    }

    fn busy(&self, busy: &Busy) -> PyErr {
        invalid(match busy {
            Busy::Tag(tag) => {
                format!("a collective under tag {tag} is in flight: wait for it, or use another tag")
            }
            Busy::Memory(Some(tag)) => {
                format!("some of this memory is in use by the collective under tag {tag}: wait for it")
            }
            Busy::Memory(None) => "some of this memory is in use by a transfer: wait for it".to_owned(),
        })
    }

    fn no_flights(&self) -> PyResult<()> {
        let tags = self.in_flight.tags();
        if tags.is_empty() {
            return Ok(());
        }
        Err(invalid(format!("collectives under tags {tags:?} are in flight: wait() for their handles first")))
    }
}

/// Counts a thread that waits in a call, for as long as it lives, and its time: a handler that panics ends a call too.
struct Blocked<'a>(&'a Shared, Instant);

impl<'a> Blocked<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.blocked.fetch_add(1, Ordering::SeqCst);
        Self(shared, Instant::now())
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.blocked.fetch_sub(1, Ordering::SeqCst);
        self.0.waited.fetch_add(self.1.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// What a program is told of a collective in the background that has no result of its own.
fn of_lost(lost: Lost) -> outlast::communicator::Error {
    use outlast::communicator::Error;
    match lost {
        Lost::NoThread(error) => Error::Start(error),
        _ => Error::Bug("the thread of a collective panicked"),
    }
}

fn say_goodbye(comm: &outlast::Communicator, for_good: bool) {
    if for_good { comm.leave() } else { comm.leave_for_now() }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let comm = ManuallyDrop::new(owned(&mut self.comm).take());
        let flights = ManuallyDrop::new(self.in_flight.take_all_unshared());
        // In a forked child nothing of ours may be touched: not even to let it go.
        if self.creator.check().is_err() {
            return;
        }
        self.workers.end();
        registry::adopt(ManuallyDrop::into_inner(flights));
        if let Some(comm) = ManuallyDrop::into_inner(comm) {
            registry::let_go(comm);
        }
    }
}

/// A peer's place in a run.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct Communicator(Arc<Shared>);

impl Communicator {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

#[pymethods]
impl Communicator {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they come by position from a documented constructor")]
    fn new(
        py: Python<'_>,
        coordinator: String,
        run_id: &str,
        group: i64,
        secret: Option<&str>,
        name: Option<String>,
        listen: &str,
        advertise: Option<&str>,
        preset: &str,
        stall_budget: Option<f64>,
        dead_after: Option<f64>,
        control_lost_after: Option<f64>,
        timeout: Option<f64>,
        encryption: &str,
        accept_secret: Option<&str>,
        tls: Option<arguments::TlsFiles>,
        site: Option<String>,
    ) -> PyResult<Self> {
        let visit = Visit::begin(py);
        let run = arguments::run_id(run_id)?;
        arguments::coordinator(&coordinator)?;
        let mut builder = outlast::Communicator::builder()
            .coordinator(&coordinator)
            .run_id(run.clone())
            .group(arguments::group(group)?)
            .listen(arguments::address(py, &visit, "listen", listen)?)
            .preset(arguments::preset(preset)?)
            .encryption(arguments::encryption(encryption)?);
        if let Some(secret) = secret {
            builder = builder.secret(arguments::secret(secret)?);
        }
        if let Some(secret) = accept_secret {
            builder = builder.accept_secret(arguments::secret(secret)?);
        }
        if let Some(files) = tls {
            builder = builder.tls(arguments::tls(&files)?);
        }
        if let Some(name) = name {
            builder = builder.name(name);
        }
        if let Some(site) = site {
            builder = builder.site(site);
        }
        if let Some(address) = advertise {
            builder = builder.advertise(arguments::address(py, &visit, "advertise", address)?);
        }
        if let Some(budget) = arguments::seconds("stall_budget", stall_budget)? {
            builder = builder.stall_budget(budget);
        }
        if let Some(silence) = arguments::seconds("dead_after", dead_after)? {
            builder = builder.dead_after(silence);
        }
        if let Some(time) = arguments::seconds("control_lost_after", control_lost_after)? {
            builder = builder.control_lost_after(time);
        }
        if let Some(timeout) = arguments::seconds("timeout", timeout)? {
            builder = builder.timeout(timeout);
        }
        let comm = visit.away(py, || builder.start());
        let comm = comm.map_err(|error| errors::of_call(py, &error, Purpose::Topology))?;
        let shared = Arc::new(Shared {
            creator: Creator::this_process(),
            run: (coordinator, run),
            seen: Mutex::new(comm.seen()),
            comm: Mutex::new(Some(Arc::new(comm))),
            contributors: Mutex::default(),
            in_flight: InFlight::default(),
            workers: Arc::default(),
            drivers: Mutex::default(),
            connected: AtomicBool::new(false),
            blocked: AtomicUsize::new(0),
            waited: AtomicU64::new(0),
        });
        registry::add(&shared);
        Ok(Self(shared))
    }

    fn connect(
        &self,
        py: Python<'_>,
        min_world: i64,
        timeout: Option<f64>,
        stop: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let visit = Visit::begin(py);
        let min_world = arguments::members("min_world", min_world)?;
        let timeout = arguments::seconds("timeout", timeout)?;
        let joined = self.0.call_until(py, &visit, stop, |comm| match timeout {
            Some(timeout) => comm.connect_within(min_world, timeout),
            None => comm.connect(min_world),
        })?;
        let change = joined.map_err(|error| self.0.raised(py, &error, Purpose::Topology))?;
        self.0.set_connected();
        outcome::topology_change(py, &change)
    }

    fn update_topology(
        &self,
        py: Python<'_>,
        min_world: i64,
        timeout: Option<f64>,
        stop: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let visit = Visit::begin(py);
        let min_world = arguments::members("min_world", min_world)?;
        let timeout = arguments::seconds("timeout", timeout)?;
        check_process(self.0.creator)?;
        self.0.no_flights()?;
        let changed = self.0.call_until(py, &visit, stop, |comm| match timeout {
            Some(timeout) => comm.update_topology_within(min_world, timeout),
            None => comm.update_topology(min_world),
        })?;
        let change = changed.map_err(|error| self.0.raised(py, &error, Purpose::Topology))?;
        outcome::topology_change(py, &change)
    }

    fn optimize_topology(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let visit = Visit::begin(py);
        let timeout = arguments::seconds("timeout", timeout)?;
        check_process(self.0.creator)?;
        self.0.no_flights()?;
        let optimised = self.0.call(py, &visit, |comm| comm.optimize_topology(timeout))?;
        let report = optimised.map_err(|error| {
            self.0.note(&error);
            errors::of_call(py, &error, Purpose::Topology)
        })?;
        outcome::topology_report(py, &report)
    }

    /// A collective: its kind, the tensors that it reads, those that it writes, and the options that all take.
    fn collective(
        &self,
        py: Python<'_>,
        kind: &str,
        inputs: Vec<Bound<'_, PyAny>>,
        outputs: Option<Vec<Bound<'_, PyAny>>>,
        options: &Bound<'_, PyTuple>,
    ) -> PyResult<Py<PyAny>> {
        let visit = Visit::begin(py);
        let comm = self.0.open()?;
        let job = Job::new(kind, &inputs, outputs.as_deref(), Options::new(options)?, &self.0.seen())?;
        self.0.check_flight(&job)?;
        let ending =
            self.0.call_open(py, &visit, None, &comm, || job.perform(&comm).map(Some).map_err(Arc::new))?;
        drop(job);
        self.0.give(py, &ending)
    }

    /// Makes one collective that often without coming back to Python in between, and returns how long each took:
    /// what the binding costs is the difference (`bench/python_cost.py`).
    fn repeated(
        &self,
        py: Python<'_>,
        kind: &str,
        inputs: Vec<Bound<'_, PyAny>>,
        options: &Bound<'_, PyTuple>,
        times: usize,
    ) -> PyResult<Vec<f64>> {
        let visit = Visit::begin(py);
        check_process(self.0.creator)?;
        let job = Job::new(kind, &inputs, None, Options::new(options)?, &self.0.seen())?;
        let taken = self.0.call(py, &visit, |comm| {
            let timed = |_| {
                let began = Instant::now();
                job.perform(comm).map(|_| began.elapsed().as_secs_f64())
            };
            (0..times).map(timed).collect::<Result<Vec<_>, _>>()
        })?;
        taken.map_err(|error| errors::of_call(py, &error, Purpose::Collective))
    }

    /// Sends to, or receives from, one other member.
    fn transfer(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        other: &Bound<'_, PyAny>,
        receives: bool,
        tag: i64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let visit = Visit::begin(py);
        check_process(self.0.creator)?;
        let transfer = Transfer::new(x, other, receives, tag, timeout, &self.0.seen())?;
        self.0.in_flight.check(None, transfer.tensors()).map_err(|busy| self.0.busy(&busy))?;
        let outcome = self.0.call(py, &visit, |comm| transfer.perform(comm))?;
        outcome.map_err(|error| self.0.raised(py, &error, Purpose::Collective))
    }

    /// The same as `collective` in the background.
    fn collective_async(
        &self,
        py: Python<'_>,
        kind: &str,
        inputs: Vec<Bound<'_, PyAny>>,
        outputs: Option<Vec<Bound<'_, PyAny>>>,
        options: &Bound<'_, PyTuple>,
    ) -> PyResult<Handle> {
        let _visit = Visit::begin(py);
        let comm = self.0.open()?;
        drop((self.0.in_flight.reap(), registry::reap()));
        let interrupt = Interrupt::new();
        let options = Options::new(options)?;
        let job = Job::new(kind, &inputs, outputs.as_deref(), options, &self.0.seen())?;
        let mut job = job.interrupted_by(&interrupt);
        self.0.check_flight(&job)?;
        let (place, tensors) = (Some(job.place().clone()), job.take_tensors());
        // When it is over, in whatever way, the runtime has let go and the loans may be given back.
        let work = move || job.perform(&comm).map(Some).map_err(Arc::new);
        Ok(self.0.fly(place, tensors, interrupt, work))
    }

    /// The same as `transfer` in the background.
    fn transfer_async(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        other: &Bound<'_, PyAny>,
        receives: bool,
        tag: i64,
        timeout: Option<f64>,
    ) -> PyResult<Handle> {
        let _visit = Visit::begin(py);
        let comm = self.0.open()?;
        drop((self.0.in_flight.reap(), registry::reap()));
        let interrupt = Interrupt::new();
        let transfer = Transfer::new(x, other, receives, tag, timeout, &self.0.seen())?;
        let mut transfer = transfer.interrupted_by(&interrupt);
        self.0.in_flight.check(None, transfer.tensors()).map_err(|busy| self.0.busy(&busy))?;
        let tensors = transfer.take_tensors();
        let work = move || transfer.perform(&comm).map(|()| None).map_err(Arc::new);
        Ok(self.0.fly(None, tensors, interrupt, work))
    }

    /// Makes the state the same on every member.
    fn sync_state(
        &self,
        py: Python<'_>,
        state: &SharedState,
        strategy: &str,
        staged: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let visit = Visit::begin(py);
        let mut options =
            outlast::communicator::SyncOptions::new().strategy(state::strategy(strategy)?).staged(staged);
        if let Some(timeout) = arguments::seconds("timeout", timeout)? {
            options = options.timeout(timeout);
        }
        check_process(self.0.creator)?;
        self.0.no_flights()?;
        let (synced, torn) = state.with(|state| {
            let synced = self.0.call(py, &visit, |comm| comm.sync_state(state, &options));
            (synced, state.is_torn())
        })?;
        let report = synced?.map_err(|error| {
            let raised = self.0.raised(py, &error, Purpose::Topology);
            // Whatever it was that failed.
            if torn {
                let _ = raised.value(py).setattr("torn", true);
            }
            raised
        })?;
        outcome::sync_report(py, &report)
    }

    /// What happened to the group since the last call; waits for the first event.
    fn events<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let visit = Visit::begin(py);
        let comm = self.0.open()?;
        // Unlike in other calls zero makes sense here: look, do not wait.
        let limit = match timeout {
            Some(0.0) => Duration::ZERO,
            other => arguments::seconds("timeout", other)?.unwrap_or(EVENTS),
        };
        let deadline = Instant::now() + limit;
        let main = manners::is_main_thread(py);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let slice = left.min(if main { LOOK_EVERY } else { Duration::from_secs(1) });
            let happened = visit.away(py, || comm.events(slice));
            let happened = happened.map_err(|error| errors::of_call(py, &error, Purpose::Collective))?;
            if !happened.is_empty() || left.is_zero() {
                return happened.iter().map(|event| outcome::happened(py, event)).collect();
            }
            if main {
                py.check_signals()?;
            }
        }
    }

    fn leave(&self, py: Python<'_>, for_good: bool) -> PyResult<()> {
        let visit = Visit::begin(py);
        check_process(self.0.creator)?;
        visit.away(py, || self.0.leave(for_good));
        *lock(&self.0.drivers) = Drivers::Nobody;
        Ok(())
    }

    /// `for_good`: not because something failed.
    fn close(&self, py: Python<'_>, for_good: bool) -> PyResult<()> {
        let visit = Visit::begin(py);
        check_process(self.0.creator)?;
        let comm = lock(&self.0.comm).take();
        self.0.connected.store(false, Ordering::SeqCst);
        visit.away(py, || {
            if let Some(comm) = &comm {
                say_goodbye(comm, for_good);
            }
            self.0.workers.end();
            // What was in flight ends with the session; then nobody holds memory of the program's.
            self.0.in_flight.wait_until(Instant::now() + Duration::from_secs(2));
            drop(comm);
        });
        drop((self.0.in_flight.reap(), registry::reap()));
        Ok(())
    }

    #[getter]
    fn peer_id(&self) -> PyResult<String> {
        Ok(self.0.open()?.peer_id().to_string())
    }

    /// Rank, world size, world size of the run, epoch. Whoever is in no run has none of them: the first rank would make
    /// a program that asks `rank == 0` believe that it is the one to write a checkpoint.
    fn place(&self, py: Python<'_>) -> PyResult<(usize, usize, u32, u64)> {
        self.0.in_a_run(py)?;
        let seen = self.0.seen();
        Ok((seen.rank, seen.peers.len(), seen.global_world_size, seen.epoch))
    }

    fn peers(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let visit = Visit::begin(py);
        let comm = self.0.in_a_run(py)?;
        let health = visit.away(py, || comm.peers());
        let seen = self.0.seen();
        outcome::peers(py, &seen, &health)
    }

    /// Whether it is usable here, connected, closed: for the representation, which never fails.
    fn standing(&self) -> &'static str {
        if self.0.creator.check().is_err() {
            return "of another process";
        }
        if lock(&self.0.comm).is_none() {
            return "closed";
        }
        if self.0.connected.load(Ordering::SeqCst) { "connected" } else { "not connected" }
    }
}

/// A collective in the background.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct Handle {
    shared: Arc<Shared>,
    outcome: Arc<Outcome>,
    interrupt: Interrupt,
    /// None for a transfer, which no other call is confused with.
    tag: Option<u64>,
}

impl Handle {
    fn name(&self) -> String {
        self.tag.map_or_else(|| "the transfer".to_owned(), |tag| format!("the collective under tag {tag}"))
    }
}

#[pymethods]
impl Handle {
    fn done(&self) -> PyResult<bool> {
        check_process(self.shared.creator)?;
        Ok(self.outcome.is_done())
    }

    #[getter]
    fn tag(&self) -> Option<u64> {
        self.tag
    }

    /// Gives it up; false if it was over.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        let visit = Visit::begin(py);
        check_process(self.shared.creator)?;
        let is_open = !self.outcome.is_done();
        visit.away(py, || self.interrupt.trigger());
        Ok(is_open)
    }

    /// A descriptor that can be read from once it is over. Whoever asks for it closes it. What ends the operation writes
    /// one byte, and never touches the interpreter.
    fn bell(&self) -> PyResult<i32> {
        check_process(self.shared.creator)?;
        let (reader, mut writer) = std::io::pipe().map_err(PyErr::from)?;
        // A pipe takes one byte without blocking; if nobody listens any more, nobody misses it.
        self.outcome.when_done(move || drop(writer.write_all(&[1])));
        Ok(reader.into_raw_fd())
    }

    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let visit = Visit::begin(py);
        check_process(self.shared.creator)?;
        let limit = arguments::seconds("timeout", timeout)?;
        let deadline = limit.map(|limit| Instant::now() + limit);
        let main = manners::is_main_thread(py);
        // The operation has a deadline of its own, so this ends without a limit, too.
        let ending = loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let slice = if main { LOOK_EVERY } else { Duration::from_secs(1) };
            let slice = left.map_or(slice, |left| left.min(slice));
            if let Some(ending) = visit.away(py, || self.outcome.wait(slice)) {
                break ending;
            }
            if main {
                py.check_signals()?;
            }
            if let (Some(left), Some(limit)) = (left, timeout)
                && left.is_zero()
            {
                let text = format!("{} is not over after {limit} s", self.name());
                return Err(not_yet(format!("{text}; it goes on: wait() again")));
            }
        };
        let comm = lock(&self.shared.comm).clone();
        if let Some(comm) = comm {
            self.shared.look(&comm);
        }
        drop(self.shared.in_flight.reap());
        self.shared.give(py, &ending)
    }
}
