//! What the world asks of whatever lives in it.
//!
//! The face is that of every machine in `proto`, with the driver's share added: a node says which messages go
//! out, which kernels are to be asked and what it tells its user, and the world carries that out. Our
//! membership, the baseline and later the coordinator with its peers are all nodes.

use super::HostId;
use super::host::Identity;
use outlast_proto::membership::{ConnectOutcome, ConnectToken, Path};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::membership::DeathReason;
use std::fmt;
use std::net::SocketAddr;

/// Where a message came from, as a receiver sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// The address it came from.
    pub address: SocketAddr,
    /// How it came.
    pub path: Path,
}

/// What a node wants done.
#[derive(Debug)]
pub enum Output<M, T> {
    /// Send a message.
    Send {
        /// Where to.
        to: SocketAddr,
        /// As a datagram, which may be lost, or on a stream, which is not while both ends and the way live.
        path: Path,
        /// What.
        message: M,
    },
    /// Ask a kernel by a TCP connect.
    Connect {
        /// Returned with the outcome.
        token: ConnectToken,
        /// Where to.
        to: SocketAddr,
        /// After this long the outcome is `Silent`.
        timeout: Duration,
    },
    /// Something for the user, and for the checkers.
    Notice(T),
}

/// A process that lives on a host. Times are the process's own monotonic clock.
pub trait Node {
    /// What travels between nodes.
    type Message: Clone;
    /// What a node tells its user.
    type Notice: fmt::Debug;

    /// A message arrived.
    fn handle_message(&mut self, now: Instant, from: Sender, message: Self::Message);
    /// A connect ended.
    fn handle_connect(&mut self, now: Instant, token: ConnectToken, outcome: ConnectOutcome);
    /// Say goodbye; the process exits once its output has been carried out.
    fn handle_leave(&mut self, now: Instant);
    /// Time has passed. Called once everything that arrived was handed in.
    fn handle_timeout(&mut self, now: Instant);
    /// The next thing to do.
    fn poll_output(&mut self) -> Option<Output<Self::Message, Self::Notice>>;
    /// When to call `handle_timeout`.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Holds a message against its wire format (it must encode within its limits and decode to itself) and
    /// returns a fingerprint of the bytes for the trace.
    fn audit(message: &Self::Message) -> Result<u64, String>;
}

/// What a health plane's node says of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// New in the active list, or there again.
    Joined,
    /// Its kernel answers and it does not.
    Stalled,
    /// Nothing answers.
    Suspected,
    /// It answers again.
    Recovered,
    /// Dead. The baseline gives no reason.
    Died(Option<DeathReason>),
    /// It said goodbye.
    Left,
    /// The node itself had been declared dead and came back.
    Rejoined,
}

/// One line of news from a health plane's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthNotice {
    /// About whom.
    pub subject: Identity,
    /// What is said of it.
    pub what: What,
}

/// One row of a node's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Who.
    pub member: Identity,
    /// Its incarnation.
    pub incarnation: u32,
    /// Whether it is plainly alive: neither suspect nor stalled, dead or gone.
    pub alive: bool,
}

/// A node's two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// Who is in the group, the node itself included.
    pub active: Vec<Row>,
    /// Who died or left.
    pub failed: Vec<Row>,
}

impl Lists {
    /// Whether `host` is in the active list under any identity.
    pub fn lists_active(&self, host: HostId) -> bool {
        self.active.iter().any(|row| row.member.host == host)
    }
}

/// A node of a health plane: what the membership checkers need to see.
pub trait HealthNode: Node<Notice = HealthNotice> {
    /// Its lists.
    fn lists(&self) -> Lists;
    /// A measure of how much state it holds; its unit is the node's own, growth is what matters.
    fn footprint(&self) -> usize;
}
