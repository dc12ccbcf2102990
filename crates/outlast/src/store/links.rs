//! Links between members: dialled or accepted, proved, greeted, and handed to the engine.
//!
//! Every link begins as a TLS stream, on which both ends prove who they are (rule 39). If they are on one host, they go on over a
//! pair of Unix sockets: see `link/hatch.rs`. Then the stream is closed.

#[cfg(test)]
mod tests;

use crate::fork::Guarded;
use crate::link::{self, OpenHatch, TcpSettings, TlsWire, UnixWire, Wire};
use crate::port::{self, AuthenticatedStream, Frames, Greeted};
use crate::security::TlsIdentity;
use outlast_proto::id::PeerId;
use outlast_proto::limits::FRAME_BYTES_MAX;
use outlast_proto::wire::frame::FrameBuffer;
use outlast_proto::wire::hatch::Hatch;
use outlast_proto::wire::store::mesh::Hop;
use outlast_proto::wire::store::{MemberId, StoreMember};
use outlast_proto::wire::{decode, encode};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// How long each of these may take: to dial, the hellos, the words about a hatch, the first frame.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A connection with another member.
pub(super) struct Linked {
    pub(super) other: MemberId,
    /// Who that proved to be.
    pub(super) peer: PeerId,
    /// Whom it means.
    pub(super) to: MemberId,
    pub(super) wire: Box<dyn Wire>,
    pub(super) incoming: FrameBuffer,
    /// What it said first, if it dialled us.
    pub(super) first: Option<Hop>,
    pub(super) dialled: bool,
}

/// A stream that a link begins on.
type Stream = TlsStream<Guarded<TcpStream>>;

/// Opens a connection to a member.
pub(super) async fn dial(
    identity: &TlsIdentity,
    me: MemberId,
    member: StoreMember,
) -> Result<Linked, String> {
    let stream = port::connect(member.address, port::STORE, identity, TIMEOUT).await;
    let stream = stream.map_err(words)?;
    let mut greeted = port::greet(stream, identity.peer(), TIMEOUT).await.map_err(words)?;
    let peer = greeted.peer;
    let beside = in_time(invite(&mut greeted)).await?;
    let (stream, mut incoming) = greeted.frames.into_parts();
    let wire: Box<dyn Wire> = match beside {
        Some(beside) => {
            incoming = FrameBuffer::new(FRAME_BYTES_MAX);
            Box::new(UnixWire::over(beside).map_err(words)?)
        }
        None => Box::new(wire(stream).map_err(words)?),
    };
    Ok(Linked { other: member.id, peer, to: me, wire, incoming, first: None, dialled: true })
}

/// Takes a connection over that somebody else has opened to us. Its first frame says who that is.
pub(super) async fn accept(stream: AuthenticatedStream, me: PeerId) -> Result<Linked, String> {
    let mut greeted = port::greet(stream, me, TIMEOUT).await.map_err(words)?;
    let peer = greeted.peer;
    if let Some(mut beside) = in_time(follow(&mut greeted)).await? {
        let (mut left_behind, _) = link::split(greeted.frames.into_parts().0).map_err(words)?;
        beside.take_lease_of(&mut left_behind);
        drop(left_behind);
        let beside = beside.convert(|stream| {
            stream.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(stream)
        });
        let mut frames = Frames::new(beside.map_err(words)?, FRAME_BYTES_MAX);
        let (hop, from, to) = in_time(greeting(&mut frames)).await?;
        let (stream, incoming) = frames.into_parts();
        let stream = stream.convert(tokio::net::UnixStream::into_std).map_err(words)?;
        let wire = Box::new(UnixWire::over(stream).map_err(words)?);
        return Ok(Linked { other: from, peer, to, wire, incoming, first: Some(hop), dialled: false });
    }
    let (hop, from, to) = in_time(greeting(&mut greeted.frames)).await?;
    let (stream, incoming) = greeted.frames.into_parts();
    let wire = Box::new(wire(stream).map_err(words)?);
    Ok(Linked { other: from, peer, to, wire, incoming, first: Some(hop), dialled: false })
}

