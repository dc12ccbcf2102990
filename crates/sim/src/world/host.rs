//! A host: its address, its kernel and the one process that runs on it.

use super::{CLOSED_PORT, HEALTH_PORT};
use outlast_proto::id::PeerId;
use outlast_proto::membership::{ConnectOutcome, ConnectToken};
use outlast_proto::rng::Rng;
use outlast_proto::time::{Duration, Instant};
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::node::Sender;

/// Names a host of the world: its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

impl HostId {
    /// The host's number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Where the host's process listens.
    pub fn address(self) -> SocketAddr {
        let ip = Ipv4Addr::from_bits(u32::from_be_bytes([10, 0, 0, 1]) + self.0);
        SocketAddr::new(IpAddr::V4(ip), HEALTH_PORT)
    }

    /// The host that owns an address.
    pub fn of(address: SocketAddr) -> Option<Self> {
        match address.ip() {
            IpAddr::V4(ip) => ip.to_bits().checked_sub(u32::from_be_bytes([10, 0, 0, 1])).map(Self),
            IpAddr::V6(_) => None,
        }
    }

    /// The port of the host that is bound and never listens.
    pub fn closed_port(self) -> u16 {
        CLOSED_PORT
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

/// Who a process is: a restart may keep the identity or take a fresh one, so a host alone does not say it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Where it lives.
    pub host: HostId,
    /// How many identities the host had before this one.
    pub generation: u32,
}

impl Identity {
    /// The identity as a peer id. Its first half is scrambled, so that ids do not sort like host numbers; the
    /// second half lets a checker read the identity back.
    pub fn peer_id(self) -> PeerId {
        let mut mix =
            (u64::from(self.host.0) << 32 | u64::from(self.generation)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(mix ^ (mix >> 31)).to_be_bytes());
        bytes[8..12].copy_from_slice(&self.host.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.generation.to_be_bytes());
        PeerId::from_bytes(bytes)
    }

    /// The identity that a peer id of this world stands for.
    pub fn of(id: PeerId) -> Self {
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| id.as_bytes()[at + i]));
        Self { host: HostId(word(8)), generation: word(12) }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.host, self.generation)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What a host's process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs.
    Live,
    /// It is stopped; its kernel works on.
    Stalled,
    /// There is none. Its port refuses.
    Dead,
}

/// What a host sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams.
    pub datagrams: u64,
    /// Messages on streams.
    pub streamed: u64,
    /// Connects.
    pub connects: u64,
}

impl Traffic {
    /// Packets of either kind.
    pub fn packets(&self) -> u64 {
        self.datagrams + self.streamed
    }
}

/// Something that waits for a stopped process.
pub(super) enum Waiting<M> {
    Message(Sender, M),
    Connected(ConnectToken, ConnectOutcome),
}

/// One host.
pub struct Host<N, M> {
    /// The process's program; none while it is dead.
    pub(super) node: Option<N>,
    pub(super) process: ProcessState,
    pub(super) frozen: bool,
    /// Counts starts, so that what belonged to an earlier process cannot reach a later one.
    pub(super) boot: u32,
    pub(super) identity: Identity,
    /// The process's clock runs ahead of the world's by this much.
    pub(super) clock_ahead: Duration,
    /// When the next timer event for this process is queued.
    pub(super) timer_at: Option<Instant>,
    /// Timeouts in a row at one moment: a machine that asks to be called again at once, for ever, would burn
    /// a core in production.
    pub(super) spins: u32,
    pub(super) waiting: VecDeque<Waiting<M>>,
    pub(super) waiting_datagrams: usize,
    pub(super) backlog: usize,
    pub(super) traffic: Traffic,
    pub(super) rng: Rng,
}

impl<N, M> Host<N, M> {
    /// The process's program.
    pub fn node(&self) -> Option<&N> {
        self.node.as_ref()
    }

    /// What the process is doing.
    pub fn process(&self) -> ProcessState {
        self.process
    }

    /// Whether the whole host stands still.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Whether the process exists, stopped or not.
    pub fn is_born(&self) -> bool {
        self.process != ProcessState::Dead
    }

    /// Whether the process runs.
    pub fn runs(&self) -> bool {
        self.process == ProcessState::Live && !self.frozen
    }

    /// Who its process is, or was.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// What it sent so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// How many starts the host has seen.
    pub fn boot(&self) -> u32 {
        self.boot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_and_addresses_can_be_read_back() {
        for host in [0, 1, 255, 256, 9_999].map(HostId) {
            assert_eq!(HostId::of(host.address()), Some(host));
            let identity = Identity { host, generation: 3 };
            assert_eq!(Identity::of(identity.peer_id()), identity);
        }
        assert_eq!(HostId(256).address().to_string(), "10.0.1.1:7000");
    }
}
