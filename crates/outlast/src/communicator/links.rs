//! Data links through the one port: TLS, driven by the executor's threads.

use crate::fork::Guarded;
use crate::link::{Dial, TcpSettings, TlsWire, Wire};
use crate::port::{self, AuthenticatedStream};
use crate::security::TlsIdentity;
use outlast_proto::id::PeerId;
use rustls::Connection;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio_rustls::TlsStream;

/// Between two attempts to dial a link.
const REDIAL_PAUSE: Duration = Duration::from_millis(50);

/// Dials data links to other peers' ports.
pub(super) struct TlsLinks {
    pub(super) identity: TlsIdentity,
    pub(super) runtime: Handle,
    pub(super) tcp: TcpSettings,
}

impl Dial for TlsLinks {
    fn dial(&self, peer: PeerId, address: SocketAddr, deadline: Instant) -> io::Result<Box<dyn Wire>> {
        let stream = loop {
            let patience = deadline.saturating_duration_since(Instant::now());
            let dialled = self.runtime.block_on(port::connect(address, port::DATA, &self.identity, patience));
            match dialled {
                Ok(stream) => break stream,
                // The other side may be a moment behind, or too busy to shake hands; a process that is gone
                // is found out by others, and a new epoch does without it.
                Err(error) if Instant::now() + REDIAL_PAUSE < deadline => {
                    tracing::debug!(%address, %error, "a data link is dialled again");
                    std::thread::sleep(REDIAL_PAUSE);
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        };
        if stream.peer != peer {
            let text = format!("{address} is {}, not {}", stream.peer.short(), peer.short());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Box::new(wire(stream, &self.tcp)?))
    }
}

/// Takes a stream out of the runtime's hands.
pub(super) fn wire(stream: AuthenticatedStream, tcp: &TcpSettings) -> io::Result<TlsWire> {
    let (socket, session): (_, Connection) = match stream.stream {
        TlsStream::Client(stream) => {
            let (socket, session) = stream.into_inner();
            (socket, session.into())
        }
        TlsStream::Server(stream) => {
            let (socket, session) = stream.into_inner();
            (socket, session.into())
        }
    };
    let socket: Guarded<std::net::TcpStream> = socket.convert(tokio::net::TcpStream::into_std)?;
    TlsWire::new(socket, session, tcp)
}
