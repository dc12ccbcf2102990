//! A process that stands still.

use std::fs::{DirEntry, read_dir, read_to_string};
use std::time::{Duration, Instant};

/// How long threads may take to stop on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// SIGSTOP reaches each thread in its own time, and until then the others work on: waits until none of them runs.
pub(crate) fn wait_until_stopped(pid: u32) {
    let threads = format!("/proc/{pid}/task");
    let is_stopped = |thread: std::io::Result<DirEntry>| {
        // The state comes after the name, which may hold anything but a closing bracket at its end.
        let stat = read_to_string(thread.expect("a thread").path().join("stat"));
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    };
    let deadline = Instant::now() + PATIENCE;
    while !read_dir(&threads).expect("it lives").all(is_stopped) {
        assert!(Instant::now() < deadline, "process {pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}
