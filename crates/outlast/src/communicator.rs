//! A peer's communicator: what a training program holds.
//!
//! ```no_run
//! use outlast::Communicator;
//! use outlast::communicator::Call;
//!
//! let comm = Communicator::builder().coordinator("10.0.0.1:29400").start()?;
//! comm.connect(2)?;
//! let mut gradient = vec![1.0f32; 1 << 20];
//! let receipt = comm.all_reduce(&mut gradient, &Call::sum())?;
//! println!("{} contributed", receipt.contributors.len());
//! # Ok::<(), outlast::communicator::Error>(())
//! ```
//!
//! A call is a transaction: it returns with the result and a [`Receipt`], or with an error and the caller's
//! data as it was. A lost peer is an event: by default the call is retried with the survivors.
//!
//! Inside, a pure [`Session`](outlast_proto::session::Session) decides, one control connection carries votes
//! and verdicts, a [`DataPlane`] moves bytes on the caller's own thread, and a
//! [`Membership`] of the run's health group answers for this process.

mod buffer;
mod builder;
mod control;
mod error;
mod links;
mod receipt;

pub use buffer::Element;
pub use builder::{CommunicatorBuilder, Encryption};
pub use error::{Error, NextStep};
pub use receipt::{Call, Peer, Receipt, TopologyChange};

use crate::clock;
use crate::executor::{Abort, Buffers, DataPlane, OpSpec, Performed, Stopped};
use crate::fork::Creator;
use crate::membership::Membership;
use control::{Control, Order};
use outlast_proto::collective::{Fingerprint, OpKind, ReduceOp, Scope};
use outlast_proto::id::PeerId;
use outlast_proto::session::{CallId, Done, Op, Outcome, PerformResult};
use outlast_proto::time::Duration;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// Beyond its deadline and the verdict's grace a call gives up on its own session: that is a bug in Outlast.
const LAST_RESORT: Duration = Duration::from_secs(10);

/// A peer's place in a run. Dropping it leaves.
#[derive(Debug)]
pub struct Communicator {
    control: Arc<Control>,
    data: Arc<DataPlane>,
    membership: Membership,
    timeout: Duration,
    creator: Creator,
}

