//! Dialling: the other half of the port.

use super::{AuthenticatedStream, sockets};
use crate::security::tls::{FalseName, TlsIdentity, server_name};
use rustls::AlertDescription;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio_rustls::TlsConnector;

/// Why there is no stream. Nothing was left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Neither accepted nor refused, or the handshake hung.
    #[error("{address} did not answer within {timeout:?}")]
    TimedOut {
        /// Who was dialled.
        address: SocketAddr,
        /// How long was waited.
        timeout: Duration,
    },
    /// The connection was refused, or broke.
    #[error("cannot connect to {address}: {cause}")]
    Unreachable {
        /// Who was dialled.
        address: SocketAddr,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The other side has a certificate of another authority, or does not accept ours.
    #[error("{address} does not belong to this run: {cause}; do both sides have the same secret and run id?")]
    Foreign {
        /// Who was dialled.
        address: SocketAddr,
        /// What TLS said.
        cause: rustls::Error,
    },
    /// The other side belongs to the run and shows somebody else's name, or none (rule 39).
    #[error("{address} is not who it says it is: {cause}")]
    FalseName {
        /// Who was dialled.
        address: SocketAddr,
        /// What its certificate says.
        cause: FalseName,
    },
    /// The other side does not serve what was asked for.
    #[error("{address} does not serve {plane:?}; does it run an older version?")]
    NoSuchPlane {
        /// Who was dialled.
        address: SocketAddr,
        /// What was asked for.
        plane: String,
    },
    /// The other side speaks something else.
    #[error("{address} does not speak our protocol: {cause}")]
    NotOurs {
        /// Who was dialled.
        address: SocketAddr,
        /// What TLS said.
        cause: rustls::Error,
    },
    /// The other side closed the connection during the handshake: it serves other runs, or is overloaded.
    #[error(
        "{address} closed the connection during the handshake; it may not serve this run, or be overloaded"
    )]
    Closed {
        /// Who was dialled.
        address: SocketAddr,
    },
}

/// Opens a stream to `address` for the plane `alpn`, within `timeout`.
///
/// A stream means that the other side belongs to the run. Whether it takes *us* is known with its first bytes:
/// TLS 1.3 lets the opener finish first, so a refusal shows as a failing read.
pub async fn connect(
    address: SocketAddr,
    alpn: &[u8],
    identity: &TlsIdentity,
    timeout: Duration,
) -> Result<AuthenticatedStream, ConnectError> {
    let dialling = dial(address, alpn, identity);
    tokio::time::timeout(timeout, dialling).await.unwrap_or(Err(ConnectError::TimedOut { address, timeout }))
}

async fn dial(
    address: SocketAddr,
    alpn: &[u8],
    identity: &TlsIdentity,
) -> Result<AuthenticatedStream, ConnectError> {
    let stream =
        sockets::dialled(address).await.map_err(|cause| ConnectError::Unreachable { address, cause })?;
    let connector = TlsConnector::from(identity.client_config(&[alpn]));
    let stream = connector
        .connect(server_name(identity.run()), stream)
        .await
        .map_err(|error| error_of(address, alpn, error))?;
    let (_, session) = stream.get_ref();
    let peer = identity
        .peer_of(session.peer_certificates())
        .map_err(|cause| ConnectError::FalseName { address, cause })?;
    if session.alpn_protocol() != Some(alpn) {
        return Err(no_such_plane(address, alpn));
    }
    let (run, alpn) = (identity.run().clone(), alpn.to_vec());
    Ok(AuthenticatedStream { peer, run, address, alpn, stream: stream.into() })
}

fn error_of(address: SocketAddr, alpn: &[u8], error: io::Error) -> ConnectError {
    use AlertDescription as Alert;
    let Some(cause) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).cloned() else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => ConnectError::Closed { address },
            _ => ConnectError::Unreachable { address, cause: error },
        };
    };
    match cause {
        rustls::Error::AlertReceived(Alert::NoApplicationProtocol) => no_such_plane(address, alpn),
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::AlertReceived(
            Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown | Alert::DecryptError,
        ) => ConnectError::Foreign { address, cause },
        cause => ConnectError::NotOurs { address, cause },
    }
}

fn no_such_plane(address: SocketAddr, alpn: &[u8]) -> ConnectError {
    ConnectError::NoSuchPlane { address, plane: String::from_utf8_lossy(alpn).into_owned() }
}
