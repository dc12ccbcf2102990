//! TLS without a runtime: a rustls session and a socket, driven by whoever sends and receives.
//!
//! The session holds what does not fit the socket: encrypted bytes on their way out, decrypted ones on their
//! way in. Both are bounded: a send takes more only when the last bytes are gone, and a receive decrypts more
//! only when the last bytes were fetched.
//!
//! The session would ask the kernel for 4 KiB at a time and put each piece that it is given into a record of its own. So
//! what comes is read in large pieces first, and a header goes into the record of its payload.

use super::pulse::{self, Monitored};
use super::{Gauge, TcpSettings, Wire};
use crate::fork::Guarded;
use rustls::Connection;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
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
    /// What the kernel gave, encrypted; made when something is received for the first time.
    inbound: Box<[u8]>,
    /// The part of it that the session has not taken yet.
    untaken: Range<usize>,
    /// The kernel had no more.
    is_drained: bool,
}

/// Plaintext that one send may put into the session: four records, so that the socket is fed while the next
/// ones are sealed.
const SEND_BYTES_MAX: usize = 64 << 10;
/// What is asked of the kernel at once.
const RECEIVE_BYTES: usize = 64 << 10;

impl TlsWire {
    /// Takes over a connection whose handshake is complete. The session may hold bytes that it decrypted
    /// already; none are lost.
    pub fn new(stream: Guarded<TcpStream>, session: Connection, settings: &TcpSettings) -> io::Result<Self> {
        if session.is_handshaking() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the TLS handshake is not complete"));
        }
        settings.apply(&stream)?;
        stream.set_nonblocking(true)?;
        let monitored = Arc::new(Monitored::new(stream)?);
        Ok(Self { monitored, session, inbound: Box::default(), untaken: 0..0, is_drained: false })
    }

    /// Gives the session bytes to decrypt, the kernel's if there are none at hand. False if the other side closed.
    fn take_in(&mut self) -> io::Result<bool> {
        if self.untaken.is_empty() {
            if self.inbound.is_empty() {
                self.inbound = vec![0; RECEIVE_BYTES].into();
            }
            let read = self.monitored.explain(self.monitored.socket().read(&mut self.inbound));
            let bytes = read.inspect_err(|_| self.is_drained = true)?;
            self.is_drained = bytes < self.inbound.len();
            self.untaken = 0..bytes;
            if bytes == 0 {
                return Ok(false);
            }
        }
        self.untaken.start += self.session.read_tls(&mut &self.inbound[self.untaken.clone()])?;
        let processed = self.session.process_new_packets();
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(true)
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
        // Pieces that are written together share a record.
        let taken = if pieces.iter().map(|piece| piece.len()).sum::<usize>() <= SEND_BYTES_MAX {
            self.session.writer().write_vectored(pieces)?
        } else {
            let mut room = SEND_BYTES_MAX;
            let fitting = pieces.iter().map(|piece| {
                let fits = piece.len().min(room);
                room -= fits;
                IoSlice::new(&piece[..fits])
            });
            self.session.writer().write_vectored(&fitting.collect::<Vec<_>>())?
        };
        // What the socket does not take now is ours to push: the caller's bytes are sealed and copied.
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// As much as is at hand, and asks the kernel only if nothing is: what does not fill the pieces leaves nothing behind that
    /// a poll could not see.
    fn receive(&mut self, mut pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut filled = 0;
        IoSliceMut::advance_slices(&mut pieces, 0);
        while let Some(piece) = pieces.first_mut() {
            match self.session.reader().read(piece) {
                // The other side has said goodbye.
                Ok(0) => break,
                Ok(bytes) => {
                    filled += bytes;
                    IoSliceMut::advance_slices(&mut pieces, bytes);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
            if filled > 0 && self.untaken.is_empty() {
                break;
            }
            match self.take_in() {
                Ok(true) => {}
                Ok(false) => break,
                // What came before is worth having; the error comes again.
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn is_drained(&self) -> bool {
        self.is_drained && self.untaken.is_empty()
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
