//! The control connection and the session behind it.
//!
//! The session is a machine behind a short lock; whoever has news for it (a calling thread, the connection's
//! task, a link, a timer) hands them in and carries out what comes back. Nothing is waited for under the lock:
//! messages are put on the [`Line`], orders into the [`Orders`] of their call. Who reads the line is told in `reader`.
//!
//! Here is what is handed in, and the keeping of time. `acting` is what comes back, `conversation` one connection to the
//! coordinator, `paths` what links report, `group` what is known of the group.

mod acting;
mod conversation;
mod group;
mod paths;

pub use group::SeenGroup;

use super::atlas::SharedAtlas;
use super::error::Error;
use super::inspection::LinkBoard;
use super::line::Line;
use super::news::News;
use super::orders::Orders;
use super::transfer::Transferring;
use crate::coordinator::Unreached;
use crate::executor::{Abort, DataPlane, LinkEvent, Seat};
use crate::health::RosterPost;
use crate::port::KnownSources;
use crate::presets::Warned;
use crate::recorder::{Entry, Owner, Recorder, What};
use crate::security::TlsIdentity;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, sleep_while};
use crate::{clock, runtime};
use outlast_proto::collective::{Group, OpKey};
use outlast_proto::id::PeerId;
use outlast_proto::session::{CallError, CallId, Config, OutReason, PerformResult, Session, TransferName};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::control::Registration;
use outlast_proto::wire::membership::MemberInfo;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

/// How soon time is looked at again if looking at it panicked.
const AFTER_A_PANIC: Duration = Duration::from_millis(100);

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

/// A call of the program that has not returned.
#[derive(Debug)]
pub(super) struct OpenCall {
    pub(super) since: Instant,
    orders: Arc<Orders>,
    abort: Option<Abort>,
}

pub(super) struct State {
    pub(super) session: Session,
    pub(super) line: Option<Arc<Line>>,
    pub(super) calls: BTreeMap<CallId, OpenCall>,
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
    seen: Mutex<Arc<SeenGroup>>,
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
            seen: Mutex::default(),
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
        state.calls.insert(id, OpenCall { since, orders: Arc::clone(&orders), abort: None });
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

    /// What this peer says, hears and does.
    pub(super) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// What happens to the group.
    pub(super) fn news(&self) -> &News {
        &self.news
    }

    /// The coordinator's address, as it was given.
    pub(super) fn coordinator(&self) -> &str {
        &self.coordinator
    }

    /// The group that we are in, or want to be in.
    pub(super) fn group(&self) -> Group {
        self.group
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
    pub(super) fn leave(&self, timeout: Duration, for_good: bool) {
        let has_line = lock(&self.state).line.is_some();
        self.tell(|session, now| session.handle_leave(now, for_good));
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
