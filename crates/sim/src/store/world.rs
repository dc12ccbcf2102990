//! The world: processes, a registrar, and what is under way between them.

use super::broadcasts::Cast;
use super::clients::{Client, Outcome};
use super::deaths;
use super::history::{Event, Verdict};
use crate::report::Violation;
use crate::world::Trace;
use crate::world::queue::Queue;
use crate::world::stage::Stage;
use outlast_proto::id::PeerId;
use outlast_proto::rng::Rng;
use outlast_proto::store::{Config, Member, Registrar, Ticket};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::store::mesh::{Hop, Request};
use outlast_proto::wire::store::operation::{Key, Operation};
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::store::{CallName, ClientId, MemberId, StoreMember};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is played.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many processes there are.
    pub members: usize,
    /// On how many hosts.
    pub hosts: usize,
    /// The store's settings.
    pub config: Config,
    /// How long faults strike.
    pub storm: Duration,
    /// How long the calm may take until every call succeeds.
    pub calm: Duration,
    /// A message takes up to this long.
    pub delay: Duration,
    /// How often a program calls.
    pub every: Duration,
    /// Faults per second: kills, stops, cuts between two, cuts from the registrar, broken links, restarts of the
    /// registrar.
    pub faults: [f64; 6],
    /// How long a stop or a cut lasts at most.
    pub lasts: Duration,
    /// The chance of a frame to come twice, and to come late.
    pub disorder: f64,
    /// Members that leave politely per second.
    pub leaves: f64,
    /// So many of the programs only read: what they own they read from themselves, and nothing that they wrote holds
    /// their answers back. Whoever answers from a view that has passed is found by them.
    pub readers: usize,
    /// Programs also wait for keys, list them, and write values that travel in pieces.
    pub waits: bool,
    /// Whoever is killed is followed by another one, before the store has mended it or a little later.
    pub second_deaths: bool,
    /// Members are also killed while somebody is cut off or stopped for a moment: what the other holder of each key has must
    /// be enough.
    pub kills_in_cuts: bool,
    /// So many clients call that are no members.
    pub clients: usize,
    /// Programs also tell all others something.
    pub broadcasts: bool,
    /// A bug, planted to see whether it is found.
    pub sabotage: Option<Sabotage>,
}

/// Bugs that a checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Leases never end for those who have them.
    EndlessLease,
    /// A replica says that it has what it never got.
    FalseCopy,
    /// A call that is sent again has another name.
    ForgottenName,
    /// What is fetched for a new view is empty.
    EmptyFetch,
    /// A view begins although nobody froze anything.
    NoFreeze,
    /// Now and then an answer does not come, though it was sent.
    LostAnswers,
    /// Who waits for a key is not told that it was set; when it asks again, it is.
    LostWakeUp,
    /// Timers of members ring a second late.
    LateTimers,
    /// One piece of a long value is another one's.
    TornValue,
    /// A list lacks a key.
    ShortList,
    /// Now and then somebody who is there is not told of a broadcast.
    LostBroadcast,
    /// Now and then a broadcast is told twice.
    RepeatedBroadcast,
    /// A client that is no member gives a call another name when it asks somebody else.
    NewNameAgain,
}

pub(super) const KINDS: usize = 6;

#[derive(Debug)]
pub(crate) enum Happening {
    Connected(usize, u32, MemberId, u64),
    Unreachable(usize, u32, MemberId),
    Frame(usize, u32, MemberId, u64, Vec<u8>),
    Disconnected(usize, u32, MemberId, u64),
    Order(usize, u32, u64, FromRegistrar),
    Told(usize, u64, ToRegistrar),
    StreamOpened(usize, u32),
    StreamClosed(u64),
    StreamLost(usize, u32, u64),
    Knocked(MemberId, u32),
    Timer(Option<usize>, Instant),
    Program(usize, u32),
    Start(usize),
    Continue(usize, u32),
    Heal(usize, Option<usize>),
    Fault(usize),
    SecondDeath,
    Leave,
    Client(usize),
    Asked(usize, u32, (usize, CallName), Box<Request>),
    ClientHears(usize, CallName, Outcome),
    ClientLooks(usize, CallName),
}

