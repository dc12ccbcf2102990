//! Clients that are no members, as the member sees them that they ask (rule 31).
//!
//! A client has a stream, and its calls are this member's for as long as the stream is open. Once it hangs up nobody takes
//! the answers any more, and its calls are given up: a client that was killed while it waited leaves nothing behind.
//!
//! A member that was stopped finds questions whose clients have long since asked somebody else. They were done there, perhaps
//! so long ago that nobody remembers, and only the client knows that it has asked twice. So who has hung up behind its
//! question is not asked for.
//!
//! A member that leaves hangs up on its clients, and they ask another one.

use super::engine::{Letter, Reply};
use super::shared::Shared;
use crate::port::{self, AuthenticatedStream, Frames};
use outlast_proto::id::PeerId;
use outlast_proto::limits::FRAME_BYTES_MAX;
use outlast_proto::wire::store::client::{FromClient, ToClient};
use outlast_proto::wire::{decode, encode};
use std::sync::Weak;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// How long the hello may take, and a client to take an answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Questions of one client that are looked through at once for whether it has hung up behind them.
const QUESTIONS_MAX: usize = 64;
/// Answers that wait for one client to read them.
const ANSWERS_MAX: usize = 64;

/// Serves a client on its stream, until it hangs up.
pub(super) async fn serve(shared: Weak<Shared>, stream: AuthenticatedStream, me: PeerId) {
    let mut frames = match port::greet(stream, me, TIMEOUT).await {
        Ok(greeted) => greeted.frames,
        Err(error) => return tracing::debug!(%error, "no hello on a stream of the store's clients"),
    };
    let (answers, mut answered) = mpsc::channel(ANSWERS_MAX);
    loop {
        tokio::select! {
            first = frames.next() => {
                let Ok(Some(first)) = first else { break };
                let (Some(questions), Some(shared)) = (all_of(first, &mut frames).await, shared.upgrade()) else { break };
                for question in questions {
                    shared.post(Letter::Foreign(Box::new(question), answers.clone()));
                }
            }
            answer = answered.recv() => {
                let Some(Reply::Told(answer)) = answer else { break };
                let mut bytes = encode(&answer);
                if bytes.len() > FRAME_BYTES_MAX {
                    let (ToClient::Answered { call, .. } | ToClient::Failed { call, .. }) = answer;
                    let text = format!("the value has more than {FRAME_BYTES_MAX} bytes: only a member can get it");
                    bytes = encode(&ToClient::Failed { call, timed_out: false, text });
                }
                if !matches!(tokio::time::timeout(TIMEOUT, frames.send(&bytes)).await, Ok(Ok(()))) {
                    break;
                }
            }
        }
    }
    drop(answered);
    if let Some(shared) = shared.upgrade() {
        shared.post(Letter::HungUp);
    }
}

/// The question, and all that came behind it. None if one cannot be read, or the client hung up behind them.
async fn all_of<S: AsyncRead + AsyncWrite + Unpin>(
    first: Vec<u8>,
    frames: &mut Frames<S>,
) -> Option<Vec<FromClient>> {
    let mut questions = vec![decode(&first).ok()?];
    while questions.len() < QUESTIONS_MAX {
        match tokio::time::timeout(Duration::ZERO, frames.next()).await {
            Ok(Ok(Some(bytes))) => questions.push(decode(&bytes).ok()?),
            Ok(Ok(None) | Err(_)) => return None,
            // Nothing came behind it, so the client is there.
            Err(_) => break,
        }
    }
    Some(questions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_proto::wire::store::{CallName, ClientId};

    fn question(number: u64) -> FromClient {
        let call = CallName { client: ClientId(1), number };
        FromClient::Keys { call, prefix: b"".as_slice().into(), patience_ms: 1 }
    }

    #[tokio::test]
    async fn who_has_hung_up_behind_its_questions_is_not_asked_for() {
        let (here, there) = tokio::io::duplex(4_096);
        let (mut here, mut there) = (Frames::new(here, FRAME_BYTES_MAX), Frames::new(there, FRAME_BYTES_MAX));
        there.send(&encode(&question(2))).await.unwrap();
        let read = all_of(encode(&question(1)), &mut here).await;
        assert_eq!(read, Some(vec![question(1), question(2)]), "it waits for both answers");
        there.send(&encode(&question(4))).await.unwrap();
        drop(there);
        assert_eq!(all_of(encode(&question(3)), &mut here).await, None);
    }
}
