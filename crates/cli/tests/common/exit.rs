//! Waiting for a process to end, woken by the kernel.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How `child` ended. One that does not end in time is killed, and the test fails.
pub(crate) fn wait_exit(child: &mut Child, what: &str, timeout: Duration) -> ExitStatus {
    let deadline = Instant::now() + timeout;
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a descriptor of the child");
    loop {
        if let Some(status) = child.try_wait().expect("its state") {
            return status;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let _ = child.kill();
            panic!("{what} did not end within {timeout:?}");
        }
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        // An interrupted poll is a short one.
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left));
    }
}
