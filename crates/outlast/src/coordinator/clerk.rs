//! The clerk: one task that owns the machines of all runs.
//!
//! It takes letters, lets time pass, and looks at everybody's health, in turn, and never waits for anybody. What it does is
//! parted by what it is about:
//!
//! - `served`: one run, its machine and what that needs of the world; `health`: our own member of its health group.
//! - `reception`: who comes, who is let in, who is told to go.
//! - `errands`: what a machine wants done.
//! - `telling`: the status, and what the log says.
//! - `reigning`: what changes when this is one of several coordinators.
//!
//! A machine asserts what it takes for granted, and may be wrong. Runs share this task and nothing else, so whatever is done
//! for one run is guarded (rule 40): a machine that panics is dropped alone, and its lines are closed, so that its peers come
//! back and rebuild it as after a restart of the coordinator (rule 17). Letters that were meant for it are not shown to its
//! successor. One that breaks again and again is given up (see `strikes`). A panic anywhere else ends the clerk, and
//! with it the coordinator: see `super::Coordinator::check`.

mod errands;
mod health;
mod reception;
mod reigning;
mod served;
mod telling;

pub(super) use health::HealthSettings;
pub(super) use reigning::News;

use super::backend::Book;
use super::post::Post;
use super::quotas::Customers;
use super::registry::Standings;
use super::solver::Solver;
use super::strikes::Strikes;
use crate::planted::{self, Place};
use crate::port::PortWatch;
use crate::recorder::{Entry, Owner, Recorder, What};
use crate::security::Credentials;
use crate::{clock, runtime};
use health::HealthStarter;
use outlast_proto::coordinator::{Config, ConnectionId, SolveToken};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::membership::{ConnectOutcome, ConnectToken};
use outlast_proto::time::Instant;
use outlast_proto::topology::Answer;
use outlast_proto::wire::InvalidMessage;
use outlast_proto::wire::control::{ToCoordinator, ToPeer};
use served::ServedRun;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use telling::{LogPace, Refusals};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// How often the health plane's lists are looked at.
const HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// Letters that are taken before timers and health are looked at.
const LETTERS_MAX: usize = 256;
/// How long a run that nobody is in is remembered.
const EMPTY_RUN_LIFE: Duration = Duration::from_mins(10);

/// What is said to whoever is at the other end of a line waits there. Dropping it closes the line.
type Queue = mpsc::Sender<ToPeer>;

/// What the clerk is told.
#[derive(Debug)]
pub(super) enum Inbox {
    Opened {
        run: RunId,
        id: ConnectionId,
        peer: PeerId,
        queue: Queue,
    },
    Message {
        run: RunId,
        id: ConnectionId,
        peer: PeerId,
        /// Or why it is none.
        message: Result<Box<ToCoordinator>, InvalidMessage>,
        /// The line's share of the inbox, given back once this is handled.
        share: OwnedSemaphorePermit,
    },
    Closed {
        run: RunId,
        id: ConnectionId,
    },
    Connected {
        run: RunId,
        token: Asked<ConnectToken>,
        outcome: ConnectOutcome,
    },
    Status(RunId, SyncSender<Option<String>>),
    /// The solver is done with a question.
    Solved {
        run: RunId,
        token: Asked<SolveToken>,
        answer: Answer,
    },
}

/// A question, and the number of the machine that asked it. Another machine of the same run counts its questions from the
/// beginning, and must not take the answer for one of its own.
pub(super) type Asked<T> = (u64, T);

/// Why the clerk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It was told to.
    Told,
    /// There is no news of the election any more: whoever takes part in it for us is gone.
    ElectionGone,
    /// What decides on the views of stores is gone.
    RegistrarsGone,
}

pub(super) struct Clerk {
    config: Config,
    credentials: Credentials,
    address: SocketAddr,
    /// Until then somebody may come back to a coordinator that was here before us.
    fresh_after: Option<Instant>,
    /// Weak, so that the clerk does not keep itself at work.
    inbox: mpsc::WeakSender<Inbox>,
    port: PortWatch,
    stores: Standings,
    runs: BTreeMap<RunId, ServedRun>,
    health: HealthStarter,
    /// Who is at the other end of each line.
    guests: BTreeMap<ConnectionId, PeerId>,
    /// Lines for runs in which nobody has registered.
    strangers: BTreeMap<ConnectionId, Queue>,
    customers: Customers,
    refusals: Refusals,
    log_pace: LogPace,
    /// Machines that broke.
    strikes: Strikes,
    /// Lines of machines that broke, until they are closed: what is still said there was meant for those.
    cut: BTreeSet<ConnectionId>,
    solver: Solver,
    /// Where facts are written down before anybody hears of them.
    book: Option<Book>,
    recorder: Arc<Recorder>,
    /// Runs that were ever served.
    served: u64,
    /// Whether anything may be decided.
    post: Post,
    news: Option<mpsc::UnboundedReceiver<News>>,
    /// Whether anything was decided since we began to stand by.
    reigns: bool,
}

