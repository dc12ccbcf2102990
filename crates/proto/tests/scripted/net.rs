//! The net: peers by number, one coordinator, connections that the test makes and breaks, a clock that it turns.
//!
//! Messages wait in both directions until the test delivers them ([`Net::upload`], [`Net::download`], or all with
//! [`Net::settle`]), and travel as bytes. Links come up at once unless they are in [`Net::cut_links`]. The executor
//! moves nothing: an attempt is performed until the test says [`Net::done`], or is stopped at once when it is aborted.

#![allow(dead_code, unused_imports, reason = "a bench for all scripts")]

pub(crate) use outlast_proto::collective::{BrokenLink, DataType, Fingerprint, Group, OpKey, OpKind, Scope};
pub(crate) use outlast_proto::coordinator::{self, ConnectionId, Note, Run, Sign};
pub(crate) use outlast_proto::id::PeerId;
pub(crate) use outlast_proto::membership::{ConnectOutcome, Preset};
pub(crate) use outlast_proto::session::{
    self, CallError, CallId, Command, Done, Op, OutReason, Outcome, PerformResult, Session,
};
pub(crate) use outlast_proto::time::{Duration, Instant};
pub(crate) use outlast_proto::wire::control::*;
pub(crate) use outlast_proto::wire::membership::{DeathReason, MemberInfo};
use outlast_proto::wire::{self, Message};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A call that never runs out of time in a script.
pub(crate) const LONG: Duration = Duration::from_mins(1);

