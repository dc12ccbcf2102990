//! Links: one contract, several transports.
//!
//! The executor moves frames over byte streams that it drives by itself: it never blocks in one, it sends from
//! and receives into memory that may belong to a caller, and it must be able to let go of that memory at any
//! byte (rule 15). [`Wire`] is all it asks of a stream. [`TcpWire`] is plaintext TCP; [`TlsWire`] is TLS over
//! the same socket, driven without a runtime; [`UnixWire`] is a pair of Unix sockets, between two processes of one host that
//! have found each other by a hatch (`hatch.rs`), and in tests.
//!
//! The invariant: no method of a wire keeps a reference to what it was given, in this process or in the kernel
//! (no zero-copy sends), and none waits.
//!
//! Who may use a wire is decided before it is made: [`Dial`] opens and authenticates the outgoing ones, the
//! process's listener the incoming ones.

mod dial;
mod gauge;
mod hatch;
mod pulse;
mod tcp;
mod tls;

pub use dial::{Dial, PlainDialer, PlainHello, read_plain_hello};
pub use gauge::Gauge;
pub(crate) use hatch::{OpenHatch, go_through};
pub use tcp::{TcpSettings, TcpWire, UnixWire};
pub use tls::TlsWire;
pub(crate) use tls::split;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

/// A byte stream between two peers that never waits.
pub trait Wire: Send {
    /// Takes some of the bytes and says how many, or `WouldBlock` if there is no room for any.
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Fills some of the pieces in order and says how many bytes, or `WouldBlock` if there are none yet.
    /// Zero means that the other side closed.
    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Whether the last receive that did not fill its pieces left nothing in the kernel, as far as it could see. To
    /// receive once more without waiting for the descriptor is in vain then.
    fn is_drained(&self) -> bool {
        false
    }

    /// Pushes what was taken but not yet given to the kernel; `WouldBlock` if some of it is left.
    fn flush(&mut self) -> io::Result<()>;

    /// What to poll for readiness.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether frames should carry a checksum, because nothing below does better.
    fn wants_checksums(&self) -> bool;

    /// Tells the other side that nothing more comes, if the stream has a word for that and takes it now.
    fn say_goodbye(&mut self) {}

    /// What the kernel knows about the way to another host; nothing if the bytes do not leave this one.
    fn gauge(&self) -> Option<Gauge> {
        None
    }

    /// Lets at most about this many bytes wait in the kernel for their turn on the way, so that a sender with
    /// several streams sees which of them has room. Without a number, as many as the kernel likes.
    fn limit_queue(&self, _bytes: Option<u32>) -> io::Result<()> {
        Ok(())
    }
}
