//! One node of a rendezvous, and a register, as Python holds them.

use crate::arguments;
use crate::errors::{invalid, of_rendezvous};
use crate::manners::{self, check_process};
use crate::visit::Visit;
use outlast::fork::Creator;
use outlast::rendezvous::{
    Fate, RemoteRegister, RendezvousBuilder, RendezvousError, RendezvousEvent, Round, Snapshot, Token,
};
use outlast::sync::{lock, owned};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What both classes are told of the backend.
#[derive(FromPyObject)]
struct Place {
    #[pyo3(item)]
    backend: String,
    #[pyo3(item)]
    run_id: Option<String>,
    #[pyo3(item)]
    secret: Option<String>,
    #[pyo3(item)]
    accept_secret: Option<String>,
    #[pyo3(item)]
    tls: Option<arguments::TlsFiles>,
}

impl Place {
    fn builder(self, min: usize, max: usize) -> PyResult<RendezvousBuilder> {
        let mut builder = outlast::Rendezvous::builder(self.backend, min, max);
        if let Some(run) = self.run_id {
            builder = builder.run_id(arguments::run_id(&run)?);
        }
        if let Some(secret) = self.secret {
            builder = builder.secret(arguments::secret(&secret)?);
        }
        if let Some(secret) = self.accept_secret {
            builder = builder.accept_secret(arguments::secret(&secret)?);
        }
        if let Some(files) = self.tls {
            builder = builder.tls(arguments::tls(&files)?);
        }
        Ok(builder)
    }
}

/// The times of a rendezvous, in seconds.
#[derive(FromPyObject)]
struct Times {
    #[pyo3(item)]
    join: Option<f64>,
    #[pyo3(item)]
    last_call: Option<f64>,
    #[pyo3(item)]
    close: Option<f64>,
    #[pyo3(item)]
    heartbeat: Option<f64>,
    #[pyo3(item)]
    keep_alive_interval: Option<f64>,
    #[pyo3(item)]
    keep_alive_max_attempt: Option<u32>,
}

/// A node that answers for this process until it leaves.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct Rendezvous {
    node: Mutex<Option<Arc<outlast::Rendezvous>>>,
    name: String,
    creator: Creator,
}

impl Rendezvous {
    fn open(&self) -> PyResult<Arc<outlast::Rendezvous>> {
        check_process(self.creator)?;
        let node = lock(&self.node).clone();
        node.ok_or_else(|| invalid("this node has left its rendezvous; make a new one".to_owned()))
    }

    fn call<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&outlast::Rendezvous) -> Result<R, RendezvousError> + Send,
    ) -> PyResult<R> {
        let visit = Visit::begin(py);
        let node = self.open()?;
        let outcome = manners::blocking(py, &visit, None, || call(&node))?;
        outcome.map_err(|error| of_rendezvous(py, &error))
    }
}

