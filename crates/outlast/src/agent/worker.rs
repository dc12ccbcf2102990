//! One worker, as its agent sees it: started, signalled, ended.

use super::keeper::{self, Forked, LETTER_BYTES, Order, Said, Told};
use outlast_proto::agent::Ending;
use outlast_proto::wire::control::ProcessName;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program: a path, or a name to be looked up in `PATH`.
    pub program: OsString,
    /// Its arguments, without its name.
    pub arguments: Vec<OsString>,
    /// Its whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The processors that it may use, if not all of the agent's.
    pub processors: Option<Vec<usize>>,
}

/// What a worker writes.
#[derive(Debug)]
pub struct Streams {
    /// Standard output.
    pub output: OwnedFd,
    /// Standard error.
    pub errors: OwnedFd,
}

/// What a keeper's line brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The worker runs.
    Started(u32),
    /// It has ended, or never began.
    Ended(Ending),
    /// Nothing is left of it.
    Cleared,
    /// The keeper itself is gone without having said so.
    Orphaned,
}

/// A worker, or what is left of it.
#[derive(Debug)]
pub(super) struct Worker {
    line: OwnedFd,
    keeper: i32,
    pub(super) pid: Option<u32>,
    pub(super) ended: bool,
    _forked: Held,
}

/// Keeps the keeper's number from being used for anybody else.
struct Held(#[expect(dead_code, reason = "held, not used")] Forked);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("keeper")
    }
}

impl Worker {
    /// Starts a worker under a keeper of its own. Whether the program could be executed is told over the line.
    pub(super) fn start(launch: &Launch) -> io::Result<(Self, Streams)> {
        let program = find(launch)?;
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
        let mut arguments = vec![text(&launch.program)?];
        for argument in &launch.arguments {
            arguments.push(text(argument)?);
        }
        let variable = |(name, value): &(OsString, OsString)| {
            let mut pair = name.clone();
            pair.push("=");
            pair.push(value);
            text(&pair)
        };
        let environment = launch.environment.iter().map(variable).collect::<io::Result<_>>()?;
        let (output, write_output) = pipe_with(PipeFlags::CLOEXEC)?;
        let (errors, write_errors) = pipe_with(PipeFlags::CLOEXEC)?;
        let (line, far_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let order = Order {
            program: text(program.as_os_str())?,
            arguments,
            environment,
            processors: launch.processors.as_deref().map(processor_set),
            input: std::fs::File::open("/dev/null")?.into(),
            output: write_output,
            errors: write_errors,
            line: far_end,
        };
        let forked = keeper::fork(&order)?;
        let worker = Self { line, keeper: forked.pid, pid: None, ended: false, _forked: Held(forked) };
        Ok((worker, Streams { output, errors }))
    }

    /// What is polled.
    pub(super) fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// Sends a signal to the worker's own process. A keeper that is gone has killed it already.
    pub(super) fn signal(&self, signal: u8) {
        self.tell(Told::Signal(signal.into()));
    }

    /// Kills the worker and everything that it started.
    pub(super) fn kill(&self) {
        self.tell(Told::Kill);
    }

    fn tell(&self, told: Told) {
        let _ = send(&self.line, &told.letter(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// The next letter; `None` if there is none yet.
    pub(super) fn hear(&mut self) -> Option<News> {
        let mut letter = [0_u8; LETTER_BYTES];
        let said = match recv(&self.line, &mut letter[..], RecvFlags::DONTWAIT) {
            Ok((LETTER_BYTES, _)) => Said::read(letter),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return None,
            Ok(_) | Err(_) => None,
        };
        Some(match said {
            Some(Said::Started(pid)) => {
                self.pid = Some(pid.cast_unsigned());
                News::Started(pid.cast_unsigned())
            }
            Some(Said::NotStarted(errno)) => News::Ended(not_started(errno)),
            Some(Said::Ended(status)) => News::Ended(ending(status)),
            Some(Said::Cleared) => News::Cleared,
            None => News::Orphaned,
        })
    }

    /// Waits for the keeper's own end, which is near: it has said its last word, or its line is closed.
    pub(super) fn bury(self) {
        // SAFETY: it is our own child, and its number is held until this call.
        unsafe { libc::waitpid(self.keeper, std::ptr::null_mut(), 0) };
    }

    /// Kills what is left where a keeper was killed: whoever is still in its session. The worker itself was killed by
    /// the kernel. Returns how many were found.
    pub(super) fn clear_session(&self) -> usize {
        let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
        let names = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let strays = names.filter_map(|name| name.parse::<i32>().ok()).filter(|pid| {
            *pid != self.keeper
                && stat_field(*pid, SESSION_FIELD).is_some_and(|session| session == self.keeper as u64)
        });
        let mut found = 0;
        for pid in strays {
            found += 1;
            // SAFETY: a signal to a process of a session that only descendants of our keeper can be in.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        found
    }
}

/// Fields of `/proc/PID/stat`, counted from one as in its manual page.
const SESSION_FIELD: usize = 6;
const START_FIELD: usize = 22;

/// What a process of this host is called, as long as it lives or is not waited for.
pub fn process_name(pid: u32) -> Option<ProcessName> {
    let start = stat_field(i32::try_from(pid).ok()?, START_FIELD)?;
    Some(ProcessName { pid, start })
}

fn stat_field(pid: i32, field: usize) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in brackets, which may hold anything. After it comes the third.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(field - 3)?.parse().ok()
}

fn ending(status: i32) -> Ending {
    if libc::WIFSIGNALED(status) {
        Ending::Killed(libc::WTERMSIG(status) as u8)
    } else {
        Ending::Exited(libc::WEXITSTATUS(status) as u8)
    }
}

pub(super) fn not_started(errno: i32) -> Ending {
    Ending::NotStarted { errno, missing: errno == libc::ENOENT || errno == libc::ENOTDIR }
}

fn processor_set(processors: &[usize]) -> libc::cpu_set_t {
    // SAFETY: a set of bits; all zero is the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for processor in processors.iter().filter(|processor| **processor < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is within the set.
        unsafe { libc::CPU_SET(*processor, &mut set) };
    }
    set
}

/// Where the program is, as a shell would find it.
fn find(launch: &Launch) -> io::Result<PathBuf> {
    let program = Path::new(&launch.program);
    if launch.program.as_bytes().contains(&b'/') {
        return Ok(program.to_owned());
    }
    let path = launch.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    let path = path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut refused = None;
    for folder in std::env::split_paths(&path) {
        let candidate = folder.join(program);
        match rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK) {
            Ok(()) if candidate.is_file() => return Ok(candidate),
            Err(rustix::io::Errno::ACCESS) => refused = Some(rustix::io::Errno::ACCESS),
            Ok(()) | Err(_) => {}
        }
    }
    Err(refused.unwrap_or(rustix::io::Errno::NOENT).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(program: &str) -> Launch {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Launch {
            program: program.into(),
            arguments: Vec::new(),
            environment: vec![("PATH".into(), path)],
            processors: None,
        }
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert!(find(&launch("sh")).unwrap().is_absolute());
        assert_eq!(find(&launch("./sh")).unwrap(), Path::new("./sh"), "a path is taken as it is");
        let error = find(&launch("no-such-program-anywhere")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_process_is_named_by_its_number_and_its_start() {
        let own = std::process::id();
        assert!(process_name(own).is_some_and(|process| process.pid == own && process.start > 0));
        assert_eq!(process_name(own), process_name(own));
        assert_eq!(process_name(u32::MAX), None);
    }
}
