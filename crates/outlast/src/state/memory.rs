//! The bytes of a tensor, whoever owns them.

use std::any::Any;
use std::ops::Range;

/// Memory that stays where it is for as long as this lives. All access goes through the state that holds it.
pub(super) struct Memory {
    start: *mut u8,
    bytes: usize,
    /// What keeps the memory.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: plain memory, kept by an owner that is `Send`; who may write when is decided by borrows of the state.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory of our own.
    pub(super) fn own<T: Copy + Send + Sync + 'static>(mut elements: Vec<T>) -> Self {
        let (start, bytes) = (elements.as_mut_ptr().cast::<u8>(), size_of_val(&elements[..]));
        Self { start, bytes, _owner: Box::new(elements) }
    }

    /// Memory that somebody lends.
    ///
    /// # Safety
    /// As [`super::SharedState::insert_raw`] says.
    pub(super) unsafe fn lent(start: *mut u8, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { start, bytes, _owner: owner }
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: readable for as long as the owner lives, which is as long as `self`; nobody writes meanwhile,
        // because that takes a `&mut` of the state, or the promise of `lent`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Its bytes, to be changed.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as above, and writable; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    /// Where it is.
    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The addresses of its bytes.
    pub(super) fn range(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.bytes
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}
