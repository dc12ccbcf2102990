//! One question to a coordinator: how does a run stand?
//!
//! Whoever holds the secret may ask, over a connection of its own and without taking part; looking changes
//! nothing.

use super::CoordinatorError;
use super::hunt::{Target, hunt};
use crate::port;
use crate::runtime::{self, Plane};
use crate::security::{Credentials, ProcessKey, TlsIdentity};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use outlast_proto::wire::hello::{Standing, Version};
use outlast_proto::wire::{decode, encode};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// How long a question about the status waits for somebody to reign.
const SETTLE_AFTER: Duration = Duration::from_secs(1);

/// A control connection whose hello is over.
pub(crate) type ControlFrames =
    port::Frames<tokio_rustls::TlsStream<crate::fork::Guarded<tokio::net::TcpStream>>>;

/// Why no coordinator was reached.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Unreached {
    /// Somebody answered who does not belong to the run.
    pub(crate) foreign: bool,
    /// Somebody answered who does not serve what was asked for.
    pub(crate) unserved: bool,
    /// Somebody answered who cannot talk to us: it speaks another version.
    pub(crate) incompatible: bool,
    pub(super) text: String,
}

impl Unreached {
    /// Trying again will not help: whoever is asked to join something says so at once. (Who is in already goes on trying: the
    /// other side may be started again as it was.)
    pub(crate) fn is_final(&self) -> bool {
        self.foreign || self.unserved || self.incompatible
    }

    /// That is not for ever, whatever others said.
    pub(super) fn may_pass(&mut self) {
        (self.foreign, self.unserved, self.incompatible) = (false, false, false);
    }

    /// Why nobody was reached. One name may stand for several addresses, and one word that trying again will not help is
    /// enough then; of several names it must be true of all.
    pub(super) fn of(failures: Vec<Self>, is_one_name: bool) -> Self {
        let is = |so: fn(&Self) -> bool| {
            if is_one_name { failures.iter().any(so) } else { failures.iter().all(so) }
        };
        let (foreign, unserved) = (is(|failure| failure.foreign), is(|failure| failure.unserved));
        let incompatible = is(|failure| failure.incompatible);
        let texts: Vec<_> = failures.into_iter().map(|failure| failure.text).collect();
        Self { foreign, unserved, incompatible, text: texts.join("; ") }
    }
}

impl From<String> for Unreached {
    fn from(text: String) -> Self {
        Self { foreign: false, unserved: false, incompatible: false, text }
    }
}

/// How a run stands, as its coordinator tells it: a JSON object. `address` is `host:port`; of several, separated by commas,
/// the one answers that reigns; or, if none does, one that stands by. `credentials` are a secret, or all of [`Credentials`].
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
        let (plane, pinned, silent_after) = (port::CONTROL.to_vec(), None, timeout);
        let target = Target { plane, identity, pinned, timeout, silent_after, seeks: false };
        let dialled = hunt(address, &target, Some(timeout.min(SETTLE_AFTER))).await;
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
    /// How it stands among several (rule 19).
    pub(crate) standing: Option<Standing>,
}

/// Opens a control connection; see [`dial_plane`].
pub(crate) async fn dial(
    addresses: &str,
    identity: &TlsIdentity,
    pinned: Option<PeerId>,
    timeout: Duration,
    silent_after: Duration,
) -> Result<Dialled, Unreached> {
    dial_plane(port::CONTROL, addresses, identity, pinned, timeout, silent_after).await
}

/// Opens a stream of a plane to the coordinator behind these addresses: of several, to the one that reigns. It breaks by
/// itself once the other host has acknowledged nothing for `silent_after`. If it must be `pinned`, nobody else is taken
/// for it.
pub(crate) async fn dial_plane(
    plane: &[u8],
    addresses: &str,
    identity: &TlsIdentity,
    pinned: Option<PeerId>,
    timeout: Duration,
    silent_after: Duration,
) -> Result<Dialled, Unreached> {
    let (plane, identity) = (plane.to_vec(), identity.clone());
    let target = Target { plane, identity, pinned, timeout, silent_after, seeks: true };
    hunt(addresses, &target, None).await
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
