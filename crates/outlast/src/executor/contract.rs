//! What every transport must do, whatever carries its bytes: the contract of [`transport`](super::transport), tested.
//!
//! Each function here is one clause. It gets a way to make a group and knows nothing else about it. The macro at the
//! end runs every clause over every transport; a new transport is one more line there.

mod transfers;
pub(crate) mod worlds;

use super::plane::{DataPlane, OpSpec, Performed};
use super::transport::board::Hall;
use super::{Abort, Buffers, Stopped};
use crate::watch::{cancels, watched};
use outlast_proto::collective::{DataType, Fingerprint, OpKind, ReduceOp};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};
use transfers::{
    a_receive_that_was_given_up_takes_back_that_it_waits, a_send_that_was_given_up_is_not_received,
    a_transfer_gives_its_values_whoever_comes_first, a_transfer_outlives_epochs_and_ends_with_its_other_end,
    an_abort_or_a_shutdown_ends_a_transfer, another_call_at_the_other_end_is_noticed_by_the_sender,
};
use worlds::{Make, PATIENCE, World, peer};

const KINDS: [OpKind; 9] = [
    OpKind::AllReduce,
    OpKind::AllReduceMany,
    OpKind::AllGather,
    OpKind::ReduceScatter,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::AllToAll,
];

/// What an output holds before the call.
const BEFORE: i32 = -7;

fn call(kind: OpKind, world: usize, count: usize) -> Fingerprint {
    let root = kind.has_root().then(|| peer(world - 1));
    Fingerprint { root, ..Fingerprint::new(kind, DataType::I32, [count as u64]) }
}

fn reduction(count: usize) -> Fingerprint {
    call(OpKind::AllReduce, 1, count)
}

/// The number at a place of a member's input: small enough for any sum, and different from place to place.
fn input(member: usize, at: usize) -> i32 {
    (1_000 * (member + 1) + at % 977) as i32
}

