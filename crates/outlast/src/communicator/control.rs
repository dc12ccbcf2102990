//! The control connection and the session behind it.
//!
//! The session is a machine behind a short lock; whoever has news for it (a calling thread, the connection's
//! task, a link, a timer) hands them in and carries out what comes back. Nothing is waited for under the lock:
//! messages are put on the [`Line`], orders into the [`Orders`] of their call. Who reads the line is told in `reader`.

mod paths;

use super::atlas::SharedAtlas;
use super::error::{Error, seconds};
use super::inspection::LinkBoard;
use super::line::Line;
use super::news::{self, Event, News};
use super::orders::{Order, Orders};
use super::receipt::Peer;
use super::transfer::Transferring;
use crate::clock;
use crate::coordinator::{self, Dialled, Unreached};
use crate::executor::{Abort, DataPlane, LinkEvent, Seat};
use crate::health::RosterPost;
use crate::planted::{self, Place};
use crate::port::KnownSources;
use crate::presets::Warned;
use crate::recorder::{Entry, Owner, Recorder, What, key_of};
use crate::runtime;
use crate::security::TlsIdentity;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, sleep_while};
use outlast_proto::collective::{Group, OpKey};
use outlast_proto::id::PeerId;
use outlast_proto::session::{
    Action, CallError, CallId, Command, Config, OutReason, PerformResult, Session, TransferName,
};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::{EpochRecord, LossReason, Registration, Term, ToCoordinator};
use outlast_proto::wire::membership::MemberInfo;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Weak;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

/// How long dialling and the hello may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Late callers that are remembered until their calls have ended.
const CALLED_LAST_MAX: usize = 64;
/// How soon time is looked at again if looking at it panicked.
const AFTER_A_PANIC: Duration = Duration::from_millis(100);

/// What the program sees of the group; replaced only when one of its calls ends.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GroupView {
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
    /// The run's name.
    pub(super) run: String,
    /// The name of our preset.
    pub(super) preset: &'static str,
    pub(super) config: Config,
    pub(super) runtime: Handle,
    pub(super) redials: Handle,
    /// A coordinator that acknowledges nothing for this long is looked for anew.
    pub(super) silent_after: Duration,
    /// Whose knocking our port must not refuse.
    pub(super) known: Arc<KnownSources>,
    /// Where our health plane learns after whom to ask.
    pub(super) rosters: RosterPost,
    /// What is known of links.
    pub(super) atlas: SharedAtlas,
}

#[derive(Debug)]
pub(super) struct CallSlot {
    pub(super) since: Instant,
    orders: Arc<Orders>,
    abort: Option<Abort>,
}

pub(super) struct State {
    pub(super) session: Session,
    pub(super) line: Option<Arc<Line>>,
    pub(super) calls: BTreeMap<CallId, CallSlot>,
    pub(super) dials: u64,
    /// The call that connects, until a coordinator was reached.
    pub(super) connecting: Option<CallId>,
    /// Why the last attempt to reach the coordinator failed.
    pub(super) unreached: Option<Unreached>,
    /// Whether the coordinator has said anything since the last call that connects began.
    pub(super) heard: bool,
    /// The coordinator that we registered with, if it keeps its key: nobody else is taken for it (rule 39).
    pinned: Option<PeerId>,
    /// When the timekeeper looks next by itself.
    timer: Instant,
    /// The members of the last epoch that was opened.
    pub(super) roster: Vec<MemberInfo>,
    /// Since when an admitted peer is without its coordinator.
    pub(super) alone_since: Option<Instant>,
    /// For how long it was when its session ended: what its last calls are told.
    alone_at_end: Option<Duration>,
    /// Members with another preset that were warned of.
    warned: Warned,
    /// What the links of the ring reported last.
    pub(super) links: LinkBoard,
    /// Who made a call last, long after the first; the latest first.
    called_last: VecDeque<(OpKey, PeerId, Duration)>,
}

