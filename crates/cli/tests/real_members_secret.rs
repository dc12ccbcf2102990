//! Where the secret of `outlast members` comes from, and what a person is told about it.

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

struct Started {
    child: Child,
    /// Taken away to close the pipe.
    output: Option<BufReader<ChildStdout>>,
    first: Value,
}

impl Started {
    fn next_line(&mut self) -> Value {
        let mut line = String::new();
        self.output.as_mut().unwrap().read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(runtime: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
    command.args(["members", "--preset", "local", "--listen", "127.0.0.1:0"]).args(options);
    command.env("XDG_RUNTIME_DIR", runtime).stdin(Stdio::null());
    command.env_remove("OUTLAST_SECRET").env_remove("OUTLAST_SECRET_FILE").env_remove("OUTLAST_RUN_ID");
    command
}

fn start(command: &mut Command) -> Started {
    let mut child = command.arg("--json").stdout(Stdio::piped()).spawn().unwrap();
    let output = child.stdout.take().map(BufReader::new);
    let mut started = Started { child, output, first: Value::Null };
    started.first = started.next_line();
    started
}

/// The printed command is the whole hand-over: whoever types it joins.
#[test]
fn the_first_member_makes_a_secret_for_its_user_and_prints_the_command_that_joins() {
    let runtime = tempfile::tempdir().unwrap();
    let mut first = start(&mut command(runtime.path(), &["--name", "first"]));
    let file = Path::new(first.first["secret_file"].as_str().unwrap());
    assert_eq!(std::fs::metadata(file).unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(file.parent().unwrap()).unwrap().mode() & 0o777, 0o700);

    let join = first.first["join"].as_str().unwrap();
    assert!(join.contains("--preset local"), "{join}");
    let typed = join.replacen("outlast members", concat!(env!("CARGO_BIN_EXE_outlast"), " members"), 1);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("{typed} --name second")]).stdin(Stdio::null()).stdout(Stdio::null());
    shell.env_remove("OUTLAST_SECRET").env_remove("OUTLAST_SECRET_FILE").env_remove("OUTLAST_RUN_ID");
    let mut second = shell.process_group(0).spawn().unwrap();
    let joined = first.next_line();
    // The shell may have stayed in front of the member: end both.
    let _ = kill_process_group(Pid::from_child(&second), Signal::KILL);
    let _ = second.wait();
    assert_eq!((&joined["event"], &joined["member"]["name"]), (&"joined".into(), &"second".into()));
}

#[test]
fn whoever_joins_must_be_given_the_secret() {
    let runtime = tempfile::tempdir().unwrap();
    let output = command(runtime.path(), &["--join", "127.0.0.1:9"]).output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("OUTLAST_SECRET_FILE") && message.contains("--secret-file"), "{message}");
}

#[test]
fn a_directory_that_others_can_read_gets_no_secret() {
    let runtime = tempfile::tempdir().unwrap();
    std::fs::create_dir(runtime.path().join("outlast")).unwrap();
    let status = Command::new("chmod").arg("755").arg(runtime.path().join("outlast")).status().unwrap();
    assert!(status.success());
    let output = command(runtime.path(), &["--plain"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("mode 700"));
}

#[test]
fn a_reader_that_goes_away_ends_the_member_politely() {
    let runtime = tempfile::tempdir().unwrap();
    let mut started = start(&mut command(runtime.path(), &["--status-every", "20ms"]));
    drop(started.output.take());
    assert!(started.child.wait().unwrap().success());
}
