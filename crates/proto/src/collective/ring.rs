//! The ring all-reduce as data: which block goes where in which step.
//!
//! The textbook ring cuts a tensor into one segment per member and moves whole segments: each partial sum must
//! be kept until its segment's turn comes, and by the time the results come round the data has long left every
//! cache. This plan cuts the tensor into *rounds* of `world` small blocks and runs a complete little ring for
//! each round, many rounds at once. A block's sum travels on as soon as it is made, scratch is a few blocks
//! whatever the tensor's size, and the result overwrites what was read a moment ago.
//!
//! ```text
//! round 0            round 1            ..
//! | b0 | b1 | b2 |   | b3 | b4 | b5 |         blocks of a ring of three
//!
//! step s of a round, member at position p:  sends block (p - s), receives block (p - s - 1)   (mod world)
//!   s < world - 1    reduce-scatter: what arrives is a partial sum; add mine, pass it on
//!   s = world - 2    ..but this one is complete once mine is added: I own it
//!   s > world - 2    all-gather: what arrives is a result; keep it, pass it on unless everybody has it
//! ```
//!
//! What is sent in step s > 0 is what arrived in step s - 1, so within a round the steps are a chain, and
//! rounds do not depend on each other at all.
//!
//! The invariant: each element is in exactly one block; each block is the sum of one contribution of each member,
//! added in ring order starting behind its owner, and every member gets the owner's bytes. So the result does
//! not depend on timing.
//!
//! It does not decide how many rounds run at once: that is credit, and belongs to the executor.

use crate::limits::{BLOCK_BYTES_MAX, FRAME_HEADER_BYTES, OPERATION_BYTES_MAX, SEGMENT_BYTES};
use std::ops::Range;

/// Blocks start at multiples of this many elements, so that vectors of every width fall on cache lines when
/// the tensor itself does.
const BLOCK_ELEMENTS_UNIT: u64 = 16;
/// Blocks are made smaller than [`BLOCK_BYTES_MAX`] until there are this many rounds to overlap..
const ROUNDS_WANTED: u64 = 8;
/// ..but not smaller than this, where the cost of a frame would show.
const BLOCK_BYTES_WANTED: u64 = 32 << 10;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The tensors are larger than anything that can be meant.
    #[error(
        "{elements} elements of {element_bytes} bytes in one collective, the limit is {OPERATION_BYTES_MAX} bytes"
    )]
    TooLarge {
        /// How many elements were asked for.
        elements: u64,
        /// How large each is.
        element_bytes: usize,
    },
}

/// What a member does with a block that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Add mine to the partial sum and send it in the next step.
    AddAndPassOn,
    /// Add mine: the sum is complete and this member owns it. Send it in the next step.
    AddAndOwn,
    /// It is a result: keep it and send it in the next step.
    KeepAndPassOn,
    /// It is a result, and the next member is the one that made it: keep it.
    Keep,
}

/// One member's part of a ring all-reduce over a list of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingPlan {
    world: u32,
    position: u32,
    elements: u64,
    element_bytes: usize,
    block_elements: u64,
    rounds: u32,
}

impl RingPlan {
    /// The plan of the member at `position` in a ring of `world` members.
    ///
    /// # Panics
    /// If `position` is not below `world`, or an element has no size.
    pub fn new(world: u32, position: u32, elements: u64, element_bytes: usize) -> Result<Self, PlanError> {
        assert!(position < world && element_bytes > 0, "position {position} in a ring of {world}");
        let size = element_bytes as u64;
        let bytes = elements.checked_mul(size).filter(|bytes| *bytes <= OPERATION_BYTES_MAX);
        let bytes = bytes.ok_or(PlanError::TooLarge { elements, element_bytes })?;
        if world == 1 || elements == 0 {
            return Ok(Self { world, position, elements, element_bytes, block_elements: 0, rounds: 0 });
        }
        let members = u64::from(world);
        let wanted = (bytes / members / ROUNDS_WANTED).clamp(BLOCK_BYTES_WANTED, BLOCK_BYTES_MAX as u64);
        let (segment, header) = (SEGMENT_BYTES as u64, FRAME_HEADER_BYTES as u64);
        let segments = (wanted + header) / segment;
        let unit = BLOCK_ELEMENTS_UNIT;
        let block_elements = if segments > 0 {
            // Frames of whole segments; the last round takes what is left.
            (segments * segment - header) / size / unit * unit
        } else {
            let rounds = elements.div_ceil(members * (wanted / size));
            elements.div_ceil(members * rounds).next_multiple_of(unit)
        };
        let rounds = elements.div_ceil(members * block_elements);
        let rounds = u32::try_from(rounds).map_err(|_| PlanError::TooLarge { elements, element_bytes })?;
        Ok(Self { world, position, elements, element_bytes, block_elements, rounds })
    }

    /// Members of the ring.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Little rings to run; none if there is nobody to talk to or nothing to say.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Steps of each round.
    pub fn steps(&self) -> u32 {
        2 * (self.world - 1)
    }

    /// Bytes of all elements together.
    pub fn bytes(&self) -> usize {
        self.elements as usize * self.element_bytes
    }

    /// Bytes of the largest block.
    pub fn block_bytes(&self) -> usize {
        self.block_elements as usize * self.element_bytes
    }

    /// The most that any member sends to the next. The same number on every member, so that all draw the same
    /// conclusion from it.
    pub fn link_bytes_bound(&self) -> u64 {
        self.block_bytes() as u64 * u64::from(self.rounds) * u64::from(self.steps())
    }

