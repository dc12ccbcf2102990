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

mod admission;
mod atlas;
mod background;
mod blaming;
mod buffer;
mod builder;
mod collective;
mod control;
mod detour;
mod error;
mod inspection;
mod interrupt;
pub(crate) mod line;
mod links;
mod news;
mod optimise;
mod orders;
mod reader;
mod receipt;
mod sync;
mod transfer;
mod turns;
mod typed;

pub use background::Handle;
pub use buffer::{CallBuffers, Element, Tensor, TensorList, TensorMut};
pub use builder::{CommunicatorBuilder, Encryption};
pub use control::SeenGroup;
pub use error::{Error, Failure, NextStep};
pub use inspection::{InspectError, ask_account, ask_flight};
pub use interrupt::Interrupt;
pub use news::{Event, Happened, Lost, SlowStep, Slowed};
pub use optimise::{REFERENCE_BYTES, TopologyReport};
pub use outlast_proto::blame::Diagnosis;
pub use outlast_proto::collective::{DataType, Layout, OpKind, Quantisation, ReduceOp};
pub use receipt::{Call, Peer, Receipt, TopologyChange};
pub use sync::{SyncOptions, SyncReport};

use crate::clock;
use crate::executor::DataPlane;
use crate::fork::Creator;
use crate::membership::Membership;
use crate::probe::Arrivals;
use crate::recorder::{Entry, What};
use crate::state::Revision;
use crate::state::exchange::donor::Stall;
use crate::sync::Mutex;
use crate::watch;
use control::Control;
use orders::{Order, Orders};
use outlast_proto::id::PeerId;
use outlast_proto::pace::Pace;
use outlast_proto::session::{CallError, CallId, Done, Outcome, PerformResult};
use outlast_proto::time::Duration;
use std::sync::Arc;

/// Beyond its deadline and the verdict's grace a call gives up on its own session: that is a bug in Outlast.
const LAST_RESORT: Duration = Duration::from_secs(10);

/// How long a goodbye may take to be on its way.
const GOODBYE: Duration = Duration::from_secs(1);

