//! What the arithmetic means, one element at a time.

/// Applies `f` to each pair of elements of `a` and `b` and stores the results in `dst`.
fn zip<const SIZE: usize>(
    dst: &mut [u8],
    a: &[u8],
    b: &[u8],
    f: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
) {
    let (dst, _) = dst.as_chunks_mut::<SIZE>();
    let (a, _) = a.as_chunks::<SIZE>();
    let (b, _) = b.as_chunks::<SIZE>();
    for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
        *dst = f(*a, *b);
    }
}

/// Replaces each element of `acc` by `f` of it and the element of `other`.
fn zip_assign<const SIZE: usize>(
    acc: &mut [u8],
    other: &[u8],
    f: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
) {
    let (acc, _) = acc.as_chunks_mut::<SIZE>();
    let (other, _) = other.as_chunks::<SIZE>();
    for (acc, other) in acc.iter_mut().zip(other) {
        *acc = f(*acc, *other);
    }
}

fn add_one_f32(a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
    (f32::from_ne_bytes(a) + f32::from_ne_bytes(b)).to_ne_bytes()
}

fn add_one_i64(a: [u8; 8], b: [u8; 8]) -> [u8; 8] {
    i64::from_ne_bytes(a).wrapping_add(i64::from_ne_bytes(b)).to_ne_bytes()
}

pub(crate) fn add_f32(dst: &mut [u8], a: &[u8], b: &[u8]) {
    zip(dst, a, b, add_one_f32);
}

pub(crate) fn add_assign_f32(acc: &mut [u8], other: &[u8]) {
    zip_assign(acc, other, add_one_f32);
}

pub(crate) fn add_i64(dst: &mut [u8], a: &[u8], b: &[u8]) {
    zip(dst, a, b, add_one_i64);
}

pub(crate) fn add_assign_i64(acc: &mut [u8], other: &[u8]) {
    zip_assign(acc, other, add_one_i64);
}

pub(crate) fn divide_f32(values: &mut [u8], by: u32) {
    let (values, _) = values.as_chunks_mut::<4>();
    for value in values {
        *value = (f32::from_ne_bytes(*value) / by as f32).to_ne_bytes();
    }
}

pub(crate) fn divide_i64(values: &mut [u8], by: u32) {
    let (values, _) = values.as_chunks_mut::<8>();
    for value in values {
        *value = (i64::from_ne_bytes(*value) / i64::from(by)).to_ne_bytes();
    }
}
