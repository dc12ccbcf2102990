//! What every collective computes, for every type, operation, world, count and place, against a reference.
//!
//! The reference knows numbers, not bytes: it computes in wide integers and in f64 from values that are exact in
//! every type, so that the expected result does not depend on the order of a reduction. What members contribute
//! repeats itself after a while, at no multiple of any block's size, so that a reference for large tensors is
//! computed once and laid out as often as it is needed.

mod support;

use half::{bf16, f16};
use outlast::executor::{Abort, Buffers, OpSpec};
use outlast_proto::collective::{DataType, Fingerprint, OpKind, ReduceOp, legal};
use support::{Cluster, Member};

const REDUCTIONS: [OpKind; 3] = [OpKind::AllReduce, OpKind::ReduceScatter, OpKind::Reduce];
const MOVES: [OpKind; 5] =
    [OpKind::AllGather, OpKind::Broadcast, OpKind::Gather, OpKind::Scatter, OpKind::AllToAll];

/// A number of any type, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Whole(i128),
    Real(f64),
}

/// After so many places contributions repeat themselves.
const PERIOD: usize = 97 * 251;

/// The number that a member contributes at a place: small, and of both signs where there are signs.
fn contribution(data_type: DataType, member: usize, at: usize) -> Number {
    let pattern = (at * 7 + member * 13 + at / 251) % 97;
    match data_type {
        DataType::Bool => Number::Whole(i128::from(!pattern.is_multiple_of(member + 2))),
        DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64 => Number::Whole(pattern as i128 * 2),
        DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64 => Number::Whole(pattern as i128 - 48),
        // Products of five of these fit the eight bits of a bf16.
        _ => Number::Real([1.0, -2.0, 3.0, 4.0, -1.0, 2.0, -3.0][pattern % 7]),
    }
}

/// As the type holds it: integers wrap around, floats round.
fn held(data_type: DataType, number: Number) -> Number {
    match (data_type, number) {
        (DataType::U8, Number::Whole(n)) => Number::Whole(i128::from(n as u8)),
        (DataType::I8, Number::Whole(n)) => Number::Whole(i128::from(n as i8)),
        (DataType::U16, Number::Whole(n)) => Number::Whole(i128::from(n as u16)),
        (DataType::I16, Number::Whole(n)) => Number::Whole(i128::from(n as i16)),
        (DataType::U32, Number::Whole(n)) => Number::Whole(i128::from(n as u32)),
        (DataType::I32, Number::Whole(n)) => Number::Whole(i128::from(n as i32)),
        (DataType::U64, Number::Whole(n)) => Number::Whole(i128::from(n as u64)),
        (DataType::I64, Number::Whole(n)) => Number::Whole(i128::from(n as i64)),
        (DataType::F16, Number::Real(x)) => Number::Real(f16::from_f32(x as f32).to_f64()),
        (DataType::BF16, Number::Real(x)) => Number::Real(bf16::from_f32(x as f32).to_f64()),
        (DataType::F32, Number::Real(x)) => Number::Real(f64::from(x as f32)),
        _ => number,
    }
}

fn encode(data_type: DataType, number: Number, bytes: &mut Vec<u8>) {
    match (data_type, number) {
        (DataType::F16, Number::Real(x)) => bytes.extend(f16::from_f64(x).to_le_bytes()),
        (DataType::BF16, Number::Real(x)) => bytes.extend(bf16::from_f64(x).to_le_bytes()),
        (DataType::F32, Number::Real(x)) => bytes.extend((x as f32).to_le_bytes()),
        (DataType::F64, Number::Real(x)) => bytes.extend(x.to_le_bytes()),
        (_, Number::Whole(n)) => bytes.extend_from_slice(&n.to_le_bytes()[..data_type.size()]),
        _ => panic!("{number:?} is no {data_type}"),
    }
}

fn join(op: ReduceOp, data_type: DataType, a: Number, b: Number) -> Number {
    let joined = match (a, b) {
        (Number::Whole(a), Number::Whole(b)) => Number::Whole(match op {
            // Truth values: any and all.
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr if data_type == DataType::Bool => a | b,
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd if data_type == DataType::Bool => a & b,
            ReduceOp::Sum | ReduceOp::Avg => a + b,
            ReduceOp::Prod => a * b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::BitAnd => a & b,
            ReduceOp::BitOr => a | b,
            ReduceOp::BitXor => a ^ b,
            other => panic!("{other}"),
        }),
        (Number::Real(a), Number::Real(b)) => Number::Real(match op {
            ReduceOp::Sum | ReduceOp::Avg => a + b,
            ReduceOp::Prod => a * b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
            other => panic!("{other} of a float"),
        }),
        _ => panic!("two kinds of numbers"),
    };
    held(data_type, joined)
}

