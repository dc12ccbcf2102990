//! What happens in the world: messages arrive, programs call, faults strike.

use super::clients::{Client, Outcome};
use super::deaths;
use super::history::Event;
use super::programs::{remembered_answer, remembered_call};
use super::world::{Happening, KINDS, Sabotage, World, bytes, peer};
use outlast_proto::store::registrar::{Command, Knocked, StreamId};
use outlast_proto::store::{Action, Failure, Member, Registrar, Ticket};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::store::mesh::{Hop, Letter};
use outlast_proto::wire::store::operation::{Answer, Key, Operation};
use outlast_proto::wire::store::views::{FromRegistrar, ToRegistrar};
use outlast_proto::wire::store::{Blob, MemberId};
use outlast_proto::wire::{decode, encode};

/// How long a dial into a cut takes to fail, and a break to be noticed.
const NOTICED: Duration = Duration::from_millis(200);

pub(super) fn queue() -> Key {
    Key::queue("queue")
}

impl World {
    pub(super) fn happen(&mut self, happening: Happening) {
        if let Some(number) = held_by(&happening).filter(|number| self.processes[*number].stopped) {
            return self.processes[number].held.push_back(happening);
        }
        let now = self.now;
        match happening {
            Happening::Start(number) => {
                if self.processes[number].member.is_none() {
                    self.start(number);
                }
            }
            Happening::Connected(number, life, other, connection) => {
                if self.is_current(number, life) && self.connection(number, other) == Some(connection) {
                    self.member(number).handle_connected(now, other);
                    self.pump(number);
                }
            }
            Happening::Unreachable(number, life, other) => {
                if self.is_current(number, life) {
                    self.member(number).handle_unreachable(now, other);
                    self.pump(number);
                }
            }
            Happening::Frame(number, life, other, connection, frame) => {
                if self.is_current(number, life) && self.connection(number, other) == Some(connection) {
                    let hop = decode::<Hop>(&frame).expect("what was encoded decodes");
                    self.trace.event(now, b'f', [number as u64, other.0, frame.len() as u64]);
                    self.member(number).handle_hop(now, other, hop);
                    self.pump(number);
                }
            }
            Happening::Disconnected(number, life, other, connection) => {
                if self.is_current(number, life)
                    && self.connection(number, other).is_none_or(|now| now == connection)
                {
                    self.member(number).handle_disconnected(now, other);
                    self.pump(number);
                }
            }
            Happening::StreamOpened(number, life) => self.open_stream(number, life),
            Happening::Order(number, life, stream, order) => {
                if self.is_current(number, life) && self.processes[number].stream == Some(stream) {
                    self.member(number).handle_order(now, order);
                    self.pump(number);
                }
            }
            Happening::Told(number, stream, message) => {
                let life = self.processes[number].life;
                self.registrar.handle_message(now, StreamId(stream), peer(number, life), message);
                self.pump_registrar();
            }
            Happening::StreamClosed(stream) => {
                self.registrar.handle_closed(now, StreamId(stream));
                self.pump_registrar();
            }
            Happening::StreamLost(number, life, stream) => {
                if self.is_current(number, life) && self.processes[number].stream == Some(stream) {
                    self.processes[number].stream = None;
                    self.later_within(NOTICED, Happening::StreamOpened(number, life));
                }
            }
            Happening::Knocked(member, life) => {
                if life == self.registrar_life {
                    let knocked = self.kernel(member);
                    self.registrar.handle_knock(now, member, knocked);
                    self.pump_registrar();
                }
            }
            Happening::Timer(Some(number), at) => {
                if self.processes[number].timer == Some(at) && self.processes[number].member.is_some() {
                    self.processes[number].timer = None;
                    self.member(number).handle_timeout(now);
                    self.pump(number);
                }
            }
            Happening::Timer(None, at) => {
                if self.registrar_timer == Some(at) {
                    self.registrar_timer = None;
                    self.registrar.handle_timeout(now);
                    self.pump_registrar();
                }
            }
            Happening::Program(number, life) => self.program(number, life),
            Happening::Continue(number, life) => {
                if self.is_current(number, life) {
                    self.go_on(number);
                }
            }
            Happening::Heal(one, two) => {
                self.cuts.remove(&(one, two));
            }
            Happening::Fault(kind) => self.strike(kind),
            Happening::SecondDeath => self.die_too(),
            Happening::Leave => self.leave(),
            Happening::Client(number) => self.client_acts(number),
            Happening::Asked(process, life, by, request) => self.asked(process, life, by, *request),
            Happening::ClientHears(number, name, outcome) => self.client_hears(number, name, outcome),
            Happening::ClientLooks(number, name) => self.client_looks(number, name),
        }
    }

