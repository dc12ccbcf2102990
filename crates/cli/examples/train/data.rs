//! The data set: 1,797 handwritten digits, compiled into the program.
//!
//! Data-parallel training needs every member to agree which images a step uses, although members come and go.
//! Nothing is sent for that: the batch follows from the number of the step alone, and a member's part of it from
//! its rank and the world size. So a newcomer that knows the step knows the batch, and a member that was lost
//! leaves no hole beyond the step in which it went.
//!
//! Every fifth image is kept for the test and never trained on. The writers of both parts are the same people,
//! which makes the test easier than it would be among strangers; `digits.md` says where the images come from.

/// Pixels of an image.
pub(crate) const PIXELS: usize = 64;
/// Digits to tell apart.
pub(crate) const CLASSES: usize = 10;
/// Images that a step uses, over all members.
pub(crate) const BATCH: usize = 128;

/// A digit, then its pixels.
const RECORD: usize = 1 + PIXELS;
/// The most ink that a pixel has.
const INK_MAX: f32 = 16.0;
/// One image in so many is for the test.
const TEST_EVERY: usize = 5;

static DIGITS: &[u8] = include_bytes!("digits.bin");

/// An image, and the digit that it shows.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) pixels: [f32; PIXELS],
    pub(crate) digit: usize,
}

impl Image {
    fn decode(record: &[u8]) -> Self {
        let mut pixels = [0.0; PIXELS];
        for (pixel, ink) in pixels.iter_mut().zip(&record[1..]) {
            *pixel = f32::from(*ink) / INK_MAX;
        }
        Self { pixels, digit: usize::from(record[0]) }
    }
}

/// All images, in two parts.
#[derive(Debug)]
pub(crate) struct Digits {
    train: Vec<Image>,
    pub(crate) test: Vec<Image>,
}

impl Digits {
    pub(crate) fn load() -> Self {
        let (mut train, mut test) = (Vec::new(), Vec::new());
        for (number, record) in DIGITS.chunks_exact(RECORD).enumerate() {
            let part = if number % TEST_EVERY == 0 { &mut test } else { &mut train };
            part.push(Image::decode(record));
        }
        Self { train, test }
    }

    /// What the member of this rank trains on in this step: every `world`-th image of the step's batch.
    pub(crate) fn shard(&self, step: u64, rank: usize, world: usize) -> Vec<&Image> {
        let per_pass = (self.train.len() / BATCH) as u64;
        let order = shuffled(self.train.len(), step / per_pass);
        let begin = (step % per_pass) as usize * BATCH;
        let batch = &order[begin..begin + BATCH];
        batch.iter().skip(rank).step_by(world.max(1)).map(|at| &self.train[*at]).collect()
    }
}

/// The numbers below `count` in an order that follows from `seed`.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut dice = Dice::new(seed);
    let mut order: Vec<_> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, dice.below(last + 1));
    }
    order
}

/// A small generator (xorshift*). Its choices must be the same everywhere and need not be secret.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 32) as usize) % end
    }

    /// Between -1 and 1.
    pub(crate) fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }
}
