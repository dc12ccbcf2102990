//! One control connection, on the coordinator's side.

use super::clerk::Inbox;
use crate::port::{self, AuthenticatedStream};
use outlast_proto::coordinator::ConnectionId;
use outlast_proto::id::PeerId;
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use outlast_proto::wire::{decode, encode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long the hello may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one write may take before the peer counts as gone; its kernel takes bytes while it is stopped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Messages that wait for a slow peer.
const QUEUE_MAX: usize = 4_096;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Carries one connection's messages until either side ends it.
pub(super) async fn serve(stream: AuthenticatedStream, me: PeerId, inbox: mpsc::Sender<Inbox>) {
    let run = stream.run.clone();
    let mut greeted = match port::greet(stream, me, HELLO_TIMEOUT).await {
        Ok(greeted) => greeted,
        Err(error) => return tracing::debug!(%error, "no hello on a control connection"),
    };
    let (id, peer) = (ConnectionId(NEXT.fetch_add(1, Ordering::Relaxed)), greeted.peer);
    let (queue, mut outbound) = mpsc::channel(QUEUE_MAX);
    if inbox.send(Inbox::Opened { run: run.clone(), id, queue }).await.is_err() {
        return;
    }
    let frames = &mut greeted.frames;
    loop {
        tokio::select! {
            biased;
            message = outbound.recv() => {
                let Some(first) = message else { break };
                if !write(frames, first, &mut outbound).await { break }
            }
            frame = frames.next() => {
                let Ok(Some(bytes)) = frame else { break };
                let letter = match decode::<ToCoordinator>(&bytes) {
                    Ok(message) => Inbox::Message { run: run.clone(), id, peer, message: Box::new(message) },
                    Err(error) => {
                        tracing::warn!(%peer, %error, "a peer sent what is no message");
                        break;
                    }
                };
                if inbox.send(letter).await.is_err() { break }
            }
        }
    }
    // What was said before is still worth saying.
    while let Ok(message) = outbound.try_recv() {
        if !write(frames, message, &mut outbound).await {
            break;
        }
    }
    let _ = tokio::time::timeout(WRITE_TIMEOUT, frames.finish()).await;
    let _ = inbox.send(Inbox::Closed { run, id }).await;
}

/// Writes a message and everything that waits behind it. False if the connection is broken.
async fn write<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    frames: &mut port::Frames<S>,
    first: ToPeer,
    outbound: &mut mpsc::Receiver<ToPeer>,
) -> bool {
    let mut payloads = vec![encode(&first)];
    while let Ok(next) = outbound.try_recv() {
        payloads.push(encode(&next));
        if payloads.len() == 64 {
            break;
        }
    }
    let writing = frames.send_all(payloads.iter().map(Vec::as_slice));
    matches!(tokio::time::timeout(WRITE_TIMEOUT, writing).await, Ok(Ok(())))
}
