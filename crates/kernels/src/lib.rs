//! Arithmetic over many elements: the only home of SIMD.
//!
//! What arrives from a wire and what lies in a caller's tensor is bytes at any address. So every function takes
//! byte slices, reads and writes elements of native order without asking for alignment, and is safe to call:
//! lengths are asserted once, before the loop. Each has a scalar reference that defines its meaning; the
//! vectorised forms are chosen at run time, once, and are held against the reference by property tests.
//!
//! It does not know what a collective is, and never sees `outlast-proto`.

mod copy;
mod scalar;
mod sum;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use copy::copy_aside;
pub use sum::{Element, add, add_assign, divide};

#[cfg(not(target_endian = "little"))]
compile_error!("frames carry little-endian elements; a big-endian port must convert them here");
