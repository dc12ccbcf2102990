//! The health plane of this world: the real membership machine in every process and beside every coordinator.
//!
//! Datagrams are encoded and decoded, take their time, and are lost now and then; kernels answer connects as
//! kernels do: for the stopped, refusing for the dead, not at all for whoever is cut off. What a coordinator
//! hears of a peer is what its own member says, nothing else.

use super::world::{CLOSED_PORT, Event, World};
use outlast_proto::coordinator::Sign;
use outlast_proto::id::PeerId;
use outlast_proto::membership::{
    Action, Config, ConnectOutcome, ConnectToken, Health, Membership, Path, Preset, Source,
};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::membership::{MemberInfo, Packet};
use outlast_proto::wire::{decode, encode};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Packets that wait in a socket whose process is stopped.
pub(super) const SOCKET_BUFFER_PACKETS: usize = 512;
/// A process that is being killed closes its sockets one after another.
const CLOSING: Duration = Duration::from_millis(20);

/// Whose machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Process(usize),
    Coordinator(usize),
}

impl Node {
    pub(super) fn address(self) -> SocketAddr {
        let (net, index) = match self {
            Self::Process(index) => (0x0a00_0000, index),
            Self::Coordinator(index) => (0x0a01_0000, index),
        };
        SocketAddr::from((Ipv4Addr::from(net | index as u32), index as u16 + 2))
    }

    fn at(address: SocketAddr) -> Option<Self> {
        let IpAddr::V4(ip) = address.ip() else { return None };
        let index = (u32::from(ip) & 0xffff) as usize;
        match u32::from(ip) >> 16 {
            0x0a00 => Some(Self::Process(index)),
            0x0a01 => Some(Self::Coordinator(index)),
            _ => None,
        }
    }
}

/// One member of the health group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) machine: Membership,
    armed: Option<Instant>,
    /// Peers whose addresses a coordinator's member was given.
    met: BTreeSet<PeerId>,
}

impl World {
    pub(super) fn new_member(&mut self, node: Node, id: PeerId) -> Member {
        let name = match node {
            Node::Process(index) => format!("p{index}"),
            Node::Coordinator(index) => format!("coordinator {index}"),
        };
        let info =
            MemberInfo { id, address: node.address(), closed_port: CLOSED_PORT, name, meta: Vec::new() };
        let machine = Membership::new(self.now, Config::preset(Preset::Local), info, self.rng.split());
        Member { machine, armed: None, met: BTreeSet::new() }
    }

    fn member(&mut self, node: Node) -> Option<&mut Member> {
        match node {
            Node::Process(index) => self.processes.get_mut(index)?.member.as_mut(),
            Node::Coordinator(index) => {
                self.coordinators.get_mut(index).filter(|at| at.lives)?.member.as_mut()
            }
        }
    }

    /// Hands something to a member and carries out what comes back.
    pub(super) fn tell_member(&mut self, node: Node, what: impl FnOnce(&mut Membership, Instant)) {
        let now = self.now;
        if let Some(member) = self.member(node) {
            what(&mut member.machine, now);
            self.drain_member(node);
        }
    }

    pub(super) fn drain_member(&mut self, node: Node) {
        while let Some(action) = self.member(node).and_then(|member| member.machine.poll_action()) {
            match action {
                Action::Send { to, path, packet, .. } => self.send_packet(node, to, path, &packet),
                Action::Connect { token, to, timeout } => {
                    let outcome = self.kernel(node, to);
                    let delay = match outcome {
                        ConnectOutcome::Silent => timeout,
                        _ => self.some(self.settings.latency_max),
                    };
                    self.after(delay, Event::Asked(node, token, outcome));
                }
                Action::Notify(event) => self.line(|| format!("{node:?}: {event}")),
            }
        }
        let now = self.now;
        let Some(member) = self.member(node) else { return };
        let due = member.machine.poll_timeout();
        if let Some(due) = due.filter(|due| member.armed.is_none_or(|armed| *due < armed)) {
            member.armed = Some(due);
            self.queue.push(due.max(now), Event::MemberTimer(node));
        }
    }

    pub(super) fn member_timer(&mut self, node: Node) {
        if let Some(member) = self.member(node) {
            member.armed = None;
        }
        self.tell_member(node, Membership::handle_timeout);
    }

    pub(super) fn asked(&mut self, node: Node, token: ConnectToken, outcome: ConnectOutcome) {
        self.tell_member(node, |machine, now| machine.handle_connect(now, token, outcome));
    }

