//! What an attempt overwrote, and how it is put back.
//!
//! A ring overwrites outputs while others may still fail, so it saves what it overwrites, block by block, right
//! before the first write: the old bytes are in the cache then, or on their way into it, because the sum needed
//! them a moment ago. An abort copies them back. (A transport that keeps results elsewhere until the verdict has
//! nothing to restore: see `settlement`.)
//!
//! The copies lie in mappings that are kept for the next operation: first touch costs more than the copy.

use super::memory::Region;
use crate::sync::{Arc, Mutex, lock};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ops::Range;

/// Mappings come in multiples of a huge page.
const MAPPING_UNIT: usize = 2 << 20;
/// Idle mappings that are kept, however small.
const MAPPINGS_MAX: usize = 32;

/// The tensors of one attempt, and what of them was overwritten. Dropping it restores them.
#[derive(Debug)]
pub(super) struct UndoLog {
    pub(super) region: Region,
    pool: Arc<UndoPool>,
    /// None if nothing will be overwritten.
    mapping: Option<Mapping>,
    /// Outputs are saved in units of this many bytes.
    unit: usize,
    /// One bit per unit: its old bytes are in the mapping.
    saved: Vec<u64>,
}

impl UndoLog {
    /// Nothing is overwritten yet. Outputs are saved in units of so many bytes: the blocks of the plan, if they
    /// lie one behind the other. Fails if there is no memory for the copies.
    pub(super) fn new(region: Region, unit: usize, pool: &Arc<UndoPool>) -> std::io::Result<Self> {
        let unit = unit.max(1);
        let bytes = region.output_bytes();
        let saved = vec![0; bytes.div_ceil(unit).div_ceil(64)];
        let mapping = if bytes > 0 { Some(pool.take(bytes)?) } else { None };
        Ok(Self { region, pool: Arc::clone(pool), mapping, unit, saved })
    }

    /// Saves the units that `range` touches, each once. Every write to an output comes after this, so a unit
    /// is saved whole before any of it is overwritten.
    pub(super) fn save(&mut self, range: &Range<usize>) {
        let Some(mapping) = self.mapping.as_mut().filter(|_| !range.is_empty()) else { return };
        let bytes = self.region.output_bytes();
        for unit in range.start / self.unit..range.end.div_ceil(self.unit) {
            let (word, bit) = (unit / 64, 1 << (unit % 64));
            if self.saved[word] & bit == 0 {
                let whole = unit * self.unit..((unit + 1) * self.unit).min(bytes);
                self.region.save(&whole, &mut mapping.bytes_mut()[whole.clone()]);
                self.saved[word] |= bit;
            }
        }
    }

    /// Saves everything, and has the operation read its input from the copy: the output is the same memory,
    /// and what is written to a place is not what was read from it.
    pub(super) fn read_from_copy(&mut self) {
        self.save(&(0..self.region.output_bytes()));
        if let Some(mapping) = &mut self.mapping {
            self.region.replace_input(mapping.bytes_mut());
        }
    }

    fn restore(&mut self) {
        let Some(mapping) = &mut self.mapping else { return };
        let total = self.region.output_bytes();
        for (index, word) in self.saved.iter_mut().enumerate() {
            while *word != 0 {
                let start = (index * 64 + word.trailing_zeros() as usize) * self.unit;
                let range = start..(start + self.unit).min(total);
                self.region.store(&range, &mapping.bytes_mut()[range.clone()]);
                *word &= *word - 1;
            }
        }
    }

    /// The caller keeps the result.
    pub(super) fn forget(&mut self) {
        self.saved.fill(0);
    }
}

impl Drop for UndoLog {
    fn drop(&mut self) {
        self.restore();
        if let Some(mapping) = self.mapping.take() {
            self.pool.give(mapping);
        }
    }
}

/// Mappings that wait for the next operation.
#[derive(Debug)]
pub(super) struct UndoPool {
    bytes_max: usize,
    idle: Mutex<Vec<Mapping>>,
}

impl UndoPool {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, idle: Mutex::new(Vec::new()) }
    }

    /// Has `bytes` mapped and touched, so that the first operation does not pay for it.
    pub(super) fn reserve(&self, bytes: usize) -> std::io::Result<()> {
        let mut mapping = self.take(bytes)?;
        mapping.bytes_mut().iter_mut().step_by(4096).for_each(|byte| *byte = 0);
        self.give(mapping);
        Ok(())
    }

    /// Mappings that nobody uses.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        lock(&self.idle).len()
    }

    fn take(&self, bytes: usize) -> std::io::Result<Mapping> {
        let mut idle = lock(&self.idle);
        let fitting = idle.iter().enumerate().filter(|(_, mapping)| mapping.bytes >= bytes);
        let best = fitting.min_by_key(|(_, mapping)| mapping.bytes).map(|(index, _)| index);
        if let Some(index) = best {
            return Ok(idle.swap_remove(index));
        }
        drop(idle);
        Mapping::new(bytes)
    }

    fn give(&self, mapping: Mapping) {
        let mut idle = lock(&self.idle);
        idle.push(mapping);
        // The smallest go first: the largest cost most to make again.
        while idle.len() > MAPPINGS_MAX
            || idle.iter().map(|mapping| mapping.bytes).sum::<usize>() > self.bytes_max
        {
            let Some((index, _)) = idle.iter().enumerate().min_by_key(|(_, mapping)| mapping.bytes) else {
                return;
            };
            drop(idle.swap_remove(index));
        }
    }
}

/// Anonymous memory of our own.
#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping has one owner, like a `Box<[u8]>`.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> std::io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(MAPPING_UNIT);
        // SAFETY: a fresh anonymous mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // Fewer faults where the kernel has huge pages; no matter where it has not.
        // SAFETY: the advice is about our own fresh mapping and does not change its contents.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        Ok(Self { start: start.cast(), bytes })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` readable, writable, zero-initialised bytes that only `self` owns.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; `&mut self` proves that no slice of it is alive.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Buffers;
    use super::*;

    #[test]
    fn a_dropped_log_restores_and_a_forgotten_one_does_not() {
        let pool = Arc::new(UndoPool::new(1 << 30));
        let original: Vec<u8> = (0..=255).collect();
        for commit in [false, true] {
            let mut tensor = original.clone();
            let mut log =
                UndoLog::new(Buffers::in_place([&mut tensor[..]]).into_region(), 100, &pool).unwrap();
            // Whatever part of a unit is asked for, the whole unit is saved.
            for (touched, range) in [(120..130, 100..200), (200..256, 200..256)] {
                log.save(&touched);
                log.region.store(&range, &vec![7; range.len()]);
                log.save(&touched);
            }
            if commit {
                log.forget();
            }
            drop(log);
            assert_eq!(tensor[..100], original[..100]);
            assert_eq!(tensor[100..] == original[100..], !commit);
            assert_eq!(tensor[100..].iter().all(|byte| *byte == 7), commit);
        }
        assert_eq!(pool.idle(), 1, "one mapping served both");
    }

    #[test]
    fn the_pool_keeps_no_more_than_it_may() {
        let pool = UndoPool::new(3 * MAPPING_UNIT);
        pool.reserve(2 * MAPPING_UNIT).unwrap();
        let taken = [pool.take(1).unwrap(), pool.take(1).unwrap(), pool.take(1).unwrap()];
        for mapping in taken {
            pool.give(mapping);
        }
        let idle: Vec<_> = pool.idle.lock().unwrap().iter().map(|mapping| mapping.bytes).collect();
        assert_eq!(idle, [2 * MAPPING_UNIT, MAPPING_UNIT]);
    }
}
