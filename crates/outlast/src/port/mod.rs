//! One port number for everything (rule 38).
//!
//! A firewall rule, a container's port list and a person's memory hold one number. So a process binds one:
//! the UDP socket belongs to the health plane alone, the TCP listener is shared by all planes. A connection is
//! routed by what it asked for in its TLS hello (ALPN), after both sides have proved that they belong to the
//! run and before a byte of any plane's protocol is read.
//!
//! ```text
//!            +-- UDP n ----------------------------------------------> health plane
//!  number n -+
//!            +-- TCP n --> few handshakes at a time --> TLS 1.3 --> by ALPN --> health | control | data | ..
//!                          '---- on a thread of their own ----'
//!
//!  number m --- TCP, bound and never listening: connects to it are refused, and others check that they are
//! ```
//!
//! The kernel's own behaviour on these numbers is evidence about this process (rule 22): a stopped process
//! still accepts on `n`, a dead one refuses. Members therefore connect and hang up without a word; that is
//! counted and never logged. The closed number `m` tells an honest network from one with a box in between that
//! answers for everybody.
//!
//! Whoever opens connections without belonging here costs at most a place in a bounded table for a bounded
//! time ([`ServeSettings`], `places`), one counter and a log line a minute. Whoever does belong here has at most
//! its share of streams. All of it stays well below the process's limit of open files. The accept loop outlives
//! every error.
//!
//! The invariant: a handler only ever sees an [`AuthenticatedStream`].

mod connect;
mod counters;
mod greet;
mod identities;
mod places;
mod serve;
mod settings;
mod sockets;
mod streams;
#[cfg(test)]
mod tests;

pub use connect::{ConnectError, connect};
pub use counters::{PortCounters, RefusedConnection};
pub use greet::{FrameError, Frames, GreetError, Greeted, greet, greet_as};
pub use identities::{CachedIdentities, NotServed, RunIdentities};
pub use places::KnownSources;
pub(crate) use serve::PortWatch;
pub use serve::{Routes, Serving};
pub use settings::{ServeSettings, raise_files_max};

use crate::fork::Guarded;
use crate::security::TlsIdentity;
use crate::sync::lock;
use outlast_proto::id::{PeerId, RunId};
use socket2::Socket;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsStream;

/// The health plane, where UDP is blocked.
pub const HEALTH: &[u8] = b"outlast-health/1";
/// The control plane: votes and verdicts.
pub const CONTROL: &[u8] = b"outlast-control/1";
/// The data plane: links between peers.
pub const DATA: &[u8] = b"outlast-data/1";
/// The data plane in the clear, once both ends have proved themselves. Served only by peers that asked for it
/// (rule 34).
pub const DATA_PLAIN: &[u8] = b"outlast-data-plain/1";
/// One more stream of a link of the data plane.
pub const DATA_STRIPE: &[u8] = b"outlast-data-stripe/1";
/// The same in the clear.
pub const DATA_PLAIN_STRIPE: &[u8] = b"outlast-data-plain-stripe/1";
/// Leaves of a shared state.
pub const STATE: &[u8] = b"outlast-state/1";
/// The same in the clear.
pub const STATE_PLAIN: &[u8] = b"outlast-state-plain/1";
/// Registers of the coordinator: compare-and-set, leases, news.
pub const REGISTER: &[u8] = b"outlast-register/1";

/// Questions to a peer about itself.
pub const INSPECT: &[u8] = b"outlast-inspect/1";

/// Measurements of the way between two peers.
pub const PROBE: &[u8] = b"outlast-probe/1";
/// The same in the clear.
pub const PROBE_PLAIN: &[u8] = b"outlast-probe-plain/1";
/// The store: links between its members.
pub const STORE: &[u8] = b"outlast-store/1";
/// The store: from a member to whoever decides on views.
pub const STORE_VIEWS: &[u8] = b"outlast-store-views/1";
/// The store: from somebody who is no member to one.
pub const STORE_CLIENT: &[u8] = b"outlast-store-client/1";

/// Nothing: whoever opens it wants to know whether this port can be reached, and hangs up.
pub const PATH: &[u8] = b"outlast-path/1";

/// Numbers that are tried for one that is free for TCP and UDP both.
const BIND_ATTEMPTS: usize = 64;

/// The sockets of this process's one number.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    /// Taken out by whoever serves.
    listener: Mutex<Option<Guarded<TcpListener>>>,
    datagrams: Guarded<UdpSocket>,
    /// Holds its number; nobody ever uses it.
    closed: (Guarded<Socket>, u16),
}

/// Why a port cannot be bound or served. Nothing was left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The number is taken, or the address is not ours.
    #[error("cannot bind {address} for TCP and UDP: {cause}; choose another port, or 0 for any")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The listener is being served already.
    #[error("{0} is being served already")]
    AlreadyServed(SocketAddr),
    /// The listener cannot be handed to the runtime.
    #[error("cannot serve {address}: {cause}")]
    Serve {
        /// The port's address.
        address: SocketAddr,
        /// What the operating system said.
        cause: io::Error,
    },
}

/// A stream whose other end has proved that it belongs to the run.
#[derive(Debug)]
pub struct AuthenticatedStream {
    /// Who is there.
    pub peer: PeerId,
    /// The run that both belong to.
    pub run: RunId,
    /// Where it connects from, or where it was dialled.
    pub address: SocketAddr,
    /// What the stream is for.
    pub alpn: Vec<u8>,
    /// The stream.
    pub stream: TlsStream<Guarded<TcpStream>>,
}

impl Port {
    /// Binds `address` for TCP and UDP; port 0 takes any number that is free for both. From here on the kernel
    /// accepts connects; they wait until [`Port::serve`].
    pub fn bind(address: SocketAddr) -> Result<Self, PortError> {
        let failed = |cause| PortError::Bind { address, cause };
        let mut attempts = if address.port() == 0 { BIND_ATTEMPTS } else { 1 };
        let (listener, datagrams) = loop {
            attempts -= 1;
            match sockets::listener_and_datagrams(address) {
                Ok(bound) => break bound,
                // The number that TCP was given is taken for UDP: ask for another.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => {}
                Err(error) => return Err(failed(error)),
            }
        };
        let bound = listener.local_addr().map_err(failed)?;
        let closed = sockets::closed(bound).map_err(failed)?;
        let listener = Mutex::new(Some(listener));
        Ok(Self { address: bound, listener, datagrams, closed })
    }

    /// The address, with the number that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The UDP socket, for the health plane alone. It blocks.
    pub fn udp(&self) -> &UdpSocket {
        &self.datagrams
    }

    /// A TCP number on the same address that refuses connects for as long as this port lives (rule 22).
    pub fn closed_port(&self) -> u16 {
        self.closed.1
    }

    /// Accepts connections of `identity`'s run and hands them to `routes`, until the result is dropped.
    pub fn serve(
        &self,
        runtime: &Handle,
        identity: TlsIdentity,
        routes: Routes,
    ) -> Result<Serving, PortError> {
        self.serve_runs(runtime, Arc::new(identity), routes, ServeSettings::default())
    }

    /// Like [`Port::serve`], for several runs and with settings of one's own.
    pub fn serve_runs(
        &self,
        runtime: &Handle,
        identities: Arc<dyn RunIdentities>,
        routes: Routes,
        settings: ServeSettings,
    ) -> Result<Serving, PortError> {
        let taken = lock(&self.listener).take();
        let listener = taken.ok_or(PortError::AlreadyServed(self.address))?;
        Serving::start(runtime, listener, identities, routes, settings)
            .map_err(|cause| PortError::Serve { address: self.address, cause })
    }
}
