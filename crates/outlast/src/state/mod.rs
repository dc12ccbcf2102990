//! Shared state: named tensors that are the same, to the bit, on every member of a group.
//!
//! ```no_run
//! use outlast::state::SharedState;
//!
//! let mut state = SharedState::new();
//! state.insert("w", vec![0.0_f32; 6], &[2, 3])?;
//! state.set_revision(Some(0));
//! state.get_mut::<f32>("w").unwrap()[0] = 1.5;
//! state.save("checkpoints/0".as_ref())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What a state is and how one is elected is decided in [`outlast_proto::state`]. Here is where the memory is: hashing it
//! on all cores, moving leaves between members, and keeping it on disk.
//!
//! The invariant: a state that a heal left half new and half old is *torn*. A torn state has no revision, cannot be
//! saved, and is nobody's donor (rule 26) until a heal or a [load](SharedState::load) made it whole.

mod checkpoint;
pub(crate) mod exchange;
mod hashing;
mod memory;
mod safetensors;
mod ties;

pub use checkpoint::{CheckpointError, newest};
pub use hashing::leaf_hashes;
pub use outlast_kernels::read_through;
pub use outlast_proto::state::election::{NoDonor, Strategy, UnknownStrategy};
pub use outlast_proto::state::{InvalidOutline, LEAF_BYTES, Outline, Revision, TensorInfo};

use crate::communicator::{DataType, Element};
use memory::Memory;
use outlast_proto::limits::STATE_EXTRA_BYTES_MAX;
use outlast_proto::state::Digest;
use outlast_proto::state::tree::{self, Leaves};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a tensor or other bytes cannot be part of a state. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Keys or shapes that make no state.
    #[error(transparent)]
    Outline(#[from] InvalidOutline),
    /// The shape says another number of elements than there are.
    #[error("{key:?}: the shape {shape:?} has {expected} elements, and there are {elements}")]
    Shape {
        /// Which tensor.
        key: String,
        /// The shape that was given.
        shape: Vec<u64>,
        /// The elements that it has.
        expected: u64,
        /// The elements that there are.
        elements: u64,
    },
    /// Memory that belongs to another tensor in part: a heal of one would change the other.
    #[error(
        "{key:?} has some of the memory of {other:?}: a tensor's memory is its own, or exactly all of another's"
    )]
    Overlap {
        /// Which tensor.
        key: String,
        /// Whose memory it has.
        other: String,
    },
    /// Too many bytes to travel along.
    #[error("{0} extra bytes; the limit is {STATE_EXTRA_BYTES_MAX}: make it a tensor")]
    Extra(usize),
}

/// Named tensors, a revision, and bytes that travel along.
#[derive(Debug, Default)]
pub struct SharedState {
    outline: Outline,
    /// In the order of the outline.
    memory: Vec<Memory>,
    revision: Option<Revision>,
    extra: Vec<u8>,
    torn: bool,
    /// Whether a group agreed on this revision once.
    was_agreed: bool,
    /// Leaves that were hashed so far, for those who want to know what a call costs.
    hashed: AtomicU64,
}

impl SharedState {
    /// A state without tensors, and with nothing to give.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor.
    pub fn insert<T: Element>(
        &mut self,
        key: &str,
        elements: Vec<T>,
        shape: &[u64],
    ) -> Result<(), StateError> {
        let info = TensorInfo::new(key, T::DATA_TYPE, shape.iter().copied());
        let count = elements.len() as u64;
        self.add(info, count, Memory::own(elements))
    }

