//! The world: what is about to happen, and who is told.

use super::data::{Transfer, TransferId};
use super::facts::Fact;
use super::fault::{Fault, Sabotage};
use super::health::{Member, Node, SOCKET_BUFFER_PACKETS};
use super::links::Connection;
use super::process::{Phase, Process};
use super::program::Habits;
use super::training::Training;
use super::wires::Channel;
use crate::world::queue::Queue;
use crate::world::trace::Trace;
use outlast_proto::collective::links::Links;
use outlast_proto::coordinator::{
    self, Action, ConnectionId, Facts as KeptFacts, FactsStamp, Note, Run, Sign, SolveToken,
};
use outlast_proto::id::PeerId;
use outlast_proto::membership::{ConnectOutcome, ConnectToken, Preset, Source};
use outlast_proto::retry::DialFailure;
use outlast_proto::rng::Rng;
use outlast_proto::session::{self, CallId, PerformResult};
use outlast_proto::state::Revision;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::topology::Answer;
use outlast_proto::wire::control::{Encryption, KickReason, Registration, SessionId, ToPeer};
use outlast_proto::wire::membership::{DeathReason, MemberInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// How often the health plane looks.
const HEALTH_EVERY: Duration = Duration::from_millis(100);
/// After how much silence it suspects.
const SUSPECT_AFTER: Duration = Duration::from_millis(600);
/// A stall this long is a death (rule 20d, preset local).
const STALL_BUDGET: Duration = Duration::from_secs(10);
/// How long a thread looks for a ring.
const SOLVING: Duration = Duration::from_millis(20);
/// A port where nobody listens.
pub(super) const CLOSED_PORT: u16 = 1;

/// What kind of world.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed of everything.
    pub seed: u64,
    /// First processes; process `i` is in group `i % groups`.
    pub peers: u32,
    /// Groups.
    pub groups: u32,
    /// What programs do.
    pub habits: Habits,
    /// Longest way of a control message.
    pub latency_max: Duration,
    /// Longest transfer.
    pub transfer_max: Duration,
    /// Longest time between an executor's result and its last byte leaving, in the few cases where it is long.
    pub flush_max: Duration,
    /// Longest pause of a program between two steps.
    pub think_max: Duration,
    /// The first coordinator dies right after having sent this many messages, and is started again.
    pub crash_after_sends: Option<u64>,
    /// Whether the coordinator writes its facts down before anybody hears of them, as with a file; then its successor reads
    /// them. Otherwise it knows that somebody may have been there before it, and no more.
    pub keeps_facts: bool,
    /// A group that no fault strikes, but for what befalls the coordinator.
    pub bystander: Option<u32>,
    /// Whether connects tell the truth about processes (rule 22).
    pub kernels_trusted: bool,
    /// Whether the membership machine says who is alive; otherwise it is derived from the truth, with delays.
    pub health: bool,
    /// How often a datagram of the health plane is lost.
    pub datagram_loss: f64,
    /// Whether a process that is out comes back under its own id, in a new session; otherwise under another.
    pub rejoins: bool,
    /// A planted bug.
    pub sabotage: Option<Sabotage>,
}

impl Settings {
    /// A usual world.
    pub fn new(seed: u64, peers: u32) -> Self {
        Self {
            seed,
            peers,
            groups: 1,
            habits: Habits::default(),
            latency_max: Duration::from_millis(5),
            transfer_max: Duration::from_millis(30),
            flush_max: Duration::from_millis(10),
            think_max: Duration::from_millis(10),
            crash_after_sends: None,
            keeps_facts: false,
            bystander: None,
            kernels_trusted: true,
            health: false,
            datagram_loss: 0.0,
            rejoins: false,
            sabotage: None,
        }
    }
}

/// One coordinator process.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) run: Run,
    pub(super) armed: Option<Instant>,
    /// Its own member of the health group.
    pub(super) member: Option<Member>,
    /// Whether the process lives.
    pub lives: bool,
    /// Whether it is cut off from everybody.
    pub deposed: bool,
    /// Since when it has the address: since its birth, or since it got it back.
    pub(super) since: Instant,
    /// For how long it had the address when it last lost it.
    pub(super) tenure: Duration,
    /// If it was cut off before and got the address back: its term in that moment.
    pub(super) relapsed: Option<u64>,
    /// Messages it has sent.
    pub sends: u64,
}

impl Coordinator {
    /// Whether anybody can have obeyed it.
    fn reigned(&self) -> bool {
        self.sends > 0
    }
}

