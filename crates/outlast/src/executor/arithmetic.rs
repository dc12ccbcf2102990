//! What a reduction does to bytes: the plan's words in the kernels' words.
//!
//! A quantised reduction moves packed blocks. Whoever begins a chain packs its numbers, the next ones open what
//! arrives, add their own and pack again, and the owner's packed bytes go round to all unchanged. Blocks of a
//! plan begin where blocks that share a scale do, so a packed block means the same wherever it is opened.
//!
//! A list of tensors may be of several types. Where one type ends and the next begins is known here alone: a block is
//! taken piece by piece, each of one type, and packed pieces lie one behind the other.

use super::memory::Region;
use super::slots::Slots;
use outlast_kernels::{
    Element, Quantisation, Reduction, accumulate, combine, combine_assign, dequantise, divide,
    make_nans_alike, plainly, quantise, quantised_len,
};
use outlast_proto::collective::plan::Block;
use outlast_proto::collective::{self, DataType, Fingerprint, ReduceOp};
use std::ops::Range;
use std::slice;

/// One collective's arithmetic.
#[derive(Debug)]
pub(super) struct Arithmetic {
    spans: Spans,
    reduction: Reduction,
    /// Divide the complete reduction by this, once.
    divisor: Option<u32>,
    packing: Option<Quantisation>,
}

/// Elements of one type, up to that byte of the list.
#[derive(Clone, Copy, Debug)]
struct Span {
    element: Element,
    end: usize,
}

/// What lies where in the list of all bytes. Nearly every call is of one type, and pays for no list.
#[derive(Debug)]
enum Spans {
    One(Span),
    Several(Box<[Span]>),
}

impl Spans {
    fn new(call: &Fingerprint) -> Self {
        let span = |data_type, end| Span { element: element(data_type), end };
        match call.sections() {
            None => Self::One(span(call.data_type, usize::MAX)),
            Some(sections) => {
                Self::Several(sections.iter().map(|section| span(section.data_type, section.end)).collect())
            }
        }
    }

    fn all(&self) -> &[Span] {
        match self {
            Self::One(span) => slice::from_ref(span),
            Self::Several(spans) => spans,
        }
    }
}

/// A piece of a block: elements of one type.
struct Piece {
    element: Element,
    block: Block,
    /// Its place among the block's bytes on the wire.
    wire: Range<usize>,
}

/// What is done to elements of one type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    element: Element,
    reduction: Reduction,
    divisor: Option<u32>,
}

impl Kernel {
    /// Joins `other` into `partial`.
    pub(super) fn combine_assign(self, partial: &mut [u8], other: &[u8]) {
        combine_assign(self.element, self.reduction, partial, other);
    }

    /// Writes the join of `partial` and `own` to `result`.
    pub(super) fn combine(self, result: &mut [u8], partial: &[u8], own: &[u8]) {
        combine(self.element, self.reduction, result, partial, own);
    }

    /// What is done once, when all contributions are in.
    pub(super) fn finish(self, result: &mut [u8]) {
        if let Some(divisor) = self.divisor {
            divide(self.element, result, divisor);
        }
    }
}

impl Arithmetic {
    /// The arithmetic of a call among `world` members.
    ///
    /// # Panics
    /// If the call is not legal; whoever makes one checks that first.
    pub(super) fn new(call: &Fingerprint, world: usize) -> Self {
        assert!(call.legal().is_ok(), "a call is checked before it is made: {call}");
        let divisor = (call.kind.reduces() && call.op == ReduceOp::Avg).then_some(world as u32);
        let packing = call.quantisation.filter(|_| call.kind.reduces()).map(packing);
        Self { spans: Spans::new(call), reduction: reduction(call.op), divisor, packing }
    }

    /// Blocks of the plan begin at multiples of this many elements.
    pub(super) fn unit(&self) -> u64 {
        if self.packs() { Quantisation::BLOCK as u64 } else { 1 }
    }

    /// Whether blocks are packed on the wire.
    pub(super) fn packs(&self) -> bool {
        self.packing.is_some()
    }

    /// What so many bytes of elements of one type are on the wire.
    fn packed_bytes(&self, element: Element, bytes: usize) -> usize {
        self.packing.map_or(bytes, |packing| quantised_len(packing, bytes / element.size()))
    }

    /// What a block is on the wire.
    pub(super) fn wire_bytes(&self, block: &Block) -> usize {
        if !self.packs() {
            return block.bytes;
        }
        self.pieces(block).last().map_or(0, |piece| piece.wire.end)
    }

    /// The most that a block of so many bytes is on the wire.
    pub(super) fn wire_bytes_bound(&self, bytes: usize) -> usize {
        let most = self.spans.all().iter().map(|span| self.packed_bytes(span.element, bytes)).max();
        most.unwrap_or(bytes)
    }

