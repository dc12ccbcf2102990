//! `outlast coordinator` and `outlast status` as a person uses them: one prints what the other needs.

#[path = "common/exit.rs"]
mod exit;

use assert_cmd::cargo::CommandCargoExt as _;
use exit::wait_exit;
use outlast::Communicator;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn outlast(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("outlast").unwrap();
    command.env("XDG_RUNTIME_DIR", folder);
    for name in
        ["OUTLAST_SECRET", "OUTLAST_SECRET_FILE", "OUTLAST_COORDINATOR", "OUTLAST_RUN_ID", "OUTLAST_LOG"]
    {
        command.env_remove(name);
    }
    command
}

struct Service {
    process: Child,
    address: String,
    secret: PathBuf,
}

impl Service {
    fn start(folder: &Path) -> Self {
        Self::start_with_log(folder, Stdio::inherit())
    }

    fn start_with_log(folder: &Path, log: Stdio) -> Self {
        let mut command = outlast(folder);
        command.args(["coordinator", "--listen", "localhost:0", "--preset", "local"]);
        let mut process = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let usage = lines.into_iter().find(|line| line.starts_with("peers use:")).expect("how to use it");
        let after = |name: &str| {
            let text = usage.split(' ').find_map(|word| word.strip_prefix(name));
            text.unwrap_or_else(|| panic!("no {name} in {usage:?}")).to_owned()
        };
        let (address, secret) = (after("OUTLAST_COORDINATOR="), after("OUTLAST_SECRET_FILE=").into());
        Self { process, address, secret }
    }

    fn status(&self, folder: &Path, more: &[&str]) -> Output {
        let mut command = outlast(folder);
        command.args(["status", "--coordinator", &self.address, "--secret-file"]).arg(&self.secret);
        command.args(more).output().unwrap()
    }

    /// SIGTERM, and how it ended.
    fn stop(&mut self) -> Option<i32> {
        let pid = i32::try_from(self.process.id()).unwrap();
        // SAFETY: a signal to a child that we have not waited for.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
        wait_exit(&mut self.process, "the coordinator", Duration::from_secs(10)).code()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_coordinator_says_how_it_is_used_and_status_shows_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::start(folder.path());
    assert_eq!(std::fs::metadata(&service.secret).unwrap().mode() & 0o777, 0o600);

    let empty = service.status(folder.path(), &[]);
    let text = String::from_utf8(empty.stdout).unwrap();
    assert!(
        empty.status.success() && text.contains("there is no run default here: nobody has joined it"),
        "{text}"
    );

    let comm = Communicator::builder()
        .coordinator(&*service.address)
        .secret(RunSecret::from_file(&service.secret).unwrap())
        .listen("127.0.0.1:0".parse().unwrap())
        .preset(Preset::Local)
        .name("ada")
        .start()
        .unwrap();
    comm.connect(1).unwrap();
    let text = String::from_utf8(service.status(folder.path(), &[]).stdout).unwrap();
    assert!(text.contains("ada") && text.contains("Idle") && text.contains("alive"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let mistyped = service.status(folder.path(), &["--run-id", "defualt"]);
    let mistyped = String::from_utf8(mistyped.stdout).unwrap().replace("\n  ", " ");
    assert!(mistyped.contains("there is no run defualt here: nobody has joined it"), "{mistyped}");
    assert!(mistyped.contains("runs here: default (1 peer)"), "{mistyped}");
    let json = service.status(folder.path(), &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (json["peers"][0]["name"].as_str(), json["peers"][0]["rank"].as_u64()),
        (Some("ada"), Some(0))
    );

    assert_eq!(service.stop(), Some(0));
    let gone = service.status(folder.path(), &[]);
    assert_eq!(gone.status.code(), Some(69), "{gone:?}");
    let said = String::from_utf8(gone.stderr).unwrap();
    assert!(
        said.contains(&service.address) && said.contains("is it running there? Start one with"),
        "{said}"
    );
    let odd = outlast(folder.path()).args(["status", "--coordinator", "localhost"]).output().unwrap();
    assert_eq!(odd.status.code(), Some(64), "{odd:?}");
    assert!(String::from_utf8(odd.stderr).unwrap().contains("write host:port, or several"), "what to write");
}

fn member(service: &Service) -> outlast::Store {
    outlast::Store::builder()
        .coordinator(&*service.address)
        .secret(RunSecret::from_file(&service.secret).unwrap())
        .listen("127.0.0.1:0".parse().unwrap())
        .preset(Preset::Local)
        .timeout(Duration::from_secs(20))
        .join()
        .unwrap()
}

#[test]
fn status_shows_what_a_store_holds_and_who_waits() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path());
    let stores = [member(&service), member(&service)];
    for number in 0..10 {
        stores[0].set(format!("key/{number}"), [0; 1_000]).unwrap();
    }
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| stores[1].get("late", None))).collect();
        // Members say what they hold whenever they say that they live.
        let deadline = Instant::now() + Duration::from_secs(20);
        let text = loop {
            let text = String::from_utf8(service.status(folder.path(), &[]).stdout).unwrap();
            if text.contains("; 10 keys, ") && text.contains(" bytes with copies, 3 calls wait") {
                break text;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(text.contains(" of 2 members; "), "{text}");
        let bytes = text.split("keys, ").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
        assert!(bytes >= 20_000, "ten values of 1,000 bytes, twice: {text}");
        // The rows of the table say the same, of each member.
        let heading = |line: &&str| {
            line.split_whitespace().eq(["rank", "name", "address", "state", "keys", "bytes", "waits"])
        };
        let mut rows = text.lines().skip_while(|line| !heading(line)).skip(1).take(2);
        let mut sums = [0, 0, 0];
        for row in &mut rows {
            let columns: Vec<_> = row.split_whitespace().collect();
            let numbers = columns[columns.len() - 3..].iter().map(|number| number.parse::<u64>().unwrap());
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        assert_eq!(sums, [10, bytes, 3], "{text}");
        stores[0].set("late", "here").unwrap();
        waiting.into_iter().for_each(|waiting| assert_eq!(waiting.join().unwrap().unwrap(), b"here"));
    });
}

