//! Sockets that a forked child must not keep (rule 23).
//!
//! # The problem
//!
//! A training program forks: data-loader workers, a `multiprocessing` pool, a daemon. The child inherits every
//! descriptor, ours among them. When the parent is then killed, the child still holds the listening socket, so
//! the kernel goes on accepting connects for a process that is gone, connections do not close, and a dead
//! member looks *stalled* until its last worker exits. `CLOEXEC` does not help: nothing is executed.
//!
//! # The intuition
//!
//! Keep a list of our descriptors, and let `pthread_atfork` run a handler in every child that lets go of them
//! before the child's own code continues.
//!
//! The handler does not *close* them. A copy of each of our objects lives on in the child and believes that it
//! owns its number. Were the number free, the next file that the child opens would get it, and our stale
//! object would read it, write into it or close it. So the handler puts `/dev/null` in its place (`dup2`): the
//! socket is let go, the number stays taken until its owner closes it, and whoever uses it by mistake gets
//! "not a socket" at once instead of somebody else's bytes.
//!
//! # The invariant
//!
//! From the moment [`guard`] returns until the guard is dropped, no child that was forked through the C
//! library holds that descriptor. The child of a many-threaded process may only do what a signal handler may,
//! so the handler takes no lock and allocates nothing: the list is made of atomics, and its blocks are never
//! freed.
//!
//! # What it does not do
//!
//! It cannot see a bare `clone` system call or `_Fork`, which skip the handlers. A descriptor that exists but
//! is not guarded yet when another thread forks is missed; therefore listeners are guarded before anybody can
//! know their port. `posix_spawn` and `vfork` run no handlers and need none: an `exec` follows, and all our
//! descriptors are close-on-exec.

use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd};
use std::pin::Pin;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Marks a place that names no descriptor.
const FREE: RawFd = -1;
/// Places per block. One block serves a process with few peers; more are chained on as needed.
const PLACES: usize = 128;

/// Part of the list of our descriptors. Blocks are chained, never unchained and never freed: the handler may
/// run at any moment.
struct Block {
    places: [AtomicI32; PLACES],
    next: AtomicPtr<Block>,
}

