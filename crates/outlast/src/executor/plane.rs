//! What the communicator holds: performing calls, opening epochs, taking connections.

use super::arithmetic::Arithmetic;
use super::companion::{self, Accompanied, Companion};
use super::engine::{Command, Engine, Output};
use super::memory::Buffers;
use super::operation::{Operation, Parts};
use super::seat::{Seat, Told};
use super::undo::{Settlement, UndoLog, UndoPool};
use super::wakeup::{Abort, Wakeup};
use super::{LinkEvent, Stopped};
use crate::link::{Dial, Wire};
use crate::watch;
use outlast_proto::collective::frame::OpName;
use outlast_proto::collective::plan::{Flow, Plan};
use outlast_proto::collective::striping::STREAMS_MAX;
use outlast_proto::collective::{Fingerprint, Group, GroupEpoch, OpKey, OpKind};
use outlast_proto::id::PeerId;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
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

/// One attempt at one collective.
#[derive(Clone, Debug)]
pub struct OpSpec {
    /// Its name.
    pub key: OpKey,
    /// What must be equal on all members; also says what to do.
    pub fingerprint: Fingerprint,
    /// Its members in ring order. All members have the same list.
    pub ring: Arc<[PeerId]>,
    /// The same members in the order of ranks.
    pub members: Arc<[PeerId]>,
    /// When to stop at the latest.
    pub deadline: Instant,
}

/// One process's data links, and the calls that use them. Cheap to share; all methods take `&self`.
pub struct DataPlane {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) me: PeerId,
    pub(super) settings: DataSettings,
    dialer: Arc<dyn Dial>,
    events: Box<dyn Fn(LinkEvent) + Send + Sync>,
    pub(super) wakeup: Arc<Wakeup>,
    pub(super) undo: Arc<UndoPool>,
    /// Bytes of one operation that may be under way: the setting, or more where a way to another host is long.
    pub(super) window: Arc<AtomicUsize>,
    home: Mutex<Home>,
    companion: companion::Place,
}

/// Where the engine rests while nobody drives, and where commands wait while somebody does.
struct Home {
    engine: Option<Box<Engine>>,
    inbox: Vec<Command>,
    /// A driver panicked and took the engine with it.
    dead: bool,
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
        let window = Arc::new(AtomicUsize::new(settings.window_bytes));
        let home = Home {
            engine: Some(Box::new(Engine::new(me, &settings, Arc::clone(&window)))),
            inbox: Vec::new(),
            dead: false,
        };
        let shared = Shared {
            me,
            settings,
            dialer,
            events: Box::new(events),
            wakeup: Arc::new(Wakeup::new()?),
            undo: Arc::new(UndoPool::new(settings.undo_bytes_max)),
            window,
            home: Mutex::new(home),
            companion: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// From now on whoever drives looks after `companion` too. There is one at most: the first.
    pub(crate) fn accompany(&self, companion: Weak<dyn Companion>) {
        let _ = self.shared.companion.set(companion);
    }

    /// The companion has another connection.
    pub(crate) fn ring(&self) {
        self.shared.wakeup.ring();
    }

    /// A new epoch of a group: its members in ring order with their data addresses. Dials the next member
    /// unless there is a link, and reports both links of the ring as they come up. Does not wait. What is
    /// under way in earlier epochs of the group is aborted.
    pub fn open_epoch(&self, group: Group, epoch: GroupEpoch, ring: Vec<(PeerId, SocketAddr)>) {
        self.shared.post(Command::OpenEpoch { group, epoch, ring });
    }

    /// The group has no roster any more; its operations are aborted and links that nobody else needs closed.
    pub fn close_epoch(&self, group: Group, epoch: GroupEpoch) {
        self.shared.post(Command::CloseEpoch { group, epoch });
    }

    /// This peer is out of the group: its operations are aborted. Its links stay for now, so that a peer that
    /// says goodbye is heard before its links are missed.
    pub fn leave_group(&self, group: Group) {
        self.shared.post(Command::LeaveGroup { group });
    }

    /// This peer joins the group anew, perhaps in a run that counts its epochs from the start: whatever was
    /// before has no say any more.
    pub fn forget_group(&self, group: Group) {
        self.shared.post(Command::ForgetGroup { group });
    }

    /// Takes over a connection that `peer`, whose identity is proved, has opened to us.
    pub fn accept(&self, peer: PeerId, wire: Box<dyn Wire>) {
        self.shared.post(Command::Accepted { peer, wire });
    }

    /// Takes over one more stream of the link that `peer`, whose identity is proved, has to us.
    pub fn accept_stripe(&self, peer: PeerId, wire: Box<dyn Wire>) {
        self.shared.post(Command::AcceptedStripe { peer, wire });
    }

    /// Finds out which links are closed, also if nobody moves bytes: a link may have been found silent.
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
        let OpSpec { fingerprint: call, members, ring, .. } = spec;
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
        let undo = UndoLog::new(region, undo_unit(&plan), &shared.undo);
        let mut undo = undo.map_err(|error| Stopped::NoMemory(error.to_string()))?;
        if abort.is_triggered() {
            return Err(Stopped::Aborted);
        }
        if call.kind == OpKind::AllToAll && undo.region.is_in_place() {
            undo.read_from_copy();
        }
        if let Some(own) = plan.own() {
            undo.save(&own.outputs());
            undo.region.copy(own.input, &own.outputs());
        }
        if *plan.flow() == Flow::Still {
            return Ok(Performed::new(undo, started));
        }
        let parts = Parts {
            name: OpName::from(&spec.key),
            fingerprint: call.digest(),
            plan,
            arithmetic,
            deadline: spec.deadline,
            abort: abort.clone(),
            window_bytes: shared.window.load(Ordering::Relaxed),
            end: None,
        };
        let _listening = abort.listen(&shared.wakeup);
        let operation = Box::new(Operation::new(parts, undo));
        Ok(Performed::of(*shared.run(operation)?, started))
    }
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
    /// From the call to the last byte.
    pub elapsed: Duration,
    settlement: Option<Settlement>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl Performed<'_> {
    pub(super) fn of(operation: Operation, started: Instant) -> Self {
        let Operation { undo, bytes_sent, bytes_received, .. } = operation;
        Self { bytes_sent, bytes_received, ..Self::new(undo, started) }
    }

