//! Hosts, a network, and one queue of everything that is about to happen.

mod chronicle;
mod engine;
mod fault;
mod host;
mod injection;
mod kernel;
mod network;
mod node;
pub(crate) mod queue;
pub(crate) mod stage;
mod tally;
pub(crate) mod trace;

pub use chronicle::{Ailment, Chronicle, Spell};
pub use engine::{Birth, World};
pub use fault::{Direction, Fault, Firewall};
pub use host::{Host, HostId, Identity, ProcessState, Traffic};
pub use network::{Conditions, Network};
pub use node::{HealthNode, HealthNotice, Lists, Node, Output, Row, Sender, What};
pub use tally::{Effect, Tally};
pub use trace::Trace;

/// How many datagrams wait in a socket's buffer before the kernel drops more.
pub const SOCKET_BUFFER_PACKETS: usize = 256;
/// How many accepted connections wait for a process that does not take them (rule 22).
pub const BACKLOG_CONNECTIONS: usize = 4_096;
/// The port of every process, TCP and UDP. Connects to any other port find nobody there.
pub const HEALTH_PORT: u16 = 7_000;
/// A port on every host that is bound and never listens.
pub const CLOSED_PORT: u16 = 7_001;
