//! Randomness that is handed in, so that one seed replays everything.

use rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A seeded stream of random numbers. The driver seeds it from the operating system, `sim` from its seed.
/// It spreads load and breaks symmetry; no secret ever comes from it.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The stream that belongs to `seed`.
    pub fn from_seed(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A stream of its own, split off this one.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self::from_seed(self.next_u64())
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..bound`, by multiply and shift: the bias is below 2^-32 for every bound we use.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "there is no number below zero");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `probability`.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A random permutation of `items`, in place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_stream() {
        let (mut a, mut b) = (Rng::from_seed(7), Rng::from_seed(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(Rng::from_seed(8).next_u64(), Rng::from_seed(7).next_u64());
    }

    #[test]
    fn below_reaches_every_number_and_no_other() {
        let mut rng = Rng::from_seed(1);
        let mut seen = [0u32; 5];
        (0..1_000).for_each(|_| seen[rng.below(5)] += 1);
        assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
    }
}
