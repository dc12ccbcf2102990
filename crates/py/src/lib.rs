//! The extension module `outlast._outlast`: what the Python package cannot do in Python.
//!
//! # The shape
//!
//! People meet the classes in `python/outlast`: documented, typed, thin. Each holds one object of this module
//! and hands its arguments down by position. Here they are checked once more, turned into the runtime's terms,
//! and the runtime is called with the interpreter let go. What comes back goes up as plain tuples and as the
//! exceptions that `outlast.errors` defines.
//!
//! # The invariants
//!
//! - No thread that the interpreter does not know ever touches it. Workers move bytes and store an outcome;
//!   whatever must be given back to Python is given back by a thread that Python called us on.
//! - Memory that a collective uses is held (its exporter cannot free or resize it) until the runtime has let
//!   go of it, whatever becomes of the objects that people see (`in_flight`).
//! - No lock of ours is held while Python's code may run: it may let another thread run, which would wait for the
//!   lock and keep the interpreter.
//! - Nobody comes back to an interpreter that has ended (`visit`).
//! - In a forked child every object refuses, before it takes any lock (`manners`).
//!
//! # What it does not do
//!
//! It decides nothing about collectives. It never copies tensor bytes.

mod arguments;
mod buffer;
mod collective;
mod communicator;
mod coordinator;
mod elastic;
mod errors;
mod feedback;
mod flight;
mod in_flight;
mod log;
mod manners;
mod membership;
mod outcome;
mod program;
mod registry;
mod rendezvous;
mod state;
mod store;
mod visit;

use pyo3::prelude::*;

#[pymodule]
mod _outlast {
    #[pymodule_export]
    use super::arguments::{group_from_environment, port_from_environment, run_id_from_environment};
    #[pymodule_export]
    use super::communicator::{Communicator, Handle};
    #[pymodule_export]
    use super::coordinator::{Coordinator, new_secret};
    #[pymodule_export]
    use super::elastic::Elastic;
    #[pymodule_export]
    use super::feedback::ErrorFeedback;
    #[pymodule_export]
    use super::flight::dump;
    #[pymodule_export]
    use super::log::{begin_log, next_lines};
    #[pymodule_export]
    use super::manners::at_exit;
    #[pymodule_export]
    use super::membership::Membership;
    #[pymodule_export]
    use super::program::main;
    #[pymodule_export]
    use super::rendezvous::{Register, Rendezvous};
    #[pymodule_export]
    use super::state::SharedState;
    #[pymodule_export]
    use super::store::Store;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::manners::log_if_asked();
        super::visit::open_door();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
