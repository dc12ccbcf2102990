//! What happens: messages arrive, timers fire, faults strike.

use super::checkers::Fact;
use super::world::{Answer, Fault, Happening, LEASES_LATER, LISTENS, Sabotage, World};
use outlast_proto::rendezvous::{Machine, Outcome, Register, Request, State, Trouble, Written};
use outlast_proto::time::{Duration, Instant};
use std::collections::BTreeMap;

impl World {
    pub(super) fn happen(&mut self, happening: Happening) {
        if let Some(number) = happening.addressee()
            && self.hosts[number].stopped
            && !matches!(happening, Happening::Continue(..))
        {
            self.hosts[number].held.push_back(happening);
            return;
        }
        match happening {
            Happening::Start(number) => self.start(number),
            Happening::Look(number, incarnation) => self.look(number, incarnation),
            Happening::Asked(number, connection, request) => self.asked(number, connection, request),
            Happening::Answered(number, connection, answer) => self.answered(number, connection, answer),
            Happening::News(number, connection) => self.news(number, connection),
            Happening::Timer(None, at) => {
                if self.register_timer.take_if(|due| *due == at).is_some() {
                    let now = self.now;
                    self.register.handle_timeout(now);
                    self.tell_changes();
                    self.answer_at_last();
                }
            }
            Happening::Timer(Some(number), at) => {
                let now = self.now;
                let host = &mut self.hosts[number];
                let is_due = host.timer.take_if(|due| *due == at).is_some();
                if let Some(machine) = host.machine.as_mut().filter(|_| is_due) {
                    machine.handle_timeout(now);
                    self.pump(number);
                }
            }
            Happening::Continue(number, incarnation) => self.go_on(number, incarnation),
            Happening::Reconnect(number, connection) => self.reconnect(number, connection),
            Happening::Fault(fault) if !self.is_calm => self.strike(fault),
            Happening::Fault(_) => {}
        }
    }

    /// Carries out what a machine wants, and sets its timer.
    pub(super) fn pump(&mut self, number: usize) {
        loop {
            let host = &mut self.hosts[number];
            let Some(request) = host.machine.as_mut().and_then(Machine::poll_action) else {
                break;
            };
            match request {
                Request::Tell(_) => {}
                Request::Done(outcome) => self.done(number, outcome.map_err(|failure| failure.to_string())),
                request => {
                    match &request {
                        Request::Write { .. } => host.writes += 1,
                        Request::Beat { lease, note } => host.lease = Some((*lease, note.clone())),
                        Request::Release => host.lease = None,
                        _ => {}
                    }
                    let (connection, is_connected) = (host.connection, host.is_connected);
                    let way = self.plan.delay;
                    if is_connected {
                        self.later(way, Happening::Asked(number, connection, request));
                    } else if !matches!(request, Request::Release) {
                        // The driver answers for a backend that cannot be reached.
                        let trouble = Trouble { is_final: false, text: "no connection".to_owned() };
                        let now = self.now;
                        let machine = self.hosts[number].machine.as_mut().expect("it asked");
                        machine.handle_trouble(now, trouble);
                    }
                }
            }
        }
        let host = &mut self.hosts[number];
        let due = host.machine.as_ref().and_then(Machine::poll_timeout);
        if let Some(due) =
            due.map(|due| due.max(self.now)).filter(|due| host.timer.is_none_or(|set| *due < set))
        {
            host.timer = Some(due);
            self.queue.push(due, Happening::Timer(Some(number), due));
        }
    }

    fn done(&mut self, number: usize, outcome: Result<Outcome, String>) {
        let host = &mut self.hosts[number];
        let (node, writes) = (host.node.clone(), host.writes);
        self.report(Fact::Ended { node: node.clone(), writes });
        match outcome {
            Ok(Outcome::Joined(round)) => {
                self.hosts[number].round = Some(round.clone());
                let era = self.register.snapshot().map_or(0, |told| told.token.era);
                self.report(Fact::Joined { node, era, round });
            }
            // Its look around makes it try again.
            other => self.trace.line(self.now, &format!("{node}: {other:?}")),
        }
    }

