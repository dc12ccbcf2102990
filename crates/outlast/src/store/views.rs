//! The stream to whoever decides on views, kept open for as long as the store lives.

use super::engine::Letter;
use super::shared::Shared;
use crate::port;
use crate::sync::Arc;
use outlast_proto::retry;
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::{decode, encode};
use std::net::SocketAddr;
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

/// Opens streams to the registrar, one after the other, until the store is over.
pub(super) async fn keep(shared: Arc<Shared>, addresses: String) {
    let mut failures = 0;
    while shared.ending().is_none() {
        match open_any(&shared, &addresses).await {
            Ok(mut frames) => {
                failures = 0;
                carry(&shared, &mut frames).await;
            }
            Err(error) => {
                failures += 1;
                shared.set_waits_for(format!(
                    "{addresses}, which decides on views, cannot be reached: {error}"
                ));
            }
        }
        tokio::time::sleep(retry::nth(PAUSE, failures, PAUSE_MAX)).await;
    }
}

type Frames = crate::coordinator::ControlFrames;

async fn open_any(shared: &Shared, addresses: &str) -> Result<Frames, String> {
    let mut error = format!("no address in {addresses:?}");
    for address in addresses.split(',').map(str::trim).filter(|address| !address.is_empty()) {
        let found: Vec<_> = match lookup_host(address).await {
            Ok(found) => found.collect(),
            Err(cause) => {
                error = cause.to_string();
                continue;
            }
        };
        for address in found {
            match open(shared, address).await {
                Ok(frames) => return Ok(frames),
                Err(cause) => error = cause,
            }
        }
    }
    Err(error)
}

async fn open(shared: &Shared, address: SocketAddr) -> Result<Frames, String> {
    let stream = port::connect(address, port::STORE_VIEWS, &shared.identity, TIMEOUT).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let greeted = port::greet(stream, shared.identity.peer(), TIMEOUT).await;
    Ok(greeted.map_err(|error| error.to_string())?.frames)
}

/// Carries what both sides say, until either side is done.
async fn carry(shared: &Arc<Shared>, frames: &mut Frames) {
    let (line, mut outbound) = mpsc::channel::<ToRegistrar>(QUEUE_MAX);
    shared.post(Letter::Registrar(line));
    loop {
        tokio::select! {
            message = outbound.recv() => {
                // The engine has let go of the line: this member is another one now, or there is none any more.
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