/// One process, or the place for one.
pub(super) struct Process {
    pub(super) member: Option<Member>,
    pub(super) life: u32,
    pub(super) id: MemberId,
    pub(super) stopped: bool,
    pub(super) held: VecDeque<Happening>,
    pub(super) stream: Option<u64>,
    pub(super) timer: Option<Instant>,
    pub(super) calls: BTreeMap<Ticket, (Key, usize, Instant)>,
    /// Lists of keys that were asked for: when, and until when.
    pub(super) lists: BTreeMap<Ticket, (Instant, Instant)>,
    /// Calls of clients that are no members.
    pub(super) foreign: BTreeMap<Ticket, (usize, CallName)>,
    /// When it last went on after a stop.
    pub(super) went_on: Instant,
    pub(super) leaving: bool,
}

/// See the module's essay.
pub struct World {
    pub(super) now: Instant,
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    pub(super) queue: Queue<Happening>,
    pub(super) processes: Vec<Process>,
    pub(super) ids: BTreeMap<MemberId, usize>,
    pub(super) registrar: Registrar,
    pub(super) registrar_life: u32,
    pub(super) registrar_timer: Option<Instant>,
    /// Pairs of processes, and processes and the registrar (none), that cannot reach each other.
    pub(super) cuts: BTreeSet<(usize, Option<usize>)>,
    /// Connections between two members: a number each.
    pub(super) connections: BTreeMap<(MemberId, MemberId), u64>,
    pub(super) numbers: u64,
    /// When the last frame on a connection and direction arrives.
    pub(super) arrives: BTreeMap<(u64, MemberId), Instant>,
    pub(super) told: BTreeMap<(u64, bool), Instant>,
    pub(super) is_calm: bool,
    pub(super) histories: BTreeMap<Key, Vec<Event>>,
    /// Keys whose holders both died, and when.
    pub(super) lost: BTreeMap<Key, Vec<Instant>>,
    pub(super) clients: Vec<Client>,
    pub(super) values: u64,
    /// Whose waking was kept from them, where that is the bug.
    pub(super) kept_asleep: BTreeSet<(usize, Ticket)>,
    /// What was found.
    pub violations: Vec<Violation>,
    /// Faults that struck, by kind; and calls that ended, by how.
    pub struck: [u64; KINDS + 1],
    /// Calls that were answered, and that were not.
    pub answered: (u64, u64),
    /// Second deaths, and keys that may have been lost by them.
    pub second_deaths: u64,
    /// See [`Self::second_deaths`].
    pub keys_lost: u64,
    /// Kills while somebody was cut off or stopped.
    pub kills_in_trouble: u64,
    /// Histories that were looked at, and those among them that were too hard to judge.
    pub judged: u64,
    /// See [`Self::judged`].
    pub unjudged: u64,
    /// Broadcasts that were sent, and how often one was heard.
    pub broadcasts: (u64, u64),
    /// Those that are on their way: who sent each, when, who was there, and how often each of them has heard it.
    pub(super) casts: BTreeMap<u64, Cast>,
    /// Calls of clients that were answered, and those among them for which a second member was asked.
    pub client_calls: (u64, u64),
    /// The longest that a call took which was answered.
    pub slowest: Duration,
    /// What happened, for people and for replays.
    pub trace: Trace,
}

impl Stage for World {
    type Happening = Happening;

