//! The caller's tensors, as one list of bytes to read and one to write.
//!
//! Several tensors are reduced as if they lay one behind the other; they are never copied together. A plan
//! speaks of ranges in those lists, this page finds the pieces. Nearly every block lies within one tensor, and
//! then sending and receiving touch the tensor itself.
//!
//! An input and an output may be the same memory, if they are so piece by piece: what is written to a place was
//! read from the same place, or nobody reads it any more.
//!
//! The driver of a data plane may be another thread than the caller, so the tensors are held as pointers. What
//! makes that sound is ownership: a [`Region`] is part of an operation, the operation is handed to the engine
//! and back, and the call returns only with the operation in its hands (rule 15).

use super::arithmetic::Kernel;
use outlast_kernels::copy_aside;
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
        let tensors: Vec<_> = tensors.into_iter().map(|tensor| (tensor.as_mut_ptr(), tensor.len())).collect();
        let inputs = tensors.iter().map(|(start, bytes)| (start.cast_const(), *bytes));
        Self { region: Region::new(inputs, tensors.iter().copied()), borrowed: PhantomData }
    }

    /// Inputs are read, results are written to the outputs.
    pub fn out_of_place(
        inputs: impl IntoIterator<Item = &'a [u8]>,
        outputs: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Self {
        let inputs = inputs.into_iter().map(|input| (input.as_ptr(), input.len()));
        let outputs = outputs.into_iter().map(|output| (output.as_mut_ptr(), output.len()));
        Self { region: Region::new(inputs, outputs), borrowed: PhantomData }
    }

    /// The same from pointers and their bytes. An input may be the same memory as an output, where the
    /// collective works in place.
    ///
    /// # Safety
    /// Inputs are readable and outputs writable for `'a`, nobody else writes to either or reads outputs in
    /// that time, and they do not overlap in any other way.
    pub unsafe fn from_raw(
        inputs: impl IntoIterator<Item = (*const u8, usize)>,
        outputs: impl IntoIterator<Item = (*mut u8, usize)>,
    ) -> Self {
        Self { region: Region::new(inputs.into_iter(), outputs.into_iter()), borrowed: PhantomData }
    }

    pub(super) fn into_region(self) -> Region {
        self.region
    }
}

/// One tensor, and where it lies in the list of all bytes.
#[derive(Clone, Copy, Debug)]
struct Tensor<P> {
    address: P,
    start: usize,
    end: usize,
}

/// The tensors of one operation. See the module's essay for who may touch it when.
#[derive(Debug)]
pub(super) struct Region {
    inputs: Vec<Tensor<*const u8>>,
    outputs: Vec<Tensor<*mut u8>>,
}

// SAFETY: the pointers come from borrows that outlive the operation (see `Buffers`), and the region has one
// owner at a time: it is moved between threads, never shared.
unsafe impl Send for Region {}

impl<P: Copy> Tensor<P> {
    /// Where it is, and its bytes.
    fn parts(&self) -> (P, usize) {
        (self.address, self.end - self.start)
    }
}

fn place<P>(tensors: impl Iterator<Item = (P, usize)>) -> Vec<Tensor<P>> {
    let mut start = 0;
    let place = |(address, bytes)| {
        let tensor = Tensor { address, start, end: start + bytes };
        start = tensor.end;
        tensor
    };
    tensors.map(place).collect()
}

/// The tensor that holds byte `at`.
fn find<P: Copy>(tensors: &[Tensor<P>], at: usize) -> Option<Tensor<P>> {
    tensors.get(tensors.partition_point(|tensor| tensor.end <= at)).copied()
}

fn bytes<P>(tensors: &[Tensor<P>]) -> usize {
    tensors.last().map_or(0, |tensor| tensor.end)
}

impl Region {
    fn new(
        inputs: impl Iterator<Item = (*const u8, usize)>,
        outputs: impl Iterator<Item = (*mut u8, usize)>,
    ) -> Self {
        Self { inputs: place(inputs), outputs: place(outputs) }
    }

    /// Reads from another copy of all inputs, which lives as long as the operation.
    pub(super) fn replace_input(&mut self, copy: &[u8]) {
        let bytes = self.input_bytes();
        assert!(copy.len() >= bytes, "a copy of {} bytes for inputs of {bytes}", copy.len());
        self.inputs = place([(copy.as_ptr(), bytes)].into_iter());
    }

