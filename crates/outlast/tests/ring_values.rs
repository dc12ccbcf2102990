//! What a ring computes: exact values, for every world, count, type and place.

mod support;

use outlast::executor::{Abort, Buffers, DataSettings};
use outlast_proto::collective::{DataType, ReduceOp};
use support::{
    Cluster, bytes_of, bytes_of_mut, contribution_f32, contribution_i64, reduce, sum_f32, sum_i64,
};

fn counts(world: usize) -> Vec<usize> {
    // Up to 16 KiB contributions go whole, if there are more than two.
    vec![0, 1, 2, world - 1, world, world + 1, 1_023, 4_096, 4_097, 203_530]
}

#[test]
fn sums_are_exact_in_place() {
    for world in 1..=5 {
        let cluster = Cluster::new(world);
        for (seq, count) in counts(world).into_iter().enumerate() {
            let spec = cluster.spec(7, seq as u64, DataType::F32, ReduceOp::Sum, &[count]);
            let results = cluster.everybody(|number, member| {
                let mut tensor = contribution_f32(number, count, seq);
                reduce(member, &spec, &mut tensor).unwrap().commit();
                tensor
            });
            let expected = sum_f32(world, count, seq);
            assert!(results.iter().all(|result| *result == expected), "world {world}, count {count}");

            let spec = cluster.spec(8, seq as u64, DataType::I64, ReduceOp::Sum, &[count]);
            let results = cluster.everybody(|number, member| {
                let mut tensor = contribution_i64(number, count, seq);
                reduce(member, &spec, &mut tensor).unwrap().commit();
                tensor
            });
            let expected = sum_i64(world, count, seq);
            assert!(results.iter().all(|result| *result == expected), "world {world}, count {count}");
        }
    }
}

/// Each member's window follows from the ways that it knows, so neighbours may differ: nobody sends what the next
/// has no place for.
#[test]
fn neighbours_may_have_windows_of_different_sizes() {
    let wide = DataSettings { window_bytes: 16 << 20, ..DataSettings::default() };
    let cluster = Cluster::of(&[wide, DataSettings::default(), DataSettings::default()], &wrap());
    let count = 4_000_000;
    for seq in 0..3 {
        let spec = cluster.spec(1, seq as u64, DataType::F32, ReduceOp::Sum, &[count]);
        let results = cluster.everybody(|number, member| {
            // The receiver is late, so that the sender has everything ready that it may send.
            std::thread::sleep(std::time::Duration::from_millis(20 * number as u64));
            let mut tensor = contribution_f32(number, count, seq);
            reduce(member, &spec, &mut tensor).unwrap().commit();
            tensor
        });
        let expected = sum_f32(3, count, seq);
        assert!(results.iter().all(|result| *result == expected), "call {seq}");
    }
}

fn wrap() -> support::Wrap {
    std::sync::Arc::new(|wire| wire)
}

#[test]
fn sums_are_exact_out_of_place_and_leave_the_input_alone() {
    for world in 1..=4 {
        let cluster = Cluster::new(world);
        for (seq, count) in counts(world).into_iter().enumerate() {
            let spec = cluster.spec(7, seq as u64, DataType::I64, ReduceOp::Sum, &[count]);
            let expected = sum_i64(world, count, seq);
            cluster.everybody(|number, member| {
                let input = contribution_i64(number, count, seq);
                let mut output = vec![-1; count];
                let buffers = Buffers::out_of_place([bytes_of(&input)], [bytes_of_mut(&mut output)]);
                member.plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
                assert_eq!(input, contribution_i64(number, count, seq));
                assert_eq!(output, expected, "world {world}, count {count}");
            });
        }
    }
}

#[test]
fn averages_are_divided_once_and_equal_to_the_bit() {
    for world in 1..=5 {
        let cluster = Cluster::new(world);
        let count = 100_003;
        // Values whose sums depend on the order of addition: equality of all members is not luck.
        let awkward = |number: usize| -> Vec<f32> {
            (0..count)
                .map(|i| ((i + 1) as f32).sqrt() * 10_f32.powf(((i * 31 + number * 17) % 9) as f32))
                .collect()
        };
        let spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Avg, &[count]);
        let results = cluster.everybody(|number, member| {
            let mut tensor = awkward(number);
            reduce(member, &spec, &mut tensor).unwrap().commit();
            tensor
        });
        for result in &results {
            assert_eq!(bytes_of(result), bytes_of(&results[0]), "all members have the same bits");
        }
        for (i, average) in results[0].iter().enumerate().step_by(997) {
            let exact = (0..world).map(|number| f64::from(awkward(number)[i])).sum::<f64>() / world as f64;
            assert!((f64::from(*average) - exact).abs() <= exact.abs() * 1e-5, "{average} is not {exact}");
        }

        let spec = cluster.spec(1, 0, DataType::I64, ReduceOp::Avg, &[count]);
        let expected: Vec<i64> =
            sum_i64(world, count, 0).into_iter().map(|sum| sum / i64::try_from(world).unwrap()).collect();
        cluster.everybody(|number, member| {
            let mut tensor = contribution_i64(number, count, 0);
            reduce(member, &spec, &mut tensor).unwrap().commit();
            assert_eq!(tensor, expected);
        });
    }
}