/// The control side of a communicator.
pub(super) struct Control {
    me: PeerId,
    group: Group,
    grace: Duration,
    coordinator: String,
    identity: TlsIdentity,
    runtime: Handle,
    /// Where links are tried: the threads that make links do it, not those that keep time for votes.
    redials: Handle,
    silent_after: Duration,
    known: Arc<KnownSources>,
    rosters: RosterPost,
    atlas: SharedAtlas,
    pub(super) data: Arc<DataPlane>,
    pub(super) state: Mutex<State>,
    news: News,
    recorder: Arc<Recorder>,
    pub(super) preset: &'static str,
    view: Mutex<Arc<GroupView>>,
    /// How many connections are being talked on; a goodbye waits for the last of them.
    talks: Mutex<usize>,
    hung_up: Condvar,
    /// A group's epoch has begun, or the session is over.
    epoch_opened: Condvar,
    timers: Arc<Notify>,
    this: Weak<Control>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Control {
    pub(super) fn start(
        settings: Settings,
        data: Arc<DataPlane>,
        mut links: mpsc::UnboundedReceiver<LinkEvent>,
    ) -> Arc<Self> {
        let Settings {
            coordinator,
            identity,
            registration,
            run,
            preset,
            config,
            runtime,
            redials,
            silent_after,
            known,
            rosters,
            atlas,
        } = settings;
        let (me, group, grace) = (registration.info.id, registration.group, config.verdict_grace);
        let name = registration.info.name.clone();
        let recorder = Recorder::start(Owner { role: "peer", id: Some(me), name, run });
        let session = Session::new(config, registration);
        let state = State {
            session,
            line: None,
            calls: BTreeMap::new(),
            dials: 0,
            connecting: None,
            unreached: None,
            heard: false,
            pinned: None,
            timer: clock::now(),
            roster: Vec::new(),
            alone_since: None,
            alone_at_end: None,
            warned: Warned::default(),
            links: LinkBoard::default(),
            called_last: VecDeque::new(),
        };
        let control = Arc::new_cyclic(|this| Self {
            me,
            group,
            grace,
            coordinator,
            identity,
            runtime: runtime.clone(),
            redials,
            silent_after,
            known,
            rosters,
            atlas,
            data,
            state: Mutex::new(state),
            news: News::default(),
            recorder,
            preset,
            view: Mutex::default(),
            talks: Mutex::new(0),
            hung_up: Condvar::new(),
            epoch_opened: Condvar::new(),
            timers: Arc::default(),
            this: this.clone(),
        });
        let this = Arc::downgrade(&control);
        runtime.spawn(async move {
            while let Some(event) = links.recv().await {
                let Some(control) = this.upgrade() else { return };
                runtime::guarded("a report on a link", || control.link(event));
            }
        });
        let this = Arc::downgrade(&control);
        runtime.spawn(keep_time(this));
        let companion: Weak<Self> = Arc::downgrade(&control);
        control.data.accompany(companion);
        control
    }

    pub(super) fn me(&self) -> PeerId {
        self.me
    }

    pub(super) fn is_member(&self) -> bool {
        lock(&self.state).session.is_member()
    }

    pub(super) fn verdict_grace(&self) -> Duration {
        self.grace
    }

    pub(super) fn view(&self) -> Arc<GroupView> {
        Arc::clone(&lock(&self.view))
    }

    /// Why the session is over, if it is.
    pub(super) fn out(&self) -> Option<OutReason> {
        lock(&self.state).session.out().cloned()
    }

    /// Whether a call that concerns the whole group could be begun now: asked before work that would be in vain.
    pub(super) fn may_begin_vote(&self) -> Result<(), CallError> {
        lock(&self.state).session.may_begin_vote()
    }

    /// A transfer of that name begins, and ends when what is returned is dropped.
    pub(super) fn begin_transfer(&self, name: TransferName) -> Result<Transferring<'_>, CallError> {
        let number = lock(&self.state).session.begin_transfer(name)?;
        Ok(Transferring { control: self, name, number })
    }

    /// The transfer of that name is over.
    pub(super) fn end_transfer(&self, name: TransferName) {
        lock(&self.state).session.end_transfer(name);
    }