    pub(super) fn is_current(&self, number: usize, life: u32) -> bool {
        self.processes[number].life == life && self.processes[number].member.is_some()
    }

    pub(super) fn member(&mut self, number: usize) -> &mut Member {
        self.processes[number].member.as_mut().expect("it lives")
    }

    fn connection(&self, number: usize, other: MemberId) -> Option<u64> {
        let id = self.processes[number].id;
        self.connections.get(&(id.min(other), id.max(other))).copied()
    }

    fn kernel(&self, member: MemberId) -> Knocked {
        let Some(number) = self.ids.get(&member).copied() else { return Knocked::Refused };
        let process = &self.processes[number];
        if !self.can_reach(number, None) {
            return Knocked::Silent;
        }
        // Another process may have the address by now: its kernel accepts for it.
        if process.member.is_some() { Knocked::Accepted } else { Knocked::Refused }
    }

    fn open_stream(&mut self, number: usize, life: u32) {
        if !self.is_current(number, life) || self.processes[number].stream.is_some() {
            return;
        }
        if !self.can_reach(number, None) {
            return self.later(NOTICED, Happening::StreamOpened(number, life));
        }
        self.numbers += 1;
        let stream = self.numbers;
        self.processes[number].stream = Some(stream);
        let registration = self.member(number).registration();
        self.tell(number, stream, registration);
        if let Some(word) = self.member(number).last_word() {
            self.tell(number, stream, word);
        }
    }

    /// Streams keep their order.
    fn tell(&mut self, number: usize, stream: u64, message: ToRegistrar) {
        let message = decode::<ToRegistrar>(&encode(&message)).expect("it is read as it was written");
        let at = self.in_order(stream, true);
        self.queue.push(at, Happening::Told(number, stream, message));
    }

    fn in_order(&mut self, stream: u64, up: bool) -> Instant {
        let arrives = self.now + self.plan.delay.mul_f64(self.rng.unit());
        let last = self.told.entry((stream, up)).or_default();
        *last = (*last).max(arrives);
        *last
    }

    pub(super) fn pump(&mut self, number: usize) {
        while let Some(action) = self.processes[number].member.as_mut().and_then(Member::poll_action) {
            self.act(number, action);
        }
        let due = self.processes[number].member.as_ref().and_then(Member::poll_timeout);
        if let Some(due) = due {
            let rings_late = self.plan.sabotage == Some(Sabotage::LateTimers);
            let due = due.max(self.now) + if rings_late { Duration::from_secs(1) } else { Duration::ZERO };
            if self.processes[number].timer.is_none_or(|at| due < at || at < self.now) {
                self.processes[number].timer = Some(due);
                self.queue.push(due, Happening::Timer(Some(number), due));
            }
        }
    }