/// What is about to happen.
#[derive(Debug)]
pub(super) enum Event {
    /// Bytes of a stream arrive, up to that one.
    ToCoordinator(u64, u64),
    ToPeer(u64, u64),
    PeerSeesClose(u64),
    CoordinatorSeesClose(u64),
    /// The how-manieth dial of a process ends, and whom it reached.
    Dialled(usize, u64, Option<usize>),
    CoordinatorTimer(usize),
    PeerTimer(usize),
    Knocked(usize, ConnectToken, ConnectOutcome),
    HealthTick,
    Packet(Node, Source, Vec<u8>),
    MemberTimer(Node),
    Asked(Node, ConnectToken, ConnectOutcome),
    /// The dial of a data link of that serial ends, and why it failed if it did. Until then it may be repeated.
    LinkDialled(usize, PeerId, u64, Instant, Option<DialFailure>),
    LinkAccepted(usize, u64),
    LinkLost(usize, u64),
    LinkMissed(usize, CallId, u64),
    Prepared(usize, u64, bool),
    Solved(usize, SolveToken, Answer),
    Redialled(usize, PeerId, bool),
    Moved(TransferId),
    Performed(usize, CallId, u64, PerformResult),
    Program(usize),
    Cancel(usize, CallId),
    Continue(usize),
    Spawn(u32),
    StartCoordinator,
    EndRelapse(usize),
}

impl Event {
    /// Whose process must run for this to happen.
    fn process(&self, wires: &BTreeMap<u64, Channel>) -> Option<usize> {
        match self {
            Self::ToPeer(wire, ..) | Self::PeerSeesClose(wire) => Some(wires.get(wire)?.process),
            Self::Dialled(process, ..)
            | Self::PeerTimer(process)
            | Self::LinkDialled(process, ..)
            | Self::LinkAccepted(process, _)
            | Self::LinkLost(process, _)
            | Self::LinkMissed(process, ..)
            | Self::Prepared(process, ..)
            | Self::Redialled(process, ..)
            | Self::Performed(process, ..)
            | Self::Cancel(process, _)
            | Self::Program(process) => Some(*process),
            Self::Packet(Node::Process(process), ..)
            | Self::MemberTimer(Node::Process(process))
            | Self::Asked(Node::Process(process), ..) => Some(*process),
            _ => None,
        }
    }
}

/// The world.
pub struct World {
    pub(super) settings: Settings,
    pub(super) now: Instant,
    pub(super) rng: Rng,
    pub(super) queue: Queue<Event>,
    pub(super) trace: Trace,
    /// All coordinators that ever were.
    pub coordinators: Vec<Coordinator>,
    /// What the last coordinator wrote down, which outlives it.
    pub(super) kept: Option<(FactsStamp, KeptFacts)>,
    /// The one that has the address, if any.
    pub(super) at_address: Option<usize>,
    /// All processes that ever were.
    pub processes: Vec<Process>,
    pub(super) by_id: BTreeMap<PeerId, usize>,
    /// The newest checkpoint of each group, which outlives everybody: its revision, and what it holds.
    pub(super) disk: BTreeMap<u32, (Revision, u64)>,
    pub(super) wires: BTreeMap<u64, Channel>,
    pub(super) next_wire: u64,
    /// As whom the process at the other end of a stream speaks.
    pub(super) names: BTreeMap<u64, PeerId>,
    pub(super) transfers: BTreeMap<TransferId, Transfer>,
    /// Data links, by the numbers that processes know them by.
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) next_connection: u64,
    pub(super) cut_links: BTreeMap<(usize, usize), Instant>,
    /// Who ever had a link cut.
    pub link_victims: BTreeSet<usize>,
    pub(super) facts: Vec<(Instant, Fact)>,
    /// When a coordinator was last missing, cut off, or new.
    pub coordinator_trouble_until: Instant,
    /// How often each kind of fault struck.
    pub struck: BTreeMap<&'static str, u32>,
    /// Whether any program ever made another call than the rest.
    pub deviated: bool,
    /// Heard too late, of old coordinators: how many messages were refused for their term.
    pub refused_terms: u64,
    /// Whether faults are over, and all must converge.
    pub(super) healed: bool,
    next_id: u64,
}

