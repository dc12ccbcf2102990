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
    pub trait Owned {}
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

/// Where the elements of one tensor are.
#[derive(Clone, Copy, Debug)]
struct Span<P> {
    data_type: DataType,
    start: P,
    elements: usize,
}

impl<P: Copy> Span<P> {
    fn bytes(&self) -> usize {
        self.elements * self.data_type.size()
    }

    /// Address and bytes.
    fn parts(&self) -> (P, usize) {
        (self.start, self.bytes())
    }
}

/// A tensor of any type to read from. Slices of every [`Element`] convert into it, so that one list can hold several types.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    span: Span<*const u8>,
    borrowed: PhantomData<&'a [u8]>,
}

/// A tensor of any type to write to, or to reduce in place. Slices of every [`Element`] convert into it, so that one list
/// can hold several types.
#[derive(Debug)]
pub struct TensorMut<'a> {
    span: Span<*mut u8>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a, T: Element> From<&'a [T]> for Tensor<'a> {
    fn from(slice: &'a [T]) -> Self {
        let span = Span { data_type: T::DATA_TYPE, start: slice.as_ptr().cast(), elements: slice.len() };
        Self { span, borrowed: PhantomData }
    }
}

impl<'a, T: Element> From<&'a &[T]> for Tensor<'a> {
    fn from(slice: &'a &[T]) -> Self {
        Self::from(*slice)
    }
}

impl<'a, T: Element> From<&'a mut [T]> for TensorMut<'a> {
    fn from(slice: &'a mut [T]) -> Self {
        let span = Span { data_type: T::DATA_TYPE, start: slice.as_mut_ptr().cast(), elements: slice.len() };
        Self { span, borrowed: PhantomData }
    }
}

#[expect(clippy::mut_mut, reason = "this is what iterating over a slice of slices gives")]
impl<'a, T: Element> From<&'a mut &mut [T]> for TensorMut<'a> {
    fn from(slice: &'a mut &mut [T]) -> Self {
        Self::from(&mut **slice)
    }
}

/// Tensors that a call in the background owns meanwhile. A `Vec` of elements is one tensor, a `Vec` of such is a list of one
/// type, and a tuple of any of these is a list of several: first all tensors of the first, then those of the second.
pub trait TensorList: sealed::Owned {
    /// Each of them, in the order that all members have.
    fn tensors(&mut self) -> Vec<TensorMut<'_>>;
}

impl<T: Element> sealed::Owned for Vec<T> {}
impl<T: Element> TensorList for Vec<T> {
    fn tensors(&mut self) -> Vec<TensorMut<'_>> {
        vec![TensorMut::from(self.as_mut_slice())]
    }
}

impl<T: Element> sealed::Owned for Vec<Vec<T>> {}
impl<T: Element> TensorList for Vec<Vec<T>> {
    fn tensors(&mut self) -> Vec<TensorMut<'_>> {
        self.iter_mut().map(|tensor| TensorMut::from(tensor.as_mut_slice())).collect()
    }
}

macro_rules! lists_side_by_side {
    ($($list:ident)+) => {
        impl<$($list: TensorList),+> sealed::Owned for ($($list,)+) {}
        impl<$($list: TensorList),+> TensorList for ($($list,)+) {
            fn tensors(&mut self) -> Vec<TensorMut<'_>> {
                #[expect(non_snake_case, reason = "each list is named as its type is")]
                let ($($list,)+) = self;
                let mut tensors = Vec::new();
                $(tensors.extend($list.tensors());)+
                tensors
            }
        }
    };
}

lists_side_by_side! { A B }
lists_side_by_side! { A B C }
lists_side_by_side! { A B C D }
lists_side_by_side! { A B C D E }
lists_side_by_side! { A B C D E F }

/// What one call reads and writes, whatever its type. Borrowed until the call returns.
///
/// A collective says which lists it wants: a reduction in place has the same memory in both, a broadcast reads
/// at its root and writes elsewhere. The lists of the other roles stay empty.
#[derive(Debug)]
pub struct CallBuffers<'a> {
    inputs: Vec<Span<*const u8>>,
    outputs: Vec<Span<*mut u8>>,
    /// How the tensors lie in memory; empty if all are flat.
    layouts: Vec<Layout>,
    borrowed: PhantomData<&'a mut [u8]>,
}

// SAFETY: the pointers stand for borrows of plain memory, which may be used from any thread as long as they
// last; whoever makes them from raw pointers promises as much.
unsafe impl Send for CallBuffers<'_> {}

impl<'a> CallBuffers<'a> {
    /// Nothing to read, nothing to write.
    pub fn none() -> Self {
        Self { inputs: Vec::new(), outputs: Vec::new(), layouts: Vec::new(), borrowed: PhantomData }
    }

    /// Each tensor is read, and then overwritten with its result.
    pub fn in_place(tensors: impl IntoIterator<Item: Into<TensorMut<'a>>>) -> Self {
        let outputs: Vec<_> = tensors.into_iter().map(|tensor| tensor.into().span).collect();
        let read = |span: &Span<*mut u8>| Span {
            data_type: span.data_type,
            start: span.start.cast_const(),
            elements: span.elements,
        };
        Self { inputs: outputs.iter().map(read).collect(), outputs, ..Self::none() }
    }

