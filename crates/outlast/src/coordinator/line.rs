//! One control connection, on the coordinator's side.

use super::clerk::Inbox;
use crate::port::{self, AuthenticatedStream};
use outlast_proto::coordinator::ConnectionId;
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use outlast_proto::wire::{decode, encode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long the hello may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one write may take before the peer counts as gone; its kernel takes bytes while it is stopped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the words are listened to that a peer said before it closed; they are here already.
const LAST_WORDS: Duration = Duration::from_secs(1);
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
                if write(frames, first, &mut outbound).await {
                    continue;
                }
                // A peer that left has closed its end, and its goodbye may lie unread before that.
                let _ = tokio::time::timeout(LAST_WORDS, async {
                    while pass_on(frames.next().await, &run, id, peer, &inbox).await {}
                })
                .await;
                break;
            }
            frame = frames.next() => if !pass_on(frame, &run, id, peer, &inbox).await { break },
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

/// Hands what the peer sent to the clerk. False if nothing more is to be expected.
async fn pass_on<E>(
    frame: Result<Option<Vec<u8>>, E>,
    run: &RunId,
    id: ConnectionId,
    peer: PeerId,
    inbox: &mpsc::Sender<Inbox>,
) -> bool {
    let Ok(Some(bytes)) = frame else { return false };
    match decode::<ToCoordinator>(&bytes) {
        Ok(message) => {
            let letter = Inbox::Message { run: run.clone(), id, peer, message: Box::new(message) };
            inbox.send(letter).await.is_ok()
        }
        Err(error) => {
            tracing::warn!(%peer, %error, "a peer sent what is no message");
            false
        }
    }
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