impl World {
    /// A world in which nothing has happened yet.
    pub fn new(settings: Settings) -> Self {
        let mut world = Self {
            now: Instant::from_nanos(1_000_000_000),
            rng: Rng::from_seed(settings.seed),
            queue: Queue::new(),
            trace: Trace::new(),
            coordinators: Vec::new(),
            kept: None,
            at_address: None,
            processes: Vec::new(),
            by_id: BTreeMap::new(),
            disk: BTreeMap::new(),
            wires: BTreeMap::new(),
            next_wire: 0,
            names: BTreeMap::new(),
            transfers: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            cut_links: BTreeMap::new(),
            link_victims: BTreeSet::new(),
            facts: Vec::new(),
            coordinator_trouble_until: Instant::ORIGIN,
            struck: BTreeMap::new(),
            deviated: false,
            refused_terms: 0,
            healed: false,
            next_id: 0,
            settings,
        };
        world.start_coordinator();
        for index in 0..world.settings.peers {
            world.spawn(index % world.settings.groups);
        }
        world.queue.push(world.now, Event::HealthTick);
        world
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The story so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Keeps the story readable.
    pub fn keep_timeline(&mut self) {
        self.trace.keep_lines();
    }

    pub(super) fn line(&mut self, text: impl FnOnce() -> String) {
        let text = text();
        self.trace.line(self.now, &text);
    }

    pub(super) fn fact(&mut self, fact: Fact) {
        self.facts.push((self.now, fact));
    }

    /// What happened since this was last asked.
    pub fn take_facts(&mut self) -> Vec<(Instant, Fact)> {
        std::mem::take(&mut self.facts)
    }

    /// Which process takes part under that id.
    pub fn process_of(&self, id: PeerId) -> Option<&Process> {
        self.by_id.get(&id).map(|index| &self.processes[*index])
    }

    /// A random time up to `max`.
    pub(super) fn some(&mut self, max: Duration) -> Duration {
        max.mul_f64(self.rng.unit())
    }

    pub(super) fn after(&mut self, delay: Duration, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    /// Lets everything happen that is due until then.
    pub fn run_until(&mut self, until: Instant) {
        while let Some((at, event)) = self.queue.pop_until(until) {
            self.now = at;
            self.happen(event);
        }
        self.now = until;
    }

    fn happen(&mut self, event: Event) {
        if let Some(process) = event.process(&self.wires) {
            let process = &mut self.processes[process];
            if process.killed.is_some() {
                return;
            }
            if matches!(event, Event::Packet(..)) && process.backlog.len() >= SOCKET_BUFFER_PACKETS {
                return;
            }
            if process.stopped.is_some() {
                return process.backlog.push_back(event);
            }
        }
        match event {
            Event::ToCoordinator(wire, up_to) => self.arrive_at_coordinator(wire, up_to),
            Event::ToPeer(wire, up_to) => self.arrive_at_peer(wire, up_to),
            Event::PeerSeesClose(wire) => self.peer_sees_close(wire),
            Event::CoordinatorSeesClose(wire) => self.coordinator_sees_close(wire),
            Event::Dialled(process, serial, to) => self.dialled(process, serial, to),
            Event::CoordinatorTimer(index) => {
                self.coordinators[index].armed = None;
                let now = self.now;
                if self.coordinators[index].lives {
                    // Who answered a moment ago must not be evicted for silence in this one.
                    self.pass_on_health(index);
                    self.coordinators[index].run.handle_timeout(now);
                    self.drain_coordinator(index);
                }
            }
            Event::PeerTimer(process) => {
                self.processes[process].armed = None;
                let now = self.now;
                if self.settings.sabotage == Some(Sabotage::ForgetTimers) {
                    return;
                }
                self.processes[process].session.handle_timeout(now);
                self.drain_peer(process);
            }
            Event::Knocked(index, token, outcome) => {
                let now = self.now;
                if self.coordinators[index].lives {
                    self.coordinators[index].run.handle_connect(now, token, outcome);
                    self.drain_coordinator(index);
                }
            }
            Event::HealthTick if self.settings.health => {
                for index in 0..self.coordinators.len() {
                    if self.coordinators[index].lives {
                        self.pass_on_health(index);
                        self.drain_coordinator(index);
                    }
                }
                self.after(HEALTH_EVERY, Event::HealthTick);
            }
            Event::HealthTick => self.look_at_health(),
            Event::Packet(to, source, bytes) => self.packet_arrives(to, source, &bytes),
            Event::MemberTimer(node) => self.member_timer(node),
            Event::Asked(node, token, outcome) => self.asked(node, token, outcome),
            Event::LinkDialled(process, peer, serial, by, failure) => {
                self.link_dialled(process, peer, serial, by, failure);
            }
            Event::LinkAccepted(process, link) => self.link_accepted(process, link),
            Event::LinkLost(process, link) => self.link_lost(process, link),
            Event::LinkMissed(process, call, serial) => self.link_missed(process, call, serial),
            Event::Prepared(process, question, well) => self.prepared(process, question, well),
            Event::Solved(index, token, answer) => {
                if self.coordinators[index].lives {
                    self.coordinators[index].run.handle_solved(self.now, token, &answer);
                    self.drain_coordinator(index);
                }
            }
            Event::Redialled(process, to, well) => self.redialled(process, to, well),
            Event::Moved(transfer) => self.moved(&transfer),
            Event::Performed(process, call, serial, result) => self.performed(process, call, serial, result),
            Event::Program(process) => self.go_on(process),
            Event::Cancel(process, call) => self.cancel(process, call),
            Event::Continue(process) => self.continue_process(process),
            Event::Spawn(group) => {
                self.spawn(group);
            }
            Event::StartCoordinator => self.start_coordinator(),
            Event::EndRelapse(index) => self.end_relapse(index),
        }
    }

    // Coordinators.

    pub(super) fn start_coordinator(&mut self) {
        let mut config = coordinator::Config::preset(Preset::Local);
        if self.settings.sabotage == Some(Sabotage::NoGrace) && !self.coordinators.is_empty() {
            config.control_grace = Duration::ZERO;
        }
        let until = self.now + config.control_grace;
        let mut run = Run::new(config);
        run.handle_wall_clock(self.now, self.now.as_nanos() / 1_000);
        if !self.settings.keeps_facts {
            if !self.coordinators.is_empty() {
                run.expect_old_members(until);
            }
        } else if let Some((_, facts)) = &self.kept {
            run.succeed(facts, until);
        }
        if let Some(last) = self.coordinators.last().filter(|_| self.settings.keeps_facts) {
            let (before, term) = (last.run.term(), run.term());
            assert!(term > before || !last.reigned(), "a reign under term {term} after one under {before}");
        }
        self.coordinators.push(Coordinator {
            run,
            armed: None,
            member: None,
            lives: true,
            deposed: false,
            since: self.now,
            tenure: Duration::ZERO,
            relapsed: None,
            sends: 0,
        });
        self.at_address = Some(self.coordinators.len() - 1);
        self.coordinator_trouble_until = self.now;
        let index = self.coordinators.len() - 1;
        self.line(|| format!("coordinator {index} starts"));
        self.drain_coordinator(index);
    }

    /// Carries out what a coordinator wants, unless it dies in the middle of it.
    pub(super) fn drain_coordinator(&mut self, index: usize) {
        if self.settings.keeps_facts && self.settings.sabotage != Some(Sabotage::LoseFacts) {
            let (run, kept) = (&self.coordinators[index].run, &mut self.kept);
            let stamp = run.facts_stamp();
            if kept.as_ref().is_none_or(|(written, _)| *written != stamp) {
                *kept = Some((stamp, run.facts()));
            }
        }
        while let Some(action) = self.coordinators[index].run.poll_action() {
            match action {
                Action::Send(at, message) => self.coordinator_sends(index, &[at], &message),
                Action::SendAll(connections, message) => {
                    self.coordinator_sends(index, &connections, &message);
                }
                Action::Close(_) if self.settings.sabotage == Some(Sabotage::KeepEvictionsSecret) => {}
                Action::Close(ConnectionId(wire)) => self.coordinator_closes(wire),
                Action::Connect { token, to, timeout, disputed } => {
                    self.knock(index, token, to, timeout, disputed);
                }
                Action::Evict(peer) => self.evicted(index, peer),
                Action::Look(peer) => {
                    let node = Node::Coordinator(index);
                    self.tell_member(node, |machine, now| machine.handle_evidence(now, peer));
                }
                Action::Renew(info) => {
                    let node = Node::Coordinator(index);
                    self.tell_member(node, |machine, now| machine.handle_registration(now, info));
                }
                Action::Solve { token, question } => {
                    // Steps are counted, so the answer is the same in every run of the seed.
                    let answer = question.answer(&|| false);
                    self.after(SOLVING, Event::Solved(index, token, answer));
                }
                Action::CallOff(_) => {}
                Action::Note(note) => {
                    let words = format!("coordinator {index}: {note:?}");
                    self.line(|| words.clone());
                    let now = self.now;
                    self.coordinators[index].run.handle_incident(now, &words);
                    match note {
                        Note::Lost(peer, reason) => {
                            self.fact(Fact::Lost { coordinator: index, peer, reason });
                        }
                        Note::Rebuilt(group, _) => {
                            let known = self.known_with(index, group);
                            self.fact(Fact::Rebuilt { coordinator: index, group, known });
                        }
                        _ => {}
                    }
                }
            }
            if !self.coordinators[index].lives {
                return;
            }
        }
        let due = self.coordinators[index].run.poll_timeout();
        let armed = &mut self.coordinators[index].armed;
        if let Some(due) = due.filter(|due| armed.is_none_or(|armed| *due < armed)) {
            *armed = Some(due);
            self.queue.push(due.max(self.now), Event::CoordinatorTimer(index));
        }
    }

    /// Sends one message to some of its peers, unless it dies between two of them.
    fn coordinator_sends(&mut self, index: usize, to: &[ConnectionId], message: &ToPeer) {
        if self.settings.sabotage == Some(Sabotage::DropProceed) && matches!(message, ToPeer::Proceed { .. })
        {
            return;
        }
        if self.settings.sabotage == Some(Sabotage::KeepEvictionsSecret)
            && matches!(message, ToPeer::Kicked { .. })
        {
            return;
        }
        let mut bytes = self.bytes_for_peer(message);
        for ConnectionId(wire) in to {
            self.coordinators[index].sends += 1;
            if matches!(message, ToPeer::Kicked { reason: KickReason::Superseded, .. }) {
                self.superseded(index, *wire);
            }
            if matches!(self.settings.sabotage, Some(Sabotage::FlipVerdict | Sabotage::HideAnAbort)) {
                bytes = self.bytes_for_peer(message);
            }
            self.send_to_peer(*wire, &bytes);
            let sends = self.coordinators[0].sends;
            if self.settings.crash_after_sends.is_some_and(|limit| index == 0 && sends >= limit) {
                let down = self.some(Duration::from_millis(300));
                return self.strike(&Fault::RestartCoordinator(down));
            }
        }
    }

    /// A coordinator is about to tell somebody that the run goes on without it.
    fn superseded(&mut self, index: usize, wire: u64) {
        let Some(peer) = self.names.get(&wire).copied() else { return };
        let Some(process) = self.process_of(peer) else { return };
        let coordinator = &self.coordinators[index];
        // A peer that stood still through a whole reign had its time in that one, and the next tells it so.
        let missed = process.let_on_by.map_or(index, |by| (by + 1).min(index));
        let missed = self.coordinators[missed..index].iter().map(|missed| missed.tenure).max();
        let fact = Fact::Superseded {
            coordinator: index,
            peer,
            reigned: self.now.since(coordinator.since).max(missed.unwrap_or_default()),
            was_let_on: process.let_on_by == Some(index),
            is_behind: coordinator.relapsed.is_some_and(|term| {
                process.obeyed > term || process.let_on_by.is_some_and(|other| other != index)
            }),
        };
        self.fact(fact);
    }

    fn knock(
        &mut self,
        index: usize,
        token: ConnectToken,
        to: SocketAddr,
        timeout: Duration,
        disputed: Option<PeerId>,
    ) {
        let outcome = match self.kernel(Node::Coordinator(index), to) {
            ConnectOutcome::Accepted if self.is_another_at(to, disputed) => ConnectOutcome::Refused,
            outcome => outcome,
        };
        let delay = match outcome {
            ConnectOutcome::Silent => timeout,
            _ => self.some(self.settings.latency_max),
        };
        self.after(delay, Event::Knocked(index, token, outcome));
    }

    /// What the health plane would say, derived from the truth, with its delays.
    fn look_at_health(&mut self) {
        let now = self.now;
        for index in 0..self.processes.len() {
            let process = &mut self.processes[index];
            let has_left = process.phase == Phase::Gone;
            let quiet = process.killed.is_some() || process.stopped.is_some() || now < process.isolated_until;
            match (quiet, process.silent_since) {
                (true, None) => process.silent_since = Some(now),
                (false, Some(_)) => process.silent_since = None,
                _ => {}
            }
            let silence = process.silent_since.map_or(Duration::ZERO, |since| now.since(since));
            // Nobody answers after its end, whenever that is noticed here.
            let answered = (now - silence).min(process.killed.unwrap_or(now));
            let sign = if has_left {
                // Said goodbye to the health group: who has not heard of it otherwise does not hold it for alive.
                Sign::Suspect
            } else if silence < SUSPECT_AFTER {
                Sign::Alive { acked: Some(answered) }
            } else if now < process.isolated_until {
                if silence < Duration::from_secs(5) { Sign::Suspect } else { Sign::Dead(DeathReason::Silent) }
            } else if process.killed.is_some() {
                Sign::Dead(DeathReason::Refused)
            } else if silence < STALL_BUDGET {
                Sign::Stalled
            } else {
                Sign::Dead(DeathReason::StalledTooLong)
            };
            let id = process.id;
            for at in 0..self.coordinators.len() {
                let coordinator = &mut self.coordinators[at];
                if coordinator.lives {
                    let accused =
                        self.settings.sabotage == Some(Sabotage::AccuseTheLiving) && now.as_millis() > 4_000;
                    let sign = match sign {
                        _ if coordinator.deposed => Sign::Suspect,
                        _ if accused && index == 1 => Sign::Dead(DeathReason::SilentTooLong),
                        _ if self.settings.sabotage == Some(Sabotage::AccuseBystander)
                            && index == 0
                            && now.as_millis() > 4_000 =>
                        {
                            Sign::Dead(DeathReason::SilentTooLong)
                        }
                        sign => sign,
                    };
                    coordinator.run.handle_health(now, id, sign);
                    self.drain_coordinator(at);
                }
            }
        }
        self.after(HEALTH_EVERY, Event::HealthTick);
    }

    // Processes.

    pub(super) fn fresh_id(&mut self) -> PeerId {
        self.next_id += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.rng.next_u64().to_be_bytes());
        bytes[8..].copy_from_slice(&self.next_id.to_be_bytes());
        PeerId::from_bytes(bytes)
    }

    fn registration(&mut self, index: usize, group: u32) -> Registration {
        let id = self.fresh_id();
        let mut session = [1; 16];
        session[..8].copy_from_slice(&self.rng.next_u64().to_be_bytes());
        let info = MemberInfo {
            id,
            address: Node::Process(index).address(),
            closed_port: CLOSED_PORT,
            name: format!("p{index}"),
            meta: Vec::new(),
        };
        let (session, encryption) = (SessionId(session), Encryption::On);
        Registration { info, group, session, min_world: 1, encryption, witness: None }
    }

    pub(super) fn spawn(&mut self, group: u32) -> usize {
        let index = self.processes.len();
        let registration = self.registration(index, group);
        let id = registration.info.id;
        let session = session::Session::new(session::Config::preset(Preset::Local), registration);
        let rng = self.rng.split();
        self.processes.push(Process {
            id,
            group,
            session,
            member: None,
            rng,
            connection: None,
            dials: 0,
            links: Links::new(id),
            armed: None,
            calls: BTreeMap::new(),
            serial: 0,
            phase: Phase::Starting,
            step: None,
            members: Vec::new(),
            pending: 0,
            open: 0,
            agree_again: false,
            balloted: None,
            measures: None,
            votes_cast: 0,
            ballot: None,
            training: self
                .settings
                .habits
                .trains
                .then(|| Training::of(index, self.disk.get(&group).copied())),
            resuming: false,
            agreed: None,
            cancelled: Instant::ORIGIN,
            commits: 0,
            extra_attempts: 0,
            errors: 0,
            killed: None,
            stopped: None,
            stopped_total: Duration::ZERO,
            backlog: std::collections::VecDeque::new(),
            control_cut_until: Instant::ORIGIN,
            isolated_until: Instant::ORIGIN,
            silent_since: None,
            blocked_until: Instant::ORIGIN,
            swallowed_until: Instant::ORIGIN,
            went_down: Instant::ORIGIN,
            turned_away: Instant::ORIGIN,
            let_on_by: None,
            obeyed: 0,
        });
        self.by_id.insert(id, index);
        if self.settings.health {
            let member = self.new_member(Node::Process(index), id);
            self.processes[index].member = Some(member);
            self.drain_member(Node::Process(index));
        }
        self.line(|| format!("process {index} of group {group} starts as {}", id.short()));
        let delay = self.some(Duration::from_millis(50));
        self.after(delay, Event::Program(index));
        index
    }

    /// A process that is out comes back: as itself in a new session (rule 45), or as another peer.
    pub(super) fn rename(&mut self, process: usize) {
        self.processes[process].obeyed = 0;
        if self.settings.rejoins {
            return;
        }
        let group = self.processes[process].group;
        let registration = self.registration(process, group);
        let id = registration.info.id;
        self.by_id.insert(id, process);
        self.close_all_links(process, id);
        let process = &mut self.processes[process];
        process.id = id;
        process.session.renew(registration);
    }
}
