//! The data set: 1,797 handwritten digits, compiled into the program.
//!
//! The training loop hands out sample numbers, each of them to one member and one committed step. Here a number becomes an
//! image: all images in a shuffled order, then all of them again in another, and so on. Whoever takes a number gets the
//! same image.
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

    /// The images of these sample numbers.
    pub(crate) fn images(&self, numbers: &[u64]) -> Vec<&Image> {
        let length = self.train.len() as u64;
        let mut order = (u64::MAX, Vec::new());
        numbers
            .iter()
            .map(|number| {
                let pass = number / length;
                if order.0 != pass {
                    order = (pass, shuffled(self.train.len(), pass));
                }
                &self.train[order.1[(number % length) as usize]]
            })
            .collect()
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
