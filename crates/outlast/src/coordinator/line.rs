//! One control connection, on the coordinator's side.

use super::clerk::Inbox;
use super::post::Post;
use crate::port::{self, AuthenticatedStream};
use crate::runtime;
use outlast_proto::coordinator::ConnectionId;
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use outlast_proto::wire::hello::Version;
use outlast_proto::wire::{decode, encode_for};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// How long the hello may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one write may take before the peer counts as gone; its kernel takes bytes while it is stopped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the words are listened to that a peer said before it closed; they are here already.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a connection may take to say what it is for: ours say it at once.
const FIRST_WORDS: Duration = Duration::from_secs(10);
/// Letters of one connection that wait for the clerk: one that says much waits for itself, not others for it.
const LETTERS_MAX: usize = 64;
/// Messages that wait for a slow peer.
const QUEUE_MAX: usize = 4_096;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Carries one connection's messages until either side ends it.
pub(super) async fn serve(
    stream: AuthenticatedStream,
    me: PeerId,
    key_is_kept: bool,
    post: Post,
    inbox: mpsc::Sender<Inbox>,
) {
    let (run, standing) = (stream.run.clone(), post.standing());
    let mut greeted = match port::greet_as(stream, me, key_is_kept, standing.clone(), HELLO_TIMEOUT).await {
        Ok(greeted) => greeted,
        Err(error) => return tracing::debug!(%error, "no hello on a control connection"),
    };
    if let Some(standing) = standing.filter(|standing| !standing.leads) {
        let visitor = (greeted.peer, greeted.hello.standing.is_some());
        return post.hold(&mut greeted.frames, &standing, Some(visitor)).await;
    }
    let (id, peer) = (ConnectionId(NEXT.fetch_add(1, Ordering::Relaxed)), greeted.peer);
    let (queue, mut outbound) = mpsc::channel(QUEUE_MAX);
    if inbox.send(Inbox::Opened { run: run.clone(), id, peer, queue }).await.is_err() {
        return;
    }
    let (version, share) = (greeted.version, Arc::new(Semaphore::new(LETTERS_MAX)));
    let mailbox = Mailbox { run, id, peer, version, inbox, share };
    hold(&mut greeted.frames, mailbox, &mut outbound).await;
}

/// Carries messages, and says when that is over. However it ends, the peer must not stay a member for want of anybody
/// who says so (rule 40).
async fn hold<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    frames: &mut port::Frames<S>,
    mailbox: Mailbox,
    outbound: &mut mpsc::Receiver<ToPeer>,
) {
    let carrying = Box::pin(carry(frames, &mailbox, outbound));
    runtime::to_its_end("a control connection", carrying).await;
    let _ = mailbox.inbox.send(Inbox::Closed { run: mailbox.run, id: mailbox.id }).await;
}

async fn carry<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    frames: &mut port::Frames<S>,
    mailbox: &Mailbox,
    outbound: &mut mpsc::Receiver<ToPeer>,
) {
    let silence = tokio::time::sleep(FIRST_WORDS);
    tokio::pin!(silence);
    let mut spoke = false;
    loop {
        tokio::select! {
            biased;
            () = &mut silence, if !spoke => break,
            message = outbound.recv() => {
                let Some(first) = message else { break };
                if mailbox.write(frames, first, outbound).await {
                    continue;
                }
                // A peer that left has closed its end, and its goodbye may lie unread before that.
                let _ = tokio::time::timeout(LAST_WORDS, async {
                    while mailbox.pass_on(frames.next().await).await {}
                })
                .await;
                break;
            }
            frame = frames.next() => {
                spoke = true;
                if !mailbox.pass_on(frame).await {
                    break;
                }
            }
        }
    }
    // What was said before is still worth saying.
    while let Ok(message) = outbound.try_recv() {
        if !mailbox.write(frames, message, outbound).await {
            break;
        }
    }
    let _ = tokio::time::timeout(WRITE_TIMEOUT, frames.finish()).await;
}

/// Where the letters of one connection go.
struct Mailbox {
    run: RunId,
    id: ConnectionId,
    peer: PeerId,
    /// What both sides agreed to speak.
    version: Version,
    inbox: mpsc::Sender<Inbox>,
    share: Arc<Semaphore>,
}

impl Mailbox {
    /// Hands what the peer sent to the clerk. False if nothing more is to be expected.
    async fn pass_on<E>(&self, frame: Result<Option<Vec<u8>>, E>) -> bool {
        let Ok(Some(bytes)) = frame else { return false };
        // What is no message is the clerk's business too: it tells the peer why, and hangs up.
        let message = decode::<ToCoordinator>(&bytes).map(Box::new);
        // An error means that the semaphore is closed, and nobody closes it.
        let Ok(share) = Arc::clone(&self.share).acquire_owned().await else { return false };
        let (run, id, peer) = (self.run.clone(), self.id, self.peer);
        self.inbox.send(Inbox::Message { run, id, peer, message, share }).await.is_ok()
    }

    /// Writes a message and everything that waits behind it. False if the connection is broken.
    async fn write<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
        &self,
        frames: &mut port::Frames<S>,
        first: ToPeer,
        outbound: &mut mpsc::Receiver<ToPeer>,
    ) -> bool {
        let mut payloads = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            match encode_for(&message, self.version) {
                Some(payload) => payloads.push(payload),
                // Whoever decided should have known: the peer would have to part with us.
                None => {
                    tracing::error!(peer = %self.peer, version = %self.version, ?message, "kept from a peer");
                }
            }
            next = if payloads.len() < 64 { outbound.try_recv().ok() } else { None };
        }
        let writing = frames.send_all(payloads.iter().map(Vec::as_slice));
        matches!(tokio::time::timeout(WRITE_TIMEOUT, writing).await, Ok(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    /// A stream that stands for any mistake of ours in carrying one.
    struct Panics;

    impl AsyncRead for Panics {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            panic!("on purpose")
        }
    }

    impl AsyncWrite for Panics {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            panic!("on purpose")
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            panic!("on purpose")
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            panic!("on purpose")
        }
    }

    #[test]
    fn a_connection_whose_task_panics_is_closed_for_the_clerk() {
        let (inbox, mut letters) = mpsc::channel(4);
        let (_queue, mut outbound) = mpsc::channel(4);
        let (run, id) = ("run".parse::<RunId>().unwrap(), ConnectionId(7));
        let mut frames = port::Frames::new(Panics, 1_024);
        let share = Arc::new(Semaphore::new(LETTERS_MAX));
        let (peer, version) = (PeerId::from_bytes([7; 16]), Version::CURRENT);
        let mailbox = Mailbox { run, id, peer, version, inbox, share };
        let holding = hold(&mut frames, mailbox, &mut outbound);
        runtime::of(runtime::Plane::Clerk).unwrap().block_on(holding);
        assert!(matches!(letters.try_recv(), Ok(Inbox::Closed { id: ConnectionId(7), .. })));
    }
}