impl Block {
    const fn new() -> Self {
        Self { places: [const { AtomicI32::new(FREE) }; PLACES], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Block> {
        // SAFETY: the pointer is null or came from `Box::leak` and is never freed or written through.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

static FIRST: Block = Block::new();
/// `/dev/null`, opened before the first descriptor is guarded: the handler may not fail to open it.
static SINK: AtomicI32 = AtomicI32::new(FREE);

/// Runs in every forked child, before `fork` returns there.
extern "C" fn let_go_in_child() {
    let sink = SINK.load(Ordering::Relaxed);
    let mut block = Some(&FIRST);
    while let Some(current) = block {
        for place in &current.places {
            // The place is freed too: should the child close all descriptors and open its own under these
            // numbers, then a grandchild must keep those.
            let fd = place.swap(FREE, Ordering::Relaxed);
            if fd == FREE {
                continue;
            }
            // SAFETY: dup2, fcntl and close are async-signal-safe and touch no memory of ours; `fd` was ours.
            unsafe {
                if libc::dup2(sink, fd) < 0 {
                    libc::close(fd);
                } else {
                    libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
        }
        block = current.next();
    }
}

/// Opens the sink and installs the handler, once per process (a child inherits both).
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let outcome = INSTALLED.get_or_init(|| {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let sink = std::fs::File::options().read(true).write(true).open("/dev/null").map_err(errno)?;
        SINK.store(sink.into_raw_fd(), Ordering::Relaxed);
        // SAFETY: the handler is a plain function that lives as long as the program.
        match unsafe { libc::pthread_atfork(None, None, Some(let_go_in_child)) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    });
    outcome.map_err(io::Error::from_raw_os_error)
}

/// Keeps one descriptor out of forked children for as long as it lives.
///
/// Drop it *before* the descriptor is closed: a guard that outlives its descriptor would let go of whatever got
/// the number next. [`Guarded`] takes care of that order.
#[derive(Debug)]
#[must_use = "the descriptor is guarded only while the guard lives"]
pub struct ForkGuard {
    place: &'static AtomicI32,
    fd: RawFd,
}

/// Keeps `descriptor` out of every child that is forked from now on.
pub fn guard(descriptor: &impl AsFd) -> io::Result<ForkGuard> {
    install()?;
    let fd = descriptor.as_fd().as_raw_fd();
    let mut block = &FIRST;
    loop {
        for place in &block.places {
            if place.compare_exchange(FREE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Ok(ForkGuard { place, fd });
            }
        }
        block = block.next().unwrap_or_else(|| chain(block));
    }
}

/// The block after `last`: a new one, or the one that another thread has chained on meanwhile.
fn chain(last: &'static Block) -> &'static Block {
    let fresh = Box::into_raw(Box::new(Block::new()));
    match last.next.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: both pointers came from `Box::into_raw`; a chained block is never freed.
        Ok(_) => unsafe { &*fresh },
        Err(theirs) => {
            // SAFETY: ours was not chained, so nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: as above; a chained block is never freed.
            unsafe { &*theirs }
        }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // Compared, not stored: in a child the place was freed already and may name another descriptor.
        let _ = self.place.compare_exchange(self.fd, FREE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A descriptor's owner together with its guard, dropped in the right order.
#[derive(Debug)]
pub struct Guarded<T> {
    // Fields are dropped from top to bottom: first the guard, then the descriptor.
    guard: ForkGuard,
    inner: T,
    lease: Option<Lease>,
}

/// What is given back when a descriptor is closed.
type Lease = Box<dyn std::fmt::Debug + Send + Sync>;

impl<T: AsFd> Guarded<T> {
    /// Guards `inner` for as long as it lives.
    pub fn new(inner: T) -> io::Result<Self> {
        Ok(Self { guard: guard(&inner)?, inner, lease: None })
    }

    /// Drops `lease` once the descriptor is closed, whoever owns it by then.
    pub fn lease(&mut self, lease: impl std::fmt::Debug + Send + Sync + 'static) {
        self.lease = Some(Box::new(lease));
    }

    /// Takes over what `other` had leased: this descriptor is there in its place.
    pub fn take_lease_of<U>(&mut self, other: &mut Guarded<U>) {
        self.lease = other.lease.take();
    }

    /// Passes the descriptor on to another owner of the same number, still guarded. If `convert` fails, it has
    /// closed the descriptor.
    pub fn convert<U>(self, convert: impl FnOnce(T) -> io::Result<U>) -> io::Result<Guarded<U>> {
        let Self { guard, inner, lease } = self;
        Ok(Guarded { inner: convert(inner)?, guard, lease })
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Guarded<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Guarded<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The process that created an object. Threads do not survive a fork, so in a child the object's other half is
/// missing and its locks may be held forever by nobody: ask [`Creator::check`] before touching either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creator(u32);

/// An object was used in a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this object belongs to process {creator} and was used in its forked child {child}; create a new one there"
)]
pub struct UsedAfterFork {
    /// Who created it.
    pub creator: u32,
    /// Who used it.
    pub child: u32,
}

impl Creator {
    /// This process.
    pub fn this_process() -> Self {
        Self(std::process::id())
    }

    /// `Ok` in the process that created the object, an error in its forked children.
    pub fn check(self) -> Result<(), UsedAfterFork> {
        let child = std::process::id();
        if child == self.0 { Ok(()) } else { Err(UsedAfterFork { creator: self.0, child }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    /// Forks, lets the child answer one question about what it inherited, and returns the answer.
    fn ask_child(question: impl Fn() -> bool) -> bool {
        // SAFETY: the child makes system calls on numbers that it was given and exits without unwinding.
        unsafe {
            match libc::fork() {
                -1 => panic!("fork failed: {}", io::Error::last_os_error()),
                0 => libc::_exit(i32::from(question())),
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    assert!(libc::WIFEXITED(status), "the child crashed: {status:#x}");
                    libc::WEXITSTATUS(status) == 1
                }
            }
        }
    }

    fn is_socket(fd: RawFd) -> bool {
        let mut kind = 0i32;
        let mut length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: both pointers are to locals of the right size.
        unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut length)
                == 0
        }
    }

    /// SAFETY is the callee's: `F_GETFD` only asks whether the number is taken.
    fn is_open(fd: RawFd) -> bool {
        // SAFETY: F_GETFD reads a flag of a number and touches no memory.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn a_child_holds_a_harmless_file_under_the_guarded_number() {
        let guarded = Guarded::new(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (ours, theirs) = (guarded.as_raw_fd(), plain.as_raw_fd());
        assert!(ask_child(|| is_open(ours) && !is_socket(ours)), "the guarded socket reached the child");
        assert!(ask_child(|| is_socket(theirs)), "the test cannot tell: the plain socket is gone too");
        assert!(is_socket(ours), "the parent lost its socket");
    }

    #[test]
    fn a_dropped_guard_frees_its_place_and_more_guards_than_a_block_holds_all_work() {
        let sockets: Vec<_> = (0..PLACES + 10).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let guards: Vec<_> = sockets.iter().map(|socket| guard(socket).unwrap()).collect();
        let numbers: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        assert!(ask_child(|| numbers.iter().all(|&fd| is_open(fd) && !is_socket(fd))));
        drop(guards);
        assert!(ask_child(|| numbers.iter().all(|&fd| is_socket(fd))));
    }

    #[test]
    fn what_a_child_opens_itself_is_its_own_in_the_grandchild() {
        let listener = Guarded::new(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let number = listener.as_raw_fd();
        let kept = ask_child(|| {
            // SAFETY: system calls on numbers only; the grandchild exits without unwinding.
            unsafe {
                let own = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
                libc::dup2(own, number);
                let grandchild = libc::fork();
                if grandchild == 0 {
                    libc::_exit(i32::from(is_socket(number)));
                }
                let mut status = 0;
                libc::waitpid(grandchild, &raw mut status, 0);
                libc::WEXITSTATUS(status) == 1
            }
        });
        assert!(kept);
    }

    #[test]
    fn a_creator_knows_its_children() {
        let creator = Creator::this_process();
        assert_eq!(creator.check(), Ok(()));
        assert!(ask_child(|| creator.check().is_err()));
    }
}
