//! Real members: processes of the `outlast` program, their JSON lines, and signals.
//!
//! Every wait has a deadline and a condition; a test that waits in vain prints what each member saw. Dropping a
//! member kills its process, also a stopped one, and a member dies with the test that started it.
#![allow(dead_code, reason = "each test binary uses its own part of the harness")]
#![allow(
    clippy::allow_attributes,
    reason = "an expectation would be unfulfilled in the binaries that use everything"
)]

mod exit;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// One JSON line, and when it was read.
#[derive(Clone, Debug)]
pub(crate) struct OutputLine {
    pub(crate) at: Instant,
    pub(crate) json: Value,
}

impl OutputLine {
    pub(crate) fn is(&self, event: &str) -> bool {
        self.json["event"] == event
    }

    pub(crate) fn is_about(&self, event: &str, id: &str) -> bool {
        self.is(event) && self.json["member"]["id"] == id
    }
}

#[derive(Debug, Default)]
struct Output {
    read: Mutex<Vec<OutputLine>>,
    grew: Condvar,
}

/// One `outlast members` process.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) address: SocketAddr,
    child: Child,
    lines: Arc<Output>,
}

impl Member {
    /// Starts a member and waits until it has announced itself.
    pub(crate) fn start(name: &str, secret: &str, options: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_outlast")), name, secret, options)
    }

    /// The same by a command that the caller has prepared, such as one that runs in a lab's host.
    pub(crate) fn start_by(mut command: Command, name: &str, secret: &str, options: &[&str]) -> Self {
        command
            .args(["members", "--json", "--status-every", "100ms", "--name", name])
            .args(options)
            .env("OUTLAST_SECRET", secret)
            .env_remove("OUTLAST_SECRET_FILE")
            .env_remove("OUTLAST_RUN_ID")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if !options.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        // SAFETY: prctl is async-signal-safe.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let lines = Arc::new(Output::default());
        let sink = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let json = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
                sink.read.lock().unwrap().push(OutputLine { at: Instant::now(), json });
                sink.grew.notify_all();
            }
        });
        let mut member = Self {
            name: name.to_owned(),
            id: String::new(),
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            child,
            lines,
        };
        let started = member.wait_for("its first line", 10 * SECOND, 0, |line| line.is("started"));
        started.json["member"]["id"].as_str().unwrap().clone_into(&mut member.id);
        member.address = started.json["member"]["address"].as_str().unwrap().parse().unwrap();
        member
    }

    /// How many lines were read so far: a mark for [`Self::since`].
    pub(crate) fn mark(&self) -> usize {
        self.lines.read.lock().unwrap().len()
    }

    /// The lines after `mark`.
    pub(crate) fn since(&self, mark: usize) -> Vec<OutputLine> {
        self.lines.read.lock().unwrap()[mark..].to_vec()
    }

    /// The first line after `mark` that satisfies `condition`, waited for until `timeout`.
    pub(crate) fn wait_for(
        &self,
        what: &str,
        timeout: Duration,
        mark: usize,
        condition: impl Fn(&OutputLine) -> bool,
    ) -> OutputLine {
        let deadline = Instant::now() + timeout;
        let mut lines = self.lines.read.lock().unwrap();
        let mut next = mark;
        loop {
            if let Some(line) = lines[next..].iter().find(|line| condition(line)) {
                return line.clone();
            }
            next = lines.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let story = story(&lines);
                drop(lines);
                panic!("{} did not see {what} within {timeout:?}. It saw:\n{story}", self.name);
            }
            lines = self.lines.grew.wait_timeout(lines, left).unwrap().0;
        }
    }

    /// Waits until a status says that this member sees `size` members, all well, and (rule 22) has tried all
    /// their kernels.
    pub(crate) fn wait_settled(&self, size: usize, timeout: Duration) {
        let mark = self.mark();
        self.wait_for(&format!("a settled group of {size}"), timeout, mark, |line| {
            line.is("status")
                && line.json["active"] == size
                && line.json["members"].as_array().unwrap().iter().all(|member| {
                    member["health"] == "alive"
                        && (member["id"] == self.id.as_str() || member["kernel_trusted"] == true)
                })
        });
    }

    /// The latest status.
    pub(crate) fn status(&self) -> Value {
        let mark = self.mark();
        self.wait_for("a status", 10 * SECOND, mark, |line| line.is("status")).json
    }

    /// How this member sees that one: `alive`, `stalled`, .. or `absent`.
    pub(crate) fn health_of(&self, id: &str) -> String {
        let status = self.status();
        let rows = ["members", "failed"].map(|list| status[list].as_array().unwrap().clone()).concat();
        let row = rows.iter().find(|row| row["id"] == id);
        row.map_or("absent".to_owned(), |row| row["health"].as_str().unwrap().to_owned())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process exists");
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the process to end.
    pub(crate) fn wait_exit(&mut self, timeout: Duration) -> ExitStatus {
        exit::wait_exit(&mut self.child, &self.name, timeout)
    }

    /// Memory that is resident, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * rustix::param::page_size() as u64
    }

    /// Fails if this member ever saw one of these events after `mark`.
    pub(crate) fn assert_never(&self, events: &[&str], mark: usize) {
        let lines = self.since(mark);
        if let Some(line) = lines.iter().find(|line| events.iter().any(|event| line.is(event))) {
            panic!("{} saw {}, of\n{}", self.name, line.json, story(&lines));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The events of a member, without the statuses.
fn story(lines: &[OutputLine]) -> String {
    let mut text = String::new();
    for line in lines.iter().filter(|line| !line.is("status")) {
        let _ = writeln!(text, "  {}", line.json);
    }
    if let Some(status) = lines.iter().rfind(|line| line.is("status")) {
        let _ = writeln!(text, "  {}", status.json);
    }
    text
}

/// A fresh secret.
pub(crate) fn new_secret() -> String {
    outlast::security::RunSecret::generate().to_text()
}

/// Members `m0` .. that have all found each other.
pub(crate) fn group(size: usize, secret: &str, options: &[&str]) -> Vec<Member> {
    let first = Member::start("m0", secret, options);
    let seed = first.address.to_string();
    let join = [options, &["--join", &seed]].concat();
    let mut members = vec![first];
    members.extend((1..size).map(|number| Member::start(&format!("m{number}"), secret, &join)));
    for member in &members {
        member.wait_settled(size, 20 * SECOND);
    }
    members
}

/// Busy loops, one process each, that end with the guard.
pub(crate) struct Saturation(Vec<Child>);

impl Saturation {
    pub(crate) fn start(processes: usize) -> Self {
        let spin = || {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "while :; do :; done"]);
            // SAFETY: prctl is async-signal-safe.
            unsafe {
                command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
            }
            command.spawn().expect("a shell starts")
        };
        Self((0..processes).map(|_| spin()).collect())
    }
}

impl Drop for Saturation {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
