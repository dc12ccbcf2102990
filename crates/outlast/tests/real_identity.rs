//! Who is who, with real processes (rule 39): what a holder of the secret can say in another's name, and what comes of
//! it; a secret that is rotated under a running run.
//!
//! Each attack is made by somebody who has the secret and makes its own keys. The run must neither lose a peer nor
//! abort a call.

mod gullible;
mod insider;

use outlast::communicator::{Call, Error};
use outlast::membership::Preset;
use outlast::port::DATA;
use outlast::security::{ProcessKey, RunSecret};
use outlast::{Communicator, Coordinator};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::wire::membership::{DeathReason, Record};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const ADDRESS: &str = "OUTLAST_IDENTITY_ADDRESS";
const PATIENCE: Duration = Duration::from_mins(1);

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n@{line}\n");
    let _ = out.flush();
}

/// Not a test by itself: what the other processes do, when the environment says so. Secrets come from the environment,
/// as they do for everybody. It reduces until its input ends, then it leaves.
#[test]
fn role() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let comm = Communicator::builder()
        .coordinator(address)
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .timeout(PATIENCE)
        .start()
        .expect("a communicator");
    if let Err(error) = comm.connect(1) {
        return say(&format!("error {error}"));
    }
    let (ended, input) = channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    loop {
        let mut data = vec![1.0_f32; 1_000];
        let call = comm.all_reduce(&mut data, &Call::sum());
        let call = call.and_then(|receipt| {
            if receipt.pending > 0 {
                comm.update_topology(1)?;
            }
            Ok(receipt)
        });
        match call {
            Ok(receipt) => say(&format!("world {} {}", receipt.world_size, comm.peer_id())),
            Err(error) => return say(&format!("error {error}")),
        }
        if input.recv_timeout(Duration::from_millis(10)) != Err(RecvTimeoutError::Timeout) {
            comm.leave();
            return say("left");
        }
    }
}

struct Worker {
    process: Child,
    lines: Receiver<String>,
}

