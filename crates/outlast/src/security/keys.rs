//! From one secret to the keys of one run.
//!
//! HKDF (RFC 5869) with SHA-256: the secret is extracted once; each key is expanded with a label of its own
//! and with the run id, its length in front, so that no two (label, run) pairs give the same input. A key for
//! one purpose says nothing about another, and two runs under one secret share no key (rule 33).
//!
//! ```text
//! secret --extract--> root --expand("certificate authority", run)--> seed of the CA's Ed25519 key
//!                          --expand("datagrams", run)--> datagram root --expand(sender, boot)--> AES-256-GCM key
//! ```
//!
//! While a secret is rotated there are two of them, and so there are two of everything: the *generations* of a
//! run's keys. The first is ours; the others are accepted.

use super::RunSecret;
use aws_lc_rs::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use outlast_proto::id::{BootId, PeerId, RunId};
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The salt names the scheme; a scheme that derives otherwise gets another one.
const SCHEME: &[u8] = b"outlast keys 1";

/// Secrets that may be accepted at once, ours included: one that is leaving and one that is coming.
pub const GENERATIONS_MAX: usize = 4;

/// What is derived for one run, from each of its secrets.
pub struct RunKeys {
    run: RunId,
    generations: Vec<Generation>,
}

struct Generation {
    datagrams: Prk,
    authority_seed: Zeroizing<[u8; 32]>,
}

impl RunKeys {
    /// The keys of `run` under `secret`.
    pub fn derive(secret: &RunSecret, run: &RunId) -> Arc<Self> {
        Self::derive_all(secret, &[], run)
    }

    /// The keys of `run` under `secret`, and under the secrets that are accepted beside it.
    ///
    /// # Panics
    /// If there are more than [`GENERATIONS_MAX`] secrets.
    pub fn derive_all(secret: &RunSecret, accepted: &[RunSecret], run: &RunId) -> Arc<Self> {
        assert!(accepted.len() < GENERATIONS_MAX, "at most {GENERATIONS_MAX} secrets at once");
        let mut generations = vec![Generation::derive(secret, run)];
        // A secret that is given twice would only be tried twice.
        let others = accepted.iter().filter(|other| *other != secret);
        generations.extend(others.map(|other| Generation::derive(other, run)));
        Arc::new(Self { run: run.clone(), generations })
    }

    /// The run that the keys belong to.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// How many secrets the run is known by here.
    pub(super) fn generations(&self) -> usize {
        self.generations.len()
    }

    /// The key under which one start of one process seals its datagrams. Its only writer is that process,
    /// which counts its nonces; so no nonce is used twice.
    pub(super) fn datagram_key(&self, generation: usize, sender: PeerId, boot: BootId) -> LessSafeKey {
        let mut key = Zeroizing::new([0; 32]);
        let info: [&[u8]; 3] = [b"datagram key", sender.as_bytes(), &boot.0.to_be_bytes()];
        expand(&self.generations[generation].datagrams, &info, &mut key);
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).expect("AES-256 takes 32 bytes"))
    }

    /// What the run's certificate authorities are made from, ours first.
    pub(super) fn authority_seeds(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.generations.iter().map(|generation| &*generation.authority_seed)
    }
}

impl Generation {
    fn derive(secret: &RunSecret, run: &RunId) -> Self {
        let root = Salt::new(HKDF_SHA256, SCHEME).extract(secret.as_bytes());
        let run_length = [run.as_str().len() as u8];
        let expand = |label: &[u8]| {
            let mut key = Zeroizing::new([0; 32]);
            expand(&root, &[label, &run_length, run.as_str().as_bytes()], &mut key);
            key
        };
        let datagrams = Prk::new_less_safe(HKDF_SHA256, &*expand(b"datagrams"));
        Self { datagrams, authority_seed: expand(b"certificate authority") }
    }
}

/// A key of no run in particular, for one purpose.
#[cfg(feature = "etcd")]
pub(super) fn secret_key(secret: &RunSecret, label: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let root = Salt::new(HKDF_SHA256, SCHEME).extract(secret.as_bytes());
    let mut key = Zeroizing::new([0; 32]);
    expand(&root, label, &mut key);
    key
}

impl fmt::Debug for RunKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunKeys({}, not shown)", self.run)
    }
}

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        32
    }
}

fn expand(from: &Prk, info: &[&[u8]], key: &mut [u8; 32]) {
    let output = from.expand(info, Bytes32).expect("32 bytes are within what SHA-256 expands to");
    output.fill(key).expect("the length was asked for");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed_of(secret: &RunSecret, run: &str) -> [u8; 32] {
        *RunKeys::derive(secret, &run.parse().unwrap()).authority_seeds().next().unwrap()
    }

    #[test]
    fn keys_depend_on_the_secret_and_on_the_run_and_on_nothing_else() {
        let (one, other) = (RunSecret::generate(), RunSecret::generate());
        assert_eq!(seed_of(&one, "a"), seed_of(&one, "a"));
        assert_ne!(seed_of(&one, "a"), seed_of(&one, "b"));
        assert_ne!(seed_of(&one, "a"), seed_of(&other, "a"));
    }

    #[test]
    fn the_derivation_does_not_change() {
        // The value was worked out with another implementation of HKDF. A peer of the previous version must derive the same keys.
        let text = "outlast-1-a4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dq-3zby4ni";
        let seed = seed_of(&text.parse().unwrap(), "demo");
        assert_eq!(seed[..8], 0x52d3_6c64_fd3c_5f77_u64.to_be_bytes());
    }
}
