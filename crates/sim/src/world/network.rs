//! The ways between hosts: how long a packet takes, and whether it arrives.

use super::fault::{Direction, Firewall};
use super::{Effect, HostId};
use outlast_proto::rng::Rng;
use outlast_proto::time::Duration;
use std::collections::BTreeSet;

/// What every path is like.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// What every packet takes at least, one way.
    pub latency: Duration,
    /// What it takes in addition, at most, evenly spread. One in a hundred takes ten times its share.
    pub jitter: Duration,
    /// The share of packets lost.
    pub loss: f64,
    /// The share of datagrams that arrive twice.
    pub duplicate: f64,
    /// The share of datagrams held back, so that others overtake them.
    pub reorder: f64,
    /// For how long they are held back, at most.
    pub reorder_by: Duration,
}

impl Conditions {
    /// One site: a fraction of a millisecond, nothing lost.
    pub fn lan() -> Self {
        Self {
            latency: Duration::from_micros(150),
            jitter: Duration::from_micros(200),
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Udp,
    Tcp,
}

#[derive(Clone, Debug, Default)]
struct Edge {
    deaf: bool,
    mute: bool,
    side: bool,
    udp_blocked: bool,
    firewall: Firewall,
    proxied: bool,
    loss: f64,
}

/// The state of every way.
pub struct Network {
    pub(super) conditions: Conditions,
    calm: Conditions,
    edges: Vec<Edge>,
    cut_pairs: BTreeSet<(HostId, HostId)>,
    rng: Rng,
}

impl Network {
    pub(super) fn new(conditions: Conditions, rng: Rng) -> Self {
        let calm = Conditions { loss: 0.0, duplicate: 0.0, reorder: 0.0, ..conditions.clone() };
        Self { conditions, calm, edges: Vec::new(), cut_pairs: BTreeSet::new(), rng }
    }

    pub(super) fn add_host(&mut self) {
        self.edges.push(Edge::default());
    }

    /// Whether a packet can pass at all, leaving chance aside.
    pub(super) fn passes(&self, from: HostId, to: HostId, protocol: Protocol) -> Result<(), Effect> {
        let (source, target) = (&self.edges[from.index()], &self.edges[to.index()]);
        if source.mute || target.deaf || source.side != target.side {
            return Err(Effect::LostToCut);
        }
        if !self.cut_pairs.is_empty() && self.cut_pairs.contains(&(from, to)) {
            return Err(Effect::LostToCut);
        }
        if protocol == Protocol::Udp {
            if source.udp_blocked || target.udp_blocked {
                return Err(Effect::LostToUdpBlock);
            }
            if target.firewall == Firewall::RejectAll {
                return Err(Effect::LostToFirewall);
            }
        }
        Ok(())
    }

    /// Whether two hosts can talk both ways, by some protocol, leaving chance aside.
    pub fn connected(&self, a: HostId, b: HostId) -> bool {
        self.passes(a, b, Protocol::Tcp).is_ok() && self.passes(b, a, Protocol::Tcp).is_ok()
    }

    /// Whether chance takes this packet.
    pub(super) fn loses(&mut self, from: HostId, to: HostId) -> bool {
        let here = self.edges[from.index()].loss + self.edges[to.index()].loss;
        let share = (self.conditions.loss + here).min(1.0);
        share > 0.0 && self.rng.chance(share)
    }

    /// How long the next packet takes.
    pub(super) fn latency(&mut self) -> Duration {
        let spread = self.conditions.jitter.mul_f64(self.rng.unit());
        let tail = if self.rng.below(100) == 0 { 10 } else { 1 };
        self.conditions.latency + spread * tail
    }

    /// For how long the next datagram is held back, if it is.
    pub(super) fn held_back(&mut self) -> Option<Duration> {
        let share = self.conditions.reorder;
        (share > 0.0 && self.rng.chance(share)).then(|| self.conditions.reorder_by.mul_f64(self.rng.unit()))
    }

    /// Whether the next datagram arrives twice.
    pub(super) fn duplicates(&mut self) -> bool {
        let share = self.conditions.duplicate;
        share > 0.0 && self.rng.chance(share)
    }

    pub(super) fn firewall(&self, host: HostId) -> Firewall {
        self.edges[host.index()].firewall
    }

    pub(super) fn is_proxied(&self, host: HostId) -> bool {
        self.edges[host.index()].proxied
    }

    pub(super) fn cut_off(&mut self, host: HostId, direction: Direction) {
        let edge = &mut self.edges[host.index()];
        edge.deaf |= direction != Direction::Outbound;
        edge.mute |= direction != Direction::Inbound;
    }

    pub(super) fn reconnect(&mut self, host: HostId) {
        let edge = &mut self.edges[host.index()];
        (edge.deaf, edge.mute) = (false, false);
    }

    pub(super) fn cut_pair(&mut self, from: HostId, to: HostId) {
        self.cut_pairs.insert((from, to));
    }

    pub(super) fn heal_pair(&mut self, from: HostId, to: HostId) {
        self.cut_pairs.remove(&(from, to));
    }

    pub(super) fn partition(&mut self, side: &[HostId]) {
        self.heal_partition();
        for host in side {
            self.edges[host.index()].side = true;
        }
    }

    pub(super) fn heal_partition(&mut self) {
        self.edges.iter_mut().for_each(|edge| edge.side = false);
    }

    pub(super) fn set_host_loss(&mut self, host: HostId, share: f64) {
        self.edges[host.index()].loss = share;
    }

    pub(super) fn set_udp_blocked(&mut self, host: HostId, blocked: bool) {
        self.edges[host.index()].udp_blocked = blocked;
    }

    pub(super) fn set_firewall(&mut self, host: HostId, firewall: Firewall) {
        self.edges[host.index()].firewall = firewall;
    }

    pub(super) fn set_proxied(&mut self, host: HostId, proxied: bool) {
        self.edges[host.index()].proxied = proxied;
    }

    pub(super) fn delay_by(&mut self, jitter: Duration) {
        self.conditions.jitter = self.calm.jitter + jitter;
    }

    pub(super) fn heal_all(&mut self) {
        self.conditions = self.calm.clone();
        self.edges.fill(Edge::default());
        self.cut_pairs.clear();
    }
}