    fn act(&mut self, number: usize, action: Action) {
        let (now, life, id) = (self.now, self.processes[number].life, self.processes[number].id);
        match action {
            Action::Connect(member) => {
                let other = self.ids.get(&member.id).copied();
                let lives = other.filter(|other| {
                    self.processes[*other].member.is_some() && self.processes[*other].id == member.id
                });
                let Some(other) = lives.filter(|other| self.can_reach(number, Some(*other))) else {
                    return self.later(NOTICED, Happening::Unreachable(number, life, member.id));
                };
                let pair = (id.min(member.id), id.max(member.id));
                if self.connections.contains_key(&pair) {
                    return;
                }
                self.numbers += 1;
                let connection = self.numbers;
                self.connections.insert(pair, connection);
                let theirs = self.processes[other].life;
                // Both ends know of it before anything comes over it.
                let delay = self.plan.delay.mul_f64(self.rng.unit());
                self.later(delay, Happening::Connected(number, life, member.id, connection));
                self.later(delay, Happening::Connected(other, theirs, id, connection));
            }
            Action::Disconnect(other) => self.hang_up(id, other),
            Action::Send(other, hop) => self.carry(number, other, hop),
            Action::Tell(message) => {
                if let Some(stream) = self.processes[number].stream {
                    self.tell(number, stream, message);
                }
            }
            Action::Finish(ticket, result) => self.finish(number, ticket, result),
            Action::Entered(view) => {
                self.trace.line(
                    now,
                    &format!("process {number} is in view {} of {}", view.epoch, view.members.len()),
                );
            }
            Action::Out(why) => {
                self.trace.line(now, &format!("process {number} is out: {why}"));
                if self.processes[number].leaving {
                    return self.vanish(number);
                }
                self.ids.remove(&id);
                self.connections.retain(|(one, two), _| *one != id && *two != id);
                let id = MemberId(self.rng.next_u64());
                self.processes[number].id = id;
                self.ids.insert(id, number);
                self.member(number).be_reborn(now, id);
                if let Some(stream) = self.processes[number].stream.take() {
                    self.later(Duration::from_millis(1), Happening::StreamClosed(stream));
                }
                self.later(Duration::from_millis(2), Happening::StreamOpened(number, life));
            }
            Action::Deliver(_, payload) => self.broadcast_heard(number, &payload),
            Action::Ended(_) | Action::Datagram(..) | Action::Knock(..) => {}
        }
    }

    fn carry(&mut self, number: usize, other: MemberId, hop: Hop) {
        let id = self.processes[number].id;
        let Some(connection) = self.connection(number, other) else { return };
        let Some(reader) = self.ids.get(&other).copied().filter(|reader| self.processes[*reader].id == other)
        else {
            return;
        };
        let Some(hop) = self.tamper(number, reader, connection, hop) else { return };
        let (frame, theirs) = (bytes(&hop), self.processes[reader].life);
        let mut at = self.now + self.plan.delay.mul_f64(self.rng.unit());
        let disorder = self.plan.disorder;
        if self.rng.chance(disorder) {
            // Late, and perhaps twice: as after a connection that broke and came back.
            at += self.plan.delay * 3;
            if self.rng.chance(0.5) {
                let again = at + self.plan.delay;
                self.queue.push(again, Happening::Frame(reader, theirs, id, connection, frame.clone()));
            }
        } else {
            let last = self.arrives.entry((connection, id)).or_default();
            at = at.max(*last);
            *last = at;
        }
        if self.can_reach(number, Some(reader)) {
            self.queue.push(at, Happening::Frame(reader, theirs, id, connection, frame));
        }
    }

