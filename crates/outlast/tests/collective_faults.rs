//! Every collective, given up at any moment: outputs as they were, and the next one works.

mod support;

use outlast::executor::{Abort, Buffers, Stopped};
use outlast_proto::collective::{DataType, Fingerprint, OpKind};
use std::time::{Duration, Instant};
use support::{Cluster, Member};

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

/// The same moments in every run.
struct Moments(u64);

impl Moments {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn call(kind: OpKind, world: usize, turn: u64) -> Fingerprint {
    let root = kind.has_root().then(|| support::peer(turn as usize % world));
    Fingerprint { root, ..Fingerprint::new(kind, DataType::I32, [60_000 + turn % 7]) }
}

/// Performs with an input of ones, and gives back the outcome and whether the output was left as it was.
fn perform(
    cluster: &Cluster,
    member: &Member,
    call: &Fingerprint,
    seq: u64,
    abort: &Abort,
    commit: bool,
) -> (Result<(), Stopped>, Vec<i32>) {
    let spec = cluster.spec_of(call, 0, seq);
    let (reads, writes) = call.shape(cluster.members.len(), call.root == Some(member.id));
    let input = vec![1_i32; reads as usize];
    let mut output = vec![-7_i32; writes as usize];
    let buffers = Buffers::out_of_place([support::bytes_of(&input)], [support::bytes_of_mut(&mut output)]);
    let outcome = member
        .plane
        .perform(&spec, buffers, abort)
        .map(|performed| if commit { performed.commit() } else { performed.undo() });
    (outcome, output)
}

fn abort_at_random_moments(kind: OpKind, world: usize, attempts: u64) {
    let cluster = Cluster::new(world);
    let mut moments = Moments(0x9e37_79b9 + world as u64 + kind as u64);
    let mut healthy = Duration::from_millis(2);
    let mut aborted = 0;
    // A machine that is quicker than the aborts gets more chances.
    for attempt in 0..10 * attempts {
        if attempt >= attempts && aborted > 0 {
            break;
        }
        let call = call(kind, world, attempt);
        let delays: Vec<_> = (0..world)
            .map(|_| Duration::from_micros(moments.below(1 + healthy.as_micros() as u64)))
            .collect();
        let outcomes = cluster.everybody(|number, member| {
            let abort = Abort::new();
            let delay = delays[number];
            std::thread::scope(|scope| {
                let trigger = abort.clone();
                scope.spawn(move || {
                    std::thread::sleep(delay);
                    trigger.trigger();
                });
                let (outcome, output) = perform(&cluster, member, &call, 2 * attempt, &abort, false);
                assert!(
                    output.iter().all(|value| *value == -7),
                    "{call}, attempt {attempt}, member {number}"
                );
                outcome
            })
        });
        for outcome in outcomes {
            match outcome {
                Ok(()) => {}
                Err(Stopped::Aborted) => aborted += 1,
                Err(other) => panic!("{call}, attempt {attempt}: {other}"),
            }
        }
        let started = Instant::now();
        cluster.everybody(|number, member| {
            let (outcome, output) = perform(&cluster, member, &call, 2 * attempt + 1, &Abort::new(), true);
            assert_eq!(outcome, Ok(()), "{call} after attempt {attempt}, member {number}");
            let sum = if kind.reduces() { world as i32 } else { 1 };
            assert!(output.iter().all(|value| *value == sum), "{call} after attempt {attempt}");
        });
        healthy = started.elapsed().clamp(Duration::from_micros(200), Duration::from_millis(50));
    }
    assert!(aborted > 0, "{kind}: no abort came in time: nothing was tested");
}

#[test]
fn an_abort_at_any_moment_leaves_every_collectives_output_alone() {
    for kind in KINDS {
        for world in 2..=4 {
            abort_at_random_moments(kind, world, 8);
        }
    }
}

#[test]
#[ignore = "long: make soak"]
fn soak_aborts_of_every_collective() {
    for kind in KINDS {
        for world in 2..=5 {
            abort_at_random_moments(kind, world, 200);
        }
    }
}

/// Whoever only sends may be far ahead of whoever only receives; what it sends without credit stays bounded.
#[test]
fn a_root_that_is_far_ahead_of_the_others_breaks_nothing() {
    let cluster = Cluster::new(3);
    for (tag, kind) in [OpKind::Broadcast, OpKind::Scatter].into_iter().enumerate() {
        let call =
            Fingerprint { root: Some(support::peer(0)), ..Fingerprint::new(kind, DataType::I32, [15_000]) };
        cluster.everybody(|number, member| {
            if number > 0 {
                std::thread::sleep(Duration::from_millis(100 * number as u64));
            }
            for seq in 0..300 {
                let mut spec = cluster.spec_of(&call, tag as u64, seq);
                spec.deadline = Instant::now() + support::PATIENCE;
                let (reads, writes) = call.shape(3, number == 0);
                let input = vec![seq as i32; reads as usize];
                let mut output = vec![-7_i32; writes as usize];
                let buffers =
                    Buffers::out_of_place([support::bytes_of(&input)], [support::bytes_of_mut(&mut output)]);
                member.plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
                assert!(output.iter().all(|value| *value == seq as i32), "{call}, {seq}, member {number}");
            }
        });
    }
}

#[test]
fn different_collectives_under_one_name_are_noticed() {
    let kinds = [(OpKind::AllReduce, OpKind::AllGather), (OpKind::Broadcast, OpKind::AllReduce)];
    for (one, other) in kinds {
        let cluster = Cluster::new(2);
        let aborts = [Abort::new(), Abort::new()];
        let outcomes = cluster.everybody(|number, member| {
            let kind = [one, other][number];
            let call = Fingerprint {
                root: kind.has_root().then(|| support::peer(0)),
                ..Fingerprint::new(kind, DataType::I32, [100])
            };
            let (outcome, _) = perform(&cluster, member, &call, 0, &aborts[number], false);
            // A root may be done before anybody can notice; who waits is told in the end.
            if outcome.is_err() {
                aborts[1 - number].trigger();
            }
            outcome
        });
        let mismatch = |outcome: &Result<(), Stopped>| matches!(outcome, Err(Stopped::Mismatch { .. }));
        assert!(outcomes.iter().any(mismatch), "{outcomes:?}");
    }
}
