//! What may be sent before the other's call is bounded, and calls that nobody answers are in nobody's way (rule 14).

mod support;

use outlast::executor::{Abort, Buffers, Performed};
use outlast_proto::collective::{DataType, ReduceOp};
use std::time::{Duration, Instant};
use support::{Cluster, PATIENCE, bytes_of_mut, contribution_f32, reduce, sum_f32};

/// As much as may be sent without credit, so that no credit comes unless it is asked for.
const COUNT: usize = 16 << 10;

/// One member makes `count` calls that the other has not made; then both make one more, and then the others.
fn unanswered(world: usize, count: u64) {
    let cluster = Cluster::new(world);
    let run = |number: usize, tag: u64| {
        let spec = cluster.spec(tag, 0, DataType::F32, ReduceOp::Sum, &[COUNT]);
        let mut tensor = contribution_f32(number, COUNT, tag as usize);
        reduce(&cluster.members[number], &spec, &mut tensor).unwrap().commit();
        assert_eq!(tensor, sum_f32(world, COUNT, tag as usize), "tag {tag}");
    };
    std::thread::scope(|scope| {
        let run = &run;
        let early: Vec<_> = (0..count).map(|tag| scope.spawn(move || run(0, tag))).collect();
        // Long enough for every one of them to have sent what it may.
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        let common: Vec<_> = (0..world).map(|number| scope.spawn(move || run(number, 1 << 40))).collect();
        common.into_iter().for_each(|call| call.join().unwrap());
        let took = began.elapsed();
        assert!(took < PATIENCE / 3, "{took:?} behind {count} calls that nobody answers");
        assert!(early.iter().all(|call| !call.is_finished()), "nobody has answered them");
        // In another order than they were made.
        for tag in (0..count).rev() {
            for number in 1..world {
                scope.spawn(move || run(number, tag));
            }
        }
    });
}

#[test]
fn calls_that_nobody_answers_yet_are_in_nobodys_way_however_many() {
    unanswered(2, 140);
    unanswered(3, 140);
}

/// Attempts that were given up have left their bytes on the wire, too.
#[test]
fn calls_that_were_given_up_leave_room_for_the_next() {
    let cluster = Cluster::new(2);
    for seq in 0..200 {
        let mut spec = cluster.spec(seq % 3, seq, DataType::F32, ReduceOp::Sum, &[COUNT]);
        spec.deadline = Instant::now() + Duration::from_millis(2);
        let mut tensor = contribution_f32(0, COUNT, 0);
        let buffers = Buffers::in_place([bytes_of_mut(&mut tensor)]);
        let outcome = cluster.members[0].plane.perform(&spec, buffers, &Abort::new()).map(Performed::commit);
        assert!(outcome.is_err(), "nobody answers");
    }
    let began = Instant::now();
    cluster.everybody(|number, member| {
        let spec = cluster.spec(0, 200, DataType::F32, ReduceOp::Sum, &[COUNT]);
        let mut tensor = contribution_f32(number, COUNT, 0);
        reduce(member, &spec, &mut tensor).unwrap().commit();
        assert_eq!(tensor, sum_f32(2, COUNT, 0));
    });
    assert!(began.elapsed() < PATIENCE / 3, "{:?}", began.elapsed());
}
