//! The control connection and the session behind it.
//!
//! The session is a machine behind a short lock; whoever has news for it (the connection's task, a calling
//! thread, a link, a timer) hands them in and carries out what comes back. Nothing is waited for under the
//! lock: messages go into a bounded queue, orders into the channel of their call.

use super::error::Error;
use super::receipt::Peer;
use crate::clock;
use crate::coordinator::{self, ControlFrames, Unreached};
use crate::executor::{Abort, DataPlane, Direction, LinkEvent};
use crate::security::TlsIdentity;
use outlast_proto::collective::{Group, GroupEpoch, OpKey, Tag};
use outlast_proto::id::PeerId;
use outlast_proto::session::{
    Action, CallError, CallId, Command, Config, Op, OutReason, Outcome, PerformResult, Session,
};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::{EpochRecord, LossReason, Registration, ToCoordinator, ToPeer};
use outlast_proto::wire::{decode, encode};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

/// How long dialling and the hello may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Messages that wait for the connection; more means that it does not move.
const QUEUE_MAX: usize = 16_384;

/// What a call's thread is told.
#[derive(Debug)]
pub(super) enum Order {
    Perform { key: OpKey, ring: Vec<PeerId>, members: Vec<PeerId>, abort: Abort },
    Commit,
    Undo,
    Finish(Outcome),
}

/// What the program sees of the group; replaced only when one of its calls ends.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct View {
    /// Our rank in the group.
    pub rank: usize,
    /// The group's epoch.
    pub epoch: u64,
    /// Members of all groups.
    pub global_world_size: u32,
    /// The members of the group in the order of ranks; their health is not filled in.
    pub peers: Vec<Peer>,
}

pub(super) struct Settings {
    pub(super) coordinator: String,
    pub(super) identity: TlsIdentity,
    pub(super) registration: Registration,
    pub(super) config: Config,
    pub(super) runtime: Handle,
    /// A coordinator that acknowledges nothing for this long is looked for anew.
    pub(super) silent_after: Duration,
}

#[derive(Debug)]
struct CallSlot {
    orders: Sender<Order>,
    abort: Option<Abort>,
}

struct State {
    session: Session,
    outbound: Option<mpsc::Sender<ToCoordinator>>,
    calls: BTreeMap<CallId, CallSlot>,
    dials: u64,
    /// The epoch whose outgoing link was up once.
    linked: u64,
    /// The call that connects, until a coordinator was reached.
    connecting: Option<CallId>,
    /// Why the last attempt to reach the coordinator failed.
    unreached: Option<Unreached>,
}

/// The control side of a communicator.
pub(super) struct Control {
    me: PeerId,
    group: Group,
    grace: Duration,
    coordinator: String,
    identity: TlsIdentity,
    runtime: Handle,
    silent_after: Duration,
    data: Arc<DataPlane>,
    state: Mutex<State>,
    view: Mutex<Arc<View>>,
    /// How many connections are being talked on; a goodbye waits for the last of them.
    talks: Mutex<usize>,
    hung_up: Condvar,
    timers: Notify,
    this: Weak<Control>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("me", &self.me).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    pub(super) fn start(
        settings: Settings,
        data: Arc<DataPlane>,
        mut links: mpsc::UnboundedReceiver<LinkEvent>,
    ) -> Arc<Self> {
        let Settings { coordinator, identity, registration, config, runtime, silent_after } = settings;
        let (me, group, grace) = (registration.info.id, registration.group, config.verdict_grace);
        let session = Session::new(config, registration);
        let state = State {
            session,
            outbound: None,
            calls: BTreeMap::new(),
            dials: 0,
            linked: 0,
            connecting: None,
            unreached: None,
        };
        let control = Arc::new_cyclic(|this| Self {
            me,
            group,
            grace,
            coordinator,
            identity,
            runtime: runtime.clone(),
            silent_after,
            data,
            state: Mutex::new(state),
            view: Mutex::default(),
            talks: Mutex::new(0),
            hung_up: Condvar::new(),
            timers: Notify::new(),
            this: this.clone(),
        });
        let this = Arc::downgrade(&control);
        runtime.spawn(async move {
            while let Some(event) = links.recv().await {
                let Some(control) = this.upgrade() else { return };
                control.link(event);
            }
        });
        let this = Arc::downgrade(&control);
        runtime.spawn(keep_time(this));
        control
    }

