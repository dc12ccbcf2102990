//! The thread: one loop around one machine.
//!
//! The order inside the loop is the whole point. A process that was stopped for five seconds wakes to late
//! timers *and* to a socket full of acks. Looking at the timers first would accuse members whose answers are
//! already here. So each turn drains what arrived (datagrams, letters, connect outcomes), reads the clock
//! *after* that, and only then lets time pass in the machine, which can now tell how late it really is.
//!
//! The drain is bounded, so that a flood cannot keep the timers from ever being looked at. The bound
//! ([`DRAIN_MAX`]) is larger than what a socket buffer of the default size holds in small datagrams: whatever
//! piled up while we were stopped is drained in one turn.
//!
//! The thread waits in `poll` and nowhere else: the socket is non-blocking, connects are non-blocking, streams
//! belong to another thread, locks are held by nobody for long.

use super::prober::Prober;
use super::shared::{Ending, Letter, Lists, Shared, Tally};
use super::stream::{Dialler, Streams};
use crate::clock;
use crate::planted::{self, Place};
use crate::port::{KnownSources, Port};
use crate::security::datagram::{DatagramGuard, Opened};
use outlast_proto::id::PeerId;
use outlast_proto::limits::DATAGRAM_BYTES_MAX;
use outlast_proto::membership::{Action, ConnectOutcome, ConnectToken, Event, Membership, Path, Source};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::{self, membership::Packet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most datagrams that one turn takes from the socket before it looks at the timers. The default buffer
/// (212,992 bytes on Linux, which charges at least 576 for the smallest datagram) holds fewer.
const DRAIN_MAX: usize = 1_024;
/// The lists are published at once when something happened, otherwise this often: round trips change with
/// every ack, and nobody looks that often.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Somebody who asks for a look at a member waits for what comes of it: for so long every turn is published.
const HURRY: Duration = Duration::from_millis(500);
/// The longest wait. Nothing needs it, but a clock or a timer that fails must not stop the plane forever.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A goodbye is said this often: a datagram may be lost, and nobody acknowledges it.
const GOODBYES: u32 = 3;
/// The time between two goodbyes. Losses come in bursts of a few milliseconds.
const GOODBYE_INTERVAL: Duration = Duration::from_millis(25);

/// A goodbye that is being said.
struct Goodbye {
    by: Instant,
    packets: Vec<(SocketAddr, Option<PeerId>, Path, Packet)>,
    left: u32,
    next: Instant,
}

/// The health thread's state.
pub(super) struct Plane<D> {
    machine: Membership,
    port: Port,
    guard: DatagramGuard,
    streams: Arc<Streams<D>>,
    shared: Arc<Shared>,
    known: Arc<KnownSources>,
    prober: Prober,
    /// Outcomes that were known at once. They are handed in one turn later, so that a machine which asks again
    /// and again cannot keep us inside [`Plane::act`].
    outcomes: Vec<(ConnectToken, ConnectOutcome)>,
    events: Vec<Event>,
    inbound: Box<[u8]>,
    outbound: Vec<u8>,
    published: Option<Instant>,
    hurry_until: Option<Instant>,
    goodbye: Option<Goodbye>,
    drain_max: usize,
    drained: bool,
}

/// What woke the thread.
struct Woken {
    socket: bool,
    connects: Vec<bool>,
}

impl<D: Dialler> Plane<D> {
    pub(super) fn new(
        machine: Membership,
        port: Port,
        guard: DatagramGuard,
        streams: Arc<Streams<D>>,
        shared: Arc<Shared>,
        known: Arc<KnownSources>,
    ) -> Self {
        Self {
            machine,
            port,
            guard,
            streams,
            shared,
            known,
            prober: Prober::default(),
            outcomes: Vec::new(),
            events: Vec::new(),
            // One byte more than is allowed, so that an oversized datagram is seen to be one.
            inbound: vec![0; DATAGRAM_BYTES_MAX + 1].into_boxed_slice(),
            outbound: Vec::with_capacity(DATAGRAM_BYTES_MAX),
            published: None,
            hurry_until: None,
            goodbye: None,
            drain_max: DRAIN_MAX,
            drained: true,
        }
    }

    /// Runs until the goodbye is said.
    pub(super) fn run(mut self) {
        // Whoever waits for events learns that none will come, even if the machine's asserts end this thread.
        struct Tell(Arc<Shared>);
        impl Drop for Tell {
            fn drop(&mut self) {
                self.0.end(if std::thread::panicking() { Ending::Panicked } else { Ending::Left });
            }
        }
        let _tell = Tell(Arc::clone(&self.shared));
        self.act();
        self.publish(clock::now());
        while !self.finished() {
            let woken = self.wait();
            let me = self.machine.me().id;
            planted::step(|place| matches!(place, Place::Health(planted) if *planted == me));
            self.turn(&woken);
        }
        self.streams.close();
    }

    fn turn(&mut self, woken: &Woken) {
        if woken.socket || !self.drained {
            self.drain_socket();
        }
        self.read_letters();
        self.finish_connects(&woken.connects);
        let now = clock::now();
        if let Some(due) = self.machine.poll_timeout().filter(|due| *due <= now) {
            let lateness = u64::try_from(now.since(due).as_nanos()).unwrap_or(u64::MAX);
            self.shared.tally.lateness_nanos_max.fetch_max(lateness, Ordering::Relaxed);
            self.machine.handle_timeout(now);
            self.shared.tally.stalls.store(self.machine.stalls(), Ordering::Relaxed);
        }
        self.act();
        self.repeat_goodbye(now);
        self.publish(now);
    }

    /// The goodbye was said often enough, or is out of time.
    fn finished(&self) -> bool {
        self.goodbye.as_ref().is_some_and(|goodbye| goodbye.left == 0 || goodbye.by <= clock::now())
    }

    /// Says goodbye once, and notes what was sent so that it can be said again. The machine wants nothing
    /// afterwards, so whatever it asks to send now is the goodbye.
    fn leave(&mut self, now: Instant, by: Instant) {
        if let Some(goodbye) = &mut self.goodbye {
            goodbye.by = goodbye.by.min(by);
            return;
        }
        self.act();
        self.machine.handle_leave(now);
        let mut packets = Vec::new();
        while let Some(action) = self.machine.poll_action() {
            if let Action::Send { to, peer, path, packet } = action {
                packets.push((to, peer, path, packet));
            }
        }
        let left = if packets.is_empty() { 0 } else { GOODBYES };
        self.goodbye = Some(Goodbye { by, packets, left, next: now });
    }

    fn repeat_goodbye(&mut self, now: Instant) {
        let Some(mut goodbye) = self.goodbye.take() else { return };
        if goodbye.left > 0 && goodbye.next <= now {
            for (to, peer, path, packet) in &goodbye.packets {
                self.send(*to, *peer, *path, packet);
            }
            goodbye.left -= 1;
            goodbye.next = now + GOODBYE_INTERVAL;
        }
        self.goodbye = Some(goodbye);
    }

    fn wait(&self) -> Woken {
        let goodbye = self.goodbye.as_ref().map(|goodbye| goodbye.next.min(goodbye.by));
        let due = [self.machine.poll_timeout(), self.prober.deadline(), goodbye];
        let now = clock::now();
        let until_due = due.iter().flatten().min().map_or(WAIT_MAX, |due| due.since(now).min(WAIT_MAX));
        let timeout = if self.outcomes.is_empty() && self.drained { until_due } else { Duration::ZERO };
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(1),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = vec![
            PollFd::new(self.port.udp(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.shared.bell(), PollFlags::IN),
        ];
        fds.extend(self.prober.poll_fds());
        // An interrupted or failed poll is a turn in which nothing was ready; timers are looked at anyway.
        let ready = poll(&mut fds, Some(&timeout)).is_ok();
        let fired = |fd: &PollFd<'_>| ready && !fd.revents().is_empty();
        if fired(&fds[1]) {
            self.shared.heard();
        }
        Woken { socket: fired(&fds[0]), connects: fds[2..].iter().map(fired).collect() }
    }

    fn drain_socket(&mut self) {
        self.drained = false;
        for _ in 0..self.drain_max {
            match self.port.udp().recv_from(&mut self.inbound) {
                Ok((length, from)) => self.receive(length, canonical(from)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.drained = true;
                    return;
                }
                // An earlier datagram's ICMP answer, or a signal: not the end of what is waiting.
                Err(_) => {}
            }
        }
    }

    fn receive(&mut self, length: usize, from: SocketAddr) {
        let tally = &self.shared.tally;
        Tally::add(&tally.packets_received, 1);
        Tally::add(&tally.bytes_received, length as u64);
        let now = clock::now();
        let (opened, reply) = match self.guard.open(now, from, &self.inbound[..length]) {
            Opened::Packet { sender, plaintext, reply } => (Some((sender, plaintext)), reply),
            Opened::Reply(reply) => (None, Some(reply)),
            Opened::Settled(_) => (None, None),
            Opened::Refused(_) => {
                Tally::add(&tally.refused, 1);
                (None, None)
            }
        };
        if let Some(reply) = reply {
            self.transmit(from, &reply);
        }
        let Some((sender, plaintext)) = opened else { return };
        self.hand_in(now, Source { id: sender, address: from, path: Path::Datagram }, &plaintext);
    }

    fn hand_in(&mut self, now: Instant, source: Source, plaintext: &[u8]) {
        match wire::decode::<Packet>(plaintext) {
            Ok(packet) => self.machine.handle_packet(now, source, packet),
            Err(error) => {
                Tally::add(&self.shared.tally.malformed, 1);
                tracing::debug!(from = %source.address, peer = ?source.id, %error, "undecodable health packet");
            }
        }
    }

    fn read_letters(&mut self) {
        for letter in self.shared.take_letters() {
            let now = clock::now();
            match letter {
                Letter::Packet(source, packet) => {
                    Tally::add(&self.shared.tally.stream_packets_received, 1);
                    self.machine.handle_packet(now, source, packet);
                }
                Letter::Join(seeds) => self.machine.handle_join(now, &seeds),
                Letter::Look(member) => {
                    self.machine.handle_evidence(now, member);
                    self.hurry_until = Some(now + HURRY);
                }
                Letter::Renew(member) => self.machine.handle_registration(now, member),
                Letter::Evict(member) => self.machine.handle_eviction(now, member),
                Letter::Roster(members) => self.machine.handle_roster(now, &members),
                Letter::Leave(by) => self.leave(now, by),
            }
        }
    }

    fn finish_connects(&mut self, ready: &[bool]) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        outcomes.extend(self.prober.finish(clock::now(), ready));
        for (token, outcome) in outcomes {
            if outcome == ConnectOutcome::NotAsked {
                Tally::add(&self.shared.tally.connects_not_asked, 1);
            }
            self.machine.handle_connect(clock::now(), token, outcome);
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Send { to, peer, path, packet } => self.send(to, peer, path, &packet),
                Action::Connect { token, to, timeout } => {
                    Tally::add(&self.shared.tally.connects, 1);
                    if let Some(outcome) = self.prober.start(clock::now(), token, to, timeout) {
                        self.outcomes.push((token, outcome));
                    }
                }
                Action::Notify(event) => {
                    if let Event::Joined(info) = &event {
                        self.known.meet(info.address.ip());
                    }
                    self.events.push(event);
                }
            }
        }
    }

    fn send(&mut self, to: SocketAddr, peer: Option<PeerId>, path: Path, packet: &Packet) {
        let plaintext = wire::encode(packet);
        match path {
            Path::Datagram => {
                let mut datagram = std::mem::take(&mut self.outbound);
                for generation in self.guard.generations_for(peer) {
                    datagram.clear();
                    self.guard.seal_under(generation, &plaintext, &mut datagram);
                    self.transmit(to, &datagram);
                }
                self.outbound = datagram;
            }
            Path::Stream => {
                if self.streams.send(to, peer, plaintext) {
                    Tally::add(&self.shared.tally.stream_packets_sent, 1);
                } else {
                    Tally::add(&self.shared.tally.dropped, 1);
                }
            }
        }
    }

    /// Sends one datagram. What the kernel does not take now is lost, as it might be on the way: the machine
    /// repeats what matters, and waiting would make timers late.
    fn transmit(&self, to: SocketAddr, datagram: &[u8]) {
        let tally = &self.shared.tally;
        match self.port.udp().send_to(datagram, to) {
            Ok(length) => {
                Tally::add(&tally.packets_sent, 1);
                Tally::add(&tally.bytes_sent, length as u64);
            }
            Err(error) => {
                Tally::add(&tally.dropped, 1);
                tracing::trace!(%to, %error, "datagram not sent");
            }
        }
    }

    /// Publishes the lists first and the events after them, so that whoever reads an event finds the lists at
    /// least as new.
    fn publish(&mut self, now: Instant) {
        let stale = self.published.is_none_or(|at| now.since(at) >= PUBLISH_INTERVAL)
            || self.hurry_until.is_some_and(|until| now < until);
        if self.events.is_empty() && !stale {
            return;
        }
        self.published = Some(now);
        let lists = Lists { active: self.machine.active(now), failed: self.machine.failed() };
        let active = lists.active.len();
        self.shared.publish(lists);
        self.shared.notify(self.events.drain(..).map(|event| Shared::timed(event, active)));
    }
}

/// An IPv4 address is written as one, even if it came through an IPv6 socket.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests;