    const ASKED_EVERY: Duration = Duration::from_millis(50);

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
        let mut rng = Rng::from_seed(seed);
        let place = |_| Process {
            member: None,
            life: 0,
            id: MemberId(0),
            stopped: false,
            held: VecDeque::new(),
            stream: None,
            timer: None,
            calls: BTreeMap::new(),
            lists: BTreeMap::new(),
            foreign: BTreeMap::new(),
            went_on: Instant::ORIGIN,
            leaving: false,
        };
        let mut world = Self {
            now: Instant::from_nanos(1_000_000_000),
            registrar: Registrar::new(plan.config.clone(), rng.next_u64()),
            registrar_life: 0,
            registrar_timer: None,
            processes: (0..plan.members).map(place).collect(),
            ids: BTreeMap::new(),
            rng,
            queue: Queue::new(),
            cuts: BTreeSet::new(),
            connections: BTreeMap::new(),
            numbers: 0,
            arrives: BTreeMap::new(),
            told: BTreeMap::new(),
            is_calm: false,
            histories: BTreeMap::new(),
            lost: BTreeMap::new(),
            clients: (0..plan.clients).map(Client::new).collect(),
            values: 0,
            kept_asleep: BTreeSet::new(),
            violations: Vec::new(),
            struck: [0; KINDS + 1],
            answered: (0, 0),
            second_deaths: 0,
            keys_lost: 0,
            kills_in_trouble: 0,
            judged: 0,
            unjudged: 0,
            broadcasts: (0, 0),
            casts: BTreeMap::new(),
            client_calls: (0, 0),
            slowest: Duration::ZERO,
            trace: Trace::new(),
            plan,
        };
        for number in 0..world.processes.len() {
            world.later_within(Duration::from_millis(300), Happening::Start(number));
        }
        let storm = world.plan.storm;
        for kind in 0..KINDS {
            let count = (world.plan.faults[kind] * storm.as_secs_f64()).round() as usize;
            for _ in 0..count {
                let at = Duration::from_secs(1) + storm.mul_f64(world.rng.unit());
                world.later(at, Happening::Fault(kind));
            }
        }
        for _ in 0..(world.plan.leaves * storm.as_secs_f64()).round() as usize {
            let at = Duration::from_secs(1) + storm.mul_f64(world.rng.unit());
            world.later(at, Happening::Leave);
        }
        for number in 0..world.clients.len() {
            world.later_within(Duration::from_secs(1), Happening::Client(number));
        }
        world
    }

    /// Plays the storm and the calm, then judges. How long the calm took until all was well, if it became so.
    pub fn play(&mut self) -> Option<Duration> {
        let storm_ends = self.now + Duration::from_secs(1) + self.plan.storm;
        self.play_until(storm_ends, |_| false);
        self.heal_all();
        let (began, ends) = (self.now, self.now + self.plan.calm);
        let settled = self.play_until(ends, World::is_settled);
        if !settled {
            let what = format!("the store did not come to rest: {:?}", self.registrar.status(self.now));
            self.violate("liveness", what);
            return None;
        }
        let after = self.now - began;
        self.read_everything();
        let ends = self.now + Duration::from_secs(10);
        let all_read =
            self.play_until(ends, |world| world.processes.iter().all(|process| process.calls.is_empty()));
        if !all_read {
            self.violate("liveness", "a read after the heal was not answered".to_owned());
        }
        if self.plan.waits {
            self.wake_everybody();
        }
        self.judge_broadcasts();
        self.judge();
        self.judge_the_judge();
        Some(after)
    }

    /// Every process is in the view, every key is with two, and no call waits.
    pub(super) fn is_settled(&self) -> bool {
        let Some(view) = self.registrar.view() else { return false };
        let is_in = |process: &Process| {
            let member = process.member.as_ref().and_then(|member| member.view());
            member.is_some_and(|other| other.epoch == view.epoch)
        };
        view.members.len() == self.processes.len()
            && self.processes.iter().all(is_in)
            && self.registrar.is_settled()
    }

    /// Every member of the newest view runs and can be reached, so every key is with two of them: whoever dies now takes
    /// nothing along, wherever the store is on its way to another view. Somebody stays, too.
    pub(super) fn is_whole(&self) -> bool {
        let Some(view) = self.registrar.view() else { return false };
        let runs = |process: &&Process| process.member.is_some() && !process.stopped;
        let processes = view
            .members
            .iter()
            .map(|member| self.processes.iter().find(|process| process.id == member.id).filter(runs));
        let stay = processes.clone().flatten().filter(|process| !process.leaving).count();
        stay > 1 && self.cuts.is_empty() && processes.clone().all(|process| process.is_some())
    }

    /// Every member of the newest view lives, though some may be stopped or cut off just now: whoever dies takes nothing
    /// along that nobody else has. Somebody stays, too.
    pub(super) fn is_held_twice(&self) -> bool {
        let Some(view) = self.registrar.view() else { return false };
        let find = |id| self.processes.iter().find(|process| process.id == id && process.member.is_some());
        let processes: Vec<_> = view.members.iter().map(|member| find(member.id)).collect();
        let stay = processes.iter().flatten().filter(|process| !process.leaving).count();
        stay > 1 && processes.iter().all(Option::is_some)
    }

    fn read_everything(&mut self) {
        let keys: Vec<_> = self.histories.keys().cloned().collect();
        for key in keys {
            for number in 0..self.processes.len() {
                let operation =
                    if key == super::acting::queue() { Operation::Length } else { Operation::Look };
                self.call(number, key.clone(), operation, Duration::from_secs(5));
            }
        }
    }

    fn judge(&mut self) {
        for (key, events) in std::mem::take(&mut self.histories) {
            let lost = self.lost.get(&key).map(Vec::as_slice).unwrap_or_default();
            self.judged += 1;
            match deaths::check(lost, &events) {
                Verdict::Linearizable => {}
                Verdict::Impossible => {
                    let what =
                        format!("no order of the {} calls on {key:?} gives their answers", events.len());
                    self.violate("linearizable", what);
                }
                Verdict::TooHard => {
                    // Nothing was judged then. Queues of which many calls were not answered are as hard as that.
                    self.unjudged += 1;
                    let what = format!("the order of {} calls on {key:?} was not found", events.len());
                    self.trace.line(self.now, &what);
                }
            }
        }
    }

    /// A world of which more than half was not judged has shown nothing.
    fn judge_the_judge(&mut self) {
        if 2 * self.unjudged > self.judged {
            let what = format!("{} of {} histories were too hard to judge", self.unjudged, self.judged);
            self.violate("unjudged", what);
        }
    }

    /// What happened beside the usual, in words.
    pub(super) fn extra(&self) -> String {
        let (answered, again) = self.client_calls;
        let deaths = self
            .plan
            .second_deaths
            .then(|| format!("; {} second deaths, {} keys perhaps lost", self.second_deaths, self.keys_lost));
        let clients = (self.plan.clients > 0)
            .then(|| format!("; {answered} calls of clients answered, {again} of them by another member"));
        let in_trouble = self
            .plan
            .kills_in_cuts
            .then(|| format!("; {} kills while somebody was cut off or stopped", self.kills_in_trouble));
        let (sent, heard) = self.broadcasts;
        let casts = (sent > 0).then(|| format!("; {sent} broadcasts heard {heard} times"));
        let unjudged = (self.unjudged > 0)
            .then(|| format!("; {} of {} histories were too hard to judge", self.unjudged, self.judged));
        deaths.into_iter().chain(unjudged).chain(clients).chain(in_trouble).chain(casts).collect()
    }

    pub(super) fn violate(&mut self, checker: &'static str, what: String) {
        self.trace.line(self.now, &format!("VIOLATION {checker}: {what}"));
        self.violations.push(Violation { checker, at: self.now, what });
    }

    pub(super) fn later(&mut self, after: Duration, happening: Happening) {
        self.queue.push(self.now + after, happening);
    }

    pub(super) fn later_within(&mut self, within: Duration, happening: Happening) {
        let after = within.mul_f64(self.rng.unit());
        self.later(after, happening);
    }

    pub(super) fn start(&mut self, number: usize) {
        let (id, now) = (MemberId(self.rng.next_u64()), self.now);
        let process = &mut self.processes[number];
        process.life += 1;
        process.id = id;
        (process.stopped, process.leaving, process.stream, process.timer) = (false, false, None, None);
        process.held.clear();
        let host = number % self.plan.hosts;
        let me = StoreMember {
            id,
            peer: peer(number, process.life),
            client: ClientId(self.rng.next_u64()),
            rank: number as u32,
            address: ([10, 0, host as u8, number as u8], 1).into(),
            closed_port: 0,
            name: format!("p{number}"),
            host: host as u64,
            ends_store: false,
        };
        process.member = Some(Member::new(now, self.plan.config.clone(), me));
        let life = process.life;
        self.ids.insert(id, number);
        self.trace.line(now, &format!("process {number} starts as {id:?}"));
        self.later(Duration::from_millis(1), Happening::StreamOpened(number, life));
        let every = self.plan.every;
        self.later_within(every, Happening::Program(number, life));
    }

    pub(super) fn can_reach(&self, one: usize, two: Option<usize>) -> bool {
        let pair = two.map_or((one, None), |two| (one.min(two), Some(one.max(two))));
        !self.cuts.contains(&pair)
    }
}

pub(super) fn peer(number: usize, life: u32) -> PeerId {
    let mut bytes = [0; 16];
    bytes[0] = number as u8;
    bytes[1..5].copy_from_slice(&life.to_le_bytes());
    PeerId::from_bytes(bytes)
}

/// A frame as it travels.
pub(super) fn bytes(hop: &Hop) -> Vec<u8> {
    outlast_proto::wire::encode(hop)
}
