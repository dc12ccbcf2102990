//! A coordinator on `--backend file:PATH`: killed and started again it counts on, and one at a time has the file.

#[path = "common/exit.rs"]
mod exit;

use exit::wait_exit;
use outlast::Communicator;
use outlast::communicator::Call;
use outlast::membership::Preset;
use outlast::security::RunSecret;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(40);

struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(listen: &str, file: &Path, secret: &RunSecret) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
    command
        .args(["coordinator", "--preset", "local", "--listen", listen, "--backend"])
        .arg(format!("file:{}", file.display()))
        .env("OUTLAST_SECRET", secret.to_text())
        .env_remove("OUTLAST_SECRET_FILE")
        .stdin(Stdio::null());
    command
}

/// Starts one, and says where it listens.
fn start(listen: &str, file: &Path, secret: &RunSecret) -> (Service, String) {
    let mut process =
        command(listen, file, secret).stdout(Stdio::piped()).spawn().expect("the program starts");
    let lines = BufReader::new(process.stdout.take().expect("its output")).lines().map_while(Result::ok);
    // To its last line: whoever hangs up earlier ends it.
    let address = lines.into_iter().find_map(|line| {
        let (_, rest) = line.split_once("OUTLAST_COORDINATOR=")?;
        Some(rest.split(' ').next().unwrap_or(rest).to_owned())
    });
    (Service(process), address.expect("where it listens"))
}

fn status(address: &str, secret: &RunSecret) -> serde_json::Value {
    let run = "default".parse().unwrap();
    let text = outlast::coordinator::ask_status(address, secret, &run, PATIENCE).expect("an answer");
    serde_json::from_str(&text).expect("JSON")
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come about within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_coordinator_goes_on_from_its_file_under_a_higher_term() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secret) = (folder.path().join("coordinator.redb"), RunSecret::generate());
    let (service, address) = start("127.0.0.1:0", &file, &secret);
    let (stop, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let peers = [0, 1].map(|_| {
        let comm = Communicator::builder()
            .coordinator(&*address)
            .secret(secret.clone())
            .listen("127.0.0.1:0".parse().unwrap())
            .preset(Preset::Local)
            .timeout(PATIENCE);
        let (comm, stop, commits) = (comm.start().unwrap(), Arc::clone(&stop), Arc::clone(&commits));
        std::thread::spawn(move || {
            comm.connect(2).expect("admitted");
            // Both must stop after the same step, so that nobody waits for the other.
            loop {
                let mut wish = vec![i32::from(stop.load(Ordering::Relaxed))];
                let receipt = comm.all_reduce(&mut wish, &Call::sum()).expect("a commit");
                assert_eq!(receipt.contributors.len(), 2, "nobody was lost");
                commits.fetch_add(1, Ordering::Relaxed);
                if wish[0] > 0 {
                    return;
                }
            }
        })
    });
    wait_for("the first commits", || commits.load(Ordering::Relaxed) > 10);
    let before = status(&address, &secret);
    assert_eq!(before["key_is_kept"], true);

    // One file, one coordinator.
    let mut second = command("127.0.0.1:0", &file, &secret).stderr(Stdio::piped()).spawn().unwrap();
    assert!(!wait_exit(&mut second, "the second coordinator", PATIENCE).success());
    let said = std::io::read_to_string(second.stderr.take().unwrap()).unwrap();
    assert!(said.contains("in use by another coordinator"), "{said}");

    drop(service); // SIGKILL.
    let (_again, same) = start(&address, &file, &secret);
    assert_eq!(same, address);
    let then = commits.load(Ordering::Relaxed);
    wait_for("commits under the next reign", || commits.load(Ordering::Relaxed) > then + 10);
    let after = status(&address, &secret);
    assert!(after["term"].as_u64() > before["term"].as_u64(), "{} then {}", before["term"], after["term"]);
    assert_eq!(after["world_size"], 2);
    stop.store(true, Ordering::Relaxed);
    for peer in peers {
        peer.join().expect("a peer's program");
    }
}
