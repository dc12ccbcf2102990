//! The honest people: a coordinator and workers, each a process with 1,024 files, that add numbers up for ever.

use crate::holder::Holder;
use outlast::communicator::Call;
use outlast::membership::{MembershipBuilder, Preset};
use outlast::security::RunSecret;
use outlast::{Communicator, Coordinator, Membership};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const ROLE: &str = "OUTLAST_HOSTILE_ROLE";
const ADDRESS: &str = "OUTLAST_HOSTILE_ADDRESS";
const SECRET: &str = "OUTLAST_HOSTILE_SECRET";
const WORLD: &str = "OUTLAST_HOSTILE_WORLD";
/// What a shell gives.
const FILES: u64 = 1_024;
const ELEMENTS: usize = 1_000;
/// How long any single thing may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n@{line}\n");
    let _ = out.flush();
}

/// What this process does if it was started for a role.
pub(crate) fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // Ends with the parent.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    let setting = |name| std::env::var(name).expect("a setting");
    let secret: RunSecret = setting(SECRET).parse().expect("a secret");
    if role == "coordinator" {
        let listen = std::env::var(ADDRESS).unwrap_or_else(|_| "127.0.0.1:0".to_owned());
        let listen = listen.parse().expect("an address");
        let coordinator = Coordinator::builder().listen(listen).secret(secret).preset(Preset::Lan);
        let coordinator = coordinator.start().expect("a coordinator");
        say(&format!("at {}", coordinator.address()));
        loop {
            std::thread::park();
        }
    }
    let comm = Communicator::builder()
        .coordinator(setting(ADDRESS))
        .secret(secret)
        .listen("127.0.0.1:0".parse().expect("an address"))
        .preset(Preset::Lan)
        .timeout(PATIENCE)
        .name(role)
        .start()
        .expect("a communicator");
    if let Err(error) = comm.connect(setting(WORLD).parse().expect("a number")) {
        return say(&format!("error {error}"));
    }
    let me = comm.peers().into_iter().find(|peer| peer.id == comm.peer_id()).expect("this peer");
    say(&format!("at {}", me.address));
    loop {
        let mut data = vec![1_u32; ELEMENTS];
        let began = Instant::now();
        let receipt = match comm.all_reduce(&mut data, &Call::sum()) {
            Ok(receipt) => receipt,
            Err(error) => return say(&format!("error {error}")),
        };
        let took = began.elapsed().as_micros();
        assert!(data.iter().all(|sum| *sum as usize == receipt.world_size), "every sum is right");
        say(&format!("step {} {took}", receipt.world_size));
        if receipt.pending > 0
            && let Err(error) = comm.update_topology(1)
        {
            return say(&format!("error {error}"));
        }
    }
}

/// One process.
struct Actor {
    name: String,
    address: SocketAddr,
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Actor {
    fn start(name: &str, settings: &[(&str, String)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["role", "--exact", "--nocapture"]).env(ROLE, name).stdin(Stdio::piped());
        command.envs(settings.iter().map(|(name, value)| (name, value))).stdout(Stdio::piped());
        // SAFETY: setrlimit is a bare system call.
        unsafe {
            command.pre_exec(|| {
                let maximum = getrlimit(Resource::Nofile).maximum;
                Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum })?)
            });
        }
        let mut process = command.spawn().expect("a process");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            for line in lines.filter_map(|line| line.strip_prefix('@').map(str::to_owned)) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self { name: name.to_owned(), address: ([0, 0, 0, 0], 0).into(), process, lines }
    }

    fn hear(&self) -> String {
        let said = self.lines.recv_timeout(PATIENCE);
        said.unwrap_or_else(|_| panic!("{} says nothing more", self.name))
    }

    /// Waits until it says where it is.
    fn settle(&mut self) {
        let said = self.hear();
        let address = said.strip_prefix("at ").unwrap_or_else(|| panic!("{}: {said}", self.name));
        self.address = address.parse().expect("an address");
    }

    /// The next step's world size and duration.
    fn step(&self) -> (usize, Duration) {
        let said = self.hear();
        let words: Vec<_> = said.split(' ').collect();
        match words[..] {
            ["step", world, micros] => {
                (world.parse().unwrap(), Duration::from_micros(micros.parse().unwrap()))
            }
            _ => panic!("{}: {said}", self.name),
        }
    }

    fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.process.id()));
        files.expect("the process lives").count()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A coordinator and its workers.
