//! A shared state as Python holds it: tensors that stay where they are, a revision, extra bytes.
//!
//! The runtime's state lies on memory that Python lends; the loans are kept here and given back with the object, when
//! the interpreter is at hand. A call takes the state out while it works on it, so that two calls at once are refused
//! and no lock is held meanwhile.

use crate::buffer::Tensor;
use crate::errors::{fatal, invalid};
use crate::manners::check_process;
use crate::visit::Visit;
use outlast::fork::Creator;
use outlast::state::{CheckpointError, Strategy, TensorInfo};
use outlast::sync::lock;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::Mutex;

/// Named tensors that are the same on every member.
#[pyclass(frozen, module = "outlast._outlast")]
pub(crate) struct SharedState {
    creator: Creator,
    /// Gone while a call works on it.
    state: Mutex<Option<outlast::SharedState>>,
    /// What keeps the memory.
    tensors: Vec<Tensor>,
}

impl SharedState {
    /// Does `work` on the state. Nobody else can meanwhile.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut outlast::SharedState) -> R) -> PyResult<R> {
        check_process(self.creator)?;
        let held = || lock(&self.state);
        let taken = held().take();
        let busy = "this state is in use by another call of this process: wait for it";
        let mut state = PutBack(self, Some(taken.ok_or_else(|| invalid(busy.to_owned()))?));
        let state = state.1.as_mut().expect("it was just put there");
        Ok(work(state))
    }
}

/// Puts the state back, even if the work panics.
struct PutBack<'a>(&'a SharedState, Option<outlast::SharedState>);

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        *lock(&self.0.state) = self.1.take();
    }
}

#[pymethods]
impl SharedState {
    #[new]
    fn new(
        tensors: Vec<(String, Bound<'_, PyAny>)>,
        revision: Option<i128>,
        extra: &[u8],
        may_differ: Vec<String>,
    ) -> PyResult<Self> {
        let (mut state, mut loans) = (outlast::SharedState::new(), Vec::new());
        for (key, object) in tensors {
            let tensor = Tensor::borrow(&key, &object)?.writable(&key)?;
            // Bytes have a length and no shape.
            let shape = object.getattr("shape").and_then(|shape| shape.extract::<Vec<u64>>());
            let shape = shape.unwrap_or_else(|_| vec![tensor.elements() as u64]);
            let info = TensorInfo {
                layout: tensor.layout(&key)?,
                ..TensorInfo::new(key, tensor.data_type(), shape)
            };
            if info.bytes() != Some(tensor.range().len() as u64) {
                let (key, shape, elements) = (&info.key, &info.shape, tensor.elements());
                return Err(invalid(format!(
                    "{key}: the shape {shape:?} and {elements} elements do not fit"
                )));
            }
            // SAFETY: lent for as long as the tensor is held, which is as long as this object. That the program leaves
            // it alone during calls is what the documentation asks for; if it does not, hashes tell.
            unsafe { state.insert_raw(info, tensor.start(), Box::new(())) }.map_err(refused)?;
            loans.push(tensor);
        }
        for key in may_differ {
            state.set_may_differ(&key).map_err(refused)?;
        }
        state.set_extra(extra).map_err(refused)?;
        state.set_revision(number(revision)?);
        Ok(Self { creator: Creator::this_process(), state: Mutex::new(Some(state)), tensors: loans })
    }

    #[getter]
    fn revision(&self) -> PyResult<Option<u64>> {
        self.with(|state| state.revision())
    }

    #[setter]
    fn set_revision(&self, revision: Option<i128>) -> PyResult<()> {
        let revision = number(revision)?;
        self.with(|state| state.set_revision(revision))
    }

    #[getter]
    fn extra<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let extra = self.with(|state| state.extra().to_vec())?;
        Ok(PyBytes::new(py, &extra))
    }

    #[setter]
    fn set_extra(&self, extra: &[u8]) -> PyResult<()> {
        self.with(|state| state.set_extra(extra))?.map_err(refused)
    }

    #[getter]
    fn torn(&self) -> PyResult<bool> {
        self.with(|state| state.is_torn())
    }

    fn keys(&self) -> PyResult<Vec<String>> {
        self.with(|state| state.outline().tensors().iter().map(|tensor| tensor.key.clone()).collect())
    }

    fn digest(&self, py: Python<'_>) -> PyResult<String> {
        let visit = Visit::begin(py);
        self.with(|state| visit.away(py, || format!("{:032x}", state.digest())))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let visit = Visit::begin(py);
        self.with(|state| visit.away(py, || state.save(&path)))?.map_err(|error| of_checkpoint(&error))
    }

    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<PathBuf> {
        let visit = Visit::begin(py);
        self.with(|state| visit.away(py, || state.load(&path)))?.map_err(|error| of_checkpoint(&error))
    }
}

impl Drop for SharedState {
    fn drop(&mut self) {
        // In a forked child nothing of ours may be touched: not even to let it go.
        if self.creator.check().is_err() {
            let _ = ManuallyDrop::new(std::mem::take(&mut self.tensors));
        }
    }
}

fn refused(error: outlast::state::StateError) -> PyErr {
    invalid(error.to_string())
}

fn number(revision: Option<i128>) -> PyResult<Option<u64>> {
    let checked = |revision: i128| {
        u64::try_from(revision)
            .map_err(|_| invalid(format!("revision {revision}: it is a number from 0 on, or None")))
    };
    revision.map(checked).transpose()
}

fn of_checkpoint(error: &CheckpointError) -> PyErr {
    match error {
        CheckpointError::Exists(_) | CheckpointError::NoRevision(_) => invalid(error.to_string()),
        _ => fatal(error.to_string()),
    }
}

/// A strategy by its word.
pub(crate) fn strategy(word: &str) -> PyResult<Strategy> {
    word.parse().map_err(|error: outlast::state::UnknownStrategy| invalid(error.to_string()))
}
