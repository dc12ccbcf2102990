//! Who may talk to us.
//!
//! A run has one secret. Whoever holds it is a member, whoever does not can do nothing but send bytes that are
//! refused, counted and logged once. Everything else follows from the secret and the run's name:
//!
//! ```text
//! run secret --+--> RunKeys --+--> datagrams: a key per (sender, boot), each datagram sealed
//!    run id ---+              +--> streams: a certificate authority, mutual TLS 1.3 on every stream
//! ```
//!
//! - [`secret`]: what people handle: a checked text, a file, an environment variable.
//! - [`keys`]: what is derived from it. The run id takes part in each derivation, so that two runs with the
//!   same secret still cannot talk to each other (rule 33).
//! - [`credentials`]: what a process is given: secrets, and perhaps a certificate of one's own authority.
//! - [`identity`]: the key of one process, and the name that follows from it (rule 39).
//! - [`datagram`]: seals and opens datagrams; refuses copies, and boots that have not proved they are live.
//! - [`tls`]: the identity of this process on streams, and who is at the other end.
//! - [`refusal`]: tells a person about refused sources once each, with bounded memory.
//!
//! A holder of the secret can take part, and can be nobody but itself on streams: a name follows from a key.
//! Datagrams prove the secret alone, so nothing that comes by datagram condemns anybody (rule 39). Who must not
//! even take part is kept out with a certificate authority of one's own.

pub mod base32;
pub mod credentials;
pub mod datagram;
pub mod identity;
pub mod keys;
pub mod refusal;
#[cfg(feature = "etcd")]
pub(crate) mod sealing;
pub mod secret;
pub mod tls;

pub use credentials::{Credentials, OwnCertificate};
pub use identity::{KeyError, ProcessKey};
pub use keys::RunKeys;
pub use refusal::RefusalLog;
pub use secret::{RunSecret, SecretError};
pub use tls::TlsIdentity;

use outlast_proto::id::{BootId, PeerId};

/// `N` bytes from the operating system's random source.
///
/// # Panics
/// If the operating system has no randomness to give: nothing here could be secure without it.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system's random source answers");
    bytes
}

/// A name that nobody has: that of a key which is thrown away.
pub fn fresh_peer_id() -> PeerId {
    ProcessKey::generate().peer()
}

/// A fresh name for this start of the process. It must be random: datagram keys belong to (peer, boot), so a
/// boot that came twice would use a key's nonces twice.
pub fn fresh_boot_id() -> BootId {
    BootId(u64::from_be_bytes(random_bytes()))
}