/// What a member must end with.
fn expected(call: &Fingerprint, world: usize, rank: usize) -> Vec<i32> {
    let count = call.elements() as usize;
    let is_root = call.root == Some(peer(rank));
    let sum = |at: usize| (0..world).map(|member| input(member, at)).sum();
    let part = |from: usize, at: usize| (0..count).map(move |place| input(from, at * count + place));
    match call.kind {
        OpKind::AllReduce | OpKind::AllReduceMany => (0..count).map(sum).collect(),
        OpKind::Reduce if is_root => (0..count).map(sum).collect(),
        OpKind::ReduceScatter => (rank * count..(rank + 1) * count).map(sum).collect(),
        OpKind::AllGather => (0..world).flat_map(|from| part(from, 0)).collect(),
        OpKind::Gather if is_root => (0..world).flat_map(|from| part(from, 0)).collect(),
        OpKind::Broadcast if !is_root => part(world - 1, 0).collect(),
        OpKind::Scatter => part(world - 1, rank).collect(),
        OpKind::AllToAll => (0..world).flat_map(|from| part(from, rank)).collect(),
        _ => Vec::new(),
    }
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// One member's memory of a call.
struct Memory {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Memory {
    fn new(call: &Fingerprint, world: usize, rank: usize) -> Self {
        let (reads, writes) = call.shape(world, call.root == Some(peer(rank)));
        let input: Vec<_> = (0..reads as usize).map(|at| input(rank, at)).collect();
        Self { input: bytes(&input), output: bytes(&vec![BEFORE; writes as usize]) }
    }

    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::out_of_place([&self.input[..]], [&mut self.output[..]])
    }

    fn is_as_it_was(&self) -> bool {
        self.output.chunks_exact(4).all(|value| value == BEFORE.to_ne_bytes())
    }
}

/// One attempt that nobody disturbs, committed.
fn commit(world: &World, call: &Fingerprint, tag: u64, seq: u64) {
    let size = world.members.len();
    world.everybody(|rank, member| {
        let mut memory = Memory::new(call, size, rank);
        let spec = world.spec(call, tag, seq);
        member.plane.perform(&spec, memory.buffers(), &Abort::new()).expect("nobody disturbs it").commit();
        assert!(memory.output == bytes(&expected(call, size, rank)), "{call}, rank {rank} of {size}");
    });
}

/// A call that only this member makes; says how it stopped. Its memory is as it was.
fn alone(world: &World, rank: usize, spec: &OpSpec, abort: &Abort) -> Stopped {
    let mut memory = Memory::new(&spec.fingerprint, world.members.len(), rank);
    let stopped = world.members[rank].plane.perform(spec, memory.buffers(), abort).map(drop);
    assert!(memory.is_as_it_was(), "rank {rank}: {stopped:?}");
    stopped.expect_err("the others make no such call")
}

// ---- values ----

fn every_kind_gives_its_values(make: Make) {
    for size in 1..=3 {
        let world = make(size);
        for (tag, kind) in KINDS.into_iter().enumerate() {
            for (seq, count) in [1, 1_000, 40_003].into_iter().enumerate() {
                commit(&world, &call(kind, size, count), tag as u64, seq as u64);
            }
        }
    }
}

fn nothing_to_say_is_said(make: Make) {
    for size in 1..=3 {
        let world = make(size);
        for (tag, kind) in KINDS.into_iter().enumerate() {
            commit(&world, &call(kind, size, 0), tag as u64, 0);
        }
        commit(&world, &reduction(5), 99, 0);
    }
}

fn a_list_of_several_types_is_one_attempt(make: Make) {
    let world = make(3);
    let types = vec![DataType::U8, DataType::F32, DataType::I64, DataType::F32];
    let counts = [5, 30_001, 3, 0];
    let call = Fingerprint::new(OpKind::AllReduceMany, DataType::U8, counts).typed(types);
    for (seq, op) in [ReduceOp::Sum, ReduceOp::Avg].into_iter().enumerate() {
        let call = Fingerprint { op, ..call.clone() };
        world.everybody(|rank, member| {
            let value = |scale: u8| scale * (rank as u8 + 1);
            let mut small = [value(1); 5];
            let mut floats = f32::from(value(2)).to_ne_bytes().repeat(30_001);
            let mut large = i64::from(value(3)).to_ne_bytes().repeat(3);
            let tensors = [&mut small[..], &mut floats[..], &mut large[..], &mut []];
            let spec = world.spec(&call, 0, seq as u64);
            member.plane.perform(&spec, Buffers::in_place(tensors), &Abort::new()).unwrap().commit();
            let share = if op == ReduceOp::Avg { 2 } else { 6 };
            assert_eq!(small, [share; 5]);
            assert!(floats == f32::from(2 * share).to_ne_bytes().repeat(30_001));
            assert_eq!(large, i64::from(3 * share).to_ne_bytes().repeat(3));
        });
    }
}

fn calls_under_many_tags_share_a_plane(make: Make) {
    const TAGS: usize = 6;
    let world = make(3);
    world.everybody(|rank, member| {
        thread::scope(|scope| {
            // Each member begins with another tag.
            for turn in 0..TAGS {
                let (tag, world) = ((turn + 2 * rank) % TAGS, &world);
                scope.spawn(move || {
                    let call = reduction(20_000 + tag);
                    for seq in 0..3 {
                        let mut memory = Memory::new(&call, 3, rank);
                        let spec = world.spec(&call, tag as u64, seq);
                        let performed = member.plane.perform(&spec, memory.buffers(), &Abort::new());
                        performed.expect("tags are apart").commit();
                        assert!(memory.output == bytes(&expected(&call, 3, rank)), "tag {tag}, {seq}");
                    }
                });
            }
        });
    });
}

// ---- settling ----

fn what_is_not_committed_is_as_it_was(make: Make) {
    let world = make(3);
    let call = reduction(50_001);
    for seq in 0..3 {
        world.everybody(|rank, member| {
            let original: Vec<u8> = bytes(&(0..50_001).map(|at| input(rank, at)).collect::<Vec<_>>());
            let mut tensor = original.clone();
            let spec = world.spec(&call, 0, seq);
            let buffers = Buffers::in_place([&mut tensor[..]]);
            let performed = member.plane.perform(&spec, buffers, &Abort::new()).unwrap();
            match seq {
                0 => performed.undo(),
                1 => drop(performed),
                _ => performed.commit(),
            }
            let result = if seq == 2 { bytes(&expected(&call, 3, rank)) } else { original };
            assert!(tensor == result, "attempt {seq}, rank {rank}");
        });
    }
}

/// A verdict may be late on one member: what it needs for its settlement is not used for anything else meanwhile.
fn a_result_waits_for_its_verdict(make: Make) {
    let world = make(3);
    let calls = Barrier::new(3);
    world.everybody(|rank, member| {
        let first = reduction(3_000);
        let mut memory = Memory::new(&first, 3, rank);
        let spec = world.spec(&first, 0, 0);
        let performed = member.plane.perform(&spec, memory.buffers(), &Abort::new()).expect("undisturbed");
        let waiting = if rank > 0 {
            performed.commit();
            None
        } else {
            Some(performed)
        };
        for seq in 0..4 {
            let call = reduction(3_000 + seq);
            let mut memory = Memory::new(&call, 3, rank);
            let spec = world.spec(&call, 1, seq as u64);
            member.plane.perform(&spec, memory.buffers(), &Abort::new()).expect("undisturbed").commit();
        }
        calls.wait();
        if let Some(performed) = waiting {
            performed.commit();
        }
        assert!(memory.output == bytes(&expected(&first, 3, rank)), "rank {rank}");
    });
}

// ---- stopping ----

/// The first to stop tells the others, as the decider does.
fn an_abort_at_any_moment_leaves_the_memory_alone(make: Make) {
    let world = make(3);
    let mut healthy = Duration::from_millis(2);
    let (mut aborted, mut seq) = (0, 0);
    for round in 0..60_u32 {
        if round >= 8 && aborted > 0 {
            break;
        }
        for kind in [OpKind::AllReduce, OpKind::AllToAll, OpKind::Broadcast] {
            let call = call(kind, 3, 20_000);
            let aborts = [Abort::new(), Abort::new(), Abort::new()];
            let delay = healthy * (round % 8) / 6;
            let outcomes = world.everybody(|rank, member| {
                thread::scope(|scope| {
                    if rank == 0 {
                        scope.spawn(|| {
                            thread::sleep(delay);
                            aborts.iter().for_each(Abort::trigger);
                        });
                    }
                    let mut memory = Memory::new(&call, 3, rank);
                    let spec = world.spec(&call, 0, seq);
                    let outcome = member.plane.perform(&spec, memory.buffers(), &aborts[rank]);
                    let outcome = outcome.map(Performed::undo);
                    assert!(memory.is_as_it_was(), "{call} after {delay:?}, rank {rank}");
                    outcome
                })
            });
            for outcome in outcomes {
                match outcome {
                    Ok(()) => {}
                    Err(Stopped::Aborted) => aborted += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            let started = Instant::now();
            commit(&world, &call, 0, seq + 1);
            healthy = started.elapsed();
            seq += 2;
        }
    }
    assert!(aborted > 0, "no abort came in time: nothing was tested");
}

fn a_deadline_ends_a_call_that_nobody_joins(make: Make) {
    let world = make(2);
    let call = reduction(100_000);
    let spec = OpSpec { deadline: Instant::now() + Duration::from_millis(50), ..world.spec(&call, 0, 0) };
    assert_eq!(alone(&world, 0, &spec, &Abort::new()), Stopped::Deadline);
    commit(&world, &call, 1, 0);
}

fn an_abort_before_the_call_counts(make: Make) {
    let world = make(2);
    let abort = Abort::new();
    abort.trigger();
    assert_eq!(alone(&world, 1, &world.spec(&reduction(10), 0, 0), &abort), Stopped::Aborted);
}

fn a_member_that_dies_is_a_broken_link_and_the_others_go_on(make: Make) {
    let mut world = make(3);
    let call = reduction(80_000);
    commit(&world, &call, 0, 0);
    let mut dying = world.members.pop().expect("three members");
    let spec = {
        // The epoch still has three.
        let mut spec = world.spec(&call, 0, 1);
        let mut all = spec.attempt.members.to_vec();
        all.push(dying.id);
        spec.attempt.members = all.clone().into();
        all[1..].reverse();
        spec.attempt.ring = all.into();
        spec
    };
    let aborts = [Abort::new(), Abort::new()];
    let stopped = thread::scope(|scope| {
        let (world, spec, aborts) = (&world, &spec, &aborts);
        let calls: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn(move || {
                    let mut memory = Memory::new(&spec.fingerprint, 3, rank);
                    let performed = world.members[rank].plane.perform(spec, memory.buffers(), &aborts[rank]);
                    let stopped = performed.map(drop).expect_err("one of three is missing");
                    aborts.iter().for_each(Abort::trigger);
                    assert!(memory.is_as_it_was(), "rank {rank}: {stopped}");
                    stopped
                })
            })
            .collect();
        // It may die before they wait or while they do: both are the same to them.
        dying.die();
        calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
    });
    let gone = dying.id;
    let named = |stopped: &Stopped| matches!(stopped, Stopped::LinkBroken(broken) if broken.ends_at(gone));
    assert!(stopped.iter().any(named), "{stopped:?}");
    assert!(stopped.iter().all(|stopped| named(stopped) || *stopped == Stopped::Aborted), "{stopped:?}");
    world.open_epoch();
    commit(&world, &call, 0, 0);
}

fn another_call_under_the_same_name_is_noticed(make: Make) {
    let world = make(2);
    let aborts = [Abort::new(), Abort::new()];
    let outcomes = world.everybody(|rank, member| {
        let call = reduction(5_000 + rank);
        let mut memory = Memory::new(&call, 2, rank);
        let outcome = member.plane.perform(&world.spec(&call, 0, 0), memory.buffers(), &aborts[rank]);
        let outcome = outcome.map(drop);
        if outcome.is_err() {
            aborts.iter().for_each(Abort::trigger);
        }
        assert!(memory.is_as_it_was(), "rank {rank}");
        outcome
    });
    let mismatch = |(rank, outcome): (usize, &Result<(), Stopped>)| matches!(outcome, Err(Stopped::Mismatch { peer: other, .. }) if *other == peer(1 - rank));
    assert!(outcomes.iter().enumerate().any(mismatch), "{outcomes:?}");
    commit(&world, &reduction(5_000), 0, 1);
}

fn what_belongs_to_no_open_epoch_has_no_effect(make: Make) {
    let mut world = make(2);
    let old = world.spec(&reduction(1_000), 0, 0);
    world.open_epoch();
    assert_eq!(alone(&world, 0, &old, &Abort::new()), Stopped::Stale);
    let mut early = world.spec(&reduction(1_000), 0, 0);
    early.attempt.key.epoch += 1;
    assert_eq!(alone(&world, 1, &early, &Abort::new()), Stopped::Stale);
    commit(&world, &reduction(1_000), 0, 0);
}

/// Makes a call, does something else while it waits, and returns how the call ended. A call asks between two waits whether
/// to give up, so whoever was asked waits.
fn meanwhile<T: Send>(call: impl FnOnce() -> T + Send, act: impl FnOnce()) -> T {
    let waits = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let asked = Arc::clone(&waits);
        let question = move || {
            asked.store(true, Ordering::SeqCst);
            false
        };
        let waiting = scope.spawn(move || {
            watched(Duration::from_millis(1), question, || {
                let _cancels = cancels(|| {});
                call()
            })
        });
        let give_up = Instant::now() + PATIENCE;
        while !waits.load(Ordering::SeqCst) {
            assert!(Instant::now() < give_up && !waiting.is_finished(), "the call never waited");
            thread::yield_now();
        }
        act();
        waiting.join().unwrap()
    })
}

