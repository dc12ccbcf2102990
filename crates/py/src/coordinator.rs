//! A coordinator inside a Python process.

use crate::arguments;
use crate::errors::{invalid, of_coordinator};
use crate::manners::check_process;
use crate::visit::Visit;
use outlast::coordinator::BackendError;
use outlast::fork::Creator;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::sync::{lock, owned};
use outlast_proto::coordinator::{Config, Run};
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long questions that are under way hold up the end.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// A new run secret, as text.
#[pyfunction]
pub(crate) fn new_secret() -> String {
    RunSecret::generate().to_text().clone()
}

/// A coordinator that serves until it is closed.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct Coordinator {
    service: Mutex<Option<Arc<outlast::Coordinator>>>,
    address: String,
    secret: String,
    creator: Creator,
}

#[pymethods]
impl Coordinator {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they come by position from a documented constructor")]
    fn new(
        py: Python<'_>,
        listen: &str,
        secret: Option<&str>,
        preset: &str,
        stall_budget: Option<f64>,
        dead_after: Option<f64>,
        control_lost_after: Option<f64>,
        accept_secret: Option<&str>,
        tls: Option<arguments::TlsFiles>,
        key_file: Option<PathBuf>,
        backend: &str,
    ) -> PyResult<Self> {
        let visit = Visit::begin(py);
        let mut builder = outlast::Coordinator::builder()
            .listen(arguments::address(py, &visit, "listen", listen)?)
            .preset(arguments::preset(preset)?)
            .backend(backend.parse().map_err(|error: BackendError| invalid(format!("backend: {error}")))?);
        let secret = match secret {
            Some(text) => Some(arguments::secret(text)?),
            None => RunSecret::from_environment().map_err(|error| invalid(error.to_string()))?,
        };
        if let Some(secret) = secret {
            builder = builder.secret(secret);
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
        if let Some(secret) = accept_secret {
            builder = builder.accept_secret(arguments::secret(secret)?);
        }
        if let Some(files) = tls {
            builder = builder.tls(arguments::tls(&files)?);
        }
        if let Some(path) = key_file {
            builder = builder.key_file(path);
        }
        let service = visit.away(py, || builder.start()).map_err(|error| of_coordinator(py, &error))?;
        let (address, secret) = (service.address().to_string(), service.secret().to_text().clone());
        let service = Mutex::new(Some(Arc::new(service)));
        Ok(Self { service, address, secret, creator: Creator::this_process() })
    }

    #[getter]
    fn address(&self) -> PyResult<&str> {
        check_process(self.creator)?;
        Ok(&self.address)
    }

    #[getter]
    fn secret(&self) -> PyResult<&str> {
        check_process(self.creator)?;
        Ok(&self.secret)
    }

    /// How a run stands, as JSON. One that nobody has joined stands as a run does before its first peer.
    fn status(&self, py: Python<'_>, run_id: &str) -> PyResult<String> {
        let visit = Visit::begin(py);
        check_process(self.creator)?;
        let run = arguments::run_id(run_id)?;
        let service = lock(&self.service).clone();
        let service =
            service.ok_or_else(|| invalid("this coordinator is closed; make a new one".to_owned()))?;
        let status = visit.away(py, || service.status(&run)).map_err(|error| of_coordinator(py, &error))?;
        let empty = || {
            let status = Run::new(Config::preset(Preset::Local)).status(outlast::clock::now());
            status.with_history(false, Vec::new(), Vec::new()).to_json()
        };
        Ok(status.unwrap_or_else(empty))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let visit = Visit::begin(py);
        check_process(self.creator)?;
        let service = lock(&self.service).take();
        visit.away(py, || {
            let deadline = Instant::now() + CLOSE_PATIENCE;
            let mut held = service;
            // A question about the status may be under way; the port is free when this returns.
            while let Some(service) = held {
                held = Arc::try_unwrap(service).map(drop).err().filter(|_| Instant::now() < deadline);
                if held.is_some() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.creator.check().is_ok() && lock(&self.service).is_none()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let service = owned(&mut self.service).take();
        let service = ManuallyDrop::new(service);
        // In a forked child it is left alone.
        if self.creator.check().is_ok() {
            drop(ManuallyDrop::into_inner(service));
        }
    }
}