type Participants = Vec<(String, String)>;
/// Name, message, rank, node state, error trace; run, host, process, which one of its process, backend.
type EventRow = (String, String, Option<u32>, &'static str, Option<String>, String, String, u32, u32, String);

#[pymethods]
impl Rendezvous {
    #[new]
    fn new(
        py: Python<'_>,
        place: Place,
        min_nodes: usize,
        max_nodes: usize,
        times: Times,
        host: Option<String>,
        address: Option<String>,
    ) -> PyResult<Self> {
        let visit = Visit::begin(py);
        let mut builder = place.builder(min_nodes, max_nodes)?;
        // Zero makes sense here: no last call at all.
        let last_call = match times.last_call {
            Some(0.0) => Some(Duration::ZERO),
            other => arguments::seconds("last_call_timeout", other)?,
        };
        let seconds = [
            arguments::seconds("join_timeout", times.join)?,
            arguments::seconds("close_timeout", times.close)?,
            arguments::seconds("heartbeat_timeout", times.heartbeat)?,
            arguments::seconds("keep_alive_interval", times.keep_alive_interval)?,
        ];
        builder = builder.configure(|settings| {
            let [join, close, heartbeat, interval] = seconds;
            let set = |place: &mut Duration, value: Option<Duration>| *place = value.unwrap_or(*place);
            set(&mut settings.join, join);
            set(&mut settings.last_call, last_call);
            set(&mut settings.close, close);
            set(&mut settings.heartbeat, heartbeat);
            set(&mut settings.keep_alive_interval, interval);
            settings.keep_alive_attempts =
                times.keep_alive_max_attempt.unwrap_or(settings.keep_alive_attempts);
        });
        if let Some(host) = host {
            builder = builder.host(host);
        }
        if let Some(address) = address {
            builder = builder.address(address);
        }
        let node = visit.away(py, || builder.start()).map_err(|error| of_rendezvous(py, &error))?;
        let name = node.node().to_string();
        Ok(Self { node: Mutex::new(Some(Arc::new(node))), name, creator: Creator::this_process() })
    }

    #[getter]
    fn name(&self) -> PyResult<&str> {
        check_process(self.creator)?;
        Ok(&self.name)
    }

    fn set_address(&self, py: Python<'_>, address: String) -> PyResult<()> {
        self.open()?.set_address(address).map_err(|error| of_rendezvous(py, &error))
    }

    /// The round, this node's rank, and everybody's name and address by rank.
    fn next_rendezvous(&self, py: Python<'_>) -> PyResult<(u64, u32, Participants)> {
        let Round { round, rank, participants } = self.call(py, outlast::Rendezvous::next_rendezvous)?;
        let participants =
            participants.into_iter().map(|(node, address)| (node.to_string(), address)).collect();
        Ok((round, rank, participants))
    }

    /// The run whose store the participants of that round keep.
    fn run_of_round(&self, round: u64) -> PyResult<String> {
        Ok(self.open()?.run_of_round(round).to_string())
    }

    fn num_nodes_waiting(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(py, outlast::Rendezvous::num_nodes_waiting)
    }

    fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, outlast::Rendezvous::is_closed)
    }

    fn set_closed(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, outlast::Rendezvous::set_closed)
    }

    /// Leaves, and stays to see the others leave.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, outlast::Rendezvous::shutdown)
    }

    fn num_nodes(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(py, outlast::Rendezvous::num_nodes)
    }

    /// Leaves, and lets go of the node whatever came of that.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        check_process(self.creator)?;
        if self.has_left() {
            return Ok(());
        }
        let left = self.call(py, outlast::Rendezvous::shutdown);
        lock(&self.node).take();
        left
    }

    /// Lets go of the node without a word; its lease ends.
    fn close(&self) -> PyResult<()> {
        check_process(self.creator)?;
        drop(lock(&self.node).take());
        Ok(())
    }

    fn has_left(&self) -> bool {
        self.creator.check().is_ok() && lock(&self.node).is_none()
    }

    /// What happened since the last call.
    fn events(&self, py: Python<'_>) -> PyResult<Vec<EventRow>> {
        let events = self.open()?.events().map_err(|error| of_rendezvous(py, &error))?;
        let row = |event: RendezvousEvent| {
            let RendezvousEvent {
                name,
                message,
                rank,
                node_state,
                error_trace,
                run_id,
                host,
                pid,
                local_id,
                endpoint,
            } = event;
            (name, message, rank, node_state, error_trace, run_id, host, pid, local_id, endpoint)
        };
        Ok(events.into_iter().map(row).collect())
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        let node = ManuallyDrop::new(owned(&mut self.node).take());
        // In a forked child it is left alone.
        if self.creator.check().is_ok() {
            drop(ManuallyDrop::into_inner(node));
        }
    }
}

/// A register at a backend: read, compare and set, wait for news.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct Register {
    register: ManuallyDrop<RemoteRegister>,
    creator: Creator,
}

type Told<'py> = (Option<Bound<'py, PyBytes>>, (u64, u64));

fn told<'py>(py: Python<'py>, snapshot: &Snapshot) -> Told<'py> {
    let value = snapshot.value.as_ref().map(|value| PyBytes::new(py, value));
    (value, (snapshot.token.era, snapshot.token.revision))
}

#[pymethods]
impl Register {
    #[new]
    fn new(py: Python<'_>, place: Place, name: &str, holder: Option<&str>) -> PyResult<Self> {
        let builder = place.builder(1, 1)?;
        let register = builder.open_register(name, holder).map_err(|error| of_rendezvous(py, &error))?;
        Ok(Self { register: ManuallyDrop::new(register), creator: Creator::this_process() })
    }

    /// The value, if any, and its token.
    fn read<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Told<'py>> {
        let visit = Visit::begin(py);
        check_process(self.creator)?;
        let limit = arguments::seconds("timeout", Some(timeout))?.unwrap_or_default();
        let read = manners::blocking(py, &visit, None, || self.register.read(limit))?;
        Ok(told(py, &read.map_err(|error| of_rendezvous(py, &error))?))
    }

    /// Whether it was written, and what there is now.
    fn write<'py>(
        &self,
        py: Python<'py>,
        token: (u64, u64),
        value: Vec<u8>,
        timeout: f64,
    ) -> PyResult<(bool, Told<'py>)> {
        let visit = Visit::begin(py);
        check_process(self.creator)?;
        let limit = arguments::seconds("timeout", Some(timeout))?.unwrap_or_default();
        let expected = Token { era: token.0, revision: token.1 };
        let written = manners::blocking(py, &visit, None, || self.register.write(expected, value, limit))?;
        let (fate, snapshot) = written.map_err(|error| of_rendezvous(py, &error))?;
        Ok((fate == Fate::Accepted, told(py, &snapshot)))
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        if self.creator.check().is_ok() {
            // SAFETY: nobody uses it after its owner is dropped, and it is dropped once.
            unsafe { ManuallyDrop::drop(&mut self.register) };
        }
    }
}
