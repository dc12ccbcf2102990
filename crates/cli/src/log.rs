//! What the runtime has to say, on stderr.
//!
//! Warnings are shown by default: a refused stranger, a peer that was kicked, a limit that was hit is something that
//! whoever started this program wants to know, and it is rare (`outlast::security::refusal`). `OUTLAST_LOG` asks for
//! more, as in `debug` or `outlast=debug,warn`, or for less: `off`. Colours are for terminals only: in a file they
//! would be noise.

use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// What is shown unless `OUTLAST_LOG` says otherwise.
const DEFAULT: &str = "warn";

/// Begins to write to stderr.
pub(crate) fn to_stderr() {
    let wanted = std::env::var("OUTLAST_LOG").ok().filter(|wanted| !wanted.is_empty());
    let filter = EnvFilter::try_new(wanted.as_deref().unwrap_or(DEFAULT)).unwrap_or_else(|error| {
        eprintln!("outlast: OUTLAST_LOG makes no sense ({error}); showing warnings");
        EnvFilter::new(DEFAULT)
    });
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Where this program lives in another one, that one may have a log already: then it is used.
    let _ = log.with_ansi(std::io::stderr().is_terminal()).try_init();
}
