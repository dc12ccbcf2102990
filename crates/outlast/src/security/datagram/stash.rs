//! The first packet of a boot that still has to prove itself.
//!
//! A newcomer's first datagram is its join; dropping it would cost the newcomer a whole retry. So it is kept
//! until the echo comes: one for each (sender, boot), at most [`STASH_MAX`] together, the oldest dropped
//! first. All of them opened under the run's secret, so a stranger fills the stash only with copies of what
//! members once sent; that costs a newcomer at most the retry.

use outlast_proto::id::{BootId, PeerId};
use std::collections::VecDeque;

/// Packets that are kept at once.
pub(super) const STASH_MAX: usize = 256;

/// A packet that waits for its sender's echo.
#[derive(Debug)]
pub(super) struct Stashed {
    pub(super) sender: PeerId,
    pub(super) boot: BootId,
    pub(super) counter: u64,
    pub(super) sent_us: u64,
    pub(super) plaintext: Vec<u8>,
}

/// The packets that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Stash(VecDeque<Stashed>);

impl Stash {
    /// Keeps `packet`, unless a later one of the same boot is here. Returns how many packets were dropped.
    pub(super) fn put(&mut self, packet: Stashed) -> u64 {
        if let Some(kept) = self.position(packet.sender, packet.boot) {
            if self.0[kept].counter < packet.counter {
                self.0[kept] = packet;
            }
            return 1;
        }
        self.0.push_back(packet);
        let full = self.0.len() > STASH_MAX;
        if full {
            self.0.pop_front();
        }
        u64::from(full)
    }

    /// Takes out the packet of this boot.
    pub(super) fn take(&mut self, sender: PeerId, boot: BootId) -> Option<Stashed> {
        self.position(sender, boot).and_then(|index| self.0.remove(index))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn position(&self, sender: PeerId, boot: BootId) -> Option<usize> {
        self.0.iter().position(|kept| kept.sender == sender && kept.boot == boot)
    }
}
