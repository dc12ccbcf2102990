//! The clerk: one task that owns the machines of all runs.
//!
//! A machine asserts what it takes for granted, and may be wrong. Runs share this task and nothing else, so whatever is done
//! for one run is guarded (rule 40): a machine that panics is dropped alone, and its lines are closed, so that its peers come
//! back and rebuild it as after a restart of the coordinator (rule 17). Letters that were meant for it are not shown to its
//! successor. One that breaks again and again is given up (see `strikes`). A panic anywhere else ends the clerk, and
//! with it the coordinator: see `super::Coordinator::check`.

mod reigning;

pub(super) use reigning::News;

use super::backend::{Book, Written};
use super::history::{self, Names};
use super::knock::{identity_in, knock, knock_for};
use super::post::Post;
use super::quotas::{Customers, Pace};
use super::registry::Standings;
use super::solver::Solver;
use super::strikes::{self, Strikes};
use crate::membership::{Health, Membership, Preset};
use crate::planted::{self, Place};
use crate::port::PortWatch;
use crate::presets::{self, Warned};
use crate::recorder::{Entry, Owner, Recorder, What, key_of};
use crate::security::Credentials;
use crate::sync::lock;
use crate::{clock, runtime};
use outlast_proto::coordinator::{
    Action, Config, ConnectionId, FactsStamp, KickStatus, Note, Run, RunStatus, Sign, SolveToken,
};
use outlast_proto::id::{PeerId, RunId};
use outlast_proto::limits::{RUNS_MAX, RUNS_PER_PEER_MAX, STATUS_REFUSALS_MAX};
use outlast_proto::membership::{ConnectOutcome, ConnectToken};
use outlast_proto::text::printable;
use outlast_proto::time::Instant;
use outlast_proto::topology::Answer;
use outlast_proto::wire::InvalidMessage;
use outlast_proto::wire::control::{KickReason, LossReason, Term, ToCoordinator, ToPeer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// How often the health plane's lists are looked at.
const HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// Letters that are taken before timers and health are looked at.
const LETTERS_MAX: usize = 256;
/// How long a run that nobody is in is remembered.
const EMPTY_RUN_LIFE: Duration = Duration::from_mins(10);

/// How old an answer about the status may be.
const STATUS_AGE_MAX: Duration = Duration::from_millis(50);
/// Refusals that are remembered, for all runs together.
const REFUSALS_MAX: usize = 256;
/// Lines about kicks and losses in quick succession, and the time until there may be one more.
const LINES_BURST: u32 = 30;
const LINE_EVERY: Duration = Duration::from_secs(2);

/// What the clerk is told.
#[derive(Debug)]
pub(super) enum Inbox {
    Opened {
        run: RunId,
        id: ConnectionId,
        peer: PeerId,
        queue: mpsc::Sender<ToPeer>,
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

/// One run and what it needs of the world.
struct ServedRun {
    run: Run,
    lines: BTreeMap<ConnectionId, mpsc::Sender<ToPeer>>,
    membership: Option<Membership>,
    /// Peers whose addresses were given to our member as seeds.
    met: BTreeSet<PeerId>,
    empty_since: Option<std::time::Instant>,
    names: Names,
    /// What was last said of it, and when.
    status: Option<(Instant, String)>,
    /// What the flight recorder calls it, and its questions carry.
    number: u64,
    /// Peers with another preset that were warned of.
    warned: Warned,
    /// What was last written down of it.
    written: Option<FactsStamp>,
    /// What is being written down.
    writing: Option<FactsStamp>,
}

/// Somebody who was told to go.
struct Refusal {
    run: RunId,
    peer: PeerId,
    text: String,
    at: Instant,
}

impl ServedRun {
    /// Puts a message into a peer's queue. One that is full belongs to a peer that does not read: it loses its
    /// connection.
    fn send(&mut self, id: ConnectionId, message: ToPeer) {
        if self.lines.get(&id).is_some_and(|line| line.try_send(message).is_err()) {
            self.lines.remove(&id);
        }
    }
}

impl ServedRun {
    /// What the health plane says of everybody now.
    fn pass_on_health(&mut self, now: Instant) {
        let Some(member) = &self.membership else { return };
        let active = member.active().unwrap_or_default();
        let failed = member.failed().unwrap_or_default();
        for member in active.iter().chain(&failed) {
            let (sign, since) = match member.health {
                Health::Alive => (Sign::Alive { acked: member.acked }, now),
                Health::Stalled { since } => (Sign::Stalled, since),
                Health::Suspect { since, .. } => (Sign::Suspect, since),
                Health::Dead { since, reason } => (Sign::Dead(reason), since),
                // Goodbyes bind over the control connection only (rule 39): who said one elsewhere is not heard of.
                Health::Left { since } => (Sign::Suspect, since),
            };
            if let Some(acked) = member.acked {
                self.run.handle_answer(member.info.id, acked);
            }
            self.run.handle_health_since(now, member.info.id, sign, since);
        }
    }
}

/// How the coordinator's own members of the health groups are set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct HealthSettings {
    pub(super) preset: Preset,
    pub(super) stall_budget: Option<Duration>,
    pub(super) dead_after: Option<Duration>,
}

pub(super) struct Clerk {
    config: Config,
    health: HealthSettings,
    credentials: Credentials,
    address: SocketAddr,
    /// Until then somebody may come back to a coordinator that was here before us.
    fresh_after: Option<Instant>,
    /// Weak, so that the clerk does not keep itself at work.
    inbox: mpsc::WeakSender<Inbox>,
    port: PortWatch,
    stores: Standings,
    runs: BTreeMap<RunId, ServedRun>,
    /// Who is at the other end of each line.
    guests: BTreeMap<ConnectionId, PeerId>,
    /// Lines for runs in which nobody has registered.
    strangers: BTreeMap<ConnectionId, mpsc::Sender<ToPeer>>,
    customers: Customers,
    /// Who was told to go, the latest last.
    refusals: VecDeque<Refusal>,
    lines: Pace,
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
        Self {
            config,
            health,
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
            refusals: VecDeque::new(),
            lines: Pace::default(),
            strikes: Strikes::default(),
            cut: BTreeSet::new(),
            solver,
            book: None,
            recorder: Recorder::start(owner),
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
            let next = self.runs.values().filter_map(|served| served.run.poll_timeout()).min();
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
                    // Take what waits already before looking at timers: votes beat deadlines.
                    for _ in 1..LETTERS_MAX {
                        match letters.try_recv() {
                            Ok(letter) => self.handle(letter),
                            Err(_) => break,
                        }
                    }
                }
                () = tokio::time::sleep(wake.since(clock::now())) => {}
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
            .filter(|(_, served)| served.run.poll_timeout().is_some_and(|at| at <= now))
            .map(|(run, _)| run.clone())
            .collect();
        for run in due {
            self.work_for(&run, None, |clerk| {
                if let Some(served) = clerk.runs.get_mut(&run) {
                    // Who answered a moment ago must not be evicted for silence in this one.
                    served.pass_on_health(now);
                    served.run.handle_timeout(now);
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
        self.solver.forget(run, served.number);
        let panicked = Entry::new(What::Decided, "panicked").about(served.number);
        self.recorder.note(&panicked.saying(fate));
        // Every line is closed, because its queue is.
        self.cut.extend(std::mem::take(&mut served.lines).into_keys());
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
                    let Some(served) = clerk.machine(&run, number) else { return };
                    served.run.handle_connect(now, token, outcome);
                    clerk.carry_out(&run);
                });
            }
            Inbox::Solved { run, token: (number, token), answer } => {
                self.solver.answered(&run, (number, token));
                self.work_for(&run, None, |clerk| {
                    let Some(served) = clerk.machine(&run, number) else { return };
                    served.run.handle_solved(now, token, &answer);
                    clerk.carry_out(&run);
                });
            }
            Inbox::Status(run, answer) => self.work_for(&run, None, |clerk| {
                let status = clerk.runs.get(&run).map(|served| clerk.describe(now, &run, &served.run));
                // Whoever asked may not wait any more.
                let _ = answer.try_send(status);
            }),
        }
    }

    /// The machine of that number, if it is still what decides for the run.
    fn machine(&mut self, run: &RunId, number: u64) -> Option<&mut ServedRun> {
        self.runs.get_mut(run).filter(|served| served.number == number)
    }

    fn line_closed(&mut self, now: Instant, run: &RunId, id: ConnectionId, peer: Option<PeerId>) {
        let Some(served) = self.runs.get_mut(run) else { return };
        if let Some(peer) = peer {
            self.recorder.note(&Entry::new(What::Line, "closed").about(served.number).with(peer));
        }
        served.lines.remove(&id);
        served.run.handle_closed(now, id);
        self.carry_out(run);
    }

    fn listen(&mut self, now: Instant, run: &RunId, id: ConnectionId, peer: PeerId, message: ToCoordinator) {
        let (address, term) = match &message {
            ToCoordinator::AskStatus => return self.answer(now, run, id, peer),
            ToCoordinator::Register(registration, _, term) => (Some(registration.info.address), *term),
            ToCoordinator::Resume(resume) => (Some(resume.registration.info.address), resume.term),
            // An agent may be here before its workers are.
            ToCoordinator::Watch { .. } => {
                if let Err(text) = self.admit(now, run, peer, false) {
                    return self.turn_away(now, run, id, peer, (KickReason::Limit, text, 0));
                }
                self.serve(run);
                (None, 0)
            }
            _ => (None, 0),
        };
        let info = match &message {
            ToCoordinator::Register(registration, ..) => Some(registration.info.clone()),
            ToCoordinator::Resume(resume) => Some(resume.registration.info.clone()),
            _ => None,
        };
        if let Some(address) = address {
            let registers = matches!(message, ToCoordinator::Register(..));
            if let Err(text) = self.admit(now, run, peer, registers) {
                return self.turn_away(now, run, id, peer, (KickReason::Limit, text, term));
            }
            self.serve(run);
            self.meet(run, peer, address);
            if let Some(info) = info {
                self.recorder.name(key_of(peer), &info.name);
                let preset = presets::name(self.health.preset);
                let served = self.serve(run);
                served.names.name(peer, &info.name);
                if let Some(warning) = served.warned.of(&info, preset, "the coordinator") {
                    tracing::warn!(%run, "{warning}");
                    served.run.handle_incident(now, &warning);
                }
            }
        }
        self.seat(run, id);
        let Some(served) = self.runs.get_mut(run) else {
            let text = "not a peer of this run any more: connect again".to_owned();
            return self.turn_away(now, run, id, peer, (KickReason::Evicted, text, term));
        };
        let heard = Entry::to_coordinator(What::Heard, &message).about(served.number);
        self.recorder.note(&heard.about_peer(peer));
        served.run.handle_message(now, id, peer, message);
        self.carry_out(run);
    }

    /// What a connection said cannot be read: whoever it is hears why and goes.
    fn part(&mut self, now: Instant, run: &RunId, id: ConnectionId, peer: PeerId, error: &InvalidMessage) {
        self.seat(run, id);
        if let Some(served) = self.runs.get_mut(run) {
            served.run.handle_unreadable(now, id, peer, error);
            return self.carry_out(run);
        }
        let text = format!("the coordinator cannot read what this peer said: {error}");
        self.turn_away(now, run, id, peer, (KickReason::Breach, text, 0));
    }

    /// Whether there is room for this peer in this run (rule 39).
    fn admit(&mut self, now: Instant, run: &RunId, peer: PeerId, registers: bool) -> Result<(), String> {
        if let Some(left) = self.strikes.given_up_for(now, run) {
            return Err(strikes::reason(run, left));
        }
        self.customers.may_speak(peer)?;
        if registers {
            self.customers.may_register(now, peer)?;
        }
        let others =
            self.runs.iter().filter(|(other, served)| *other != run && served.run.knows(peer)).count();
        if others >= RUNS_PER_PEER_MAX {
            let peer = peer.short();
            return Err(format!(
                "peer {peer} is in {others} runs, the limit is {RUNS_PER_PEER_MAX}: leave one of them, or give \
                 every process a PeerId of its own"
            ));
        }
        if !self.runs.contains_key(run) && self.runs.len() >= RUNS_MAX && !self.forget_an_empty_run() {
            return Err(format!(
                "this coordinator serves {RUNS_MAX} runs, which is its limit: wait until one of them has ended, \
                 or start another coordinator for run {run}"
            ));
        }
        Ok(())
    }

    /// Forgets the run that nobody is in for longest; false if there is none.
    fn forget_an_empty_run(&mut self) -> bool {
        let is_empty = |served: &ServedRun| served.run.is_empty() && served.lines.is_empty();
        let empty = self.runs.iter().filter(|(_, served)| is_empty(served));
        let longest = empty.min_by_key(|(_, served)| (served.empty_since.is_none(), served.empty_since));
        let longest = longest.map(|(run, _)| run.clone());
        longest.is_some_and(|run| self.runs.remove(&run).is_some())
    }

    /// Gives a line to its run, if that is served.
    fn seat(&mut self, run: &RunId, id: ConnectionId) {
        if let Some(served) = self.runs.get_mut(run)
            && let Some(line) = self.strangers.remove(&id)
        {
            served.lines.insert(id, line);
            served.empty_since = None;
        }
    }

    /// Tells a connection why it is refused, under a term that its peer obeys, and closes it.
    fn turn_away(
        &mut self,
        now: Instant,
        run: &RunId,
        id: ConnectionId,
        peer: PeerId,
        (reason, text, term): (KickReason, String, Term),
    ) {
        let known = self.runs.get_mut(run).and_then(|served| served.lines.remove(&id));
        if let Some(line) = known.or_else(|| self.strangers.remove(&id)) {
            let _ = line.try_send(ToPeer::Kicked { reason, text: text.clone(), term });
        }
        self.remember(now, run, peer, text);
    }

    fn remember(&mut self, now: Instant, run: &RunId, peer: PeerId, text: String) {
        if self.refusals.len() >= REFUSALS_MAX {
            self.refusals.pop_front();
        }
        let text = printable(&text).into_owned();
        if self.lines.take(now, LINES_BURST, LINE_EVERY).is_ok() {
            tracing::warn!(%run, peer = %peer.short(), "told a peer to go: {text}");
        }
        self.refusals.push_back(Refusal { run: run.clone(), peer, text, at: now });
    }

    /// Answers a question about the status.
    fn answer(&mut self, now: Instant, run: &RunId, id: ConnectionId, peer: PeerId) {
        let asked = self.customers.may_speak(peer).and_then(|()| self.customers.may_ask(now, peer));
        let text = match asked {
            // Our own words: nothing in them needs to be escaped.
            Err(refusal) => format!("{{\"error\":\"{refusal}\"}}"),
            Ok(()) => self.status(now, run),
        };
        let served = self.runs.get(run).and_then(|served| served.lines.get(&id));
        let Some(line) = served.or_else(|| self.strangers.get(&id)) else { return };
        // Who does not read its answers is not read any more either: no more than its letters wait here.
        let _ = line.try_send(ToPeer::Status(text));
    }

    fn status(&mut self, now: Instant, run: &RunId) -> String {
        let Some(served) = self.runs.get(run) else {
            return self.describe(now, run, &Run::new(self.config.clone()));
        };
        if let Some((_, text)) = served.status.as_ref().filter(|(at, _)| now.since(*at) < STATUS_AGE_MAX) {
            return text.clone();
        }
        let text = self.describe(now, run, &served.run);
        if let Some(served) = self.runs.get_mut(run) {
            served.status = Some((now, text.clone()));
        }
        text
    }

    fn describe(&self, now: Instant, run: &RunId, machine: &Run) -> String {
        let seconds = |ago: Duration| (ago.as_secs_f64() * 1_000.0).round() / 1_000.0;
        let of_run = self.refusals.iter().rev().filter(|refusal| refusal.run == *run);
        let kicked = of_run.take(STATUS_REFUSALS_MAX).map(|refusal| KickStatus {
            peer: refusal.peer.to_string(),
            text: refusal.text.clone(),
            seconds_ago: seconds(now.since(refusal.at)),
        });
        let runs = self.runs.iter().take(STATUS_REFUSALS_MAX).map(|(run, served)| RunStatus {
            run_id: run.as_str().to_owned(),
            world_size: served.run.world_size(),
        });
        let served = self.runs.get(run);
        let events = served.map_or_else(Vec::new, |served| history::status(served.run.annals()));
        let status = machine.status(now).with_doors(self.port.status(), kicked.collect());
        let status = status.with_reign(self.post.status()).with_store(lock(&self.stores).get(run).cloned());
        status.with_history(served.is_some(), runs.collect(), events).to_json()
    }

    fn serve(&mut self, run: &RunId) -> &mut ServedRun {
        self.runs.entry(run.clone()).or_insert_with(|| {
            self.served += 1;
            self.recorder.name(self.served, run.as_str());
            let now = clock::now();
            let mut machine = Run::new(self.config.clone());
            let term = self.book.as_ref().and_then(Book::term);
            // After a panic everybody who was in is an old member.
            let struck = self.strikes.last(now, run).map(|last| last + self.config.control_grace);
            match self.book.as_ref().map(|book| book.facts(run)) {
                // Whoever was ever let in is written down: in a run that is not, nobody can have been.
                Some(Ok(None)) => {}
                Some(Ok(Some(facts))) => machine.succeed(&facts, now + self.config.control_grace),
                Some(Err(error)) => {
                    tracing::error!(%run, %error, "nothing is known of this run; it is rebuilt from its peers");
                    machine.expect_old_members(now + self.config.control_grace);
                }
                None => {
                    if let Some(until) = self.fresh_after.max(struck) {
                        machine.expect_old_members(until);
                    }
                }
            }
            if let Some(term) = term {
                machine.reign_under(term);
            }
            machine.handle_wall_clock(now, history::unix_us());
            if struck.is_some() {
                machine.handle_incident(now, "what decides for this run panicked, and began anew: report this bug");
            }
            ServedRun {
                run: machine,
                lines: BTreeMap::new(),
                membership: None,
                met: BTreeSet::new(),
                empty_since: None,
                names: Names::default(),
                status: None,
                written: None,
                number: self.served,
                warned: Warned::default(),
                writing: None,
            }
        })
    }

    /// Our own member of that run's health group gets to know a peer.
    fn meet(&mut self, run: &RunId, peer: PeerId, address: SocketAddr) {
        let (health, credentials, listen) =
            (self.health, self.credentials.clone(), SocketAddr::new(self.address.ip(), 0));
        let recorder = Arc::clone(&self.recorder);
        let served = self.serve(run);
        if !served.met.insert(peer) {
            return;
        }
        if let Some(member) = &served.membership {
            member.join(&[address]);
            return;
        }
        let mut member = Membership::builder()
            .listen(listen)
            .preset(health.preset)
            .credentials(credentials)
            .run_id(run.clone())
            .name("coordinator")
            .join([address.to_string()]);
        if let Some(budget) = health.stall_budget {
            member = member.stall_budget(budget);
        }
        if let Some(silence) = health.dead_after {
            member = member.dead_after(silence);
        }
        match member.start() {
            Ok(member) => {
                member.record_in(&recorder);
                served.membership = Some(member);
            }
            Err(error) => tracing::error!(%run, %error, "no health for this run; evictions will be slower"),
        }
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
        served.pass_on_health(now);
        // Of those who came and went before they were admitted nobody tells us.
        served.met.retain(|peer| served.run.knows(*peer));
        let idle = served.run.is_empty() && served.lines.is_empty();
        let since = *served.empty_since.get_or_insert_with(std::time::Instant::now);
        if !idle {
            served.empty_since = None;
        } else if since.elapsed() >= EMPTY_RUN_LIFE {
            self.runs.remove(run);
            return;
        }
        self.carry_out(run);
    }

    /// Writes down what has changed. False if it is not written: then nothing may be said of it, and the run stands still
    /// until it is.
    fn write_down(&mut self, run: &RunId) -> bool {
        let (Some(book), Some(served)) = (&mut self.book, self.runs.get_mut(run)) else { return true };
        let stamp = served.run.facts_stamp();
        if served.written == Some(stamp) {
            return true;
        }
        if served.writing == Some(stamp) {
            return false;
        }
        match book.write(run, stamp, served.run.facts()) {
            Ok(Written::Now) => served.written = Some(stamp),
            Ok(Written::Later) => {
                served.writing = Some(stamp);
                return false;
            }
            Err(error) => {
                if self.lines.take(clock::now(), LINES_BURST, LINE_EVERY).is_ok() {
                    tracing::error!(%run, %error, "the run stands still: what it decides cannot be written down");
                }
                return false;
            }
        }
        true
    }

    fn carry_out(&mut self, run: &RunId) {
        if !self.may_decide() || !self.write_down(run) {
            return;
        }
        let Some(served) = self.runs.get_mut(run) else { return };
        let mut told_to_go = Vec::new();
        while let Some(action) = served.run.poll_action() {
            match action {
                Action::Send(id, message) => {
                    if let (ToPeer::Kicked { text, .. }, Some(peer)) = (&message, self.guests.get(&id)) {
                        told_to_go.push((*peer, text.clone()));
                    }
                    let sent = Entry::to_peer(What::Sent, &message).about(served.number);
                    self.recorder.note(&match self.guests.get(&id) {
                        Some(peer) => sent.about_peer(*peer),
                        None => sent,
                    });
                    served.send(id, message);
                }
                Action::SendAll(ids, message) => {
                    let sent = Entry::to_peer(What::Sent, &message).about(served.number);
                    self.recorder.note(&sent.amount(ids.len() as u64));
                    for id in ids {
                        served.send(id, message.clone());
                    }
                }
                Action::Close(id) => {
                    served.lines.remove(&id);
                }
                Action::Connect { token, to, timeout, disputed } => {
                    let Some(inbox) = self.inbox.upgrade() else { continue };
                    let disputed =
                        disputed.and_then(|peer| Some((peer, identity_in(&self.credentials, run)?)));
                    let (run, token) = (run.clone(), (served.number, token));
                    tokio::spawn(async move {
                        let outcome = match disputed {
                            None => knock(to, timeout).await,
                            Some((peer, identity)) => knock_for(peer, to, &identity, timeout).await,
                        };
                        let _ = inbox.send(Inbox::Connected { run, token, outcome }).await;
                    });
                }
                Action::Look(peer) => {
                    if let Some(member) = &served.membership {
                        member.look(peer);
                    }
                }
                Action::Renew(info) => {
                    if let Some(member) = &served.membership {
                        member.renew(info);
                    }
                }
                Action::Evict(peer) => {
                    served.met.remove(&peer);
                    if let Some(member) = &served.membership {
                        member.evict(peer);
                    }
                }
                Action::Solve { token, question } => {
                    self.solver.ask(run.clone(), (served.number, token), question);
                }
                Action::CallOff(token) => self.solver.call_off(run, (served.number, token)),
                Action::Note(note) => {
                    let text = served.names.words(&note);
                    if let Some(text) = &text {
                        let now = clock::now();
                        served.run.handle_wall_clock(now, history::unix_us());
                        served.run.handle_incident(now, text);
                        let decided = Entry::new(What::Decided, "note").about(served.number);
                        self.recorder.note(&decided.saying(text.as_str()));
                    }
                    let is_loss = matches!(note, Note::Lost(_, reason) if reason != LossReason::Left);
                    match text {
                        Some(text) if is_loss => {
                            if self.lines.take(clock::now(), LINES_BURST, LINE_EVERY).is_ok() {
                                tracing::warn!(%run, "{text}");
                            }
                        }
                        Some(text) => tracing::info!(%run, "{text}"),
                        None => tracing::debug!(%run, ?note, "run"),
                    }
                }
            }
        }
        for (peer, text) in told_to_go {
            self.remember(clock::now(), run, peer, text);
        }
    }
}

#[cfg(test)]
mod tests;
