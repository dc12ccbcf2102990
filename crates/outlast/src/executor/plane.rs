//! What the communicator holds: performing calls, opening epochs, taking connections.

use super::abort::Abort;
use super::arithmetic::Arithmetic;
use super::companion::{self, Accompanied, Companion};
use super::driver::{Hands, Inbox, Seat};
use super::engine::{Command, Engine, Output};
use super::memory::{Buffers, Region};
use super::operation::{Operation, Parts};
use super::settlement::{CopyOut, Results, Settlement};
use super::ticket::{Claim, Ticket, Told};
use super::transfer::TransferSpec;
use super::transport::{Carrier, Job, Moved, Transport};
use super::undo::{UndoLog, UndoPool};
use super::{LinkEvent, Stopped};
use crate::baton::Baton;
use crate::bell::Bell;
use crate::link::{Dial, Wire};
use outlast_proto::collective::frame::OpName;
use outlast_proto::collective::plan::{Flow, Plan};
use outlast_proto::collective::striping::STREAMS_MAX;
use outlast_proto::collective::{Attempt, Fingerprint, Group, GroupEpoch, OpKind, whole};
use outlast_proto::id::PeerId;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What can be set about a data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSettings {
    /// Bytes of one operation that may be under way on a link, at least. Small windows keep blocks in the
    /// caches; a link needs its bandwidth times its round trip, so links to far hosts get more.
    pub window_bytes: usize,
    /// How long opening a connection may take.
    pub dial_timeout: Duration,
    /// How long a call waits for the previous member to make its link again, if it broke before any of the
    /// call's bytes were on it.
    pub link_grace: Duration,
    /// Undo copies that are kept for the next operation, in bytes.
    pub undo_bytes_max: usize,
    /// Streams of one link at most; how many there are is measured.
    pub streams_max: u8,
}

impl Default for DataSettings {
    fn default() -> Self {
        Self {
            window_bytes: 512 << 10,
            dial_timeout: Duration::from_secs(5),
            link_grace: Duration::from_secs(1),
            undo_bytes_max: 2 << 30,
            streams_max: STREAMS_MAX,
        }
    }
}

/// What is to be performed.
#[derive(Clone, Debug)]
pub struct OpSpec {
    /// The attempt.
    pub attempt: Attempt,
    /// What must be equal on all members; also says what to do.
    pub fingerprint: Fingerprint,
    /// When to stop at the latest.
    pub deadline: Instant,
}

/// One process's data links, and the calls that use them. Cheap to share; all methods take `&self`.
pub struct DataPlane {
    pub(super) shared: Arc<Shared>,
    carrier: Carrier,
}

pub(super) struct Shared {
    pub(super) me: PeerId,
    pub(super) settings: DataSettings,
    dialer: Arc<dyn Dial>,
    events: Box<dyn Fn(LinkEvent) + Send + Sync>,
    pub(super) undo: Arc<UndoPool>,
    /// Bytes of one operation that may be under way: the setting, or more where a way to another host is long.
    pub(super) window: Arc<AtomicUsize>,
    inbox: Arc<Inbox>,
    baton: Arc<Baton<Hands>>,
    companion: companion::Place,
}

impl DataPlane {
    /// A data plane without links. `events` is told about links of open epochs; it is called on whichever
    /// thread drives, so it must not wait.
    pub fn new(
        me: PeerId,
        settings: DataSettings,
        dialer: Arc<dyn Dial>,
        events: impl Fn(LinkEvent) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::over(Carrier::Links, me, settings, dialer, events)
    }

    /// The same with somebody else who carries the bytes.
    pub(super) fn over(
        carrier: Carrier,
        me: PeerId,
        settings: DataSettings,
        dialer: Arc<dyn Dial>,
        events: impl Fn(LinkEvent) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let window = Arc::new(AtomicUsize::new(settings.window_bytes));
        let engine = Engine::new(me, &settings, Arc::clone(&window));
        let (bell, inbox) = (Arc::new(Bell::new()?), Arc::<Inbox>::default());
        let companion = companion::Place::default();
        let shared = Arc::new_cyclic(|this: &Weak<Shared>| {
            let this = Weak::clone(this);
            let carry_out = Box::new(move |outputs| {
                if let Some(shared) = this.upgrade() {
                    shared.carry_out(outputs);
                }
            });
            let accompanied = Accompanied::by(Arc::clone(&companion), companion::TURN_INTERVAL);
            let hands = Hands::new(engine, Arc::clone(&inbox), accompanied, Arc::clone(&bell), carry_out);
            Shared {
                me,
                settings,
                dialer,
                events: Box::new(events),
                undo: Arc::new(UndoPool::new(settings.undo_bytes_max)),
                window,
                inbox,
                baton: Arc::new(Baton::new(Box::new(hands), bell)),
                companion,
            }
        });
        Ok(Self { shared, carrier })
    }