    pub(super) fn begin_connect(
        &self,
        min_world: u32,
        deadline: Instant,
    ) -> Result<(CallId, Arc<Orders>), Error> {
        let mut state = lock(&self.state);
        if state.session.out().is_none() {
            return Err(Error::InvalidArgument("already connected".to_owned()));
        }
        (state.heard, state.alone_at_end) = (false, None);
        self.data.forget_group(self.group);
        state.unreached = None;
        let called = |id: CallId| Entry::new(What::Called, "connect").about(id.0).amount(min_world.into());
        let (id, orders) = self.begin_locked(state, called, |session, now| {
            session.handle_connect_call(now, min_world, deadline)
        });
        lock(&self.state).connecting = Some(id);
        Ok((id, orders))
    }

    /// The call that connects is over. Says why it never reached a coordinator, if so.
    pub(super) fn end_connect(&self) -> Option<Unreached> {
        let mut state = lock(&self.state);
        state.connecting = None;
        let silent = || {
            let what = match state.line {
                Some(_) => "it belongs to the run and has not answered our registration",
                None => {
                    "nothing that belongs to the run has answered there; it may be stopped, or something else"
                }
            };
            Unreached::from(format!("{}: {what}", self.coordinator))
        };
        let silent = (!state.heard).then(silent);
        state.unreached.take().or(silent)
    }

