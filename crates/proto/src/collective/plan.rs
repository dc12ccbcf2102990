//! Who sends which bytes to whom: one member's part of a collective, as data.
//!
//! Everything that a collective does to bytes is one of a few things: take a block from the input, join mine
//! into a block that arrives, keep it, pass it on. A plan says which, for which block, between which members.
//! The executor joins plan, bytes and arithmetic; nothing here has seen a byte.
//!
//! ```text
//! all_reduce, all_gather, reduce_scatter    a ring: each member sends to the next        (see `ring`)
//! broadcast, reduce                         a chain along the ring, from or to the root  (see `stream`)
//! gather, scatter, all_to_all, send/recv    straight from member to member               (see `stream`)
//! ```
//!
//! The invariant: the plans that the members of one collective make from equal fingerprints, members and rings
//! fit together. Every block that one sends another receives, with the same number and length.

use super::ring::RingPlan;
use super::stream::StreamPlan;
use super::{Fingerprint, OpKind, sections};
use crate::id::PeerId;
use crate::limits::{BLOCK_BYTES_MAX, FRAME_HEADER_BYTES, OPERATION_BYTES_MAX, SEGMENT_BYTES};
use std::ops::Range;

/// Blocks start at multiples of this many elements, so that vectors of every width fall on cache lines when
/// the tensor itself does.
const BLOCK_ELEMENTS_UNIT: u64 = 16;
/// Blocks are made smaller than [`BLOCK_BYTES_MAX`] until there are this many to overlap..
const BLOCKS_WANTED: u64 = 8;
/// ..but not smaller than this, where the cost of a frame would show.
const BLOCK_BYTES_WANTED: u64 = 32 << 10;
/// Blocks of a list of several types begin at multiples of this many bytes, a cache line.
const MIXED_BYTES_UNIT: u64 = 64;
/// What is left beyond whole laps makes the blocks larger, and not one more lap, up to this part of a lap.
const CRUMB: u64 = 8;

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

/// Some elements, and where they lie: in the list of all input bytes and in the list of all output bytes. Which
/// of the two means anything follows from what is done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where they begin among the inputs.
    pub input: usize,
    /// Where they begin among the outputs.
    pub output: usize,
    /// How many bytes they are in memory.
    pub bytes: usize,
}

impl Block {
    /// Their place among the inputs.
    pub fn inputs(&self) -> Range<usize> {
        self.input..self.input + self.bytes
    }

    /// Their place among the outputs.
    pub fn outputs(&self) -> Range<usize> {
        self.output..self.output + self.bytes
    }
}

/// What a member does with a block that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Join mine into the partial reduction and pass it on.
    CombineAndPassOn,
    /// Join mine: the reduction is complete. Keep it.
    Own,
    /// Join mine: the reduction is complete. Keep it and pass it on.
    OwnAndPassOn,
    /// It is a result: keep it and pass it on.
    KeepAndPassOn,
    /// It is a result, and nobody behind me needs it: keep it.
    Keep,
}

impl Duty {
    /// Whether what arrives is a partial reduction.
    pub const fn combines(self) -> bool {
        matches!(self, Self::CombineAndPassOn | Self::Own | Self::OwnAndPassOn)
    }

    /// Whether something is sent because of it.
    pub const fn passes_on(self) -> bool {
        matches!(self, Self::CombineAndPassOn | Self::OwnAndPassOn | Self::KeepAndPassOn)
    }
}

/// How the blocks flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They do not: there is nobody to talk to, or nothing to say.
    Still,
    /// Around the ring.
    Ring(RingPlan),
    /// Along chains, or straight to their members.
    Streams(StreamPlan),
}

/// One member's part of one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    flow: Flow,
    /// Whom it sends to, and whom it receives from: the lanes, by number.
    outgoing: Vec<PeerId>,
    incoming: Vec<PeerId>,
    /// What it simply copies from its own input to its own output.
    own: Option<Block>,
}