    /// Adds a tensor whose memory belongs to somebody else; `owner` keeps it, and is dropped with the state. Two tensors may
    /// be the very same memory, as tied weights are. Then the state can only become one in which they are equal.
    ///
    /// # Safety
    /// `start` is the beginning of as many bytes as `info` says, readable and writable from any thread as long as
    /// `owner` lives. Nobody else touches them while the state is borrowed by a call; a change by somebody else between
    /// calls is what a state is for.
    pub unsafe fn insert_raw(
        &mut self,
        info: TensorInfo,
        start: *mut u8,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<(), StateError> {
        let bytes = info.bytes().unwrap_or(u64::MAX);
        let count = bytes / info.data_type.size() as u64;
        // SAFETY: the caller promises it.
        let memory = unsafe { Memory::lent(start, bytes as usize, owner) };
        if let Some(other) = self.partly_shares(&memory) {
            let (key, other) = (info.key, other.to_owned());
            return Err(StateError::Overlap { key, other });
        }
        self.add(info, count, memory)
    }

    fn add(&mut self, info: TensorInfo, elements: u64, memory: Memory) -> Result<(), StateError> {
        let expected = info.bytes().map(|bytes| bytes / info.data_type.size() as u64);
        if let Some(expected) = expected.filter(|expected| *expected != elements) {
            let (key, shape) = (info.key, info.shape);
            return Err(StateError::Shape { key, shape, expected, elements });
        }
        let place = self.outline.insert(info)?;
        self.memory.insert(place, memory);
        Ok(())
    }

    /// Says that the contents of this tensor are each member's own affair: they are neither compared nor moved.
    pub fn set_may_differ(&mut self, key: &str) -> Result<(), StateError> {
        Ok(self.outline.set_may_differ(key)?)
    }

    /// Keys, types and shapes.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// The version of the contents; none if there is nothing to give.
    pub fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// Says which version the contents are. On a torn state it means that the program has made it whole by itself.
    pub fn set_revision(&mut self, revision: Option<Revision>) {
        self.torn &= revision.is_none();
        self.was_agreed &= revision == self.revision;
        self.revision = revision;
    }

    /// The group agreed on this revision of it.
    pub(crate) fn set_agreed(&mut self, revision: Revision) {
        (self.revision, self.torn, self.was_agreed) = (Some(revision), false, true);
    }

    /// Whether a group agreed on this revision once: by a sync, a committed step, or before it was saved.
    pub(crate) fn was_agreed(&self) -> bool {
        self.was_agreed
    }

    /// The program changes it from here on: until it is said to be whole again it is torn.
    pub(crate) fn begin_change(&mut self) {
        (self.revision, self.torn, self.was_agreed) = (None, true, false);
    }

    /// A copy with memory of its own.
    pub(crate) fn copy(&self) -> Self {
        let memory = self.memory.iter().map(|memory| Memory::own(memory.bytes().to_vec())).collect();
        let (outline, extra) = (self.outline.clone(), self.extra.clone());
        let (revision, torn, was_agreed) = (self.revision, self.torn, self.was_agreed);
        Self { outline, memory, revision, extra, torn, was_agreed, hashed: AtomicU64::new(0) }
    }

    /// Whether a heal was aborted in the middle: some of it is new, some old.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// Bytes that travel along with the revision.
    pub fn extra(&self) -> &[u8] {
        &self.extra
    }

    /// Changes the bytes that travel along.
    pub fn set_extra(&mut self, extra: impl Into<Vec<u8>>) -> Result<(), StateError> {
        let extra = extra.into();
        if extra.len() > STATE_EXTRA_BYTES_MAX {
            return Err(StateError::Extra(extra.len()));
        }
        self.extra = extra;
        Ok(())
    }

    /// The same in exchange for those before: whoever writes them anew every time needs no new memory.
    pub(crate) fn swap_extra(&mut self, extra: &mut Vec<u8>) -> Result<(), StateError> {
        if extra.len() > STATE_EXTRA_BYTES_MAX {
            return Err(StateError::Extra(extra.len()));
        }
        std::mem::swap(&mut self.extra, extra);
        Ok(())
    }

    /// The elements of a tensor, if there is one of that key and type.
    pub fn get<T: Element>(&self, key: &str) -> Option<&[T]> {
        let place = self.place::<T>(key)?;
        elements(self.memory[place].bytes())
    }

    /// The same, to be changed.
    pub fn get_mut<T: Element>(&mut self, key: &str) -> Option<&mut [T]> {
        let place = self.place::<T>(key)?;
        let bytes = self.memory[place].bytes_mut();
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        if length == 0 {
            return Some(&mut []);
        }
        // SAFETY: as long as the borrow of `self`; every pattern of bits is a value of an element type, but for truth values,
        // which `place` has looked at; the alignment is checked.
        start
            .cast::<T>()
            .is_aligned()
            .then(|| unsafe { std::slice::from_raw_parts_mut(start.cast::<T>(), length / size_of::<T>()) })
    }

    fn place<T: Element>(&self, key: &str) -> Option<usize> {
        let place = self.outline.place(key).ok()?;
        // A byte that is neither zero nor one is no truth value; other programs may have put it there.
        let valid = T::DATA_TYPE != DataType::Bool || self.memory[place].bytes().iter().all(|byte| *byte < 2);
        (self.outline.tensors()[place].data_type == T::DATA_TYPE && valid).then_some(place)
    }

    /// The hashes of all leaves that are compared. `None` if `stop` said so on the way; it is asked on this thread only.
    pub(crate) fn hashes(&self, stop: &dyn Fn() -> bool) -> Option<Vec<Digest>> {
        self.hashes_of(&Leaves::of(&self.outline), stop)
    }

    fn hashes_of(&self, leaves: &Leaves, stop: &dyn Fn() -> bool) -> Option<Vec<Digest>> {
        let places = (0..leaves.len()).filter_map(|number| leaves.get(number));
        let slices: Vec<_> = places.map(|leaf| &self.memory[leaf.tensor].bytes()[leaf.bytes]).collect();
        self.hashed.fetch_add(slices.len() as u64, Ordering::Relaxed);
        hashing::hash_leaves(&slices, hashing::threads_for(leaves.bytes() as usize), stop)
    }

    /// How many leaves were hashed so far, by whatever call. For tests of what a sync costs.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn leaves_hashed(&self) -> u64 {
        self.hashed.load(Ordering::Relaxed)
    }

    /// The digest of everything: keys, shapes, contents, also of what may differ, and the extra bytes. Equal digests mean
    /// equal states.
    pub fn digest(&self) -> u128 {
        let strict = self.outline.strict();
        let hashes = self.hashes_of(&Leaves::of(&strict), &|| false).unwrap_or_default();
        u128::from_le_bytes(*tree::root(strict.digest(), &self.extra, &hashes).as_bytes())
    }
}

fn elements<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    if bytes.is_empty() {
        return Some(&[]);
    }
    let start = bytes.as_ptr().cast::<T>();
    // SAFETY: as in `get_mut`.
    start.is_aligned().then(|| unsafe { std::slice::from_raw_parts(start, bytes.len() / size_of::<T>()) })
}