/// A peer's place in a run. Dropping it leaves.
#[derive(Debug)]
pub struct Communicator {
    control: Arc<Control>,
    data: Arc<DataPlane>,
    membership: Arc<Membership>,
    timeout: Duration,
    creator: Creator,
    links: Arc<links::Links>,
    stall: Arc<Stall>,
    agreed: sync::Agreed,
    atlas: atlas::SharedAtlas,
    arrivals: Arc<Arrivals>,
    site: String,
    streams_max: u8,
    pace: Mutex<Pace>,
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
        self.connect_unless(min_world, timeout, &Interrupt::new())
    }

    /// As [`Self::connect_within`], until `interrupt` gives it up.
    pub fn connect_unless(
        &self,
        min_world: u32,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<TopologyChange, Error> {
        self.creator.check()?;
        let deadline = clock::now() + timeout;
        let (id, orders) = self.control.begin_connect(min_world, deadline)?;
        // The group may be another one than in the last session.
        self.agreed.forget();
        self.atlas.forget();
        let outcome = self.wait_topology(id, &orders, timeout, interrupt);
        match (self.control.end_connect(), outcome) {
            (Some(unreached), Err(_)) if unreached.foreign => Err(Error::Unauthorized(unreached.to_string())),
            (Some(unreached), Err(_)) if unreached.is_final() => {
                Err(Error::Incompatible(unreached.to_string()))
            }
            (Some(unreached), Err(error)) if matches!(error.cause(), Some(CallError::Timeout(_))) => {
                Err(Error::NoCoordinator { within: timeout, cause: unreached.to_string() })
            }
            (None, Err(error)) if is_unanswered(&error) => Err(self.not_admitted(min_world, timeout)),
            (_, outcome) => outcome
                .map_err(|error| error.of_call(format_args!("connect(min_world={min_world})"), timeout)),
        }
    }

    /// Admits newcomers, and waits until the group has at least `min_world` members. Every peer of the run
    /// must call it.
    pub fn update_topology(&self, min_world: u32) -> Result<TopologyChange, Error> {
        self.update_topology_within(min_world, self.timeout)
    }

    /// As [`Self::update_topology`], with a time limit of its own.
    pub fn update_topology_within(&self, min_world: u32, timeout: Duration) -> Result<TopologyChange, Error> {
        self.update_topology_unless(min_world, timeout, &Interrupt::new())
    }

    /// As [`Self::update_topology_within`], until `interrupt` gives it up.
    pub fn update_topology_unless(
        &self,
        min_world: u32,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<TopologyChange, Error> {
        self.creator.check()?;
        let deadline = clock::now() + timeout;
        let called =
            |id: CallId| Entry::new(What::Called, "update_topology").about(id.0).amount(min_world.into());
        let (id, orders) = self
            .control
            .begin(called, |session, now| session.handle_admission_call(now, min_world, deadline));
        let outcome = self.wait_topology(id, &orders, timeout, interrupt);
        let call = format_args!("update_topology(min_world={min_world})");
        outcome.map_err(|error| self.control.explained(error).of_call(call, timeout))
    }

    fn wait_topology(
        &self,
        id: CallId,
        orders: &Arc<Orders>,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<TopologyChange, Error> {
        let control = Arc::downgrade(&self.control);
        let _attached = interrupt.attach(move || {
            if let Some(control) = control.upgrade() {
                control.cancel(id);
            }
        });
        match self.attend(id, orders, timeout, |_| None)? {
            Ok(Done::Ballot { run_epoch, epoch, joined, left, .. }) => {
                Ok(TopologyChange { run_epoch, epoch, joined, left })
            }
            Ok(Done::Committed { .. }) => Err(Error::Bug("a vote ended as a collective")),
            Err(error) => Err(error.into()),
        }
    }

    /// Does what the session orders until the call is over.
    fn attend(
        &self,
        id: CallId,
        orders: &Arc<Orders>,
        timeout: Duration,
        mut act: impl FnMut(Order) -> Option<PerformResult>,
    ) -> Result<Outcome, Error> {
        let patience = timeout + self.control.verdict_grace() + LAST_RESORT;
        let mut give_up = std::time::Instant::now() + patience;
        let mut nudged = false;
        let control = Arc::clone(&self.control);
        let _cancels = watch::cancels(move || control.cancel(id));
        loop {
            let left = give_up.saturating_duration_since(std::time::Instant::now());
            match self.control.wait(orders, left) {
                Some(Order::Finish(outcome)) => {
                    act(Order::Undo);
                    self.control.end(id);
                    return Ok(outcome);
                }
                Some(order) => {
                    if let Some(result) = act(order) {
                        self.control.performed(id, result);
                    }
                }
                // This process may have stood still (stopped, or starved), and its session with it: the session
                // must have the chance to say how the call ended.
                None if !nudged => {
                    nudged = true;
                    give_up = std::time::Instant::now() + LAST_RESORT;
                    self.control.nudge();
                }
                None => {
                    self.control.end(id);
                    return Err(Error::Bug("a call outlived its deadline and its grace"));
                }
            }
        }
    }

    /// Whether this peer is in a run, for all that it knows.
    pub(crate) fn is_in(&self) -> bool {
        self.control.present().is_ok()
    }

    /// The time limit of calls that have none of their own.
    pub(crate) fn default_timeout(&self) -> Duration {
        self.timeout
    }

    /// The group agreed on that revision of its state by committing a step.
    pub(crate) fn note_revision(&self, revision: Revision) {
        self.agreed.note(Some(revision));
    }

    /// Our id.
    pub fn peer_id(&self) -> PeerId {
        self.control.me()
    }

    /// Whether this peer is in: admitted, and neither gone nor put out since. It is so at this moment, even if the program
    /// has not been told yet.
    pub fn is_connected(&self) -> bool {
        self.control.is_member()
    }

    /// The group as the program last saw it. Calls on other threads replace it as they end; whoever must not
    /// see that keeps what it was given.
    pub fn seen(&self) -> Arc<SeenGroup> {
        self.control.seen()
    }

    /// Our rank in the group; changes only inside a call.
    pub fn rank(&self) -> usize {
        self.control.seen().rank
    }

    /// Members of the group; changes only inside a call.
    pub fn world_size(&self) -> usize {
        self.control.seen().peers.len()
    }

    /// Members of all groups; changes only inside a call.
    pub fn global_world_size(&self) -> u32 {
        self.control.seen().global_world_size
    }

    /// The group's epoch; changes only inside a call.
    pub fn epoch(&self) -> u64 {
        self.control.seen().epoch
    }

    /// The members of the group in the order of ranks.
    pub fn peers(&self) -> Vec<Peer> {
        let health = self.membership.active().unwrap_or_default();
        let mut peers = self.control.seen().peers.clone();
        for peer in &mut peers {
            let member = health.iter().find(|member| member.info.id == peer.id);
            peer.health = member.map_or("unknown", |member| member.health.word());
        }
        peers
    }

    /// An error that says why, unless this peer is in a run or on its way into one.
    pub fn standing(&self) -> Result<(), Error> {
        match self.control.out() {
            Some(reason) => Err(self.control.explained(CallError::Out(reason).into())),
            None => Ok(()),
        }
    }

    /// How the run stands, as the coordinator tells it: a JSON object.
    pub fn status(&self) -> Result<String, Error> {
        self.control.status(self.timeout)
    }

    /// Says goodbye, so that nobody mistakes it for a failure, and that this peer's training is over. When the last one who
    /// has what its group had reached says so, another training may begin from nothing in the same group.
    pub fn leave(&self) {
        self.go(true);
    }

    /// Goes without ending the training: for whoever will come back, or does not know. What the group had reached is
    /// remembered, and nobody begins below it. An object that is dropped goes like this.
    pub fn leave_for_now(&self) {
        self.go(false);
    }

    fn go(&self, for_good: bool) {
        if self.creator.check().is_ok() {
            self.control.leave(GOODBYE, for_good);
        }
    }
}

/// Whether a call ended because nobody said anything about it.
fn is_unanswered(error: &Error) -> bool {
    matches!(error.cause(), Some(CallError::Timeout(waiting)) if waiting.is_empty())
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // A program that fails lets go of everything, too.
        self.leave_for_now();
        // A forked child has a copy of this object and none of its links.
        if self.creator.check().is_ok() {
            self.data.shutdown();
        }
    }
}
