//! An `outlast run` process, its JSON lines, and signals. Every wait has a deadline and a condition.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Far more than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// Between two looks at what was said.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Output {
    read: Mutex<Lines>,
    grew: Condvar,
}

#[derive(Default)]
struct Lines {
    values: Vec<Value>,
    /// When each was read.
    moments: Vec<Instant>,
}

pub(crate) struct Agent {
    child: Child,
    lines: Arc<Output>,
    errors: Arc<Mutex<String>>,
}

/// The program, without what this machine's environment may say.
pub(crate) fn outlast() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
    for name in
        ["OUTLAST_COORDINATOR", "OUTLAST_SECRET", "OUTLAST_SECRET_FILE", "OUTLAST_RUN_ID", "OMP_NUM_THREADS"]
    {
        command.env_remove(name);
    }
    command
}

impl Agent {
    /// Starts `outlast run --json` with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_by(outlast().args(["run", "--json"]).args(arguments))
    }

    pub(crate) fn start_by(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let errors = Arc::new(Mutex::new(String::new()));
        if let Some(stderr) = child.stderr.take() {
            let sink = Arc::clone(&errors);
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    *sink.lock().unwrap() += &(line + "\n");
                }
            });
        }
        let lines = Arc::new(Output::default());
        let sink = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let json = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
                let mut lines = sink.read.lock().unwrap();
                lines.values.push(json);
                lines.moments.push(Instant::now());
                drop(lines);
                sink.grew.notify_all();
            }
        });
        Self { child, lines, errors }
    }

    /// Waits until the lines so far satisfy `enough`, and returns what it made of them.
    pub(crate) fn wait_until<T>(&self, what: &str, enough: impl Fn(&[Value]) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.lines.read.lock().unwrap();
        loop {
            if let Some(found) = enough(&lines.values) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let values = lines.values.clone();
                drop(lines);
                panic!("{what} did not come within {PATIENCE:?}. It said:\n{}", story(&values));
            }
            lines = self.lines.grew.wait_timeout(lines, left).unwrap().0;
            // A hundred thousand lines are not looked through for each new one.
            drop(lines);
            std::thread::sleep(PAUSE);
            lines = self.lines.read.lock().unwrap();
        }
    }

    /// When the first line that satisfies the condition was read.
    pub(crate) fn moment(&self, condition: impl Fn(&Value) -> bool) -> Option<Instant> {
        let lines = self.lines.read.lock().unwrap();
        lines.values.iter().position(condition).map(|at| lines.moments[at])
    }

    /// Everything that was said.
    pub(crate) fn said(&self) -> Vec<Value> {
        self.lines.read.lock().unwrap().values.clone()
    }

    /// What the agent itself logged, if its stderr was asked for.
    pub(crate) fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// The process of a worker's life, once it is started.
    pub(crate) fn pid_of(&self, worker: u64, life: u64) -> u32 {
        let is_it = |value: &&Value| {
            value["event"] == "started" && value["worker"] == worker && value["life"] == life
        };
        self.wait_until(&format!("life {life} of worker {worker}"), |lines| {
            lines.iter().rfind(is_it).and_then(|value| value["pid"].as_u64()).map(|pid| pid as u32)
        })
    }

    /// Waits until that many workers have said this word.
    pub(crate) fn wait_for_words(&self, word: &str, count: usize) {
        self.wait_until(&format!("{word:?} from {count} workers"), |lines| {
            (texts(lines).iter().filter(|text| *text == word).count() >= count).then_some(())
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the agent exists");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the agent's end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("its state") {
                return status;
            }
            if Instant::now() >= deadline {
                let said = story(&self.said());
                panic!("the agent did not end within {PATIENCE:?}. It said:\n{said}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).expect("the process exists");
}

/// What workers said.
pub(crate) fn texts(lines: &[Value]) -> Vec<String> {
    let said = lines.iter().filter(|value| value["event"] == "line");
    said.filter_map(|value| value["text"].as_str().map(str::to_owned)).collect()
}

fn story(lines: &[Value]) -> String {
    lines.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
}

/// A process that lives; one that has ended and is not waited for does not.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Waits until none of them lives.
pub(crate) fn wait_gone(what: &str, pids: impl Fn() -> Vec<u32>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left: Vec<_> = pids().into_iter().filter(|pid| lives(*pid)).collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {left:?} live on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until there are more than so many.
pub(crate) fn wait_grown(count: usize, pids: impl Fn() -> Vec<u32>) {
    let deadline = Instant::now() + PATIENCE;
    while pids().len() <= count {
        assert!(Instant::now() < deadline, "no more than {:?} came", pids());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The numbers of processes in whose environment a mark is: whatever became of their parents.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("processes").filter_map(Result::ok);
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_mark = |pid: &u32| {
        let environment = std::fs::read(Path::new("/proc").join(pid.to_string()).join("environ"));
        environment.is_ok_and(|bytes| bytes.windows(mark.len()).any(|window| window == mark.as_bytes()))
    };
    numbers.filter(has_mark).filter(|pid| lives(*pid)).collect()
}
