//! The registrars of a coordinator's runs: who is in each run's store.
//!
//! One task owns them, on threads of the store's own: neither votes nor handshakes hold up a view, nor the other way
//! round. Each member has a stream (ALPN `outlast-store-views/1`); what is said on it is put into the task's inbox, what
//! a registrar says into bounded queues. Whoever does not read loses its stream, and comes back.
//!
//! Among several coordinators the one decides that reigns (rule 19). Whether this one does is a question to the clock,
//! asked before anything is done. Every reign begins with registrars that know nothing and listen, as after a restart
//! (decision 39), and their orders carry its term: members obey no lower one than they have obeyed. A reign that is over
//! leaves nothing: its streams are closed, and members find whoever reigns (decision 76).
//!
//! A registrar that panics costs its own run a reign of that kind, and the others nothing (rule 40): it is dropped, its
//! streams are closed, and the next one listens. One that breaks again and again is given up (see `strikes`).

use super::knock::knock;
use super::post::Post;
use super::strikes::Strikes;
use crate::planted::{self, Place};
use crate::port::{self, AuthenticatedStream};
use crate::sync::{Arc, Mutex, lock};
use crate::{clock, runtime};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::limits::RUNS_MAX;
use outlast_proto::membership::ConnectOutcome;
use outlast_proto::store::registrar::{Command, Knocked, StoreStatus, StreamId};
use outlast_proto::store::{Config, Registrar};
use outlast_proto::time::Instant;
use outlast_proto::wire::control::Term;
use outlast_proto::wire::store::MemberId;
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::{decode, encode};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// How long the hello may take, and one write.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Letters that wait for the task, and words that wait for one member.
const INBOX_MAX: usize = 16_384;
const QUEUE_MAX: usize = 4_096;

static NEXT: AtomicU64 = AtomicU64::new(1);

enum Letter {
    Opened(RunId, StreamId, mpsc::Sender<FromRegistrar>),
    Said(RunId, StreamId, PeerId, Box<ToRegistrar>),
    Closed(RunId, StreamId),
    Knocked(RunId, MemberId, Knocked),
}

/// How the stores of all runs stand.
pub(crate) type Standings = Arc<Mutex<BTreeMap<RunId, StoreStatus>>>;

/// See the module's essay. Dropping it ends the task, which closes every stream.
#[derive(Clone)]
pub(crate) struct Registry {
    inbox: mpsc::Sender<Letter>,
    runtime: Handle,
    post: Post,
}

impl Registry {
    /// For a store without a coordinator, whose first view needs that many `founders`.
    pub(crate) fn alone(runtime: &Handle, config: Config, founders: usize) -> Self {
        Self::start(runtime, config, None, founders, Post::default()).0
    }

    /// Starts the task. Members of a coordinator that was here before may come back until `fresh_after`.
    /// A first view needs that many `founders`. What comes back last ends when the task has.
    pub(super) fn start(
        runtime: &Handle,
        config: Config,
        fresh_after: Option<Instant>,
        founders: usize,
        post: Post,
    ) -> (Self, Standings, oneshot::Receiver<()>) {
        let (inbox, letters) = mpsc::channel(INBOX_MAX);
        let standings = Standings::default();
        let registrars = Registrars {
            config,
            fresh_after,
            founders,
            runs: BTreeMap::new(),
            streams: BTreeMap::new(),
            strikes: Strikes::default(),
            inbox: inbox.downgrade(),
            standings: Arc::clone(&standings),
            reign: post.reign(),
            post: post.clone(),
        };
        let (lives, ended) = oneshot::channel();
        runtime.spawn(async move {
            runtime::to_its_end("the registrars of the store", registrars.run(letters)).await;
            drop(lives);
        });
        (Self { inbox, runtime: runtime.clone(), post }, standings, ended)
    }

