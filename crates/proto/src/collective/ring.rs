//! The ring as data: which block goes where in which step. All-reduce, and its two halves.
//!
//! The textbook ring cuts a tensor into one segment per member and moves whole segments: each partial sum must
//! be kept until its segment's turn comes, and by the time the results come round the data has long left every
//! cache. This plan cuts the tensor into *laps* of `world` small blocks and runs a complete little ring for
//! each lap, many laps at once. A block's sum travels on as soon as it is made, scratch is a few blocks
//! whatever the tensor's size, and the result overwrites what was read a moment ago.
//!
//! ```text
//! lap 0            lap 1            ..
//! | b0 | b1 | b2 |   | b3 | b4 | b5 |         blocks of a ring of three
//!
//! step s of a lap, member at position p:  sends block (p - s), receives block (p - s - 1)   (mod world)
//!   s < world - 1    reduce-scatter: what arrives is a partial sum; add mine, pass it on
//!   s = world - 2    ..but this one is complete once mine is added: I own it
//!   s > world - 2    all-gather: what arrives is a result; keep it, pass it on unless everybody has it
//! ```
//!
//! What is sent in step s > 0 is what arrived in step s - 1, so within a lap the steps are a chain, and
//! laps do not depend on each other at all.
//!
//! Reduce-scatter alone is the first `world - 1` steps, all-gather alone the same number of steps of the second
//! kind. There the blocks of a lap are not neighbours: each lies in the part of the tensor that belongs to one
//! member's *rank*, which is not its place in the ring (rule 3). In a reduce-scatter block b ends with the member
//! at position b - 1; in an all-gather it starts with the one at position b.
//!
//! The invariant: each element is in exactly one block; each block is the sum of one contribution of each member,
//! added in ring order starting behind its owner, and every member gets the owner's bytes. So the result does
//! not depend on timing.
//!
//! It does not decide how many laps run at once: that is credit, and belongs to the executor.

use super::plan::{Block, Duty, PlanError, block_elements, operation_bytes};

/// What a ring is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    AllReduce,
    ReduceScatter,
    AllGather,
}

/// One member's part of a ring over a list of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingPlan {
    task: Task,
    /// The rank of the member at each position; not needed where all members hold the same.
    ranks: Vec<u32>,
    world: u32,
    position: u32,
    /// Elements that the laps are cut from: of all tensors, or of one member's part.
    elements: u64,
    element_bytes: usize,
    block_elements: u64,
    laps: u32,
}

impl RingPlan {
    /// An all-reduce, for the member at `position` in a ring of `world` members. Blocks begin at multiples of
    /// `unit` elements.
    ///
    /// # Panics
    /// If `position` is not below `world`, or an element has no size.
    pub fn all_reduce(
        world: u32,
        position: u32,
        elements: u64,
        element_bytes: usize,
        unit: u64,
    ) -> Result<Self, PlanError> {
        let plan = Self {
            task: Task::AllReduce,
            ranks: Vec::new(),
            world,
            position,
            elements,
            element_bytes,
            block_elements: 0,
            laps: 0,
        };
        plan.cut(u64::from(world), unit)
    }

    /// A reduce-scatter of `world` parts of `count` elements. `ranks` are those of the members in ring order.
    pub fn reduce_scatter(
        ranks: Vec<u32>,
        position: u32,
        count: u64,
        element_bytes: usize,
    ) -> Result<Self, PlanError> {
        Self::half(Task::ReduceScatter, ranks, position, count, element_bytes)
    }

    /// An all-gather of `count` elements of each member. `ranks` are those of the members in ring order.
    pub fn all_gather(
        ranks: Vec<u32>,
        position: u32,
        count: u64,
        element_bytes: usize,
    ) -> Result<Self, PlanError> {
        Self::half(Task::AllGather, ranks, position, count, element_bytes)
    }

