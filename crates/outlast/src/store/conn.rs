//! A link as the engine drives it: what is still to be written, and what the watch is asked to tell of.
//!
//! # The invariant
//!
//! The watch tells of room exactly as long as something waits for room, be it here or in the wire (a TLS session keeps what it
//! has sealed). If it were not asked, what waits would never go. If it were asked for longer, every wait would end at once,
//! for a socket nearly always has room, and the process would never sleep again.

use crate::link::Wire;
use outlast_proto::wire::frame::{self, FrameBuffer};
use outlast_proto::wire::store::mesh::Hop;
use rustix::event::epoll;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

/// A link that the watch knows.
pub(super) struct Conn {
    wire: Box<dyn Wire>,
    /// What the watch calls it.
    pub(super) token: u64,
    pub(super) incoming: FrameBuffer,
    out: Vec<u8>,
    /// How much of `out` is gone.
    written: usize,
    /// The socket takes no more at present.
    is_full: bool,
    /// The watch was asked to tell of room.
    asks_for_room: bool,
    /// Whoever has the lower id dialled it: of two connections this one stays.
    pub(super) dialled_by_lower: bool,
}

impl Conn {
    /// Lets the watch tell of that link, which it calls `token`.
    pub(super) fn watched(
        wire: Box<dyn Wire>,
        incoming: FrameBuffer,
        dialled_by_lower: bool,
        token: u64,
        watch: &OwnedFd,
    ) -> io::Result<Self> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(watch, wire.descriptor(), data, epoll::EventFlags::IN)?;
        let (out, written, is_full, asks_for_room) = (Vec::new(), 0, false, false);
        Ok(Self { wire, token, incoming, out, written, is_full, asks_for_room, dialled_by_lower })
    }

    /// Says something as soon as there is room.
    pub(super) fn say(&mut self, hop: &Hop) {
        frame::append_message(hop, &mut self.out);
    }

    /// The watch told of it: perhaps there is room again.
    pub(super) fn is_ready(&mut self) {
        self.is_full = false;
    }

    /// What came, into `scratch`.
    pub(super) fn receive(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        self.wire.receive(&mut [IoSliceMut::new(scratch)])
    }

    /// Whether the last read has left nothing.
    pub(super) fn is_drained(&self) -> bool {
        self.wire.is_drained()
    }

    /// Writes what there is room for. An error if the link is broken.
    pub(super) fn flush(&mut self, watch: &OwnedFd) -> io::Result<()> {
        if self.is_full || (self.out.is_empty() && !self.asks_for_room) {
            return Ok(());
        }
        match self.write() {
            Ok(()) => self.is_full = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_full = true,
            Err(error) => return Err(error),
        }
        if self.is_full != self.asks_for_room {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, self.is_full);
            epoll::modify(watch, self.wire.descriptor(), epoll::EventData::new_u64(self.token), flags)?;
            self.asks_for_room = self.is_full;
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            self.written += self.wire.send(&[IoSlice::new(&self.out[self.written..])])?;
        }
        self.out.clear();
        self.written = 0;
        self.wire.flush()
    }

    /// Nobody is told of it any more.
    pub(super) fn unwatch(&self, watch: &OwnedFd) {
        let _ = epoll::delete(watch, self.wire.descriptor());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::UnixWire;
    use outlast_proto::limits::FRAME_BYTES_MAX;
    use rustix::event::Timespec;
    use std::io::Read as _;
    use std::os::fd::{AsFd as _, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    /// More than a socket takes at once.
    const LONG: usize = 16 << 20;

    fn watch() -> OwnedFd {
        epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()
    }

    fn conn(wire: Box<dyn Wire>, watch: &OwnedFd) -> Conn {
        let mut conn = Conn::watched(wire, FrameBuffer::new(FRAME_BYTES_MAX), true, 7, watch).unwrap();
        conn.out = vec![5; LONG];
        conn
    }

    /// Whether the watch has anything to tell now.
    fn tells(watch: &OwnedFd) -> bool {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 4];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !epoll::wait(watch, &mut events[..], Some(&now)).unwrap().0.is_empty()
    }

    #[test]
    fn who_had_no_room_is_told_of_it_until_everything_is_written_and_then_no_more() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let watch = watch();
        let mut conn = conn(Box::new(UnixWire::new(ours).unwrap()), &watch);
        conn.flush(&watch).unwrap();
        assert!(conn.is_full && !tells(&watch));
        let mut read = 0;
        let mut scratch = vec![0; 64 << 10];
        while read < LONG {
            read += theirs.read(&mut scratch).unwrap();
            if tells(&watch) {
                conn.is_ready();
            }
            conn.flush(&watch).unwrap();
        }
        assert!(!tells(&watch), "nothing waits for room, and nothing came");
    }

    /// As a TLS session: what it was given it keeps until the socket has room.
    struct Sealing {
        socket: UnixStream,
        kept: Arc<AtomicUsize>,
        has_room: Arc<AtomicBool>,
    }

    impl Wire for Sealing {
        fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
            self.kept.fetch_add(pieces[0].len(), SeqCst);
            Ok(pieces[0].len())
        }
        fn receive(&mut self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            if !self.has_room.load(SeqCst) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.kept.store(0, SeqCst);
            Ok(())
        }
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
        fn wants_checksums(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_a_wire_has_sealed_and_not_sent_goes_as_soon_as_there_is_room() {
        let (socket, _theirs) = UnixStream::pair().unwrap();
        let (kept, has_room) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let watch = watch();
        let wire = Sealing { socket, kept: Arc::clone(&kept), has_room: Arc::clone(&has_room) };
        let mut conn = conn(Box::new(wire), &watch);
        conn.flush(&watch).unwrap();
        assert!(kept.load(SeqCst) == LONG && tells(&watch), "it asks for room");
        has_room.store(true, SeqCst);
        conn.is_ready();
        conn.flush(&watch).unwrap();
        assert_eq!(kept.load(SeqCst), 0, "although nothing else was said");
        assert!(!tells(&watch));
    }
}
