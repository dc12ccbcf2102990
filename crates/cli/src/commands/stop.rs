//! SIGINT and SIGTERM as a flag that the main loop looks at.
//!
//! The handler does the only thing that a handler may: it stores. A second signal ends the program the hard
//! way, for whoever does not want to wait for the goodbye.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Whether the program was told to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StopSignal;

extern "C" fn on_signal(signal: libc::c_int) {
    if STOP.swap(true, Ordering::Relaxed) {
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(128 + signal) };
    }
}

impl StopSignal {
    /// Installs the handlers.
    pub(crate) fn install() -> anyhow::Result<Self> {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: the action is fully initialised, and the handler only stores to an atomic or exits.
            let outcome = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigemptyset(&raw mut action.sa_mask);
                libc::sigaction(signal, &raw const action, std::ptr::null_mut())
            };
            if outcome != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
        }
        Ok(Self)
    }

    /// Whether one of the signals came.
    #[expect(clippy::unused_self, reason = "holding the value proves that the handlers are installed")]
    pub(crate) fn is_set(self) -> bool {
        STOP.load(Ordering::Relaxed)
    }
}