    /// Lays the tensors one behind the other in this order. It is for calls whose inputs and outputs are lists of the same
    /// tensors.
    pub(super) fn arrange(&mut self, order: &[usize]) {
        let lengths = (self.inputs.len(), self.outputs.len());
        assert_eq!(lengths, (order.len(), order.len()), "one input and one output for each tensor");
        self.inputs = place(order.iter().map(|at| self.inputs[*at].parts()));
        self.outputs = place(order.iter().map(|at| self.outputs[*at].parts()));
    }

    /// Whether all inputs are the same memory as the outputs.
    pub(super) fn is_in_place(&self) -> bool {
        self.inputs.len() == self.outputs.len()
            && self.inputs.iter().zip(&self.outputs).all(|(input, output)| {
                input.address == output.address.cast_const() && input.end == output.end
            })
    }

    /// Bytes of all inputs.
    pub(super) fn input_bytes(&self) -> usize {
        bytes(&self.inputs)
    }

    /// Bytes of all outputs.
    pub(super) fn output_bytes(&self) -> usize {
        bytes(&self.outputs)
    }

    /// The input bytes of `range`, if they lie in one tensor.
    pub(super) fn input(&self, range: &Range<usize>) -> Option<&[u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        let tensor = find(&self.inputs, range.start)?;
        // SAFETY: within the tensor, which is borrowed for as long as the region lives. Outputs that are the
        // same memory are only written through `&mut self`.
        (range.end <= tensor.end).then(|| unsafe {
            slice::from_raw_parts(tensor.address.add(range.start - tensor.start), range.len())
        })
    }

    /// The output bytes of `range`, if they lie in one tensor.
    pub(super) fn output(&self, range: &Range<usize>) -> Option<&[u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        let tensor = find(&self.outputs, range.start)?;
        // SAFETY: as for `input`.
        (range.end <= tensor.end).then(|| unsafe {
            slice::from_raw_parts(tensor.address.add(range.start - tensor.start), range.len())
        })
    }

    /// The output bytes of `range` to write to, if they lie in one tensor.
    pub(super) fn output_mut(&mut self, range: &Range<usize>) -> Option<&mut [u8]> {
        if range.is_empty() {
            return Some(&mut []);
        }
        let tensor = find(&self.outputs, range.start)?;
        // SAFETY: within the tensor, which is borrowed mutably for as long as the region lives.
        (range.end <= tensor.end).then(|| unsafe {
            slice::from_raw_parts_mut(tensor.address.add(range.start - tensor.start), range.len())
        })
    }

    /// Calls `visit` with each piece of the inputs of `range`, and its place within the range.
    fn read(&self, range: &Range<usize>, mut visit: impl FnMut(&[u8], Range<usize>)) {
        let mut at = range.start;
        while at < range.end {
            let tensor = find(&self.inputs, at).expect("a plan stays within its inputs");
            let end = tensor.end.min(range.end);
            // SAFETY: within the tensor, as in `input`.
            let piece = unsafe { slice::from_raw_parts(tensor.address.add(at - tensor.start), end - at) };
            visit(piece, at - range.start..end - range.start);
            at = end;
        }
    }

    /// The same with the outputs.
    fn write(&mut self, range: &Range<usize>, mut visit: impl FnMut(&mut [u8], Range<usize>)) {
        let mut at = range.start;
        while at < range.end {
            let tensor = find(&self.outputs, at).expect("a plan stays within its outputs");
            let end = tensor.end.min(range.end);
            // SAFETY: within the tensor, as in `output_mut`.
            let piece = unsafe { slice::from_raw_parts_mut(tensor.address.add(at - tensor.start), end - at) };
            visit(piece, at - range.start..end - range.start);
            at = end;
        }
    }

