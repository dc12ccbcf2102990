//! One that takes part in a rendezvous: usually an agent, one per host.

use crate::limits::HOST_BYTES_MAX;
use crate::wire::{InvalidMessage, printable, within};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;

/// A node. Nodes are sorted by host, then process, then number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct Node {
    /// The fully qualified name of its host.
    #[n(0)]
    pub host: String,
    /// Its process.
    #[n(1)]
    pub pid: u32,
    /// Which one of its process, counted from zero.
    #[n(2)]
    pub local_id: u32,
}

impl Node {
    /// Holds the name against its limit.
    pub fn check(&self) -> Result<(), InvalidMessage> {
        within("host", self.host.len(), HOST_BYTES_MAX)?;
        printable("host", &self.host)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.host, self.pid, self.local_id)
    }
}