    fn half(
        task: Task,
        ranks: Vec<u32>,
        position: u32,
        elements: u64,
        element_bytes: usize,
    ) -> Result<Self, PlanError> {
        let world = ranks.len() as u32;
        operation_bytes(elements.saturating_mul(u64::from(world)), element_bytes)?;
        let plan = Self { task, ranks, world, position, elements, element_bytes, block_elements: 0, laps: 0 };
        plan.cut(1, 1)
    }

    /// Cuts the elements into laps of so many blocks.
    fn cut(mut self, blocks: u64, unit: u64) -> Result<Self, PlanError> {
        let Self { world, position, elements, element_bytes, .. } = self;
        assert!(position < world && element_bytes > 0, "position {position} in a ring of {world}");
        operation_bytes(elements, element_bytes)?;
        if world == 1 || elements == 0 {
            return Ok(self);
        }
        self.block_elements = block_elements(elements, blocks, element_bytes, unit);
        let laps = elements.div_ceil(blocks * self.block_elements);
        self.laps = u32::try_from(laps).map_err(|_| PlanError::TooLarge { elements, element_bytes })?;
        Ok(self)
    }

    /// Members of the ring.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Little rings to run; none if there is nobody to talk to or nothing to say.
    pub fn laps(&self) -> u32 {
        self.laps
    }

    /// Steps of each lap.
    pub fn steps(&self) -> u32 {
        let half = self.world - 1;
        if self.task == Task::AllReduce { 2 * half } else { half }
    }

    /// Bytes of the largest block.
    pub fn block_bytes(&self) -> usize {
        self.block_elements as usize * self.element_bytes
    }

    /// The most that any member sends to the next. The same number on every member, so that all draw the same
    /// conclusion from it.
    pub fn link_bytes_bound(&self) -> u64 {
        self.block_bytes() as u64 * u64::from(self.laps) * u64::from(self.steps())
    }

    /// What each member sends on average, if this one sends so many bytes and a block takes `wire_bytes`. The same number on
    /// every member. Only an all-reduce's last lap, which may have fewer blocks than there are members, makes a difference.
    pub fn mean_sent(&self, sent: u64, wire_bytes: impl Fn(&Block) -> u64) -> u64 {
        let (Some(last), Task::AllReduce) = (self.laps.checked_sub(1), self.task) else { return sent };
        let bytes = |steps: u32| (0..steps).map(|step| wire_bytes(&self.sends(last, step))).sum::<u64>();
        // In as many steps as there are members, a member sends every block of the lap once.
        let of_all = bytes(self.world) * u64::from(self.steps()) / u64::from(self.world);
        sent - bytes(self.steps()) + of_all
    }

    /// What is sent in `step` of `lap`.
    pub fn sends(&self, lap: u32, step: u32) -> Block {
        debug_assert!(lap < self.laps && step < self.steps(), "step {step} of lap {lap}");
        // 2 * world keeps the difference positive: a step is below that.
        self.block(lap, (self.position + 2 * self.world - step) % self.world)
    }

    /// What arrives in `step` of `lap`.
    pub fn receives(&self, lap: u32, step: u32) -> Block {
        debug_assert!(lap < self.laps && step < self.steps(), "step {step} of lap {lap}");
        self.block(lap, (self.position + 2 * self.world - step - 1) % self.world)
    }

    /// What to do with what arrives in `step`.
    pub fn duty(&self, step: u32) -> Duty {
        let last = step + 1 == self.steps();
        let owning = self.world - 2;
        match self.task {
            Task::AllReduce | Task::ReduceScatter if step < owning => Duty::CombineAndPassOn,
            Task::ReduceScatter => Duty::Own,
            Task::AllReduce if step == owning => Duty::OwnAndPassOn,
            Task::AllReduce | Task::AllGather if last => Duty::Keep,
            Task::AllReduce | Task::AllGather => Duty::KeepAndPassOn,
        }
    }