impl Clerk {
    pub(super) fn new(
        config: Config,
        health: HealthSettings,
        credentials: Credentials,
        address: SocketAddr,
        fresh_after: Option<Instant>,
        inbox: mpsc::WeakSender<Inbox>,
        (port, stores): (PortWatch, Standings),
    ) -> Self {
        let solver = Solver::new(inbox.clone(), config.ring_steps.0);
        let owner = Owner {
            role: "coordinator",
            id: None,
            name: format!("coordinator {address}"),
            run: String::new(),
        };
        let recorder = Recorder::start(owner);
        Self {
            health: HealthStarter::new(health, credentials.clone(), address, Arc::clone(&recorder)),
            config,
            credentials,
            address,
            fresh_after,
            inbox,
            port,
            stores,
            runs: BTreeMap::new(),
            guests: BTreeMap::new(),
            strangers: BTreeMap::new(),
            customers: Customers::default(),
            refusals: Refusals::default(),
            log_pace: LogPace::default(),
            strikes: Strikes::default(),
            cut: BTreeSet::new(),
            solver,
            book: None,
            recorder,
            served: 0,
            post: Post::default(),
            news: None,
            reigns: true,
        }
    }

    /// Writes facts down there from now on.
    pub(super) fn keep_in(&mut self, book: Book) {
        self.book = Some(book);
    }

    /// Works until the service is dropped, or cannot be without a task that is gone; then every line is closed, because its
    /// queue is.
    ///
    /// Each turn takes a bounded number of letters and then looks at timers and health, whoever writes how much.
    pub(super) async fn run(
        mut self,
        mut letters: mpsc::Receiver<Inbox>,
        mut stop: oneshot::Receiver<()>,
        mut registrars: oneshot::Receiver<()>,
    ) -> Ended {
        let mut look_at = clock::now();
        let mut news = self.news.take();
        loop {
            let next = self.runs.values().filter_map(|served| served.machine().poll_timeout()).min();
            let wake = next.map_or(look_at, |next| next.min(look_at));
            tokio::select! {
                biased;
                _ = &mut stop => return Ended::Told,
                _ = &mut registrars => return Ended::RegistrarsGone,
                told = reigning::next_of(&mut news) => match told {
                    Some(told) => self.hear(told),
                    None => return Ended::ElectionGone,
                },
                letter = letters.recv() => {
                    let Some(letter) = letter else { return Ended::Told };
                    self.handle(letter);
                }
                // Whoever was woken together with us reads its line first.
                () = tokio::time::sleep(wake.since(clock::now())) => tokio::task::yield_now().await,
            }
            // Take what waits already before looking at timers: votes beat deadlines.
            for _ in 1..LETTERS_MAX {
                match letters.try_recv() {
                    Ok(letter) => self.handle(letter),
                    Err(_) => break,
                }
            }
            self.tick();
            if look_at <= clock::now() {
                planted::step(
                    |place| matches!(place, Place::Clerk(at) if at.is_none_or(|at| at == self.address)),
                );
                self.look_at_health();
                look_at = clock::now() + HEALTH_INTERVAL;
            }
        }
    }

    fn tick(&mut self) {
        if !self.may_decide() {
            return;
        }
        let now = clock::now();
        let due: Vec<_> = self
            .runs
            .iter()
            .filter(|(_, served)| served.machine().poll_timeout().is_some_and(|at| at <= now))
            .map(|(run, _)| run.clone())
            .collect();
        for run in due {
            self.work_for(&run, None, |clerk| {
                if let Some(served) = clerk.runs.get_mut(&run) {
                    // Who answered a moment ago must not be evicted for silence in this one.
                    served.pass_on_health(now);
                    served.machine_mut().handle_timeout(now);
                }
                clerk.carry_out(&run);
            });
        }
    }

