//! One state of the model, and what may happen in it.

use super::{Budget, Sabotage};
use crate::explore::held::Held;
use crate::explore::search::Violation;
use outlast_proto::id::PeerId;
use outlast_proto::store::registrar::{Command, Knocked, StreamId};
use outlast_proto::store::{Action, Config, Member, Registrar};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::store::mesh::{Hop, Letter};
use outlast_proto::wire::store::operation::{Answer, Key, Operation};
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::store::{ClientId, MemberId, StoreMember};
use outlast_proto::wire::{decode, encode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// How long the program waits for an answer: beyond everything that a fault may cost.
const DEADLINE: Duration = Duration::from_mins(2);
/// Jumps of the clock after which somebody hangs.
const JUMPS_MAX: usize = 5_000;

/// One thing that happens. Members are numbered from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The registrar reads the next word of a member.
    Told(u8),
    /// A member reads the next word of the registrar.
    Order(u8),
    /// The second reads the next frame of the first.
    Frame(u8, u8),
    /// The second notices that the first is gone.
    Gone(u8, u8),
    /// The registrar notices that.
    Closed(u8),
    /// A member notices that its registrar was killed, and registers with the next.
    Redial(u8),
    /// The program of a member calls.
    Call(u8),
    /// The next member comes.
    Join,
    /// A member says goodbye.
    Leave(u8),
    /// A member is killed.
    Kill(u8),
    /// The registrar is killed, and another is there.
    Restart,
    /// Time passes, up to the next timer.
    Jump,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// See the module's essay.
#[derive(Clone, Debug, Hash)]
pub struct State {
    now: Instant,
    config: Config,
    budget: Budget,
    /// Who lives. Those who were killed or have left are not there.
    members: BTreeMap<u8, Held<Member>>,
    registrar: Held<Registrar>,
    /// How many registrars there were before.
    restarts: u64,
    /// Words under way to the registrar, and from it. A stream that is closed is in none.
    up: BTreeMap<u8, VecDeque<ToRegistrar>>,
    down: BTreeMap<u8, VecDeque<FromRegistrar>>,
    /// Members whose stream belongs to a registrar that was killed.
    stale: BTreeSet<u8>,
    /// Streams of members that are gone, which the registrar has not noticed.
    unnoticed: BTreeSet<u8>,
    /// Links, and what is under way on them, from the first to the second.
    links: BTreeMap<(u8, u8), VecDeque<Hop>>,
    leaving: BTreeSet<u8>,
    begun: u64,
    acknowledged: u64,
    failed: u64,
    /// Somebody who lives was put out of the store.
    put_out: bool,
    /// Machines that may want something. Empty between two events.
    touched: BTreeSet<u8>,
    registrar_touched: bool,
}

fn key() -> Key {
    Key::value("number")
}

fn id(number: u8) -> MemberId {
    MemberId(u64::from(number) + 1)
}

fn number(id: MemberId) -> u8 {
    (id.0 - 1) as u8
}

fn peer(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

impl State {
    /// So many members in one view, with nothing under way.
    pub(super) fn settled(config: &Config, members: usize, budget: Budget) -> Self {
        let nothing = Budget { joins: members as u8, leaves: 0, kills: 0, restarts: 0, calls: 0, jumps: 0 };
        let mut state = Self {
            now: Instant::ORIGIN + Duration::from_secs(1),
            config: config.clone(),
            budget: nothing,
            members: BTreeMap::new(),
            registrar: Held::new(Registrar::new(config.clone(), 100)),
            restarts: 0,
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            stale: BTreeSet::new(),
            unnoticed: BTreeSet::new(),
            links: BTreeMap::new(),
            leaving: BTreeSet::new(),
            begun: 0,
            acknowledged: 0,
            failed: 0,
            put_out: false,
            touched: BTreeSet::new(),
            registrar_touched: false,
        };
        for _ in 0..members {
            state.happen(Event::Join, None);
            state.rest(None);
        }
        assert_eq!(state.budget.joins, 0, "all have come");
        assert!(state.is_settled(members), "they are in one view");
        state.budget = budget;
        state
    }

    fn is_settled(&self, members: usize) -> bool {
        self.registrar.is_settled() && self.registrar.view().is_some_and(|view| view.members.len() == members)
    }

    /// All that may happen next.
    pub(super) fn events(&self) -> Vec<Event> {
        let told =
            self.up.iter().filter(|(_, words)| !words.is_empty()).map(|(member, _)| Event::Told(*member));
        let orders = self.down.iter().filter(|(_, words)| !words.is_empty());
        let orders = orders.map(|(member, _)| *member).filter(|member| self.members.contains_key(member));
        let frames = self.links.iter().filter(|((_, to), _)| self.members.contains_key(to));
        let frames =
            frames.filter(|(_, frames)| !frames.is_empty()).map(|((from, to), _)| Event::Frame(*from, *to));
        let gone = self
            .links
            .keys()
            .filter(|(from, to)| !self.members.contains_key(from) && self.members.contains_key(to));
        let mut events: Vec<_> = told
            .chain(orders.map(Event::Order))
            .chain(frames)
            .chain(gone.map(|(from, to)| Event::Gone(*from, *to)))
            .chain(self.unnoticed.iter().map(|member| Event::Closed(*member)))
            .chain(self.stale.iter().map(|member| Event::Redial(*member)))
            .collect();
        let Budget { joins, leaves, kills, restarts, calls, jumps } = self.budget;
        let all = || self.members.keys().copied();
        if calls > 0 {
            events.extend(all().map(Event::Call));
        }
        if joins > 0 {
            events.push(Event::Join);
        }
        if leaves > 0 {
            events.extend(all().map(Event::Leave));
        }
        if kills > 0 {
            events.extend(all().map(Event::Kill));
        }
        if restarts > 0 {
            events.push(Event::Restart);
        }
        if jumps > 0 && self.due().is_some() {
            events.push(Event::Jump);
        }
        events
    }

    /// Nothing is under way, and nothing is unnoticed.
    pub(super) fn is_quiet(&self) -> bool {
        let words = self.up.values().all(VecDeque::is_empty) && self.down.values().all(VecDeque::is_empty);
        let noticed = self.unnoticed.is_empty() && self.stale.is_empty();
        let gone = self.links.keys().all(|(from, _)| self.members.contains_key(from));
        words && noticed && gone && self.links.values().all(VecDeque::is_empty)
    }

    fn due(&self) -> Option<Instant> {
        let members = self.members.values().filter_map(|member| member.poll_timeout());
        members.chain(self.registrar.poll_timeout()).min()
    }

    /// Lets it happen.
    pub(super) fn happen(&mut self, event: Event, sabotage: Option<Sabotage>) {
        let now = self.now;
        match event {
            Event::Told(member) => {
                let word = self.up.get_mut(&member).and_then(VecDeque::pop_front).expect("a word");
                let stream = self.stream(member);
                self.with_registrar(|registrar| registrar.handle_message(now, stream, peer(member), word));
            }
            Event::Order(member) => {
                let order = self.down.get_mut(&member).and_then(VecDeque::pop_front).expect("an order");
                self.with(member, |machine| machine.handle_order(now, order));
            }
            Event::Frame(from, to) => {
                let frame = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("a frame");
                self.with(to, |machine| machine.handle_hop(now, id(from), frame));
            }
            Event::Gone(from, to) => {
                self.links.remove(&(from, to));
                self.with(to, |machine| machine.handle_disconnected(now, id(from)));
            }
            Event::Closed(member) => {
                self.unnoticed.remove(&member);
                self.up.remove(&member);
                let stream = self.stream(member);
                self.with_registrar(|registrar| registrar.handle_closed(now, stream));
            }
            Event::Redial(member) => {
                self.stale.remove(&member);
                self.register(member);
            }
            Event::Call(member) => {
                self.budget.calls -= 1;
                self.begun += 1;
                self.with(member, |machine| {
                    machine.call(now, key(), Operation::Add(1), DEADLINE);
                });
            }
            Event::Join => {
                self.budget.joins -= 1;
                let new = (0..u8::MAX).find(|new| !self.members.contains_key(new)).expect("a number");
                let member = Member::new(
                    now,
                    self.config.clone(),
                    StoreMember {
                        id: id(new),
                        peer: peer(new),
                        client: ClientId(u64::from(new)),
                        rank: u32::MAX,
                        address: ([10, 0, 0, new], 1).into(),
                        closed_port: 0,
                        name: format!("p{new}"),
                        host: u64::from(new),
                        ends_store: false,
                    },
                );
                self.members.insert(new, Held::new(member));
                self.register(new);
            }
            Event::Leave(member) => {
                self.budget.leaves -= 1;
                self.leaving.insert(member);
                self.with(member, |machine| machine.leave(now));
            }
            Event::Kill(member) => {
                self.budget.kills -= 1;
                self.vanish(member);
            }
            Event::Restart => {
                self.budget.restarts -= 1;
                self.restarts += 1;
                let mut registrar = Registrar::new(self.config.clone(), 100 + self.restarts);
                registrar.handle_timeout(now);
                registrar.listen(now + self.config.control_grace);
                self.registrar = Held::new(registrar);
                self.up.clear();
                self.unnoticed.clear();
                self.stale = self.members.keys().copied().collect();
            }
            Event::Jump => {
                self.budget.jumps = self.budget.jumps.saturating_sub(1);
                self.jump();
            }
        }
        self.carry_out(sabotage);
    }

    fn jump(&mut self) {
        let Some(due) = self.due() else { return };
        self.now = self.now.max(due);
        let now = self.now;
        if self.registrar.poll_timeout().is_some_and(|due| due <= now) {
            self.with_registrar(|registrar| registrar.handle_timeout(now));
        }
        let late: Vec<_> = self.members.keys().copied().collect();
        for member in late {
            if self.members[&member].poll_timeout().is_some_and(|due| due <= now) {
                self.with(member, |machine| machine.handle_timeout(now));
            }
        }
    }

    fn with(&mut self, member: u8, act: impl FnOnce(&mut Member)) {
        if let Some(machine) = self.members.get_mut(&member) {
            machine.change(act);
            self.touched.insert(member);
        }
    }

    fn with_registrar(&mut self, act: impl FnOnce(&mut Registrar)) {
        self.registrar.change(act);
        self.registrar_touched = true;
    }

    /// Streams are numbered by member and by registrar, not by the order of their opening.
    fn stream(&self, member: u8) -> StreamId {
        StreamId(self.restarts * 100 + u64::from(member))
    }

    fn register(&mut self, member: u8) {
        let Some(machine) = self.members.get(&member) else { return };
        let registration = machine.registration();
        self.up.insert(member, VecDeque::from([registration]));
        self.down.insert(member, VecDeque::new());
    }

    /// A process is gone. What it has sent may still arrive.
    fn vanish(&mut self, member: u8) {
        self.members.remove(&member);
        self.leaving.remove(&member);
        self.down.remove(&member);
        self.links.retain(|(_, to), _| *to != member);
        if self.stale.remove(&member) {
            self.up.remove(&member);
        } else {
            self.unnoticed.insert(member);
        }
    }

    /// Does what the machines want, until they want nothing. Only who was touched can want something.
    fn carry_out(&mut self, sabotage: Option<Sabotage>) {
        loop {
            if std::mem::take(&mut self.registrar_touched) {
                while let Some(command) = self.registrar.change(Registrar::poll_command) {
                    self.obey(command, sabotage);
                }
            } else if let Some(member) = self.touched.pop_first() {
                while let Some(action) =
                    self.members.get_mut(&member).and_then(|m| m.change(Member::poll_action))
                {
                    self.act(member, action, sabotage);
                }
            } else if !self.take_acknowledgements() {
                return;
            }
        }
    }

    fn obey(&mut self, command: Command, sabotage: Option<Sabotage>) {
        let now = self.now;
        match command {
            Command::Send(stream, order) => {
                let member = (stream.0 % 100) as u8;
                if stream != self.stream(member) || self.stale.contains(&member) {
                    return;
                }
                if sabotage == Some(Sabotage::DropActivate) && matches!(order, FromRegistrar::Activate { .. })
                {
                    return;
                }
                if let (Some(Sabotage::NoFreeze), FromRegistrar::Prepare { view, .. }) = (sabotage, &order) {
                    let forged = ToRegistrar::Prepared(view.epoch);
                    self.up.entry(member).or_default().push_front(forged);
                }
                if let Some(words) = self.down.get_mut(&member) {
                    words.push_back(order);
                }
            }
            Command::Close(_) | Command::Note(_) => {}
            Command::Knock(member, _, _) => {
                let lives = self.members.contains_key(&number(member));
                let knocked = if lives { Knocked::Accepted } else { Knocked::Refused };
                self.with_registrar(|registrar| registrar.handle_knock(now, member, knocked));
            }
            Command::Decide(view) => {
                self.with_registrar(|registrar| registrar.handle_decided(now, view.epoch));
            }
        }
    }

    fn act(&mut self, member: u8, action: Action, sabotage: Option<Sabotage>) {
        let now = self.now;
        match action {
            Action::Connect(other) => {
                let other = number(other.id);
                if !self.members.contains_key(&other) {
                    return self.with(member, |machine| machine.handle_unreachable(now, id(other)));
                }
                if self.links.contains_key(&(member, other)) {
                    return;
                }
                self.links.insert((member, other), VecDeque::new());
                self.links.insert((other, member), VecDeque::new());
                self.with(member, |machine| machine.handle_connected(now, id(other)));
                self.with(other, |machine| machine.handle_connected(now, id(member)));
            }
            Action::Disconnect(other) => {
                let other = number(other);
                self.links.remove(&(member, other));
                if self.links.remove(&(other, member)).is_some() {
                    self.with(other, |machine| machine.handle_disconnected(now, id(member)));
                }
            }
            Action::Send(other, hop) => {
                if let Some(frames) = self.links.get_mut(&(member, number(other))) {
                    frames.push_back(spoiled(hop, sabotage));
                }
            }
            Action::Tell(word) => {
                if !self.stale.contains(&member)
                    && let Some(words) = self.up.get_mut(&member)
                {
                    words.push_back(word);
                }
            }
            Action::Finish(_, Ok(_)) => self.acknowledged += 1,
            Action::Finish(_, Err(_)) => self.failed += 1,
            // Who has said goodbye goes.
            Action::Out(_) | Action::Ended(_) => {
                self.put_out |= !self.leaving.contains(&member);
                self.vanish(member);
            }
            Action::Entered(_) | Action::Deliver(..) | Action::Datagram(..) | Action::Knock(..) => {}
        }
    }

    /// Frames at the head of a link that only say what has come.
    fn take_acknowledgements(&mut self) -> bool {
        let now = self.now;
        let heads = self.links.iter().filter(|(_, frames)| matches!(frames.front(), Some(Hop::Received(_))));
        let heads: Vec<_> = heads.map(|(link, _)| *link).collect();
        for (from, to) in &heads {
            let frame = self.links.get_mut(&(*from, *to)).and_then(VecDeque::pop_front);
            if let Some(frame) = frame {
                self.with(*to, |machine| machine.handle_hop(now, id(*from), frame));
            }
        }
        !heads.is_empty()
    }

    /// What must be true of every state.
    pub(super) fn judge(&self) -> Result<(), Violation> {
        if self.put_out {
            return Err(Violation::new("nobody_put_out", "a member that lives was put out"));
        }
        let key = key();
        let answers = |(_, member): &(&u8, &Held<Member>)| member.answers_for(self.now, &key);
        let owners: Vec<_> = self.members.iter().filter(answers).collect();
        if owners.len() > 1 {
            let who: Vec<_> = owners.iter().map(|(number, _)| **number).collect();
            return Err(Violation::new("one_owner", format!("members {who:?} would answer for one key")));
        }
        for (number, owner) in owners {
            let has = match owner.has_of(&key) {
                Some(Answer::Value(value)) => String::from_utf8_lossy(&value).parse().unwrap_or(u64::MAX),
                _ => 0,
            };
            if has < self.acknowledged || has > self.begun {
                let text = format!(
                    "member {number} would answer {has}; {} raises were acknowledged, {} begun",
                    self.acknowledged, self.begun
                );
                return Err(Violation::new("nothing_lost", text));
            }
        }
        Ok(())
    }

    /// What must be true once faults have ended and time has gone on.
    pub(super) fn judge_rest(&self, sabotage: Option<Sabotage>) -> Result<(), Violation> {
        let mut state = self.clone();
        state.budget = Budget { joins: 0, leaves: 0, kills: 0, restarts: 0, calls: 0, jumps: 0 };
        state.rest(sabotage);
        state.judge()?;
        let lives = state.members.len();
        if !state.members.is_empty() && !state.is_settled(lives) {
            let view = state.registrar.view().map(|view| view.members.len());
            return Err(Violation::new("no_hang", format!("{lives} live, and {view:?} are in a view")));
        }
        let waits = state.members.values().any(|member| member.calls_under_way() > 0);
        if waits || state.failed > 0 {
            return Err(Violation::new("no_hang", "a call of somebody who lives has no answer"));
        }
        Ok(())
    }

    /// Everything arrives, and time goes on, until nothing is left to do.
    fn rest(&mut self, sabotage: Option<Sabotage>) {
        for _ in 0..JUMPS_MAX {
            while let Some(event) = self.events().into_iter().find(|event| is_arrival(*event)) {
                self.happen(event, sabotage);
            }
            let waits = self.members.values().any(|member| member.calls_under_way() > 0);
            if self.is_settled(self.members.len()) && !waits && self.leaving.is_empty() {
                return;
            }
            self.jump();
            self.carry_out(sabotage);
        }
    }
}

fn is_arrival(event: Event) -> bool {
    use Event::{Closed, Frame, Gone, Order, Redial, Told};
    matches!(event, Told(_) | Order(_) | Frame(..) | Gone(..) | Closed(_) | Redial(_))
}

/// A planted bug in what travels between members.
fn spoiled(mut hop: Hop, sabotage: Option<Sabotage>) -> Hop {
    if sabotage == Some(Sabotage::EmptyFetch)
        && let Hop::Carry { envelope, .. } = &mut hop
        && envelope.pieces == 1
        && let Ok(Letter::Records { epoch, finished, .. }) = decode::<Letter>(&envelope.contents)
    {
        envelope.contents = encode(&Letter::Records { epoch, finished, records: Vec::new() }).into();
    }
    hop
}