pub(crate) fn id(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn info(number: u8) -> MemberInfo {
    let address = ([10, 0, 0, number], 7_000).into();
    MemberInfo { id: id(number), address, closed_port: 0, name: format!("p{number}"), meta: Vec::new() }
}

pub(crate) fn registration(number: u8, group: Group) -> Registration {
    Registration {
        info: info(number),
        group,
        session: SessionId([number; 16]),
        min_world: 1,
        encryption: Encryption::On,
        witness: None,
    }
}

pub(crate) fn reduce(retry: bool) -> Fingerprint {
    Fingerprint { retry, ..Fingerprint::new(OpKind::AllReduce, DataType::F32, [8]) }
}

pub(crate) fn barrier() -> Fingerprint {
    Fingerprint::new(OpKind::Barrier, DataType::U8, [])
}

pub(crate) fn broadcast(root: u8) -> Fingerprint {
    Fingerprint { root: Some(id(root)), ..Fingerprint::new(OpKind::Broadcast, DataType::F32, [8]) }
}

/// One peer's process: its session, its connection and what is on its way.
pub(crate) struct Peer {
    pub(crate) session: Session,
    /// The connection to the coordinator that both ends believe in.
    pub(crate) at: Option<ConnectionId>,
    /// Whether the session waits for its dial to succeed.
    pub(crate) dialling: bool,
    pub(crate) up: VecDeque<ToCoordinator>,
    pub(crate) down: VecDeque<ToPeer>,
    pub(crate) performing: BTreeMap<CallId, OpKey>,
    pub(crate) ended: BTreeMap<CallId, Outcome>,
    /// What it heard and what its session had its driver do, to be printed when a script fails.
    pub(crate) log: Vec<String>,
}

/// All of it.
pub(crate) struct Net {
    pub(crate) run: Run,
    pub(crate) now: Instant,
    pub(crate) peers: BTreeMap<u8, Peer>,
    /// Links that cannot be dialled, by the end that sends and the end that receives.
    pub(crate) cut_links: BTreeSet<(u8, u8)>,
    pub(crate) notes: Vec<Note>,
    next_connection: u64,
}

impl Net {
    /// A coordinator that nobody has come to.
    pub(crate) fn new() -> Self {
        Self {
            run: Run::new(coordinator::Config::preset(Preset::Local)),
            now: Instant::from_nanos(1_000_000_000),
            peers: BTreeMap::new(),
            cut_links: BTreeSet::new(),
            notes: Vec::new(),
            next_connection: 0,
        }
    }

    /// A group 0 of these members in epoch 1, all links up, no call open.
    pub(crate) fn of(numbers: &[u8]) -> Self {
        let mut net = Self::new();
        for number in numbers {
            net.join(*number, 0, numbers.len() as u32);
        }
        net.settle();
        for number in numbers {
            assert_eq!(net.record(*number).roster.len(), numbers.len());
        }
        net
    }

    // Programs.

    /// A new process calls `connect`, and its connection is there.
    pub(crate) fn join(&mut self, number: u8, group: Group, min_world: u32) -> CallId {
        let session = Session::new(session::Config::preset(Preset::Local), registration(number, group));
        let peer = Peer {
            session,
            at: None,
            dialling: false,
            up: VecDeque::new(),
            down: VecDeque::new(),
            performing: BTreeMap::new(),
            ended: BTreeMap::new(),
            log: Vec::new(),
        };
        self.peers.insert(number, peer);
        let now = self.now;
        let call = self.peer(number).session.handle_connect_call(now, min_world, now + LONG);
        self.drain(number);
        self.connect(number);
        call
    }

    /// The program calls a collective of the whole group, tag 0.
    pub(crate) fn call(&mut self, number: u8, fingerprint: Fingerprint, timeout: Duration) -> CallId {
        self.call_in(number, Scope::Whole, 0, fingerprint, timeout)
    }

    pub(crate) fn call_in(
        &mut self,
        number: u8,
        scope: Scope,
        tag: u64,
        fingerprint: Fingerprint,
        timeout: Duration,
    ) -> CallId {
        let now = self.now;
        let op = Op { scope, tag, fingerprint, deadline: now + timeout, members: None };
        let call = self.peer(number).session.handle_op_call(now, op);
        self.drain(number);
        call
    }

    /// The same call by each of them, within [`LONG`].
    pub(crate) fn all_call(&mut self, numbers: &[u8], fingerprint: &Fingerprint) -> Vec<(u8, CallId)> {
        numbers.iter().map(|number| (*number, self.call(*number, fingerprint.clone(), LONG))).collect()
    }

    /// The program calls `update_topology`.
    pub(crate) fn vote(&mut self, number: u8, min_world: u32) -> CallId {
        let now = self.now;
        let call = self.peer(number).session.handle_admission_call(now, min_world, now + LONG);
        self.drain(number);
        call
    }

    pub(crate) fn leave(&mut self, number: u8) {
        let now = self.now;
        self.peer(number).session.handle_leave(now, true);
        self.drain(number);
    }

    /// The executor has the result of the attempt at hand.
    pub(crate) fn done(&mut self, number: u8, call: CallId) {
        self.performed(number, call, PerformResult::Done);
    }

    pub(crate) fn performed(&mut self, number: u8, call: CallId, result: PerformResult) {
        let now = self.now;
        let peer = self.peer(number);
        assert!(peer.performing.remove(&call).is_some(), "peer {number} performs {call:?}");
        peer.session.handle_performed(now, call, result);
        self.drain(number);
    }

    /// Whatever is being performed anywhere is done, and everything follows.
    pub(crate) fn all_done(&mut self) {
        self.settle();
        for number in self.numbers() {
            for call in self.peers[&number].performing.keys().copied().collect::<Vec<_>>() {
                self.done(number, call);
            }
        }
        self.settle();
    }

    // Connections.

    /// The session's dial succeeds.
    pub(crate) fn connect(&mut self, number: u8) {
        self.next_connection += 1;
        let (at, now) = (ConnectionId(self.next_connection), self.now);
        let peer = self.peer(number);
        assert!(std::mem::take(&mut peer.dialling), "peer {number} has dialled");
        peer.at = Some(at);
        peer.session.handle_connected(now);
        self.drain(number);
    }

    /// A connection breaks; what was on its way is lost, and both ends notice.
    pub(crate) fn cut(&mut self, number: u8) {
        if let Some(at) = self.hang_up(number) {
            self.run.handle_closed(self.now, at);
            self.drain_run();
        }
    }

    /// The peer's end of the connection is gone, and the coordinator has not noticed.
    pub(crate) fn hang_up(&mut self, number: u8) -> Option<ConnectionId> {
        let now = self.now;
        let peer = self.peer(number);
        peer.up.clear();
        peer.down.clear();
        let at = peer.at.take();
        peer.session.handle_disconnected(now);
        self.drain(number);
        at
    }

    /// The time to dial again has come, and the dial succeeds.
    pub(crate) fn redial(&mut self, number: u8) {
        self.now += ms(600);
        let now = self.now;
        self.peer(number).session.handle_timeout(now);
        self.drain(number);
        self.connect(number);
    }

    /// The coordinator dies with all that it knows, and another is started in its place. The peers notice.
    pub(crate) fn restart_coordinator(&mut self) {
        self.run = Run::new(coordinator::Config::preset(Preset::Local));
        for number in self.numbers() {
            if self.peers[&number].at.is_some() {
                self.hang_up(number);
            }
        }
    }

    // Delivery.

    /// Delivers all that a peer has sent.
    pub(crate) fn upload(&mut self, number: u8) {
        while self.upload_one(number).is_some() {}
    }

    pub(crate) fn upload_one(&mut self, number: u8) -> Option<ToCoordinator> {
        let at = self.peers[&number].at?;
        let message = self.peer(number).up.pop_front()?;
        let message = travelled(&message);
        self.run.handle_message(self.now, at, id(number), message.clone());
        self.drain_run();
        Some(message)
    }

    /// Delivers the next message to a peer.
    pub(crate) fn download(&mut self, number: u8) -> Option<ToPeer> {
        let now = self.now;
        let peer = self.peer(number);
        let message = travelled(&peer.down.pop_front()?);
        peer.log.push(format!("<- {message:?}"));
        peer.session.handle_message(now, message.clone());
        self.drain(number);
        Some(message)
    }

    /// Delivers the greetings that wait for these peers, and the promises that answer them.
    pub(crate) fn promise(&mut self, numbers: &[u8]) {
        for _ in 0..2 {
            for number in numbers {
                while let Some(ToPeer::Resumed { .. }) = self.peers[number].down.front() {
                    self.download(*number);
                }
                self.upload(*number);
            }
        }
    }

    /// Delivers everything everywhere, and whatever follows from it.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut moved = false;
            for number in self.numbers() {
                moved |= self.upload_one(number).is_some() | self.download(number).is_some();
            }
            if !moved {
                return;
            }
        }
        panic!("the talk between coordinator and peers does not end");
    }

    /// Lets that much time pass: timers fire in their order, and everything is delivered at once. Who has dialled
    /// stays unconnected until the test connects it.
    pub(crate) fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.settle();
            let sessions = self.peers.values().filter_map(|peer| peer.session.poll_timeout());
            let due = sessions.chain(self.run.poll_timeout()).min().filter(|due| *due <= until);
            let Some(due) = due else { break };
            self.now = self.now.max(due);
            self.tick();
        }
        self.now = until;
    }

    /// Everybody looks at the clock.
    pub(crate) fn tick(&mut self) {
        let now = self.now;
        self.run.handle_timeout(now);
        self.drain_run();
        for number in self.numbers() {
            self.peer(number).session.handle_timeout(now);
            self.drain(number);
        }
    }

    /// What the health plane tells the coordinator.
    pub(crate) fn health(&mut self, number: u8, sign: Sign) {
        self.run.handle_health(self.now, id(number), sign);
        self.drain_run();
    }

    // Looking.

    pub(crate) fn peer(&mut self, number: u8) -> &mut Peer {
        self.peers.get_mut(&number).unwrap_or_else(|| panic!("there is no peer {number}"))
    }

    pub(crate) fn numbers(&self) -> Vec<u8> {
        self.peers.keys().copied().collect()
    }

    /// The epoch that a member is in.
    pub(crate) fn record(&self, number: u8) -> &EpochRecord {
        let peer = &self.peers[&number];
        let out = peer.session.out();
        peer.session.record().unwrap_or_else(|| panic!("peer {number} is a member; out: {out:?}"))
    }

    pub(crate) fn members(&self, number: u8) -> Vec<PeerId> {
        self.record(number).roster.iter().map(|info| info.id).collect()
    }

    pub(crate) fn outcome(&self, number: u8, call: CallId) -> Option<&Outcome> {
        self.peers[&number].ended.get(&call)
    }

    /// Why a peer's session is over.
    pub(crate) fn out(&self, number: u8) -> Option<&OutReason> {
        self.peers[&number].session.out()
    }

    /// Nobody was put out.
    pub(crate) fn assert_all_in(&self, numbers: &[u8]) {
        for number in numbers {
            assert_eq!(self.out(*number), None, "peer {number}:\n{}", self.story(*number));
        }
    }

    /// What a peer heard and did.
    pub(crate) fn story(&self, number: u8) -> String {
        self.peers[&number].log.join("\n")
    }

    // What the machines want done.

    fn drain(&mut self, number: u8) {
        while let Some(action) = self.peer(number).session.poll_action() {
            match action {
                session::Action::Dial => self.peer(number).dialling = true,
                session::Action::HangUp => {
                    self.upload(number); // What was sent before is on its way.
                    let peer = self.peer(number);
                    peer.dialling = false;
                    if let Some(at) = peer.at.take() {
                        self.run.handle_closed(self.now, at);
                        self.drain_run();
                    }
                }
                session::Action::Send(message) => self.peer(number).up.push_back(message),
                session::Action::OpenEpoch(record) => self.open_links(number, &record),
                session::Action::Prepare(_, question) => {
                    self.peer(number).session.handle_prepared(question, None);
                }
                // Nobody answers dials of broken links unless a script does.
                session::Action::Redial(..) | session::Action::Relink(_) => {}
                session::Action::Slowed(_) | session::Action::CalledLast(..) => {}
                session::Action::Call(call, command) => self.obey(number, call, command),
            }
        }
    }

    fn obey(&mut self, number: u8, call: CallId, command: Command) {
        let now = self.now;
        let peer = self.peer(number);
        peer.log.push(format!("{call:?} {command:?}"));
        match command {
            Command::Perform(attempt) => drop(peer.performing.insert(call, attempt.key)),
            Command::Abort => {
                if peer.performing.remove(&call).is_some() {
                    peer.session.handle_performed(now, call, PerformResult::Stopped);
                }
            }
            Command::Finish(outcome) => drop(peer.ended.insert(call, outcome)),
            Command::Commit | Command::Undo => {}
        }
    }

    fn open_links(&mut self, number: u8, record: &EpochRecord) {
        let ring: Vec<_> = record.ring.iter().map(|rank| record.roster[*rank as usize].id).collect();
        let place = ring.iter().position(|peer| *peer == id(number)).expect("it is in its own ring");
        let next = ring[(place + 1) % ring.len()];
        let cut = self.cut_links.iter().any(|(from, to)| *from == number && id(*to) == next);
        let peer = self.peer(number);
        peer.log.push(format!("epoch {} with ring {ring:?}", record.epoch));
        if cut {
            let broken = BrokenLink::towards(id(number), next, "no route to host");
            peer.session.handle_link_broken(record.epoch, broken, true);
        } else {
            peer.session.handle_links_up(record.epoch);
        }
    }

    fn drain_run(&mut self) {
        while let Some(action) = self.run.poll_action() {
            match action {
                coordinator::Action::Send(at, message) => self.post(at, &message),
                coordinator::Action::SendAll(all, message) => {
                    all.into_iter().for_each(|at| self.post(at, &message));
                }
                // The peer finds the end of the stream behind what was sent before.
                coordinator::Action::Close(at) => self.run.handle_closed(self.now, at),
                coordinator::Action::Note(note) => self.notes.push(note),
                _ => {}
            }
        }
    }

    fn post(&mut self, at: ConnectionId, message: &ToPeer) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.at == Some(at)) {
            peer.down.push_back(message.clone());
        }
    }
}

/// A message as the other side reads it.
fn travelled<M: Message>(message: &M) -> M {
    wire::decode(&wire::encode(message)).expect("what is sent can be read")
}
