//! Whether two processes that have found each other over TLS are on one host, and go on there.
//!
//! The first message of whoever dialled, after the hellos: a hatch that it has opened, or that it has none. A hatch is answered:
//! `Through` or `Stays`. Whoever dialled answers a `Through` in turn, with one if it has what was brought. Only when both have
//! said it they leave the stream. How a hatch works, and why nobody else gets through it, is told in the runtime (`link/hatch.rs`).

use super::hello::Version;
use super::{InvalidMessage, Message};
use minicbor::bytes::ByteArray;
use minicbor::{CborLen, Decode, Encode};
use std::net::SocketAddr;

/// Bytes of a hatch's name.
pub const HATCH_NAME_BYTES: usize = 16;
/// Bytes of what a guest shows.
pub const HATCH_PROOF_BYTES: usize = 32;

/// Since when hatches are spoken of.
const SINCE: Version = Version { major: 3, minor: 2 };

/// What two ends of a stream tell each other about a way within one host.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, CborLen)]
pub enum Hatch {
    /// From whoever dialled: there is no hatch, and what follows comes on this stream. Not answered.
    #[n(0)]
    None,
    /// From whoever dialled: there is one.
    #[n(1)]
    Open {
        /// Where: part of the name of a Unix socket.
        #[n(0)]
        name: ByteArray<HATCH_NAME_BYTES>,
        /// What the guest shows at the hatch. Nobody else knows it.
        #[n(1)]
        proof: ByteArray<HATCH_PROOF_BYTES>,
        /// The sender's own end of this stream, as its kernel calls it. If this or the next is another one for the reader,
        /// somebody stands between the two.
        #[n(2)]
        from: SocketAddr,
        /// The other end, as the sender's kernel calls it.
        #[n(3)]
        to: SocketAddr,
    },
    /// From whoever was invited: a descriptor is at the hatch. From whoever invited: it has it, and nothing more comes on this
    /// stream.
    #[n(2)]
    Through,
    /// From either: what follows comes on this stream.
    #[n(3)]
    Stays,
}

impl Message for Hatch {
    const BYTES_MAX: usize = 256;
    fn since(&self) -> Version {
        SINCE
    }
    fn check(&self) -> Result<(), InvalidMessage> {
        Ok(())
    }
}
