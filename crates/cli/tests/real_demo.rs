//! The demo keeps what it promises, in a short version: real processes, a kill, a stop, a newcomer, a coordinator
//! that dies. The demo itself judges; here it is checked that it does, and what it hands over.

#[path = "common/exit.rs"]
mod exit;

use exit::wait_exit;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Far more than it takes on a busy machine; the demo's own waits are shorter.
const PATIENCE: Duration = Duration::from_secs(150);

/// The example, which cargo builds beside the tests.
fn train() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_outlast")).parent().expect("a folder");
    let program = folder.join("examples/train");
    assert!(program.exists(), "no {}: run cargo build -p outlast-cli --example train", program.display());
    program
}

/// The processes that this one started.
fn children_of(parent: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).expect("its threads");
    let lists = tasks.filter_map(Result::ok).map(|task| task.path().join("children"));
    let lists = lists.map(|list| std::fs::read_to_string(list).expect("a list of children"));
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect::<Vec<_>>())
        .collect()
}

#[test]
fn the_demo_succeeds_and_tells_what_happened() {
    let folder = tempfile::tempdir().expect("a folder");
    let picture = folder.path().join("drawn/run.svg");
    let mut child = Command::new(train())
        .args(["--json", "--steps", "300", "--pace", "0", "--picture"])
        .arg(&picture)
        .stdout(Stdio::from(std::fs::File::create(folder.path().join("lines")).expect("a file")))
        .spawn()
        .expect("the demo starts");
    let status = wait_exit(&mut child, "the demo", PATIENCE);
    let text = std::fs::read_to_string(folder.path().join("lines")).expect("its lines");
    assert!(status.success(), "{text}");

    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let told = |kind: &str| lines.iter().filter(|line| line["event"] == kind).count();
    for kind in ["formed", "killed", "stopped", "continued", "joining", "joined", "coordinator_killed"] {
        assert!(told(kind) >= 1, "nothing was said of {kind:?}:\n{text}");
    }
    let summary = lines.last().expect("a last line");
    assert_eq!(summary["event"], "summary", "{text}");
    let contributors: Vec<_> =
        summary["phases"].as_array().expect("phases").iter().map(|phase| &phase["contributors"]).collect();
    assert_eq!(contributors, [4, 3, 4]);
    assert!(summary["accuracy"].as_f64().expect("a number") >= 0.95, "{summary}");
    assert_eq!(summary["faults"].as_array().expect("faults").len(), 4);
    let drawn = std::fs::read_to_string(&picture).expect("a picture");
    assert!(drawn.starts_with("<svg") && drawn.contains("SIGKILL coordinator"), "{drawn}");
}

#[test]
fn an_interrupted_demo_leaves_no_process_behind() {
    let mut child = Command::new(train())
        .args(["--steps", "100000", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the demo starts");
    let output = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let mut lines = std::io::BufRead::lines(output).map_while(Result::ok);
    assert!(lines.any(|line| line.contains("\"formed\"")), "the demo ended before it formed");
    let workers = children_of(child.id());
    assert_eq!(workers.len(), 5, "a coordinator and four workers: {workers:?}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal");
    drop(lines.by_ref().last());
    assert!(!child.wait().expect("its end").success(), "an interrupted demo shows nothing");
    let left: Vec<_> = workers.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
    assert!(left.is_empty(), "processes stayed behind: {left:?}");
}
