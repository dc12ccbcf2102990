//! Arithmetic over many elements: the only home of SIMD.
//!
//! What arrives from a wire and what lies in a caller's tensor is bytes at any address. So every function takes
//! byte slices, reads and writes little-endian elements without asking for alignment, and is safe to call:
//! lengths are asserted once, before the loop.
//!
//! **One source, compiled more than once.** A loop over elements is written once, plainly, and compiled for each
//! [level] of processor: the compiler makes the vectors. Only what it cannot find by itself (the
//! conversions of 16-bit floats, stores past the caches) is written with intrinsics. The level is chosen once,
//! at the first call. All levels give the same bits (but for the payload of a NaN that a sum or a product makes):
//! property tests hold each against references that share no code with it.
//!
//! **What the numbers mean.** Sums and products of integers wrap around. Sums and products of 16-bit floats are
//! made in 32 bits and rounded to nearest, ties to even, each time. `min` and `max` put −0 below +0 and give the
//! one canonical NaN if either operand is a NaN, so that their result does not depend on any order. A quantised
//! block that holds a NaN or an infinity is all NaN: what is wrong stays visible. `docs/guide/numbers.md` tells
//! it to users.
//!
//! It does not know what a collective is, and never sees `outlast-proto`.

mod alike;
mod blocks;
mod combine;
mod copy;
mod element;
mod half;
mod hash;
mod level;
mod loops;
mod quantise;

pub use alike::{make_nans_alike, plainly};
pub use combine::{combine, combine_assign, divide, finish, finish_assign};
pub use copy::copy_aside;
pub use element::{Element, Reduction};
pub use hash::{hash128, read_through};
pub use level::level;
pub use quantise::{Quantisation, accumulate, dequantise, error_feedback, quantise, quantised_len};

#[cfg(not(target_endian = "little"))]
compile_error!("frames carry little-endian elements; a big-endian port must convert them here");
