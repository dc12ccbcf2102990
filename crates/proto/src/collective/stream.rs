//! Lists of blocks in order, on one lane or on many: chains along the ring, and straight transfers.
//!
//! A broadcast is a chain: the root sends block after block to the next member of the ring, who keeps each and
//! passes it on. So every link carries every byte once, all links at the same time, and the root's own is busy
//! only once. A reduction to one root runs along the same chain in the other direction: it begins behind the root,
//! everybody joins its own contribution to what passes through, and it ends at the root.
//!
//! What differs from member to member cannot profit from a chain: gather, scatter and all-to-all go straight, on
//! as many lanes as there are partners, all at once.
//!
//! The invariant: on every lane blocks leave, and arrive, in the order of their numbers.

use super::plan::{Block, Duty, PlanError, block_elements};

/// One member's lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// Where the bytes of each outgoing lane begin among the inputs, and those of each incoming lane among the
    /// outputs.
    sources: Vec<usize>,
    targets: Vec<usize>,
    /// What becomes of what arrives.
    duty: Duty,
    /// Bytes that pass over each lane.
    bytes: usize,
    block_bytes: usize,
    blocks: u32,
}

impl StreamPlan {
    /// Straight lanes, all of `elements`.
    pub(super) fn straight(
        sources: Vec<usize>,
        targets: Vec<usize>,
        elements: u64,
        element_bytes: usize,
    ) -> Result<Self, PlanError> {
        Self::new(sources, targets, Duty::Keep, elements, element_bytes)
    }

    /// A place in a chain.
    pub(super) fn chain(
        first: bool,
        last: bool,
        reduces: bool,
        elements: u64,
        element_bytes: usize,
    ) -> Result<Self, PlanError> {
        let duty = match (reduces, last) {
            (false, false) => Duty::KeepAndPassOn,
            (false, true) => Duty::Keep,
            (true, false) => Duty::CombineAndPassOn,
            (true, true) => Duty::Own,
        };
        let sources = if last { Vec::new() } else { vec![0] };
        let targets = if first { Vec::new() } else { vec![0] };
        Self::new(sources, targets, duty, elements, element_bytes)
    }

    fn new(
        sources: Vec<usize>,
        targets: Vec<usize>,
        duty: Duty,
        elements: u64,
        element_bytes: usize,
    ) -> Result<Self, PlanError> {
        let (block_bytes, blocks) = if elements == 0 {
            // A transfer of nothing is a block of nothing: the other end waits for it.
            (0, 1)
        } else {
            let block = block_elements(elements, 1, element_bytes, 1);
            let blocks = u32::try_from(elements.div_ceil(block));
            let blocks = blocks.map_err(|_| PlanError::TooLarge { elements, element_bytes })?;
            (block as usize * element_bytes, blocks)
        };
        let bytes = elements as usize * element_bytes;
        Ok(Self { sources, targets, duty, bytes, block_bytes, blocks })
    }

    /// Blocks on each lane.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes of the largest block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes that pass over each lane.
    pub fn link_bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Whether the outgoing lanes carry this member's own input rather than what arrives.
    pub fn begins_here(&self) -> bool {
        self.targets.is_empty() || !self.duty.passes_on()
    }

    /// What becomes of what arrives.
    pub fn duty(&self) -> Duty {
        self.duty
    }

    /// Block `number` of an outgoing lane. In a chain it lies at the same place among inputs and outputs.
    pub fn sends(&self, lane: usize, number: u32) -> Block {
        self.block(self.sources[lane], number)
    }

    /// Block `number` of an incoming lane.
    pub fn receives(&self, lane: usize, number: u32) -> Block {
        self.block(self.targets[lane], number)
    }

    fn block(&self, start: usize, number: u32) -> Block {
        debug_assert!(number < self.blocks, "block {number} of {}", self.blocks);
        let begin = number as usize * self.block_bytes;
        let bytes = self.block_bytes.min(self.bytes - begin);
        Block { input: start + begin, output: start + begin, bytes }
    }
}
