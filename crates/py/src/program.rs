//! The `outlast` program, as the package's command.

use pyo3::prelude::*;
use std::ffi::OsString;

/// Runs the program with these arguments and returns its exit code. `itself` starts it again.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>, itself: Vec<OsString>) -> u8 {
    outlast_cli::started_by(itself);
    py.detach(|| outlast_cli::run(arguments)).number()
}
