//! The hosts: a coordinator on each of `c0` to `c2`, a member of etcd on each of `e0` to `e2`, peers on `p` and `q`, and
//! somebody on `m` who looks on and is never cut off.

use crate::peers::HOSTS;
use crate::until;
use outlast::security::RunSecret;
use outlast_lab::{Lab, LabError};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const PORT: u16 = 29_400;
pub(crate) const COUNT: usize = 3;

pub(crate) struct Site {
    // Fields are dropped from top to bottom: the lab goes last.
    coordinators: Vec<Option<Child>>,
    etcds: Vec<Option<Child>>,
    pub(crate) secret: RunSecret,
    folder: tempfile::TempDir,
    pub(crate) lab: Lab,
}

fn coordinator(number: usize) -> String {
    format!("c{number}")
}

fn etcd(number: usize) -> String {
    format!("e{number}")
}

/// It does not outlive a test that is killed.
fn die_with_us(command: &mut Command) {
    // SAFETY: the closure makes one system call and touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

impl Site {
    /// Everything runs, and somebody reigns. None without root.
    pub(crate) fn start(label: &str) -> Option<Self> {
        let names = (0..COUNT).flat_map(|number| [coordinator(number), etcd(number)]);
        let lab = match Lab::new(label, names.chain(HOSTS.map(str::to_owned)).chain(["m".to_owned()])) {
            Err(LabError::NotRoot) => {
                eprintln!("SKIPPED {label}: the lab needs root");
                return None;
            }
            lab => lab.expect("a lab"),
        };
        // In memory where there is some: what is measured here is not a disk.
        let shm = PathBuf::from("/dev/shm");
        let parent = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let folder = tempfile::tempdir_in(parent).expect("a folder");
        let (coordinators, etcds) = (vec![None, None, None], vec![None, None, None]);
        let mut site = Self { coordinators, etcds, secret: RunSecret::generate(), folder, lab };
        (0..COUNT).for_each(|number| site.launch_etcd(number));
        (0..COUNT).for_each(|number| site.launch(number));
        site.leader();
        Some(site)
    }

    fn address(&self, host: &str) -> String {
        self.lab.host(host).expect("a host").address().to_string()
    }

    pub(crate) fn addresses(&self) -> String {
        let all: Vec<_> =
            (0..COUNT).map(|number| format!("{}:{PORT}", self.address(&coordinator(number)))).collect();
        all.join(",")
    }

    pub(crate) fn launch_etcd(&mut self, number: usize) {
        let at = |number: usize, port: u16| format!("http://{}:{port}", self.address(&etcd(number)));
        let cluster: Vec<_> = (0..COUNT).map(|number| format!("m{number}={}", at(number, 2380))).collect();
        let mut command = self.lab.host(&etcd(number)).expect("a host").command("etcd");
        command
            .args(["--name", &format!("m{number}"), "--data-dir"])
            .arg(self.folder.path().join(format!("m{number}")))
            .args(["--listen-client-urls", &at(number, 2379), "--advertise-client-urls", &at(number, 2379)])
            .args([
                "--listen-peer-urls",
                &at(number, 2380),
                "--initial-advertise-peer-urls",
                &at(number, 2380),
            ])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200", "--log-level", "panic"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        die_with_us(&mut command);
        self.etcds[number] = Some(command.spawn().expect("etcd: tools/setup installs it"));
    }

    pub(crate) fn kill_etcd(&mut self, number: usize) {
        let mut process = self.etcds[number].take().expect("it runs");
        process.kill().expect("it is ours");
        process.wait().expect("it ends");
    }

    /// Which member of etcd leads the others.
    pub(crate) fn etcd_leader(&self) -> usize {
        until("a leader of etcd", || {
            (0..COUNT).find(|number| {
                let url = format!("http://{}:2379/metrics", self.address(&etcd(*number)));
                let mut curl = self.lab.host("m").expect("a host").command("curl");
                let answer = curl.args(["-s", "-m", "2", &url]).output().expect("curl");
                String::from_utf8_lossy(&answer.stdout).contains("etcd_server_is_leader 1")
            })
        })
    }

    pub(crate) fn launch(&mut self, number: usize) {
        let host = coordinator(number);
        let etcds: Vec<_> =
            (0..COUNT).map(|number| format!("{}:2379", self.address(&etcd(number)))).collect();
        let mut command = self.lab.host(&host).expect("a host").command(env!("CARGO_BIN_EXE_outlast"));
        command
            .args(["coordinator", "--preset", "local", "--control-lost-after", "60s"])
            .args(["--listen", &format!("{}:{PORT}", self.address(&host))])
            .args(["--backend", &format!("etcd:{}", etcds.join(","))])
            .env("OUTLAST_SECRET", self.secret.to_text())
            .env_remove("OUTLAST_SECRET_FILE")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        die_with_us(&mut command);
        self.coordinators[number] = Some(command.spawn().expect("the program starts"));
    }

    pub(crate) fn signal(&self, number: usize, signal: Signal) {
        let process = self.coordinators[number].as_ref().expect("it runs");
        kill_process(Pid::from_child(process), signal).expect("it is ours");
    }

    /// Ends one with that signal, and waits until it is gone.
    pub(crate) fn end(&mut self, number: usize, signal: Signal) {
        self.signal(number, signal);
        let mut process = self.coordinators[number].take().expect("it runs");
        until("it ends", || process.try_wait().expect("it is ours").map(|_| ()));
    }

    /// What the one says that reigns, as somebody sees it who reaches all.
    fn status(&self) -> Option<Value> {
        let mut command = self.lab.host("m").expect("a host").command(env!("CARGO_BIN_EXE_outlast"));
        command
            .args(["status", "--json", "--coordinator", &self.addresses()])
            .env("OUTLAST_SECRET", self.secret.to_text())
            .env_remove("OUTLAST_SECRET_FILE")
            .stderr(Stdio::null());
        let status: Value = serde_json::from_slice(&command.output().ok()?.stdout).ok()?;
        (status["reign"]["leads"] == true).then_some(status)
    }

    /// Which one reigns, once one does, and under which term.
    pub(crate) fn leader(&self) -> (usize, u64) {
        until("somebody reigns", || {
            let reign = self.status()?["reign"].clone();
            let is =
                |number: &usize| reign["leader"] == format!("{}:{PORT}", self.address(&coordinator(*number)));
            Some(((0..COUNT).find(is)?, reign["term"].as_u64()?))
        })
    }

    pub(crate) fn all_are_there(&self) {
        until("all are there", || {
            (self.status()?["reign"]["standbys"].as_array()?.len() == COUNT - 1).then_some(())
        });
    }

    /// Cuts a coordinator off from those hosts, or heals that.
    pub(crate) fn cut_between(&mut self, number: usize, hosts: &[&str], is_cut: bool) {
        for host in hosts {
            self.lab.set_cuts(Some(&coordinator(number)), Some(host), true, is_cut).expect("hosts");
        }
    }

    /// Cuts a coordinator off from etcd, or heals that.
    pub(crate) fn cut_from_etcd(&mut self, number: usize, is_cut: bool) {
        for other in 0..COUNT {
            self.lab.set_cuts(Some(&coordinator(number)), Some(&etcd(other)), true, is_cut).expect("hosts");
        }
    }

    /// Cuts a coordinator's host off from everybody, or heals that.
    pub(crate) fn isolate(&mut self, number: usize, is_cut: bool) {
        self.lab.set_cuts(Some(&coordinator(number)), None, true, is_cut).expect("hosts");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for mut process in self.coordinators.drain(..).chain(self.etcds.drain(..)).flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
