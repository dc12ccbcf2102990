//! Who is to be believed about the end of a process (rule 20a).

use crate::id::PeerId;
use minicbor::{CborLen, Decode, Encode};

/// One process of a host, under a name that is used once: numbers of processes come again, the moment of a start does
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
pub struct ProcessName {
    /// Its number on its host.
    #[n(0)]
    pub pid: u32,
    /// When it was started, in the kernel's ticks since the host was.
    #[n(1)]
    pub start: u64,
}

/// The agent that a peer was started by, and the process that the peer is. A peer names it when it registers, over a
/// connection that proves who it is: so nobody can be made a witness against the peer's will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, CborLen)]
pub struct Witness {
    /// The agent's name, which follows from a key of its own (rule 39).
    #[n(0)]
    pub agent: PeerId,
    /// This peer's process, as it sees itself.
    #[n(1)]
    pub process: ProcessName,
}