    fn asked(&mut self, number: usize, connection: u32, request: Request) {
        if self.hosts[number].connection != connection {
            return;
        }
        let now = self.now;
        let node = self.hosts[number].node.clone();
        let holder = node.to_string();
        let sabotage = self.plan.sabotage;
        self.register.handle_timeout(now);
        if self.register.listens() && matches!(request, Request::Read | Request::Write { .. }) {
            self.unanswered.push((number, connection, request));
            return;
        }
        let answer = match request {
            Request::Read => self.register.snapshot().map(Answer::Told),
            Request::Beat { lease, note } => {
                let changes = self.register.changes();
                self.beaten(&holder, lease, note);
                if let Some(told) = self.register.snapshot().filter(|_| self.register.changes() > changes) {
                    let way = self.plan.delay;
                    self.later(way, Happening::Answered(number, connection, Answer::Told(told)));
                }
                Some(Answer::Beaten)
            }
            Request::Release => {
                self.register.handle_release(now, &holder);
                None
            }
            Request::Write { mut expected, mut value } => {
                if sabotage == Some(Sabotage::TurnedRoster) {
                    let mut state = State::from_bytes(&value).expect("a machine wrote it");
                    state.roster.reverse();
                    if state.complete {
                        let last = state.roster.len().saturating_sub(1) as u32;
                        state.participants.values_mut().for_each(|seat| seat.rank = last - seat.rank);
                    }
                    value = state.to_bytes();
                }
                if sabotage == Some(Sabotage::WaitingSpares) {
                    let mut state = State::from_bytes(&value).expect("a machine wrote it");
                    state.wait_list.append(&mut state.redundancy_list);
                    value = state.to_bytes();
                }
                let last = self.register.snapshot().map(|told| told.token);
                if sabotage == Some(Sabotage::AnyToken) {
                    expected = last.unwrap_or(expected);
                }
                let writer = if sabotage == Some(Sabotage::AnyLease) { "" } else { &holder };
                let fate = if sabotage == Some(Sabotage::Unlucky) && last.is_some() {
                    Some(Written::Lost)
                } else {
                    self.register.handle_write(now, writer, expected, value)
                };
                if fate == Some(Written::Accepted) {
                    self.report(Fact::Wrote { node });
                }
                fate.zip(self.register.snapshot()).map(|(fate, told)| Answer::Written(fate, told))
            }
            Request::Tell(_) | Request::Done(_) => unreachable!("not for the register"),
        };
        self.tell_changes();
        if let Some(answer) = answer {
            let way = self.plan.delay;
            self.later(way, Happening::Answered(number, connection, answer));
        }
    }

    /// A lease is renewed, and a note left beside it.
    fn beaten(&mut self, holder: &str, lease: Duration, note: Vec<u8>) {
        let is_immortal = self.plan.sabotage == Some(Sabotage::Immortal);
        let lasts = if is_immortal { Duration::from_hours(99) } else { lease };
        let note = if self.plan.keeps_notes { note } else { Vec::new() };
        self.register.handle_beat(self.now, holder, lasts, note);
        self.checkers.renewed(self.now, holder, self.plan.settings.lease());
    }

    /// The register has listened: what it was asked meanwhile is answered, in order.
    fn answer_at_last(&mut self) {
        if !self.register.listens() {
            for (number, connection, request) in std::mem::take(&mut self.unanswered) {
                self.asked(number, connection, request);
            }
        }
    }

    fn answered(&mut self, number: usize, connection: u32, answer: Answer) {
        let now = self.now;
        let host = &mut self.hosts[number];
        if host.connection != connection {
            return;
        }
        let Some(machine) = &mut host.machine else { return };
        match answer {
            Answer::Told(told) => {
                host.last = Some(told.clone());
                machine.handle_snapshot(now, told);
            }
            Answer::Written(fate, told) => {
                host.last = Some(told.clone());
                machine.handle_written(now, fate, told);
            }
            Answer::Beaten => machine.handle_beat(now),
        }
        self.pump(number);
    }

    /// Whoever is connected hears of the newest, once for all changes that are under way.
    fn tell_changes(&mut self) {
        let due = self.register.poll_timeout().map(|due| due.max(self.now));
        if let Some(due) = due.filter(|due| self.register_timer.is_none_or(|set| *due < set)) {
            self.register_timer = Some(due);
            self.queue.push(due, Happening::Timer(None, due));
        }
        let changes = self.register.changes();
        if changes == std::mem::replace(&mut self.told_changes, changes) {
            return;
        }
        if self.plan.sabotage == Some(Sabotage::Silence) {
            return;
        }
        let token = self.register.token();
        let is_written = token != std::mem::replace(&mut self.told_token, token);
        let later = if is_written { Duration::ZERO } else { LEASES_LATER };
        for number in 0..self.hosts.len() {
            if !self.hosts[number].is_connected {
                continue;
            }
            let after = self.plan.delay + later + self.plan.news_delay.mul_f64(self.rng.unit());
            let due = self.now + after;
            let host = &mut self.hosts[number];
            if host.news_due.is_none_or(|set| due < set) {
                host.news_due = Some(due);
                let connection = host.connection;
                self.queue.push(due, Happening::News(number, connection));
            }
        }
    }

    fn news(&mut self, number: usize, connection: u32) {
        let now = self.now;
        let told = self.register.snapshot();
        let host = &mut self.hosts[number];
        // What was set before news that came sooner is stale.
        if host.connection != connection || host.news_due.take_if(|due| *due <= now).is_none() {
            return;
        }
        if let (Some(machine), Some(told)) = (&mut host.machine, told) {
            host.last = Some(told.clone());
            machine.handle_snapshot(now, told);
            self.pump(number);
        }
    }

