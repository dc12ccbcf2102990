//! What the runtime has to say, for Python's `logging`.
//!
//! Whoever says something may hold a lock, be in the middle of a collective, or live on a thread that Python has never
//! seen. So what is said is put into a bounded queue and nothing else; one thread of Python's (`outlast._log`) comes for it and hands
//! it to the loggers. Below `INFO` nothing is made at all, so a hot path pays one comparison.
//!
//! If `OUTLAST_LOG` is set, everything goes to stderr as it says, and not here.

use crate::visit::Visit;
use outlast::sync::{Condvar, Mutex, MutexGuard, lock, sleep_while};
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::time::Duration;
use tracing::field::{Field, Visit as Fields};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Lines that wait; beyond it the oldest go.
const LINES_MAX: usize = 1_000;

/// A level of Python's, a logger's name, and a text.
type LogLine = (u8, String, String);

#[derive(Default)]
struct Queue {
    lines: VecDeque<LogLine>,
    dropped: u64,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { lines: VecDeque::new(), dropped: 0 });
static CAME: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    lock(&QUEUE)
}

struct Bridge;

impl<S: Subscriber> Layer<S> for Bridge {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let mut text = Text::default();
        event.record(&mut text);
        let line = (level, event.metadata().target().replace("::", "."), text.message + &text.fields);
        let mut queue = queue();
        if queue.lines.len() >= LINES_MAX {
            queue.lines.pop_front();
            queue.dropped += 1;
        }
        queue.lines.push_back(line);
        drop(queue);
        CAME.notify_one();
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Fields for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Begins to keep what is said. False if it goes elsewhere: to stderr, or to a log that somebody else in this process has.
#[pyfunction]
pub(crate) fn begin_log() -> bool {
    tracing_subscriber::registry().with(Bridge.with_filter(LevelFilter::INFO)).try_init().is_ok()
}

/// What was said since the last time; waits up to that many seconds for it.
#[pyfunction]
pub(crate) fn next_lines(py: Python<'_>, timeout: f64) -> Vec<LogLine> {
    let visit = Visit::begin(py);
    let patience = Duration::try_from_secs_f64(timeout).unwrap_or_default();
    visit.away(py, || {
        let mut queue = sleep_while(&CAME, queue(), patience, |queue| queue.lines.is_empty());
        let dropped = std::mem::take(&mut queue.dropped);
        let lost = (dropped > 0).then(|| (30, "outlast".to_owned(), format!("{dropped} lines were dropped")));
        lost.into_iter().chain(std::mem::take(&mut queue.lines)).collect()
    })
}
