//! Opening the outgoing side of a link.

use super::{TcpSettings, TcpWire, Wire};
use crate::fork::Guarded;
use outlast_proto::id::PeerId;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Opens links. Called on a thread of its own, so it may wait, but not beyond the deadline.
pub trait Dial: Send + Sync {
    /// Connects to `peer` at `address` and makes sure that it is that peer.
    fn dial(&self, peer: PeerId, address: SocketAddr, deadline: Instant) -> io::Result<Box<dyn Wire>>;

    /// The same for one more stream of a link that is there. Whoever accepts it can tell it from a new link.
    fn dial_stripe(
        &self,
        _peer: PeerId,
        _address: SocketAddr,
        _deadline: Instant,
    ) -> io::Result<Box<dyn Wire>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "links of this kind have one stream"))
    }
}

/// Starts the hello of a plaintext data connection..
const PLAIN_MAGIC: [u8; 8] = *b"outlastD";
/// ..and of one more stream of it.
const PLAIN_STRIPE_MAGIC: [u8; 8] = *b"outlastS";
/// A refused connect is tried again after this time: the other side may be a moment behind.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// ..this often. A process that is gone refuses forever, and whoever waits for us wants to know soon.
const REFUSED_ATTEMPTS_MAX: u32 = 5;

/// Dials plaintext TCP and says who is calling. It proves nothing (rule 34: only when asked for).
#[derive(Clone, Debug)]
pub struct PlainDialer {
    /// Who is calling.
    pub me: PeerId,
    /// What to ask of the kernel.
    pub tcp: TcpSettings,
}

impl Dial for PlainDialer {
    fn dial(&self, _peer: PeerId, address: SocketAddr, deadline: Instant) -> io::Result<Box<dyn Wire>> {
        self.open(PLAIN_MAGIC, address, deadline)
    }

    fn dial_stripe(
        &self,
        _peer: PeerId,
        address: SocketAddr,
        deadline: Instant,
    ) -> io::Result<Box<dyn Wire>> {
        self.open(PLAIN_STRIPE_MAGIC, address, deadline)
    }
}

impl PlainDialer {
    fn open(&self, magic: [u8; 8], address: SocketAddr, deadline: Instant) -> io::Result<Box<dyn Wire>> {
        let mut attempts = REFUSED_ATTEMPTS_MAX;
        let mut stream = loop {
            attempts -= 1;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => break stream,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && attempts > 0 => {
                    std::thread::sleep(REFUSED_PAUSE.min(left));
                }
                Err(error) => return Err(error),
            }
        };
        let mut hello = [0; 24];
        hello[..8].copy_from_slice(&magic);
        hello[8..].copy_from_slice(self.me.as_bytes());
        // The first bytes of a connection always fit its buffer: this does not wait.
        stream.write_all(&hello)?;
        Ok(Box::new(TcpWire::new(Guarded::new(stream)?, &self.tcp)?))
    }
}

/// What an accepted plaintext connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHello {
    /// Who is calling.
    pub peer: PeerId,
    /// One more stream of a link that is there.
    pub is_stripe: bool,
}

/// Who is calling on an accepted plaintext connection, as [`PlainDialer`] says it.
pub fn read_plain_hello(stream: &mut TcpStream, patience: Duration) -> io::Result<PlainHello> {
    stream.set_read_timeout(Some(patience))?;
    let mut hello = [0; 24];
    stream.read_exact(&mut hello)?;
    stream.set_read_timeout(None)?;
    let (magic, peer) = hello.split_at(8);
    if magic != PLAIN_MAGIC && magic != PLAIN_STRIPE_MAGIC {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not the hello of a plaintext data connection",
        ));
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(peer);
    Ok(PlainHello { peer: PeerId::from_bytes(bytes), is_stripe: magic == PLAIN_STRIPE_MAGIC })
}
