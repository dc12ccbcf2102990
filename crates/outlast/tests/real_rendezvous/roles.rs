//! What other processes of a test do.

use outlast::membership::Preset;
use outlast::security::RunSecret;
use outlast::{Coordinator, Rendezvous};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const ROLE: &str = "OUTLAST_MEETING_ROLE";
const SECRET: &str = "OUTLAST_MEETING_SECRET";
const ADDRESS: &str = "OUTLAST_MEETING_ADDRESS";
/// How long the lease of a holder lasts.
const LEASE_MS: &str = "OUTLAST_MEETING_LEASE_MS";

/// Another process, and what it says.
pub(crate) struct Other {
    pub(crate) process: Child,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn coordinator(address: &str, secret: &RunSecret) -> Self {
        Self::spawn("coordinator", &[(ADDRESS, address.to_owned()), (SECRET, secret.to_text())])
    }

    /// One that holds a lease of the register `case`, and writes when it is told to.
    pub(crate) fn holder(backend: &str, secret: &RunSecret, lease: Duration) -> Self {
        let lease = lease.as_millis().to_string();
        let settings = [(ADDRESS, backend.to_owned()), (SECRET, secret.to_text()), (LEASE_MS, lease)];
        Self::spawn("holder", &settings)
    }

    fn spawn(role: &str, settings: &[(&str, String)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["role", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).envs(settings.iter().map(|(name, value)| (*name, value)));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let stdin = process.stdin.take().expect("a pipe");
        let lines = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, stdin, lines }
    }

    /// The next line that it says to us.
    pub(crate) fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("a line") > 0, "it ended without a word");
            if let Some(said) = line.strip_prefix('@') {
                return said.trim().to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, word: &str) {
        writeln!(self.stdin, "{word}").expect("it listens");
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn setting(name: &str) -> String {
    std::env::var(name).expect(name)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n@{line}\n");
    let _ = out.flush();
}

pub(crate) fn play() {
    match std::env::var(ROLE).as_deref() {
        Ok("coordinator") => coordinator(),
        Ok("holder") => holder(),
        _ => {}
    }
}

fn coordinator() {
    let listen = setting(ADDRESS).parse().expect("an address");
    let secret: RunSecret = setting(SECRET).parse().expect("a secret");
    let coordinator = Coordinator::builder().listen(listen).secret(secret).preset(Preset::Local).start();
    let coordinator = coordinator.expect("a coordinator");
    say(&coordinator.address().to_string());
    // Until the parent is gone.
    for line in std::io::stdin().lock().lines() {
        drop(line);
    }
}

fn holder() {
    let patience = crate::services::PATIENCE;
    let secret: RunSecret = setting(SECRET).parse().expect("a secret");
    let lease = Duration::from_millis(setting(LEASE_MS).parse().expect("milliseconds"));
    let builder = Rendezvous::builder(setting(ADDRESS), 1, 1).secret(secret);
    let register = builder.open_register("case", Some("stopped")).expect("a register");
    register.beat(lease, patience).expect("a lease");
    let before = register.read(patience).expect("a snapshot");
    say("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a word");
    let fate = register.write(before.token, b"decided before".to_vec(), patience);
    say(&format!("{:?}", fate.map(|(fate, _)| fate)));
}
