//! The stream to whoever decides on views, kept open for as long as the store lives.

use super::engine::Letter;
use super::shared::Shared;
use crate::coordinator::registry::knocked;
use crate::coordinator::{dial_plane, superseded};
use crate::sync::Arc;
use crate::{clock, port, runtime};
use outlast_proto::retry;
use outlast_proto::store::refusals::Refusals;
use outlast_proto::store::registrar::Knocked;
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::{decode, encode};
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::sync::mpsc;

/// How long dialling and the hello may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Pauses between dials.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Words for the registrar that wait to be said.
const QUEUE_MAX: usize = 1_024;

/// Who decides on views.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leader {
    Coordinator,
    /// The member of rank 0. One of an earlier job may be in its place for so long, and closes.
    Member {
        closes_within: Duration,
    },
}

/// As [`keep`], even after a panic: a store that never hears of a view again serves nobody (rule 40).
pub(super) async fn keep_always(
    shared: Arc<Shared>,
    addresses: String,
    silent_after: Duration,
    leader: Leader,
) {
    let keep = || Box::pin(keep(Arc::clone(&shared), addresses.clone(), silent_after, leader));
    while runtime::to_its_end("the stream for views", keep()).await.is_none() {
        shared.post(Letter::NoRegistrar("the stream for views panicked".to_owned()));
        tokio::time::sleep(PAUSE_MAX).await;
    }
}

/// Opens streams to the registrar, one after the other, until the store is over. Of several coordinators the one has it
/// that reigns. A stream breaks by itself once the other host has acknowledged nothing for `silent_after`.
async fn keep(shared: Arc<Shared>, addresses: String, silent_after: Duration, leader: Leader) {
    let mut failures = 0;
    let mut refusals = Refusals::new(match leader {
        Leader::Coordinator => Duration::ZERO,
        Leader::Member { closes_within } => closes_within,
    });
    while shared.ending().is_none() {
        let identity = &shared.identity;
        match dial_plane(port::STORE_VIEWS, &addresses, identity, None, TIMEOUT, silent_after).await {
            Ok(mut dialled) => {
                failures = 0;
                refusals.hear(clock::now(), false);
                shared.set_refusal(None);
                let term = dialled.standing.as_ref().map(|standing| standing.term);
                // A leader that is stopped does not hang up: another one that reigns is followed.
                let superseded = superseded(&addresses, identity, None, term, (TIMEOUT, silent_after));
                let why = tokio::select! {
                    () = carry(&shared, &mut dialled.frames) => format!("{addresses} has closed the stream"),
                    () = superseded => format!("another coordinator of {addresses} reigns"),
                };
                shared.post(Letter::NoRegistrar(why));
            }
            Err(error) => {
                failures += 1;
                let stays = refusals.hear(clock::now(), error.is_final());
                shared.set_refusal(stays.then(|| error.to_string()));
                shared.set_waits_for(format!(
                    "{addresses}, which decides on views, cannot be reached: {error}"
                ));
                shared.post(Letter::NoRegistrar(error.to_string()));
                if matches!(leader, Leader::Member { .. }) && is_refused(&addresses).await {
                    shared.post(Letter::LeaderRefused);
                }
            }
        }
        tokio::time::sleep(retry::nth(PAUSE, failures, PAUSE_MAX)).await;
    }
}

/// Whether the kernel there says that nobody listens.
async fn is_refused(address: &str) -> bool {
    let Ok(mut found) = lookup_host(address).await else { return false };
    let Some(found) = found.next() else { return false };
    knocked(found, TIMEOUT).await == Knocked::Refused
}

type Frames = crate::coordinator::ControlFrames;

/// Carries what both sides say, until either side is done.
async fn carry(shared: &Arc<Shared>, frames: &mut Frames) {
    let (queue, mut outbound) = mpsc::channel::<ToRegistrar>(QUEUE_MAX);
    shared.post(Letter::Registrar(queue));
    loop {
        tokio::select! {
            message = outbound.recv() => {
                // The engine has let go of the queue: this member is another one now, or there is none any more.
                let Some(message) = message else { break };
                let sent = tokio::time::timeout(TIMEOUT, frames.send(&encode(&message))).await;
                if !matches!(sent, Ok(Ok(()))) {
                    break;
                }
            }
            frame = frames.next() => {
                let Ok(Some(bytes)) = frame else { break };
                match decode::<FromRegistrar>(&bytes) {
                    Ok(order) => {
                        if let FromRegistrar::Waits(text) = &order {
                            shared.set_waits_for(text.clone());
                        }
                        shared.post(Letter::Order(Box::new(order)));
                    }
                    Err(error) => {
                        shared.set_waits_for(format!("whoever decides on views says what we cannot read: {error}"));
                        break;
                    }
                }
            }
        }
    }
    let _ = tokio::time::timeout(Duration::from_secs(1), frames.finish()).await;
}