/// The reduction of what all members contribute at a place.
fn reduced(op: ReduceOp, data_type: DataType, world: usize, at: usize) -> Number {
    let contributions = (0..world).map(|member| held(data_type, contribution(data_type, member, at)));
    let joined = contributions.reduce(|a, b| join(op, data_type, a, b)).expect("somebody");
    match joined {
        Number::Whole(n) if op == ReduceOp::Avg => Number::Whole(n / world as i128),
        // 16-bit floats are divided as f32; f64 as they are.
        Number::Real(x) if op == ReduceOp::Avg && data_type == DataType::F64 => {
            Number::Real(x / world as f64)
        }
        Number::Real(x) if op == ReduceOp::Avg => {
            held(data_type, Number::Real(f64::from(x as f32 / world as f32)))
        }
        joined => joined,
    }
}

/// What a call is held against: a period of each member's contribution, and of their reduction.
struct Reference {
    contributions: Vec<Vec<u8>>,
    reduction: Vec<u8>,
}

impl Reference {
    fn new(call: &Fingerprint, world: usize) -> Self {
        let (data_type, op) = (call.data_type, call.op);
        let places = PERIOD.min(world * call.elements() as usize);
        let bytes = |number: &dyn Fn(usize) -> Number| {
            let mut bytes = Vec::with_capacity(places * data_type.size());
            (0..places).for_each(|at| encode(data_type, number(at), &mut bytes));
            bytes
        };
        let contributed = |member| bytes(&|at| held(data_type, contribution(data_type, member, at)));
        let reduces = call.kind.reduces();
        Self {
            contributions: (0..world).map(contributed).collect(),
            reduction: if reduces { bytes(&|at| reduced(op, data_type, world, at)) } else { Vec::new() },
        }
    }
}

/// One collective as one member sees it.
struct Case<'a> {
    call: &'a Fingerprint,
    reference: &'a Reference,
    world: usize,
    rank: usize,
    root: usize,
}

impl Case<'_> {
    /// Part `at` of something that repeats itself.
    fn part_of(&self, period: &[u8], at: usize, bytes: &mut Vec<u8>) {
        let part = self.call.elements() as usize * self.call.data_type.size();
        let (mut place, end) = (at * part, (at + 1) * part);
        while place < end {
            let from = place % period.len();
            let length = (period.len() - from).min(end - place);
            bytes.extend_from_slice(&period[from..from + length]);
            place += length;
        }
    }

    /// What these members contribute to that part, one behind the other.
    fn parts(&self, which: impl Iterator<Item = (usize, usize)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        which.for_each(|(from, at)| self.part_of(&self.reference.contributions[from], at, &mut bytes));
        bytes
    }

    fn reduction(&self, at: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.part_of(&self.reference.reduction, at, &mut bytes);
        bytes
    }

    fn is_root(&self) -> bool {
        self.rank == self.root
    }

    fn input(&self) -> Vec<u8> {
        let (reads, _) = self.call.shape(self.world, self.is_root());
        let parts = reads.checked_div(self.call.elements()).unwrap_or(0) as usize;
        self.parts((0..parts).map(|part| (self.rank, part)))
    }

    fn expected(&self) -> Vec<u8> {
        let everybody = |part: usize| self.parts((0..self.world).map(|from| (from, part)));
        match self.call.kind {
            OpKind::AllReduce => self.reduction(0),
            OpKind::ReduceScatter => self.reduction(self.rank),
            OpKind::Reduce if self.is_root() => self.reduction(0),
            OpKind::AllGather => everybody(0),
            OpKind::Gather if self.is_root() => everybody(0),
            OpKind::Broadcast if !self.is_root() => self.parts([(self.root, 0)].into_iter()),
            OpKind::Scatter => self.parts([(self.root, self.rank)].into_iter()),
            OpKind::AllToAll => everybody(self.rank),
            _ => Vec::new(),
        }
    }

    /// Where a member that works in place has its part: how far the input lies behind the start of the output
    /// (or the output behind that of the input) in the one buffer.
    fn place(&self) -> (usize, usize) {
        let part = self.rank * self.call.elements() as usize * self.call.data_type.size();
        match self.call.kind {
            OpKind::AllGather | OpKind::Gather => (part, 0),
            OpKind::ReduceScatter | OpKind::Scatter => (0, part),
            _ => (0, 0),
        }
    }

    /// Performs it, and compares. Whatever the caller did not offer as output must be as it was.
    fn perform(
        &self,
        spec: &OpSpec,
        member: &Member,
        (input, expected): (&[u8], &[u8]),
        in_place: bool,
        commit: bool,
    ) {
        let (reads, writes) = (input.len(), expected.len());
        let what = || format!("{} at rank {} of {}, in place: {in_place}", self.call, self.rank, self.world);
        if in_place && reads > 0 && writes > 0 {
            let (from, to) = self.place();
            let mut memory = vec![0x5a; reads.max(writes)];
            memory[from..from + reads].copy_from_slice(input);
            let before = memory.clone();
            let start = memory.as_mut_ptr();
            // SAFETY: both lie in the one buffer, which nobody else touches until the call is over.
            let buffers = unsafe {
                Buffers::from_raw([(start.add(from).cast_const(), reads)], [(start.add(to), writes)])
            };
            let performed = member.plane.perform(spec, buffers, &Abort::new()).unwrap();
            if commit {
                performed.commit();
                assert!(memory[to..to + writes] == *expected, "{}", what());
                assert!(
                    memory[..to] == before[..to] && memory[to + writes..] == before[to + writes..],
                    "{}",
                    what()
                );
            } else {
                performed.undo();
                assert!(memory == before, "{}", what());
            }
            return;
        }
        let mut output = vec![0x5a; writes];
        let buffers = Buffers::out_of_place([input], [&mut output[..]]);
        let performed = member.plane.perform(spec, buffers, &Abort::new()).unwrap();
        if commit {
            performed.commit();
            assert!(output == expected, "{}", what());
        } else {
            performed.undo();
            assert!(output.iter().all(|byte| *byte == 0x5a), "{}", what());
        }
    }
}

