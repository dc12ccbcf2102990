//! SIGUSR2 writes a dump.
//!
//! Without a handler the signal would kill the process, so a program that has one of its own keeps it, and only a process
//! in which nobody cares gets ours. The handler does the only thing that a handler may: it writes a byte into a pipe; a
//! thread that waits at the other end does the work. In a forked child the handler does nothing, because the pipe is the
//! parent's; a child that makes objects of its own gets a pipe and a thread of its own.

use super::dump;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

static PIPE: AtomicI32 = AtomicI32::new(-1);
/// Whose pipe it is.
static PROCESS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_signal: libc::c_int) {
    // SAFETY: errno is this thread's own and is put back for whoever was interrupted; getpid and write are
    // async-signal-safe, and a pipe that is full holds more questions than anybody can have meant.
    unsafe {
        let errno = *libc::__errno_location();
        if u32::try_from(libc::getpid()) == Ok(PROCESS.load(Ordering::Relaxed)) {
            libc::write(PIPE.load(Ordering::Relaxed), [0_u8].as_ptr().cast(), 1);
        }
        *libc::__errno_location() = errno;
    }
}

/// Answers the signal from now on, unless somebody else does; once in each process. What cannot be had is done without:
/// it is a help, not a part.
pub(super) fn answer() {
    if let Err(error) = install() {
        tracing::debug!(%error, "SIGUSR2 writes no flight record");
    }
}

fn install() -> io::Result<()> {
    let ours = on_signal as *const () as usize;
    // SAFETY: both actions are ours, and only asking changes nothing.
    let before = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGUSR2, std::ptr::null(), &raw mut before);
        before.sa_sigaction
    };
    if before != libc::SIG_DFL && before != ours {
        return Ok(());
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&write, true)?;
    std::thread::Builder::new().name("outlast-flight".to_owned()).spawn(move || attend(&read))?;
    // The handler may run as long as the process does, so this end is never closed.
    PIPE.store(write.into_raw_fd(), Ordering::Relaxed);
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: the action is fully initialised, and the handler only writes.
    let outcome = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ours;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut())
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes a dump for each question, until the process ends.
fn attend(questions: &OwnedFd) {
    let mut byte = [0_u8; 1];
    loop {
        match rustix::io::read(questions, &mut byte) {
            Ok(1) => match dump(None, "SIGUSR2") {
                Ok(path) => tracing::warn!("wrote the flight record to {}", path.display()),
                Err(error) => tracing::error!("{error}"),
            },
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}
