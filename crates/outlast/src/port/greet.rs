//! Whole messages on a stream, and the hello that comes first.

use super::AuthenticatedStream;
use crate::fork::Guarded;
use outlast_proto::id::PeerId;
use outlast_proto::limits::{FRAME_BYTES_MAX, HELLO_BYTES_MAX};
use outlast_proto::wire::frame::{self, FrameBuffer};
use outlast_proto::wire::hello::{Hello, Incompatible, Standing, Version, Versions, negotiate};
use outlast_proto::wire::{InvalidMessage, decode, encode};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// Read at once; the frames in it are cut out before the next read.
const READ_BYTES: usize = 8_192;

/// A stream as a sequence of frames.
#[derive(Debug)]
pub struct Frames<S> {
    stream: S,
    incoming: FrameBuffer,
}

/// Why a stream gives no more frames. The stream must be closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The other side breaks the framing.
    #[error("the other side breaks the framing: {0}")]
    Invalid(#[from] InvalidMessage),
    /// The stream ended in the middle of a frame.
    #[error("the stream ended with {0} bytes of an unfinished frame")]
    CutOff(usize),
}

/// Why two sides that proved themselves still do not talk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GreetError {
    /// No hello came in time.
    #[error("{address} said no hello within {timeout:?}")]
    TimedOut {
        /// The other side.
        address: SocketAddr,
        /// How long was waited.
        timeout: Duration,
    },
    /// The stream ended before a hello: most likely the other side refused our certificate.
    #[error("{0} closed the stream before its hello; it may have refused our certificate")]
    Closed(SocketAddr),
    /// The stream broke, or is not framed.
    #[error("no hello from {address}: {cause}")]
    Frame {
        /// The other side.
        address: SocketAddr,
        /// What happened.
        cause: FrameError,
    },
    /// What came is not a hello.
    #[error("{address} sent something that is not a hello: {cause}")]
    Invalid {
        /// The other side.
        address: SocketAddr,
        /// What is wrong with it.
        cause: InvalidMessage,
    },
    /// The two cannot talk.
    #[error("cannot talk to {address}: {cause}")]
    Incompatible {
        /// The other side.
        address: SocketAddr,
        /// Why.
        cause: Incompatible,
    },
}

/// A stream on which both sides said hello and agreed.
#[derive(Debug)]
pub struct Greeted {
    /// Who is there.
    pub peer: PeerId,
    /// Where it is.
    pub address: SocketAddr,
    /// The version that both speak here.
    pub version: Version,
    /// What the other side said.
    pub hello: Hello,
    /// The stream.
    pub frames: Frames<TlsStream<Guarded<TcpStream>>>,
}

/// Exchanges hellos on a stream that was just opened or accepted; `me` is how we call ourselves. Both sides
/// call it: each sends first and then reads, and a hello fits into any socket's buffer.
pub async fn greet(
    opened: AuthenticatedStream,
    me: PeerId,
    timeout: Duration,
) -> Result<Greeted, GreetError> {
    greet_as(opened, me, false, None, timeout).await
}

/// As [`greet`], by a coordinator: it says whether a later start of it will have the same key (rule 39), and how it
/// stands among several.
pub async fn greet_as(
    opened: AuthenticatedStream,
    me: PeerId,
    key_is_kept: bool,
    standing: Option<Standing>,
    timeout: Duration,
) -> Result<Greeted, GreetError> {
    let address = opened.address;
    tokio::time::timeout(timeout, exchange(opened, me, key_is_kept, standing))
        .await
        .unwrap_or(Err(GreetError::TimedOut { address, timeout }))
}

async fn exchange(
    opened: AuthenticatedStream,
    me: PeerId,
    key_is_kept: bool,
    standing: Option<Standing>,
) -> Result<Greeted, GreetError> {
    let AuthenticatedStream { peer, run, address, alpn, stream } = opened;
    let ours = Hello {
        versions: Versions::CURRENT,
        run,
        peer: me,
        software: concat!("outlast ", env!("CARGO_PKG_VERSION")).to_owned(),
        plane: String::from_utf8_lossy(&alpn).into_owned(),
        key_is_kept,
        standing,
    };
    let failed = |cause| GreetError::Frame { address, cause };
    let mut frames = Frames::new(stream, HELLO_BYTES_MAX);
    frames.send(&encode(&ours)).await.map_err(failed)?;
    let bytes = frames.next().await.map_err(failed)?.ok_or(GreetError::Closed(address))?;
    let hello: Hello = decode(&bytes).map_err(|cause| GreetError::Invalid { address, cause })?;
    let version =
        negotiate(&ours, &hello, peer).map_err(|cause| GreetError::Incompatible { address, cause })?;
    frames.incoming.set_limit(FRAME_BYTES_MAX);
    Ok(Greeted { peer, address, version, hello, frames })
}

impl<S: AsyncRead + AsyncWrite + Unpin> Frames<S> {
    /// Frames of at most `limit` bytes on `stream`.
    pub fn new(stream: S, limit: usize) -> Self {
        Self { stream, incoming: FrameBuffer::new(limit) }
    }

    /// The next frame; `None` when the other side is done. The caller bounds the time; giving up in the middle
    /// loses nothing.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        loop {
            if let Some(frame) = self.incoming.take()? {
                return Ok(Some(frame));
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes).await {
                Ok(0) => return self.end(),
                Ok(read) => self.incoming.push(&bytes[..read]),
                // A TLS stream that ends without a goodbye; whoever needs one has it in its own protocol.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return self.end(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends several frames with one write.
    pub async fn send_all<'p>(&mut self, payloads: impl Iterator<Item = &'p [u8]>) -> Result<(), FrameError> {
        let mut bytes = Vec::new();
        payloads.for_each(|payload| frame::append(payload, &mut bytes));
        self.stream.write_all(&bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// Sends one frame. The caller bounds the time; giving up in the middle leaves half a frame behind, and
    /// then the stream must be closed.
    pub async fn send(&mut self, payload: &[u8]) -> Result<(), FrameError> {
        let mut bytes = Vec::new();
        frame::append(payload, &mut bytes);
        self.stream.write_all(&bytes).await?;
        self.stream.flush().await?;
        Ok(())
    }

    /// Says that nothing more will be sent.
    pub async fn finish(&mut self) -> Result<(), FrameError> {
        Ok(self.stream.shutdown().await?)
    }

    /// The stream, to ask it about itself.
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// The stream, and what was read of it and not yet taken.
    pub fn into_parts(self) -> (S, FrameBuffer) {
        (self.stream, self.incoming)
    }

    fn end(&self) -> Result<Option<Vec<u8>>, FrameError> {
        match self.incoming.pending() {
            0 => Ok(None),
            unfinished => Err(FrameError::CutOff(unfinished)),
        }
    }
}
