//! The keeper: a small process between an agent and one worker, which leaves nothing behind.
//!
//! # The problem
//!
//! An agent can be killed at any moment, and then it cannot clean up. What it had started must not go on: a worker that
//! nobody watches holds memory, ports and accelerators for whoever comes next. Asking the kernel to signal a child when
//! its parent dies helps only for the child itself, not for what the child has started, and a grandchild can leave
//! process group and session whenever it likes.
//!
//! # The intuition
//!
//! One place from which nobody can run away is the family tree. A process that has declared itself *subreaper* becomes
//! the parent of every descendant whose own parent dies. So each worker gets a keeper as parent, which is the subreaper
//! of the worker's whole family, and which outlives both:
//!
//! ```text
//!   agent ---- line ---- keeper (subreaper, own session)
//!                          |
//!                        worker (own process group)
//!                          |
//!                        data loaders, daemons, ..
//! ```
//!
//! When the worker ends, or the agent says so, or the *line* to the agent closes because the agent is gone, the keeper
//! kills the worker's process group and every child that it has or comes to have, until it has none. A group is killed
//! at one stroke, so that a family that forks as fast as it can does not outrun it. Should the keeper itself be killed,
//! the kernel kills the worker (`PDEATHSIG`, which belongs to the keeper's one thread: rule 36), and what is left falls
//! to the agent.
//!
//! # The invariant
//!
//! [`Said::Cleared`] is sent when the keeper has no children: nothing that the worker started is left.
//!
//! # How it is made
//!
//! It is forked and never executes another program, so it costs a page table and no start-up. The agent has threads, so
//! between the fork and the end nothing here may allocate, lock or panic: everything is prepared in an [`Order`] before,
//! and what remains are system calls and buffers on the stack. Handlers for forks are passed by on purpose (a bare
//! `clone`): the keeper closes every descriptor at once, ours too (rule 23).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

/// What the worker's end of its descriptors are called in the keeper.
const LINE: RawFd = 3;
/// Where they are put while they change places.
const ASIDE: RawFd = 64;
/// How long the keeper waits between two strokes, should nothing wake it.
const STROKE_MS: libc::c_int = 2;
/// As many bytes as all letters have.
pub(super) const LETTER_BYTES: usize = 16;

/// What a keeper says, one letter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The worker runs, and has that number.
    Started(i32),
    /// It does not: the system's error.
    NotStarted(i32),
    /// It has ended, as `waitpid` tells it.
    Ended(i32),
    /// Nothing is left of it.
    Cleared,
}

impl Said {
    fn letter(self) -> [u8; LETTER_BYTES] {
        let (kind, value) = match self {
            Self::Started(pid) => (1_u32, pid),
            Self::NotStarted(errno) => (2, errno),
            Self::Ended(status) => (3, status),
            Self::Cleared => (4, 0),
        };
        letter(kind, value)
    }

    /// Reads what a keeper sent.
    pub(super) fn read(letter: [u8; LETTER_BYTES]) -> Option<Self> {
        let (kind, value) = parts(letter);
        Some(match kind {
            1 => Self::Started(value),
            2 => Self::NotStarted(value),
            3 => Self::Ended(value),
            4 => Self::Cleared,
            _ => return None,
        })
    }
}

/// What an agent tells a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Send this signal to the worker's own process.
    Signal(i32),
    /// Kill everything. Closing the line says the same.
    Kill,
}

impl Told {
    pub(super) fn letter(self) -> [u8; LETTER_BYTES] {
        match self {
            Self::Signal(signal) => letter(1, signal),
            Self::Kill => letter(2, 0),
        }
    }

    fn read(letter: [u8; LETTER_BYTES]) -> Option<Self> {
        match parts(letter) {
            (1, signal) => Some(Self::Signal(signal)),
            (2, _) => Some(Self::Kill),
            _ => None,
        }
    }
}

fn letter(kind: u32, value: i32) -> [u8; LETTER_BYTES] {
    let mut letter = [0; LETTER_BYTES];
    letter[..4].copy_from_slice(&kind.to_ne_bytes());
    letter[4..8].copy_from_slice(&value.to_ne_bytes());
    letter
}

fn parts(letter: [u8; LETTER_BYTES]) -> (u32, i32) {
    let mut words = letter.as_chunks::<4>().0.iter().copied();
    let mut next = || words.next().unwrap_or_default();
    (u32::from_ne_bytes(next()), i32::from_ne_bytes(next()))
}

/// All that a keeper needs, made before the fork.
pub(super) struct Order {
    pub(super) program: CString,
    /// The program's arguments, its name first.
    pub(super) arguments: Vec<CString>,
    /// As in `NAME=value`.
    pub(super) environment: Vec<CString>,
    /// The processors that the worker may use, if not the agent's own.
    pub(super) processors: Option<libc::cpu_set_t>,
    pub(super) input: OwnedFd,
    pub(super) output: OwnedFd,
    pub(super) errors: OwnedFd,
    pub(super) line: OwnedFd,
}

