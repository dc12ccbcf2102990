//! The processes of a host: finding, stopping, waking and killing them.
//!
//! A process belongs to a host if its network namespace is the host's. `/proc` tells, whoever started it and
//! however often it has forked, so nothing has to be written down and a killed owner loses nothing. A number
//! in `/proc` may belong to somebody else a moment later; so a process is first held by a descriptor, then
//! looked at again, then signalled through the descriptor.
//!
//! It does not see a process that has made a network namespace of its own inside the host.

use crate::error::LabError;
use crate::limits::PROCESS_DEADLINE;
use crate::namespace::Identity;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::time::{Duration, Instant};

/// How often a deadline is looked at while waiting for processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// After this many looks, processes that cannot be stopped are let go for a moment.
const LOOKS_BEFORE_RELEASE: u32 = 50;

/// The numbers of all processes in `host`, this one excepted.
pub(crate) fn inside(host: Identity) -> Vec<i32> {
    // A namespace that is also ours is no host: a signal to "everything inside" would reach the machine.
    if Identity::of("/proc/self/ns/net") == Some(host) {
        return Vec::new();
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&process| process != own && is_inside(process, host))
        .collect()
}

fn is_inside(process: i32, host: Identity) -> bool {
    Identity::of(format!("/proc/{process}/ns/net")) == Some(host)
}

/// Signals `process` if it is still in `host`.
fn signal(process: i32, host: Identity, signal: Signal) {
    let Some(pid) = Pid::from_raw(process) else { return };
    let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if is_inside(process, host) {
        // The one failure is a process that has just ended, which is as good.
        let _ = pidfd_send_signal(held, signal);
    }
}

/// The state letter of `process` in `/proc`; none if it is gone.
fn state(process: i32) -> Option<char> {
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name is in parentheses and may itself contain any character, so the last one closes it.
    line[line.rfind(')')? + 1..].trim_start().chars().next()
}

pub(crate) fn is_stopped(process: i32) -> bool {
    matches!(state(process), None | Some('T' | 't' | 'Z' | 'X'))
}

/// Stops every process of `host`, also those that are born meanwhile, and returns once all stand still.
pub(crate) fn stop(host: Identity, name: &str) -> Result<usize, LabError> {
    settle(host, Signal::STOP, &format!("freezing host '{name}'"), |processes| {
        processes.iter().all(|&process| is_stopped(process))
    })
}

/// Lets every process of `host` run again.
pub(crate) fn wake(host: Identity) -> usize {
    let processes = inside(host);
    for &process in &processes {
        signal(process, host, Signal::CONT);
    }
    processes.len()
}

/// Kills every process of `host`, and returns once none is left.
pub(crate) fn kill(host: Identity, name: &str) -> Result<usize, LabError> {
    settle(host, Signal::KILL, &format!("ending the processes of host '{name}'"), <[i32]>::is_empty)
}

/// Signals everything in `host` again and again until `done`; returns how many processes were met at first.
fn settle(host: Identity, which: Signal, what: &str, done: fn(&[i32]) -> bool) -> Result<usize, LabError> {
    let deadline = Instant::now() + PROCESS_DEADLINE;
    let mut met = None;
    let mut looks = 0_u32;
    loop {
        let processes = inside(host);
        met.get_or_insert(processes.len());
        if done(&processes) {
            return Ok(met.unwrap_or_default());
        }
        for &process in &processes {
            signal(process, host, which);
        }
        if Instant::now() > deadline {
            let what = format!("{what} (still there: {processes:?})");
            return Err(LabError::Timeout { what, seconds: PROCESS_DEADLINE.as_secs() });
        }
        std::thread::sleep(LOOK_INTERVAL);
        looks += 1;
        if which == Signal::STOP && looks.is_multiple_of(LOOKS_BEFORE_RELEASE) {
            // A process that started another by vfork stands in the kernel until that one has begun its program. If
            // that one was stopped first, neither ever gets further: let all go for a moment, and stop them again.
            wake(host);
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}