#[test]
fn every_store_command_prints_one_object_with_json() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path());
    let store = member(&service);
    let ask = |words: &[&str]| -> serde_json::Value {
        let mut command = outlast(folder.path());
        command.args(["store", "--coordinator", &service.address, "--secret-file"]).arg(&service.secret);
        let output = command.arg("--json").args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        assert!(output.stdout.ends_with(b"\n"), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(ask(&["set", "text", "value"]), json(r#"{"key": "text", "bytes": 5}"#));
    assert_eq!(ask(&["wait", "text"]), json(r#"{"keys": ["text"]}"#));
    assert_eq!(ask(&["add", "n", "-2"]), json(r#"{"key": "n", "sum": -2}"#));
    assert_eq!(ask(&["cas", "text", "value", "other"]), json(r#"{"key": "text", "value": "other"}"#));
    assert_eq!(ask(&["cas", "text", "value", "third"]), json(r#"{"key": "text", "value": "other"}"#));
    assert_eq!(ask(&["del", "text"]), json(r#"{"key": "text", "deleted": true}"#));
    assert_eq!(ask(&["del", "text"]), json(r#"{"key": "text", "deleted": false}"#));
    store.set("bytes", [0xff, 0]).unwrap();
    assert_eq!(ask(&["get", "bytes"]), json(r#"{"key": "bytes", "value_hex": "ff00"}"#));
    assert_eq!(ask(&["keys"]), json(r#"{"keys": [{"key": "bytes"}, {"key": "n"}]}"#));
}

/// A flood was to be seen only by whoever asked for a log beforehand.
#[test]
fn strangers_are_told_of_without_being_asked() {
    use std::io::{Read as _, Write as _};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordinator.log");
    let service = Service::start_with_log(folder.path(), std::fs::File::create(&path).unwrap().into());
    for _ in 0..3 {
        let mut stranger = std::net::TcpStream::connect(&service.address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        // Until it hangs up.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let log = loop {
        let log = std::fs::read_to_string(&path).unwrap();
        if log.contains("refused a connection") {
            break log;
        }
        assert!(Instant::now() < deadline, "never told: {log:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(log.contains("WARN") && log.contains("not a TLS 1.3 handshake"), "{log}");
    assert!(!log.contains('\x1b'), "no colours in a file: {log:?}");
    assert_eq!(log.lines().count(), 1, "one line for all of them: {log}");

    let text = String::from_utf8(service.status(folder.path(), &[]).stdout).unwrap();
    assert!(text.contains("refused: not tls 3") && text.contains("127.0.0.1 (3 times)"), "{text}");
    let json = service.status(folder.path(), &["--json"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["port"]["refused"]["not_tls"], 3, "{json}");
}

#[test]
fn a_question_without_the_secret_says_where_to_find_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = outlast(folder.path()).arg("status").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("OUTLAST_SECRET_FILE"));
}

/// A pseudo-terminal: the end that a person would look at, and the end that a program writes to.
fn terminal() -> (std::fs::File, std::fs::File) {
    use std::os::fd::FromRawFd as _;
    let (mut ours, mut theirs) = (-1, -1);
    let nothing = std::ptr::null_mut();
    // SAFETY: both descriptors are written on success, and nothing else is asked for.
    let outcome =
        unsafe { libc::openpty(&raw mut ours, &raw mut theirs, nothing, nothing.cast(), nothing.cast()) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: two fresh descriptors that nobody else owns.
    unsafe { (std::fs::File::from_raw_fd(ours), std::fs::File::from_raw_fd(theirs)) }
}

/// Reads what a terminal shows, on a thread of its own, and waits for it.
struct Screen(std::sync::mpsc::Receiver<String>, String);

impl Screen {
    fn of(mut terminal: std::fs::File) -> Self {
        use std::io::Read as _;
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A terminal whose other end is gone ends with an error.
            while let Ok(length @ 1..) = terminal.read(&mut buffer) {
                if sender.send(String::from_utf8_lossy(&buffer[..length]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self(receiver, String::new())
    }

    /// Waits until what was shown since the last call contains all of these, in this order.
    fn shows(&mut self, words: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let found = words
                .iter()
                .try_fold(0, |from, word| self.1[from..].find(word).map(|at| from + at + word.len()));
            if let Some(end) = found {
                self.1.drain(..end);
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.0.recv_timeout(left) {
                Ok(text) => self.1.push_str(&text),
                Err(error) => panic!("{words:?} did not appear in {:?}: {error}", self.1),
            }
        }
    }
}

#[test]
fn watching_in_a_terminal_redraws_and_survives_the_coordinator() {
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::start(folder.path());
    let (ours, theirs) = terminal();
    let mut command = outlast(folder.path());
    command
        .args(["status", "--watch", "--coordinator", &service.address, "--secret-file"])
        .arg(&service.secret);
    let mut watcher = command.stdin(Stdio::null()).stdout(theirs).spawn().unwrap();
    drop(command);
    let mut screen = Screen::of(ours);
    screen.shows(&[CLEAR, "there is no run default here"]);
    let comm = Communicator::builder()
        .coordinator(&*service.address)
        .secret(RunSecret::from_file(&service.secret).unwrap())
        .listen("127.0.0.1:0".parse().unwrap())
        .preset(Preset::Local)
        .name("grace")
        .start()
        .unwrap();
    comm.connect(1).unwrap();
    screen.shows(&[CLEAR, "grace", "Idle", "nobody waits for anybody"]);
    assert_eq!(service.stop(), Some(0));
    screen.shows(&[CLEAR, "cannot be reached"]);
    // SAFETY: a signal to a child that we have not waited for.
    assert_eq!(unsafe { libc::kill(i32::try_from(watcher.id()).unwrap(), libc::SIGINT) }, 0);
    let status = wait_exit(&mut watcher, "the watcher", Duration::from_secs(10));
    assert!(status.success(), "{status}");
}

/// A peer answers for itself, whatever its coordinator does; and nobody without the secret is told anything.
#[test]
fn a_peer_tells_what_it_sees_and_does_also_without_its_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::start(folder.path());
    let (secret, coordinator) = (service.secret.clone(), service.address.clone());
    let start = |name: &str| {
        Communicator::builder()
            .coordinator(&*coordinator)
            .secret(RunSecret::from_file(&secret).unwrap())
            .listen("127.0.0.1:0".parse().unwrap())
            .preset(Preset::Local)
            .name(name)
            .start()
            .unwrap()
    };
    let (ada, bob) = (start("ada"), start("bob"));
    std::thread::scope(|scope| {
        for comm in [&ada, &bob] {
            scope.spawn(|| comm.connect(2).unwrap());
        }
    });
    let json = service.status(folder.path(), &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let peers = json["peers"].as_array().unwrap();
    let address =
        peers.iter().find(|peer| peer["name"] == "ada").unwrap()["address"].as_str().unwrap().to_owned();
    let ask = |secret: &Path, more: &[&str]| {
        let mut command = outlast(folder.path());
        command.current_dir(folder.path()).args(more).args(["--peer", &address, "--secret-file"]).arg(secret);
        command.output().unwrap()
    };
    let seen = |more: &[&str]| -> serde_json::Value {
        let output = ask(&secret, &[&["status", "--json"], more].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    // Ada is in a call that bob does not make.
    let interrupt = outlast::communicator::Interrupt::new();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let call = outlast::communicator::Call::sum().tag(7).interrupt(&interrupt);
            ada.all_reduce(&mut vec![1.0f32; 100_000], &call).unwrap_err()
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        let account = loop {
            let account = seen(&[]);
            let is_up = |link: &serde_json::Value| link["name"] == "bob" && link["state"] == "up";
            let list = |name: &str| account[name].as_array().unwrap();
            // What happened comes by way of the coordinator, a moment later than the call begins.
            if !list("calls").is_empty() && list("links").iter().any(is_up) && list("events").len() > 1 {
                break account;
            }
            assert!(Instant::now() < deadline, "{account:#}");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(account["standing"], "in", "{account:#}");
        assert_eq!(account["view"]["world_size"], 2, "{account:#}");
        assert_eq!(account["calls"][0]["tag"], 7, "{account:#}");
        assert!(account["calls"][0]["state"].as_str().unwrap().starts_with("moves bytes"), "{account:#}");
        assert!(account["calls"][0]["age_seconds"].as_f64().unwrap() >= 0.0, "{account:#}");
        assert_eq!(account["members"].as_array().unwrap().len(), 2, "{account:#}");
        assert!(account["port"]["authenticated"].as_u64().unwrap() > 0, "{account:#}");
        assert_eq!(service.stop(), Some(0));
        let deadline = Instant::now() + Duration::from_secs(20);
        let text = loop {
            let text = String::from_utf8(ask(&secret, &["status"]).stdout).unwrap();
            if text.contains("NOT connected") {
                break text;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(text.contains("all_reduce(") && text.contains("under tag 7"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let dumped = ask(&secret, &["debug", "dump"]);
        assert!(dumped.status.success(), "{dumped:?}");
        let file = folder.path().join(String::from_utf8(dumped.stdout).unwrap().trim());
        let record = std::fs::read_to_string(file).unwrap();
        assert!(record.lines().next().unwrap().contains("\"name\":\"ada\""), "{record}");
        assert!(record.contains("all_reduce"), "{record}");
        interrupt.trigger();
        waits.join().unwrap();
    });
    let other = folder.path().join("other.secret");
    std::fs::write(&other, RunSecret::generate().to_text()).unwrap();
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for command in [&["status"][..], &["debug", "dump"]] {
        let stranger = ask(&other, command);
        assert!(!stranger.status.success() && stranger.stdout.is_empty(), "{stranger:?}");
        assert!(String::from_utf8(stranger.stderr).unwrap().contains(&address), "it names what it asked");
    }
}