    fn new(undo: UndoLog, started: Instant) -> Self {
        let (elapsed, settlement) = (started.elapsed(), Some(Settlement::Undo(undo)));
        Self { bytes_sent: 0, bytes_received: 0, elapsed, settlement, borrowed: PhantomData }
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
    fn home(&self) -> MutexGuard<'_, Home> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the engine and drives, or sits until the operation is over or it is our turn to drive. However this
    /// ends, by a panic too, the operation is back by then.
    pub(super) fn run(self: &Arc<Self>, operation: Box<Operation>) -> Result<Box<Operation>, Stopped> {
        let mut lent = Lent { shared: self, seat: Arc::clone(operation.ticket.seat()), is_back: false };
        let mut home = self.home();
        if home.dead {
            lent.is_back = true;
            return Err(Stopped::Closed);
        }
        if let Some(engine) = home.engine.take() {
            drop(home);
            let mut driving = Driving { shared: self, engine: Some(engine) };
            driving.engine().apply(Command::Join(operation));
            self.drive(driving, &lent.seat);
        } else {
            home.inbox.push(Command::Join(operation));
            drop(home);
            self.wakeup.ring();
        }
        lent.take_back()
    }

    fn drive(self: &Arc<Self>, mut driving: Driving<'_>, seat: &Seat) {
        let mut companion = Accompanied::by(&self.companion);
        // An abort may have come before anybody listened for it.
        driving.engine().check_aborts();
        while !seat.is_over() {
            watch::look();
            if self.wakeup.answer() {
                let commands = std::mem::take(&mut self.home().inbox);
                for command in commands {
                    driving.engine().apply(command);
                }
                driving.engine().check_aborts();
                companion.look_again();
            }
            let engine = driving.engine();
            let now = Instant::now();
            let progress = engine.pump(now);
            engine.settle();
            if engine.has_outputs() {
                self.carry_out(engine.take_outputs());
            }
            if progress || seat.is_over() {
                companion.turn_if_due(now);
            } else if engine.wait(&self.wakeup, &companion) {
                companion.turn();
            }
        }
        if let Some(engine) = driving.engine.take() {
            self.release(engine);
        }
    }

    /// Puts the engine down: with somebody who waits, or home.
    fn release(self: &Arc<Self>, engine: Box<Engine>) {
        let mut driving = Driving { shared: self, engine: Some(engine) };
        loop {
            let outputs = driving.engine().take_outputs();
            self.carry_out(outputs);
            let mut home = self.home();
            if home.inbox.is_empty() {
                let Some(engine) = driving.engine.take() else { return };
                match engine.somebody() {
                    Some(seat) => {
                        drop(home);
                        seat.hand_engine(engine);
                    }
                    None => home.engine = Some(engine),
                }
                return;
            }
            let commands = std::mem::take(&mut home.inbox);
            drop(home);
            let engine = driving.engine();
            for command in commands {
                engine.apply(command);
            }
            engine.check_aborts();
            engine.settle();
        }
    }

    /// Gives a command to the engine, wherever it is.
    fn post(self: &Arc<Self>, command: Command) {
        let mut home = self.home();
        if home.dead {
            return;
        }
        home.inbox.push(command);
        let resting = home.engine.take();
        drop(home);
        if let Some(engine) = resting {
            self.release(engine);
        } else {
            self.wakeup.ring();
        }
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
    shared: &'a Arc<Shared>,
    seat: Arc<Seat>,
    is_back: bool,
}

impl Lent<'_> {
    /// Sits, and drives in its turn, until the operation is over.
    fn take_back(&mut self) -> Result<Box<Operation>, Stopped> {
        loop {
            match self.seat.wait() {
                Told::Drive(engine) => {
                    let driving = Driving { shared: self.shared, engine: Some(engine) };
                    self.shared.drive(driving, &self.seat);
                }
                Told::Over(operation, ending) => {
                    self.is_back = true;
                    return ending.map(|()| operation);
                }
                Told::Gone => {
                    self.is_back = true;
                    return Err(Stopped::Closed);
                }
            }
        }
    }
}

impl Drop for Lent<'_> {
    /// The call unwinds: not without its operation, for the caller's memory is free to go after this.
    fn drop(&mut self) {
        if !self.is_back {
            self.seat.withdraw();
            self.shared.wakeup.ring();
            drop(self.take_back());
        }
    }
}

/// The engine in a driver's hands. If the driver panics, nobody is left waiting.
struct Driving<'a> {
    shared: &'a Shared,
    engine: Option<Box<Engine>>,
}

impl Driving<'_> {
    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("it is held until it is released")
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        let mut home = self.shared.home();
        home.dead = true;
        let commands = std::mem::take(&mut home.inbox);
        drop(home);
        for command in commands {
            if let Command::Join(operation) = command {
                let seat = Arc::clone(operation.ticket.seat());
                seat.hand_back(operation, Err(Stopped::Closed));
            }
        }
        // The engine hands back what it holds.
        drop(engine);
    }
}

#[cfg(test)]
mod tests;