/// Opens a hatch to whoever was dialled, if that seems to be on this host. Nothing if both stay on the stream.
async fn invite(greeted: &mut Greeted) -> Result<Option<Guarded<UnixStream>>, String> {
    let here = local_address(greeted.frames.stream());
    // From here it is only a guess; that it is true is proved at the hatch.
    let is_near = here.is_some_and(|here| canonical(here).ip() == canonical(greeted.address).ip());
    let hatch = if is_near { or_stay(OpenHatch::open()) } else { None };
    let (Some(hatch), Some(here)) = (hatch, here) else {
        return greeted.frames.send(&encode(&Hatch::None)).await.map(|()| None).map_err(words);
    };
    let invitation = hatch.invitation(here, greeted.address);
    greeted.frames.send(&encode(&invitation)).await.map_err(words)?;
    match said(&mut greeted.frames).await? {
        Hatch::Through => {
            // Who came to the hatch is told here, where it has proved who it is, whether it came to us.
            let beside = or_stay(hatch.admit());
            let answer = if beside.is_some() { Hatch::Through } else { Hatch::Stays };
            greeted.frames.send(&encode(&answer)).await.map_err(words)?;
            Ok(beside)
        }
        Hatch::Stays => Ok(None),
        Hatch::None | Hatch::Open { .. } => Err("it answers an invitation with another".to_owned()),
    }
}

/// Goes through the hatch of whoever dialled us, if there is one. Nothing if both stay on the stream.
async fn follow(greeted: &mut Greeted) -> Result<Option<Guarded<UnixStream>>, String> {
    let (name, proof, ends) = match said(&mut greeted.frames).await? {
        Hatch::None => return Ok(None),
        Hatch::Open { name, proof, from, to } => (name, proof, [from, to]),
        Hatch::Through | Hatch::Stays => return Err("it answers what nobody asked".to_owned()),
    };
    let seen_here = local_address(greeted.frames.stream()).map(|here| [greeted.address, here]);
    let is_direct = seen_here.is_some_and(|seen| seen.map(canonical) == ends.map(canonical));
    let beside = if is_direct { or_stay(link::go_through(&name, &proof)) } else { None };
    let Some(beside) = beside else {
        return greeted.frames.send(&encode(&Hatch::Stays)).await.map(|()| None).map_err(words);
    };
    greeted.frames.send(&encode(&Hatch::Through)).await.map_err(words)?;
    match said(&mut greeted.frames).await? {
        Hatch::Through => Ok(Some(beside)),
        Hatch::Stays => Ok(None),
        Hatch::None | Hatch::Open { .. } => Err("it answers an answer with an invitation".to_owned()),
    }
}

/// Nothing where a hatch does not work out: that is no fault of the link.
fn or_stay<T>(tried: io::Result<T>) -> Option<T> {
    tried.inspect_err(|error| tracing::debug!(%error, "a link of the store stays on TLS")).ok()
}

async fn said(frames: &mut Frames<Stream>) -> Result<Hatch, String> {
    let bytes = frames.next().await.map_err(words)?.ok_or("it hung up")?;
    decode(&bytes).map_err(words)
}

/// The first word of whoever dialled us: who it is, and whom it means.
async fn greeting<S>(frames: &mut Frames<S>) -> Result<(Hop, MemberId, MemberId), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let bytes = frames.next().await.map_err(words)?.ok_or("it hung up")?;
    match decode::<Hop>(&bytes).map_err(words)? {
        hop @ Hop::Greeting { from, to, .. } => Ok((hop, from, to)),
        _ => Err("its first word is no greeting".to_owned()),
    }
}

async fn in_time<T>(what: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    // Each has room for what it reads.
    tokio::time::timeout(TIMEOUT, Box::pin(what)).await.map_err(|_| "it says nothing")?
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn local_address(stream: &Stream) -> Option<SocketAddr> {
    stream.get_ref().0.local_addr().ok()
}

/// An address of IPv4 may come as one of IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn wire(stream: Stream) -> io::Result<TlsWire> {
    let (socket, session) = link::split(stream)?;
    TlsWire::new(socket, session, &TcpSettings::default())
}