    /// Does something for one run, on behalf of that line if there is one. If it panics, the run pays for it.
    fn work_for(&mut self, run: &RunId, line: Option<ConnectionId>, work: impl FnOnce(&mut Self)) {
        let done = runtime::guarded("what decides for a run", || {
            planted::step(|place| matches!(place, Place::Machine(planted) if planted == run));
            work(self);
        });
        if done.is_none() {
            self.strike(run, line);
        }
    }

    /// What decides for a run has panicked. Nothing of it is trusted any more: it is dropped with its lines, and its peers come
    /// back to a coordinator that knows nothing of them.
    fn strike(&mut self, run: &RunId, line: Option<ConnectionId>) {
        let is_given_up = self.strikes.strike(clock::now(), run);
        let fate = if is_given_up { "too often: it is given up" } else { "its peers rebuild it" };
        tracing::error!(%run, "what decides for this run has panicked; {fate}");
        // Whoever said it may not have had a place in the run yet.
        if let Some(id) = line.filter(|id| self.guests.contains_key(id)) {
            self.strangers.remove(&id);
            self.cut.insert(id);
        }
        let Some(mut served) = self.runs.remove(run) else { return };
        self.solver.forget(run, served.number());
        let panicked = Entry::new(What::Decided, "panicked").about(served.number());
        self.recorder.note(&panicked.saying(fate));
        // Every line is closed, because its queue is.
        self.cut.extend(served.hang_up_all());
        // A goodbye on the health plane takes a moment, and nobody waits for it.
        tokio::task::spawn_blocking(move || drop(served));
    }

    fn handle(&mut self, letter: Inbox) {
        let now = clock::now();
        if !self.may_decide() {
            return self.decline(now, letter);
        }
        match letter {
            Inbox::Opened { run, id, peer, queue } => {
                self.customers.opened(now, peer);
                self.guests.insert(id, peer);
                self.strangers.insert(id, queue);
                self.seat(&run, id);
            }
            Inbox::Message { run, id, peer, message, share } => {
                if !self.cut.contains(&id) {
                    self.work_for(&run, Some(id), |clerk| match message {
                        Ok(message) => clerk.listen(now, &run, id, peer, *message),
                        Err(error) => clerk.part(now, &run, id, peer, &error),
                    });
                }
                drop(share);
            }
            Inbox::Closed { run, id } => {
                let peer = self.guests.remove(&id);
                if let Some(peer) = peer {
                    self.customers.closed(peer);
                }
                self.strangers.remove(&id);
                if !self.cut.remove(&id) {
                    self.work_for(&run, None, |clerk| clerk.line_closed(now, &run, id, peer));
                }
            }
            Inbox::Connected { run, token: (number, token), outcome } => {
                self.work_for(&run, None, |clerk| {
                    let Some(served) = clerk.asker(&run, number) else { return };
                    served.machine_mut().handle_connect(now, token, outcome);
                    clerk.carry_out(&run);
                });
            }
            Inbox::Solved { run, token: (number, token), answer } => {
                self.solver.answered(&run, (number, token));
                self.work_for(&run, None, |clerk| {
                    let Some(served) = clerk.asker(&run, number) else { return };
                    served.machine_mut().handle_solved(now, token, &answer);
                    clerk.carry_out(&run);
                });
            }
            Inbox::Status(run, answer) => self.work_for(&run, None, |clerk| {
                let status = clerk.runs.get(&run).map(|served| clerk.described(now, &run, served.machine()));
                // Whoever asked may not wait any more.
                let _ = answer.try_send(status);
            }),
        }
    }

    /// The run that asked under that number, if the machine that did is still the one that decides for it.
    fn asker(&mut self, run: &RunId, number: u64) -> Option<&mut ServedRun> {
        self.runs.get_mut(run).filter(|served| served.number() == number)
    }

    fn look_at_health(&mut self) {
        let now = clock::now();
        let runs: Vec<_> = self.runs.keys().cloned().collect();
        for run in runs {
            self.work_for(&run, None, |clerk| clerk.look_after(now, &run));
        }
    }

    fn look_after(&mut self, now: Instant, run: &RunId) {
        let Some(served) = self.runs.get_mut(run) else { return };
        if let Some(incident) = served.look_after_health(now, &mut self.health, run) {
            tracing::warn!(%run, "{incident}");
            let decided = Entry::new(What::Decided, "note").about(served.number());
            self.recorder.note(&decided.saying(incident.as_str()));
        }
        if served.look_whether_empty() >= EMPTY_RUN_LIFE {
            self.runs.remove(run);
            return;
        }
        self.carry_out(run);
    }
}

#[cfg(test)]
mod tests;
