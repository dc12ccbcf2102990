//! Scratch for blocks on their way: taken, passed around by value, given back.

use outlast_proto::limits::BLOCK_BYTES_MAX;

/// Idle slots that are kept. More were in use at once only in a burst.
const IDLE_MAX: usize = 256;

/// Memory for one block.
pub(super) struct Slot(Box<[u8; BLOCK_BYTES_MAX]>);

impl Slot {
    pub(super) fn bytes(&self, length: usize) -> &[u8] {
        &self.0[..length]
    }

    pub(super) fn bytes_mut(&mut self, length: usize) -> &mut [u8] {
        &mut self.0[..length]
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

/// Slots that wait for the next block.
#[derive(Debug, Default)]
pub(super) struct Slots {
    idle: Vec<Slot>,
}

impl Slots {
    /// The slot that was used last: its bytes are most likely in the cache.
    pub(super) fn take(&mut self) -> Slot {
        self.idle.pop().unwrap_or_else(|| {
            let zeroed: Box<[u8]> = vec![0; BLOCK_BYTES_MAX].into_boxed_slice();
            Slot(zeroed.try_into().expect("it has just this length"))
        })
    }

    pub(super) fn give(&mut self, slot: Slot) {
        if self.idle.len() < IDLE_MAX {
            self.idle.push(slot);
        }
    }
}