/// The keeper's process.
pub(super) struct Forked {
    pub(super) pid: i32,
    /// Readable once it has ended.
    #[expect(dead_code, reason = "holding it keeps the number from being used again for signals")]
    pub(super) pidfd: OwnedFd,
}

/// Forks a keeper, which starts the worker.
pub(super) fn fork(order: &Order) -> io::Result<Forked> {
    let list = |texts: &[CString]| {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect::<Vec<*const libc::c_char>>()
    };
    let (argv, envp) = (list(&order.arguments), list(&order.environment));
    let mut pidfd: libc::c_int = -1;
    // SAFETY: the set is initialised by the call that follows.
    let (mut all, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both sets are ours. Signals are held back so that none of the agent's handlers runs in the keeper.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let flags = libc::c_long::from(libc::CLONE_PIDFD | libc::SIGCHLD);
    // SAFETY: without CLONE_VM this is a fork: the child has a copy of this stack and goes on here. It calls only what is
    // allowed after a fork in a process with threads, and never returns.
    let pid = unsafe {
        let pid = libc::syscall(libc::SYS_clone, flags, 0_usize, &raw mut pidfd, 0_usize, 0_usize);
        if pid == 0 {
            keep(order, argv.as_ptr(), envp.as_ptr());
        }
        pid
    };
    let error = io::Error::last_os_error();
    // SAFETY: the set was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    if pid < 0 {
        return Err(error);
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(Forked { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })
}

/// The keeper's whole life.
unsafe fn keep(order: &Order, argv: *const *const libc::c_char, envp: *const *const libc::c_char) -> ! {
    // SAFETY: plain system calls on numbers and on buffers of this stack, as below.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        libc::prctl(libc::PR_SET_NAME, c"outlast-keeper".as_ptr());
        take_descriptors(order);
        let children = watch_children();
        let (worker, errno) = start(order, argv, envp);
        // The worker's output ends when its family has ended: the keeper must not hold it.
        libc::dup2(0, 1);
        libc::dup2(0, 2);
        if errno != 0 {
            say(Said::NotStarted(errno));
            if worker > 0 {
                libc::waitpid(worker, ptr::null_mut(), 0);
            }
            say(Said::Cleared);
            libc::_exit(0);
        }
        say(Said::Started(worker));
        watch(worker, children)
    }
}

/// Puts what is needed into the first places, and closes everything else that came with the fork.
unsafe fn take_descriptors(order: &Order) {
    let needed = [&order.input, &order.output, &order.errors, &order.line];
    let mut aside = [-1; 4];
    // SAFETY: the numbers are open in this copy of the process, and nobody else uses it.
    unsafe {
        for (place, descriptor) in aside.iter_mut().zip(needed) {
            *place = libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD, ASIDE);
        }
        for (place, descriptor) in aside.into_iter().enumerate() {
            if libc::dup2(descriptor, place as RawFd) < 0 {
                libc::_exit(1);
            }
        }
        libc::fcntl(LINE, libc::F_SETFD, libc::FD_CLOEXEC);
        if libc::syscall(libc::SYS_close_range, LINE + 1, libc::c_uint::MAX, 0) != 0 {
            // Kernels before 5.9 have no such call.
            for descriptor in LINE + 1..65_536 {
                libc::close(descriptor);
            }
        }
    }
}

/// A descriptor that is readable when a child has ended. All signals stay blocked here but those that cannot be.
unsafe fn watch_children() -> RawFd {
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        // Blocked and ignored is ignored: children would vanish without a word.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    }
}

/// Starts the worker: its number, and an error if it did not come to life.
unsafe fn start(
    order: &Order,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
) -> (libc::pid_t, libc::c_int) {
    // SAFETY: as in `fork`: a fork, and system calls only.
    unsafe {
        let keeper = libc::getpid();
        let mut doubts = [-1; 2];
        if libc::pipe2(doubts.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return (0, *libc::__errno_location());
        }
        let flags = libc::c_long::from(libc::SIGCHLD);
        let worker = libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) as libc::pid_t;
        if worker < 0 {
            return (0, *libc::__errno_location());
        }
        if worker == 0 {
            become_worker(order, keeper, argv, envp);
            let errno = (*libc::__errno_location()).to_ne_bytes();
            libc::write(doubts[1], errno.as_ptr().cast(), errno.len());
            libc::_exit(127);
        }
        libc::close(doubts[1]);
        let mut errno = [0_u8; 4];
        let read = loop {
            let read = libc::read(doubts[0], errno.as_mut_ptr().cast(), errno.len());
            if read >= 0 || *libc::__errno_location() != libc::EINTR {
                break read;
            }
        };
        libc::close(doubts[0]);
        (worker, if read == 4 { libc::c_int::from_ne_bytes(errno) } else { 0 })
    }
}