    /// Takes over a stream that a member has opened.
    pub(crate) fn serve(&self, stream: AuthenticatedStream, me: PeerId, key_is_kept: bool) {
        // Weak, so that the task ends with the coordinator however many streams are open.
        let (inbox, post) = (self.inbox.downgrade(), self.post.clone());
        self.runtime.spawn(async move {
            let (run, standing) = (stream.run.clone(), post.standing());
            let greeting = port::greet_as(stream, me, key_is_kept, standing.clone(), HELLO_TIMEOUT);
            let mut greeted = match greeting.await {
                Ok(greeted) => greeted,
                Err(error) => return tracing::debug!(%error, "no hello on a stream for views"),
            };
            if let Some(standing) = standing.filter(|standing| !standing.leads) {
                return post.hold(&mut greeted.frames, &standing, None).await;
            }
            let (id, peer) = (StreamId(NEXT.fetch_add(1, Ordering::Relaxed)), greeted.peer);
            let (queue, mut outbound) = mpsc::channel(QUEUE_MAX);
            if !put(&inbox, Letter::Opened(run.clone(), id, queue)).await {
                return;
            }
            let carrying = carry(&mut greeted.frames, &mut outbound, &inbox, (&run, id, peer));
            runtime::to_its_end("a stream for views", carrying).await;
            put(&inbox, Letter::Closed(run, id)).await;
        });
    }
}

/// Leaves a letter for the task. False if it is gone.
async fn put(inbox: &mpsc::WeakSender<Letter>, letter: Letter) -> bool {
    match inbox.upgrade() {
        Some(inbox) => inbox.send(letter).await.is_ok(),
        None => false,
    }
}

async fn carry(
    frames: &mut super::ControlFrames,
    outbound: &mut mpsc::Receiver<FromRegistrar>,
    inbox: &mpsc::WeakSender<Letter>,
    (run, id, peer): (&RunId, StreamId, PeerId),
) {
    loop {
        tokio::select! {
            biased;
            frame = frames.next() => {
                let Ok(Some(bytes)) = frame else { break };
                let Ok(message) = decode::<ToRegistrar>(&bytes) else { break };
                let letter = Letter::Said(run.clone(), id, peer, Box::new(message));
                if !put(inbox, letter).await {
                    break;
                }
            }
            order = outbound.recv() => {
                let Some(order) = order else { break };
                let sent = tokio::time::timeout(WRITE_TIMEOUT, frames.send(&encode(&order))).await;
                if !matches!(sent, Ok(Ok(()))) {
                    break;
                }
            }
        }
    }
    let _ = tokio::time::timeout(Duration::from_secs(1), frames.finish()).await;
}

/// What the task owns: the registrar of every run, and the stream of every member.
struct Registrars {
    config: Config,
    fresh_after: Option<Instant>,
    founders: usize,
    runs: BTreeMap<RunId, Registrar>,
    streams: BTreeMap<StreamId, (RunId, mpsc::Sender<FromRegistrar>)>,
    /// Registrars that broke.
    strikes: Strikes,
    inbox: mpsc::WeakSender<Letter>,
    standings: Standings,
    post: Post,
    /// The term under which this coordinator decides; none while it may not.
    reign: Option<Term>,
}

impl Registrars {
    async fn run(mut self, mut letters: mpsc::Receiver<Letter>) {
        loop {
            let due = self.runs.values().filter_map(Registrar::poll_timeout).min();
            let left =
                due.map_or(Duration::from_secs(1), |due| due.since(clock::now()).min(Duration::from_secs(1)));
            tokio::select! {
                biased;
                letter = letters.recv() => {
                    let Some(letter) = letter else { return };
                    self.handle(letter);
                    // What came is taken before timers are looked at.
                    while let Ok(letter) = letters.try_recv() {
                        self.handle(letter);
                    }
                }
                () = tokio::time::sleep(left) => {}
            }
            self.look_who_reigns();
            let now = clock::now();
            let runs: Vec<_> = self.runs.keys().cloned().collect();
            for run in runs {
                self.work_for(&run, |all| {
                    if let Some(registrar) = all.runs.get_mut(&run)
                        && registrar.poll_timeout().is_some_and(|due| due <= now)
                    {
                        registrar.handle_timeout(now);
                    }
                });
            }
        }
    }

    /// Does something for one run, and what follows from it. If that panics, the run pays for it.
    fn work_for(&mut self, run: &RunId, work: impl FnOnce(&mut Self)) {
        let done = runtime::guarded("what decides on a store's views", || {
            planted::step(|place| matches!(place, Place::Registrar(planted) if planted == run));
            work(self);
            self.carry_out(run);
        });
        if done.is_none() {
            let is_given_up = self.strikes.strike(clock::now(), run);
            let fate = if is_given_up { "too often: it is given up" } else { "its members rebuild it" };
            tracing::error!(%run, "what decides on the views of this run's store has panicked; {fate}");
            // Every stream is closed, because its queue is.
            self.streams.retain(|_, (of, _)| of != run);
            self.runs.remove(run);
            lock(&self.standings).remove(run);
        }
    }