fn calls(kinds: &[OpKind], world: usize, counts: &[usize]) -> Vec<Fingerprint> {
    let mut calls = Vec::new();
    for (number, data_type) in DataType::ALL.into_iter().enumerate() {
        for kind in kinds {
            let ops = ReduceOp::ALL.into_iter().filter(|op| legal(*op, data_type, None).is_ok());
            for op in ops.take(if kind.reduces() { usize::MAX } else { 1 }) {
                for count in counts {
                    let root = kind.has_root().then(|| support::peer((number + count) % world));
                    let call = Fingerprint::new(*kind, data_type, [*count as u64]);
                    calls.push(Fingerprint { op, root, ..call });
                }
            }
        }
    }
    calls
}

/// Every member makes all calls in the same order, in place and out of place.
fn run(cluster: &Cluster, calls: &[Fingerprint], commit: bool) {
    run_as(cluster, calls, 0, commit);
}

/// The same under a tag.
fn run_as(cluster: &Cluster, calls: &[Fingerprint], tag: u64, commit: bool) {
    let world = cluster.members.len();
    let references: Vec<_> = calls.iter().map(|call| Reference::new(call, world)).collect();
    cluster.everybody(|rank, member| {
        for (number, (call, reference)) in calls.iter().zip(&references).enumerate() {
            let root = (0..world).position(|rank| call.root == Some(support::peer(rank))).unwrap_or(0);
            let case = Case { call, reference, world, rank, root };
            let (input, expected) = (case.input(), case.expected());
            for (half, in_place) in [true, false].into_iter().enumerate() {
                let seq = (2 * number + half) as u64;
                let spec = cluster.spec_of(call, tag, seq);
                case.perform(&spec, member, (&input, &expected), in_place, commit);
            }
        }
    });
}

fn small_counts(world: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 2, world - 1, world, world + 1, 1_023];
    counts.sort_unstable();
    counts.dedup();
    counts
}

#[test]
fn every_reduction_of_every_type_is_exact() {
    for world in 1..=5 {
        run(&Cluster::new(world), &calls(&REDUCTIONS, world, &small_counts(world)), true);
    }
}

#[test]
fn every_type_is_moved_to_where_it_belongs() {
    for world in 1..=5 {
        run(&Cluster::new(world), &calls(&MOVES, world, &small_counts(world)), true);
    }
}

/// A count that no block, no world and no vector divides.
const LARGE: usize = 203_530;

/// All calls of these kinds with large tensors; one type at a time, because the references are large too.
fn run_large(kinds: &[OpKind], world: usize) {
    let cluster = Cluster::new(world);
    for (number, data_type) in DataType::ALL.into_iter().enumerate() {
        let mut calls = calls(kinds, world, &[LARGE]);
        calls.retain(|call| call.data_type == data_type);
        run_as(&cluster, &calls, number as u64, true);
    }
}

#[test]
fn every_large_reduction_of_every_type_is_exact_up_to_three_members() {
    (1..=3).for_each(|world| run_large(&REDUCTIONS, world));
}

#[test]
fn every_large_reduction_of_every_type_is_exact_among_four() {
    run_large(&REDUCTIONS, 4);
}

#[test]
fn every_large_reduction_of_every_type_is_exact_among_five() {
    run_large(&REDUCTIONS, 5);
}

#[test]
fn every_large_tensor_of_every_type_is_moved_to_where_it_belongs() {
    (1..=5).for_each(|world| run_large(&MOVES, world));
}

#[test]
fn every_collective_can_be_undone() {
    for world in 1..=4 {
        let kinds = [&REDUCTIONS[..], &MOVES].concat();
        let calls: Vec<_> = calls(&kinds, world, &[1, 1_023, 50_001])
            .into_iter()
            .filter(|call| matches!(call.data_type, DataType::F16 | DataType::U32))
            .filter(|call| call.op == ReduceOp::Sum)
            .collect();
        assert_eq!(calls.len(), 48);
        run(&Cluster::new(world), &calls, false);
    }
}