    /// Begins a call of the program; `called` says which, for the flight recorder.
    pub(super) fn begin<'a>(
        &self,
        called: impl FnOnce(CallId) -> Entry<'a>,
        call: impl FnOnce(&mut Session, Instant) -> CallId,
    ) -> (CallId, Arc<Orders>) {
        self.begin_locked(lock(&self.state), called, call)
    }

    fn begin_locked<'a>(
        &self,
        mut state: MutexGuard<'_, State>,
        called: impl FnOnce(CallId) -> Entry<'a>,
        call: impl FnOnce(&mut Session, Instant) -> CallId,
    ) -> (CallId, Arc<Orders>) {
        let orders = Arc::new(Orders::new(Seat::new(self.data.baton())));
        let since = clock::now();
        let id = call(&mut state.session, since);
        self.recorder.note(&called(id));
        state.calls.insert(id, CallSlot { since, orders: Arc::clone(&orders), abort: None });
        self.carry_out(state);
        (id, orders)
    }

    /// The executor is done with an attempt.
    pub(super) fn performed(&self, id: CallId, result: PerformResult) {
        self.recorder.note(&Entry::moved(id, &result));
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

    /// The group and its members in the order of ranks, as they are now.
    pub(super) fn present(&self) -> Result<(Group, Vec<PeerId>), Error> {
        let state = lock(&self.state);
        let Some(record) = state.session.record() else {
            let reason = state.session.out().cloned().unwrap_or(OutReason::NotConnected);
            return Err(CallError::Out(reason).into());
        };
        Ok((record.group, record.roster.iter().map(|info| info.id).collect()))
    }

    /// The ring of that epoch, if it is the present one.
    pub(super) fn ring(&self, epoch: u64) -> Vec<PeerId> {
        let state = lock(&self.state);
        let record = state.session.record().filter(|record| record.epoch == epoch);
        let place = |record: &EpochRecord| {
            record
                .ring
                .iter()
                .filter_map(|rank| record.roster.get(*rank as usize))
                .map(|info| info.id)
                .collect()
        };
        record.map_or_else(Vec::new, place)
    }

    /// Where a member can be reached.
    pub(super) fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        let state = lock(&self.state);
        state.session.record()?.roster.iter().find(|info| info.id == peer).map(|info| info.address)
    }

    /// Whether all know that no link can be made between the two, in one direction at least.
    pub(super) fn is_broken(&self, one: PeerId, other: PeerId) -> bool {
        let state = lock(&self.state);
        let is_theirs = |link: (PeerId, PeerId)| link == (one, other) || link == (other, one);
        state.session.record().is_some_and(|record| record.broken_links().any(is_theirs))
    }

    /// What this peer says, hears and does.
    pub(super) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// What happens to the group.
    pub(super) fn news(&self) -> &News {
        &self.news
    }

    /// For how long an admitted peer has been without its coordinator, or was when its session ended.
    pub(super) fn alone_for(&self) -> Option<Duration> {
        let state = lock(&self.state);
        let now = clock::now();
        state.alone_since.map(|since| now.since(since)).or(state.alone_at_end)
    }

    /// Who made that call last, if it was long after the first.
    pub(super) fn called_last(&self, key: &OpKey) -> Option<(PeerId, Duration)> {
        let state = lock(&self.state);
        let told = state.called_last.iter().find(|(told, ..)| told == key);
        told.map(|(_, peer, behind)| (*peer, *behind))
    }

    /// A member's name and id, for people.
    pub(super) fn name_of(&self, peer: PeerId) -> String {
        let view = self.view();
        let name = view.peers.iter().find(|known| known.id == peer).map(|known| known.name.clone());
        let name = name.or_else(|| self.news.name_of(peer));
        name.map_or_else(|| peer.short(), |name| format!("{name} {}", peer.short()))
    }

    /// The coordinator's address, as it was given.
    pub(super) fn coordinator(&self) -> &str {
        &self.coordinator
    }

    /// The group that we are in, or want to be in.
    pub(super) fn group(&self) -> Group {
        self.group
    }

    /// An error of a call with what only this side knows: where the coordinator was looked for, and for how long.
    pub(super) fn explained(&self, error: Error) -> Error {
        if error.cause() != Some(&CallError::Out(OutReason::CoordinatorLost)) {
            return error;
        }
        let state = lock(&self.state);
        let last = state.unreached.as_ref().map(|unreached| format!("; last: {unreached}"));
        let (address, limit) = (&self.coordinator, seconds(state.session.config().control_lost_after));
        let last = last.unwrap_or_default();
        let text = format!("nothing answered at {address} for {limit} (control_lost_after){last}");
        drop(state);
        error.knowing(text)
    }

    /// Why a peer went that was a member not long ago.
    pub(super) fn departure(&self, peer: PeerId) -> Option<LossReason> {
        lock(&self.state).session.departure(peer)
    }

    /// Whether a peer that a link was lost to is no member soon. If it is alive it answers within the time after
    /// which a link counts as silent, and nothing is waited for beyond that or beyond `deadline`.
    pub(super) fn is_gone_soon(&self, peer: PeerId, deadline: std::time::Instant) -> bool {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let is_here =
            |state: &mut State| state.session.record().is_some_and(|record| record.rank_of(peer).is_some());
        let state = lock(&self.state);
        let mut state = sleep_while(&self.epoch_opened, state, left.min(self.silent_after), is_here);
        !is_here(&mut state)
    }

    /// The program gives a call up; its end comes as an order.
    pub(super) fn cancel(&self, id: CallId) {
        self.tell(|session, now| session.handle_cancel(now, id));
    }

    /// Says something else in the ballot that a call waits in.
    pub(super) fn change_vote(&self, id: CallId, wish: Vec<u8>) {
        self.tell(|session, _| session.handle_ballot_change(id, wish));
    }

    /// Lets the session look at the clock now.
    pub(super) fn nudge(&self) {
        self.tell(Session::handle_timeout);
    }

    /// Ends the session, and waits up to `timeout` until the goodbye is on its way: a process that exits right
    /// after it must not look like one that died.
    pub(super) fn leave(&self, timeout: Duration) {
        let has_line = lock(&self.state).line.is_some();
        self.tell(Session::handle_leave);
        if has_line {
            let talks = lock(&self.talks);
            drop(sleep_while(&self.hung_up, talks, timeout, |talks| *talks > 0));
        }
    }

    /// Hands something to the session and carries out what comes back.
    pub(super) fn tell(&self, what: impl FnOnce(&mut Session, Instant)) {
        let mut state = lock(&self.state);
        what(&mut state.session, clock::now());
        self.carry_out(state);
    }

    pub(super) fn carry_out(&self, mut state: MutexGuard<'_, State>) {
        let (mut urgent, mut events, mut warnings) = (None, Vec::new(), Vec::new());
        while let Some(action) = state.session.poll_action() {
            match action {
                Action::Dial => {
                    state.dials += 1;
                    let dial = state.dials;
                    self.recorder.note(&Entry::new(What::Line, "dialling").amount(dial));
                    if let Some(this) = self.this.upgrade() {
                        self.runtime.spawn(this.converse(dial));
                    }
                }
                Action::HangUp => {
                    if let Some(line) = state.line.take() {
                        line.hang_up();
                    }
                    if state.session.out().is_some() {
                        // Transfers have no session to stop them.
                        state.roster.clear();
                        self.data.leave_group(self.group);
                        self.epoch_opened.notify_all();
                    }
                }
                Action::Send(message) => {
                    let Some(line) = &state.line else { continue };
                    self.recorder.note(&Entry::to_coordinator(What::Sent, &message));
                    let fits = line.put(&message);
                    // That a call has begun is news which may go with the next message; one without time left
                    // is a vote that nothing follows.
                    if !matches!(message, ToCoordinator::Initiate { timeout_ms: 1.., .. }) {
                        urgent = Some(Arc::clone(line));
                    }
                    if !fits {
                        line.hang_up();
                        state.line = None;
                    }
                }
                Action::OpenEpoch(record) => {
                    events.extend(news::changes(&state.roster, &record));
                    state.roster.clone_from(&record.roster);
                    state.links.retain(|peer| record.rank_of(peer).is_some());
                    for info in &record.roster {
                        self.recorder.name(key_of(info.id), &info.name);
                        warnings.extend(state.warned.of(info, self.preset, "this peer"));
                    }
                    self.open_epoch(&mut state, &record);
                }
                Action::Prepare(record, number) => self.prepare(&record, number),
                Action::Redial(peer, address) => self.redial(peer, address),
                Action::Relink(peer) => self.data.want_link(self.group, peer),
                Action::CalledLast(key, peer, behind) => {
                    state.called_last.truncate(CALLED_LAST_MAX - 1);
                    state.called_last.push_front((key, peer, behind));
                }
                Action::Slowed(link) => events.extend(news::slowed(&state.roster, link)),
                Action::Call(id, command) => self.order(&mut state, id, command),
            }
        }
        let is_alone = state.session.record().is_some() && !state.session.is_connected();
        match (is_alone, state.alone_since) {
            (true, None) => {
                state.alone_since = Some(clock::now());
                events.push(Event::CoordinatorLost);
            }
            (false, Some(since)) => {
                state.alone_since = None;
                state.alone_at_end = state.session.out().map(|_| clock::now().since(since));
                // Whoever is out is told so by its call.
                events.extend(state.session.record().map(|_| Event::CoordinatorBack));
            }
            _ => {}
        }
        let sooner = state.session.poll_timeout().is_some_and(|at| at < state.timer);
        drop(state);
        if let Some(line) = urgent {
            line.flush();
        }
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        self.news.tell(events);
        if sooner {
            self.timers.notify_one();
        }
    }

    fn order(&self, state: &mut State, id: CallId, command: Command) {
        self.recorder.note(&Entry::order(id, &command));
        let Some(slot) = state.calls.get_mut(&id) else { return };
        let order = match command {
            Command::Perform(attempt) => {
                let abort = Abort::new();
                slot.abort = Some(abort.clone());
                Order::Perform(attempt, abort)
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
        slot.orders.put(order);
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
        self.known.expect(record.roster.iter().map(|member| member.address.ip()));
        self.rosters.tell(&record.roster);
        self.data.open_epoch(record.group, record.epoch, ring);
        self.epoch_opened.notify_all();
    }

    /// One connection to the coordinator, from dialling to its end. However it ends, the session hears below that it is
    /// disconnected: it would never dial again otherwise (rule 40).
    async fn converse(self: Arc<Self>, dial: u64) {
        let opening = async {
            planted::step(|place| matches!(place, Place::Dial(address) if *address == self.coordinator));
            let dialled = self.open().await?;
            let line = Line::new(dialled.frames, dialled.version, self.silent_after);
            let line = line.map_err(|error| Unreached::from(error.to_string()))?;
            let reign = dialled.standing.map(|standing| standing.term);
            Ok((line, dialled.is_kept.then_some(dialled.coordinator), reign))
        };
        let opened = runtime::to_its_end("dialling the coordinator", opening).await;
        let line = opened.unwrap_or_else(|| {
            let address = &self.coordinator;
            Err(Unreached::from(format!("{address}: dialling it panicked, which is a bug in outlast")))
        });
        match line {
            Ok((line, pin, reign)) => {
                let pinned = {
                    let mut state = lock(&self.state);
                    state.pinned = state.pinned.or(pin);
                    state.pinned
                };
                *lock(&self.talks) += 1;
                let line = Arc::new(line);
                let talking = self.talk_until_superseded(dial, &line, pinned, reign);
                if runtime::to_its_end("the control connection", talking).await.is_none() {
                    line.hang_up();
                    line.close();
                }
                *lock(&self.talks) -= 1;
                self.hung_up.notify_all();
            }
            Err(error) => {
                tracing::debug!(coordinator = %self.coordinator, %error, "no coordinator");
                self.recorder.note(&Entry::new(What::Line, "unreached").saying(error.to_string()));
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
            self.recorder.note(&Entry::new(What::Line, "gone").amount(dial));
            state.line = None;
            state.session.handle_disconnected(clock::now());
            self.carry_out(state);
        }
    }

    /// Talks on a line until it is over, or until another coordinator reigns under a higher term: one that is stopped does
    /// not hang up (rule 19).
    async fn talk_until_superseded(
        &self,
        dial: u64,
        line: &Arc<Line>,
        pinned: Option<PeerId>,
        reign: Option<Term>,
    ) {
        let times = (DIAL_TIMEOUT, self.silent_after);
        let watching = coordinator::superseded(&self.coordinator, &self.identity, pinned, reign, times);
        let talking = self.talk(dial, Arc::clone(line));
        tokio::pin!(talking);
        tokio::select! {
            () = &mut talking => {}
            () = Box::pin(watching) => {
                tracing::info!(coordinator = %self.coordinator, "another coordinator reigns: moving there");
                line.close();
                talking.await;
            }
        }
    }

    async fn open(&self) -> Result<Dialled, Unreached> {
        let pinned = lock(&self.state).pinned;
        coordinator::dial(&self.coordinator, &self.identity, pinned, DIAL_TIMEOUT, self.silent_after).await
    }

    /// Lets the session look at the clock if it asked for that, and says how soon to do so again: at least once a
    /// second, so that a dropped communicator is noticed.
    fn keep_time(&self) -> Duration {
        let mut state = lock(&self.state);
        let now = clock::now();
        if state.session.poll_timeout().is_some_and(|at| at <= now) {
            state.session.handle_timeout(now);
        }
        let latest = now + Duration::from_secs(1);
        state.timer = state.session.poll_timeout().map_or(latest, |at| at.min(latest));
        let wait = state.timer.since(now).max(Duration::from_millis(1));
        self.carry_out(state);
        wait
    }

    /// Asks the coordinator how the run stands, over a connection of its own.
    pub(super) fn status(&self, timeout: Duration) -> Result<String, Error> {
        let asking = async {
            let mut dialled = self.open().await.map_err(|error| error.to_string())?;
            coordinator::ask(&mut dialled.frames).await
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(timeout, asking).await });
        answer.map_err(|_| Error::Silent(format!("within {timeout:?}")))?.map_err(Error::Silent)
    }
}

/// Wakes the session when it asked for it.
async fn keep_time(this: Weak<Control>) {
    loop {
        let Some(control) = this.upgrade() else { return };
        // Without it no deadline would be kept any more (rule 40).
        let wait = runtime::guarded("keeping time", || control.keep_time()).unwrap_or(AFTER_A_PANIC);
        let timers = Arc::clone(&control.timers);
        // Nothing is held while it waits: what a communicator has is given back when it is dropped.
        drop(control);
        tokio::select! {
            () = timers.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn view_of(record: &EpochRecord, me: PeerId, session: &Session) -> GroupView {
    GroupView {
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
