//! Which labs exist on this machine, who owns them, and how to remove what a killed owner left.
//!
//! Each lab has a directory under `/run/outlast-lab`, readable by root only. In it the owner holds a lock
//! for as long as it lives; the kernel lets go of the lock when the owner dies, however it dies. So a lab
//! whose lock is free is a leftover, and the next lab that comes up removes it. One more lock, on the whole
//! registry, is held for a moment by whoever looks or tidies up, so that nobody mistakes a lab that is just
//! being made for a leftover.
//!
//! Invariant: whoever removes a lab holds its lock.

use crate::error::LabError;
use crate::limits::REGISTRY_DEADLINE;
use crate::namespace::{self, Identity};
use crate::processes;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DIRECTORY: &str = "/run/outlast-lab";

/// What a lab's directory says about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The lab's name.
    pub name: String,
    /// The process that owns it.
    pub pid: u32,
    /// Largest packet on its links.
    pub mtu: u32,
    /// True if it takes commands (`outlast lab up`), false if it belongs to a test or a bench.
    pub served: bool,
    /// Its hosts.
    pub hosts: Vec<HostCard>,
}

/// Name and address of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCard {
    /// The host's name.
    pub name: String,
    /// The host's address.
    pub address: Ipv4Addr,
}

/// A lab that was found on this machine.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// True while its owner lives.
    pub alive: bool,
    /// What its owner wrote down; none if it was killed before it could.
    pub card: Option<Card>,
}

/// The lock that makes a process the owner of a lab.
#[derive(Debug)]
pub(crate) struct Ownership {
    name: String,
    /// Held, never read: closing it is what lets go of the lock.
    _lock: File,
}

/// Refuses early and clearly: everything here needs root.
pub(crate) fn require_root() -> Result<(), LabError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

/// The directory of the lab named `name`.
pub(crate) fn directory(name: &str) -> PathBuf {
    PathBuf::from(DIRECTORY).join(name)
}

/// Becomes the owner of a lab named `name`. Leftovers of any lab are removed on the way.
pub(crate) fn claim(name: &str) -> Result<Ownership, LabError> {
    require_root()?;
    let _registry = lock_registry()?;
    for found in found_labs() {
        if !found.alive {
            remove(&found.name)?;
        } else if found.name == name {
            let pid = found.card.map_or(0, |card| card.pid);
            return Err(LabError::NameInUse { name: name.to_owned(), pid });
        }
    }
    make_directory(&directory(name))?;
    let lock = try_lock(name)?.ok_or_else(|| LabError::NameInUse { name: name.to_owned(), pid: 0 })?;
    Ok(Ownership { name: name.to_owned(), _lock: lock })
}

impl Ownership {
    /// Writes down what the lab consists of.
    pub(crate) fn publish(&self, card: &Card) -> Result<(), LabError> {
        let path = directory(&self.name).join("lab.json");
        let text =
            serde_json::to_vec(card).map_err(|error| LabError::system("describe the lab")(error.into()))?;
        fs::write(&path, text).map_err(LabError::system(format!("write {}", path.display())))
    }

    /// Ends everything that runs in the lab and removes it.
    pub(crate) fn dissolve(self) -> Result<(), LabError> {
        let _registry = lock_registry()?;
        remove(&self.name)
    }
}

/// All labs on this machine, leftovers included, by name.
pub fn labs() -> Result<Vec<Found>, LabError> {
    require_root()?;
    let _registry = lock_registry()?;
    Ok(found_labs())
}

/// Removes every lab whose owner is gone, and returns their names.
pub fn sweep() -> Result<Vec<String>, LabError> {
    require_root()?;
    let _registry = lock_registry()?;
    let mut swept = Vec::new();
    for found in found_labs().into_iter().filter(|found| !found.alive) {
        remove(&found.name)?;
        swept.push(found.name);
    }
    Ok(swept)
}

fn found_labs() -> Vec<Found> {
    let mut names: BTreeSet<String> = namespace::all().into_iter().map(|(lab, ..)| lab).collect();
    if let Ok(entries) = fs::read_dir(DIRECTORY) {
        names.extend(
            entries
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .filter_map(|entry| entry.file_name().into_string().ok()),
        );
    }
    names
        .into_iter()
        .map(|name| {
            let card = fs::read(directory(&name).join("lab.json"))
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok());
            // An error other than "held" leaves the lab alone: it is safer to think it alive.
            let alive = !matches!(try_lock(&name), Ok(Some(_)));
            Found { name, alive, card }
        })
        .collect()
}

/// The owner's lock; none if somebody holds it. A lab without a directory has no owner.
fn try_lock(name: &str) -> Result<Option<File>, LabError> {
    let path = directory(name).join("owner.lock");
    make_directory(&directory(name))?;
    let file = open_lock(&path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(LabError::errno(format!("lock {}", path.display()))(errno)),
    }
}

fn lock_registry() -> Result<File, LabError> {
    let root = PathBuf::from(DIRECTORY);
    make_directory(&root)?;
    let file = open_lock(&root.join("registry.lock"))?;
    let deadline = Instant::now() + REGISTRY_DEADLINE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let what = format!("waiting for another process to let go of {DIRECTORY}/registry.lock");
                return Err(LabError::Timeout { what, seconds: REGISTRY_DEADLINE.as_secs() });
            }
            Err(errno) => return Err(LabError::errno("lock the registry of labs")(errno)),
        }
    }
}

fn open_lock(path: &std::path::Path) -> Result<File, LabError> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    options.open(path).map_err(LabError::system(format!("open {}", path.display())))
}

fn make_directory(path: &std::path::Path) -> Result<(), LabError> {
    let action = format!("make {}", path.display());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(LabError::system(action))
}

/// Ends the processes of a lab's hosts, unpins its namespaces, removes its directory. It goes on after a
/// failure, because half of a lab is worth less than none, and reports the first one.
fn remove(name: &str) -> Result<(), LabError> {
    let mut first = Ok(());
    let hosts = namespace::all().into_iter().filter(|(lab, ..)| lab == name);
    for (_, host, path) in hosts {
        let ended = Identity::of(&path).map_or(Ok(0), |identity| processes::kill(identity, &host)).map(drop);
        first = first.and(ended).and(namespace::unpin(&path));
    }
    let directory = directory(name);
    let removed = fs::remove_dir_all(&directory);
    first.and(removed.map_err(LabError::system(format!("remove {}", directory.display()))))
}