    /// Planted bugs that live in what travels between members.
    fn tamper(&mut self, number: usize, reader: usize, connection: u64, mut hop: Hop) -> Option<Hop> {
        let Some(sabotage) = self.plan.sabotage else { return Some(hop) };
        let Hop::Carry { envelope, .. } = &mut hop else { return Some(hop) };
        if sabotage == Sabotage::TornValue && envelope.pieces > 1 && envelope.piece == 1 {
            // Of the right length and the wrong value.
            let mut torn = envelope.contents.to_vec();
            torn.rotate_left(1);
            envelope.contents = torn.into();
        }
        if envelope.pieces > 1 || envelope.to != Some(self.processes[reader].id) {
            return Some(hop);
        }
        let body = decode::<Letter>(&envelope.contents).expect("a body");
        let changed = match (sabotage, body) {
            (Sabotage::FalseCopy, Letter::Replicate { number: told, request, is_awaited, after, .. }) => {
                // The writer hears an acknowledgement at once; the replica gets something without effect.
                let (from, epoch) = (envelope.to.expect("a reader"), envelope.epoch);
                let mut forged = envelope.clone();
                (forged.from, forged.to) = (from, Some(envelope.from));
                forged.contents = encode(&Letter::Replicated(told, Vec::new())).into();
                let life = self.processes[number].life;
                let _ = epoch;
                let frame =
                    bytes(&Hop::Carry { number: u64::MAX / 2 + self.values, received: 0, envelope: forged });
                self.values += 1;
                let delay = self.plan.delay;
                self.later(delay, Happening::Frame(number, life, from, connection, frame));
                let mut request = request;
                request.operation = Operation::Check;
                Letter::Replicate { number: told, request, asked_by: None, is_awaited, after }
            }
            (Sabotage::ForgottenName, Letter::Request(mut request)) => {
                if request.operation.changes() && self.rng.chance(0.5) {
                    // As if the owner did not know it: it is done, and then done again.
                    let mut copy = request.clone();
                    copy.call.client.0 ^= self.rng.next_u64();
                    let again = Letter::Request(copy);
                    let mut twice = envelope.clone();
                    twice.contents = encode(&again).into();
                    let (life, id) = (self.processes[reader].life, self.processes[number].id);
                    let frame = bytes(&Hop::Carry {
                        number: u64::MAX / 2 + self.values,
                        received: 0,
                        envelope: twice,
                    });
                    self.values += 1;
                    let delay = self.plan.delay * 2;
                    self.later(delay, Happening::Frame(reader, life, id, connection, frame));
                }
                request.answered_below = 0;
                Letter::Request(request)
            }
            (Sabotage::EmptyFetch, Letter::Records { epoch, finished, records }) => {
                if records.is_empty() {
                    return Some(hop);
                }
                Letter::Records { epoch, finished, records: Vec::new() }
            }
            (Sabotage::LostAnswers, Letter::Reply { .. }) if self.is_calm => return None,
            (Sabotage::LostWakeUp, Letter::Reply { call, .. })
                if self.is_calm && self.is_first_waking(reader, Ticket(call.number)) =>
            {
                Letter::HowFar(0)
            }
            (Sabotage::ShortList, Letter::Reply { call, answer: Answer::Keys(mut keys, more) }) => {
                keys.pop();
                Letter::Reply { call, answer: Answer::Keys(keys, more) }
            }
            (_, body) => body,
        };
        envelope.contents = Blob::from(encode(&changed));
        Some(hop)
    }

    /// Whether this tells somebody who waits for a key for the first time that it is there.
    fn is_first_waking(&mut self, reader: usize, ticket: Ticket) -> bool {
        let Some((key, at, _)) = self.processes[reader].calls.get(&ticket) else { return false };
        let waits = matches!(self.histories[key][*at].operation, Operation::Await);
        waits && self.kept_asleep.insert((reader, ticket))
    }

    fn hang_up(&mut self, one: MemberId, two: MemberId) {
        let Some(connection) = self.connections.remove(&(one.min(two), one.max(two))) else { return };
        for (here, there) in [(one, two), (two, one)] {
            if let Some(number) = self.ids.get(&here).copied() {
                let life = self.processes[number].life;
                self.later(self.plan.delay, Happening::Disconnected(number, life, there, connection));
            }
        }
    }

    pub(super) fn pump_registrar(&mut self) {
        let now = self.now;
        while let Some(command) = self.registrar.poll_command() {
            match command {
                Command::Send(stream, order) => self.send_order(stream.0, order),
                Command::Close(stream) => {
                    if let Some(number) =
                        self.processes.iter().position(|process| process.stream == Some(stream.0))
                    {
                        let (life, delay) = (self.processes[number].life, self.plan.delay * 2);
                        self.later(delay, Happening::StreamLost(number, life, stream.0));
                    }
                }
                Command::Knock(member, _, _) => {
                    let life = self.registrar_life;
                    let silent = matches!(self.kernel(member), Knocked::Silent);
                    let after = if silent { NOTICED } else { self.plan.delay };
                    self.later(after, Happening::Knocked(member, life));
                }
                Command::Decide(view) => self.registrar.handle_decided(now, view.epoch),
                Command::Note(text) => {
                    self.trace.line(now, &text);
                    if text.contains("; LOST: ") {
                        self.may_lose();
                    }
                }
            }
        }
        if let Some(due) = self.registrar.poll_timeout() {
            let due = due.max(now);
            if self.registrar_timer.is_none_or(|at| due < at || at < now) {
                self.registrar_timer = Some(due);
                self.queue.push(due, Happening::Timer(None, due));
            }
        }
    }