    pub(super) fn me(&self) -> PeerId {
        self.me
    }

    pub(super) fn verdict_grace(&self) -> Duration {
        self.grace
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&lock(&self.view))
    }

    pub(super) fn open_tags(&self) -> Vec<Tag> {
        lock(&self.state).session.open_tags()
    }

    pub(super) fn begin_connect(
        &self,
        min_world: u32,
        deadline: Instant,
    ) -> Result<(CallId, Receiver<Order>), Error> {
        let mut state = lock(&self.state);
        if state.session.out().is_none() {
            return Err(Error::InvalidArgument("already connected".to_owned()));
        }
        state.linked = 0;
        self.data.forget_group(self.group);
        state.unreached = None;
        let (id, orders) =
            self.begin_locked(state, |session, now| session.handle_connect_call(now, min_world, deadline));
        lock(&self.state).connecting = Some(id);
        Ok((id, orders))
    }

    /// The call that connects is over. Says why it never reached a coordinator, if so.
    pub(super) fn end_connect(&self) -> Option<Unreached> {
        let mut state = lock(&self.state);
        state.connecting = None;
        state.unreached.take()
    }

    pub(super) fn begin_op(&self, op: Op) -> Result<(CallId, Receiver<Order>), Error> {
        let state = lock(&self.state);
        if state.session.is_open(&op.scope, op.tag) {
            return Err(Error::InvalidArgument(format!("a collective under tag {} is in flight", op.tag)));
        }
        Ok(self.begin_locked(state, |session, now| session.handle_op_call(now, op)))
    }

    pub(super) fn begin(
        &self,
        call: impl FnOnce(&mut Session, Instant) -> CallId,
    ) -> (CallId, Receiver<Order>) {
        self.begin_locked(lock(&self.state), call)
    }

    fn begin_locked(
        &self,
        mut state: MutexGuard<'_, State>,
        call: impl FnOnce(&mut Session, Instant) -> CallId,
    ) -> (CallId, Receiver<Order>) {
        let (orders, receiver) = channel();
        let id = call(&mut state.session, clock::now());
        state.calls.insert(id, CallSlot { orders, abort: None });
        self.carry_out(state);
        (id, receiver)
    }

    /// The executor is done with an attempt.
    pub(super) fn performed(&self, id: CallId, result: PerformResult) {
        self.tell(|session, now| session.handle_performed(now, id, result));
    }

    /// A call has returned: what changed meanwhile may be seen now.
    pub(super) fn end(&self, id: CallId) {
        lock(&self.state).calls.remove(&id);
        self.refresh();
    }

    /// Lets the program see the group as it is.
    pub(super) fn refresh(&self) {
        let state = lock(&self.state);
        let known = self.view();
        let changed = |record: &&EpochRecord| {
            (record.epoch, state.session.global_world_size()) != (known.epoch, known.global_world_size)
        };
        let view = state.session.record().filter(changed);
        let view = view.map(|record| view_of(record, self.me, &state.session));
        drop(state);
        if let Some(view) = view {
            *lock(&self.view) = Arc::new(view);
        }
    }

    /// The group, its epoch and its members in the order of ranks, as they are now.
    pub(super) fn present(&self) -> Result<(Group, GroupEpoch, Vec<PeerId>), Error> {
        let state = lock(&self.state);
        let Some(record) = state.session.record() else {
            let reason = state.session.out().cloned().unwrap_or(OutReason::NotConnected);
            return Err(CallError::Out(reason).into());
        };
        Ok((record.group, record.epoch, record.roster.iter().map(|info| info.id).collect()))
    }

    /// Who went when the present epoch began, and why.
    pub(super) fn left(&self) -> Vec<(PeerId, LossReason)> {
        lock(&self.state).session.record().map_or_else(Vec::new, |record| record.left.clone())
    }

    /// The program gives a call up; its end comes as an order.
    pub(super) fn cancel(&self, id: CallId) {
        self.tell(|session, now| session.handle_cancel(now, id));
    }

    /// Lets the session look at the clock now.
    pub(super) fn nudge(&self) {
        self.tell(Session::handle_timeout);
    }

    /// Ends the session, and waits up to `timeout` until the goodbye is on its way: a process that exits right
    /// after it must not look like one that died.
    pub(super) fn leave(&self, timeout: Duration) {
        let connected = lock(&self.state).outbound.is_some();
        self.tell(Session::handle_leave);
        if connected {
            let talks = lock(&self.talks);
            let _ = self.hung_up.wait_timeout_while(talks, timeout, |talks| *talks > 0);
        }
    }

    /// Hands something to the session and carries out what comes back.
    fn tell(&self, what: impl FnOnce(&mut Session, Instant)) {
        let mut state = lock(&self.state);
        what(&mut state.session, clock::now());
        self.carry_out(state);
    }

    fn carry_out(&self, mut state: MutexGuard<'_, State>) {
        while let Some(action) = state.session.poll_action() {
            match action {
                Action::Dial => {
                    state.dials += 1;
                    let dial = state.dials;
                    if let Some(this) = self.this.upgrade() {
                        self.runtime.spawn(this.converse(dial));
                    }
                }
                Action::HangUp => {
                    state.outbound = None;
                    if state.session.out().is_some() {
                        // Transfers have no session to stop them.
                        self.data.leave_group(self.group);
                    }
                }
                Action::Send(message) => {
                    let stuck = state.outbound.as_ref().is_some_and(|queue| queue.try_send(message).is_err());
                    if stuck {
                        state.outbound = None;
                    }
                }
                Action::OpenEpoch(record) => self.open_epoch(&mut state, &record),
                Action::Call(id, command) => order(&mut state, id, command),
            }
        }
        drop(state);
        self.timers.notify_one();
    }

    fn open_epoch(&self, state: &mut State, record: &EpochRecord) {
        let place = |rank: &u32| {
            let info = &record.roster[*rank as usize];
            (info.id, info.address)
        };
        let ring: Vec<_> = record.ring.iter().map(place).collect();
        if ring.len() == 1 {
            state.session.handle_links_up(record.epoch);
        }
        self.data.open_epoch(record.group, record.epoch, ring);
    }

    fn link(&self, event: LinkEvent) {
        let me = self.me;
        match event {
            LinkEvent::Up { epoch, direction: Direction::Towards, .. } => {
                lock(&self.state).linked = epoch;
                self.tell(|session, _| session.handle_links_up(epoch));
            }
            LinkEvent::Up { .. } => {}
            LinkEvent::Down { epoch, peer, direction, error, .. } => {
                let (from, to) = match direction {
                    Direction::Towards => (me, peer),
                    Direction::From => (peer, me),
                };
                // A link that was never up in its epoch could not be dialled: the next ring must do without.
                let dialling = direction == Direction::Towards && lock(&self.state).linked != epoch;
                self.tell(|session, _| session.handle_link_broken(epoch, from, to, dialling, error));
            }
        }
    }

    /// One connection to the coordinator, from dialling to its end.
    async fn converse(self: Arc<Self>, dial: u64) {
        match self.open().await {
            Ok(frames) => {
                *lock(&self.talks) += 1;
                self.talk(dial, frames).await;
                *lock(&self.talks) -= 1;
                self.hung_up.notify_all();
            }
            Err(error) => {
                tracing::debug!(coordinator = %self.coordinator, %error, "no coordinator");
                let mut state = lock(&self.state);
                let foreign = error.foreign;
                state.unreached = Some(error);
                if foreign && let Some(id) = state.connecting {
                    // Trying again would not help: the call that connects ends now.
                    state.session.handle_cancel(clock::now(), id);
                    self.carry_out(state);
                }
            }
        }
        let mut state = lock(&self.state);
        if state.dials == dial {
            state.outbound = None;
            state.session.handle_disconnected(clock::now());
            self.carry_out(state);
        }
    }

    async fn open(&self) -> Result<ControlFrames, Unreached> {
        coordinator::dial(&self.coordinator, &self.identity, self.me, DIAL_TIMEOUT, self.silent_after).await
    }

    async fn talk(&self, dial: u64, mut frames: ControlFrames) {
        let (queue, mut outbound) = mpsc::channel(QUEUE_MAX);
        {
            let mut state = lock(&self.state);
            if state.dials != dial {
                return;
            }
            state.outbound = Some(queue);
            (state.connecting, state.unreached) = (None, None);
            state.session.handle_connected(clock::now());
            self.carry_out(state);
        }
        loop {
            tokio::select! {
                biased;
                message = outbound.recv() => {
                    let Some(first) = message else { break };
                    if !write(&mut frames, first, &mut outbound).await { break }
                }
                frame = frames.next() => {
                    let Ok(Some(bytes)) = frame else { break };
                    match decode::<ToPeer>(&bytes) {
                        Ok(message) => self.tell(|session, now| session.handle_message(now, message)),
                        Err(error) => {
                            tracing::warn!(%error, "the coordinator sent what is no message");
                            break;
                        }
                    }
                }
            }
        }
        while let Ok(message) = outbound.try_recv() {
            if !write(&mut frames, message, &mut outbound).await {
                break;
            }
        }
        let _ = tokio::time::timeout(WRITE_TIMEOUT, frames.finish()).await;
    }

    /// Asks the coordinator how the run stands, over a connection of its own.
    pub(super) fn status(&self, timeout: Duration) -> Result<String, Error> {
        let asking = async {
            let mut frames = self.open().await.map_err(|error| error.to_string())?;
            coordinator::ask(&mut frames).await
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(timeout, asking).await });
        answer.map_err(|_| Error::Silent(format!("within {timeout:?}")))?.map_err(Error::Silent)
    }
}