/// Does something to the first member's plane while a call waits there, and says how the call stopped.
fn while_it_waits(world: &World, spec: &OpSpec, act: impl FnOnce(&DataPlane)) -> Stopped {
    meanwhile(|| alone(world, 0, spec, &Abort::new()), || act(&world.members[0].plane))
}

fn a_new_epoch_ends_what_is_under_way(make: Make) {
    let mut world = make(2);
    let spec = world.spec(&reduction(1_000), 0, 0);
    let stopped = while_it_waits(&world, &spec, |plane| plane.open_epoch(0, 2, world.addresses()));
    assert_eq!(stopped, Stopped::Aborted);
    world.open_epoch();
    commit(&world, &reduction(1_000), 0, 0);
}

fn a_shutdown_ends_what_is_under_way(make: Make) {
    let world = make(2);
    let spec = world.spec(&reduction(1_000), 0, 0);
    assert_eq!(while_it_waits(&world, &spec, DataPlane::shutdown), Stopped::Closed);
    assert_eq!(alone(&world, 0, &world.spec(&reduction(1_000), 1, 0), &Abort::new()), Stopped::Closed);
}

// ---- the program's own code ----

fn a_person_gives_a_call_up(make: Make) {
    let world = make(2);
    let (spec, abort) = (world.spec(&reduction(1_000), 0, 0), Abort::new());
    let stopped = watched(
        Duration::from_millis(5),
        || true,
        || {
            let trigger = abort.clone();
            let _cancels = cancels(move || trigger.trigger());
            alone(&world, 0, &spec, &abort)
        },
    );
    assert_eq!(stopped, Stopped::Aborted);
    commit(&world, &reduction(1_000), 0, 1);
}