    fn send_order(&mut self, stream: u64, order: FromRegistrar) {
        let Some(number) = self.processes.iter().position(|process| process.stream == Some(stream)) else {
            return;
        };
        let mut order = decode::<FromRegistrar>(&encode(&order)).expect("it is read as it was written");
        match (&mut order, self.plan.sabotage) {
            (FromRegistrar::Granted { lease_ms, .. }, Some(Sabotage::EndlessLease)) => *lease_ms = 1 << 40,
            (FromRegistrar::Prepare { ends, .. }, Some(Sabotage::NoFreeze)) => {
                // The registrar hears that it is frozen from somebody who never heard that it should be.
                if ends.as_ref().is_some_and(|ends| ends.place(self.processes[number].id).is_some())
                    && let FromRegistrar::Prepare { view, .. } = &order
                {
                    let epoch = view.epoch;
                    self.tell(number, stream, ToRegistrar::Prepared(epoch));
                    let at = self.in_order(stream, false) + Duration::from_millis(5);
                    let life = self.processes[number].life;
                    self.queue.push(at, Happening::Order(number, life, stream, order));
                    return;
                }
            }
            _ => {}
        }
        if self.can_reach(number, None) {
            let (at, life) = (self.in_order(stream, false), self.processes[number].life);
            self.queue.push(at, Happening::Order(number, life, stream, order));
        }
    }

    fn program(&mut self, number: usize, life: u32) {
        if !self.is_current(number, life) || self.is_calm {
            return;
        }
        let every = self.plan.every;
        self.later_within(every * 2, Happening::Program(number, life));
        if self.processes[number].calls.len() >= 3 || self.processes[number].leaving {
            return;
        }
        self.values += 1;
        if self.plan.broadcasts && self.rng.chance(0.3) {
            return self.broadcast(number);
        }
        if self.plan.waits && self.rng.chance(0.2) {
            return self.do_something_else(number);
        }
        let (key, operation) = self.something_to_do();
        let (key, operation) = if number < self.plan.readers {
            let key = if self.rng.chance(0.5) { "register" } else { "log" };
            (Key::value(key), Operation::Look)
        } else {
            (key, operation)
        };
        let timeout = Duration::from_millis(500 + self.rng.below(4_000) as u64);
        self.call(number, key, operation, timeout);
    }

    /// What a program may do.
    pub(super) fn something_to_do(&mut self) -> (Key, Operation) {
        let value: Blob = format!("v{}", self.values).into_bytes().into();
        match self.rng.below(14) {
            0 | 1 => (Key::value("register"), Operation::Set(value)),
            2..=4 => (Key::value("register"), Operation::Look),
            5 => (Key::value("register"), Operation::Delete),
            6 => (Key::value("register"), Operation::CompareSet(Blob::default(), value)),
            7 | 8 => (Key::value("counter"), Operation::Add(1)),
            9 => (Key::value("log"), Operation::Append(value)),
            10 => (Key::value("log"), Operation::Look),
            11 | 12 => (queue(), Operation::Push(value)),
            _ => (queue(), Operation::Pop),
        }
    }

    pub(super) fn call(&mut self, number: usize, key: Key, operation: Operation, timeout: Duration) {
        let now = self.now;
        let history = self.histories.entry(key.clone()).or_default();
        history.push(Event { operation: remembered_call(&operation), begun: now, ended: None });
        let at = history.len() - 1;
        let ticket = self.member(number).call(now, key.clone(), operation, timeout);
        self.processes[number].calls.insert(ticket, (key, at, now + timeout));
        self.pump(number);
    }

