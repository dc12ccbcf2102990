//! The world: nodes, one register, and what is under way between them.

use super::checkers::{Checkers, Fact};
use crate::world::Trace;
use crate::world::queue::Queue;
use crate::world::stage::Stage;
use outlast_proto::rendezvous::{
    Machine, Node, Operation, Register, Request, Round, Settings, State, Written, picture,
};
use outlast_proto::rng::Rng;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::register::{Snapshot, Token};
use std::collections::VecDeque;

/// How a restarted register listens, and how long a node takes at most to come back to it.
pub(super) const LISTENS: Duration = Duration::from_secs(5);
/// How often a program looks whether it should meet again.
const LOOKS_EVERY: Duration = Duration::from_millis(500);
/// How much later a change of leases alone is told.
pub(super) const LEASES_LATER: Duration = Duration::from_millis(50);

/// What is played.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many nodes there are.
    pub nodes: usize,
    /// What all of them know.
    pub settings: Settings,
    /// Over how long they start.
    pub starts_within: Duration,
    /// How long faults strike.
    pub storm: Duration,
    /// How long they may take to agree afterwards.
    pub calm: Duration,
    /// A message takes this long; so messages of one connection keep their order.
    pub delay: Duration,
    /// A change takes up to this long to be told; many become one meanwhile.
    pub news_delay: Duration,
    /// Nodes that are killed per second; they return under another process id.
    pub kills: f64,
    /// Nodes that are stopped per second, for up to two leases.
    pub stops: f64,
    /// Connections that break per second, with whatever was under way.
    pub breaks: f64,
    /// Registers that are restarted per second.
    pub restarts: f64,
    /// Whether the register keeps what nodes leave beside their leases; not every backend does.
    pub keeps_notes: bool,
    /// A bug, planted to see whether it is found.
    pub sabotage: Option<Sabotage>,
}

/// Bugs that a checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The register takes every write, whatever its writer knew.
    AnyToken,
    /// The register takes writes of those whose lease has run out.
    AnyLease,
    /// Leases never run out.
    Immortal,
    /// Every node is told that every write of it was lost.
    Unlucky,
    /// Changes are told to nobody.
    Silence,
    /// The order of ranks is turned around with every write.
    TurnedRoster,
    /// All nodes believe that there is one place more.
    Crowd,
    /// Spares of a full round are written down as nodes that wait for the next one.
    WaitingSpares,
}

#[derive(Debug)]
pub(crate) enum Happening {
    /// A request of a node's incarnation reaches the register.
    Asked(usize, u32, Request),
    /// An answer reaches a node.
    Answered(usize, u32, Answer),
    /// The newest news reach a node.
    News(usize, u32),
    /// A node's timer, or the register's, set for that moment.
    Timer(Option<usize>, Instant),
    /// A program looks around.
    Look(usize, u32),
    /// A node starts.
    Start(usize),
    /// A stopped node goes on.
    Continue(usize, u32),
    /// A node reaches the register again after its connection broke.
    Reconnect(usize, u32),
    /// A fault of one kind.
    Fault(Fault),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Kill,
    Stop,
    Break,
    Restart,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Told(Snapshot),
    Written(Written, Snapshot),
    Beaten,
}

/// One host, with a process on it or not.
pub(super) struct Host {
    pub(super) machine: Option<Machine>,
    /// Which process this is; also its connection: whatever belongs to an older one is lost.
    pub(super) incarnation: u32,
    pub(super) connection: u32,
    pub(super) node: Node,
    pub(super) stopped: bool,
    /// What arrived while it was stopped.
    pub(super) held: VecDeque<Happening>,
    pub(super) is_connected: bool,
    /// The newest that it was told.
    pub(super) last: Option<Snapshot>,
    /// When news reach it that are under way.
    pub(super) news_due: Option<Instant>,
    /// What its driver remembers of its lease, for a new connection: how long it lasts, and the note beside it.
    pub(super) lease: Option<(Duration, Vec<u8>)>,
    /// The round that its program trains in.
    pub(super) round: Option<Round>,
    pub(super) writes: u32,
    /// When its timer fires; others that were set before are stale.
    pub(super) timer: Option<Instant>,
}

/// See the module's essay.
pub struct World {
    pub(super) now: Instant,
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    pub(super) queue: Queue<Happening>,
    pub(super) register: Register,
    pub(super) register_timer: Option<Instant>,
    pub(super) told_changes: u64,
    pub(super) told_token: Token,
    /// What was asked of a register that listens: it is answered when it has listened.
    pub(super) unanswered: Vec<(usize, u32, Request)>,
    pub(super) hosts: Vec<Host>,
    pub(super) is_calm: bool,
    pub(super) checkers: Checkers,
    /// What happened, for people and for replays.
    pub trace: Trace,
}

impl Stage for World {
    type Happening = Happening;

    const ASKED_EVERY: Duration = Duration::from_millis(200);

    fn time(&mut self) -> (&mut Instant, &mut Queue<Happening>) {
        (&mut self.now, &mut self.queue)
    }

    fn let_happen(&mut self, happening: Happening) {
        self.happen(happening);
    }
}