    fn strike(&mut self, fault: Fault) {
        let number = self.rng.below(self.hosts.len());
        self.trace.line(self.now, &format!("{fault:?} strikes host {number}"));
        match fault {
            Fault::Kill => {
                let host = &mut self.hosts[number];
                host.machine = None;
                host.stopped = false;
                host.held.clear();
                host.connection += 1;
                host.is_connected = false;
                host.round = None;
                host.incarnation += 1;
                self.later_within(Duration::from_secs(10), Happening::Start(number));
            }
            Fault::Stop => {
                let longest = self.plan.settings.lease() * 2;
                let host = &mut self.hosts[number];
                if host.machine.is_some() && !host.stopped {
                    host.stopped = true;
                    let incarnation = host.incarnation;
                    self.later_within(longest, Happening::Continue(number, incarnation));
                }
            }
            Fault::Break => self.break_off(number, Duration::from_secs(2)),
            Fault::Restart => {
                let era = self.now.since(Instant::ORIGIN).as_micros() as u64;
                self.register = Register::listening(self.now + LISTENS, era);
                self.unanswered.clear();
                self.told_changes = u64::MAX;
                self.tell_changes();
                (0..self.hosts.len()).for_each(|number| self.break_off(number, Duration::from_secs(3)));
            }
        }
    }

    /// A connection breaks, with all that was under way; the node is back within that time.
    fn break_off(&mut self, number: usize, back_within: Duration) {
        let now = self.now;
        let host = &mut self.hosts[number];
        let Some(machine) = &mut host.machine else { return };
        host.connection += 1;
        host.is_connected = false;
        host.news_due = None;
        let connection = host.connection;
        if host.stopped {
            // It finds out when it goes on.
            self.later_within(back_within, Happening::Reconnect(number, connection));
            return;
        }
        machine.handle_trouble(now, Trouble { is_final: false, text: "the connection broke".to_owned() });
        self.pump(number);
        self.later_within(back_within, Happening::Reconnect(number, connection));
    }

    fn reconnect(&mut self, number: usize, connection: u32) {
        let now = self.now;
        let lease = self.plan.settings.lease();
        let host = &mut self.hosts[number];
        if host.connection != connection || host.machine.is_none() {
            return;
        }
        host.is_connected = true;
        if let Some(brought) = host.last.clone() {
            if self.register.snapshot().is_none() {
                // A register that listens gives everybody a lease anew.
                brought.alive.iter().for_each(|holder| self.checkers.renewed(now, holder, lease));
            }
            self.register.handle_brought(now, brought, lease);
        }
        let trouble = Trouble { is_final: false, text: "the connection is new".to_owned() };
        host.machine.as_mut().expect("looked at above").handle_trouble(now, trouble);
        let due = now + self.plan.delay;
        host.news_due = Some(due);
        let renewed = host.lease.clone().map(|lease| (host.node.to_string(), lease));
        if let Some((holder, (lease, note))) = renewed {
            self.beaten(&holder, lease, note);
        }
        self.pump(number);
        self.queue.push(due, Happening::News(number, connection));
        self.tell_changes();
    }

    fn go_on(&mut self, number: usize, incarnation: u32) {
        let host = &mut self.hosts[number];
        if host.incarnation != incarnation || !std::mem::replace(&mut host.stopped, false) {
            return;
        }
        let held = std::mem::take(&mut host.held);
        self.trace.line(self.now, &format!("host {number} goes on"));
        held.into_iter().for_each(|happening| self.happen(happening));
    }

    /// No more faults: everybody runs, and is connected.
    pub(super) fn heal(&mut self) {
        self.is_calm = true;
        self.checkers.calm();
        self.trace.line(self.now, "all is healed");
        for number in 0..self.hosts.len() {
            let incarnation = self.hosts[number].incarnation;
            self.go_on(number, incarnation);
        }
    }
}

impl Happening {
    /// Which process it reaches; what reaches the register is on its way whatever becomes of the sender.
    fn addressee(&self) -> Option<usize> {
        match self {
            Self::Answered(number, ..)
            | Self::News(number, _)
            | Self::Timer(Some(number), _)
            | Self::Look(number, _)
            | Self::Reconnect(number, _)
            | Self::Continue(number, _) => Some(*number),
            Self::Asked(..) | Self::Timer(None, _) | Self::Start(_) | Self::Fault(_) => None,
        }
    }
}

/// When each lease runs out, counted apart from the register.
#[derive(Debug, Default)]
pub(super) struct Leases(BTreeMap<String, Instant>);

impl Leases {
    pub(super) fn renew(&mut self, holder: String, until: Instant) {
        self.0.insert(holder, until);
    }

    pub(super) fn lasts(&self, holder: &str, now: Instant) -> bool {
        self.0.get(holder).is_some_and(|until| now < *until)
    }
}
