//! How to behave inside somebody else's process: signals, forks, the end, silence.
//!
//! # The intuition
//!
//! - A blocking call lets the interpreter go. On the main thread it looks up every 50 ms and lets Python run the
//!   handlers of signals that came: a handler that raises (Ctrl-C) ends the call, one that returns does not. A program
//!   whose handlers only set flags gives calls that wait for others a question to ask meanwhile (`stop`).
//! - A forked child owns none of our threads and must not take our locks: objects know who created them and
//!   refuse elsewhere, and what would be dropped in a child is left alone.
//! - When the interpreter ends, every communicator says goodbye, so that operations in flight end; and what
//!   they hold is never given back: memory that nobody frees cannot be written to too late. Threads that are
//!   away in a call then do not come back (`visit`).
//! - Nothing is printed unless `OUTLAST_LOG` says so.

use crate::errors::{fatal, invalid};
use crate::registry;
use crate::visit::{self, Visit};
use outlast::fork::Creator;
use outlast::watch;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// How often a blocked main thread looks for signals.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the end of the interpreter waits for goodbyes and for operations in flight.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// Whether this thread is inside a blocking call.
    static BLOCKED: Cell<bool> = const { Cell::new(false) };
    /// What a signal's handler raised during the call at hand.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Whether this thread is the interpreter's main one, and in which process that was found out.
    static MAIN: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// Whether this thread runs the handlers of signals.
pub(crate) fn is_main_thread(py: Python<'_>) -> bool {
    let process = std::process::id();
    if let Some((known, is_main)) = MAIN.get()
        && known == process
    {
        return is_main;
    }
    let ask = || -> PyResult<bool> {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        main.eq(threading.call_method0("get_ident")?)
    };
    // Whoever cannot tell looks for signals: that is never wrong, only a little slower.
    let is_main = ask().unwrap_or(true);
    MAIN.set(Some((process, is_main)));
    is_main
}

/// Does `work` with the interpreter let go, and answers signals meanwhile.
pub(crate) fn blocking<R: Send>(
    py: Python<'_>,
    visit: &Visit,
    stop: Option<Py<PyAny>>,
    work: impl FnOnce() -> R + Send,
) -> PyResult<R> {
    if BLOCKED.replace(true) {
        let text = "a blocking call was made by a signal's handler while another one waits on the same thread; \
                    set a flag in the handler and call later";
        return Err(invalid(text.to_owned()));
    }
    let _unblock = Unblock;
    let main = is_main_thread(py);
    let outcome = visit.away(py, || {
        if !main && stop.is_none() {
            return work();
        }
        let wants_an_end =
            move || (main && handlers_want_an_end()) || stop.as_ref().is_some_and(program_wants_an_end);
        watch::watched(LOOK_EVERY, wants_an_end, work)
    });
    match RAISED.take() {
        Some(raised) => Err(raised),
        None => Ok(outcome),
    }
}

/// The same for a goodbye. A signal's handler may say one while another call waits on its thread; then no handler runs
/// meanwhile.
pub(crate) fn parting<R: Send>(
    py: Python<'_>,
    visit: &Visit,
    work: impl FnOnce() -> R + Send,
) -> PyResult<R> {
    if BLOCKED.get() { Ok(visit.away(py, work)) } else { blocking(py, visit, None, work) }
}

struct Unblock;

impl Drop for Unblock {
    fn drop(&mut self) {
        BLOCKED.set(false);
    }
}

/// Lets Python run what signals ask for; true if that raised.
fn handlers_want_an_end() -> bool {
    // The end of the interpreter is no end of the call: at_exit takes care of that.
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let wanted = raised.is_some();
    if wanted {
        RAISED.replace(raised);
    }
    wanted
}

/// Asks the program's own question; true if it says so, or raises.
fn program_wants_an_end(stop: &Py<PyAny>) -> bool {
    let ask = |py: Python<'_>| stop.bind(py).call0().and_then(|answer| answer.is_truthy());
    match Python::try_attach(ask) {
        Some(Err(raised)) => {
            RAISED.replace(Some(raised));
            true
        }
        Some(Ok(answer)) => answer,
        None => false,
    }
}

/// An error in every process but the one that created the object.
pub(crate) fn check_process(creator: Creator) -> PyResult<()> {
    creator.check().map_err(|forked| fatal(forked.to_string()))
}

/// Writes what the runtime has to say to stderr, if `OUTLAST_LOG` asks for it (as in `debug` or
/// `outlast=debug,warn`).
pub(crate) fn log_if_asked() {
    let Some(filter) = std::env::var("OUTLAST_LOG").ok().filter(|filter| !filter.is_empty()) else { return };
    let filter = tracing_subscriber::EnvFilter::new(filter);
    // Somebody else in this process may have set one: then theirs is used.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Colours are for terminals only: in a file they would be noise.
    let _ = log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init();
}

/// Runs when the interpreter ends: everybody says goodbye, and nothing writes into Python's memory any more.
#[pyfunction]
pub(crate) fn at_exit(py: Python<'_>) {
    py.detach(|| {
        registry::end_all(EXIT_PATIENCE);
        visit::close_door(EXIT_PATIENCE);
    });
}