    /// Whether nothing that this one sends arrives anywhere.
    fn is_cut_off(&self, node: Node) -> bool {
        match node {
            Node::Process(index) => self.processes.get(index).is_none_or(|at| at.is_isolated(self.now)),
            Node::Coordinator(index) => self.coordinators.get(index).is_none_or(|at| at.deposed),
        }
    }

    fn send_packet(&mut self, from: Node, to: SocketAddr, path: Path, packet: &Packet) {
        let Some(to) = Node::at(to) else { return };
        let lost = path == Path::Datagram && self.rng.chance(self.settings.datagram_loss);
        if lost || self.is_cut_off(from) || self.is_cut_off(to) {
            return;
        }
        let Some(id) = self.member(from).map(|member| member.machine.me().id) else { return };
        let delay = self.some(self.settings.latency_max);
        let source = Source { id, address: from.address(), path };
        self.after(delay, Event::Packet(to, source, encode(packet)));
    }

    pub(super) fn packet_arrives(&mut self, to: Node, source: Source, bytes: &[u8]) {
        let now = self.now;
        self.trace.event(now, b'd', [u64::from(source.address.port()), u64::from(to.address().port()), 0]);
        match decode::<Packet>(bytes) {
            Ok(packet) => {
                self.tell_member(to, |machine, now| machine.handle_packet(now, source, packet));
            }
            Err(error) => {
                self.fact(super::Fact::Undecodable { wire: 0, error: format!("a datagram: {error}") });
            }
        }
    }

    /// What a kernel answers to a connect.
    pub(super) fn kernel(&self, from: Node, to: SocketAddr) -> ConnectOutcome {
        let Some(target) = Node::at(to) else { return ConnectOutcome::Silent };
        if self.is_cut_off(from) || self.is_cut_off(target) || !self.settings.kernels_trusted {
            return ConnectOutcome::Silent;
        }
        if to.port() == CLOSED_PORT {
            return ConnectOutcome::Refused;
        }
        let lives = match target {
            Node::Process(index) => {
                self.processes[index].killed.is_none_or(|at| self.now.since(at) < CLOSING)
            }
            Node::Coordinator(index) => self.coordinators[index].lives,
        };
        if lives { ConnectOutcome::Accepted } else { ConnectOutcome::Refused }
    }

    /// Whether the process there proves to be another peer than the one that was asked for. One that is stopped proves
    /// nothing.
    pub(super) fn is_another_at(&self, address: SocketAddr, asked_for: Option<PeerId>) -> bool {
        let (Some(Node::Process(index)), Some(peer)) = (Node::at(address), asked_for) else { return false };
        self.processes.get(index).is_some_and(|process| process.runs() && process.id != peer)
    }

    /// A coordinator's own member gets to know a peer that registers or resumes.
    pub(super) fn meet(&mut self, index: usize, peer: PeerId, address: SocketAddr) {
        if !self.settings.health {
            return;
        }
        let node = Node::Coordinator(index);
        if self.coordinators[index].member.is_none() {
            let id = self.fresh_id();
            let member = self.new_member(node, id);
            self.coordinators[index].member = Some(member);
        }
        let new = self.member(node).is_some_and(|member| member.met.insert(peer));
        if new {
            self.tell_member(node, |machine, now| machine.handle_join(now, &[address]));
        }
    }

    /// A coordinator tells its member who is out.
    pub(super) fn evicted(&mut self, index: usize, peer: PeerId) {
        let node = Node::Coordinator(index);
        if let Some(member) = self.member(node) {
            member.met.remove(&peer);
        }
        self.tell_member(node, |machine, now| machine.handle_eviction(now, peer));
    }

    /// A coordinator hears what its own member says of everybody.
    pub(super) fn pass_on_health(&mut self, index: usize) {
        let now = self.now;
        let Some(member) = self.member(Node::Coordinator(index)) else { return };
        let signs: Vec<_> = member
            .machine
            .active(now)
            .into_iter()
            .chain(member.machine.failed())
            .filter_map(|member| {
                let (sign, since) = match member.health {
                    Health::Alive => (Sign::Alive { acked: member.acked }, now),
                    Health::Stalled { since } => (Sign::Stalled, since),
                    Health::Suspect { since, .. } => (Sign::Suspect, since),
                    Health::Dead { since, reason } => (Sign::Dead(reason), since),
                    Health::Left { .. } => return None,
                };
                Some((member.info.id, sign, since, member.acked))
            })
            .collect();
        for (peer, sign, since, acked) in signs {
            if let Some(acked) = acked {
                self.coordinators[index].run.handle_answer(peer, acked);
            }
            self.coordinators[index].run.handle_health_since(now, peer, sign, since);
        }
    }
}
