//! The world itself: time goes on, things happen, processes are driven.
//!
//! Each process is driven exactly as the production driver drives its machine: what arrived is handed in
//! first, and only then is it told the time; whatever it asks for is carried out after every call. A process
//! that was stopped finds its socket's buffer and its finished connects first and its late timers after them.

use super::fault::{Direction, Fault, Firewall};
use super::host::{Host, HostId, Identity, ProcessState, Waiting};
use super::kernel::{Connection, Handshake};
use super::network::{Conditions, Network, Protocol};
use super::node::{Node, Output, Sender};
use super::queue::Queue;
use super::trace::Trace;
use super::{Ailment, Chronicle, Effect, SOCKET_BUFFER_PACKETS, Tally};
use outlast_proto::membership::{ConnectToken, Path};
use outlast_proto::rng::Rng;
use outlast_proto::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// A timer that fires later than this was held up by a fault.
const LATE: Duration = Duration::from_millis(20);
/// How late a healthy process's timers fire, at most.
const SCHEDULING: Duration = Duration::from_micros(100);
/// Timeouts in a row without the clock moving on, after which a node counts as spinning.
const SPINS_MAX: u32 = 1_000;
/// Worlds up to this size audit every message; larger ones audit one in `AUDIT_ONE_IN`.
const AUDIT_ALL_BELOW: usize = 65;
const AUDIT_ONE_IN: u64 = 64;

/// What a new process is told.
pub struct Birth {
    /// Who it is.
    pub identity: Identity,
    /// How many processes its host had before.
    pub boot: u32,
    /// What its clock says.
    pub now: Instant,
    /// Its randomness.
    pub rng: Rng,
}

type Start<N> = Box<dyn FnMut(Birth) -> N>;

pub(super) enum Happening<M> {
    Arrives { from: HostId, to: HostId, path: Path, boots: Option<(u32, u32)>, message: M },
    Timer { host: HostId, boot: u32 },
    Handshake(Handshake),
}

struct Stream {
    boots: (u32, u32),
    last_arrival: Instant,
}

/// A network of hosts under one seed.
pub struct World<N: Node> {
    pub(super) now: Instant,
    queue: Queue<Happening<N::Message>>,
    pub(super) hosts: Vec<Host<N, N::Message>>,
    pub(super) network: Network,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) unroutable: BTreeMap<u64, (HostId, u32, ConnectToken)>,
    pub(super) next_connection: u64,
    pub(super) tally: Tally,
    streams: BTreeMap<(HostId, HostId), Stream>,
    rng: Rng,
    start: Start<N>,
    trace: Trace,
    chronicle: Chronicle,
    notices: Vec<(Instant, HostId, N::Notice)>,
    breaches: Vec<String>,
    messages: u64,
}

impl<N: Node> World<N> {
    /// An empty world. `start` makes the program of every process that is started.
    pub fn new(seed: u64, conditions: Conditions, start: impl FnMut(Birth) -> N + 'static) -> Self {
        let mut rng = Rng::from_seed(seed);
        Self {
            now: Instant::ORIGIN,
            queue: Queue::new(),
            hosts: Vec::new(),
            network: Network::new(conditions, rng.split()),
            connections: BTreeMap::new(),
            unroutable: BTreeMap::new(),
            next_connection: 0,
            tally: Tally::default(),
            streams: BTreeMap::new(),
            rng,
            start: Box::new(start),
            trace: Trace::new(),
            chronicle: Chronicle::default(),
            notices: Vec::new(),
            breaches: Vec::new(),
            messages: 0,
        }
    }

    /// Keeps the readable timeline from now on.
    pub fn keep_timeline(&mut self) {
        self.trace.keep_lines();
    }

    /// Adds a host and starts its process.
    pub fn add_host(&mut self) -> HostId {
        let host = HostId(self.hosts.len() as u32);
        // Clocks start anywhere: a machine that compares its instants with another's would show it here.
        let clock_ahead = Duration::from_millis(1_000 + self.rng.below(1_000_000) as u64);
        self.hosts.push(Host {
            node: None,
            process: ProcessState::Dead,
            frozen: false,
            boot: 0,
            identity: Identity { host, generation: 0 },
            clock_ahead,
            timer_at: None,
            spins: 0,
            waiting: VecDeque::new(),
            waiting_datagrams: 0,
            backlog: 0,
            traffic: super::Traffic::default(),
            rng: self.rng.split(),
        });
        self.network.add_host();
        self.chronicle.add_host();
        self.start_process(host);
        host
    }

