//! The memory of a call: typed slices for Rust programs, pointers and a type for everybody else.
//!
//! Every collective reads some tensors and writes some; what differs between types is a number in the
//! fingerprint. So there is one untyped form, [`CallBuffers`], and the typed methods of the communicator are a
//! thin layer that makes one from slices. Bindings to other languages make theirs from pointers.

use crate::executor::Buffers;
use half::{bf16, f16};
use outlast_proto::collective::{DataType, Layout};
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
}

/// An element type that the kernels know.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its name on the wire.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($element:ty => $data_type:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $element {}
            impl Element for $element {
                const DATA_TYPE: DataType = DataType::$data_type;
            }
            const _: () = assert!(size_of::<$element>() == DataType::$data_type.size());
        )*
    };
}

elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    bool => Bool, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
}

/// What one call reads and writes, whatever its type. Borrowed until the call returns.
///
/// A collective says which lists it wants: a reduction in place has the same memory in both, a broadcast reads
/// at its root and writes elsewhere. The lists of the other roles stay empty.
#[derive(Debug)]
pub struct CallBuffers<'a> {
    data_type: DataType,
    /// Address and elements of each.
    inputs: Vec<(*const u8, usize)>,
    outputs: Vec<(*mut u8, usize)>,
    /// How the tensors lie in memory; empty if all are flat.
    layouts: Vec<Layout>,
    borrowed: PhantomData<&'a mut [u8]>,
}

// SAFETY: the pointers stand for borrows of plain memory, which may be used from any thread as long as they
// last; whoever makes them from raw pointers promises as much.
unsafe impl Send for CallBuffers<'_> {}

impl<'a> CallBuffers<'a> {
    /// Nothing to read, nothing to write.
    pub fn none(data_type: DataType) -> Self {
        let (inputs, outputs, layouts) = (Vec::new(), Vec::new(), Vec::new());
        Self { data_type, inputs, outputs, layouts, borrowed: PhantomData }
    }

    /// Each tensor is read, and then overwritten with its result.
    pub fn in_place<T: Element>(tensors: impl IntoIterator<Item = &'a mut [T]>) -> Self {
        let mut buffers = Self::none(T::DATA_TYPE);
        for tensor in tensors {
            let (start, elements) = (tensor.as_mut_ptr().cast::<u8>(), tensor.len());
            buffers.inputs.push((start, elements));
            buffers.outputs.push((start, elements));
        }
        buffers
    }

    /// Inputs are read, results are written to the outputs.
    pub fn out_of_place<T: Element>(
        inputs: impl IntoIterator<Item = &'a [T]>,
        outputs: impl IntoIterator<Item = &'a mut [T]>,
    ) -> Self {
        let mut buffers = Self::none(T::DATA_TYPE);
        buffers.inputs.extend(inputs.into_iter().map(|tensor| (tensor.as_ptr().cast(), tensor.len())));
        let outputs = outputs.into_iter().map(|tensor| (tensor.as_mut_ptr().cast(), tensor.len()));
        buffers.outputs.extend(outputs);
        buffers
    }

    /// The same from addresses and numbers of elements. An input and an output may be the same memory where the
    /// collective works in place: for a reduction the whole tensor, for a gathering or scattering one the part
    /// that belongs to this member's rank, for an all-to-all the whole.
    ///
    /// # Safety
    /// Inputs are readable and outputs writable for `'a`, from any thread; nobody else writes to either or
    /// reads outputs in that time; and no two of them overlap except as above. Any alignment will do.
    pub unsafe fn from_raw(
        data_type: DataType,
        inputs: impl IntoIterator<Item = (*const u8, usize)>,
        outputs: impl IntoIterator<Item = (*mut u8, usize)>,
    ) -> Self {
        let (inputs, outputs) = (inputs.into_iter().collect(), outputs.into_iter().collect());
        Self { data_type, inputs, outputs, layouts: Vec::new(), borrowed: PhantomData }
    }

    /// The same with tensors that lie in memory like this, one layout for each. Members whose layouts differ are told so
    /// (rule 7): elements meet in the order of memory.
    #[must_use]
    pub fn laid_out(mut self, layouts: impl IntoIterator<Item = Layout>) -> Self {
        self.layouts = layouts.into_iter().collect();
        self
    }

    /// How the tensors lie in memory; empty if all are flat.
    pub(super) fn layouts(&self) -> Vec<Layout> {
        self.layouts.clone()
    }

    /// Forgets the lists that are not wanted.
    pub(super) fn keep(&mut self, inputs: bool, outputs: bool) {
        if !inputs {
            self.inputs.clear();
        }
        if !outputs {
            self.outputs.clear();
        }
    }

    /// The elements' type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Elements of each input.
    pub(super) fn input_counts(&self) -> impl ExactSizeIterator<Item = usize> {
        self.inputs.iter().map(|(_, elements)| *elements)
    }

    /// Elements of each output.
    pub(super) fn output_counts(&self) -> impl ExactSizeIterator<Item = usize> {
        self.outputs.iter().map(|(_, elements)| *elements)
    }

    /// The memory for one attempt.
    ///
    /// # Safety
    /// The attempt before, and its `Performed`, are over.
    pub(super) unsafe fn attempt(&self) -> Buffers<'a> {
        let (inputs, outputs) = self.bytes();
        // SAFETY: what was promised for `'a` when `self` was made; one attempt at a time has the memory.
        unsafe { Buffers::from_raw(inputs, outputs) }
    }

    /// Address and bytes of each input and of each output.
    pub(super) fn bytes(
        &self,
    ) -> (impl Iterator<Item = (*const u8, usize)>, impl Iterator<Item = (*mut u8, usize)>) {
        let size = self.data_type.size();
        let inputs = self.inputs.iter().map(move |(start, elements)| (*start, elements * size));
        let outputs = self.outputs.iter().map(move |(start, elements)| (*start, elements * size));
        (inputs, outputs)
    }

    /// Makes the output of so many bytes what is at that place of the input. They may be the same memory.
    pub(super) fn keep_part_of_input(&mut self, at: usize, bytes: usize) {
        let size = self.data_type.size();
        if let ([(input, reads)], [(output, writes)]) = (&self.inputs[..], &self.outputs[..]) {
            assert!(
                at + bytes <= reads * size && bytes == writes * size,
                "a part of the input as the output"
            );
            // SAFETY: both are borrowed for as long as `self`, of the sizes that were just compared; no attempt is
            // under way.
            unsafe { std::ptr::copy(input.add(at), *output, bytes) };
        }
    }

    /// The bytes of each output. Nobody else holds the memory between attempts.
    pub(super) fn results(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let size = self.data_type.size();
        self.outputs.iter().map(move |(start, elements)| {
            // SAFETY: writable for as long as `self` is borrowed, and no attempt is under way: the call is over.
            unsafe { std::slice::from_raw_parts_mut(*start, elements * size) }
        })
    }
}
