//! Noticing that a path is cut, without taking a stopped process for one.
//!
//! A cable that is cut says nothing. The sending kernel repeats its bytes for minutes, and whoever waits for
//! them waits as long. A time limit on the data does not help: a process that is stopped takes nothing either,
//! and the run puts up with that for its stall budget. But the *kernel* of a stopped process still acknowledges
//! what arrives, also with "no room". So the question is not whether bytes move but whether anything is
//! acknowledged, and the kernel on our side knows (`TCP_INFO`): bytes or probes that were sent again and again,
//! and no acknowledgement since.
//!
//! A link that is silent for too long is shut down; whoever uses it finds it broken and reports it (rule 16).
//! That condemns nobody. What this does not notice: a cut under a link on which nothing is under way; nobody waits
//! for it, and keep-alive finds it in its own time. The first use of such a link puts something under way: what is
//! sent is not acknowledged, or the credit is not, and from then on it is found like any other. The end that has
//! sent everything and sits still is told, because it alone knows what its kernel did not get rid of.

use super::gauge::{self, Gauge};
use crate::fork::Guarded;
use socket2::SockRef;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// Sent this often without an acknowledgement before silence is called silence.
const REPEATS_MIN: u8 = 2;
/// A silent link is noticed with this precision, as a part of its limit.
const LOOKS_PER_LIMIT: u32 = 4;

/// A socket that can be found silent.
#[derive(Debug)]
pub(super) struct Monitored {
    socket: Guarded<TcpStream>,
    silent: AtomicBool,
    leaves_host: bool,
}

impl Monitored {
    pub(super) fn new(socket: Guarded<TcpStream>) -> io::Result<Self> {
        // Both ends have the same address: the bytes never leave this machine's memory.
        let leaves_host = socket.peer_addr()?.ip() != socket.local_addr()?.ip();
        Ok(Self { socket, silent: AtomicBool::new(false), leaves_host })
    }

    pub(super) fn leaves_host(&self) -> bool {
        self.leaves_host
    }

    /// See [`super::Wire::gauge`].
    pub(super) fn gauge(&self) -> Option<Gauge> {
        self.leaves_host.then(|| gauge::read(&self.socket).ok()).flatten()
    }

    /// See [`super::Wire::limit_queue`].
    pub(super) fn limit_queue(&self, bytes: Option<u32>) -> io::Result<()> {
        // Zero is the kernel's own setting.
        SockRef::from(&*self.socket).set_tcp_notsent_lowat(bytes.unwrap_or(0))
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A socket that was shut down for its silence ends with an error that says so, not with a goodbye.
    pub(super) fn explain(&self, result: io::Result<usize>) -> io::Result<usize> {
        let over = match &result {
            Ok(count) => *count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        if over && self.silent.load(Ordering::Relaxed) {
            let text = "the other host acknowledges nothing: the path to it is cut, or the host stands still";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        result
    }
}

impl AsFd for Monitored {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Looks at a socket until it is closed, and shuts it down once nothing was acknowledged for `limit`. Then it tells:
/// perhaps nobody is looking at the socket, because all that was to be sent is in the kernel.
pub(super) fn watch(
    monitored: &Arc<Monitored>,
    runtime: &Handle,
    limit: Duration,
    tell: impl FnOnce() + Send + 'static,
) {
    let monitored = Arc::downgrade(monitored);
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(limit / LOOKS_PER_LIMIT).await;
            let Some(monitored) = monitored.upgrade() else { return };
            if silence(&monitored.socket).is_some_and(|silence| silence >= limit) {
                monitored.silent.store(true, Ordering::Relaxed);
                // It fails only on a socket that is closed already.
                let _ = monitored.socket.shutdown(Shutdown::Both);
                return tell();
            }
        }
    });
}

/// For how long the other kernel has acknowledged nothing although it was asked repeatedly.
fn silence(socket: &TcpStream) -> Option<Duration> {
    // SAFETY: all of its fields are numbers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to a struct of that size; the descriptor is open.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    let repeated =
        (info.tcpi_unacked > 0 && info.tcpi_retransmits >= REPEATS_MIN) || info.tcpi_probes >= REPEATS_MIN;
    (outcome == 0 && repeated).then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
}