/// A question that panics is a yes, and goes on when the call has returned; a cancel that panics unwinds the call
/// itself. Either way the memory is as it was, and no other call hangs.
fn a_panic_in_the_programs_code_leaves_the_memory_alone(make: Make) {
    let world = make(2);
    let call = reduction(1_000);
    let mut memory = Memory::new(&call, 2, 0);
    let abort = Abort::new();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        watched(
            Duration::from_millis(5),
            || panic!("asked"),
            || {
                let trigger = abort.clone();
                let _cancels = cancels(move || trigger.trigger());
                let outcome =
                    world.members[0].plane.perform(&world.spec(&call, 0, 0), memory.buffers(), &abort);
                assert_eq!(outcome.map(drop), Err(Stopped::Aborted));
            },
        );
    }));
    assert!(unwound.is_err() && memory.is_as_it_was());
    commit(&world, &call, 0, 1);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        watched(
            Duration::from_millis(5),
            || true,
            || {
                let _cancels = cancels(|| panic!("cancelled"));
                let spec = world.spec(&call, 0, 2);
                let _ = world.members[0].plane.perform(&spec, memory.buffers(), &Abort::new()).map(drop);
            },
        );
    }));
    assert!(unwound.is_err() && memory.is_as_it_was());
    let spec = OpSpec { deadline: Instant::now() + Duration::from_secs(1), ..world.spec(&call, 1, 0) };
    let stopped = alone(&world, 0, &spec, &Abort::new());
    assert!(matches!(stopped, Stopped::Deadline | Stopped::Closed), "{stopped}");
}

