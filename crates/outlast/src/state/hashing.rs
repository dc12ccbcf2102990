//! Hashing leaves on all cores.
//!
//! One core hashes as fast as it can read, and several read faster than one. The leaves are dealt out in pieces, so that
//! a core that is busy with something else holds up one piece, not its share of everything. Between two pieces the calling
//! thread asks whether it is still wanted: a large model takes seconds, and a deadline or Ctrl-C must not wait for it. A
//! piece is some milliseconds of work at most, beside which the question costs nothing.

use crate::sync::{Mutex, lock, unlocked};
use outlast_kernels::hash128;
use outlast_proto::state::{Digest, LEAF_BYTES};
use std::sync::atomic::{AtomicBool, Ordering};

/// Below this many bytes one thread is faster than the start of another.
const ALONE_BYTES_MAX: usize = 4 << 20;
/// Pieces per thread, if the leaves are few.
const PIECES: usize = 8;
/// Leaves in a piece at most.
const PIECE_LEAVES_MAX: usize = 8;

/// How many threads hash that many bytes here.
pub(super) fn threads_for(bytes: usize) -> usize {
    if bytes <= ALONE_BYTES_MAX { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// The hash of every leaf, on that many threads. `None` if `stop` said so on the way; it is asked on this thread only.
pub(super) fn hash_leaves(leaves: &[&[u8]], threads: usize, stop: &dyn Fn() -> bool) -> Option<Vec<Digest>> {
    let mut hashes = vec![Digest::default(); leaves.len()];
    let piece = leaves.len().div_ceil(threads.max(1) * PIECES).clamp(1, PIECE_LEAVES_MAX);
    let pieces = Mutex::new(leaves.chunks(piece).zip(hashes.chunks_mut(piece)));
    let work = |stop: &dyn Fn() -> bool| {
        while !stop() {
            let Some((leaves, hashes)) = lock(&pieces).next() else {
                return;
            };
            hashes.iter_mut().zip(leaves).for_each(|(hash, leaf)| *hash = Digest::from(hash128(leaf)));
        }
    };
    let stopped = AtomicBool::new(false);
    let beside = || work(&|| stopped.load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        // Where no thread is to be had, there is this one.
        (1..threads).for_each(|_| drop(std::thread::Builder::new().spawn_scoped(scope, beside)));
        work(&|| {
            let is_over = stop();
            stopped.store(is_over, Ordering::Relaxed);
            is_over
        });
    });
    let finished = unlocked(pieces).next().is_none();
    finished.then_some(hashes)
}

/// The XXH3-128 of every 1 MiB of `bytes`, on that many threads: what a sync does first.
pub fn leaf_hashes(bytes: &[u8], threads: usize) -> Vec<u128> {
    let leaves: Vec<_> = bytes.chunks(LEAF_BYTES).collect();
    let hashes = hash_leaves(&leaves, threads, &|| false).unwrap_or_default();
    hashes.iter().map(|hash| u128::from_le_bytes(*hash.as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn any_number_of_threads_gives_the_same_hashes() {
        let bytes: Vec<u8> = (0..5 * LEAF_BYTES + 17).map(|at| (at % 251) as u8).collect();
        let alone: Vec<_> = bytes.chunks(LEAF_BYTES).map(hash128).collect();
        for threads in [0, 1, 2, 3, 50] {
            assert_eq!(leaf_hashes(&bytes, threads), alone, "{threads} threads");
        }
        assert_eq!(leaf_hashes(&[], 4), []);
    }

    #[test]
    fn it_stops_when_told() {
        let leaves = [&b"leaf"[..]; 100];
        assert_eq!(hash_leaves(&leaves, 3, &|| true), None);
    }

    /// A piece was a share of everything: of a large model each took longer than people wait for Ctrl-C.
    #[test]
    fn it_asks_every_few_leaves_however_many_there_are() {
        let (leaves, asked) = (vec![&b"leaf"[..]; 1_000 * PIECE_LEAVES_MAX], Cell::new(0));
        let stop_after = |most: usize| {
            asked.set(0);
            let stop = || asked.replace(asked.get() + 1) >= most;
            (hash_leaves(&leaves, 1, &stop).map(|hashes| hashes.len()), asked.get())
        };
        assert_eq!(stop_after(100), (None, 101));
        assert_eq!(
            stop_after(usize::MAX),
            (Some(leaves.len()), 1_001),
            "before each piece, and before it finds none"
        );
    }
}
