//! What can go wrong, and its undoing. Each variant happens at one moment; lasting trouble is a pair of them.

use super::HostId;
use outlast_proto::time::Duration;
use std::fmt;

/// Which way a host is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Nothing reaches it: it is deaf.
    Inbound,
    /// Nothing leaves it: it is mute.
    Outbound,
    /// Neither.
    Both,
}

/// A firewall in front of one host. What the host sends passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Firewall {
    /// None.
    #[default]
    Open,
    /// Connects are refused for the living; datagrams pass.
    RejectTcp,
    /// Connects are refused for the living and datagrams are dropped.
    RejectAll,
}

/// One thing that goes wrong, or right again.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The process stops (SIGSTOP): its kernel buffers datagrams and accepts connects.
    Stall(HostId),
    /// The process goes on: it drains its socket, then looks at its late timers.
    Resume(HostId),
    /// The host stands still, kernel and all.
    Freeze(HostId),
    /// The host goes on.
    Thaw(HostId),
    /// The process is killed: its kernel refuses.
    Kill(HostId),
    /// A fresh process starts at the same address.
    Restart {
        /// Where.
        host: HostId,
        /// Under its old identity, or a new one.
        same_identity: bool,
    },
    /// The process says goodbye and exits.
    Leave(HostId),
    /// Everything to or from the host is dropped.
    CutOff(HostId, Direction),
    /// The host's cut heals.
    Reconnect(HostId),
    /// Everything from the first to the second is dropped.
    CutPair(HostId, HostId),
    /// That heals.
    HealPair(HostId, HostId),
    /// These hosts and all others are out of each other's reach.
    Partition(Vec<HostId>),
    /// The partition heals.
    HealPartition,
    /// The share of packets that every path loses.
    Loss(f64),
    /// The share of packets that one host's paths lose in addition.
    HostLoss(HostId, f64),
    /// The share of datagrams that arrive twice.
    Duplicate(f64),
    /// The share of datagrams that are held back, and for how long at most.
    Reorder(f64, Duration),
    /// Every packet takes longer by up to this much.
    Delay(Duration),
    /// The process's monotonic clock leaps forward.
    ClockJump(HostId, Duration),
    /// Datagrams to and from the host are dropped.
    BlockUdp(HostId),
    /// They pass again.
    UnblockUdp(HostId),
    /// A firewall comes up, or goes.
    Firewall(HostId, Firewall),
    /// A proxy that accepts for the host whatever its state comes up, or goes.
    Proxy(HostId, bool),
    /// Everything is healed; the dead stay dead.
    HealAll,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stall(host) => write!(f, "{host}'s process stops"),
            Self::Resume(host) => write!(f, "{host}'s process goes on"),
            Self::Freeze(host) => write!(f, "{host} freezes"),
            Self::Thaw(host) => write!(f, "{host} thaws"),
            Self::Kill(host) => write!(f, "{host}'s process is killed"),
            Self::Restart { host, same_identity: true } => {
                write!(f, "{host} restarts under its old identity")
            }
            Self::Restart { host, same_identity: false } => write!(f, "{host} restarts under a new identity"),
            Self::Leave(host) => write!(f, "{host} leaves"),
            Self::CutOff(host, Direction::Both) => write!(f, "{host} is cut off"),
            Self::CutOff(host, Direction::Inbound) => write!(f, "{host} is deaf: nothing reaches it"),
            Self::CutOff(host, Direction::Outbound) => write!(f, "{host} is mute: nothing leaves it"),
            Self::Reconnect(host) => write!(f, "{host} is reconnected"),
            Self::CutPair(from, to) => write!(f, "the way from {from} to {to} is cut"),
            Self::HealPair(from, to) => write!(f, "the way from {from} to {to} heals"),
            Self::Partition(side) => write!(f, "partition: {side:?} against the rest"),
            Self::HealPartition => write!(f, "the partition heals"),
            Self::Loss(share) => write!(f, "loss of {:.1} % everywhere", share * 100.0),
            Self::HostLoss(host, share) => write!(f, "loss of {:.1} % at {host}", share * 100.0),
            Self::Duplicate(share) => write!(f, "{:.1} % of datagrams arrive twice", share * 100.0),
            Self::Reorder(share, by) => write!(f, "{:.1} % of datagrams late by up to {by:?}", share * 100.0),
            Self::Delay(by) => write!(f, "every packet late by up to {by:?}"),
            Self::ClockJump(host, by) => write!(f, "{host}'s clock leaps by {by:?}"),
            Self::BlockUdp(host) => write!(f, "UDP is blocked at {host}"),
            Self::UnblockUdp(host) => write!(f, "UDP passes again at {host}"),
            Self::Firewall(host, wall) => write!(f, "firewall at {host}: {wall:?}"),
            Self::Proxy(host, true) => write!(f, "a proxy accepts for {host}"),
            Self::Proxy(host, false) => write!(f, "no proxy accepts for {host} any more"),
            Self::HealAll => write!(f, "everything is healed"),
        }
    }
}