/// What settles by copying out keeps its results until all have them, and no longer (rule 12).
#[test]
fn a_place_on_the_board_is_free_when_all_have_copied_out() {
    let hall = Arc::new(Hall::default());
    let world = World::in_hall(&hall, 3);
    let (call, both) = (reduction(100), Barrier::new(3));
    world.everybody(|rank, member| {
        let mut memory = Memory::new(&call, 3, rank);
        let performed = member.plane.perform(&world.spec(&call, 0, 0), memory.buffers(), &Abort::new());
        both.wait();
        assert_eq!(hall.places(), 1, "nobody has copied out");
        both.wait();
        if rank == 0 { performed.unwrap().undo() } else { performed.unwrap().commit() }
    });
    assert_eq!(hall.places(), 0);
}

macro_rules! every_transport {
    ($($clause:ident),* $(,)?) => {
        every_transport! { @over tcp $($clause)* }
        every_transport! { @over tls $($clause)* }
        every_transport! { @over board $($clause)* }
    };
    (@over $transport:ident $($clause:ident)*) => {
        mod $transport {
            $(
                #[test]
                fn $clause() {
                    super::$clause(super::World::$transport);
                }
            )*
        }
    };
}

every_transport! {
    every_kind_gives_its_values,
    nothing_to_say_is_said,
    a_list_of_several_types_is_one_attempt,
    calls_under_many_tags_share_a_plane,
    what_is_not_committed_is_as_it_was,
    a_result_waits_for_its_verdict,
    an_abort_at_any_moment_leaves_the_memory_alone,
    an_abort_before_the_call_counts,
    a_deadline_ends_a_call_that_nobody_joins,
    a_member_that_dies_is_a_broken_link_and_the_others_go_on,
    another_call_under_the_same_name_is_noticed,
    what_belongs_to_no_open_epoch_has_no_effect,
    a_new_epoch_ends_what_is_under_way,
    a_shutdown_ends_what_is_under_way,
    a_person_gives_a_call_up,
    a_panic_in_the_programs_code_leaves_the_memory_alone,
    a_transfer_gives_its_values_whoever_comes_first,
    a_receive_that_was_given_up_takes_back_that_it_waits,
    a_send_that_was_given_up_is_not_received,
    another_call_at_the_other_end_is_noticed_by_the_sender,
    an_abort_or_a_shutdown_ends_a_transfer,
    a_transfer_outlives_epochs_and_ends_with_its_other_end,
}