    pub(super) fn transport(&self) -> &dyn Transport {
        self.carrier.of(&self.shared)
    }

    /// From now on whoever drives looks after `companion` too. There is one at most: the first.
    pub(crate) fn accompany(&self, companion: Weak<dyn Companion>) {
        let _ = self.shared.companion.set(companion);
    }

    /// Who drives the links of this peer, and its companion's connection.
    pub(crate) fn baton(&self) -> &Arc<Baton<Hands>> {
        &self.shared.baton
    }

    /// A new epoch of a group: its members in ring order with their data addresses. Dials the next member
    /// unless there is a link, and reports both links of the ring as they come up. Does not wait. What is
    /// under way in earlier epochs of the group is aborted.
    pub fn open_epoch(&self, group: Group, epoch: GroupEpoch, ring: Vec<(PeerId, SocketAddr)>) {
        let members: Vec<_> = ring.iter().map(|(peer, _)| *peer).collect();
        self.shared.post(Command::OpenEpoch { group, epoch, ring });
        self.transport().epoch_opened(group, epoch, &members);
    }

    /// The group has no roster any more; its operations are aborted and links that nobody else needs closed.
    pub fn close_epoch(&self, group: Group, epoch: GroupEpoch) {
        self.shared.post(Command::CloseEpoch { group, epoch });
        self.transport().group_left(group);
    }

    /// This peer is out of the group: its operations are aborted. Its links stay for now, so that a peer that
    /// says goodbye is heard before its links are missed.
    pub fn leave_group(&self, group: Group) {
        self.shared.post(Command::LeaveGroup { group });
        self.transport().group_left(group);
    }

    /// This peer joins the group anew, perhaps in a run that counts its epochs from the start: whatever was
    /// before has no say any more.
    pub fn forget_group(&self, group: Group) {
        self.shared.post(Command::ForgetGroup { group });
        self.transport().group_left(group);
    }

    /// Dials the next member of the group's ring once more if there is no link to it, and reports the link as
    /// [`open_epoch`](Self::open_epoch) does. Does not wait.
    pub fn want_link(&self, group: Group, peer: PeerId) {
        self.shared.post(Command::WantLink { group, peer });
    }

    /// Takes over a connection that `peer`, whose identity is proved, has opened to us.
    pub fn accept(&self, peer: PeerId, wire: Box<dyn Wire>) {
        self.shared.post(Command::Accepted { peer, wire });
    }

    /// Takes over one more stream of the link that `peer`, whose identity is proved, has to us.
    pub fn accept_stripe(&self, peer: PeerId, wire: Box<dyn Wire>) {
        self.shared.post(Command::AcceptedStripe { peer, wire });
    }

    /// Finds out which links are closed, even if nobody moves bytes: a link may have been found silent.
    pub fn look_at_links(&self) {
        self.shared.post(Command::Look);
    }

    /// Maps and touches memory for the undo copy of operations of up to `bytes`, so that the first one does
    /// not pay for it.
    pub fn reserve(&self, bytes: usize) -> io::Result<()> {
        self.shared.undo.reserve(bytes)
    }

    /// Ends every operation with [`Stopped::Closed`] and closes every link, for good.
    pub fn shutdown(&self) {
        self.shared.post(Command::Shutdown);
        self.transport().shut_down();
    }

    /// Runs one attempt. Returns when this member's result is complete and everything that others need from
    /// it is in the kernel's hands, or when it stopped; then the memory is as it was. In both cases nobody
    /// else holds the memory any more.
    ///
    /// # Panics
    /// If the buffers do not have the sizes that the fingerprint says, or this peer is not in the ring.
    pub fn perform<'a>(
        &self,
        spec: &OpSpec,
        buffers: Buffers<'a>,
        abort: &Abort,
    ) -> Result<Performed<'a>, Stopped> {
        let shared = &self.shared;
        let started = Instant::now();
        let OpSpec { fingerprint: call, attempt: Attempt { members, ring, .. }, .. } = spec;
        let arithmetic = Arithmetic::new(call, members.len());
        let plan = Plan::new(call, members, ring, shared.me, arithmetic.unit())
            .map_err(|error| Stopped::NoMemory(error.to_string()))?;
        let mut region = buffers.into_region();
        if let Some(order) = call.order() {
            region.arrange(&order);
        }
        let given = (region.input_bytes() as u64, region.output_bytes() as u64);
        let shape = call.shape_bytes(members.len(), call.root == Some(shared.me));
        assert_eq!(given, shape, "buffers as the call says: {call}");
        if abort.is_triggered() {
            return Err(Stopped::Aborted);
        }
        if *plan.flow() == Flow::Still {
            // There is nobody to talk to or nothing to say: no transport is needed.
            return Ok(Performed::of(
                Moved::at_once(undo_log(region, &plan, call.kind, &shared.undo)?),
                started,
            ));
        }
        let job = Job { spec, plan, arithmetic, region, abort };
        Ok(Performed::of(self.transport().perform(job)?, started))
    }
}

