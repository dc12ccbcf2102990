//! `outlast debug` on processes that are stuck: they are asked, they tell, and they go on.

use assert_cmd::cargo::CommandCargoExt as _;
use outlast::Communicator;
use outlast::communicator::Call;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

const ROLE: &str = "OUTLAST_TEST_ROLE";
const TEST: &str = "where_a_run_is_stuck_is_read_from_the_flight_records_of_its_processes";

/// A process of this test that ends with it.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(mut command: Command, folder: &Path) -> Self {
        command.env("TMPDIR", folder).env("XDG_RUNTIME_DIR", folder).env_remove("OUTLAST_LOG");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// This very program in another role.
    fn play(role: &str, address: &str, secret: &str, folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture"]).env(ROLE, role);
        command.env("OUTLAST_COORDINATOR", address).env("OUTLAST_SECRET", secret);
        Self::start(command, folder)
    }

    /// Reads on until a line has that in it.
    fn wait_for(&mut self, words: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended before it said {words:?}");
            if line.contains(words) {
                return line;
            }
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the peers do: three calls together, then one that the lazy one makes only when it is told to.
fn take_part(role: &str) {
    let comm = Communicator::builder()
        .listen("127.0.0.1:0".parse().unwrap())
        .preset(Preset::Local)
        .name(role)
        .timeout(Duration::from_secs(50))
        .start()
        .unwrap();
    comm.connect(2).unwrap();
    let mut data = vec![1.0_f32; 1_000];
    for _ in 0..3 {
        comm.all_reduce(&mut data, &Call::sum()).unwrap();
    }
    println!("ready");
    if role == "lazy" {
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
    comm.all_reduce(&mut data, &Call::sum()).unwrap();
    println!("done");
}

fn debug(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::cargo_bin("outlast").unwrap();
    command.arg("debug").args(arguments).env("TMPDIR", folder).output().unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn where_a_run_is_stuck_is_read_from_the_flight_records_of_its_processes() {
    if let Ok(role) = std::env::var(ROLE) {
        return take_part(&role);
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut command = Command::cargo_bin("outlast").unwrap();
    let secret = RunSecret::generate().to_text();
    command
        .args(["coordinator", "--listen", "127.0.0.1:0", "--preset", "local"])
        .env("OUTLAST_SECRET", &secret);
    let mut service = Process::start(command, folder);
    let said = service.wait_for("coordinator at ");
    let address = said.trim().strip_prefix("coordinator at ").unwrap().to_owned();
    let mut eager = Process::play("eager", &address, &secret, folder);
    let mut lazy = Process::play("lazy", &address, &secret, folder);
    eager.wait_for("ready");
    lazy.wait_for("ready");

    // The eager one has said that it is ready and is about to wait: it may take a moment until its call is on record.
    let (pids, mut files) = ([service.pid(), eager.pid(), lazy.pid()], Vec::new());
    let told = loop {
        files.extend(lines(&debug(&[&["dump"], &pids.each_ref().map(String::as_str)[..]].concat(), folder)));
        let told = lines(&debug(&[&["merge", "--text"], &strs(&files)[..]].concat(), folder));
        if told.last().unwrap().contains("not heard of") {
            break told;
        }
        assert!(files.len() < 300, "{}", told.join("\n"));
    };
    let last = told.last().unwrap();
    assert!(last.starts_with("eager ") && last.contains("is in all_reduce for "), "{last}");
    assert!(last.contains("moves bytes; not heard of: lazy "), "{last}");
    // All three calls before are there, as all three processes saw them.
    let verdicts = told.iter().filter(|line| line.contains("heard Commit")).count();
    assert_eq!(verdicts, 6, "{}", told.join("\n"));
    assert!(told.iter().any(|line| line.contains("coordinator 127") && line.contains("heard Complete")));

    let trace = folder.join("trace.json");
    let merge = [&["merge", "--chrome", trace.to_str().unwrap()], &strs(&files)[..]].concat();
    let merged = lines(&debug(&merge, folder));
    let times: Vec<_> = merged
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|line| line["time_us"].as_i64())
        .collect();
    assert!(times.len() > 50 && times.is_sorted(), "one time line");
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let names: Vec<_> = trace["traceEvents"].as_array().unwrap().iter().map(|event| &event["name"]).collect();
    assert!(names.iter().any(|name| name.as_str().unwrap().starts_with("all_reduce (not over")), "{names:?}");

    // Nobody was hurt by being asked.
    lazy.input.write_all(b"\n").unwrap();
    lazy.wait_for("done");
    eager.wait_for("done");
}

fn strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

#[test]
fn a_process_without_a_recorder_is_refused_and_not_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sleep");
    command.arg("60");
    let mut sleeper = Process::start(command, folder.path());
    let refused = debug(&["dump", &sleeper.pid()], folder.path());
    assert_eq!(refused.status.code(), Some(1));
    let words = String::from_utf8(refused.stderr).unwrap();
    assert!(words.contains(&sleeper.pid()) && words.contains("does not answer SIGUSR2"), "{words}");
    assert_eq!(sleeper.child.try_wait().unwrap(), None, "it is still there");

    let missing = PathBuf::from("/nowhere/flight.jsonl");
    let refused = debug(&["merge", missing.to_str().unwrap()], folder.path());
    assert!(String::from_utf8(refused.stderr).unwrap().contains("cannot read /nowhere/flight.jsonl"));
}