    fn finish(&mut self, number: usize, ticket: Ticket, result: Result<Answer, Failure>) {
        let why = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let answer = result.ok();
        if let Some((client, name)) = self.processes[number].foreign.remove(&ticket) {
            return self.tell_client(client, name, answer.map_or(Outcome::Failed, Outcome::Answered));
        }
        if self.listed(number, ticket, answer.as_ref()) {
            if answer.is_none() && self.is_calm {
                self.violate("liveness", format!("a list of keys failed in the calm: {why}"));
            }
            return;
        }
        let Some((key, at, deadline)) = self.processes[number].calls.remove(&ticket) else { return };
        let now = self.now;
        self.look_at_deadline(number, deadline);
        let event = &mut self.histories.get_mut(&key).expect("it was begun")[at];
        if let Some(answer) = answer {
            self.slowest = self.slowest.max(now - event.begun);
            self.answered.0 += 1;
            event.ended = Some((now, remembered_answer(answer)));
        } else {
            self.answered.1 += 1;
            if self.is_calm {
                self.violate("liveness", format!("a call on {key:?} failed in the calm: {why}"));
            }
        }
    }

    fn strike(&mut self, kind: usize) {
        if self.is_calm {
            return;
        }
        let (now, count) = (self.now, self.processes.len());
        let number = self.rng.below(count);
        let lasts = self.plan.lasts.mul_f64(self.rng.unit());
        // A registrar that forgot everything learns from members that there is a store. If none of them came within its
        // grace it could not know, and whoever comes next would begin another one: that much is asked of the world.
        if matches!(kind, 1 | 3) && self.registrar.view().is_none() {
            return;
        }
        match kind {
            0 => {
                // Every key must be with two, or there is nothing to check.
                let troubled = !self.cuts.is_empty() || self.processes.iter().any(|process| process.stopped);
                let fits = if self.plan.kills_in_cuts { self.is_held_twice() } else { self.is_whole() };
                if !fits || self.processes[number].member.is_none() {
                    return self.later(Duration::from_millis(100), Happening::Fault(0));
                }
                self.kills_in_trouble += u64::from(troubled);
                self.trace.line(now, &format!("process {number} is killed"));
                self.vanish(number);
                if self.plan.second_deaths {
                    self.later_within(deaths::SOON, Happening::SecondDeath);
                }
            }
            1 => {
                let process = &mut self.processes[number];
                if process.member.is_none() || process.stopped {
                    return;
                }
                process.stopped = true;
                let life = process.life;
                self.trace.line(now, &format!("process {number} is stopped for {lasts:?}"));
                self.later(lasts, Happening::Continue(number, life));
            }
            2 | 3 => {
                let other = (kind == 2).then(|| self.rng.below(count)).filter(|other| *other != number);
                if kind == 2 && other.is_none() {
                    return;
                }
                let pair = other.map_or((number, None), |other| (number.min(other), Some(number.max(other))));
                self.trace.line(now, &format!("cut {pair:?} for {lasts:?}"));
                self.cuts.insert(pair);
                self.break_links(number, other);
                self.later(lasts, Happening::Heal(pair.0, pair.1));
            }
            4 => {
                let connections: Vec<_> = self.connections.keys().copied().collect();
                if connections.is_empty() {
                    return;
                }
                let (one, two) = connections[self.rng.below(connections.len())];
                self.trace.line(now, &format!("the link {one:?} {two:?} breaks"));
                self.hang_up(one, two);
            }
            _ => {
                if !self.somebody_can_tell() {
                    return;
                }
                self.trace.line(now, "the registrar is restarted");
                self.registrar_life += 1;
                self.registrar = Registrar::new(self.plan.config.clone(), self.rng.next_u64());
                self.registrar.listen(now + self.plan.config.control_grace);
                self.registrar_timer = None;
                for number in 0..count {
                    if let Some(stream) = self.processes[number].stream {
                        let life = self.processes[number].life;
                        self.later_within(NOTICED, Happening::StreamLost(number, life, stream));
                    }
                }
                self.pump_registrar();
            }
        }
        self.struck[kind] += 1;
    }

