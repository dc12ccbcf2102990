//! Links between members: dialled or accepted, proved, greeted, and handed to the engine.

use crate::link::{TcpSettings, TlsWire};
use crate::port::{self, AuthenticatedStream};
use crate::security::TlsIdentity;
use outlast_proto::id::PeerId;
use outlast_proto::wire::decode;
use outlast_proto::wire::frame::FrameBuffer;
use outlast_proto::wire::store::mesh::Hop;
use outlast_proto::wire::store::{MemberId, StoreMember};
use std::io;
use std::time::Duration;

/// How long dialling, the hello and the first frame may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A connection with another member.
pub(super) struct Linked {
    pub(super) other: MemberId,
    /// Who that proved to be.
    pub(super) peer: PeerId,
    /// Whom it means.
    pub(super) to: MemberId,
    pub(super) wire: TlsWire,
    pub(super) incoming: FrameBuffer,
    /// What it said first, if it dialled us.
    pub(super) first: Option<Hop>,
    pub(super) dialled: bool,
}

/// Opens a connection to a member.
pub(super) async fn dial(
    identity: &TlsIdentity,
    me: MemberId,
    member: StoreMember,
) -> Result<Linked, String> {
    let stream = port::connect(member.address, port::STORE, identity, TIMEOUT).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let greeted = port::greet(stream, identity.peer(), TIMEOUT).await.map_err(|error| error.to_string())?;
    let peer = greeted.peer;
    let (stream, incoming) = greeted.frames.into_parts();
    let wire = wire(stream).map_err(|error| error.to_string())?;
    Ok(Linked { other: member.id, peer, to: me, wire, incoming, first: None, dialled: true })
}

/// Takes a connection over that somebody else has opened to us. Its first frame says who that is.
pub(super) async fn accept(stream: AuthenticatedStream, me: PeerId) -> Result<Linked, String> {
    let mut greeted = port::greet(stream, me, TIMEOUT).await.map_err(|error| error.to_string())?;
    let first = tokio::time::timeout(TIMEOUT, greeted.frames.next()).await;
    let first = first.map_err(|_| "it says nothing")?.map_err(|error| error.to_string())?;
    let bytes = first.ok_or("it hung up")?;
    let hop = decode::<Hop>(&bytes).map_err(|error| error.to_string())?;
    let Hop::Greeting { from, to, .. } = hop else { return Err("its first word is no greeting".to_owned()) };
    let peer = greeted.peer;
    let (stream, incoming) = greeted.frames.into_parts();
    let wire = wire(stream).map_err(|error| error.to_string())?;
    Ok(Linked { other: from, peer, to, wire, incoming, first: Some(hop), dialled: false })
}

fn wire(stream: tokio_rustls::TlsStream<crate::fork::Guarded<tokio::net::TcpStream>>) -> io::Result<TlsWire> {
    let (socket, session) = crate::link::split(stream)?;
    TlsWire::new(socket, session, &TcpSettings::default())
}
