//! Lanes of the real world: TLS to a member's one port, then hellos.

use super::stream::Dialler;
use crate::fork::Guarded;
use crate::port::{self, Frames};
use crate::security::TlsIdentity;
use outlast_proto::id::PeerId;
use outlast_proto::time::Duration;
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// How long a connect with its handshake may take, and after it the hellos.
pub(super) const STEP_MAX: Duration = Duration::from_secs(3);

/// Dials as the member that `identity` shows.
pub(crate) struct TlsDialler {
    pub(super) identity: TlsIdentity,
}

impl Dialler for TlsDialler {
    type Stream = TlsStream<Guarded<TcpStream>>;

    async fn dial(&self, to: SocketAddr) -> io::Result<(PeerId, Frames<Self::Stream>)> {
        let stream =
            port::connect(to, port::HEALTH, &self.identity, STEP_MAX).await.map_err(io::Error::other)?;
        let greeted = port::greet(stream, self.identity.peer(), STEP_MAX).await.map_err(io::Error::other)?;
        Ok((greeted.peer, greeted.frames))
    }
}