impl Plan {
    /// The part of `me` in `call`. `members` are in the order of ranks, `ring` has the same members in ring
    /// order; blocks begin at multiples of `unit` elements.
    ///
    /// # Panics
    /// If `me` or the root is not a member, or a kind without bytes is planned.
    pub fn new(
        call: &Fingerprint,
        members: &[PeerId],
        ring: &[PeerId],
        me: PeerId,
        unit: u64,
    ) -> Result<Self, PlanError> {
        let find = |list: &[PeerId], peer: PeerId| {
            list.iter().position(|member| *member == peer).expect("a plan is made for members") as u32
        };
        let world = members.len();
        let (rank, position) = (find(members, me) as usize, find(ring, me));
        let neighbour = |steps: usize| ring[(position as usize + steps) % world];
        let ranks = || ring.iter().map(|peer| find(members, *peer)).collect::<Vec<_>>();
        let (elements, size) = call.grains();
        let shape = call.shape_of(elements, world, call.root == Some(me));
        operation_bytes(shape.0.max(shape.1), size)?;
        let part = elements as usize * size;
        // Where a rank's part of the whole begins.
        let place = |peer: PeerId| find(members, peer) as usize * part;
        let own = |input, output| Some(Block { input, output, bytes: part });
        let others = || members.iter().copied().filter(move |peer| *peer != me);
        let still = |own| Self { flow: Flow::Still, outgoing: Vec::new(), incoming: Vec::new(), own };
        let is_root = call.root == Some(me);
        if world == 1 || elements == 0 {
            // The result is the contribution; nothing is copied where only one of the two is wanted.
            return Ok(still(if shape.0 == shape.1 { own(0, 0) } else { None }));
        }
        let ring_of = |plan: RingPlan, own| Self {
            flow: Flow::Ring(plan),
            outgoing: vec![neighbour(1)],
            incoming: vec![neighbour(world - 1)],
            own,
        };
        let straight = |out: Vec<PeerId>, inward: Vec<PeerId>, strides: (bool, bool), own| {
            let starts = |peers: &[PeerId], strided: bool| {
                peers.iter().map(|peer| if strided { place(*peer) } else { 0 }).collect()
            };
            let (sources, targets) = (starts(&out, strides.0), starts(&inward, strides.1));
            let plan = StreamPlan::straight(sources, targets, elements, size)?;
            Ok(Self { flow: Flow::Streams(plan), outgoing: out, incoming: inward, own })
        };
        // How far this member is behind the head of a chain along the ring.
        let behind = |head: usize| (position as usize + world - head % world) % world;
        let root = || find(ring, call.root.expect("this kind has a root")) as usize;
        let chain = |distance: usize, reduces: bool| {
            let (first, last) = (distance == 0, distance + 1 == world);
            let plan = StreamPlan::chain(first, last, reduces, elements, size)?;
            let outgoing = if last { Vec::new() } else { vec![neighbour(1)] };
            let incoming = if first { Vec::new() } else { vec![neighbour(world - 1)] };
            Ok(Self { flow: Flow::Streams(plan), outgoing, incoming, own: None })
        };
        match call.kind {
            OpKind::AllReduce | OpKind::AllReduceMany => {
                // Grains of several types are bytes.
                let mixed = call.data_types.is_some();
                let unit =
                    if mixed { (unit * sections::ELEMENT_BYTES_MAX).max(MIXED_BYTES_UNIT) } else { unit };
                let plan = RingPlan::all_reduce(world as u32, position, elements, size, unit)?;
                Ok(ring_of(plan, None))
            }
            OpKind::AllGather => {
                let plan = RingPlan::all_gather(ranks(), position, elements, size)?;
                Ok(ring_of(plan, own(0, rank * part)))
            }
            OpKind::ReduceScatter => {
                Ok(ring_of(RingPlan::reduce_scatter(ranks(), position, elements, size)?, None))
            }
            OpKind::Broadcast => chain(behind(root()), false),
            // The chain ends at the root, so it begins behind it.
            OpKind::Reduce => chain(behind(root() + 1), true),
            OpKind::Gather if is_root => {
                straight(Vec::new(), others().collect(), (false, true), own(0, rank * part))
            }
            OpKind::Gather => straight(call.root.into_iter().collect(), Vec::new(), (false, false), None),
            OpKind::Scatter if is_root => {
                straight(others().collect(), Vec::new(), (true, false), own(rank * part, 0))
            }
            OpKind::Scatter => straight(Vec::new(), call.root.into_iter().collect(), (false, false), None),
            OpKind::AllToAll => {
                // Each begins with the one behind it, so that not all talk to the same one first.
                let after = |steps: usize| members[(rank + steps) % world];
                let out = (1..world).map(after).collect();
                let inward = (1..world).map(|steps| after(world - steps)).collect();
                straight(out, inward, (true, true), own(rank * part, rank * part))
            }
            OpKind::Barrier | OpKind::SendReceive => panic!("{} has no plan of this kind", call.kind),
        }
    }

