//! The plans of all members, run against each other on letters instead of bytes.
//!
//! Each byte of an input is a power of ten for its member, so a reduction shows who is in it and how often, plus
//! a number for its place, so a part that lands in the wrong place shows too.

use super::*;
use crate::collective::{DataType, OpKind};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// A block on its way: lap, step and contents.
type Parcel = (u32, u32, Vec<u64>);

struct World {
    call: Fingerprint,
    members: Vec<PeerId>,
    plans: Vec<Plan>,
    inputs: Vec<Vec<u64>>,
    outputs: Vec<Vec<u64>>,
    wires: BTreeMap<(PeerId, PeerId), VecDeque<Parcel>>,
}

fn peer(number: usize) -> PeerId {
    PeerId::from_bytes([number as u8 + 1; 16])
}

impl World {
    fn new(kind: OpKind, world: usize, elements: u64, turn: usize, root: usize) -> Self {
        let members: Vec<_> = (0..world).map(peer).collect();
        // A ring in another order than the ranks.
        let mut ring = members.clone();
        ring.rotate_left(turn % world);
        if turn % 2 == 1 {
            ring[1..].reverse();
        }
        let root = kind.has_root().then(|| members[root % world]);
        let call = Fingerprint { root, ..Fingerprint::new(kind, DataType::U16, [elements]) };
        let shape = |me: &PeerId| call.shape(world, root == Some(*me));
        let bytes = |elements: u64| elements as usize * 2;
        let input = |(rank, me): (usize, &PeerId)| {
            let label = if kind.reduces() { 10_u64.pow(rank as u32) } else { 1_000_000 * (rank as u64 + 1) };
            let place = |at: usize| if kind.reduces() { label } else { label + at as u64 };
            (0..bytes(shape(me).0)).map(place).collect::<Vec<_>>()
        };
        Self {
            plans: members.iter().map(|me| Plan::new(&call, &members, &ring, *me, 1).unwrap()).collect(),
            inputs: members.iter().enumerate().map(input).collect(),
            outputs: members.iter().map(|me| vec![0; bytes(shape(me).1)]).collect(),
            wires: BTreeMap::new(),
            members,
            call,
        }
    }

    fn send(&mut self, me: usize, lane: usize, parcel: Parcel) {
        let plan = &self.plans[me];
        assert_eq!(plan.sends(lane, parcel.0, parcel.1).bytes, parcel.2.len());
        let link = (self.members[me], plan.outgoing()[lane]);
        self.wires.entry(link).or_default().push_back(parcel);
    }

    fn begin(&mut self) {
        for me in 0..self.plans.len() {
            let plan = self.plans[me].clone();
            if let Some(own) = plan.own() {
                self.outputs[me][own.outputs()].copy_from_slice(&self.inputs[me][own.inputs()]);
            }
            let (lanes, laps) = match plan.flow() {
                Flow::Still => (0, 0),
                Flow::Ring(ring) => (1, ring.laps()),
                Flow::Streams(streams) if streams.begins_here() => (plan.outgoing().len(), streams.blocks()),
                Flow::Streams(_) => (0, 0),
            };
            for (lane, lap) in (0..lanes).flat_map(|lane| (0..laps).map(move |lap| (lane, lap))) {
                let block = self.inputs[me][plan.sends(lane, lap, 0).inputs()].to_vec();
                self.send(me, lane, (lap, 0, block));
            }
        }
    }

    fn receive(&mut self, me: usize, lane: usize, (lap, step, mut parcel): Parcel) {
        let plan = self.plans[me].clone();
        let (block, duty) = (plan.receives(lane, lap, step), plan.duty(step));
        assert_eq!(block.bytes, parcel.len(), "both ends agree about every length");
        if duty.combines() {
            let own = &self.inputs[me][block.inputs()];
            parcel.iter_mut().zip(own).for_each(|(partial, own)| *partial += own);
        }
        if duty != Duty::CombineAndPassOn {
            let output = &mut self.outputs[me][block.outputs()];
            assert!(output.iter().all(|byte| *byte == 0), "each byte is written exactly once");
            output.copy_from_slice(&parcel);
        }
        if duty.passes_on() {
            let next = if matches!(plan.flow(), Flow::Ring(_)) { step + 1 } else { 0 };
            self.send(me, 0, (lap, next, parcel));
        }
    }

    /// Delivers everything, and counts what passed over each lane.
    fn run(&mut self) {
        self.begin();
        let mut passed: BTreeMap<(PeerId, PeerId), (u64, u64)> = BTreeMap::new();
        while let Some((&(from, to), parcel)) =
            self.wires.iter_mut().find_map(|(link, wire)| wire.pop_front().map(|parcel| (link, parcel)))
        {
            let count = passed.entry((from, to)).or_default();
            *count = (count.0 + 1, count.1 + parcel.2.len() as u64);
            let me = self.members.iter().position(|peer| *peer == to).unwrap();
            let lane = self.plans[me].incoming().iter().position(|peer| *peer == from);
            self.receive(me, lane.expect("whoever sends is expected"), parcel);
        }
        for (me, plan) in self.members.iter().zip(&self.plans) {
            for peer in plan.outgoing() {
                let (blocks, bytes) = passed.get(&(*me, *peer)).copied().unwrap_or_default();
                assert_eq!(blocks, plan.blocks_per_lane());
                assert!(bytes <= plan.link_bytes_bound(), "the eager limit is held against the bound");
            }
            for peer in plan.incoming() {
                assert_eq!(passed.get(&(*peer, *me)).map_or(0, |passed| passed.0), plan.blocks_per_lane());
            }
        }
    }

