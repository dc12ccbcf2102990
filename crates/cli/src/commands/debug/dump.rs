//! Asking processes on this host for their flight records.

use crate::ExitCode;
use anyhow::Context as _;
use outlast::recorder::folder_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process may take to write.
const PATIENCE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(20);
/// The thread that answers, by the name that the kernel knows.
const THREAD: &str = "outlast-flight";

pub(super) fn run(processes: &[u32], as_json: bool) -> anyhow::Result<ExitCode> {
    let found = if processes.is_empty() { everybody()? } else { processes.to_vec() };
    anyhow::ensure!(
        !found.is_empty(),
        "no process of yours on this host has a flight recorder: communicators and coordinators have one while they are \
         open; as root, give the process id of somebody else's"
    );
    let mut code = ExitCode::SUCCESS;
    for process in found {
        match ask(process) {
            Ok(file) if as_json => println!("{}", json!({ "pid": process, "file": file })),
            Ok(file) => println!("{}", file.display()),
            Err(error) => {
                eprintln!("outlast: {error:#}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// All processes of this user that have a recorder.
fn everybody() -> anyhow::Result<Vec<u32>> {
    let me = rustix::process::getuid().as_raw();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("cannot list processes")?.flatten() {
        let process = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(process) = process else { continue };
        let is_mine = entry.metadata().is_ok_and(|metadata| metadata.uid() == me);
        if is_mine && has_recorder(process) {
            found.push(process);
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn has_recorder(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().any(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim_end() == THREAD)
    })
}

/// Lets a process write, and waits for the file.
fn ask(process: u32) -> anyhow::Result<PathBuf> {
    let place = PathBuf::from(format!("/proc/{process}"));
    let user = std::fs::metadata(&place).with_context(|| format!("there is no process {process}"))?.uid();
    anyhow::ensure!(
        has_recorder(process) && catches(&place, libc::SIGUSR2),
        "process {process} does not answer SIGUSR2 with a flight record: it has no open communicator or coordinator, or a \
         handler of its own (then let it call outlast.dump())"
    );
    let folder = folder_for(&temporary(&place), user);
    let before = files(&folder, process);
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).context("no process id")?;
    kill_process(pid, Signal::USR2).with_context(|| format!("cannot signal process {process}"))?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(new) = files(&folder, process).difference(&before).next() {
            return Ok(new.clone());
        }
        std::thread::sleep(GLANCE);
    }
    let state = status_field(&place, "State").unwrap_or_else(|| "gone".to_owned());
    anyhow::bail!(
        "process {process} wrote nothing to {} within {PATIENCE:?}; its state is {state}: one that is stopped answers once \
         it runs again (kill -CONT {process})",
        folder.display()
    )
}

/// Whether it has a handler: without one the signal would kill it.
fn catches(place: &Path, signal: i32) -> bool {
    let caught = status_field(place, "SigCgt").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    caught.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

fn status_field(place: &Path, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(place.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Where that process puts temporary files.
fn temporary(place: &Path) -> PathBuf {
    let environment = std::fs::read(place.join("environ")).unwrap_or_default();
    let set = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"TMPDIR="));
    match set {
        Some(folder) if !folder.is_empty() => OsString::from_vec(folder.to_vec()).into(),
        _ if environment.is_empty() => std::env::temp_dir(),
        _ => PathBuf::from("/tmp"),
    }
}

/// The complete records that a process has left there.
fn files(folder: &Path, process: u32) -> BTreeSet<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    let (prefix, suffix) = (format!("flight-{process}-"), ".jsonl");
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&prefix) && name.ends_with(suffix))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_one).collect()
}
