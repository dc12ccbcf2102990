//! Backends as processes: started, stopped, killed, started again at the same address.

use crate::roles::Other;
use crate::stopped::wait_until_stopped;
use outlast::Rendezvous;
use outlast::rendezvous::{RemoteRegister, RendezvousBuilder};
use outlast::security::RunSecret;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How long any single thing may take in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A backend that can be harmed.
pub(crate) trait Service: Sync {
    /// How nodes name it.
    fn backend(&self) -> String;
    fn secret(&self) -> &RunSecret;
    /// SIGKILL; nothing answers at its address when it returns.
    fn kill(&mut self);
    /// Started again at the same address.
    fn restart(&mut self);
    /// SIGSTOP and SIGCONT; none of its threads runs when `stop` returns.
    fn stop(&mut self);
    fn go_on(&mut self);
    /// The shortest lease that it keeps.
    fn lease(&self) -> Duration;
    /// How often two nodes race for it: as often as is over in a few seconds.
    fn races(&self) -> u64;
    /// Whether a write that was asked for while it was away may be done when it is back.
    fn catches_up(&self) -> bool {
        false
    }

    fn node(&self, min: usize, max: usize) -> RendezvousBuilder {
        Rendezvous::builder(self.backend(), min, max).secret(self.secret().clone())
    }

    fn register(&self, holder: Option<&str>) -> RemoteRegister {
        self.node(1, 1).open_register("case", holder).expect("a register")
    }
}

/// A coordinator.
pub(crate) struct Coordinator {
    secret: RunSecret,
    address: String,
    process: Other,
}

impl Coordinator {
    pub(crate) fn start() -> Self {
        let secret = RunSecret::generate();
        let mut process = Other::coordinator("127.0.0.1:0", &secret);
        Self { address: process.says(), secret, process }
    }
}

impl Service for Coordinator {
    fn backend(&self) -> String {
        format!("embedded://{}", self.address)
    }

    fn secret(&self) -> &RunSecret {
        &self.secret
    }

    fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.process.wait().expect("it ends");
    }

    fn restart(&mut self) {
        self.process = Other::coordinator(&self.address, &self.secret);
        assert_eq!(self.process.says(), self.address);
    }

    fn stop(&mut self) {
        self.process.signal(Signal::STOP);
        wait_until_stopped(self.process.process.id());
    }

    fn go_on(&mut self) {
        self.process.signal(Signal::CONT);
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn races(&self) -> u64 {
        10_000
    }
}

/// A store that the nodes keep themselves; whoever decides on its members can be harmed. While it is away the store goes
/// on until its members' leases are over, so here it is away when a member gets no answer any more.
pub(crate) struct Members {
    coordinator: Coordinator,
    probe: RemoteRegister,
}

impl Members {
    pub(crate) fn start() -> Self {
        let coordinator = Coordinator::start();
        let node = Rendezvous::builder(format!("store://{}", coordinator.address), 1, 1);
        let probe = node.secret(coordinator.secret.clone()).open_register("probe", None).expect("a register");
        probe.read(PATIENCE).expect("a store");
        Self { coordinator, probe }
    }

    fn until_it_pauses(&self) {
        // Twice the lease of its view: a member that is merely slow answers within it.
        until("the store pauses", || self.probe.read(Duration::from_secs(2)).is_err().then_some(()));
    }
}

impl Service for Members {
    fn backend(&self) -> String {
        format!("store://{}", self.coordinator.address)
    }

    fn secret(&self) -> &RunSecret {
        &self.coordinator.secret
    }

    fn kill(&mut self) {
        self.coordinator.kill();
        self.until_it_pauses();
    }

    fn restart(&mut self) {
        self.coordinator.restart();
    }

    fn stop(&mut self) {
        self.coordinator.stop();
        self.until_it_pauses();
    }

    fn go_on(&mut self) {
        self.coordinator.go_on();
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn races(&self) -> u64 {
        300
    }

    /// The members live on, and what they were asked with them.
    fn catches_up(&self) -> bool {
        true
    }
}

/// Waits for something that will be.
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
