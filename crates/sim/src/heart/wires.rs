//! Control streams between processes and coordinators: dialled in their own time, made of bytes, and breaking so
//! that each side learns of it when it does.

use super::facts::Fact;
use super::fault::Sabotage;
use super::health::Node;
use super::process::Process;
use super::stream::{Stream, framed};
use super::world::{Coordinator, Event, World};
use outlast_proto::ballot::{dummy, dummy_ring};
use outlast_proto::coordinator::ConnectionId;
use outlast_proto::session::Action;
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::InvalidMessage;
use outlast_proto::wire::control::{
    AbortReason, BallotEnd, Registration, Resume, ToCoordinator, ToPeer, Verdict,
};

/// The production driver gives a dial up after this long.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// A dial that nothing stands in the way of takes this many ways there and back: TCP, TLS and the hello.
const DIAL_TRIPS: u32 = 4;
/// How long the one dial in ten may take that meets a busy machine.
pub(super) const SLOW_DIAL: Duration = Duration::from_secs(1);

/// One stream between a process and a coordinator.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub(super) process: usize,
    pub(super) coordinator: usize,
    up: Stream,
    down: Stream,
    /// Whether each side still holds its end.
    peer_holds: bool,
    coordinator_holds: bool,
    /// The term that this coordinator said over it.
    term: u64,
}

impl World {
    /// A process dials. An earlier dial of it that is still under way comes to nothing.
    pub(super) fn dial(&mut self, process: usize) {
        let now = self.now;
        let state = &mut self.processes[process];
        state.dials += 1;
        let serial = state.dials;
        let blocked = now < state.control_cut_until || state.is_isolated(now);
        let to = self.at_address.filter(|at| !blocked && self.coordinators[*at].lives);
        let most = match to {
            _ if blocked => DIAL_TIMEOUT,
            None => self.settings.latency_max,
            Some(_) if self.rng.chance(0.1) => SLOW_DIAL,
            Some(_) => self.settings.latency_max * DIAL_TRIPS,
        };
        let delay = self.some(most);
        if blocked {
            self.processes[process].swallowed_until = now + delay;
        }
        self.after(delay, Event::Dialled(process, serial, to));
    }

    /// A dial came through, or failed: then whoever answers it must still be there, and the way to it open.
    pub(super) fn dialled(&mut self, process: usize, serial: u64, to: Option<usize>) {
        let now = self.now;
        let state = &self.processes[process];
        if state.dials != serial {
            return;
        }
        let blocked = now < state.control_cut_until || state.is_isolated(now);
        let reached =
            to.filter(|at| !blocked && self.at_address == Some(*at) && self.coordinators[*at].lives);
        match reached {
            Some(coordinator) => {
                self.next_wire += 1;
                let wire = Channel {
                    process,
                    coordinator,
                    up: Stream::new(now),
                    down: Stream::new(now),
                    peer_holds: true,
                    coordinator_holds: true,
                    term: 0,
                };
                self.wires.insert(self.next_wire, wire);
                self.processes[process].connection = Some(self.next_wire);
                self.processes[process].session.handle_connected(now);
            }
            None => self.processes[process].session.handle_disconnected(now),
        }
        self.drain_peer(process);
    }

    /// The bytes of a message to a peer. Planted bugs tell one of them another verdict.
    pub(super) fn bytes_for_peer(&mut self, message: &ToPeer) -> Vec<u8> {
        if let ToPeer::Verdict { key, verdict } = message {
            let spoiled = match self.settings.sabotage {
                Some(Sabotage::FlipVerdict) => self.rng.chance(0.02),
                Some(Sabotage::HideAnAbort) => {
                    matches!(verdict, Verdict::Abort(AbortReason::PeersLost(_))) && self.rng.chance(0.2)
                }
                _ => false,
            };
            if spoiled {
                let verdict = Verdict::Abort(AbortReason::Void);
                return framed(&ToPeer::Verdict { key: key.clone(), verdict });
            }
        }
        framed(message)
    }