    /// What the member of that rank must end with.
    fn expected(&self, rank: usize) -> Vec<u64> {
        let bytes = self.call.elements() as usize * 2;
        let world = self.members.len();
        let everybody = (0..world as u32).map(|rank| 10_u64.pow(rank)).sum();
        let part = |from: usize, at: usize| {
            (0..bytes).map(move |i| 1_000_000 * (from as u64 + 1) + (at * bytes + i) as u64)
        };
        let root = self.call.root.and_then(|root| self.members.iter().position(|peer| *peer == root));
        let at_root = root.is_none_or(|root| root == rank);
        match self.call.kind {
            OpKind::AllReduce | OpKind::ReduceScatter => vec![everybody; bytes],
            OpKind::Reduce if at_root => vec![everybody; bytes],
            OpKind::AllGather => (0..world).flat_map(|from| part(from, 0)).collect(),
            OpKind::Gather if at_root => (0..world).flat_map(|from| part(from, 0)).collect(),
            OpKind::Broadcast if !at_root => part(root.unwrap(), 0).collect(),
            OpKind::Scatter => part(root.unwrap(), rank).collect(),
            OpKind::AllToAll => (0..world).flat_map(|from| part(from, rank)).collect(),
            _ => Vec::new(),
        }
    }
}

const KINDS: [OpKind; 8] = [
    OpKind::AllReduce,
    OpKind::AllGather,
    OpKind::ReduceScatter,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::AllToAll,
];

fn check(kind: OpKind, world: usize, elements: u64, turn: usize, root: usize) {
    let mut run = World::new(kind, world, elements, turn, root);
    run.run();
    for rank in 0..world {
        assert!(
            run.outputs[rank] == run.expected(rank),
            "{kind}, rank {rank} of {world}, {elements} elements"
        );
    }
}

proptest! {
    #[test]
    fn every_byte_gets_where_it_belongs(
        kind in prop::sample::select(KINDS.to_vec()), world in 1_usize..=8, elements in 0_u64..3_000,
        turn in 0_usize..8, root in 0_usize..8
    ) {
        check(kind, world, elements, turn, root);
    }
}

#[test]
fn several_blocks_on_each_lane_work_too() {
    for kind in KINDS {
        for (world, turn) in [(2, 0), (3, 1), (4, 3)] {
            check(kind, world, 150_001, turn, turn);
            let plan = &World::new(kind, world, 150_001, turn, 0).plans[0];
            let blocks = match plan.flow() {
                Flow::Ring(ring) => ring.laps(),
                Flow::Streams(streams) => streams.blocks(),
                Flow::Still => 0,
            };
            assert!(blocks > 1, "the test wants several blocks: {kind}");
        }
    }
}

/// A training loop sends a cache line or two beside its gradients, and programs like powers of two.
#[test]
fn a_few_bytes_beside_a_power_of_two_cost_no_more_frames() {
    use DataType::{F32, F64};
    for world in 2..=8 {
        let members: Vec<_> = (0..world).map(peer).collect();
        let cut = |tensors: &[(DataType, u64)]| {
            let counts = tensors.iter().map(|(_, count)| *count);
            let types = tensors.iter().map(|(data_type, _)| *data_type).collect();
            let call = Fingerprint::new(OpKind::AllReduceMany, F32, counts).typed(types);
            let plan = Plan::new(&call, &members, &members, members[0], 1).unwrap();
            let Flow::Ring(ring) = plan.flow() else { panic!("a reduction is a ring") };
            (ring.laps(), ring.block_bytes())
        };
        for elements in (8..26).map(|power| 1 << power) {
            let (alone, beside) = (cut(&[(F32, elements)]), cut(&[(F32, elements), (F64, 16)]));
            assert_eq!(beside.0, alone.0, "{elements} elements among {world}");
            assert!(beside.1 >= alone.1 && beside.1 <= alone.1 + 128, "{alone:?} {beside:?}");
        }
    }
}

#[test]
fn a_transfer_of_nothing_is_one_block_of_nothing() {
    let call = Fingerprint::new(OpKind::SendReceive, DataType::F64, [0]);
    let plan = Plan::transfer(&call, peer(1), true).unwrap();
    assert_eq!((plan.blocks_per_lane(), plan.sends(0, 0, 0).bytes), (1, 0));
}

#[test]
fn an_absurd_part_is_refused() {
    let members = [peer(0), peer(1)];
    let call = Fingerprint::new(OpKind::AllToAll, DataType::F64, [1 << 41]);
    let plan = Plan::new(&call, &members, &members, members[0], 1);
    assert!(matches!(plan, Err(PlanError::TooLarge { .. })));
}
