//! Coordinators as processes, which stand by for each other.

use crate::etcds::Etcds;
use crate::ports::free_ports;
use crate::relay::Relay;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) struct Coordinators {
    pub(crate) etcds: Etcds,
    relays: Vec<Relay>,
    ports: Vec<u16>,
    processes: Vec<Option<Child>>,
}

impl Coordinators {
    /// Three of them, at one etcd of that many members; one reigns.
    pub(crate) fn start(members: usize) -> Self {
        let etcds = Etcds::start(members);
        let relays = (0..3).map(|_| Relay::to(&etcds.ports())).collect();
        let mut all = Self { etcds, relays, ports: free_ports(3), processes: vec![None, None, None] };
        (0..3).for_each(|number| all.launch(number));
        all.leader();
        all
    }

    /// What peers are given.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<_> = (0..3).map(|number| self.address(number)).collect();
        addresses.join(",")
    }

    pub(crate) fn address(&self, number: usize) -> String {
        format!("127.0.0.1:{}", self.ports[number])
    }

    pub(crate) fn launch(&mut self, number: usize) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
        command
            .args(["coordinator", "--preset", "local", "--listen", &self.address(number)])
            .args(["--backend", &self.relays[number].url()])
            .env("OUTLAST_SECRET", self.etcds.secret.to_text())
            .env_remove("OUTLAST_SECRET_FILE")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // SAFETY: the closure makes one system call and touches no memory. It does not outlive a test that is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        self.processes[number] = Some(command.spawn().expect("the program starts"));
    }

    /// What the one says that answers first and reigns; otherwise one that stands by.
    pub(crate) fn status(&self, addresses: &str) -> Option<Value> {
        let run = "default".parse().expect("a run id");
        let text =
            outlast::coordinator::ask_status(addresses, &self.etcds.secret, &run, Duration::from_secs(3));
        serde_json::from_str(&text.ok()?).ok()
    }

    /// Which one reigns, once one does.
    pub(crate) fn leader(&self) -> usize {
        until("somebody reigns", || {
            let status = self.status(&self.addresses())?;
            if status["reign"]["leads"] != true {
                return None;
            }
            (0..3).find(|number| status["reign"]["leader"] == self.address(*number))
        })
    }

    pub(crate) fn signal(&self, number: usize, signal: Signal) {
        let process = self.processes[number].as_ref().expect("it runs");
        kill_process(Pid::from_child(process), signal).expect("it is ours");
    }

    /// Ends one with that signal, and waits until it is gone.
    pub(crate) fn end(&mut self, number: usize, signal: Signal) {
        self.signal(number, signal);
        let mut process = self.processes[number].take().expect("it runs");
        until("it ends", || process.try_wait().expect("it is ours").map(|_| ()));
    }

    pub(crate) fn cut(&self, number: usize, is_cut: bool) {
        self.relays[number].cut(is_cut);
    }
}

impl Drop for Coordinators {
    fn drop(&mut self) {
        for mut process in self.processes.drain(..).flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
