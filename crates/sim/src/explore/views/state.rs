//! One state of the model, and what may happen in it.

use super::event::{Event, MemberNumber};
use super::{Budget, Sabotage, Scene};
use crate::explore::held::Held;
use outlast_proto::id::PeerId;
use outlast_proto::store::registrar::StreamId;
use outlast_proto::store::{Member, Registrar};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::store::mesh::Hop;
use outlast_proto::wire::store::operation::Operation;
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::store::{ClientId, MemberId, StoreMember};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long the program waits for an answer: beyond everything that a fault may cost.
const DEADLINE: Duration = Duration::from_mins(2);

/// See the module's essay.
#[derive(Clone, Debug, Hash)]
pub struct State {
    pub(super) now: Instant,
    pub(super) scene: Held<Scene>,
    pub(super) budget: Budget,
    /// Who lives. Those who were killed or have left are not there.
    pub(super) members: BTreeMap<MemberNumber, Held<Member>>,
    /// How many have ever come.
    came: MemberNumber,
    pub(super) registrar: Held<Registrar>,
    /// How many registrars there were before.
    restarts: u64,
    /// By member, and by a number of its own. A member has one at most; those before it are here until both ends have let
    /// go of them.
    pub(super) streams: BTreeMap<(MemberNumber, u8), Stream>,
    /// What is under way from the first to the second; there while the second takes the connection for one.
    pub(super) links: BTreeMap<(MemberNumber, MemberNumber), VecDeque<Hop>>,
    pub(super) leaving: BTreeSet<MemberNumber>,
    /// Whose way to the registrar is cut, and whose ever was.
    pub(super) cut: BTreeSet<MemberNumber>,
    pub(super) was_cut: BTreeSet<MemberNumber>,
    pub(super) begun: i64,
    pub(super) failed: u64,
    /// How raises were answered, and one that was answered like another.
    pub(super) answers: BTreeSet<i64>,
    pub(super) repeated: Option<i64>,
    /// Somebody who lives and could be heard was put out of the store, with those words.
    pub(super) put_out: Option<(MemberNumber, String)>,
    /// Machines that may want something. Empty between two events.
    pub(super) touched: BTreeSet<MemberNumber>,
    pub(super) registrar_touched: bool,
}

/// A member's stream to a registrar.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Stream {
    pub(super) up: VecDeque<ToRegistrar>,
    pub(super) down: VecDeque<FromRegistrar>,
    /// Who has not noticed yet that it is gone, or for whom it is not.
    pub(super) member_holds: bool,
    pub(super) registrar_holds: bool,
}

pub(super) fn id(number: MemberNumber) -> MemberId {
    MemberId(u64::from(number) + 1)
}

pub(super) fn number(id: MemberId) -> MemberNumber {
    (id.0 - 1) as MemberNumber
}

fn peer(number: MemberNumber) -> PeerId {
    PeerId::from_bytes([number; 16])
}

/// A member as it introduces itself.
pub(super) fn store_member(number: MemberNumber) -> StoreMember {
    StoreMember {
        id: id(number),
        peer: peer(number),
        client: ClientId(u64::from(number)),
        rank: u32::MAX,
        address: ([10, 0, 0, number], 1).into(),
        closed_port: 0,
        name: format!("p{number}"),
        host: u64::from(number),
        ends_store: false,
    }
}

/// A stream as the registrar numbers it, and back.
fn stream_id((member, number): (MemberNumber, u8)) -> StreamId {
    StreamId(u64::from(number) * 100 + u64::from(member))
}

pub(super) fn stream_of(stream: StreamId) -> (MemberNumber, u8) {
    ((stream.0 % 100) as MemberNumber, (stream.0 / 100) as u8)
}

impl State {
    /// So many members in one view, with nothing under way.
    pub(super) fn settled(scene: &Scene, members: MemberNumber, budget: Budget) -> Self {
        // Leases that last too long must have been granted before anybody is cut off. All other bugs would show here.
        let sabotage = scene.sabotage.filter(|sabotage| *sabotage == Sabotage::LongLease);
        let honest = Scene { sabotage, ..scene.clone() };
        let mut state = Self {
            now: Instant::ORIGIN + Duration::from_secs(1),
            scene: Held::new(honest),
            budget: Budget { joins: members, ..Budget::default() },
            members: BTreeMap::new(),
            came: 0,
            registrar: Held::new(Registrar::new(scene.config.clone(), 100)),
            restarts: 0,
            streams: BTreeMap::new(),
            links: BTreeMap::new(),
            leaving: BTreeSet::new(),
            cut: BTreeSet::new(),
            was_cut: BTreeSet::new(),
            begun: 0,
            failed: 0,
            answers: BTreeSet::new(),
            repeated: None,
            put_out: None,
            touched: BTreeSet::new(),
            registrar_touched: false,
        };
        for _ in 0..members {
            state.happen(Event::Join);
            state.rest();
        }
        assert!(state.is_settled(), "the first members are in one view");
        state.budget = budget;
        state.scene = Held::new(scene.clone());
        state
    }