    /// The same with inputs from `input` on and outputs of as many bytes; the input is none where it is the
    /// same memory.
    fn read_and_write(
        &mut self,
        input: usize,
        output: &Range<usize>,
        mut visit: impl FnMut(Option<&[u8]>, &mut [u8], Range<usize>),
    ) {
        let mut done = 0;
        while done < output.len() {
            let source = find(&self.inputs, input + done).expect("a plan stays within its inputs");
            let target = find(&self.outputs, output.start + done).expect("a plan stays within its outputs");
            let (from, to) = (input + done - source.start, output.start + done - target.start);
            let length = (output.len() - done)
                .min(source.end - source.start - from)
                .min(target.end - target.start - to);
            // SAFETY: both offsets are below their tensors' lengths.
            let (from, to) = unsafe { (source.address.add(from), target.address.add(to)) };
            // SAFETY: `length` bytes are left in both tensors; they are disjoint unless they are the same (the
            // promise of `Buffers`), and then the input is not referred to.
            let (own, result) = unsafe {
                let own = (from != to.cast_const()).then(|| slice::from_raw_parts(from, length));
                (own, slice::from_raw_parts_mut(to, length))
            };
            visit(own, result, done..done + length);
            done += length;
        }
    }

    /// Copies the inputs of `range` to `target`.
    pub(super) fn gather_input(&self, range: &Range<usize>, target: &mut [u8]) {
        self.read(range, |piece, place| target[place].copy_from_slice(piece));
    }

    /// Copies the outputs of `range` to `target`.
    pub(super) fn gather_output(&mut self, range: &Range<usize>, target: &mut [u8]) {
        self.write(range, |piece, place| target[place].copy_from_slice(piece));
    }

    /// Joins the inputs of `range` into `partial`.
    pub(super) fn combine_input(&self, kernel: Kernel, range: &Range<usize>, partial: &mut [u8]) {
        self.read(range, |piece, place| kernel.combine_assign(&mut partial[place], piece));
    }

    /// Writes the complete reduction, the join of `partial` with the inputs from `input` on, to the outputs.
    pub(super) fn finish(&mut self, kernel: Kernel, input: usize, output: &Range<usize>, partial: &[u8]) {
        self.read_and_write(input, output, |own, result, place| {
            match own {
                Some(own) => kernel.combine(result, &partial[place], own),
                None => kernel.combine_assign(result, &partial[place]),
            }
            kernel.finish(result);
        });
    }

    /// Writes `bytes` to the outputs of `range`.
    pub(super) fn store(&mut self, range: &Range<usize>, bytes: &[u8]) {
        self.write(range, |piece, place| piece.copy_from_slice(&bytes[place]));
    }

    /// Copies the outputs of `range` to `target`, which nobody reads unless the operation is undone.
    pub(super) fn save(&mut self, range: &Range<usize>, target: &mut [u8]) {
        self.write(range, |piece, place| copy_aside(&mut target[place], piece));
    }

    /// Copies inputs from `input` on to the outputs of a range.
    pub(super) fn copy(&mut self, input: usize, output: &Range<usize>) {
        self.read_and_write(input, output, |own, result, _| {
            if let Some(own) = own {
                result.copy_from_slice(own);
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
        assert_eq!((region.input_bytes(), region.output_bytes()), (7, 7));
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

    #[test]
    fn tensors_are_arranged_without_being_moved() {
        let mut tensors = [vec![1_u8, 2], vec![], vec![3], vec![4, 5, 6]];
        let mut region = Buffers::in_place(tensors.iter_mut().map(Vec::as_mut_slice)).into_region();
        region.arrange(&[3, 1, 0, 2]);
        let mut all = [0; 6];
        region.gather_input(&(0..6), &mut all);
        assert_eq!((all, region.is_in_place()), ([4, 5, 6, 1, 2, 3], true));
        region.store(&(2..5), &[7, 8, 9]);
        assert_eq!(tensors, [vec![8, 9], vec![], vec![3], vec![4, 5, 7]]);
    }

    #[test]
    fn inputs_and_outputs_of_different_shapes_meet_piece_by_piece() {
        let inputs = [vec![1_u8, 2, 3], vec![4, 5]];
        let mut outputs = [vec![0_u8; 1], vec![0; 9]];
        let sources = inputs.iter().map(Vec::as_slice);
        let mut region =
            Buffers::out_of_place(sources, outputs.iter_mut().map(Vec::as_mut_slice)).into_region();
        region.copy(1, &(0..4));
        region.copy(0, &(5..8));
        assert_eq!(outputs[0], [2]);
        assert_eq!(outputs[1], [3, 4, 5, 0, 1, 2, 3, 0, 0]);
    }
}