    fn block(&self, lap: u32, segment: u32) -> Block {
        let (lap, size) = (u64::from(lap), self.element_bytes);
        let index = match self.task {
            Task::AllReduce => lap * u64::from(self.world) + u64::from(segment),
            Task::ReduceScatter | Task::AllGather => lap,
        };
        let start = (index * self.block_elements).min(self.elements);
        let end = (start + self.block_elements).min(self.elements);
        let (start, bytes) = (start as usize * size, (end - start) as usize * size);
        let part = |position: u32| {
            let rank = self.ranks[(position % self.world) as usize];
            rank as usize * self.elements as usize * size + start
        };
        match self.task {
            Task::AllReduce => Block { input: start, output: start, bytes },
            Task::ReduceScatter => Block { input: part(segment + self.world - 1), output: start, bytes },
            Task::AllGather => Block { input: start, output: part(segment), bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BLOCK_BYTES_MAX;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_tile_the_tensor_within_their_limits(
            world in 2_u32..=64, elements in 1_u64..50_000_000, size in prop::sample::select(vec![1_usize, 2, 4, 8]),
            unit in prop::sample::select(vec![1_u64, 128])
        ) {
            let plan = RingPlan::all_reduce(world, 0, elements, size, unit).unwrap();
            let mut next = 0;
            for lap in 0..plan.laps() {
                for segment in 0..world {
                    let block = plan.block(lap, segment);
                    prop_assert!(block.bytes <= BLOCK_BYTES_MAX && block.bytes <= plan.block_bytes());
                    prop_assert_eq!(block.input, next);
                    prop_assert!(block.bytes == 0 || ((block.input / size) as u64).is_multiple_of(unit));
                    next = block.inputs().end;
                }
            }
            prop_assert_eq!(next as u64, elements * size as u64);
        }
    }

    #[test]
    fn what_is_sent_on_average_is_the_same_for_all() {
        // The last lap of three has blocks for two: one member sends 1.6 % less than the others.
        for (world, elements) in [(3, 1 << 20), (2, 1_001), (5, 7), (4, 1 << 16), (8, 1_234_567)] {
            let plans = (0..world).map(|at| RingPlan::all_reduce(world, at, elements, 4, 1).unwrap());
            let bytes = |block: &Block| block.bytes as u64;
            let sends = |plan: &RingPlan| -> u64 {
                let steps = |lap| (0..plan.steps()).map(move |step| bytes(&plan.sends(lap, step)));
                (0..plan.laps()).flat_map(steps).sum()
            };
            let sent: Vec<_> = plans.clone().map(|plan| sends(&plan)).collect();
            let means: Vec<_> = plans.zip(&sent).map(|(plan, sent)| plan.mean_sent(*sent, bytes)).collect();
            assert!(means.iter().all(|mean| *mean == means[0]), "{means:?}");
            assert_eq!(means[0], sent.iter().sum::<u64>() / u64::from(world));
            assert_eq!(means[0], elements * 4 * 2 * u64::from(world - 1) / u64::from(world));
        }
        assert_eq!(RingPlan::all_reduce(1, 0, 9, 4, 1).unwrap().mean_sent(0, |_| 9), 0);
    }

    #[test]
    fn nothing_to_say_or_nobody_to_talk_to_is_no_lap() {
        assert_eq!(RingPlan::all_reduce(1, 0, 1_000, 4, 1).unwrap().laps(), 0);
        assert_eq!(RingPlan::all_reduce(4, 3, 0, 4, 1).unwrap().laps(), 0);
        assert_eq!(RingPlan::all_gather(vec![1, 0], 0, 0, 4).unwrap().laps(), 0);
    }

    #[test]
    fn an_absurd_count_is_refused() {
        let refused = |plan: Result<RingPlan, PlanError>| matches!(plan, Err(PlanError::TooLarge { .. }));
        assert!(refused(RingPlan::all_reduce(2, 0, u64::MAX, 4, 1)));
        assert!(refused(RingPlan::all_reduce(2, 0, 1 << 43, 4, 1)));
        assert!(refused(RingPlan::all_gather(vec![0, 1], 0, 1 << 41, 8)));
    }
}