    /// All who live are in one view, and know it.
    pub(super) fn is_settled(&self) -> bool {
        let all = self.members.len();
        self.registrar.is_settled() && self.registrar.view().is_some_and(|view| view.members.len() == all)
    }

    /// What happens by itself, because something is under way or was not noticed.
    pub(super) fn arrivals(&self) -> Vec<Event> {
        let lives = |member: &MemberNumber| self.members.contains_key(member);
        let mut events = Vec::new();
        for ((member, number), stream) in &self.streams {
            if self.cut.contains(member) {
                continue;
            }
            if stream.registrar_holds && !stream.up.is_empty() {
                events.push(Event::Told(*member, *number));
            }
            if stream.member_holds && !stream.down.is_empty() {
                events.push(Event::Order(*member));
            }
            if stream.registrar_holds && !stream.member_holds {
                events.push(Event::Closed(*member, *number));
            }
            if stream.member_holds && !stream.registrar_holds {
                events.push(Event::Redial(*member));
            }
        }
        for ((from, to), frames) in self.links.iter().filter(|((_, to), _)| lives(to)) {
            if !frames.is_empty() {
                events.push(Event::Frame(*from, *to));
            }
            if !self.links.contains_key(&(*to, *from)) {
                events.push(Event::Gone(*from, *to));
            }
        }
        events
    }

