//! Health over streams, for pairs between which UDP is blocked (rule 24).
//!
//! The machine decides which pairs need it. Here a packet for such a pair is put into the queue of that pair's
//! *lane*: a TLS stream that is dialled on demand, or that the other side dialled to us, since an answer goes
//! back the way the question came. A lane belongs to a proven peer; whoever dials learns from the certificate
//! who answered.
//!
//! The health thread never waits for any of this: it takes one short lock, and a queue that is full, a lane
//! that is still being dialled for too long or an address that failed a moment ago simply lose the packet, as
//! a network would. Everything is bounded: lanes, queues, frames, and how long a lane may be idle.
//!
//! A packet is one frame of the stream, after both sides said hello (`crate::port::greet`).

use super::shared::{Letter, Shared, Tally};
use crate::port::{FrameError, Frames};
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::{clock, runtime};
use outlast_proto::id::PeerId;
use outlast_proto::membership::{Path, Source};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::{self, membership::Packet};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// Lanes at once. A member probes one other per interval; a lane is idle before its turn comes again.
const LANES_MAX: usize = 512;
/// Packets that wait for one lane.
const QUEUE_MAX: usize = 32;
/// A lane on which nothing came for this long is closed. If the other side was cut off, a new connect gets
/// through after the heal at once, while the old stream would wait for its next, long postponed resend.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long one frame may take to be written.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// An address that could not be dialled is left alone for this long.
const PAUSE: Duration = Duration::from_secs(1);
/// Addresses whose pause is remembered.
const PAUSES_MAX: usize = 1_024;

/// Opens lanes. The one of the real world is [`super::dial::TlsDialler`].
pub(crate) trait Dialler: Send + Sync + 'static {
    /// What a lane runs over.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;
    /// Dials `to`, proves who answers, and bounds the time that both take.
    fn dial(&self, to: SocketAddr)
    -> impl Future<Output = io::Result<(PeerId, Frames<Self::Stream>)>> + Send;
}

/// The queue of one lane.
#[derive(Debug)]
struct Lane {
    serial: u64,
    queue: mpsc::Sender<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Lanes {
    serial: u64,
    open: BTreeMap<PeerId, Lane>,
    dialling: BTreeMap<SocketAddr, Lane>,
    paused: BTreeMap<SocketAddr, Instant>,
}

/// All lanes of one member.
pub(crate) struct Streams<D> {
    lanes: Mutex<Lanes>,
    shared: Arc<Shared>,
    runtime: Handle,
    dialler: D,
    closed: watch::Sender<bool>,
}

impl<D: Dialler> Streams<D> {
    pub(crate) fn new(shared: Arc<Shared>, runtime: Handle, dialler: D) -> Arc<Self> {
        Arc::new(Self {
            lanes: Mutex::default(),
            shared,
            runtime,
            dialler,
            closed: watch::Sender::new(false),
        })
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        lock(&self.lanes)
    }

    /// Queues a packet; false if it was dropped. Never waits.
    pub(super) fn send(self: &Arc<Self>, to: SocketAddr, peer: Option<PeerId>, packet: Vec<u8>) -> bool {
        let mut lanes = self.lanes();
        let known = peer.and_then(|peer| lanes.open.get(&peer)).or_else(|| lanes.dialling.get(&to));
        if let Some(lane) = known {
            return lane.queue.try_send(packet).is_ok();
        }
        let now = clock::now();
        if lanes.paused.get(&to).is_some_and(|until| now < *until) || lanes.is_full() {
            return false;
        }
        let (lane, outgoing) = lanes.new_lane();
        let queued = lane.queue.try_send(packet).is_ok();
        lanes.dialling.insert(to, lane);
        drop(lanes);
        self.runtime.spawn(Arc::clone(self).dial_and_run(to, outgoing));
        queued
    }

    /// Lets every lane send what is queued, and ends it.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Runs a lane that the other side dialled, until it ends.
    pub(crate) async fn serve(self: Arc<Self>, peer: PeerId, from: SocketAddr, frames: Frames<D::Stream>) {
        let (serial, outgoing) = {
            let mut lanes = self.lanes();
            if lanes.is_full() {
                return;
            }
            let (lane, outgoing) = lanes.new_lane();
            let serial = lane.serial;
            lanes.open.insert(peer, lane);
            (serial, outgoing)
        };
        self.run(peer, from, serial, outgoing, frames).await;
    }

