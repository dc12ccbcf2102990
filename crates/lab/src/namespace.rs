//! A host's network namespace: making it, entering it, and finding it again after its maker was killed.
//!
//! A namespace lives as long as something refers to it. Ours are pinned under `/run/netns`, where `ip netns`
//! sees them as well, with a name that starts with `olab-`; so a person can look into a test that hangs,
//! and whoever cleans up finds what a killed process left behind.
//!
//! It does not know what runs inside (see `processes`) nor who owns it (see `registry`).

use crate::error::LabError;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

const DIRECTORY: &str = "/run/netns";
const PREFIX: &str = "olab-";

/// One network namespace, as device and inode of the kernel's file for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The namespace that `path` leads to; none if it leads nowhere.
    pub(crate) fn of(path: impl rustix::path::Arg) -> Option<Self> {
        let stat = rustix::fs::stat(path).ok()?;
        #[expect(clippy::useless_conversion, reason = "the kernel's types differ from machine to machine")]
        Some(Self { device: u64::from(stat.st_dev), inode: u64::from(stat.st_ino) })
    }
}

/// The pinned namespace of `host` in the lab named `lab`.
pub(crate) fn path(lab: &str, host: &str) -> PathBuf {
    // Neither name contains a dot, so the two can be told apart again.
    PathBuf::from(format!("{DIRECTORY}/{PREFIX}{lab}.{host}"))
}

/// Every pinned namespace of any lab: lab, host, path.
pub(crate) fn all() -> Vec<(String, String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(DIRECTORY) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (lab, host) = name.strip_prefix(PREFIX)?.split_once('.')?;
            Some((lab.to_owned(), host.to_owned(), entry.path()))
        })
        .collect();
    found.sort();
    found
}

/// Makes a namespace, pins it, and runs `furnish` inside it.
pub(crate) fn create<T: Send>(
    lab: &str,
    host: &str,
    furnish: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    std::fs::create_dir_all(DIRECTORY).map_err(LabError::system(format!("make {DIRECTORY}")))?;
    let path = path(lab, host);
    // A namespace belongs to a thread. This one ends with the call; the pin keeps the namespace.
    in_new_thread(|| {
        // SAFETY: only FILES would endanger other threads' descriptors; a network namespace does not.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(LabError::errno(format!("make a network namespace for host '{host}'")))?;
        std::fs::File::create(&path).map_err(LabError::system(format!("create {}", path.display())))?;
        mount_bind("/proc/thread-self/ns/net", &path)
            .map_err(LabError::errno(format!("pin the namespace at {}", path.display())))?;
        furnish()
    })
}

/// Opens a pinned namespace.
pub(crate) fn open(path: &std::path::Path) -> Result<OwnedFd, LabError> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(LabError::errno(format!("open the namespace {}", path.display())))
}

/// Moves the calling thread into `namespace`. Nothing but a system call: a forked child may use it.
pub(crate) fn enter(namespace: impl AsFd) -> std::io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(Into::into)
}

/// Runs `work` on a thread of its own, which may change its namespaces as it likes.
pub(crate) fn in_new_thread<T: Send>(
    work: impl FnOnce() -> Result<T, LabError> + Send,
) -> Result<T, LabError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("lab-host".to_owned())
            .spawn_scoped(scope, work)
            .map_err(LabError::system("start a thread"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Takes the pin away. The namespace goes when nothing runs in it any more.
pub(crate) fn unpin(path: &std::path::Path) -> Result<(), LabError> {
    match unmount(path, UnmountFlags::DETACH) {
        // Not a mount: whoever made the file was killed before it could pin anything.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(LabError::errno(format!("unmount {}", path.display()))(errno)),
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(LabError::system(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}
