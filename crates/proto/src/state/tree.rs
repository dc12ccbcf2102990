//! Leaves and the root.
//!
//! A tensor is cut into leaves of [`LEAF_BYTES`]; the last one is shorter, and an empty tensor has none. Each leaf has
//! the XXH3-128 of its bytes. The root is the XXH3-128 of: the name of this scheme, the outline's digest (keys, types,
//! shapes and so all lengths), the `extra` bytes' length and digest, and all leaf hashes in the order of keys. The
//! outline says how many leaves each tensor has, so no two states give the same bytes to hash.
//!
//! The tree has two levels. A terabyte has a million leaves and so a list of 16 MB, which only a member that differs
//! ever fetches; more levels would save a part of that and cost a round trip each.

use super::{Outline, TensorInfo};
use minicbor::{CborLen, Decode, Encode};
use std::fmt;
use std::ops::Range;
use twox_hash::XxHash3_128;

/// Bytes of a leaf: large enough that its hash costs nothing on the wire, small enough that one flipped bit costs
/// little, and it stays in a core's cache from the wire through the check to its place.
pub const LEAF_BYTES: usize = 1 << 20;

/// The scheme's name; a change of any kind to what is hashed changes it.
const SCHEME: &[u8] = b"outlast-state/1 xxh3-128 leaves=1MiB";

/// 128 bits that stand for bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, CborLen)]
#[cbor(transparent)]
pub struct Digest(#[cbor(with = "minicbor::bytes")] [u8; 16]);

impl Digest {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// The digest of few bytes. Leaves are hashed by those who hold them.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from(XxHash3_128::oneshot(bytes))
    }

    /// As it came over the wire.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// As it goes over the wire.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl From<u128> for Digest {
    fn from(hash: u128) -> Self {
        Self(hash.to_le_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_le_bytes(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How many leaves that many bytes have.
pub const fn leaves_of(bytes: usize) -> usize {
    bytes.div_ceil(LEAF_BYTES)
}

/// The bytes of leaf number `leaf` within a tensor of that many bytes.
pub fn leaf_range(leaf: usize, tensor_bytes: usize) -> Range<usize> {
    let start = (leaf * LEAF_BYTES).min(tensor_bytes);
    start..(start + LEAF_BYTES).min(tensor_bytes)
}

/// Where the leaves of an outline are: all that are compared, numbered in the order of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// For each tensor that has leaves: its place in the outline, its bytes, and its first leaf's number.
    tensors: Vec<(usize, usize, usize)>,
    count: usize,
}

/// Where one leaf is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its tensor's place in the outline.
    pub tensor: usize,
    /// Its bytes within the tensor.
    pub bytes: Range<usize>,
}

impl Leaves {
    /// The leaves of that outline.
    pub fn of(outline: &Outline) -> Self {
        let (mut tensors, mut count) = (Vec::new(), 0);
        let compared = |(_, tensor): &(usize, &TensorInfo)| !tensor.may_differ;
        for (place, tensor) in outline.tensors().iter().enumerate().filter(compared) {
            let bytes = tensor.bytes().unwrap_or_default() as usize;
            if bytes > 0 {
                tensors.push((place, bytes, count));
                count += leaves_of(bytes);
            }
        }
        Self { tensors, count }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is nothing to compare.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where a leaf is, if there is one of that number.
    pub fn get(&self, number: usize) -> Option<Leaf> {
        if number >= self.count {
            return None;
        }
        let after = self.tensors.partition_point(|(_, _, first)| *first <= number);
        let &(tensor, bytes, first) = self.tensors.get(after.checked_sub(1)?)?;
        Some(Leaf { tensor, bytes: leaf_range(number - first, bytes) })
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, bytes, _)| *bytes as u64).sum()
    }
}

/// The root of a state. `leaves` are the hashes of all leaves that are compared, in their order.
pub fn root(outline: Digest, extra: &[u8], leaves: &[Digest]) -> Digest {
    let mut hasher = XxHash3_128::new();
    hasher.write(SCHEME);
    hasher.write(outline.as_bytes());
    hasher.write(&(extra.len() as u64).to_le_bytes());
    hasher.write(Digest::of(extra).as_bytes());
    hasher.write(&(leaves.len() as u64).to_le_bytes());
    leaves.iter().for_each(|leaf| hasher.write(leaf.as_bytes()));
    Digest::from(hasher.finish_128())
}

/// The numbers of the leaves in which `ours` differs from `theirs`, which has as many.
pub fn differing(ours: &[Digest], theirs: &[Digest]) -> Vec<usize> {
    let pairs = ours.iter().zip(theirs).enumerate();
    pairs.filter(|(_, (our, their))| our != their).map(|(number, _)| number).collect()
}
