//! A host: a name, an address, and a way in.

use crate::error::LabError;
use crate::namespace::{self, Identity};
use crate::processes;
use crate::registry::{self, HostCard};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::UnshareFlags;
use std::ffi::{CString, OsStr};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// One host of a lab. Cheap to clone; a clone that outlives its lab leads into an empty namespace.
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    address: Ipv4Addr,
    namespace: OwnedFd,
    identity: Identity,
    /// Names and addresses of all hosts, in the format of `/etc/hosts`.
    names: PathBuf,
}

impl Host {
    /// The way into a host of the lab named `lab`, which another process may own.
    pub fn attach(lab: &str, card: &HostCard) -> Result<Self, LabError> {
        let path = namespace::path(lab, &card.name);
        let namespace = namespace::open(&path)?;
        let identity =
            Identity::of(&path).ok_or_else(|| LabError::NoLab { name: lab.to_owned(), labs: Vec::new() })?;
        let names = names_file(lab);
        let inner = Inner { name: card.name.clone(), address: card.address, namespace, identity, names };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The host's name. Processes inside it see it as their host name and can resolve the others'.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The host's address, reachable from the other hosts of its lab only.
    pub fn address(&self) -> Ipv4Addr {
        self.inner.address
    }

    /// A command that will run inside the host: its network, its host name, and the names of the other hosts
    /// in `/etc/hosts`. Files and processes are the machine's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let host = Arc::clone(&self.inner);
        let names = Path::new("/etc/hosts")
            .exists()
            .then(|| CString::new(host.names.as_os_str().as_bytes()).ok())
            .flatten();
        let enter = move || -> std::io::Result<()> {
            namespace::enter(&host.namespace)?;
            // SAFETY: the forked child has one thread, and its descriptors stay shared with nobody.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWUTS)? };
            rustix::system::sethostname(host.name.as_bytes())?;
            // What is mounted from here on is this process's own affair; what the machine unmounts still goes.
            mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
            if let Some(names) = &names {
                mount_bind(names.as_c_str(), c"/etc/hosts")?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made, on memory that was prepared before.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// Runs `work` inside the host, on a thread of its own, and returns what it returns. A socket that is
    /// opened there belongs to the host for good and can be used from anywhere afterwards.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        namespace::in_new_thread(|| {
            let action = format!("enter host '{}'", self.inner.name);
            namespace::enter(&self.inner.namespace).map_err(LabError::system(action))?;
            Ok(work())
        })
    }

    /// Stops every process in the host (SIGSTOP) and returns how many, once all stand still. The host's
    /// kernel goes on: it accepts connections and acknowledges bytes, as it does for any stopped process.
    /// A process that is started later runs.
    pub fn freeze(&self) -> Result<usize, LabError> {
        processes::stop(self.inner.identity, &self.inner.name)
    }

    /// Lets every process in the host run again (SIGCONT) and returns how many.
    pub fn thaw(&self) -> usize {
        processes::wake(self.inner.identity)
    }

    /// The numbers of the processes in the host.
    pub fn processes(&self) -> Vec<i32> {
        processes::inside(self.inner.identity)
    }

    /// How many processes are in the host, and how many of them are stopped.
    pub fn count_processes(&self) -> (usize, usize) {
        let processes = self.processes();
        let stopped = processes.iter().filter(|&&process| processes::is_stopped(process)).count();
        (processes.len(), stopped)
    }
}

/// Writes the names of all hosts where [`Host::command`] finds them.
pub(crate) fn write_names(lab: &str, hosts: &[HostCard]) -> Result<(), LabError> {
    let mut text = "127.0.0.1 localhost\n".to_owned();
    for host in hosts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {}", host.address, host.name);
    }
    let path = names_file(lab);
    std::fs::write(&path, text).map_err(LabError::system(format!("write {}", path.display())))
}

fn names_file(lab: &str) -> PathBuf {
    registry::directory(lab).join("hosts")
}