    /// All that may happen next.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = self.arrivals();
        let Budget { joins, leaves, kills, restarts, breaks, severs, cuts, calls, jumps } = self.budget;
        let all = || self.members.keys().copied();
        let mut each = |budget: u8, event: fn(MemberNumber) -> Event| {
            if budget > 0 {
                events.extend(all().map(event));
            }
        };
        each(calls, Event::Call);
        each(leaves, Event::Leave);
        each(kills, Event::Kill);
        each(cuts, Event::Cut);
        if joins > 0 {
            events.push(Event::Join);
        }
        if restarts > 0 {
            events.push(Event::Restart);
        }
        if breaks > 0 {
            let whole =
                self.streams.iter().filter(|(_, stream)| stream.member_holds && stream.registrar_holds);
            for ((member, _), _) in whole {
                events.extend([Event::BreakAtMember(*member), Event::BreakAtRegistrar(*member)]);
            }
        }
        if severs > 0 {
            let whole = self.links.keys().filter(|(from, to)| self.links.contains_key(&(*to, *from)));
            events.extend(whole.map(|(from, to)| Event::Sever(*from, *to)));
        }
        // Before anything has gone wrong there is nothing to wait for.
        let has_struck = kills == 0 && cuts == 0 && severs == 0;
        let may_jump = has_struck && (!self.scene.patient || self.is_quiet());
        if jumps > 0 && may_jump && self.due().is_some() {
            events.push(Event::Jump);
        }
        events
    }

    /// Nothing is under way, and nothing is unnoticed.
    pub(super) fn is_quiet(&self) -> bool {
        self.arrivals().is_empty()
    }

    fn due(&self) -> Option<Instant> {
        let members = self.members.values().filter_map(|member| member.poll_timeout());
        members.chain(self.registrar.poll_timeout()).min()
    }

    /// Lets it happen.
    pub(super) fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Told(member, number) => self.tell_registrar((member, number)),
            Event::Order(member) => self.order(member),
            Event::Frame(from, to) => self.frame(from, to),
            Event::Gone(from, to) => {
                self.links.remove(&(from, to));
                self.with(to, |machine| machine.handle_disconnected(now, id(from)));
            }
            Event::Closed(member, number) => self.registrar_lets_go((member, number)),
            Event::Redial(member) => self.member_lets_go(member),
            Event::Jump => {
                self.budget.jumps = self.budget.jumps.saturating_sub(1);
                self.jump();
            }
            Event::Call(member) => {
                self.budget.calls -= 1;
                self.begun += 1;
                let key = self.scene.key.clone();
                self.with(member, |machine| {
                    machine.call(now, key, Operation::Add(1), DEADLINE);
                });
            }
            Event::Join => {
                self.budget.joins -= 1;
                let new = self.came;
                self.came += 1;
                let member = Member::new(now, self.scene.config.clone(), store_member(new));
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
                let mut registrar = Registrar::new(self.scene.config.clone(), 100 + self.restarts);
                registrar.handle_timeout(now);
                registrar.listen(now + self.scene.config.control_grace);
                self.registrar = Held::new(registrar);
                for stream in self.streams.values_mut() {
                    stream.registrar_holds = false;
                    stream.up.clear();
                }
            }
            Event::BreakAtMember(member) => {
                self.budget.breaks -= 1;
                self.member_lets_go(member);
            }
            Event::BreakAtRegistrar(member) => {
                self.budget.breaks -= 1;
                if let Some(stream) = self.stream(member) {
                    self.registrar_lets_go(stream);
                }
            }
            Event::Sever(from, to) => {
                self.budget.severs -= 1;
                self.links.remove(&(to, from));
                self.with(from, |machine| machine.handle_disconnected(now, id(to)));
            }
            Event::Cut(member) => {
                self.budget.cuts -= 1;
                self.cut.insert(member);
                self.was_cut.insert(member);
            }
        }
        self.carry_out();
    }

    pub(super) fn jump(&mut self) {
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

    pub(super) fn with(&mut self, member: MemberNumber, act: impl FnOnce(&mut Member)) {
        if let Some(machine) = self.members.get_mut(&member) {
            machine.change(act);
            self.touched.insert(member);
        }
    }

    pub(super) fn with_registrar(&mut self, act: impl FnOnce(&mut Registrar)) {
        self.registrar.change(act);
        self.registrar_touched = true;
    }

    /// The stream that a member takes for its own.
    pub(super) fn stream(&self, member: MemberNumber) -> Option<(MemberNumber, u8)> {
        let own = |(name, stream): (&(MemberNumber, u8), &Stream)| {
            (name.0 == member && stream.member_holds).then_some(*name)
        };
        self.streams.iter().find_map(own)
    }

    pub(super) fn tell_registrar(&mut self, stream: (MemberNumber, u8)) {
        let now = self.now;
        if let Some(word) = self.streams.get_mut(&stream).and_then(|stream| stream.up.pop_front()) {
            let from = peer(stream.0);
            self.with_registrar(|registrar| registrar.handle_message(now, stream_id(stream), from, word));
        }
    }

    pub(super) fn order(&mut self, member: MemberNumber) {
        let now = self.now;
        let Some(stream) = self.stream(member) else { return };
        if let Some(order) = self.streams.get_mut(&stream).and_then(|stream| stream.down.pop_front()) {
            self.with(member, |machine| machine.handle_order(now, order));
        }
    }

    pub(super) fn frame(&mut self, from: MemberNumber, to: MemberNumber) {
        let now = self.now;
        if let Some(frame) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
            self.with(to, |machine| machine.handle_hop(now, id(from), frame));
        }
    }

    /// Opens a stream, which begins with who the member is. Streams are numbered per member, not by when they were opened.
    fn register(&mut self, member: MemberNumber) {
        let Some(machine) = self.members.get(&member) else { return };
        let registration = self.spoiled_registration(machine.registration());
        let name = (0..u8::MAX).map(|number| (member, number)).find(|name| !self.streams.contains_key(name));
        let stream = Stream {
            up: VecDeque::from([registration]),
            down: VecDeque::new(),
            member_holds: true,
            registrar_holds: true,
        };
        self.streams.extend(name.map(|name| (name, stream)));
    }

    /// The registrar notices that a stream is gone; what was under way to it is lost.
    fn registrar_lets_go(&mut self, name: (MemberNumber, u8)) {
        let now = self.now;
        if let Some(stream) = self.streams.get_mut(&name) {
            stream.registrar_holds = false;
            stream.up.clear();
        }
        self.forget_streams();
        self.with_registrar(|registrar| registrar.handle_closed(now, stream_id(name)));
    }

    /// A member does, and registers over another.
    fn member_lets_go(&mut self, member: MemberNumber) {
        self.drop_stream_of(member);
        self.register(member);
    }

    fn drop_stream_of(&mut self, member: MemberNumber) {
        if let Some(stream) = self.stream(member).and_then(|name| self.streams.get_mut(&name)) {
            stream.member_holds = false;
            stream.down.clear();
        }
        self.forget_streams();
    }

    pub(super) fn forget_streams(&mut self) {
        self.streams.retain(|_, stream| stream.member_holds || stream.registrar_holds);
    }

    /// A process is gone. What it has sent may still arrive.
    pub(super) fn vanish(&mut self, member: MemberNumber) {
        self.members.remove(&member);
        self.leaving.remove(&member);
        self.links.retain(|(_, to), _| *to != member);
        self.drop_stream_of(member);
    }

    /// What an event means here, for people.
    pub(super) fn describe(&self, event: Event) -> String {
        let what = match event {
            Event::Told(member, number) => {
                self.streams.get(&(member, number)).and_then(|s| s.up.front()).map(|word| format!("{word:?}"))
            }
            Event::Order(member) => {
                let stream = self.stream(member).and_then(|name| self.streams.get(&name));
                stream.and_then(|stream| stream.down.front()).map(|order| format!("{order:?}"))
            }
            Event::Frame(from, to) => {
                self.links.get(&(from, to)).and_then(VecDeque::front).map(super::carry::words)
            }
            Event::Jump => self.due().map(|due| format!("by {:?}", due.since(self.now))),
            _ => None,
        };
        let mut what = what.unwrap_or_default();
        if let Some((at, _)) = what.char_indices().nth(160) {
            what.truncate(at);
        }
        format!("{event:12} {what}")
    }
}