    /// The bytes that are sent in `step` of `round`, counted from the start of the first tensor.
    pub fn sends(&self, round: u32, step: u32) -> Range<usize> {
        debug_assert!(round < self.rounds && step < self.steps(), "step {step} of round {round}");
        // 2 * world keeps the difference positive: a step is below that.
        self.block(round, (self.position + 2 * self.world - step) % self.world)
    }

    /// The bytes that arrive in `step` of `round`.
    pub fn receives(&self, round: u32, step: u32) -> Range<usize> {
        debug_assert!(round < self.rounds && step < self.steps(), "step {step} of round {round}");
        self.block(round, (self.position + 2 * self.world - step - 1) % self.world)
    }

    /// What to do with what arrives in `step`.
    pub fn duty(&self, step: u32) -> Duty {
        let owning = self.world - 2;
        if step < owning {
            Duty::AddAndPassOn
        } else if step == owning {
            Duty::AddAndOwn
        } else if step + 1 < self.steps() {
            Duty::KeepAndPassOn
        } else {
            Duty::Keep
        }
    }

    fn block(&self, round: u32, segment: u32) -> Range<usize> {
        let index = u64::from(round) * u64::from(self.world) + u64::from(segment);
        let start = (index * self.block_elements).min(self.elements);
        let end = (start + self.block_elements).min(self.elements);
        start as usize * self.element_bytes..end as usize * self.element_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Runs the plans of all members on sets of contributors instead of numbers. `None` is "not the result".
    fn run(world: u32, elements: u64, element_bytes: usize) -> Vec<Vec<u32>> {
        let plans: Vec<_> =
            (0..world).map(|p| RingPlan::new(world, p, elements, element_bytes).unwrap()).collect();
        let bytes = plans[0].bytes();
        // Each byte of each member counts in base 10 whose contribution it holds.
        let mut results = vec![vec![0_u32; bytes]; world as usize];
        let mut written = vec![vec![0_u32; bytes]; world as usize];
        for round in 0..plans[0].rounds() {
            let mut wires: Vec<VecDeque<Vec<u32>>> = vec![VecDeque::new(); world as usize];
            let mut outgoing: Vec<Vec<u32>> =
                (0..world).map(|p| vec![10_u32.pow(p); plans[p as usize].sends(round, 0).len()]).collect();
            for step in 0..plans[0].steps() {
                for p in 0..world as usize {
                    let block = std::mem::take(&mut outgoing[p]);
                    assert_eq!(block.len(), plans[p].sends(round, step).len());
                    wires[(p + 1) % world as usize].push_back(block);
                }
                for p in 0..world as usize {
                    let mut block = wires[p].pop_front().unwrap();
                    let range = plans[p].receives(round, step);
                    assert_eq!(block.len(), range.len(), "both ends agree about every length");
                    let duty = plans[p].duty(step);
                    if matches!(duty, Duty::AddAndPassOn | Duty::AddAndOwn) {
                        for sum in &mut block {
                            *sum += 10_u32.pow(p as u32);
                        }
                    }
                    if duty != Duty::AddAndPassOn {
                        results[p][range.clone()].copy_from_slice(&block);
                        written[p][range.clone()].iter_mut().for_each(|times| *times += 1);
                    }
                    if duty != Duty::Keep {
                        assert_eq!(plans[p].sends(round, step + 1), range, "what arrives is what goes next");
                        outgoing[p] = block;
                    }
                }
            }
        }
        if world > 1 {
            assert!(written.iter().flatten().all(|times| *times == 1), "each byte is written exactly once");
        }
        results
    }

    proptest! {
        #[test]
        fn every_element_is_reduced_exactly_once_and_reaches_everybody(
            world in 2_u32..=9, elements in 0_u64..3_000, element_bytes in prop::sample::select(vec![4_usize, 8])
        ) {
            let everybody = (0..world).map(|p| 10_u32.pow(p)).sum::<u32>();
            for result in run(world, elements, element_bytes) {
                prop_assert!(result.iter().all(|sum| *sum == everybody));
            }
        }

        #[test]
        fn blocks_tile_the_tensor_within_their_limits(
            world in 2_u32..=64, elements in 1_u64..50_000_000, element_bytes in prop::sample::select(vec![4_usize, 8])
        ) {
            let plan = RingPlan::new(world, 0, elements, element_bytes).unwrap();
            let mut next = 0;
            for round in 0..plan.rounds() {
                for segment in 0..world {
                    let block = plan.block(round, segment);
                    prop_assert!(block.len() <= BLOCK_BYTES_MAX && block.len() <= plan.block_bytes());
                    prop_assert_eq!(block.start, next);
                    next = block.end;
                }
            }
            prop_assert_eq!(next, plan.bytes());
        }
    }

    #[test]
    fn larger_worlds_and_several_rounds_work_too() {
        let everybody = 111;
        assert!(run(3, 203_530, 4).iter().flatten().all(|sum| *sum == everybody));
        assert!(RingPlan::new(3, 0, 203_530, 4).unwrap().rounds() > 1, "the test wants several rounds");
    }

    #[test]
    fn nothing_to_say_or_nobody_to_talk_to_is_no_round() {
        assert_eq!(RingPlan::new(1, 0, 1_000, 4).unwrap().rounds(), 0);
        assert_eq!(RingPlan::new(4, 3, 0, 4).unwrap().rounds(), 0);
    }

    #[test]
    fn an_absurd_count_is_refused() {
        assert!(matches!(RingPlan::new(2, 0, u64::MAX, 4), Err(PlanError::TooLarge { .. })));
        assert!(matches!(RingPlan::new(2, 0, 1 << 43, 4), Err(PlanError::TooLarge { .. })));
    }
}