    pub(super) fn send_to_peer(&mut self, wire: u64, bytes: &[u8]) {
        let now = self.now;
        let (first, then) = (self.some(self.settings.latency_max), self.some(self.settings.latency_max));
        let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.coordinator_holds) else { return };
        if held.down.is_cut() {
            return;
        }
        let (torn, whole) = held.down.send(now, bytes, &mut self.rng);
        if self.settings.sabotage == Some(Sabotage::SpoilByte) && self.rng.chance(0.002) {
            held.down.spoil();
        }
        for (piece, delay) in torn.map(|piece| (piece, first)).into_iter().chain([(whole, then)]) {
            held.down.last = held.down.last.max(now + delay);
            self.queue.push(held.down.last, Event::ToPeer(wire, piece));
        }
    }

    fn send_to_coordinator(&mut self, process: usize, message: &ToCoordinator) {
        let now = self.now;
        let (first, then) = (self.some(self.settings.latency_max), self.some(self.settings.latency_max));
        let Some(wire) = self.processes[process].connection else { return };
        let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.peer_holds && !wire.up.is_cut()) else {
            return;
        };
        let (torn, whole) = held.up.send(now, &framed(message), &mut self.rng);
        for (piece, delay) in torn.map(|piece| (piece, first)).into_iter().chain([(whole, then)]) {
            held.up.last = held.up.last.max(now + delay);
            self.queue.push(held.up.last, Event::ToCoordinator(wire, piece));
        }
    }

    /// Bytes arrive at a coordinator: it takes in every message that is whole now.
    pub(super) fn arrive_at_coordinator(&mut self, wire: u64, up_to: u64) {
        if let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.coordinator_holds) {
            held.up.arrive(up_to, &mut self.rng);
        }
        loop {
            let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.coordinator_holds) else { return };
            if !self.coordinators[held.coordinator].lives {
                return;
            }
            match held.up.take::<ToCoordinator>() {
                None => return,
                Some(Ok((message, _))) => self.coordinator_hears(wire, message),
                Some(Err(error)) => {
                    let sender = held.process;
                    self.undecodable(wire, &error);
                    self.line(|| format!("process {sender} sent what is no message: {error}"));
                    self.coordinator_closes(wire);
                }
            }
        }
    }

    fn coordinator_hears(&mut self, wire: u64, message: ToCoordinator) {
        let Some(held) = self.wires.get(&wire) else { return };
        let (index, from) = (held.coordinator, self.processes[held.process].id);
        let now = self.now;
        self.trace.event(now, b'c', [wire, index as u64, 0]);
        // A process that was renamed has a new connection; on the old one it speaks as who it was.
        let from = match &message {
            ToCoordinator::Register(registration, ..) => registration.info.id,
            ToCoordinator::Resume(resume) => resume.registration.info.id,
            _ => self.names.get(&wire).copied().unwrap_or(from),
        };
        self.names.insert(wire, from);
        if let ToCoordinator::Register(Registration { info, .. }, ..)
        | ToCoordinator::Resume(Resume { registration: Registration { info, .. }, .. }) = &message
        {
            self.meet(index, from, info.address);
        }
        let forged = match &message {
            ToCoordinator::Initiate { key, timeout_ms: 1.., .. } => {
                Some(ToCoordinator::Complete { key: key.clone() })
            }
            _ => None,
        };
        let is_lost = match self.settings.sabotage {
            Some(Sabotage::LoseMemories) => matches!(message, ToCoordinator::Remembered(_)),
            Some(Sabotage::DropResumes) => matches!(message, ToCoordinator::Resume(_)),
            _ => false,
        };
        if !is_lost {
            self.coordinators[index].run.handle_message(now, ConnectionId(wire), from, message);
        }
        if let Some(forged) = forged.filter(|_| self.settings.sabotage == Some(Sabotage::ForgeComplete)) {
            self.coordinators[index].run.handle_message(now, ConnectionId(wire), from, forged);
        }
        self.drain_coordinator(index);
    }

    /// Bytes arrive at a peer: it takes in every message that is whole now, as long as it holds this stream.
    pub(super) fn arrive_at_peer(&mut self, wire: u64, up_to: u64) {
        if let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.peer_holds) {
            held.down.arrive(up_to, &mut self.rng);
        }
        loop {
            let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.peer_holds) else { return };
            if self.processes[held.process].connection != Some(wire) {
                return;
            }
            match held.down.take::<ToPeer>() {
                None => return,
                Some(Ok((message, sent))) => self.peer_hears(wire, sent, message),
                Some(Err(error)) => {
                    self.undecodable(wire, &error);
                    self.peer_sees_close(wire);
                }
            }
        }
    }

    fn undecodable(&mut self, wire: u64, error: &InvalidMessage) {
        self.fact(Fact::Undecodable { wire, error: error.to_string() });
    }

    fn peer_hears(&mut self, wire: u64, sent: Instant, message: ToPeer) {
        let Some(held) = self.wires.get_mut(&wire) else { return };
        let (process, coordinator) = (held.process, held.coordinator);
        if let ToPeer::Registered { term } | ToPeer::Resumed { term } = &message {
            held.term = held.term.max(*term);
        }
        let (now, term) = (self.now, held.term);
        self.trace.event(now, b'p', [wire, process as u64, term]);
        let heard = self.heard(process, term, sent, &message);
        let obeyed = self.processes[process].obeyed;
        match &message {
            ToPeer::Kicked { term, .. } if *term < obeyed => self.processes[process].turned_away = now,
            // Whoever waits to be let in hears of a new term in the same words, and resumes nothing.
            ToPeer::Resumed { .. } => {
                let state = &mut self.processes[process];
                state.resuming = state.session.record().is_some();
            }
            ToPeer::Proceed { .. } => self.processes[process].resuming = false,
            _ => {}
        }
        let state = &mut self.processes[process];
        state.session.handle_message(now, message);
        if state.session.record().is_some() && state.session.is_connected() && !state.resuming {
            state.let_on_by = Some(coordinator);
        }
        if let Some(fact) = heard {
            self.fact(fact);
        }
        self.drain_peer(process);
    }

    /// The stream that a process has to the coordinator at the address, if both hold their ends.
    pub(super) fn talks_to(&self, process: usize) -> Option<(u64, &Coordinator)> {
        let state = self.processes.get(process).filter(|state| state.lives() && state.runs())?;
        let wire = state.connection?;
        let held = self.wires.get(&wire).filter(|held| held.peer_holds && held.coordinator_holds)?;
        let coordinator = &self.coordinators[held.coordinator];
        let whole = !held.up.is_cut() && !held.down.is_cut();
        (whole && coordinator.lives && !coordinator.deposed).then_some((wire, coordinator))
    }

    /// What a checker should know of a message that is about to be taken in.
    fn heard(&mut self, process: usize, term: u64, sent: Instant, message: &ToPeer) -> Option<Fact> {
        let peer = &mut self.processes[process];
        if peer.session.out().is_some() || !peer.session.is_connected() {
            if let ToPeer::Registered { term } | ToPeer::Resumed { term } = message
                && peer.session.out().is_none()
            {
                if *term < peer.obeyed {
                    self.refused_terms += 1;
                } else {
                    peer.obeyed = *term;
                }
            }
            return None;
        }
        if term < peer.obeyed {
            let obeyed = peer.obeyed;
            let peer = peer.id;
            return Some(Fact::ObeyedLowerTerm { process, peer, term, obeyed });
        }
        peer.obeyed = term;
        let founder = peer.session.record()?.founder;
        let peer = peer.id;
        match message.clone() {
            ToPeer::Verdict { key, verdict } => {
                Some(Fact::Heard { process, peer, key, verdict, founder, term, sent })
            }
            ToPeer::BallotEnded { ballot, end: BallotEnd::Agreed(outcome), .. }
                if [dummy::KIND, dummy_ring::KIND].contains(&ballot.kind) =>
            {
                let Process { ballot: vote, resuming, .. } = &self.processes[process];
                let (vote, resuming) = (vote.clone(), *resuming);
                Some(Fact::BallotAgreed { peer, founder, ballot, outcome, vote, term, resuming })
            }
            _ => None,
        }
    }

    pub(super) fn drain_peer(&mut self, process: usize) {
        while let Some(action) = self.processes[process].session.poll_action() {
            match action {
                Action::Dial => {
                    self.let_go(process);
                    self.dial(process);
                }
                Action::HangUp => self.let_go(process),
                Action::Send(message) => {
                    self.note_completion(process, &message);
                    self.send_to_coordinator(process, &message);
                }
                Action::OpenEpoch(record) => {
                    self.line(|| {
                        let (epoch, size, ring) = (record.epoch, record.roster.len(), &record.ring);
                        let broken = &record.broken;
                        format!("process {process} opens epoch {epoch} of {size}, ring {ring:?}, broken {broken:?}")
                    });
                    self.open_links(process, &record);
                    let node = Node::Process(process);
                    self.tell_member(node, |machine, now| machine.handle_roster(now, &record.roster));
                    let peer = self.processes[process].id;
                    self.fact(Fact::Opened { process, peer, record });
                }
                Action::Prepare(record, question) => self.prepare(process, &record, question),
                Action::Redial(to, _) => self.redial(process, to),
                Action::Relink(to) => self.relink(process, to),
                // News for a program; nothing follows from it.
                Action::Slowed(_) | Action::CalledLast(..) => {}
                Action::Call(call, command) => self.command(process, call, command),
            }
        }
        let due = self.processes[process].session.poll_timeout();
        let armed = &mut self.processes[process].armed;
        if let Some(due) = due.filter(|due| armed.is_none_or(|armed| *due < armed)) {
            *armed = Some(due);
            self.queue.push(due.max(self.now), Event::PeerTimer(process));
        }
    }

    fn note_completion(&mut self, process: usize, message: &ToCoordinator) {
        let peer = self.processes[process].id;
        match message {
            ToCoordinator::Complete { key } => self.fact(Fact::Completed { peer, key: key.clone() }),
            ToCoordinator::Resume(resume) => {
                let open = resume.tags.iter().filter_map(|tag| tag.open.as_ref());
                for vote in open.filter(|open| open.complete) {
                    self.fact(Fact::Completed { peer, key: vote.key.clone() });
                }
            }
            _ => {}
        }
    }

    /// A peer closes its end; what it sent before still arrives.
    fn let_go(&mut self, process: usize) {
        let Some(wire) = self.processes[process].connection.take() else { return };
        let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.peer_holds) else { return };
        held.peer_holds = false;
        if !held.up.is_cut() {
            held.up.close();
            let at = held.up.last.max(self.now);
            self.queue.push(at, Event::CoordinatorSeesClose(wire));
        }
    }

    /// A coordinator closes its end; what it sent before still arrives.
    pub(super) fn coordinator_closes(&mut self, wire: u64) {
        let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.coordinator_holds) else { return };
        if !held.down.is_cut() {
            held.down.close();
            let at = held.down.last.max(self.now);
            self.queue.push(at, Event::PeerSeesClose(wire));
        }
        self.coordinator_sees_close(wire);
    }

    /// A stream breaks. Each direction may lose what is under way from some byte on; each side learns of it later.
    pub(super) fn cut_wire(&mut self, wire: u64, notice_max: Duration) {
        let (lose_up, lose_down) = (self.rng.chance(0.5), self.rng.chance(0.5));
        let (notice_up, notice_down) = (self.some(notice_max), self.some(notice_max));
        let Some(held) = self.wires.get_mut(&wire) else { return };
        for (direction, lose) in [(&mut held.up, lose_up), (&mut held.down, lose_down)] {
            direction.close();
            if lose {
                direction.tear(&mut self.rng);
            }
        }
        let (up, down) = (held.up.last.max(self.now + notice_up), held.down.last.max(self.now + notice_down));
        self.queue.push(up, Event::CoordinatorSeesClose(wire));
        self.queue.push(down, Event::PeerSeesClose(wire));
    }

    pub(super) fn peer_sees_close(&mut self, wire: u64) {
        let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.peer_holds) else { return };
        held.peer_holds = false;
        let process = held.process;
        if self.processes[process].connection == Some(wire) {
            let now = self.now;
            let state = &mut self.processes[process];
            state.connection = None;
            if state.session.is_connected() {
                state.went_down = now;
            }
            state.session.handle_disconnected(now);
            self.drain_peer(process);
        }
        self.forget_wire(wire);
    }

    pub(super) fn coordinator_sees_close(&mut self, wire: u64) {
        let Some(held) = self.wires.get_mut(&wire).filter(|wire| wire.coordinator_holds) else { return };
        held.coordinator_holds = false;
        let (index, now) = (held.coordinator, self.now);
        if self.coordinators[index].lives {
            if self.settings.sabotage == Some(Sabotage::TakeSilenceForGoodbye)
                && let Some(from) = self.names.get(&wire).copied()
            {
                let goodbye = ToCoordinator::Leave { for_good: true };
                self.coordinators[index].run.handle_message(now, ConnectionId(wire), from, goodbye);
            }
            self.coordinators[index].run.handle_closed(now, ConnectionId(wire));
            self.drain_coordinator(index);
        }
        self.forget_wire(wire);
    }

    fn forget_wire(&mut self, wire: u64) {
        if self.wires.get(&wire).is_some_and(|held| !held.peer_holds && !held.coordinator_holds) {
            self.wires.remove(&wire);
            self.names.remove(&wire);
        }
    }
}