impl Communicator {
    /// Describes a communicator to be started.
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::new()
    }

    /// Joins the run. Returns once admitted and the group has at least `min_world` members, admitting
    /// newcomers while it waits.
    pub fn connect(&self, min_world: u32) -> Result<TopologyChange, Error> {
        self.connect_within(min_world, self.timeout)
    }

    /// As [`Self::connect`], with a time limit of its own.
    pub fn connect_within(&self, min_world: u32, timeout: Duration) -> Result<TopologyChange, Error> {
        self.creator.check()?;
        let deadline = clock::now() + timeout;
        let (id, orders) = self.control.begin_connect(min_world, deadline)?;
        self.wait_topology(id, &orders, timeout)
    }

    /// Admits newcomers, and waits until the group has at least `min_world` members. Every peer of the run
    /// must call it.
    pub fn update_topology(&self, min_world: u32) -> Result<TopologyChange, Error> {
        self.creator.check()?;
        let tags = self.control.open_tags();
        if !tags.is_empty() {
            return Err(Error::InvalidArgument(format!("collectives under tags {tags:?} are not finished")));
        }
        let deadline = clock::now() + self.timeout;
        let (id, orders) =
            self.control.begin(|session, now| session.handle_topology_call(now, min_world, deadline));
        self.wait_topology(id, &orders, self.timeout)
    }

    fn wait_topology(
        &self,
        id: CallId,
        orders: &Receiver<Order>,
        timeout: Duration,
    ) -> Result<TopologyChange, Error> {
        match self.attend(id, orders, timeout, |_| None)? {
            Ok(Done::Topology { run_epoch, epoch, joined, left }) => {
                Ok(TopologyChange { run_epoch, epoch, joined, left })
            }
            Ok(Done::Committed { .. }) => Err(Error::Bug("a vote ended as a collective")),
            Err(error) => Err(error.into()),
        }
    }

    /// Reduces `data` in place over the members of the group.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], call: &Call) -> Result<Receipt, Error> {
        self.reduce(OpKind::AllReduce, &mut [data], call)
    }

    /// Reduces several tensors in one transaction: one verdict, the same contributors for each (rule 9).
    pub fn all_reduce_many<T: Element>(&self, data: &mut [&mut [T]], call: &Call) -> Result<Receipt, Error> {
        self.reduce(OpKind::AllReduceMany, data, call)
    }

    /// Waits until every member of the group has called it.
    pub fn barrier(&self, call: &Call) -> Result<Receipt, Error> {
        self.reduce::<f32>(OpKind::Barrier, &mut [], call)
    }

    /// As [`Self::all_reduce`], on a thread of its own; the data comes back with the receipt.
    pub fn all_reduce_async<T: Element>(self: &Arc<Self>, mut data: Vec<T>, call: Call) -> Handle<T> {
        let comm = Arc::clone(self);
        let thread = std::thread::spawn(move || {
            let receipt = comm.all_reduce(&mut data, &call);
            (data, receipt)
        });
        Handle { thread }
    }

    fn reduce<T: Element>(&self, kind: OpKind, data: &mut [&mut [T]], call: &Call) -> Result<Receipt, Error> {
        self.creator.check()?;
        let started = std::time::Instant::now();
        let timeout = call.timeout.unwrap_or(self.timeout);
        let fingerprint = Fingerprint {
            kind,
            data_type: T::DATA_TYPE,
            counts: data.iter().map(|tensor| tensor.len() as u64).collect(),
            op: call.op,
            retry: call.retry,
            min_world: call.min_world,
        };
        fingerprint.check().map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let scope = call.scope.clone().map_or(Scope::Whole, |mut members| {
            members.sort_unstable();
            members.dedup();
            Scope::Members(members)
        });
        let deadline = clock::now() + timeout;
        let op = Op { scope, tag: call.tag, fingerprint: fingerprint.clone(), deadline };
        let (id, orders) = self.control.begin_op(op)?;
        let host_deadline = std::time::Instant::now() + timeout + LAST_RESORT;
        let (mut sent, mut received) = (0, 0);
        let perform = |key, ring: Vec<PeerId>, abort: &Abort| {
            if kind == OpKind::Barrier {
                return Ok(None);
            }
            let spec =
                OpSpec { key, fingerprint: fingerprint.clone(), ring: ring.into(), deadline: host_deadline };
            let tensors = data.iter_mut().map(|tensor| {
                let bytes = size_of_val(&**tensor);
                (tensor.as_ptr().cast::<u8>(), tensor.as_mut_ptr().cast::<u8>(), bytes)
            });
            // SAFETY: the slices are borrowed exclusively for this call, and `Performed` ends before it.
            let buffers = unsafe { Buffers::from_raw(tensors) };
            let performed = self.data.perform(&spec, buffers, abort)?;
            (sent, received) = (sent + performed.bytes_sent, received + performed.bytes_received);
            Ok(Some(performed))
        };
        match self.attend_op(id, &orders, timeout, perform)? {
            Ok(Done::Committed { key, contributors, rank, world_size, attempts, pending }) => Ok(Receipt {
                epoch: key.epoch,
                tag: key.tag,
                seq: key.seq,
                rank,
                world_size,
                contributors,
                attempts,
                pending,
                algorithm: if kind == OpKind::Barrier { "vote" } else { "ring" },
                bytes_sent: sent,
                bytes_received: received,
                seconds: started.elapsed().as_secs_f64(),
            }),
            Ok(Done::Topology { .. }) => Err(Error::Bug("a collective ended as a vote")),
            Err(error) => Err(error.into()),
        }
    }

    fn attend_op<'a>(
        &self,
        id: CallId,
        orders: &Receiver<Order>,
        timeout: Duration,
        mut perform: impl FnMut(
            outlast_proto::collective::OpKey,
            Vec<PeerId>,
            &Abort,
        ) -> Result<Option<Performed<'a>>, Stopped>,
    ) -> Result<Outcome, Error> {
        let mut performed: Option<Performed<'a>> = None;
        let me = self.control.me();
        self.attend(id, orders, timeout, |order| match order {
            Order::Perform { key, ring, abort } => {
                let result = match perform(key, ring, &abort) {
                    Ok(done) => {
                        performed = done;
                        PerformResult::Done
                    }
                    Err(stopped) => {
                        tracing::debug!(why = %stopped, "an attempt stopped");
                        match stopped {
                            Stopped::LinkBroken { peer, towards, error } => {
                                let (from, to) = if towards { (me, peer) } else { (peer, me) };
                                PerformResult::LinkBroken { from, to, error }
                            }
                            Stopped::Mismatch { peer, .. } => PerformResult::Mismatch { peer },
                            Stopped::Aborted => PerformResult::Stopped,
                            // An epoch that ends at this very moment is met again in the next attempt.
                            Stopped::Stale => PerformResult::Failed { why: stopped.to_string(), again: true },
                            _ => PerformResult::Failed { why: stopped.to_string(), again: false },
                        }
                    }
                };
                Some(result)
            }
            Order::Commit => {
                if let Some(done) = performed.take() {
                    done.commit();
                }
                None
            }
            Order::Undo | Order::Finish(_) => {
                // Dropping restores the caller's data.
                if performed.take().is_some() {
                    tracing::debug!(why = "undone", "an attempt stopped");
                }
                None
            }
        })
    }

    /// Does what the session orders until the call is over.
    fn attend(
        &self,
        id: CallId,
        orders: &Receiver<Order>,
        timeout: Duration,
        mut act: impl FnMut(Order) -> Option<PerformResult>,
    ) -> Result<Outcome, Error> {
        let patience = timeout + self.control.verdict_grace() + LAST_RESORT;
        let give_up = std::time::Instant::now() + patience;
        loop {
            let left = give_up.saturating_duration_since(std::time::Instant::now());
            match orders.recv_timeout(left) {
                Ok(Order::Finish(outcome)) => {
                    act(Order::Undo);
                    self.control.end(id);
                    return Ok(outcome);
                }
                Ok(order) => {
                    if let Some(result) = act(order) {
                        self.control.performed(id, result);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.control.end(id);
                    return Err(Error::Bug("a call outlived its deadline and its grace"));
                }
            }
        }
    }

    /// Our id.
    pub fn peer_id(&self) -> PeerId {
        self.control.me()
    }

    /// Our rank in the group; changes only inside a call.
    pub fn rank(&self) -> usize {
        self.control.view().rank
    }

    /// Members of the group; changes only inside a call.
    pub fn world_size(&self) -> usize {
        self.control.view().peers.len()
    }

    /// Members of all groups; changes only inside a call.
    pub fn global_world_size(&self) -> u32 {
        self.control.view().global_world_size
    }

    /// The group's epoch; changes only inside a call.
    pub fn epoch(&self) -> u64 {
        self.control.view().epoch
    }

    /// The members of the group in the order of ranks.
    pub fn peers(&self) -> Vec<Peer> {
        let health = self.membership.active().unwrap_or_default();
        let mut peers = self.control.view().peers.clone();
        for peer in &mut peers {
            let member = health.iter().find(|member| member.info.id == peer.id);
            peer.health = member.map_or("unknown", |member| member.health.word());
        }
        peers
    }

    /// How the run stands, as the coordinator tells it: a JSON object.
    pub fn status(&self) -> Result<String, Error> {
        self.control.status(self.timeout)
    }

    /// Says goodbye, so that nobody mistakes it for a failure.
    pub fn leave(&self) {
        if self.creator.check().is_ok() {
            self.control.leave();
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.leave();
        self.data.shutdown();
    }
}

/// A collective that runs on a thread of its own.
#[derive(Debug)]
pub struct Handle<T> {
    thread: std::thread::JoinHandle<(Vec<T>, Result<Receipt, Error>)>,
}

impl<T> Handle<T> {
    /// Whether it is over.
    pub fn done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end; the data comes back in either case.
    pub fn wait(self) -> (Vec<T>, Result<Receipt, Error>) {
        match self.thread.join() {
            Ok(ended) => ended,
            Err(_) => (Vec::new(), Err(Error::Bug("the thread of a collective panicked"))),
        }
    }
}

/// A call that sums, with everything else as usual.
impl Call {
    /// The sum over all contributors.
    pub fn sum() -> Self {
        Self::new(ReduceOp::Sum)
    }

    /// The mean over all contributors.
    pub fn avg() -> Self {
        Self::new(ReduceOp::Avg)
    }
}