    /// The time in which members of before are listened to.
    fn grace(&self) -> Duration {
        self.config.control_grace.max(self.config.view_lease)
    }

    /// Nothing of a reign is of use in another one, or when there is none.
    fn look_who_reigns(&mut self) {
        let reign = self.post.reign();
        if reign == self.reign {
            return;
        }
        self.reign = reign;
        self.streams.clear();
        self.runs.clear();
        lock(&self.standings).clear();
        self.fresh_after = reign.map(|_| clock::now() + self.grace());
    }

    fn handle(&mut self, letter: Letter) {
        self.look_who_reigns();
        let Some(term) = self.reign else {
            // Whoever came is let go, because its queue is dropped; it finds whoever reigns.
            return;
        };
        let now = clock::now();
        match letter {
            Letter::Opened(run, id, stream) => {
                // Who comes to a store that is given up finds its stream closed.
                if self.strikes.given_up_for(now, &run).is_none() {
                    self.streams.insert(id, (run, stream));
                }
            }
            // Words on a stream of an earlier reign, or of a registrar that broke.
            Letter::Said(_, id, ..) if !self.streams.contains_key(&id) => {}
            Letter::Said(run, id, peer, message) => self.work_for(&run, |all| {
                all.registrar(now, &run, term).handle_message(now, id, peer, *message);
            }),
            Letter::Closed(run, id) => {
                self.streams.remove(&id);
                self.work_for(&run, |all| {
                    if let Some(registrar) = all.runs.get_mut(&run) {
                        registrar.handle_closed(now, id);
                    }
                });
            }
            Letter::Knocked(run, member, knocked) => self.work_for(&run, |all| {
                if let Some(registrar) = all.runs.get_mut(&run) {
                    registrar.handle_knock(now, member, knocked);
                }
            }),
        }
    }

    /// What decides on the views of that run's store; made if it is not there.
    fn registrar(&mut self, now: Instant, run: &RunId, term: Term) -> &mut Registrar {
        let struck = self.strikes.last(now, run).map(|last| last + self.grace());
        let (config, fresh_after, founders) = (&self.config, self.fresh_after.max(struck), self.founders);
        self.runs.entry(run.clone()).or_insert_with(|| {
            let mut registrar = Registrar::new(config.clone(), founder());
            registrar.found_with(founders);
            registrar.reign_under(term);
            if let Some(until) = fresh_after.filter(|until| now < *until) {
                registrar.listen(until);
            }
            registrar
        })
    }

    fn carry_out(&mut self, run: &RunId) {
        let Some(registrar) = self.runs.get_mut(run) else { return };
        while let Some(command) = registrar.poll_command() {
            match command {
                Command::Send(id, order) => {
                    if self.streams.get(&id).is_some_and(|(_, stream)| stream.try_send(order).is_err()) {
                        self.streams.remove(&id);
                    }
                }
                Command::Close(id) => drop(self.streams.remove(&id)),
                Command::Knock(member, address, timeout) => {
                    let Some(inbox) = self.inbox.upgrade() else { continue };
                    let run = run.clone();
                    tokio::spawn(async move {
                        let knocked = knocked(address, timeout).await;
                        let _ = inbox.send(Letter::Knocked(run, member, knocked)).await;
                    });
                }
                // The coordinator decides alone: what it says is decided.
                Command::Decide(view) => registrar.handle_decided(clock::now(), view.epoch),
                Command::Note(text) => tracing::info!(%run, "{text}"),
            }
        }
        let status = registrar.status(clock::now());
        let mut standings = lock(&self.standings);
        if let Some(status) = status {
            standings.insert(run.clone(), status);
        } else {
            standings.remove(run);
            // What is left is how stores have ended, for members that come back late.
            if registrar.is_forgettable() || self.runs.len() > RUNS_MAX {
                self.runs.remove(run);
            }
        }
    }
}

/// How the kernel there answers a connect.
pub(crate) async fn knocked(address: SocketAddr, timeout: Duration) -> Knocked {
    match knock(address, timeout).await {
        ConnectOutcome::Accepted => Knocked::Accepted,
        ConnectOutcome::Refused => Knocked::Refused,
        _ => Knocked::Silent,
    }
}

/// A name for a store. It only has to differ from others.
fn founder() -> u64 {
    let key = *crate::security::ProcessKey::generate().peer().as_bytes();
    u64::from_le_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]) >> 4
}
