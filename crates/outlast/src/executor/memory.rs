//! The caller's tensors, as one list of bytes.
//!
//! Several tensors are reduced as if they lay one behind the other; they are never copied together. A plan
//! speaks of ranges in that list, this page finds the pieces. Nearly every block lies within one tensor, and
//! then sending and receiving touch the tensor itself.
//!
//! The driver of a data plane may be another thread than the caller, so the tensors are held as pointers. What
//! makes that sound is ownership: a [`Region`] is part of an operation, the operation is handed to the engine
//! and back, and the call returns only with the operation in its hands (rule 15).

use outlast_kernels::{Element, Reduction, combine, combine_assign, copy_aside, divide};
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

/// What one operation reads and writes, borrowed for as long as it runs.
#[derive(Debug)]
pub struct Buffers<'a> {
    region: Region,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> Buffers<'a> {
    /// Each tensor is read and then overwritten with its result.
    pub fn in_place(tensors: impl IntoIterator<Item = &'a mut [u8]>) -> Self {
        let tensors = tensors.into_iter().map(|tensor| (tensor.as_ptr(), tensor.as_mut_ptr(), tensor.len()));
        Self { region: Region::new(tensors), borrowed: PhantomData }
    }

    /// Each input is read, and its result is written to the output of the same place in the list.
    ///
    /// # Panics
    /// If the lists or the buffers of a pair differ in length.
    pub fn out_of_place(
        inputs: impl IntoIterator<Item = &'a [u8]>,
        outputs: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Self {
        let mut inputs = inputs.into_iter();
        let mut outputs = outputs.into_iter();
        let pairs = std::iter::from_fn(|| match (inputs.next(), outputs.next()) {
            (Some(input), Some(output)) => {
                assert_eq!(input.len(), output.len(), "an output has the length of its input");
                Some((input.as_ptr(), output.as_mut_ptr(), output.len()))
            }
            (None, None) => None,
            _ => panic!("there is one output for each input"),
        });
        Self { region: Region::new(pairs), borrowed: PhantomData }
    }

    /// The same from pointers: (input, output, bytes) of each tensor. Input and output are equal for a tensor
    /// that is reduced in place.
    ///
    /// # Safety
    /// Inputs are readable and outputs writable for `'a`, nobody else writes to either or reads outputs in
    /// that time, and no output overlaps another tensor's input or output, or its own input except by being
    /// the same.
    pub unsafe fn from_raw(tensors: impl IntoIterator<Item = (*const u8, *mut u8, usize)>) -> Self {
        Self { region: Region::new(tensors.into_iter()), borrowed: PhantomData }
    }

    /// Bytes of each tensor.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.region.tensors.iter().map(|tensor| tensor.end - tensor.start)
    }

    pub(super) fn into_region(self) -> Region {
        self.region
    }
}

#[derive(Clone, Copy, Debug)]
struct Tensor {
    input: *const u8,
    output: *mut u8,
    /// Where it lies in the list of all bytes.
    start: usize,
    end: usize,
}

/// The tensors of one operation. See the module's essay for who may touch it when.
#[derive(Debug)]
pub(super) struct Region {
    tensors: Vec<Tensor>,
}

// SAFETY: the pointers come from borrows that outlive the operation (see `Buffers`), and the region has one
// owner at a time: it is moved between threads, never shared.
unsafe impl Send for Region {}