impl Worker {
    fn start(address: SocketAddr, secret: &RunSecret, accepted: Option<&RunSecret>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["role", "--exact", "--nocapture"])
            .env(ADDRESS, address.to_string())
            .env("OUTLAST_SECRET", secret.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(accepted) = accepted {
            command.env("OUTLAST_ACCEPT_SECRET", accepted.to_text());
        }
        let mut process = command.spawn().expect("a process");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (heard, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix('@') {
                    let _ = heard.send(line.to_owned());
                }
            }
        });
        Self { process, lines }
    }

    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something in time")
    }

    /// Until it has committed a call with so many. Nothing may go wrong meanwhile.
    fn until_world(&self, size: usize) -> PeerId {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = self.next();
            let mut words = line.split(' ');
            assert_eq!(words.next(), Some("world"), "{line}");
            assert!(Instant::now() < deadline, "never {size}: {line}");
            if words.next() == Some(&size.to_string()) {
                return peer_id(words.next().expect("an id"));
            }
        }
    }

    /// For so long every call commits, with so many.
    fn stays_in(&self, size: usize, time: Duration) {
        let (until, mut commits) = (Instant::now() + time, 0);
        while self.lines.try_recv().is_ok() {}
        while Instant::now() < until {
            let line = self.next();
            assert!(line.starts_with(&format!("world {size} ")), "{line}");
            commits += 1;
        }
        assert!(commits > 10, "{commits} commits in {time:?}");
    }

    fn leave(mut self) {
        drop(self.process.stdin.take());
        while self.next() != "left" {}
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn peer_id(text: &str) -> PeerId {
    PeerId::from_bytes(u128::from_str_radix(text, 16).expect("an id").to_be_bytes())
}

fn run() -> RunId {
    "default".parse().expect("a run id")
}

fn number(coordinator: &Coordinator, field: &str) -> u64 {
    let status = coordinator.status(&run()).expect("an answer").expect("a run");
    let (_, rest) =
        status.split_once(&format!("\"{field}\":")).unwrap_or_else(|| panic!("{field} in {status}"));
    rest.split(|digit: char| !digit.is_ascii_digit()).next().expect("a number").parse().expect("a number")
}

/// The ids and addresses of the run's peers.
fn places(coordinator: &Coordinator) -> Vec<(PeerId, SocketAddr)> {
    let status = coordinator.status(&run()).expect("an answer").expect("a run");
    let field = |entry: &str, name: &str| {
        let (_, rest) = entry.split_once(&format!("\"{name}\":\"")).expect("a field");
        rest.split('"').next().expect("its end").to_owned()
    };
    let (_, peers) = status.split_once("\"peers\":[").expect("peers");
    let (peers, _) = peers.split_once("\"groups\":").expect("their end");
    let entries = peers.split('{').filter(|entry| entry.starts_with("\"id\":"));
    let place = |entry| (peer_id(&field(entry, "id")), field(entry, "address").parse().expect("an address"));
    entries.map(place).collect()
}

fn trio() -> (Coordinator, Vec<Worker>) {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let coordinator =
        Coordinator::builder().listen(listen).preset(Preset::Local).start().expect("a coordinator");
    let workers: Vec<_> =
        (0..3).map(|_| Worker::start(coordinator.address(), coordinator.secret(), None)).collect();
    for worker in &workers {
        worker.until_world(3);
    }
    (coordinator, workers)
}

#[test]
fn no_datagram_of_a_holder_of_the_secret_puts_anybody_out() {
    let (coordinator, workers) = trio();
    let secret = coordinator.secret();
    let places = places(&coordinator);
    assert_eq!(places.len(), 3);
    let (evictions, aborts) = (number(&coordinator, "evictions"), number(&coordinator, "aborts"));
    let (victim, _) = places[0];
    let accusers = vec![places[1].0, places[2].0];
    let dead = |reason| Record::Dead { member: victim, incarnation: 0, reason, accusers: accusers.clone() };
    let words = [
        dead(DeathReason::Exited),
        dead(DeathReason::Evicted),
        dead(DeathReason::Refused),
        dead(DeathReason::StalledTooLong),
        Record::Dead { member: victim, incarnation: 1_000, reason: DeathReason::Exited, accusers: vec![] },
        Record::Leave { member: victim, incarnation: 1_001 },
    ];
    for word in words {
        for (_, told) in &places[1..] {
            insider::say(secret, &run(), ProcessKey::generate().peer(), *told, vec![word.clone()]);
        }
    }
    // And as if the victim itself had said goodbye.
    let goodbye = Record::Leave { member: victim, incarnation: 2_000 };
    insider::say(secret, &run(), victim, places[1].1, vec![goodbye]);
    for worker in &workers {
        worker.stays_in(3, Duration::from_secs(3));
    }
    assert_eq!((number(&coordinator, "evictions"), number(&coordinator, "aborts")), (evictions, aborts));
}

#[test]
fn nobody_opens_a_data_link_in_anothers_name() {
    let (coordinator, workers) = trio();
    let secret = coordinator.secret();
    let places = places(&coordinator);
    assert_eq!(places.len(), 3);
    let (evictions, aborts) = (number(&coordinator, "evictions"), number(&coordinator, "aborts"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for _ in 0..5 {
        for (owner, address) in &places {
            for (name, _) in places.iter().filter(|(name, _)| name != owner) {
                let (certificate, key) = insider::stolen_name(secret, &run(), *name);
                runtime.block_on(async {
                    let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
                    gullible::call_with(stream, certificate, key, &run(), DATA).await;
                });
            }
        }
    }
    for worker in &workers {
        worker.stays_in(3, Duration::from_secs(1));
    }
    assert_eq!((number(&coordinator, "evictions"), number(&coordinator, "aborts")), (evictions, aborts));
}

#[test]
fn a_secret_is_rotated_under_a_running_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("coordinator.key");
    let (old, new) = (RunSecret::generate(), RunSecret::generate());
    let coordinator = coordinator_at("127.0.0.1:0".parse().expect("an address"), &[&old], Some(&key));
    let address = coordinator.address();
    let first = [(); 2].map(|()| Worker::start(address, &old, None));
    first.iter().for_each(|worker| _ = worker.until_world(2));

    // The coordinator takes both; its peers notice a pause.
    drop(coordinator);
    let coordinator = coordinator_at(address, &[&new, &old], Some(&key));
    first.iter().for_each(|worker| worker.stays_in(2, Duration::from_secs(1)));

    // Peers are replaced in turn. Both kinds reduce together, and see each other's health.
    let second = [(); 2].map(|()| Worker::start(address, &new, Some(&old)));
    first.iter().chain(&second).for_each(|worker| _ = worker.until_world(4));
    first.iter().chain(&second).for_each(|worker| worker.stays_in(4, Duration::from_secs(3)));
    first.into_iter().for_each(Worker::leave);
    second.iter().for_each(|worker| _ = worker.until_world(2));

    // Now the old one is not accepted any more.
    drop(coordinator);
    let coordinator = coordinator_at(address, &[&new], Some(&key));
    let third = Worker::start(address, &new, None);
    second.iter().chain([&third]).for_each(|worker| _ = worker.until_world(3));
    let late = Worker::start(address, &old, None);
    let refused = late.next();
    assert!(refused.starts_with("error ") && refused.contains("secret"), "{refused}");
    second.iter().chain([&third]).for_each(|worker| worker.stays_in(3, Duration::from_secs(1)));
    assert_eq!(number(&coordinator, "evictions"), 0);
}

/// A coordinator with the first of these secrets, which accepts the others. The port of the one before is free at once.
fn coordinator_at(listen: SocketAddr, secrets: &[&RunSecret], key: Option<&Path>) -> Coordinator {
    let mut builder = Coordinator::builder().listen(listen).preset(Preset::Local).secret(secrets[0].clone());
    for accepted in &secrets[1..] {
        builder = builder.accept_secret((*accepted).clone());
    }
    if let Some(path) = key {
        builder = builder.key_file(path);
    }
    builder.start().expect("a coordinator")
}

#[test]
fn a_peer_takes_nobody_else_for_a_coordinator_that_keeps_its_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("coordinator.key");
    let secret = RunSecret::generate();
    let coordinator = coordinator_at("127.0.0.1:0".parse().expect("an address"), &[&secret], Some(&key));
    let address = coordinator.address();
    let comm = Communicator::builder()
        .coordinator(address.to_string())
        .secret(secret.clone())
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .timeout(Duration::from_secs(20))
        .start()
        .expect("a communicator");
    let me = comm.peer_id();
    comm.connect(1).expect("admitted");
    let status = coordinator.status(&run()).expect("an answer").expect("a run");
    assert!(status.contains("\"key_is_kept\":true"), "{status}");
    drop(coordinator);

    // Somebody else who has the secret answers at the address.
    let impostor = coordinator_at(address, &[&secret], None);
    std::thread::sleep(Duration::from_secs(1));
    let believed = impostor.status(&run()).expect("an answer");
    assert!(believed.is_none_or(|status| status.contains("\"peers\":[]")));
    drop(impostor);

    // The true one comes back, and was only a pause.
    let coordinator = coordinator_at(address, &[&secret], Some(&key));
    comm.barrier(&Call::default()).expect("it goes on");
    comm.leave();
    drop(coordinator);

    // Who connects again is the same peer, and still knows its coordinator.
    let impostor = coordinator_at(address, &[&secret], None);
    let error = comm.connect(1).expect_err("refused");
    assert!(matches!(error, Error::Unauthorized(_)), "{error:?}");
    assert!(error.to_string().contains("is not the coordinator that this peer registered with"), "{error}");
    drop(impostor);
    let _coordinator = coordinator_at(address, &[&secret], Some(&key));
    comm.connect(1).expect("admitted again");
    assert_eq!(comm.peer_id(), me, "one key, one name");
}

#[test]
fn a_coordinator_that_keeps_no_key_is_believed_and_says_so() {
    let secret = RunSecret::generate();
    let coordinator = coordinator_at("127.0.0.1:0".parse().expect("an address"), &[&secret], None);
    let worker = Worker::start(coordinator.address(), &secret, None);
    worker.until_world(1);
    let status = coordinator.status(&run()).expect("an answer").expect("a run");
    assert!(status.contains("\"key_is_kept\":false"), "{status}");
    let address = coordinator.address();
    drop(coordinator);
    let another = coordinator_at(address, &[&secret], None);
    // A sole member is heard after a control grace: until then others may come who know better (rule 41).
    let deadline = Instant::now() + PATIENCE;
    while another.status(&run()).ok().flatten().is_none_or(|status| !status.contains("\"world_size\":1")) {
        assert!(Instant::now() < deadline, "it is taken back");
        std::thread::sleep(Duration::from_millis(20));
    }
    while worker.lines.try_recv().is_ok() {}
    worker.until_world(1);
    worker.stays_in(1, Duration::from_secs(1));
}

#[test]
fn a_coordinator_that_has_just_made_its_key_waits_for_nobody_of_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("coordinator.key");
    let secret = RunSecret::generate();
    // A fixed port, as far as the coordinator knows.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("it is bound");
    drop(free);
    // Its control grace is 15 seconds, and the peers wait less.
    let start = || {
        let builder = Coordinator::builder().listen(address).preset(Preset::Wan).secret(secret.clone());
        builder.key_file(&key).start()
    };
    let connect = |patience: Duration| {
        let comm = Communicator::builder()
            .coordinator(address.to_string())
            .secret(secret.clone())
            .listen("127.0.0.1:0".parse().expect("an address"))
            .preset(Preset::Wan)
            .timeout(patience)
            .start()
            .expect("a communicator");
        comm.connect(1).map(|_| comm.leave())
    };
    let coordinator = start().expect("the port was free a moment ago");
    connect(Duration::from_secs(12)).expect("the first start ever: nobody can be on the way back");
    drop(coordinator);
    // The next one may be what peers of this one come back to.
    let deadline = Instant::now() + PATIENCE;
    let _coordinator = loop {
        match start() {
            Ok(coordinator) => break coordinator,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let error = connect(Duration::from_secs(1)).expect_err("members of before have their time");
    assert!(matches!(error, Error::NotAdmitted { .. }), "{error:?}");
}
