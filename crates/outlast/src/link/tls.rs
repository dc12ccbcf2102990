//! TLS without a runtime: a rustls session and a socket, driven by whoever sends and receives.
//!
//! The session holds what does not fit the socket: encrypted bytes on their way out, decrypted ones on their
//! way in. Both are bounded: a send takes more only when the last bytes are gone, and a receive decrypts more
//! only when the last bytes were fetched.

use super::pulse::{self, Monitored};
use super::{Gauge, TcpSettings, Wire};
use crate::fork::Guarded;
use rustls::Connection;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_rustls::TlsStream;

/// TLS over TCP: what a data link is unless plaintext was asked for (rule 34).
#[derive(Debug)]
pub struct TlsWire {
    monitored: Arc<Monitored>,
    session: Connection,
}

/// Plaintext that one send may put into the session: four records, so that the socket is fed while the next
/// ones are sealed.
const SEND_BYTES_MAX: usize = 64 << 10;

impl TlsWire {
    /// Takes over a connection whose handshake is complete. The session may hold bytes that it decrypted
    /// already; none are lost.
    pub fn new(stream: Guarded<TcpStream>, session: Connection, settings: &TcpSettings) -> io::Result<Self> {
        if session.is_handshaking() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the TLS handshake is not complete"));
        }
        settings.apply(&stream)?;
        stream.set_nonblocking(true)?;
        Ok(Self { monitored: Arc::new(Monitored::new(stream)?), session })
    }

    /// Breaks the connection once the other host has acknowledged nothing for `limit`.
    pub fn break_when_silent(&self, runtime: &Handle, limit: Duration, tell: impl FnOnce() + Send + 'static) {
        pulse::watch(&self.monitored, runtime, limit, tell);
    }

    /// The socket, to be polled while somebody else sends or receives.
    pub(crate) fn socket(&self) -> Arc<dyn AsFd + Send + Sync> {
        Arc::clone(&self.monitored) as _
    }
}

impl Wire for TlsWire {
    fn say_goodbye(&mut self) {
        self.session.send_close_notify();
        // Whoever does not hear it learns it from the closed socket.
        let _ = self.flush();
    }

    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let mut taken = 0;
        for piece in pieces {
            let room = SEND_BYTES_MAX - taken;
            if room == 0 {
                break;
            }
            taken += self.session.writer().write(&piece[..piece.len().min(room)])?;
        }
        // What the socket does not take now is ours to push: the caller's bytes are sealed and copied.
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            match self.session.reader().read_vectored(pieces) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            let read = self.session.read_tls(&mut self.monitored.socket());
            if self.monitored.explain(read)? == 0 {
                return Ok(0);
            }
            let session = &mut self.session;
            session
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            let written = self.session.write_tls(&mut self.monitored.socket());
            if self.monitored.explain(written)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.monitored.descriptor()
    }

    /// Each record is authenticated.
    fn wants_checksums(&self) -> bool {
        false
    }

    fn gauge(&self) -> Option<Gauge> {
        self.monitored.gauge()
    }

    fn limit_queue(&self, bytes: Option<u32>) -> io::Result<()> {
        self.monitored.limit_queue(bytes)
    }
}

/// Takes a stream out of a runtime's hands.
pub(crate) fn split(
    stream: TlsStream<Guarded<tokio::net::TcpStream>>,
) -> io::Result<(Guarded<TcpStream>, Connection)> {
    let (socket, session): (_, Connection) = match stream {
        TlsStream::Client(stream) => {
            let (socket, session) = stream.into_inner();
            (socket, session.into())
        }
        TlsStream::Server(stream) => {
            let (socket, session) = stream.into_inner();
            (socket, session.into())
        }
    };
    Ok((socket.convert(tokio::net::TcpStream::into_std)?, session))
}
