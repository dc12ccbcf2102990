//! A part of a state: shared until it changes, hashed once after a change.
//!
//! Most events touch one machine. A state that shares all other parts with the state it came from costs little to
//! copy, little to keep, and little to hash.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A value that many states share, with its hash.
#[derive(Debug)]
pub struct Held<T> {
    value: Arc<T>,
    hash: OnceLock<u64>,
}

impl<T> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), hash: self.hash.clone() }
    }
}

impl<T: Clone + Hash> Held<T> {
    /// Holds a value.
    pub fn new(value: T) -> Self {
        Self { value: Arc::new(value), hash: OnceLock::new() }
    }

    /// Changes it for this state alone.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        self.hash = OnceLock::new();
        change(Arc::make_mut(&mut self.value))
    }
}

impl<T> Deref for Held<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Hash> Hash for Held<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(*self.hash.get_or_init(|| hash_of(&*self.value)));
    }
}

/// The hash of anything, the same in every process.
pub fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = Folding(0x243f_6a88_85a3_08d3);
    value.hash(&mut hasher);
    hasher.finish()
}

/// Machines are hashed field by field, in many small pieces: each is multiplied in, and the upper half of the product
/// is folded onto the lower (as wyhash does).
struct Folding(u64);

impl Folding {
    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        (product >> 64) as u64 ^ product as u64
    }
}

impl Hasher for Folding {
    fn finish(&self) -> u64 {
        Self::fold(self.0 ^ 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        // Rotated, so that what came before is never multiplied away by a zero.
        self.0 =
            Self::fold(self.0 ^ value ^ 0x9e37_79b9_7f4a_7c15, 0x8ebc_6af0_9c88_c6e3).rotate_left(23) ^ value;
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_by_its_own_state_only_and_by_its_hash() {
        let first = Held::new(vec![1, 2]);
        let mut second = first.clone();
        assert_eq!(hash_of(&first), hash_of(&second));
        second.change(|list| list.push(3));
        assert_eq!((first.len(), second.len()), (2, 3));
        assert_ne!(hash_of(&first), hash_of(&second));
        second.change(Vec::pop);
        assert_eq!(hash_of(&first), hash_of(&second), "equal states are one state, however they came about");
    }
}
