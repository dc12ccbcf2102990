//! Plaintext streams: TCP, and Unix sockets.

use super::pulse::{self, Monitored};
use super::{Gauge, Wire};
use crate::fork::Guarded;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// A broken pipe is an error to return, not a signal: the process may not be ours to configure.
const NO_SIGNAL: i32 = rustix::net::SendFlags::NOSIGNAL.bits().cast_signed();

/// What is asked of the kernel for each TCP connection of the data plane. Buffer sizes are not among it:
/// setting them would stop the kernel from tuning them (rule 37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// Sent bytes that stay unacknowledged for this long break the connection. It must be longer than a stall
    /// that the run puts up with: a stopped process acknowledges nothing once its buffer is full.
    pub user_timeout: Duration,
    /// An idle connection is tried after this time, and again at this interval, three times.
    pub keepalive: Duration,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self { user_timeout: Duration::from_mins(1), keepalive: Duration::from_secs(10) }
    }
}

impl TcpSettings {
    /// Puts the settings on a connection.
    pub fn apply(&self, stream: &TcpStream) -> io::Result<()> {
        let socket = SockRef::from(stream);
        // Frames are whole messages: holding the last piece of one back gains nothing and costs 40 ms.
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_user_timeout(Some(self.user_timeout))?;
        let keepalive =
            TcpKeepalive::new().with_time(self.keepalive).with_interval(self.keepalive).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)
    }
}

/// Plaintext TCP (only when asked for: rule 34).
#[derive(Debug)]
pub struct TcpWire {
    monitored: Arc<Monitored>,
    /// The kernel had no more.
    is_drained: bool,
}

impl TcpWire {
    /// Takes over a connection whose other end is known.
    pub fn new(stream: Guarded<TcpStream>, settings: &TcpSettings) -> io::Result<Self> {
        settings.apply(&stream)?;
        stream.set_nonblocking(true)?;
        Ok(Self { monitored: Arc::new(Monitored::new(stream)?), is_drained: false })
    }

    /// Breaks the connection once the other host has acknowledged nothing for `limit`.
    pub fn break_when_silent(&self, runtime: &Handle, limit: Duration, tell: impl FnOnce() + Send + 'static) {
        pulse::watch(&self.monitored, runtime, limit, tell);
    }
}

impl Wire for TcpWire {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.monitored
            .explain(SockRef::from(self.monitored.socket()).send_vectored_with_flags(pieces, NO_SIGNAL))
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let read = self.monitored.explain(self.monitored.socket().read_vectored(pieces));
        self.is_drained = is_short(&read, pieces);
        read
    }

    fn is_drained(&self) -> bool {
        self.is_drained
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.monitored.descriptor()
    }

    /// TCP's own checksum is 16 bits and is made and checked by the network card, before and after the places
    /// where bits flip. Within one host there is no such place.
    fn wants_checksums(&self) -> bool {
        self.monitored.leaves_host()
    }

    fn gauge(&self) -> Option<Gauge> {
        self.monitored.gauge()
    }

    fn limit_queue(&self, bytes: Option<u32>) -> io::Result<()> {
        self.monitored.limit_queue(bytes)
    }
}

/// Whether a read has left nothing in the kernel.
fn is_short(read: &io::Result<usize>, pieces: &[IoSliceMut<'_>]) -> bool {
    let room: usize = pieces.iter().map(|piece| piece.len()).sum();
    read.as_ref().map_or(true, |bytes| *bytes < room)
}

/// No call waits in a Unix socket, whatever it is set to: whoever made a pair can set both ends.
const NO_WAIT: i32 = NO_SIGNAL | rustix::net::SendFlags::DONTWAIT.bits().cast_signed();

/// A Unix socket: plaintext within one host (rule 34), and the transport of tests.
#[derive(Debug)]
pub struct UnixWire {
    stream: Guarded<UnixStream>,
    checksums: bool,
    /// The kernel had no more.
    is_drained: bool,
}

impl UnixWire {
    /// Takes over a connected socket.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        Self::over(Guarded::new(stream)?)
    }

    /// The same, of one that forked children let go of already.
    pub(crate) fn over(stream: Guarded<UnixStream>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, checksums: false, is_drained: false })
    }

    /// Frames carry checksums although they need none.
    #[must_use]
    pub fn with_checksums(mut self) -> Self {
        self.checksums = true;
        self
    }
}

impl Wire for UnixWire {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        SockRef::from(&*self.stream).send_vectored_with_flags(pieces, NO_WAIT)
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut no_descriptors = RecvAncillaryBuffer::default();
        let read = rustix::net::recvmsg(&*self.stream, pieces, &mut no_descriptors, RecvFlags::DONTWAIT);
        let read = read.map(|read| read.bytes).map_err(io::Error::from);
        self.is_drained = is_short(&read, pieces);
        read
    }

    fn is_drained(&self) -> bool {
        self.is_drained
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        (*self.stream).as_fd()
    }

    fn wants_checksums(&self) -> bool {
        self.checksums
    }
}