impl Region {
    fn new(tensors: impl Iterator<Item = (*const u8, *mut u8, usize)>) -> Self {
        let mut start = 0;
        let place = |(input, output, bytes)| {
            let tensor = Tensor { input, output, start, end: start + bytes };
            start = tensor.end;
            tensor
        };
        Self { tensors: tensors.map(place).collect() }
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> usize {
        self.tensors.last().map_or(0, |tensor| tensor.end)
    }

    /// The index of the tensor that holds byte `at`.
    fn at(&self, at: usize) -> usize {
        self.tensors.partition_point(|tensor| tensor.end <= at)
    }

    /// The input bytes of `range`, if they lie in one tensor.
    pub(super) fn input(&self, range: &Range<usize>) -> Option<&[u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        let tensor = self.tensors.get(self.at(range.start))?;
        // SAFETY: within the tensor, which is borrowed for as long as the region lives. Outputs that are the
        // same memory are only written through `&mut self`.
        (range.end <= tensor.end).then(|| unsafe {
            slice::from_raw_parts(tensor.input.add(range.start - tensor.start), range.len())
        })
    }

    /// The output bytes of `range`, if they lie in one tensor.
    pub(super) fn output(&self, range: &Range<usize>) -> Option<&[u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        let tensor = self.tensors.get(self.at(range.start))?;
        // SAFETY: as for `input`.
        (range.end <= tensor.end).then(|| unsafe {
            slice::from_raw_parts(tensor.output.add(range.start - tensor.start), range.len())
        })
    }

    /// The output bytes of `range` to write to, if they lie in one tensor.
    pub(super) fn output_mut(&mut self, range: &Range<usize>) -> Option<&mut [u8]> {
        if range.is_empty() {
            return Some(&mut []);
        }
        let tensor = self.tensors.get(self.at(range.start))?;
        // SAFETY: within the tensor, which is borrowed mutably for as long as the region lives.
        (range.end <= tensor.end).then(|| unsafe {
            slice::from_raw_parts_mut(tensor.output.add(range.start - tensor.start), range.len())
        })
    }

    /// Calls `visit` with each piece of `range`: its input, its output, and its place within the range.
    fn pieces(&mut self, range: &Range<usize>, mut visit: impl FnMut(*const u8, *mut u8, Range<usize>)) {
        let mut at = range.start;
        while at < range.end {
            let tensor = self.tensors[self.at(at)];
            let end = tensor.end.min(range.end);
            let inside = at - tensor.start;
            // SAFETY: `inside` is below the tensor's length.
            let (input, output) = unsafe { (tensor.input.add(inside), tensor.output.add(inside)) };
            visit(input, output, at - range.start..end - range.start);
            at = end;
        }
    }

    /// Copies the inputs of `range` to `target`.
    pub(super) fn gather_input(&mut self, range: &Range<usize>, target: &mut [u8]) {
        self.pieces(range, |input, _, place| {
            // SAFETY: the piece is readable (see `pieces`) and nobody writes to it now.
            target[place.clone()].copy_from_slice(unsafe { slice::from_raw_parts(input, place.len()) });
        });
    }

    /// Copies the outputs of `range` to `target`.
    pub(super) fn gather_output(&mut self, range: &Range<usize>, target: &mut [u8]) {
        self.pieces(range, |_, output, place| {
            // SAFETY: as above.
            target[place.clone()].copy_from_slice(unsafe { slice::from_raw_parts(output, place.len()) });
        });
    }

    /// Adds the inputs of `range` to `sum`.
    pub(super) fn add_input(&mut self, element: Element, range: &Range<usize>, sum: &mut [u8]) {
        self.pieces(range, |input, _, place| {
            // SAFETY: as above.
            combine_assign(element, Reduction::Sum, &mut sum[place.clone()], unsafe {
                slice::from_raw_parts(input, place.len())
            });
        });
    }

    /// Writes the inputs of `range` plus `partial` to its outputs, divided by `divisor` if there is one.
    pub(super) fn finish_sum(
        &mut self,
        element: Element,
        range: &Range<usize>,
        partial: &[u8],
        divisor: Option<u32>,
    ) {
        self.pieces(range, |input, output, place| {
            // SAFETY: the output is writable and nobody else has a reference into it now; the input is only
            // referred to where it is other memory.
            let output_bytes = unsafe { slice::from_raw_parts_mut(output, place.len()) };
            if input == output.cast_const() {
                combine_assign(element, Reduction::Sum, output_bytes, &partial[place.clone()]);
            } else {
                // SAFETY: readable, and disjoint from the output (the promise of `Buffers`).
                let input = unsafe { slice::from_raw_parts(input, place.len()) };
                combine(element, Reduction::Sum, output_bytes, &partial[place.clone()], input);
            }
            if let Some(divisor) = divisor {
                divide(element, output_bytes, divisor);
            }
        });
    }

    /// Writes `bytes` to the outputs of `range`.
    pub(super) fn store(&mut self, range: &Range<usize>, bytes: &[u8]) {
        self.pieces(range, |_, output, place| {
            // SAFETY: the output is writable and nobody else has a reference into it now.
            let output = unsafe { slice::from_raw_parts_mut(output, place.len()) };
            output.copy_from_slice(&bytes[place]);
        });
    }

    /// Copies the outputs of `range` to `target`, which nobody reads unless the operation is undone.
    pub(super) fn save(&mut self, range: &Range<usize>, target: &mut [u8]) {
        self.pieces(range, |_, output, place| {
            // SAFETY: as in `gather_output`.
            copy_aside(&mut target[place.clone()], unsafe { slice::from_raw_parts(output, place.len()) });
        });
    }

    /// Copies inputs to outputs: the reduction over one contributor.
    pub(super) fn pass_through(&mut self) {
        let everything = 0..self.bytes();
        self.pieces(&everything, |input, output, place| {
            if input != output.cast_const() {
                // SAFETY: both are valid for the piece and disjoint (the promise of `Buffers`).
                unsafe { std::ptr::copy_nonoverlapping(input, output, place.len()) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_several_tensors_make_one_list() {
        let mut tensors = [vec![1_u8, 2], vec![], vec![3], vec![4, 5, 6, 7]];
        let mut region = Buffers::in_place(tensors.iter_mut().map(Vec::as_mut_slice)).into_region();
        assert_eq!(region.bytes(), 7);
        let mut all = [0; 7];
        region.gather_input(&(0..7), &mut all);
        assert_eq!(all, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(region.input(&(1..3)), None, "two tensors are not one slice");
        assert_eq!(region.input(&(2..3)), Some(&[3][..]));
        assert_eq!(region.output(&(3..7)), Some(&[4, 5, 6, 7][..]));
        assert_eq!(region.input(&(7..7)), Some(&[][..]));
        let mut saved = [0; 4];
        region.save(&(1..5), &mut saved);
        region.store(&(1..5), &[20, 30, 40, 50]);
        region.gather_output(&(0..7), &mut all);
        assert_eq!((all, saved), ([1, 20, 30, 40, 50, 6, 7], [2, 3, 4, 5]));
    }
}