    /// Whether a member of the newest view is there to tell a registrar of it.
    fn somebody_can_tell(&self) -> bool {
        let epoch = |number: usize| {
            let member = self.processes[number].member.as_ref();
            member.and_then(|member| member.view()).map_or(0, |view| view.epoch)
        };
        let all = 0..self.processes.len();
        let newest = all.clone().map(epoch).max().unwrap_or(0);
        let can_tell = |number: usize| !self.processes[number].stopped && self.can_reach(number, None);
        all.into_iter().any(|number| epoch(number) == newest && newest > 0 && can_tell(number))
    }

    fn leave(&mut self) {
        let number = self.rng.below(self.processes.len());
        if self.is_calm || !self.is_settled() || self.processes[number].stopped {
            return;
        }
        let now = self.now;
        self.trace.line(now, &format!("process {number} leaves"));
        self.processes[number].leaving = true;
        self.struck[KINDS] += 1;
        self.member(number).leave(now);
        self.pump(number);
    }

    /// A process is gone, with everything in it.
    pub(super) fn vanish(&mut self, number: usize) {
        let id = self.processes[number].id;
        self.processes[number].member = None;
        self.processes[number].stopped = false;
        self.processes[number].held.clear();
        self.processes[number].calls.clear();
        self.processes[number].lists.clear();
        for (client, name) in std::mem::take(&mut self.processes[number].foreign).into_values() {
            self.tell_client(client, name, Outcome::HungUp);
        }
        let linked: Vec<_> =
            self.connections.keys().filter(|(one, two)| *one == id || *two == id).copied().collect();
        linked.into_iter().for_each(|(one, two)| self.hang_up(one, two));
        if let Some(stream) = self.processes[number].stream.take() {
            self.later(self.plan.delay, Happening::StreamClosed(stream));
        }
        let back = Duration::from_millis(300 + self.rng.below(2_000) as u64);
        self.later(back, Happening::Start(number));
    }

    fn break_links(&mut self, number: usize, other: Option<usize>) {
        let (life, id) = (self.processes[number].life, self.processes[number].id);
        match other {
            Some(other) => {
                let theirs = self.processes[other].id;
                self.hang_up(id, theirs);
            }
            None => {
                if let Some(stream) = self.processes[number].stream {
                    self.later(NOTICED, Happening::StreamLost(number, life, stream));
                    self.later(NOTICED, Happening::StreamClosed(stream));
                }
            }
        }
    }

    fn go_on(&mut self, number: usize) {
        (self.processes[number].stopped, self.processes[number].went_on) = (false, self.now);
        self.trace.line(self.now, &format!("process {number} goes on"));
        let held = std::mem::take(&mut self.processes[number].held);
        held.into_iter().for_each(|happening| self.happen(happening));
        if self.processes[number].member.is_some() {
            let now = self.now;
            self.processes[number].timer = None;
            self.member(number).handle_timeout(now);
            self.pump(number);
        }
    }

    pub(super) fn heal_all(&mut self) {
        self.trace.line(self.now, "all is healed");
        self.is_calm = true;
        self.cuts.clear();
        // What was begun in the storm may fail, but not hang; the calm begins with what is begun in it.
        self.look_at_deadlines();
        for process in &mut self.processes {
            process.calls.clear();
            process.lists.clear();
        }
        self.clients.iter_mut().for_each(Client::forget);
        for number in 0..self.processes.len() {
            if self.processes[number].stopped {
                self.go_on(number);
            }
        }
    }
}

/// A stopped process neither hears nor acts.
fn held_by(happening: &Happening) -> Option<usize> {
    match happening {
        Happening::Connected(number, ..)
        | Happening::Unreachable(number, ..)
        | Happening::Frame(number, ..)
        | Happening::Disconnected(number, ..)
        | Happening::Order(number, ..)
        | Happening::StreamOpened(number, _)
        | Happening::StreamLost(number, ..)
        | Happening::Timer(Some(number), _)
        | Happening::Asked(number, ..)
        | Happening::Program(number, _) => Some(*number),
        _ => None,
    }
}