/// Turns this process into the worker. Returns only if it could not.
unsafe fn become_worker(
    order: &Order,
    keeper: libc::pid_t,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
) {
    // SAFETY: system calls on prepared memory.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != keeper {
            libc::_exit(127); // The keeper died before the line above, and nobody would tell.
        }
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        if let Some(processors) = &order.processors {
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), processors);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::execve(order.program.as_ptr(), argv, envp);
    }
}

/// Watches until nothing is left.
unsafe fn watch(worker: libc::pid_t, children: RawFd) -> ! {
    let (mut ended, mut clearing) = (false, false);
    // SAFETY: system calls on descriptors of this process and on buffers of this stack.
    unsafe {
        loop {
            let mut polled = [
                // A line that is closed is readable forever: once heard, it is not asked again.
                libc::pollfd { fd: if clearing { -1 } else { LINE }, events: libc::POLLIN, revents: 0 },
                libc::pollfd { fd: children, events: libc::POLLIN, revents: 0 },
            ];
            libc::poll(polled.as_mut_ptr(), 2, if clearing { STROKE_MS } else { -1 });
            if polled[1].revents != 0 {
                let mut news = [0_u8; size_of::<libc::signalfd_siginfo>()];
                while libc::read(children, news.as_mut_ptr().cast(), news.len()) > 0 {}
            }
            // First the dead: their end must not wait for anything.
            loop {
                let mut dead: libc::siginfo_t = std::mem::zeroed();
                let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
                if libc::waitid(libc::P_ALL, 0, &raw mut dead, how) != 0 {
                    say(Said::Cleared);
                    libc::_exit(0);
                }
                let pid = dead.si_pid();
                if pid == 0 {
                    break;
                }
                if pid == worker {
                    // Until it is waited for, its number is the name of its group and of no other.
                    libc::kill(-worker, libc::SIGKILL);
                }
                let mut status = 0;
                libc::waitpid(pid, &raw mut status, 0);
                if pid == worker {
                    say(Said::Ended(status));
                    (ended, clearing) = (true, true);
                }
            }
            if !clearing && polled[0].revents != 0 {
                match hear() {
                    Some(Told::Signal(signal)) => {
                        libc::kill(worker, signal);
                    }
                    Some(Told::Kill) | None => clearing = true,
                }
            }
            if clearing {
                if !ended {
                    libc::kill(-worker, libc::SIGKILL);
                    libc::kill(worker, libc::SIGKILL);
                }
                kill_children();
            }
        }
    }
}

/// One stroke at every child, and at the process groups that they are in: these have no members but descendants, because
/// a group lies within a session, and all sessions below this one were made below it.
unsafe fn kill_children() {
    let mut text = [0_u8; 4_096];
    // SAFETY: system calls on a buffer of this stack. A child that was not waited for keeps its number.
    unsafe {
        let own = libc::getpgrp();
        let list = libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if list < 0 {
            return;
        }
        let read = libc::read(list, text.as_mut_ptr().cast(), text.len());
        libc::close(list);
        let mut number: libc::pid_t = 0;
        for byte in text.iter().take(usize::try_from(read).unwrap_or(0)) {
            if byte.is_ascii_digit() {
                number = number.wrapping_mul(10).wrapping_add(libc::pid_t::from(byte - b'0'));
                continue;
            }
            if number > 1 {
                let group = libc::getpgid(number);
                libc::kill(number, libc::SIGKILL);
                if group > 1 && group != own {
                    libc::kill(-group, libc::SIGKILL);
                }
            }
            // A number that was cut off at the end of the buffer is not looked at: the next stroke sees it.
            number = 0;
        }
    }
}

/// Says something to the agent. If it is gone, nobody listens, and the line is found closed later.
unsafe fn say(said: Said) {
    let letter = said.letter();
    // SAFETY: a send from a buffer of this stack.
    unsafe {
        libc::send(LINE, letter.as_ptr().cast(), letter.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
}

/// What the agent says; `None` if it is gone.
unsafe fn hear() -> Option<Told> {
    let mut letter = [0_u8; LETTER_BYTES];
    // SAFETY: a receive into a buffer of this stack.
    let read = unsafe { libc::recv(LINE, letter.as_mut_ptr().cast(), letter.len(), 0) };
    if read <= 0 {
        return None;
    }
    // Words that nobody knows are no reason to kill.
    Some(Told::read(letter).unwrap_or(Told::Signal(0)))
}