impl World {
    /// A world at its beginning.
    pub fn new(plan: Plan, seed: u64) -> Self {
        let host = |number: usize| Host {
            machine: None,
            incarnation: 0,
            connection: 0,
            node: Node { host: format!("host-{number:04}"), pid: 0, local_id: 0 },
            stopped: false,
            held: VecDeque::new(),
            is_connected: false,
            last: None,
            news_due: None,
            lease: None,
            round: None,
            writes: 0,
            timer: None,
        };
        let checkers = Checkers::new(plan.settings.clone());
        let mut world = Self {
            now: Instant::from_nanos(1_000_000_000),
            rng: Rng::from_seed(seed),
            queue: Queue::new(),
            register: Register::fresh(),
            register_timer: None,
            told_changes: 0,
            told_token: Token::default(),
            unanswered: Vec::new(),
            hosts: (0..plan.nodes).map(host).collect(),
            is_calm: false,
            checkers,
            trace: Trace::new(),
            plan,
        };
        for number in 0..world.hosts.len() {
            let within = world.plan.starts_within;
            world.later_within(within, Happening::Start(number));
        }
        let faults = [
            (world.plan.kills, Fault::Kill),
            (world.plan.stops, Fault::Stop),
            (world.plan.breaks, Fault::Break),
            (world.plan.restarts, Fault::Restart),
        ];
        for (rate, fault) in faults {
            let count = (rate * world.plan.storm.as_secs_f64()).round() as usize;
            for _ in 0..count {
                let within = world.plan.storm;
                world.later_within(within, Happening::Fault(fault));
            }
        }
        world
    }

    /// Plays the storm and the calm. How long the calm took until all had found a place, if they did.
    pub fn play(&mut self) -> Option<Duration> {
        let storm_ends = self.now + self.plan.storm;
        self.play_until(storm_ends, |_| false);
        self.heal();
        let began = self.now;
        let ends = began + self.plan.calm;
        let settled = self.play_until(ends, World::is_settled);
        if !settled {
            let (now, standing) = (self.now, self.standing());
            self.checkers.stranded(now, &standing);
        }
        settled.then(|| self.now - began)
    }

    /// All who live are in one complete round, or wait for a place in one that is full.
    fn is_settled(&self) -> bool {
        let Some(state) = self.state() else { return false };
        let seat = |host: &&Host| host.round.as_ref().is_some_and(|round| round.round == state.round);
        let seated = self.hosts.iter().filter(seat).count();
        let in_round = self.hosts.iter().filter(seat).all(|host| state.participants.contains_key(&host.node));
        let spare = |host: &Host| state.redundancy_list.contains(&host.node);
        let placed = |host: &Host| host.machine.is_some() && (seat(&host) || spare(host));
        let enough = self.plan.nodes.min(self.plan.settings.max_nodes);
        state.complete && seated == enough && in_round && self.hosts.iter().all(placed)
    }

    /// What was written, as all who live want it: not everybody who has a place is written down.
    pub(super) fn state(&self) -> Option<State> {
        picture(&self.register.snapshot()?, &self.plan.settings).ok()
    }

    /// How everybody stands, for whoever must find out why it did not end.
    fn standing(&self) -> String {
        let state = self.state().map_or("nothing is written".to_owned(), |state| {
            format!(
                "round {} complete {} with {} participants, {} wait, {} spare",
                state.round,
                state.complete,
                state.participants.len(),
                state.wait_list.len(),
                state.redundancy_list.len()
            )
        });
        let busy =
            self.hosts.iter().filter(|host| host.machine.as_ref().is_some_and(Machine::is_busy)).count();
        let gone = self.hosts.iter().filter(|host| host.machine.is_none()).count();
        format!("{state}; {busy} nodes are in a call, {gone} are gone")
    }

    pub(super) fn later(&mut self, after: Duration, happening: Happening) {
        self.queue.push(self.now + after, happening);
    }

    pub(super) fn later_within(&mut self, within: Duration, happening: Happening) {
        let after = within.mul_f64(self.rng.unit());
        self.later(after, happening);
    }

    pub(super) fn start(&mut self, number: usize) {
        let rng = self.rng.split();
        let host = &mut self.hosts[number];
        host.incarnation += 1;
        host.connection += 1;
        host.node.pid = host.incarnation;
        host.is_connected = true;
        host.last = None;
        host.round = None;
        host.news_due = None;
        host.lease = None;
        host.timer = None;
        let address = format!("{}:1", host.node);
        let mut settings = self.plan.settings.clone();
        settings.max_nodes += usize::from(self.plan.sabotage == Some(Sabotage::Crowd));
        host.machine = Some(Machine::new(settings, host.node.clone(), address, rng));
        let incarnation = host.incarnation;
        self.trace.line(self.now, &format!("host {number} starts process {incarnation}"));
        self.meet(number);
        self.later(LOOKS_EVERY, Happening::Look(number, incarnation));
    }

    /// The program wants to be in the next round.
    pub(super) fn meet(&mut self, number: usize) {
        let now = self.now;
        let host = &mut self.hosts[number];
        host.round = None;
        host.writes = 0;
        let Some(machine) = &mut host.machine else { return };
        machine.handle_operation(now, Operation::Next);
        self.pump(number);
    }

    pub(super) fn look(&mut self, number: usize, incarnation: u32) {
        let host = &self.hosts[number];
        if host.incarnation != incarnation {
            return;
        }
        self.later(LOOKS_EVERY, Happening::Look(number, incarnation));
        let host = &self.hosts[number];
        let Some(machine) = host.machine.as_ref().filter(|_| !host.stopped) else { return };
        let calls = |state: &State| {
            let mine = host.round.as_ref().map(|round| round.round);
            state.waiting() > 0 || !state.participants.contains_key(&host.node) || mine != Some(state.round)
        };
        if !machine.is_busy() && machine.state().is_some_and(calls) {
            self.meet(number);
        }
    }

    pub(super) fn report(&mut self, fact: Fact) {
        let now = self.now;
        self.trace.line(now, &fact.to_string());
        self.checkers.see(now, &fact);
    }
}