    /// The pieces of a block, each of one type.
    fn pieces(&self, block: &Block) -> impl Iterator<Item = Piece> + use<'_> {
        let (block, spans) = (*block, self.spans.all());
        let first = spans.partition_point(|span| span.end <= block.input);
        let (mut at, mut wire) = (block.input, 0);
        spans[first..].iter().map_while(move |span| {
            let (begin, end) = (at, span.end.min(block.input + block.bytes));
            if begin >= end {
                return None;
            }
            at = end;
            let start = wire;
            wire += self.packed_bytes(span.element, end - begin);
            let output = block.output + (begin - block.input);
            let block = Block { input: begin, output, bytes: end - begin };
            Some(Piece { element: span.element, block, wire: start..wire })
        })
    }

    fn kernel(&self, element: Element) -> Kernel {
        Kernel { element, reduction: self.reduction, divisor: self.divisor }
    }

    /// The reduction of whole contributions that lie one behind the other, each as long as `result`. Every member does this
    /// for itself and must have the same bits.
    pub(super) fn fold(&self, contributions: &[u8], result: &mut [u8]) {
        let bytes = result.len();
        result.copy_from_slice(&contributions[..bytes]);
        let fold_piece = |Piece { element, block, .. }: Piece| {
            let kernel = self.kernel(element);
            let piece = &mut result[block.inputs()];
            for other in contributions.chunks_exact(bytes).skip(1) {
                kernel.combine_assign(piece, &other[block.inputs()]);
            }
            kernel.finish(piece);
            make_nans_alike(element, piece);
        };
        plainly(|| self.pieces(&Block { input: 0, output: 0, bytes }).for_each(fold_piece));
    }

    /// Joins our contribution into a block on its way, packed or not.
    pub(super) fn join(&self, region: &Region, block: &Block, partial: &mut [u8], slots: &mut Slots) {
        for Piece { element, block, wire } in self.pieces(block) {
            let partial = &mut partial[wire];
            match self.packing {
                None => region.combine_input(self.kernel(element), &block.inputs(), partial),
                Some(packing) => with_input(region, &block, slots, |own| {
                    accumulate(packing, element, partial, own, None);
                }),
            }
        }
    }

    /// Joins our contribution, the last one, into a packed block.
    pub(super) fn join_last(&self, region: &Region, block: &Block, packed: &mut [u8], slots: &mut Slots) {
        let Some(packing) = self.packing else { return };
        for Piece { element, block, wire } in self.pieces(block) {
            with_input(region, &block, slots, |own| {
                accumulate(packing, element, &mut packed[wire], own, self.divisor);
            });
        }
    }

    /// Writes the complete reduction, the join of a partial one with our contribution, to the output.
    pub(super) fn finish(&self, region: &mut Region, block: &Block, partial: &[u8]) {
        for Piece { element, block, wire } in self.pieces(block) {
            region.finish(self.kernel(element), block.input, &block.outputs(), &partial[wire]);
        }
    }

    /// Packs our contribution: the beginning of a chain.
    pub(super) fn pack(&self, region: &Region, block: &Block, packed: &mut [u8], slots: &mut Slots) {
        let Some(packing) = self.packing else { return };
        for Piece { element, block, wire } in self.pieces(block) {
            with_input(region, &block, slots, |own| quantise(packing, element, own, &mut packed[wire]));
        }
    }

    /// Opens a packed block into the output.
    pub(super) fn unpack(&self, region: &mut Region, block: &Block, packed: &[u8], slots: &mut Slots) {
        let Some(packing) = self.packing else { return };
        for Piece { element, block, wire } in self.pieces(block) {
            let packed = &packed[wire];
            if let Some(output) = region.output_mut(&block.outputs()) {
                dequantise(packing, element, packed, output);
                continue;
            }
            let mut slot = slots.take();
            dequantise(packing, element, packed, slot.bytes_mut(block.bytes));
            region.store(&block.outputs(), slot.bytes(block.bytes));
            slots.give(slot);
        }
    }
}

/// The input of a block in one piece.
fn with_input(region: &Region, block: &Block, slots: &mut Slots, work: impl FnOnce(&[u8])) {
    if let Some(input) = region.input(&block.inputs()) {
        return work(input);
    }
    let mut slot = slots.take();
    region.gather_input(&block.inputs(), slot.bytes_mut(block.bytes));
    work(slot.bytes(block.bytes));
    slots.give(slot);
}

fn packing(quantisation: collective::Quantisation) -> Quantisation {
    match quantisation {
        collective::Quantisation::Int8 => Quantisation::Int8,
        collective::Quantisation::Int4 => Quantisation::Int4,
        other => unreachable!("{other} grows together with the kernels"),
    }
}

fn element(data_type: DataType) -> Element {
    match data_type {
        DataType::U8 => Element::U8,
        DataType::I8 => Element::I8,
        DataType::U16 => Element::U16,
        DataType::I16 => Element::I16,
        DataType::U32 => Element::U32,
        DataType::I32 => Element::I32,
        DataType::U64 => Element::U64,
        DataType::I64 => Element::I64,
        DataType::Bool => Element::Bool,
        DataType::F16 => Element::F16,
        DataType::BF16 => Element::BF16,
        DataType::F32 => Element::F32,
        DataType::F64 => Element::F64,
        other => unreachable!("{other} grows together with the kernels"),
    }
}

fn reduction(op: ReduceOp) -> Reduction {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => Reduction::Sum,
        ReduceOp::Prod => Reduction::Prod,
        ReduceOp::Min => Reduction::Min,
        ReduceOp::Max => Reduction::Max,
        ReduceOp::BitAnd => Reduction::And,
        ReduceOp::BitOr => Reduction::Or,
        ReduceOp::BitXor => Reduction::Xor,
        other => unreachable!("{other} grows together with the kernels"),
    }
}
