//! Nonces that nobody has to remember.
//!
//! A challenge is answered to whoever sends an authentic datagram of an unknown boot, and copies of such
//! datagrams can come at any rate from any address. If each challenge took memory, they would decide how much
//! we use. So a nonce is a keyed hash of what it is for: the (sender, boot) it was sent to, the address it
//! went to, and the time, in steps of [`STEP`]. The key is random for each process: a nonce of an earlier
//! boot of ours, or one for another member, never checks out. It is valid for one to two steps.

use aws_lc_rs::{constant_time, hmac};
use outlast_proto::id::{BootId, PeerId};
use outlast_proto::time::{Duration, Instant};
use std::net::{IpAddr, SocketAddr};

/// How finely a nonce's time is told. An echo takes a round trip; a stopped process that misses the time is
/// challenged again by its next datagram.
pub(super) const STEP: Duration = Duration::from_secs(5);

/// What a challenge asks to be echoed.
pub(super) type ChallengeNonce = [u8; 16];

/// Makes and checks nonces.
pub(super) struct NonceMint {
    key: hmac::Key,
}

impl NonceMint {
    pub(super) fn new() -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &super::super::random_bytes::<32>()) }
    }

    /// The nonce for a boot that spoke from `from`.
    pub(super) fn mint(&self, now: Instant, peer: PeerId, boot: BootId, from: SocketAddr) -> ChallengeNonce {
        self.of_step(step(now), peer, boot, from)
    }

    /// Whether `nonce` was made for this boot at this address, in this step or the one before.
    pub(super) fn check(
        &self,
        now: Instant,
        peer: PeerId,
        boot: BootId,
        from: SocketAddr,
        nonce: &[u8],
    ) -> bool {
        let step = step(now);
        [Some(step), step.checked_sub(1)].into_iter().flatten().any(|step| {
            constant_time::verify_slices_are_equal(&self.of_step(step, peer, boot, from), nonce).is_ok()
        })
    }

    fn of_step(&self, step: u64, peer: PeerId, boot: BootId, from: SocketAddr) -> ChallengeNonce {
        let address = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut context = hmac::Context::with_key(&self.key);
        context.update(peer.as_bytes());
        context.update(&boot.0.to_be_bytes());
        context.update(&address.octets());
        context.update(&from.port().to_be_bytes());
        context.update(&step.to_be_bytes());
        let mut nonce = ChallengeNonce::default();
        nonce.copy_from_slice(&context.sign().as_ref()[..16]);
        nonce
    }
}

fn step(now: Instant) -> u64 {
    now.as_millis() / STEP.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_good_for_its_boot_its_address_and_its_time() {
        let (mint, now) = (NonceMint::new(), Instant::ORIGIN + Duration::from_secs(104));
        let (peer, boot, from) = (PeerId::from_bytes([1; 16]), BootId(3), "192.0.2.1:7".parse().unwrap());
        let nonce = mint.mint(now, peer, boot, from);
        assert!(mint.check(now, peer, boot, from, &nonce));
        assert!(mint.check(now + STEP, peer, boot, from, &nonce));
        assert!(!mint.check(now + STEP + STEP, peer, boot, from, &nonce));
        assert!(!mint.check(now - STEP, peer, boot, from, &nonce), "a nonce from the future");
        assert!(!mint.check(now, PeerId::from_bytes([2; 16]), boot, from, &nonce));
        assert!(!mint.check(now, peer, BootId(4), from, &nonce));
        assert!(!mint.check(now, peer, boot, "192.0.2.1:8".parse().unwrap(), &nonce));
        assert!(!NonceMint::new().check(now, peer, boot, from, &nonce), "another process's nonce");
        assert!(!mint.check(now, peer, boot, from, &nonce[..15]));
    }
}
