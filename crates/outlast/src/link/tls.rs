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
    /// Something came that is nothing of the other side's. What came before it is handed over first.
    is_spoilt: bool,
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
        Ok(Self {
            monitored,
            session,
            inbound: Box::default(),
            untaken: 0..0,
            is_drained: false,
            is_spoilt: false,
        })
    }

    /// Gives the session bytes to decrypt, the kernel's if there are none at hand. False if the other side closed.
    fn take_in(&mut self) -> io::Result<bool> {
        if self.is_spoilt {
            // The session says the same of whatever comes after.
            let said = self.session.process_new_packets();
            return said.map(|_| true).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        }
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
        self.is_spoilt = self.session.process_new_packets().is_err();
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
            if filled > 0 && (self.untaken.is_empty() || self.is_spoilt) {
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
        self.is_drained && self.untaken.is_empty() && !self.is_spoilt
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::contract::worlds::Identity;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// A wire, and the other end as its socket and session.
    fn wire() -> (TlsWire, TcpStream, Connection) {
        let ((near, session), (far, other)) = Identity::new().connected();
        (TlsWire::new(Guarded::new(near).unwrap(), session, &TcpSettings::default()).unwrap(), far, other)
    }

    fn say(session: &mut Connection, words: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::new();
        session.writer().write_all(words).unwrap();
        while session.wants_write() {
            session.write_tls(&mut sealed).unwrap();
        }
        sealed
    }

    fn wait(wire: &TlsWire) {
        let mut polled = [PollFd::from_borrowed_fd(wire.descriptor(), PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })), Ok(1));
    }

    /// What comes next, however long it takes.
    fn receive(wire: &mut TlsWire, room: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; room];
        loop {
            match wire.receive(&mut [IoSliceMut::new(&mut bytes)]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(wire),
                read => return read.map(|count| bytes[..count].to_vec()),
            }
        }
    }

    #[test]
    fn what_does_not_fill_its_pieces_leaves_nothing_behind() {
        let (mut wire, mut far, mut session) = wire();
        // Many records in one read of the kernel.
        let sealed: Vec<u8> = (0..40_u8).flat_map(|number| say(&mut session, &[number; 500])).collect();
        far.write_all(&sealed).unwrap();
        let expected: Vec<u8> = (0..40_u8).flat_map(|number| [number; 500]).collect();
        let mut got = Vec::new();
        while got.len() < expected.len() {
            let room = 30_000;
            let bytes = receive(&mut wire, room).unwrap();
            assert!(wire.is_drained() || bytes.len() == room, "nobody would ask for the rest");
            got.extend(bytes);
        }
        assert_eq!(got, expected);
        let more = wire.receive(&mut [IoSliceMut::new(&mut [0])]);
        assert_eq!(more.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Small pieces: what is left is at hand, and the wire says so.
        far.write_all(&say(&mut session, b"one two")).unwrap();
        assert_eq!(receive(&mut wire, 3).unwrap(), b"one");
        assert_eq!(receive(&mut wire, 30).unwrap(), b" two");
    }

    #[test]
    fn a_goodbye_behind_words_is_heard_after_them() {
        let (mut wire, mut far, mut session) = wire();
        let mut sealed = say(&mut session, b"last words");
        session.send_close_notify();
        session.write_tls(&mut sealed).unwrap();
        far.write_all(&sealed).unwrap();
        assert_eq!(receive(&mut wire, 100).unwrap(), b"last words");
        assert_eq!(receive(&mut wire, 100).unwrap(), b"", "closed");
    }

    #[test]
    fn nonsense_behind_words_is_an_error_after_them_though_nothing_more_comes() {
        let (mut wire, mut far, mut session) = wire();
        let mut sealed = say(&mut session, b"words");
        let mut spoilt = say(&mut session, b"more words");
        *spoilt.last_mut().unwrap() ^= 1;
        sealed.extend(spoilt);
        far.write_all(&sealed).unwrap();
        assert_eq!(receive(&mut wire, 100).unwrap(), b"words");
        assert!(!wire.is_drained(), "there is something to be told");
        assert_eq!(receive(&mut wire, 100).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_header_and_its_payload_are_one_record() {
        let (mut wire, mut far, mut session) = wire();
        let pieces = [IoSlice::new(b"header "), IoSlice::new(b"payload")];
        assert_eq!(wire.send(&pieces).unwrap(), 14);
        let mut sealed = [0; 1_000];
        let count = far.read(&mut sealed).unwrap();
        assert_eq!(count, 14 + 22, "five bytes of record, one of type, sixteen of tag");
        session.read_tls(&mut &sealed[..count]).unwrap();
        session.process_new_packets().unwrap();
        let mut words = [0; 14];
        session.reader().read_exact(&mut words).unwrap();
        assert_eq!(&words, b"header payload");
    }
}