#[test]
fn many_tensors_are_one_operation() {
    let sizes = [0, 1, 5, 100_000, 3, 0, 16, 70_001, 1, 1, 1, 33_000];
    for world in 1..=4 {
        let cluster = Cluster::new(world);
        for (seq, in_place) in [true, false].into_iter().enumerate() {
            let spec = cluster.spec(0, seq as u64, DataType::F32, ReduceOp::Sum, &sizes);
            cluster.everybody(|number, member| {
                let mut tensors: Vec<_> = sizes
                    .iter()
                    .enumerate()
                    .map(|(salt, count)| contribution_f32(number, *count, salt))
                    .collect();
                let mut outputs: Vec<_> = sizes.iter().map(|count| vec![0.5; *count]).collect();
                let buffers = if in_place {
                    Buffers::in_place(tensors.iter_mut().map(|tensor| bytes_of_mut(tensor)))
                } else {
                    Buffers::out_of_place(
                        tensors.iter().map(|tensor| bytes_of(tensor)),
                        outputs.iter_mut().map(|tensor| bytes_of_mut(tensor)),
                    )
                };
                member.plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
                let results = if in_place { tensors } else { outputs };
                for (salt, (result, count)) in results.iter().zip(sizes).enumerate() {
                    assert_eq!(*result, sum_f32(world, count, salt), "tensor {salt} of a world of {world}");
                }
            });
        }
    }
}

#[test]
fn undoing_a_complete_attempt_restores_every_bit() {
    for world in 1..=3 {
        let cluster = Cluster::new(world);
        let count = 203_530;
        let spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[count]);
        cluster.everybody(|number, member| {
            let original = contribution_f32(number, count, 0);
            let mut tensor = original.clone();
            reduce(member, &spec, &mut tensor).unwrap().undo();
            assert_eq!(tensor, original);
            let mut output = vec![9.0_f32; count];
            let spec = cluster.spec(0, 1, DataType::F32, ReduceOp::Sum, &[count]);
            let buffers = Buffers::out_of_place([bytes_of(&tensor)], [bytes_of_mut(&mut output)]);
            drop(member.plane.perform(&spec, buffers, &Abort::new()).unwrap());
            assert!(output == vec![9.0; count], "an output is as it was, too");
        });
    }
}

/// Everybody adds for itself: in the order of ranks, whatever the ring's is, and with one kind of NaN.
#[test]
fn small_sums_have_the_same_bits_everywhere() {
    for world in 3..=5 {
        let cluster = Cluster::new(world);
        let value = |member: usize, at: usize| match at % 7 {
            0 => f32::from_bits(0x7f80_0001 + member as u32),
            1 if member == 0 => f32::INFINITY,
            1 => f32::NEG_INFINITY,
            2 => 1e-42 * (member + at) as f32,
            _ => 1.0 / (3 + 7 * member + at) as f32 * if member.is_multiple_of(2) { 1e7 } else { 1.0 },
        };
        let contribution = |member: usize| (0..1_000).map(|at| value(member, at)).collect::<Vec<f32>>();
        let sum = |at: usize| (1..world).fold(value(0, at), |sum, member| sum + value(member, at));
        let plain = |sum: f32| if sum.is_nan() { 0x7fc0_0000 } else { sum.to_bits() };
        let expected: Vec<u32> = (0..1_000).map(|at| plain(sum(at))).collect();
        let spec = cluster.spec(7, 0, DataType::F32, ReduceOp::Sum, &[1_000]);
        cluster.everybody(|number, member| {
            let mut tensor = contribution(number);
            let before: Vec<u32> = tensor.iter().map(|value| value.to_bits()).collect();
            let performed = reduce(member, &spec, &mut tensor).unwrap();
            assert_eq!(performed.bytes_sent, 4_000 * (world as u64 - 1), "whole, to the next");
            performed.undo();
            assert!(tensor.iter().map(|value| value.to_bits()).eq(before), "nothing has happened yet");
        });
        let spec = cluster.spec(7, 1, DataType::F32, ReduceOp::Sum, &[1_000]);
        let results = cluster.everybody(|number, member| {
            let mut tensor = contribution(number);
            reduce(member, &spec, &mut tensor).unwrap().commit();
            tensor.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
        });
        assert!(results.iter().all(|result| *result == expected), "among {world}");
    }
}