pub(crate) struct Stage {
    secret: RunSecret,
    coordinator: Actor,
    workers: Vec<Actor>,
}

impl Stage {
    /// A run of so many workers that have begun to train.
    pub(crate) fn new(world: usize) -> Self {
        // The strangers are in this process, and there are many.
        outlast::port::raise_files_max();
        let secret = RunSecret::generate();
        let mut coordinator = Actor::start("coordinator", &[(SECRET, secret.to_text())]);
        coordinator.settle();
        let mut stage = Self { secret, coordinator, workers: Vec::new() };
        (0..world).for_each(|_| stage.add(world));
        stage.workers.iter_mut().for_each(Actor::settle);
        stage.everybody_steps(10, world);
        stage
    }

    fn add(&mut self, world: usize) {
        let settings = [
            (SECRET, self.secret.to_text()),
            (ADDRESS, self.coordinator().to_string()),
            (WORLD, world.to_string()),
        ];
        self.workers.push(Actor::start(&format!("worker{}", self.workers.len()), &settings));
    }

    /// One more worker, which is in when this returns.
    pub(crate) fn enter(&mut self) {
        self.add(1);
        // The others say so many steps meanwhile that nobody need read them.
        self.workers.last_mut().expect("just added").settle();
    }

    /// The coordinator is killed, and another one started in its place, which serves when this returns.
    pub(crate) fn restart_coordinator(&mut self) {
        self.stop_coordinator();
        self.start_coordinator();
    }

    pub(crate) fn stop_coordinator(&mut self) {
        let _ = self.coordinator.process.kill();
        let _ = self.coordinator.process.wait();
    }

    /// Another one, in the place of the one that was stopped.
    pub(crate) fn start_coordinator(&mut self) {
        let address = self.coordinator().to_string();
        self.coordinator =
            Actor::start("coordinator", &[(SECRET, self.secret.to_text()), (ADDRESS, address)]);
        self.coordinator.settle();
    }

    pub(crate) fn secret(&self) -> &RunSecret {
        &self.secret
    }

    pub(crate) fn coordinator(&self) -> SocketAddr {
        self.coordinator.address
    }

    pub(crate) fn everybodys_ports(&self) -> Vec<SocketAddr> {
        let workers = self.workers.iter().map(|worker| worker.address);
        std::iter::once(self.coordinator()).chain(workers).collect()
    }

    /// Waits until everybody has made so many more steps among `world`. What was said before now is skipped.
    pub(crate) fn everybody_steps(&mut self, steps: usize, world: usize) {
        for worker in &self.workers {
            while worker.lines.try_recv().is_ok_and(|said| !said.starts_with("error")) {}
        }
        for worker in &self.workers {
            let deadline = Instant::now() + PATIENCE;
            let mut left = steps;
            while left > 0 {
                assert!(Instant::now() < deadline, "{}: {left} of {steps} steps are missing", worker.name);
                left -= usize::from(worker.step().0 == world);
            }
        }
    }

    pub(crate) fn median_step(&mut self, steps: usize) -> Duration {
        let worker = &self.workers[0];
        while worker.lines.try_recv().is_ok() {}
        let mut times: Vec<_> = (0..steps).map(|_| worker.step().1).collect();
        times.sort_unstable();
        times[steps / 2]
    }

    pub(crate) fn open_files(&self) -> Vec<(String, usize)> {
        let everybody = self.workers.iter().chain([&self.coordinator]);
        everybody.map(|actor| (actor.name.clone(), actor.open_files())).collect()
    }

    pub(crate) fn status(&self) -> String {
        self.status_of("default")
    }

    pub(crate) fn status_of(&self, run: &str) -> String {
        let (address, run) = (self.coordinator().to_string(), run.parse().expect("a run"));
        outlast::coordinator::ask_status(&address, &self.secret, &run, PATIENCE).expect("a status")
    }

    /// Somebody who holds the secret, connected to the coordinator.
    pub(crate) fn holder(&self, run: &str) -> Holder {
        Holder::connect(self.coordinator(), &self.secret, run)
    }

    /// A member of the run, to be started.
    pub(crate) fn membership(&self) -> MembershipBuilder {
        let listen = "127.0.0.1:0".parse().expect("an address");
        Membership::builder().secret(self.secret.clone()).listen(listen)
    }
}
