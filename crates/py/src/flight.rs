//! The flight recorder, for Python.

use crate::errors::fatal;
use crate::visit::Visit;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Writes what this process's objects did lately; returns where.
#[pyfunction]
pub(crate) fn dump(py: Python<'_>, path: Option<PathBuf>, reason: String) -> PyResult<OsString> {
    let visit = Visit::begin(py);
    let written = visit.away(py, || outlast::recorder::dump(path.as_deref(), &reason));
    written.map(PathBuf::into_os_string).map_err(|error| fatal(error.to_string()))
}
