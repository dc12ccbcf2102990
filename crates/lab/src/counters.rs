//! What happened on each link, in frames. A test that injects a fault asserts here that the fault fired.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One direction's totals since the lab came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Frames handed to the receiver.
    pub delivered: u64,
    /// Bytes in them, IP headers included.
    pub delivered_bytes: u64,
    /// Frames that the dice took.
    pub lost: u64,
    /// Frames that found the queue full.
    pub overflowed: u64,
    /// Frames that met a cut or a halted host.
    pub cut: u64,
    /// Frames of UDP that met a block.
    pub udp_blocked: u64,
    /// Frames that the receiver's firewall refused aloud.
    pub refused: u64,
}

impl LinkCounters {
    /// Frames that did not arrive, whatever the reason.
    pub fn dropped(&self) -> u64 {
        self.lost + self.overflowed + self.cut + self.udp_blocked + self.refused
    }
}

/// The same, as the switch's thread writes it and others read it.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    delivered: AtomicU64,
    delivered_bytes: AtomicU64,
    lost: AtomicU64,
    overflowed: AtomicU64,
    cut: AtomicU64,
    udp_blocked: AtomicU64,
    refused: AtomicU64,
}

/// Why frames did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Lost,
    Overflowed,
    Cut,
    UdpBlocked,
    Refused,
}

impl Tally {
    pub(crate) fn deliver(&self, frames: u64, bytes: u64) {
        self.delivered.fetch_add(frames, Relaxed);
        self.delivered_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn drop(&self, reason: Reason, frames: u64) {
        let counter = match reason {
            Reason::Lost => &self.lost,
            Reason::Overflowed => &self.overflowed,
            Reason::Cut => &self.cut,
            Reason::UdpBlocked => &self.udp_blocked,
            Reason::Refused => &self.refused,
        };
        counter.fetch_add(frames, Relaxed);
    }

    pub(crate) fn read(&self) -> LinkCounters {
        LinkCounters {
            delivered: self.delivered.load(Relaxed),
            delivered_bytes: self.delivered_bytes.load(Relaxed),
            lost: self.lost.load(Relaxed),
            overflowed: self.overflowed.load(Relaxed),
            cut: self.cut.load(Relaxed),
            udp_blocked: self.udp_blocked.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }
}