    /// Adds several hosts.
    pub fn add_hosts(&mut self, count: u32) {
        for _ in 0..count {
            self.add_host();
        }
    }

    /// The time, as nobody in the world knows it.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// All hosts.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = (HostId, &Host<N, N::Message>)> {
        self.hosts.iter().enumerate().map(|(index, host)| (HostId(index as u32), host))
    }

    /// One host.
    pub fn host(&self, host: HostId) -> &Host<N, N::Message> {
        &self.hosts[host.index()]
    }

    /// The ways between the hosts.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// What really happened.
    pub fn chronicle(&self) -> &Chronicle {
        &self.chronicle
    }

    /// What the faults did.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What happened, hashed and told.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// What nodes told their users since the last call, in order.
    pub fn take_notices(&mut self) -> Vec<(Instant, HostId, N::Notice)> {
        std::mem::take(&mut self.notices)
    }

    /// Breaches of the rules between a node and its driver: a message that does not encode, a timer that
    /// never advances.
    pub fn breaches(&self) -> &[String] {
        &self.breaches
    }

    /// Things that are about to happen.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Lets time go on until `until`.
    pub fn run_until(&mut self, until: Instant) {
        while let Some((at, happening)) = self.queue.pop_until(until) {
            self.now = at;
            match happening {
                Happening::Arrives { from, to, path, boots, message } => {
                    self.trace.event(at, b'a', [u64::from(from.0), u64::from(to.0), 0]);
                    self.arrive(from, to, path, boots, message);
                }
                Happening::Timer { host, boot } => {
                    self.trace.event(at, b't', [u64::from(host.0), u64::from(boot), 0]);
                    self.timer(host, boot);
                }
                Happening::Handshake(step) => self.handshake(step),
            }
        }
        self.now = self.now.max(until);
    }

    /// Lets something go wrong, now. Faults that do not apply (a dead process cannot stop) change nothing.
    pub fn inject(&mut self, fault: &Fault) {
        self.trace.line(self.now, &format!("FAULT {fault}"));
        let now = self.now;
        match *fault {
            Fault::Stall(host) => {
                if self.host(host).process == ProcessState::Live {
                    self.hosts[host.index()].process = ProcessState::Stalled;
                    self.chronicle.begin(host, Ailment::Stalled, now);
                }
            }
            Fault::Resume(host) => {
                if self.host(host).process == ProcessState::Stalled {
                    self.hosts[host.index()].process = ProcessState::Live;
                    self.hosts[host.index()].backlog = 0;
                    self.chronicle.end(host, Ailment::Stalled, now);
                    self.go_on(host);
                }
            }
            Fault::Freeze(host) => {
                self.hosts[host.index()].frozen = true;
                self.chronicle.begin(host, Ailment::Frozen, now);
            }
            Fault::Thaw(host) => {
                if std::mem::take(&mut self.hosts[host.index()].frozen) {
                    self.chronicle.end(host, Ailment::Frozen, now);
                    self.go_on(host);
                }
            }
            Fault::Kill(host) => {
                if self.host(host).is_born() {
                    self.tally.add(Effect::Killed);
                    self.end_process(host);
                }
            }
            Fault::Restart { host, same_identity } => {
                if !self.host(host).is_born() && !self.host(host).frozen {
                    self.tally.add(Effect::Restarted);
                    self.hosts[host.index()].identity.generation += u32::from(!same_identity);
                    self.start_process(host);
                }
            }
            Fault::Leave(host) => {
                if self.host(host).runs() {
                    self.tally.add(Effect::Left);
                    let local = self.local_now(host);
                    self.node_mut(host).handle_leave(local);
                    self.carry_out(host);
                    self.end_process(host);
                }
            }
            Fault::CutOff(host, direction) => {
                self.network.cut_off(host, direction);
                let ailment = match direction {
                    Direction::Inbound => Ailment::Deaf,
                    Direction::Outbound => Ailment::Mute,
                    Direction::Both => Ailment::CutOff,
                };
                self.chronicle.begin(host, ailment, now);
            }
            Fault::Reconnect(host) => {
                self.network.reconnect(host);
                for ailment in [Ailment::Deaf, Ailment::Mute, Ailment::CutOff] {
                    self.chronicle.end(host, ailment, now);
                }
            }
            Fault::CutPair(from, to) => self.network.cut_pair(from, to),
            Fault::HealPair(from, to) => self.network.heal_pair(from, to),
            Fault::Partition(ref side) => {
                self.network.partition(side);
                (0..self.hosts.len())
                    .for_each(|i| self.chronicle.begin(HostId(i as u32), Ailment::Parted, now));
            }
            Fault::HealPartition => {
                self.network.heal_partition();
                (0..self.hosts.len())
                    .for_each(|i| self.chronicle.end(HostId(i as u32), Ailment::Parted, now));
            }
            Fault::Loss(share) => self.network.conditions.loss = share,
            Fault::HostLoss(host, share) => {
                self.network.set_host_loss(host, share);
                self.chronicle.end(host, Ailment::Lossy, now);
                if share > 0.0 {
                    self.chronicle.begin(host, Ailment::Lossy, now);
                }
            }
            Fault::Duplicate(share) => self.network.conditions.duplicate = share,
            Fault::Reorder(share, by) => {
                self.network.conditions.reorder = share;
                self.network.conditions.reorder_by = by;
            }
            Fault::Delay(by) => self.network.delay_by(by),
            Fault::ClockJump(host, by) => {
                self.tally.add(Effect::ClockJumped);
                self.hosts[host.index()].clock_ahead += by;
                // Timers that have come due by the leap fire as soon as the process is scheduled.
                self.hosts[host.index()].timer_at = None;
                self.arm_timer(host);
            }
            Fault::BlockUdp(host) => self.network.set_udp_blocked(host, true),
            Fault::UnblockUdp(host) => self.network.set_udp_blocked(host, false),
            Fault::Firewall(host, wall) => {
                self.network.set_firewall(host, wall);
                self.chronicle.end(host, Ailment::Rejecting, now);
                self.chronicle.end(host, Ailment::RefusingTcp, now);
                match wall {
                    Firewall::Open => {}
                    Firewall::RejectTcp => self.chronicle.begin(host, Ailment::RefusingTcp, now),
                    Firewall::RejectAll => self.chronicle.begin(host, Ailment::Rejecting, now),
                }
            }
            Fault::Proxy(host, present) => self.network.set_proxied(host, present),
            Fault::HealAll => self.heal_all(),
        }
    }

    fn heal_all(&mut self) {
        self.network.heal_all();
        for index in 0..self.hosts.len() {
            let host = HostId(index as u32);
            for ailment in [
                Ailment::Deaf,
                Ailment::Mute,
                Ailment::CutOff,
                Ailment::Parted,
                Ailment::Rejecting,
                Ailment::RefusingTcp,
                Ailment::Lossy,
            ] {
                self.chronicle.end(host, ailment, self.now);
            }
            if self.host(host).frozen {
                self.inject(&Fault::Thaw(host));
            }
            if self.host(host).process == ProcessState::Stalled {
                self.inject(&Fault::Resume(host));
            }
        }
    }

    fn start_process(&mut self, host: HostId) {
        let now = self.local_now(host);
        let there = &mut self.hosts[host.index()];
        there.process = ProcessState::Live;
        let birth = Birth { identity: there.identity, boot: there.boot, now, rng: there.rng.split() };
        self.chronicle.process_started(there.identity, self.now);
        there.node = Some((self.start)(birth));
        self.carry_out(host);
    }

    fn end_process(&mut self, host: HostId) {
        let there = &mut self.hosts[host.index()];
        self.chronicle.process_ended(there.identity, there.boot, self.now);
        self.chronicle.end(host, Ailment::Stalled, self.now);
        there.process = ProcessState::Dead;
        there.node = None;
        there.boot += 1;
        there.timer_at = None;
        there.waiting.clear();
        (there.waiting_datagrams, there.backlog) = (0, 0);
        self.streams.retain(|&(from, to), _| from != host && to != host);
    }

    /// A process goes on after a stop: first what arrived, then the time.
    fn go_on(&mut self, host: HostId) {
        if !self.host(host).runs() {
            return;
        }
        let now = self.local_now(host);
        while let Some(waiting) = self.hosts[host.index()].waiting.pop_front() {
            match waiting {
                Waiting::Message(from, message) => self.node_mut(host).handle_message(now, from, message),
                Waiting::Connected(token, outcome) => self.node_mut(host).handle_connect(now, token, outcome),
            }
            self.carry_out(host);
        }
        self.hosts[host.index()].waiting_datagrams = 0;
        self.hosts[host.index()].timer_at = None;
        self.fire_if_due(host);
    }

    fn timer(&mut self, host: HostId, boot: u32) {
        let there = &mut self.hosts[host.index()];
        if there.boot != boot || there.timer_at != Some(self.now) {
            return;
        }
        there.timer_at = None;
        if there.runs() {
            self.fire_if_due(host);
        }
    }

    fn fire_if_due(&mut self, host: HostId) {
        let now = self.local_now(host);
        match self.node_mut(host).poll_timeout() {
            Some(due) if due <= now => {
                if now.since(due) > LATE {
                    self.tally.add(Effect::LateTimer);
                }
                self.node_mut(host).handle_timeout(now);
                let still_due = self.node_mut(host).poll_timeout().is_some_and(|due| due <= now);
                let there = &mut self.hosts[host.index()];
                there.spins = if still_due { there.spins + 1 } else { 0 };
                if there.spins == SPINS_MAX {
                    self.breaches
                        .push(format!("{host} asked {SPINS_MAX} times in a row for a timeout in the past"));
                }
                self.carry_out(host);
            }
            _ => self.arm_timer(host),
        }
    }

    /// Carries out all that a process asked for, and sees to its next timer.
    pub(super) fn carry_out(&mut self, host: HostId) {
        while let Some(output) = self.node_mut(host).poll_output() {
            match output {
                Output::Send { to, path, message } => {
                    if let Some(target) = HostId::of(to).filter(|target| target.index() < self.hosts.len()) {
                        self.send(host, target, path, message);
                    }
                }
                Output::Connect { token, to, timeout } => self.connect(host, token, to, timeout),
                Output::Notice(notice) => {
                    self.trace.line(self.now, &format!("{host}: {notice:?}"));
                    self.notices.push((self.now, host, notice));
                }
            }
        }
        self.arm_timer(host);
    }

    fn arm_timer(&mut self, host: HostId) {
        let there = &mut self.hosts[host.index()];
        if !there.runs() {
            return;
        }
        let Some(due) = there.node.as_ref().and_then(Node::poll_timeout) else { return };
        let due = Instant::from_nanos(due.as_nanos().saturating_sub(there.clock_ahead.as_nanos() as u64));
        // A timer event that comes too early is harmless and finds out for itself; one that comes too late is
        // not. So only an earlier one is queued, and the queue holds about one per process.
        if there.timer_at.is_none_or(|queued| due < queued) {
            let late = SCHEDULING.mul_f64(there.rng.unit()) + Duration::from_nanos(1);
            let at = due.max(self.now) + late;
            if there.timer_at.is_none_or(|queued| at < queued) {
                there.timer_at = Some(at);
                let boot = there.boot;
                self.queue.push(at, Happening::Timer { host, boot });
            }
        }
    }

    fn send(&mut self, from: HostId, to: HostId, path: Path, message: N::Message) {
        self.messages += 1;
        let audited = self.hosts.len() < AUDIT_ALL_BELOW || self.messages.is_multiple_of(AUDIT_ONE_IN);
        let fingerprint = match audited.then(|| N::audit(&message)) {
            Some(Ok(fingerprint)) => fingerprint,
            Some(Err(why)) => {
                self.breaches.push(format!("{from} sent {to} a message that breaks its format: {why}"));
                0
            }
            None => 0,
        };
        self.trace.event(self.now, b's', [u64::from(from.0), u64::from(to.0), fingerprint]);
        match path {
            Path::Datagram => self.send_datagram(from, to, message),
            Path::Stream => self.send_streamed(from, to, message),
        }
    }

    fn send_datagram(&mut self, from: HostId, to: HostId, message: N::Message) {
        self.hosts[from.index()].traffic.datagrams += 1;
        if let Err(effect) = self.network.passes(from, to, Protocol::Udp) {
            self.tally.add(effect);
            return;
        }
        if self.network.duplicates() {
            self.tally.add(Effect::Duplicated);
            let at = self.now + self.network.latency();
            let message = message.clone();
            self.queue.push(at, Happening::Arrives { from, to, path: Path::Datagram, boots: None, message });
        }
        if self.network.loses(from, to) {
            self.tally.add(Effect::LostByChance);
            return;
        }
        let mut at = self.now + self.network.latency();
        if let Some(by) = self.network.held_back() {
            self.tally.add(Effect::Reordered);
            at += by;
        }
        self.queue.push(at, Happening::Arrives { from, to, path: Path::Datagram, boots: None, message });
    }

    /// A stream loses nothing by chance, it only takes longer; it arrives in order; and it breaks, with all
    /// that was on its way, when the way is cut or either process ends.
    fn send_streamed(&mut self, from: HostId, to: HostId, message: N::Message) {
        self.hosts[from.index()].traffic.streamed += 1;
        let way =
            self.network.passes(from, to, Protocol::Tcp).and(self.network.passes(to, from, Protocol::Tcp));
        if let Err(effect) = way {
            self.streams.remove(&(from, to));
            self.tally.add(effect);
            return;
        }
        if self.network.firewall(to) != Firewall::Open && !self.streams.contains_key(&(from, to)) {
            self.tally.add(Effect::RefusedByFirewall);
            return;
        }
        let boots = (self.hosts[from.index()].boot, self.hosts[to.index()].boot);
        let mut takes = self.network.latency();
        let known = self.streams.get(&(from, to)).is_some_and(|stream| stream.boots == boots);
        if !known {
            // Connecting and the TLS handshake cost two round trips before the first byte.
            takes += self.network.latency() * 4;
        }
        let mut resend_after = Duration::from_millis(200);
        for _ in 0..5 {
            if !self.network.loses(from, to) {
                break;
            }
            self.tally.add(Effect::LostByChance);
            takes += resend_after;
            resend_after *= 2;
        }
        let after = self.streams.get(&(from, to)).filter(|_| known).map(|stream| stream.last_arrival);
        let at = (self.now + takes).max(after.unwrap_or(Instant::ORIGIN) + Duration::from_nanos(1));
        self.streams.insert((from, to), Stream { boots, last_arrival: at });
        self.queue.push(at, Happening::Arrives { from, to, path: Path::Stream, boots: Some(boots), message });
    }

    fn arrive(
        &mut self,
        from: HostId,
        to: HostId,
        path: Path,
        boots: Option<(u32, u32)>,
        message: N::Message,
    ) {
        if let Some(boots) = boots
            && boots != (self.hosts[from.index()].boot, self.hosts[to.index()].boot)
        {
            self.tally.add(Effect::LostToDead);
            return;
        }
        let there = &mut self.hosts[to.index()];
        let sender = Sender { address: from.address(), path };
        if there.frozen {
            self.tally.add(Effect::LostToFrozen);
        } else if there.process == ProcessState::Dead {
            self.tally.add(Effect::LostToDead);
        } else if there.process == ProcessState::Stalled {
            if there.waiting_datagrams >= SOCKET_BUFFER_PACKETS {
                self.tally.add(Effect::LostToFullBuffer);
            } else {
                there.waiting_datagrams += 1;
                there.waiting.push_back(Waiting::Message(sender, message));
                self.tally.add(Effect::WaitedForStall);
            }
        } else {
            let now = self.local_now(to);
            self.node_mut(to).handle_message(now, sender, message);
            self.carry_out(to);
        }
    }

    pub(super) fn schedule(&mut self, at: Instant, happening: Happening<N::Message>) {
        self.queue.push(at, happening);
    }

    /// What the clock of `host`'s process says.
    pub(super) fn local_now(&self, host: HostId) -> Instant {
        self.now + self.hosts[host.index()].clock_ahead
    }

    /// The program of a process that exists.
    pub(super) fn node_mut(&mut self, host: HostId) -> &mut N {
        self.hosts[host.index()].node.as_mut().expect("only processes that exist are driven")
    }
}
