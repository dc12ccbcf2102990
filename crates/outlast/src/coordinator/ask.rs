//! One question to a coordinator: how does a run stand?
//!
//! Whoever holds the secret may ask, over a connection of its own and without taking part; looking changes
//! nothing.

use super::CoordinatorError;
use crate::port;
use crate::runtime::{self, Plane};
use crate::security::{Credentials, ProcessKey, TlsIdentity};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use outlast_proto::wire::hello::Version;
use outlast_proto::wire::{decode, encode};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::lookup_host;

/// A control connection whose hello is over.
pub(crate) type ControlFrames =
    port::Frames<tokio_rustls::TlsStream<crate::fork::Guarded<tokio::net::TcpStream>>>;

/// Why no coordinator was reached.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Unreached {
    /// Somebody answered who does not belong to the run: trying again will not help.
    pub(crate) foreign: bool,
    /// Somebody answered who does not serve what was asked for.
    pub(crate) unserved: bool,
    text: String,
}

impl From<String> for Unreached {
    fn from(text: String) -> Self {
        Self { foreign: false, unserved: false, text }
    }
}

/// How a run stands, as its coordinator tells it: a JSON object. `address` is `host:port`; several, separated
/// by commas, are tried in turn. `credentials` are a secret, or all of [`Credentials`].
pub fn ask_status(
    address: &str,
    credentials: impl Into<Credentials>,
    run: &RunId,
    timeout: Duration,
) -> Result<String, CoordinatorError> {
    let credentials = credentials.into().or_environment()?;
    let keys = credentials.keys(run).ok_or(CoordinatorError::MissingSecret)?;
    let identity = credentials.identity(&keys, &ProcessKey::generate())?;
    let asking = async {
        let dialled = dial(address, &identity, None, timeout, timeout).await;
        ask(&mut dialled.map_err(|error| error.to_string())?.frames).await
    };
    let answer = runtime::of(Plane::Control)?.block_on(async { tokio::time::timeout(timeout, asking).await });
    let unreachable = |cause| CoordinatorError::Unreachable { address: address.to_owned(), cause };
    answer.map_err(|_| unreachable(format!("no answer within {timeout:?}")))?.map_err(unreachable)
}

/// An open control connection.
pub(crate) struct Dialled {
    pub(crate) frames: ControlFrames,
    /// What both sides agreed to speak.
    pub(crate) version: Version,
    /// Who the coordinator is.
    pub(crate) coordinator: PeerId,
    /// Whether a later start of it will be the same, so that it can be known again (rule 39).
    pub(crate) is_kept: bool,
}

/// Opens a control connection to the first of the addresses that answers; see [`dial_plane`].
pub(crate) async fn dial(
    addresses: &str,
    identity: &TlsIdentity,
    pinned: Option<PeerId>,
    timeout: Duration,
    silent_after: Duration,
) -> Result<Dialled, Unreached> {
    dial_plane(port::CONTROL, addresses, identity, pinned, timeout, silent_after).await
}

/// Opens a stream of a plane to the first of the addresses that answers. It breaks by itself once the other
/// host has acknowledged nothing for `silent_after`. If it must be `pinned`, nobody else is taken for it.
pub(crate) async fn dial_plane(
    plane: &[u8],
    addresses: &str,
    identity: &TlsIdentity,
    pinned: Option<PeerId>,
    timeout: Duration,
    silent_after: Duration,
) -> Result<Dialled, Unreached> {
    let mut error = Unreached::from(format!("no address in {addresses:?}"));
    for address in addresses.split(',').map(str::trim).filter(|address| !address.is_empty()) {
        match lookup_host(address).await {
            Err(cause) => error = format!("{address}: {cause}").into(),
            Ok(found) => {
                for address in found {
                    match dial_one(plane, address, identity, pinned, timeout, silent_after).await {
                        Ok(dialled) => return Ok(dialled),
                        Err(cause) => error = cause,
                    }
                }
            }
        }
    }
    Err(error)
}

async fn dial_one(
    plane: &[u8],
    address: SocketAddr,
    identity: &TlsIdentity,
    pinned: Option<PeerId>,
    timeout: Duration,
    silent_after: Duration,
) -> Result<Dialled, Unreached> {
    let stream = port::connect(address, plane, identity, timeout).await;
    let stream = stream.map_err(|error| Unreached {
        foreign: matches!(error, port::ConnectError::Foreign { .. } | port::ConnectError::FalseName { .. }),
        unserved: matches!(error, port::ConnectError::NoSuchPlane { .. }),
        text: error.to_string(),
    })?;
    if let Some(pinned) = pinned.filter(|pinned| *pinned != stream.peer) {
        let text = format!(
            "{address} is not the coordinator that this peer registered with: that was {pinned}, which keeps its key, \
             and this is {}; if the key was lost, start the peers again",
            stream.peer
        );
        tracing::warn!(%address, %pinned, answered = %stream.peer, "refused a coordinator that is not ours");
        return Err(Unreached { foreign: true, unserved: false, text });
    }
    notice_silence(&stream, silent_after).map_err(|error| error.to_string())?;
    let greeted = port::greet(stream, identity.peer(), timeout).await.map_err(|error| error.to_string())?;
    let (coordinator, is_kept) = (greeted.peer, greeted.hello.key_is_kept);
    Ok(Dialled { frames: greeted.frames, version: greeted.version, coordinator, is_kept })
}

/// A host that is cut off says nothing, and whoever waits for a verdict must find out. The kernel asks an idle
/// connection's other end, and gives up on one that acknowledges nothing. What is sent here is small, so a
/// coordinator that is merely stopped has room for it and its kernel goes on acknowledging.
fn notice_silence(stream: &port::AuthenticatedStream, limit: Duration) -> io::Result<()> {
    let (socket, _) = stream.stream.get_ref();
    let socket = SockRef::from(&**socket);
    // The kernel counts keep-alive in whole seconds.
    let interval = (limit / 2).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(interval).with_interval(interval))?;
    socket.set_tcp_user_timeout(Some(limit))
}

/// The question and its answer.
pub(crate) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut port::Frames<S>,
) -> Result<String, String> {
    frames.send(&encode(&ToCoordinator::AskStatus)).await.map_err(|error| error.to_string())?;
    let bytes = frames.next().await.map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or("it closed the connection without an answer")?;
    match decode::<ToPeer>(&bytes) {
        Ok(ToPeer::Status(status)) => Ok(status),
        Ok(other) => Err(format!("it answered something else: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}