    /// One member's data, straight to another: `sends` says which end this is.
    pub fn transfer(call: &Fingerprint, peer: PeerId, sends: bool) -> Result<Self, PlanError> {
        let (elements, size) = (call.elements(), call.data_type.size());
        operation_bytes(elements, size)?;
        let (sources, targets) = if sends { (vec![0], Vec::new()) } else { (Vec::new(), vec![0]) };
        let flow = Flow::Streams(StreamPlan::straight(sources, targets, elements, size)?);
        let (outgoing, incoming) = if sends { (vec![peer], Vec::new()) } else { (Vec::new(), vec![peer]) };
        Ok(Self { flow, outgoing, incoming, own: None })
    }

    /// How the blocks flow.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Whom this member sends to, by lane.
    pub fn outgoing(&self) -> &[PeerId] {
        &self.outgoing
    }

    /// Whom this member receives from, by lane.
    pub fn incoming(&self) -> &[PeerId] {
        &self.incoming
    }

    /// What is copied from the input to the output without anybody else.
    pub fn own(&self) -> Option<Block> {
        self.own
    }

    /// Bytes of the largest block.
    pub fn block_bytes(&self) -> usize {
        match &self.flow {
            Flow::Still => 0,
            Flow::Ring(ring) => ring.block_bytes(),
            Flow::Streams(streams) => streams.block_bytes(),
        }
    }

    /// The most that passes over one lane; both of its ends have the same number.
    pub fn link_bytes_bound(&self) -> u64 {
        match &self.flow {
            Flow::Still => 0,
            Flow::Ring(ring) => ring.link_bytes_bound(),
            Flow::Streams(streams) => streams.link_bytes(),
        }
    }

    /// Blocks that pass over each lane.
    pub fn blocks_per_lane(&self) -> u64 {
        match &self.flow {
            Flow::Still => 0,
            Flow::Ring(ring) => u64::from(ring.laps()) * u64::from(ring.steps()),
            Flow::Streams(streams) => u64::from(streams.blocks()),
        }
    }

    /// The block that is sent on `lane` in `step` of `lap`.
    pub fn sends(&self, lane: usize, lap: u32, step: u32) -> Block {
        match &self.flow {
            Flow::Still => unreachable!("nothing is sent"),
            Flow::Ring(ring) => ring.sends(lap, step),
            Flow::Streams(streams) => streams.sends(lane, lap),
        }
    }

    /// The block that arrives on `lane` in `step` of `lap`.
    pub fn receives(&self, lane: usize, lap: u32, step: u32) -> Block {
        match &self.flow {
            Flow::Still => unreachable!("nothing arrives"),
            Flow::Ring(ring) => ring.receives(lap, step),
            Flow::Streams(streams) => streams.receives(lane, lap),
        }
    }

    /// What to do with what arrives in `step`.
    pub fn duty(&self, step: u32) -> Duty {
        match &self.flow {
            Flow::Still => unreachable!("nothing arrives"),
            Flow::Ring(ring) => ring.duty(step),
            Flow::Streams(streams) => streams.duty(),
        }
    }
}

/// The bytes of so many elements, if anybody can mean as many.
pub(super) fn operation_bytes(elements: u64, element_bytes: usize) -> Result<u64, PlanError> {
    let bytes = elements.checked_mul(element_bytes as u64).filter(|bytes| *bytes <= OPERATION_BYTES_MAX);
    bytes.ok_or(PlanError::TooLarge { elements, element_bytes })
}

/// How many elements make a block, when so many elements are cut into laps of so many blocks.
pub(super) fn block_elements(elements: u64, blocks: u64, element_bytes: usize, unit: u64) -> u64 {
    let size = element_bytes as u64;
    let unit = unit.max(BLOCK_ELEMENTS_UNIT);
    let share = elements * size / blocks;
    let wanted = (share / BLOCKS_WANTED).clamp(BLOCK_BYTES_WANTED, BLOCK_BYTES_MAX as u64);
    let (segment, header) = (SEGMENT_BYTES as u64, FRAME_HEADER_BYTES as u64);
    let segments = (wanted + header) / segment;
    if segments > 0 {
        // Frames of whole segments; the last lap takes what is left.
        (segments * segment - header) / size / unit * unit
    } else {
        // Programs like powers of two, and so do the limits here. A few bytes beside such a tensor must not double its frames.
        let lap = blocks * (wanted / size);
        let laps = elements.saturating_sub(lap / CRUMB).div_ceil(lap).max(1);
        elements.div_ceil(blocks * laps).next_multiple_of(unit)
    }
}

#[cfg(test)]
mod tests;
