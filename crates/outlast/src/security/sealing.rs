//! Something small that is kept in a place which others can read.
//!
//! AES-256-GCM under a key that is expanded from the run secret with a label of its own, and a random nonce in front: what
//! is sealed here is written a few times in a cluster's life, so nonces do not repeat. Whoever has the place and not the
//! secret can neither read it nor put something else there.

use super::keys::secret_key;
use super::{RunSecret, random_bytes};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

fn key(secret: &RunSecret, label: &[u8]) -> LessSafeKey {
    let key = secret_key(secret, &[b"sealed", label]);
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).expect("AES-256 takes 32 bytes"))
}

/// Seals `bytes` for whoever has the secret and asks for that label.
pub(crate) fn seal(secret: &RunSecret, label: &[u8], bytes: &[u8]) -> Vec<u8> {
    let nonce: [u8; NONCE_LEN] = random_bytes();
    let mut sealed = bytes.to_vec();
    key(secret, label)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(label), &mut sealed)
        .expect("a few hundred bytes can be sealed");
    [&nonce[..], &sealed].concat()
}

/// What was sealed; `None` if it was sealed by somebody else, or is damaged.
pub(crate) fn open(secret: &RunSecret, label: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut bytes = Zeroizing::new(sealed.to_vec());
    let opened = key(secret, label).open_in_place(nonce, Aad::from(label), &mut bytes).ok()?.len();
    bytes.truncate(opened);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_opened_with_the_same_secret_and_label_alone() {
        let (secret, other) = (RunSecret::generate(), RunSecret::generate());
        let sealed = seal(&secret, b"a", b"something small");
        assert_eq!(open(&secret, b"a", &sealed).as_deref().map(Vec::as_slice), Some(&b"something small"[..]));
        assert_ne!(seal(&secret, b"a", b"something small"), sealed);
        assert!(open(&other, b"a", &sealed).is_none() && open(&secret, b"b", &sealed).is_none());
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(open(&secret, b"a", &damaged).is_none(), "byte {at}");
        }
        assert!(open(&secret, b"a", &sealed[..7]).is_none());
    }
}
