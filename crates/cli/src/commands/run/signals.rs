//! Signals that ask for the end, passed on to the agent.
//!
//! The handler does the only thing that a handler may: it writes the signal's number into a pipe. A thread reads them
//! there.

use outlast::agent::Orders;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The same as torchrun's.
const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

static PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(signal: libc::c_int) {
    let number = signal as u8;
    // SAFETY: errno is this thread's own and is put back for whoever was interrupted; write is async-signal-safe. A pipe
    // that is full holds more signals than anybody can have meant.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(PIPE.load(Ordering::Relaxed), (&raw const number).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// Signals that were held from the first moment on, until there is somebody to tell.
#[derive(Debug)]
pub(super) struct Signals {
    pipe: OwnedFd,
}

impl Signals {
    /// Installs the handlers. A signal that was ignored stays so: `nohup` means it.
    pub(super) fn install() -> anyhow::Result<Self> {
        let (pipe, write) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&write, true)?;
        // The handler may run as long as the process does.
        PIPE.store(write.into_raw_fd(), Ordering::Relaxed);
        for signal in SIGNALS {
            // SAFETY: both actions are ours, and the handler only writes.
            let outcome = unsafe {
                let (mut action, mut before): (libc::sigaction, libc::sigaction) =
                    (std::mem::zeroed(), std::mem::zeroed());
                libc::sigaction(signal, std::ptr::null(), &raw mut before);
                if signal == libc::SIGHUP && before.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigemptyset(&raw mut action.sa_mask);
                libc::sigaction(signal, &raw const action, std::ptr::null_mut())
            };
            if outcome != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
        }
        Ok(Self { pipe })
    }

    /// Tells the agent from now on.
    pub(super) fn pass_on(self, orders: Orders) -> anyhow::Result<()> {
        let read = move || {
            let mut number = [0_u8; 1];
            loop {
                match rustix::io::read(&self.pipe, &mut number) {
                    Ok(1) => orders.stop(number[0]),
                    Err(rustix::io::Errno::INTR) => {}
                    Ok(_) | Err(_) => return,
                }
            }
        };
        std::thread::Builder::new().name("outlast-signals".to_owned()).spawn(read)?;
        Ok(())
    }
}