    /// Inputs are read, results are written to the outputs.
    pub fn out_of_place(
        inputs: impl IntoIterator<Item: Into<Tensor<'a>>>,
        outputs: impl IntoIterator<Item: Into<TensorMut<'a>>>,
    ) -> Self {
        let inputs = inputs.into_iter().map(|tensor| tensor.into().span).collect();
        let outputs = outputs.into_iter().map(|tensor| tensor.into().span).collect();
        Self { inputs, outputs, ..Self::none() }
    }

    /// The same from types, addresses and numbers of elements. An input and an output may be the same memory where the
    /// collective works in place: for a reduction the whole tensor, for a gathering or scattering one the part
    /// that belongs to this member's rank, for an all-to-all the whole.
    ///
    /// # Safety
    /// Inputs are readable and outputs writable for `'a`, from any thread; nobody else writes to either or
    /// reads outputs in that time; and no two of them overlap except as above. Any alignment will do.
    pub unsafe fn from_raw(
        inputs: impl IntoIterator<Item = (DataType, *const u8, usize)>,
        outputs: impl IntoIterator<Item = (DataType, *mut u8, usize)>,
    ) -> Self {
        fn span<P>((data_type, start, elements): (DataType, P, usize)) -> Span<P> {
            Span { data_type, start, elements }
        }
        let inputs = inputs.into_iter().map(span).collect();
        Self { inputs, outputs: outputs.into_iter().map(span).collect(), ..Self::none() }
    }

    /// The same with tensors that lie in memory like this, one layout for each. Members whose layouts differ are told so
    /// (rule 7): elements meet in the order of memory.
    #[must_use]
    pub fn laid_out(mut self, layouts: impl IntoIterator<Item = Layout>) -> Self {
        self.layouts = layouts.into_iter().collect();
        self
    }

    /// One more tensor that is reduced in place, behind the others. It is flat.
    pub(crate) fn push_in_place(&mut self, tensor: TensorMut<'a>) {
        let Span { data_type, start, elements } = tensor.span;
        if !self.layouts.is_empty() {
            self.layouts.push(Layout::default());
        }
        self.inputs.push(Span { data_type, start: start.cast_const(), elements });
        self.outputs.push(tensor.span);
    }

    /// What each input holds.
    pub(crate) fn input_bytes(&self) -> impl Iterator<Item = (DataType, &[u8])> {
        self.inputs.iter().map(|span| {
            let bytes = match span.bytes() {
                0 => &[][..],
                // SAFETY: readable for as long as `self` is borrowed; no attempt is under way.
                bytes => unsafe { std::slice::from_raw_parts(span.start, bytes) },
            };
            (span.data_type, bytes)
        })
    }

    /// The inputs are read from there instead; as many tensors of the same lengths.
    pub(crate) fn read_from(&mut self, copies: &'a [Vec<u8>]) {
        for (span, copy) in self.inputs.iter_mut().zip(copies) {
            assert_eq!(span.bytes(), copy.len(), "a copy is as long as what it is a copy of");
            span.start = copy.as_ptr();
        }
    }

    /// Type and bytes of each output, to be changed once the call is over.
    pub(crate) fn output_bytes(&mut self) -> impl Iterator<Item = (DataType, &mut [u8])> {
        let types: Vec<_> = self.outputs.iter().map(|span| span.data_type).collect();
        types.into_iter().zip(self.results())
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

    /// Type and number of elements of each input.
    pub(super) fn inputs(&self) -> impl ExactSizeIterator<Item = (DataType, usize)> {
        self.inputs.iter().map(|span| (span.data_type, span.elements))
    }

    /// Type and number of elements of each output.
    pub(super) fn outputs(&self) -> impl ExactSizeIterator<Item = (DataType, usize)> {
        self.outputs.iter().map(|span| (span.data_type, span.elements))
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
        (self.inputs.iter().map(Span::parts), self.outputs.iter().map(Span::parts))
    }

    /// Makes the output of so many bytes what is at that place of the input. They may be the same memory.
    pub(super) fn keep_part_of_input(&mut self, at: usize, bytes: usize) {
        if let ([input], [output]) = (&self.inputs[..], &self.outputs[..]) {
            assert!(
                at + bytes <= input.bytes() && bytes == output.bytes(),
                "a part of the input as the output"
            );
            // SAFETY: both are borrowed for as long as `self`, of the sizes that were just compared; no attempt is
            // under way.
            unsafe { std::ptr::copy(input.start.add(at), output.start, bytes) };
        }
    }

    /// A truth value is zero or one, whatever a peer of another language meant by it.
    pub(super) fn make_truth_values_plain(&mut self) {
        let is_truth: Vec<_> = self.outputs.iter().map(|span| span.data_type == DataType::Bool).collect();
        for (bytes, _) in self.results().zip(is_truth).filter(|(_, is_truth)| *is_truth) {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
    }

    /// The bytes of each output. Nobody else holds the memory between attempts.
    pub(super) fn results(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.outputs.iter().map(|span| {
            match span.bytes() {
                0 => &mut [][..],
                // SAFETY: writable for as long as `self` is borrowed, and no attempt is under way: the call is over.
                bytes => unsafe { std::slice::from_raw_parts_mut(span.start, bytes) },
            }
        })
    }
}
