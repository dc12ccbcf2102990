//! What does not retry says who was lost (rule 8): real processes, one of which is killed in the middle of a gather or
//! a transfer.
//!
//! The kernel closes all of a killed process's connections at once, and whose news comes first is chance: often a
//! neighbour misses its data link before the coordinator misses the peer. The program is told of the peer in either
//! case, because only that tells it what to do about its buffers.

use outlast::communicator::{Call, Error};
use outlast::membership::Preset;
use outlast::{Communicator, Coordinator};
use outlast_proto::session::CallError;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "OUTLAST_LOSS_ROLE";
const ADDRESS: &str = "OUTLAST_LOSS_ADDRESS";
const SECRET: &str = "OUTLAST_LOSS_SECRET";
const PEERS: usize = 3;
const ELEMENTS: usize = 1 << 18;
const ROUNDS: u64 = 12;
const PATIENCE: Duration = Duration::from_secs(20);

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n@{line}\n");
    let _ = out.flush();
}

/// Not a test by itself: what the other processes do, when the environment says so.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let setting = |name| std::env::var(name).expect("a setting");
    let comm = Communicator::builder()
        .coordinator(setting(ADDRESS))
        .secret(setting(SECRET).parse().expect("a secret"))
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Local)
        .timeout(PATIENCE)
        .start()
        .expect("a communicator");
    comm.connect(PEERS as u32).expect("admitted");
    say(&format!("id {}", comm.peer_id()));
    match role.as_str() {
        "gather" => gather_until_lost(&comm),
        _ => transfer_until_lost(&comm),
    }
}

/// Sends round and round, for ever; tells whatever goes wrong and waits to be ended.
fn transfer_until_lost(comm: &Communicator) {
    let ids: Vec<_> = comm.peers().iter().map(|peer| peer.id).collect();
    let (next, last) = (ids[(comm.rank() + 1) % PEERS], ids[(comm.rank() + PEERS - 1) % PEERS]);
    let tell = |error: Error| match error.cause() {
        Some(CallError::PeersLost(lost)) => say(&format!("lost {} {:?}", lost[0].0, lost[0].1)),
        _ => say(&format!("other {error}")),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let data = vec![1_u32; 16 * ELEMENTS];
            loop {
                if let Err(error) = comm.send(&data, next, &Call::default()) {
                    return tell(error);
                }
            }
        });
        let mut data = vec![0_u32; 16 * ELEMENTS];
        loop {
            if let Err(error) = comm.recv(&mut data, last, &Call::default()) {
                return tell(error);
            }
        }
    });
}

fn gather_until_lost(comm: &Communicator) {
    let gather = |world: usize| {
        let mut out = vec![0_u32; world * ELEMENTS];
        comm.all_gather(&mut out, &vec![comm.rank() as u32; ELEMENTS], &Call::default())
    };
    let lost = loop {
        match gather(PEERS) {
            Ok(_) => {}
            Err(error) => match error.cause() {
                Some(CallError::PeersLost(lost)) => break lost.clone(),
                _ => return say(&format!("other {error}")),
            },
        }
    };
    let names: Vec<_> = lost.iter().map(|(peer, reason)| format!("{peer} {reason:?}")).collect();
    // What says that its connection closed comes before the epoch that does without it.
    let deadline = Instant::now() + PATIENCE;
    while comm.world_size() == PEERS {
        assert!(Instant::now() < deadline, "the next epoch comes");
        let _ = gather(PEERS);
    }
    match gather(PEERS - 1) {
        Ok(receipt) => say(&format!("lost {} and {} go on", names.join(" "), receipt.world_size)),
        Err(error) => say(&format!("other {error}, after the loss of {names:?}")),
    }
}

struct Worker {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(coordinator: &Coordinator, role: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut process = Command::new(program)
            .args(["role", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(ADDRESS, coordinator.address().to_string())
            .env(SECRET, coordinator.secret().to_text())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        Self { process, lines }
    }

    /// What it says next. It ends by itself, whatever happens, so this does too.
    fn hear(&mut self) -> String {
        let mut said = self.lines.by_ref().map_while(Result::ok);
        said.find_map(|line| line.strip_prefix('@').map(str::to_owned)).unwrap_or_default()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_gather_under_which_a_peer_is_killed_names_it_on_every_survivor() {
    kill_one("gather", " and 2 go on");
}

#[test]
fn a_transfer_under_which_a_peer_is_killed_names_it_on_its_other_end() {
    kill_one("transfer", "");
}

fn kill_one(role: &str, last_words: &str) {
    for round in 0..ROUNDS {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let coordinator = Coordinator::builder().listen(listen).preset(Preset::Local);
        let coordinator = coordinator.start().expect("a coordinator");
        let mut workers: Vec<_> = (0..PEERS).map(|_| Worker::start(&coordinator, role)).collect();
        let ids: Vec<_> = workers.iter_mut().map(Worker::hear).collect();
        // At another moment of a gather every time.
        std::thread::sleep(Duration::from_micros(20_000 + 3_217 * round));
        let mut victim = workers.swap_remove(round as usize % PEERS);
        victim.process.kill().expect("a kill");
        let id = ids[round as usize % PEERS].strip_prefix("id ").expect("an id");
        for survivor in &mut workers {
            let said = survivor.hear();
            assert!(
                said.starts_with(&format!("lost {id} ")) && said.ends_with(last_words),
                "round {round}: {said:?} instead of the loss of {id}"
            );
        }
    }
}