    async fn dial_and_run(self: Arc<Self>, to: SocketAddr, outgoing: mpsc::Receiver<Vec<u8>>) {
        // However it ends, its place among the dials is given back: nobody would dial there again (rule 40).
        let dialled = runtime::to_its_end("dialling a health stream", self.dialler.dial(to)).await;
        let dialled = dialled.unwrap_or_else(|| Err(io::Error::other("dialling it panicked")));
        let settled = {
            let mut lanes = self.lanes();
            let lane = lanes.dialling.remove(&to).expect("only its own dial takes a lane out");
            match dialled {
                Ok((peer, frames)) => {
                    let serial = lane.serial;
                    lanes.open.insert(peer, lane);
                    Some((peer, serial, frames))
                }
                Err(error) => {
                    tracing::debug!(%to, %error, "no health stream");
                    lanes.pause(to, clock::now());
                    None
                }
            }
        };
        if let Some((peer, serial, frames)) = settled {
            self.run(peer, to, serial, outgoing, frames).await;
        }
    }

    async fn run(
        &self,
        peer: PeerId,
        address: SocketAddr,
        serial: u64,
        outgoing: mpsc::Receiver<Vec<u8>>,
        frames: Frames<D::Stream>,
    ) {
        let source = Source { id: peer, address, path: Path::Stream };
        // However it ends, a lane that carries nothing must not stand in the way of the next (rule 40).
        let moving = self.move_packets(source, outgoing, frames);
        if let Some(Err(error)) = runtime::to_its_end("a health stream", moving).await {
            tracing::debug!(?peer, %address, %error, "a health stream ended");
        }
        let mut lanes = self.lanes();
        // A newer lane of the same peer stays.
        if lanes.open.get(&peer).is_some_and(|open| open.serial == serial) {
            lanes.open.remove(&peer);
        }
    }

    async fn move_packets(
        &self,
        source: Source,
        mut outgoing: mpsc::Receiver<Vec<u8>>,
        mut frames: Frames<D::Stream>,
    ) -> Result<(), FrameError> {
        let mut closed = self.closed.subscribe();
        let silence = tokio::time::sleep(SILENCE_MAX);
        tokio::pin!(silence);
        loop {
            // A send is not one of the branches: giving it up in the middle would leave half a frame behind.
            tokio::select! {
                frame = frames.next() => {
                    let Some(frame) = frame? else { return Ok(()) };
                    silence.as_mut().reset(tokio::time::Instant::now() + SILENCE_MAX);
                    self.receive(source, &frame)?;
                }
                // None once a newer lane has taken our place: then we only listen. Two members that dial each
                // other at the same moment would otherwise close each other's lane.
                Some(packet) = outgoing.recv() => send(&mut frames, &packet).await?,
                () = &mut silence => return Ok(()),
                () = until_closed(&mut closed) => {
                    while let Ok(packet) = outgoing.try_recv() {
                        send(&mut frames, &packet).await?;
                    }
                    return Ok(());
                }
            }
        }
    }

    fn receive(&self, source: Source, frame: &[u8]) -> Result<(), FrameError> {
        match wire::decode::<Packet>(frame) {
            Ok(packet) => {
                self.shared.post(Letter::Packet(source, packet));
                Ok(())
            }
            Err(error) => {
                Tally::add(&self.shared.tally.malformed, 1);
                Err(error.into())
            }
        }
    }
}

async fn until_closed(closed: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it everything that could still be sent.
    let _ = closed.wait_for(|closed| *closed).await;
}

async fn send<W: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut Frames<W>,
    packet: &[u8],
) -> Result<(), FrameError> {
    let sent = tokio::time::timeout(WRITE_MAX, frames.send(packet)).await;
    sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

impl Lanes {
    fn is_full(&self) -> bool {
        self.open.len() + self.dialling.len() >= LANES_MAX
    }

    fn new_lane(&mut self) -> (Lane, mpsc::Receiver<Vec<u8>>) {
        self.serial += 1;
        let (queue, outgoing) = mpsc::channel(QUEUE_MAX);
        (Lane { serial: self.serial, queue }, outgoing)
    }

    fn pause(&mut self, address: SocketAddr, now: Instant) {
        if self.paused.len() >= PAUSES_MAX {
            self.paused.retain(|_, until| now < *until);
        }
        if self.paused.len() < PAUSES_MAX {
            self.paused.insert(address, now + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests;