async fn write(
    frames: &mut ControlFrames,
    first: ToCoordinator,
    outbound: &mut mpsc::Receiver<ToCoordinator>,
) -> bool {
    let mut payloads = vec![encode(&first)];
    while let Ok(next) = outbound.try_recv() {
        payloads.push(encode(&next));
    }
    let writing = frames.send_all(payloads.iter().map(Vec::as_slice));
    matches!(tokio::time::timeout(WRITE_TIMEOUT, writing).await, Ok(Ok(())))
}

/// Wakes the session when it asked for it.
async fn keep_time(this: Weak<Control>) {
    loop {
        let Some(control) = this.upgrade() else { return };
        let next = lock(&control.state).session.poll_timeout();
        let wait = next.map_or(Duration::from_secs(1), |at| at.since(clock::now()));
        if wait.is_zero() {
            control.tell(Session::handle_timeout);
        }
        let changed = control.timers.notified();
        // Woken at least once a second, so that a dropped communicator is noticed.
        let wait = wait.clamp(Duration::from_millis(1), Duration::from_secs(1));
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn order(state: &mut State, id: CallId, command: Command) {
    let Some(slot) = state.calls.get_mut(&id) else { return };
    let order = match command {
        Command::Perform { key, ring, members } => {
            let abort = Abort::new();
            slot.abort = Some(abort.clone());
            Order::Perform { key, ring, members, abort }
        }
        Command::Abort => {
            if let Some(abort) = &slot.abort {
                abort.trigger();
            }
            return;
        }
        Command::Commit => Order::Commit,
        Command::Undo => Order::Undo,
        Command::Finish(outcome) => Order::Finish(outcome),
    };
    // A call that is gone needs no orders.
    let _ = slot.orders.send(order);
}

fn view_of(record: &EpochRecord, me: PeerId, session: &Session) -> View {
    View {
        rank: record.rank_of(me).unwrap_or(0),
        epoch: record.epoch,
        global_world_size: session.global_world_size(),
        peers: record
            .roster
            .iter()
            .enumerate()
            .map(|(rank, info)| Peer {
                id: info.id,
                rank,
                group: record.group,
                name: info.name.clone(),
                address: info.address,
                health: "unknown",
            })
            .collect(),
    }
}
