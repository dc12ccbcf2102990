//! Real etcd processes: one alone, or three together.

#![allow(dead_code, reason = "each test binary uses its part of this page")]

use crate::ports::free_ports;
use outlast::security::RunSecret;
use rustix::process::Signal;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Some etcds that know each other.
pub(crate) struct Etcds {
    pub(crate) secret: RunSecret,
    members: Vec<Member>,
    /// What every member is started with besides its own.
    arguments: Vec<String>,
    scheme: &'static str,
    /// Who was killed or stopped last.
    pub(crate) hurt: usize,
    _folder: tempfile::TempDir,
}

struct Member {
    name: String,
    client: u16,
    peer: u16,
    folder: PathBuf,
    process: Option<Child>,
}

impl Etcds {
    pub(crate) fn start(count: usize) -> Self {
        Self::with(count, "http", &[])
    }

    /// With arguments of one's own; `{folder}` is where its files are.
    pub(crate) fn with(count: usize, scheme: &'static str, arguments: &[String]) -> Self {
        // In memory where there is some: what is measured here is not a disk.
        let shm = PathBuf::from("/dev/shm");
        let parent = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let folder = tempfile::tempdir_in(parent).expect("a folder");
        let mut ports = free_ports(2 * count).into_iter();
        let members = (0..count).map(|number| Member {
            name: format!("m{number}"),
            client: ports.next().expect("a port"),
            peer: ports.next().expect("a port"),
            folder: folder.path().join(format!("m{number}")),
            process: None,
        });
        let members = members.collect();
        let arguments = arguments.to_vec();
        let secret = RunSecret::generate();
        let mut etcds = Self { secret, members, arguments, scheme, hurt: 0, _folder: folder };
        (0..count).for_each(|number| etcds.launch(number));
        if scheme == "http" {
            (0..count).for_each(|number| etcds.wait_for(number));
        }
        etcds
    }

    pub(crate) fn launch(&mut self, number: usize) {
        let cluster: Vec<_> = self
            .members
            .iter()
            .map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer))
            .collect();
        let (member, scheme) = (&mut self.members[number], self.scheme);
        let (client, peer) =
            (format!("{scheme}://127.0.0.1:{}", member.client), format!("http://127.0.0.1:{}", member.peer));
        let mut command = Command::new("etcd");
        command
            .args(["--name", &member.name, "--data-dir"])
            .arg(&member.folder)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200", "--log-level", "panic"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: the closure makes one system call and touches no memory. It does not outlive a test that is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let process = command.spawn().expect("etcd: tools/setup installs it, or apt-get install etcd-server");
        member.process = Some(process);
    }

    /// Waits until a member takes part in a cluster with a leader.
    fn wait_for(&self, number: usize) {
        let member = &self.members[number];
        until("a leader", || {
            let metrics = self.http(number, "GET", "/metrics", "")?;
            metrics.contains("etcd_server_has_leader 1").then_some(())
        });
        assert!(member.process.is_some());
    }

    /// One question over plain HTTP; `None` if nobody answers.
    pub(crate) fn http(&self, number: usize, verb: &str, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.members[number].client)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let length = body.len();
        let head = format!("{verb} {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    pub(crate) fn leader(&self) -> usize {
        until("a leader", || {
            (0..self.members.len()).find(|number| {
                self.http(*number, "GET", "/metrics", "")
                    .is_some_and(|metrics| metrics.contains("etcd_server_is_leader 1"))
            })
        })
    }

    pub(crate) fn kill_member(&mut self, number: usize) {
        if let Some(mut process) = self.members[number].process.take() {
            process.kill().expect("it is ours");
            process.wait().expect("it ends");
        }
    }

    /// Started again, and part of the cluster when it returns.
    pub(crate) fn restart_member(&mut self, number: usize) {
        self.launch(number);
        self.wait_for(number);
    }

    /// What a coordinator or a node is given: all members.
    pub(crate) fn url(&self) -> String {
        let endpoints: Vec<_> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        format!("etcd:{}://{}", self.scheme, endpoints.join(","))
    }

    /// Where each member listens.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.client).collect()
    }

    /// The process of who was killed or stopped last.
    pub(crate) fn pid(&self) -> u32 {
        self.members[self.hurt].process.as_ref().expect("it runs").id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let process = self.members[self.hurt].process.as_ref().expect("it runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(process), signal).expect("it is ours");
    }
}

impl Drop for Etcds {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|number| self.kill_member(number));
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
