//! What kernels say to connects, packet by packet.
//!
//! A connect is a SYN and an answer, and each of the two can be lost; the connecting kernel sends the SYN
//! again after 1, 3 and 7 seconds. Whoever asks with a shorter timeout therefore sees loss as silence, which
//! is why one connect proves nothing.

use super::engine::{Happening, World};
use super::fault::Firewall;
use super::host::{ProcessState, Waiting};
use super::network::Protocol;
use super::node::Node;
use super::{BACKLOG_CONNECTIONS, Effect, HEALTH_PORT, HostId};
use outlast_proto::membership::{ConnectOutcome, ConnectToken};
use outlast_proto::time::{Duration, Instant};
use std::net::SocketAddr;

/// When a SYN is sent again, after the first one.
const SYN_RETRY_AFTER: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(7)];

/// One connect that is under way.
#[derive(Clone, Copy)]
pub(super) struct Connection {
    from: HostId,
    boot: u32,
    to: HostId,
    port: u16,
    token: ConnectToken,
    started: Instant,
    deadline: Instant,
    retries: usize,
}

/// A step of a connect.
pub(super) enum Handshake {
    /// The SYN reaches the other kernel.
    Syn(u64),
    /// The other kernel's answer is back.
    Answer(u64, ConnectOutcome),
    /// It is time to send the SYN again.
    Retry(u64),
    /// The caller's patience ends.
    Deadline(u64),
}

impl<N: Node> World<N> {
    pub(super) fn connect(&mut self, from: HostId, token: ConnectToken, to: SocketAddr, timeout: Duration) {
        self.hosts[from.index()].traffic.connects += 1;
        let id = self.next_connection;
        self.next_connection += 1;
        let deadline = self.now + timeout;
        self.schedule(deadline, Happening::Handshake(Handshake::Deadline(id)));
        // An address that nobody owns stays silent until the deadline.
        let target = HostId::of(to).filter(|host| host.index() < self.hosts.len());
        let Some(target) = target else {
            self.unroutable.insert(id, (from, self.hosts[from.index()].boot, token));
            return;
        };
        let connection = Connection {
            from,
            boot: self.hosts[from.index()].boot,
            to: target,
            port: to.port(),
            token,
            started: self.now,
            deadline,
            retries: 0,
        };
        self.connections.insert(id, connection);
        self.send_syn(id, connection);
    }

    fn send_syn(&mut self, id: u64, connection: Connection) {
        if let Some(&after) = SYN_RETRY_AFTER.get(connection.retries)
            && connection.started + after < connection.deadline
        {
            self.schedule(connection.started + after, Happening::Handshake(Handshake::Retry(id)));
        }
        if self.network.is_proxied(connection.to) {
            self.tally.add(Effect::AcceptedByProxy);
            let back = self.now + self.network.latency() * 2;
            self.schedule(back, Happening::Handshake(Handshake::Answer(id, ConnectOutcome::Accepted)));
            return;
        }
        if let Some(at) = self.carry_tcp(connection.from, connection.to) {
            self.schedule(at, Happening::Handshake(Handshake::Syn(id)));
        }
    }

    /// When a single TCP segment arrives, if it does.
    fn carry_tcp(&mut self, from: HostId, to: HostId) -> Option<Instant> {
        if let Err(effect) = self.network.passes(from, to, Protocol::Tcp) {
            self.tally.add(effect);
            return None;
        }
        if self.network.loses(from, to) {
            self.tally.add(Effect::LostByChance);
            return None;
        }
        Some(self.now + self.network.latency())
    }

    pub(super) fn handshake(&mut self, step: Handshake) {
        match step {
            Handshake::Syn(id) => {
                let Some(&connection) = self.connections.get(&id) else { return };
                let Some(answer) = self.kernel_answer(connection.to, connection.port) else { return };
                if let Some(at) = self.carry_tcp(connection.to, connection.from) {
                    self.schedule(at, Happening::Handshake(Handshake::Answer(id, answer)));
                }
            }
            Handshake::Answer(id, outcome) => self.connected(id, outcome),
            Handshake::Retry(id) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.retries += 1;
                    let connection = *connection;
                    self.send_syn(id, connection);
                }
            }
            Handshake::Deadline(id) => {
                if let Some((from, boot, token)) = self.unroutable.remove(&id) {
                    self.tally.add(Effect::ConnectSilent);
                    self.report_connect(from, boot, token, ConnectOutcome::Silent);
                } else if self.connections.contains_key(&id) {
                    self.tally.add(Effect::ConnectSilent);
                    self.connected(id, ConnectOutcome::Silent);
                }
            }
        }
    }

    fn connected(&mut self, id: u64, outcome: ConnectOutcome) {
        if let Some(connection) = self.connections.remove(&id) {
            self.report_connect(connection.from, connection.boot, connection.token, outcome);
        }
    }

    /// What the kernel of `host` says to a SYN; nothing, if it stands still or its backlog is full.
    fn kernel_answer(&mut self, host: HostId, port: u16) -> Option<ConnectOutcome> {
        let there = &mut self.hosts[host.index()];
        if there.frozen {
            return None;
        }
        if self.network.firewall(host) != Firewall::Open {
            if there.process != ProcessState::Dead {
                self.tally.add(Effect::RefusedByFirewall);
            }
            return Some(ConnectOutcome::Refused);
        }
        match there.process {
            _ if port != HEALTH_PORT => Some(ConnectOutcome::Refused),
            ProcessState::Dead => {
                self.tally.add(Effect::RefusedForDead);
                Some(ConnectOutcome::Refused)
            }
            ProcessState::Live => Some(ConnectOutcome::Accepted),
            ProcessState::Stalled if there.backlog >= BACKLOG_CONNECTIONS => None,
            ProcessState::Stalled => {
                there.backlog += 1;
                self.tally.add(Effect::AcceptedForStalled);
                Some(ConnectOutcome::Accepted)
            }
        }
    }

    /// Hands the outcome to the process that asked; a stopped one finds it when it goes on.
    fn report_connect(&mut self, host: HostId, boot: u32, token: ConnectToken, outcome: ConnectOutcome) {
        let asker = &mut self.hosts[host.index()];
        if asker.boot != boot || asker.process == ProcessState::Dead {
            return;
        }
        if asker.runs() {
            let now = self.local_now(host);
            self.node_mut(host).handle_connect(now, token, outcome);
            self.carry_out(host);
        } else {
            asker.waiting.push_back(Waiting::Connected(token, outcome));
        }
    }
}