/// Links save what they overwrite, and undo it. What is small is gathered elsewhere, and copied out.
impl Transport for Arc<Shared> {
    fn perform(&self, job: Job<'_>) -> Result<Moved, Stopped> {
        match whole(&job.spec.fingerprint, job.spec.attempt.members.len()) {
            Some(way) => self.gather_whole(job, &way),
            None => Ok(Moved::by(self.move_blocks(job)?)),
        }
    }

    fn transfer(&self, job: Job<'_, TransferSpec>) -> Result<Moved, Stopped> {
        self.transfer_over_links(job)
    }
}

impl Shared {
    /// Moves the blocks of an attempt.
    fn move_blocks(self: &Arc<Self>, job: Job<'_>) -> Result<Operation, Stopped> {
        let Job { spec, plan, arithmetic, region, abort } = job;
        let undo = undo_log(region, &plan, spec.fingerprint.kind, &self.undo)?;
        let parts = Parts {
            name: OpName::from(&spec.attempt.key),
            fingerprint: spec.fingerprint.digest(),
            plan,
            arithmetic,
            deadline: spec.deadline,
            abort: abort.clone(),
            window_bytes: self.window.load(Ordering::Relaxed),
            end: None,
        };
        Ok(*self.run(parts, undo)?)
    }

    /// Gets everybody's whole contribution, by `way`, and adds them up. The frames carry the digest of the call itself:
    /// whoever calls something else is found out as ever (rule 7).
    fn gather_whole(self: &Arc<Self>, job: Job<'_>, way: &Fingerprint) -> Result<Moved, Stopped> {
        let Job { spec, arithmetic, region, abort, .. } = job;
        let Attempt { members, ring, .. } = &spec.attempt;
        let bytes = region.input_bytes();
        let (mut own, mut all) = (vec![0; bytes], vec![0; bytes * members.len()]);
        region.gather_input(&(0..bytes), &mut own);
        let plan = Plan::new(way, members, ring, self.me, 1);
        let plan = plan.map_err(|error| Stopped::NoMemory(error.to_string()))?;
        let gathered = Buffers::out_of_place([&own[..]], [&mut all[..]]).into_region();
        let there = Arithmetic::new(way, members.len());
        let job = Job { spec, plan, arithmetic: there, region: gathered, abort };
        let Moved { bytes_sent, bytes_received, mean_sent, settlement } = Moved::by(self.move_blocks(job)?);
        // What was gathered stays where it is: it is ours, and nobody else's output.
        settlement.commit();
        arithmetic.fold(&all, &mut own);
        let settlement = Settlement::CopyOut(CopyOut::new(region, Box::new(Sum(own))));
        Ok(Moved { bytes_sent, bytes_received, mean_sent, settlement })
    }
}

/// A reduction that waits for its verdict.
#[derive(Debug)]
struct Sum(Vec<u8>);

impl Results for Sum {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Ready to overwrite outputs; what a member copies from its own input is there already.
fn undo_log(region: Region, plan: &Plan, kind: OpKind, pool: &Arc<UndoPool>) -> Result<UndoLog, Stopped> {
    let log = UndoLog::new(region, undo_unit(plan), pool);
    let mut log = log.map_err(|error| Stopped::NoMemory(error.to_string()))?;
    if kind == OpKind::AllToAll && log.region.is_in_place() {
        log.read_from_copy();
    }
    if let Some(own) = plan.own() {
        log.save(&own.outputs());
        log.region.copy(own.input, &own.outputs());
    }
    Ok(log)
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for DataPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataPlane").field("me", &self.shared.me).finish_non_exhaustive()
    }
}

/// How long a call waits at a time for its operation. It is told when that is over; to ask again costs nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What is copied aside at a time where nothing else says so.
const UNDO_UNIT: usize = 1 << 20;

/// The unit in which outputs are saved: a block of the plan, because then each is saved right before it is
/// overwritten, when it is in the cache anyway.
fn undo_unit(plan: &Plan) -> usize {
    if *plan.flow() == Flow::Still { UNDO_UNIT } else { plan.block_bytes() }
}

/// An attempt that moved all its bytes and waits for its verdict. Dropping it undoes it.
#[must_use = "dropping it restores the caller's buffer"]
#[derive(Debug)]
pub struct Performed<'a> {
    /// Payload bytes that this peer sent.
    pub bytes_sent: u64,
    /// Payload bytes that this peer received.
    pub bytes_received: u64,
    /// Payload bytes that each peer sent on average: the same number on all of them.
    pub mean_sent: u64,
    /// From the call to the last byte.
    pub elapsed: Duration,
    settlement: Option<Settlement>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl Performed<'_> {
    pub(super) fn of(moved: Moved, started: Instant) -> Self {
        let Moved { bytes_sent, bytes_received, mean_sent, settlement } = moved;
        let (elapsed, settlement) = (started.elapsed(), Some(settlement));
        Self { bytes_sent, bytes_received, mean_sent, elapsed, settlement, borrowed: PhantomData }
    }

    /// The verdict is commit: the result stays.
    pub fn commit(mut self) {
        if let Some(settlement) = self.settlement.take() {
            settlement.commit();
        }
    }

    /// The verdict is abort: the memory is as it was before the call, bit for bit.
    pub fn undo(mut self) {
        if let Some(settlement) = self.settlement.take() {
            settlement.abort();
        }
    }
}

impl Shared {
    /// Moves the bytes of an operation, or waits while another does. However this ends, by a panic too, the operation is
    /// back by then.
    pub(super) fn run(self: &Arc<Self>, parts: Parts, undo: UndoLog) -> Result<Box<Operation>, Stopped> {
        let abort = parts.abort.clone();
        let _listening = abort.listen(self.baton.bell());
        let seat = Arc::new(Seat::new(&self.baton));
        let operation = Box::new(Operation::new(parts, undo, Ticket::new(Arc::<Seat>::clone(&seat))));
        let mut lent = Lent { shared: self, seat, claim: operation.ticket.claim(), is_back: false };
        self.post(Command::Join(operation));
        lent.take_back()
    }

    /// Gives a command to the engine, wherever it is.
    fn post(&self, command: Command) {
        self.inbox.put(command);
        self.baton.nudge();
    }

    fn carry_out(self: &Arc<Self>, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Event(event) => (self.events)(event),
                Output::Dial { peer, address, serial } => {
                    self.dial(move |dialer, deadline| {
                        let result = dialer.dial(peer, address, deadline);
                        Command::Dialled { peer, serial, result }
                    });
                }
                Output::DialStripe { peer, address, primary } => {
                    self.dial(move |dialer, deadline| {
                        let result = dialer.dial_stripe(peer, address, deadline);
                        Command::DialledStripe { peer, primary, result }
                    });
                }
            }
        }
    }

    /// Dials on a thread of its own, which lives no longer than the dial timeout.
    fn dial(self: &Arc<Self>, dial: impl Fn(&dyn Dial, Instant) -> Command + Send + Sync + 'static) {
        let (shared, dial) = (Arc::clone(self), Arc::new(dial));
        let on_thread = Arc::clone(&dial);
        let work = move || {
            let deadline = Instant::now() + shared.settings.dial_timeout;
            let dialled = catch_unwind(AssertUnwindSafe(|| on_thread(&*shared.dialer, deadline)));
            // Whoever waits for the link hears of it in any case (rule 40).
            shared.post(dialled.unwrap_or_else(|_| on_thread(&NoLink("the dialler panicked"), deadline)));
        };
        let thread = std::thread::Builder::new().name("outlast-dial".to_owned());
        if let Err(error) = thread.spawn(work) {
            self.post(dial(&NoLink(&format!("no thread to dial on: {error}")), Instant::now()));
        }
    }
}

/// Dials nobody, and says why.
struct NoLink<'a>(&'a str);

impl Dial for NoLink<'_> {
    fn dial(&self, _: PeerId, _: SocketAddr, _: Instant) -> io::Result<Box<dyn Wire>> {
        Err(io::Error::other(self.0))
    }
}

/// An operation that is out of its call's hands, and with it the right to the caller's memory.
struct Lent<'a> {
    shared: &'a Shared,
    seat: Arc<Seat>,
    claim: Arc<Claim>,
    is_back: bool,
}

impl Lent<'_> {
    /// Waits, and drives in its turn, until the operation is over: whoever drives holds it to its deadline.
    fn take_back(&mut self) -> Result<Box<Operation>, Stopped> {
        loop {
            let told = self.seat.wait(Instant::now() + LOOK_AGAIN, || self.claim.take());
            let Some(told) = told else { continue };
            self.is_back = true;
            return match told {
                Told::Over(operation, ending) => ending.map(|()| operation),
                Told::Gone => Err(Stopped::Closed),
            };
        }
    }
}

impl Drop for Lent<'_> {
    /// The call unwinds: not without its operation, for the caller's memory is free to go after this.
    fn drop(&mut self) {
        if !self.is_back {
            self.claim.withdraw();
            self.shared.baton.bell().ring();
            drop(self.take_back());
        }
    }
}

#[cfg(test)]
mod tests;
