//! Quantised reductions: the same bits on all members, within the documented error, in fewer bytes.

mod support;

use half::{bf16, f16};
use outlast::executor::{Abort, Buffers};
use outlast_kernels::Quantisation as Packing;
use outlast_proto::collective::{DataType, Fingerprint, OpKind, Quantisation, ReduceOp};
use support::Cluster;

const FLOATS: [DataType; 4] = [DataType::F16, DataType::BF16, DataType::F32, DataType::F64];

/// Numbers of very different sizes within one block, and a block of zeros now and then.
fn contribution(member: usize, at: usize) -> f64 {
    if (at / 128) % 5 == 4 {
        return 0.0;
    }
    let wave = ((at * 37 + member * 11) % 1_009) as f64 / 1_009.0 - 0.5;
    wave * [1.0, 0.01, 30.0][(at / 128) % 3]
}

fn encode(data_type: DataType, value: f64) -> Vec<u8> {
    match data_type {
        DataType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DataType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DataType::F32 => (value as f32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

fn decode(data_type: DataType, bytes: &[u8]) -> Vec<f64> {
    let number = |bytes: &[u8]| match data_type {
        DataType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        DataType::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        DataType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        _ => f64::from_le_bytes(bytes.try_into().unwrap()),
    };
    bytes.chunks_exact(data_type.size()).map(number).collect()
}

fn input(data_type: DataType, member: usize, count: usize) -> Vec<u8> {
    (0..count).flat_map(|at| encode(data_type, contribution(member, at))).collect()
}

/// The exact sums, and how far off the result may be.
fn exact(
    data_type: DataType,
    world: usize,
    count: usize,
    quantisation: Quantisation,
    avg: bool,
) -> Vec<(f64, f64)> {
    let codes = match quantisation {
        Quantisation::Int8 => Packing::Int8.largest_code(),
        _ => Packing::Int4.largest_code(),
    };
    let inputs: Vec<_> =
        (0..world).map(|member| decode(data_type, &input(data_type, member, count))).collect();
    let share = if avg { world as f64 } else { 1.0 };
    (0..count)
        .map(|at| {
            let block = at / 128 * 128..(at / 128 * 128 + 128).min(count);
            // No partial sum of the block is larger than this.
            let largest: f64 = inputs
                .iter()
                .map(|input| input[block.clone()].iter().fold(0.0, |most: f64, x| most.max(x.abs())))
                .sum();
            let packings = world as f64 * largest / (2.0 * f64::from(codes));
            // What the type itself rounds away when the result is stored in it.
            let rounding = largest * if data_type == DataType::BF16 { 0.005 } else { 0.001 };
            (inputs.iter().map(|input| input[at]).sum::<f64>() / share, packings + rounding + 1e-12)
        })
        .collect()
}

#[test]
fn all_members_hold_the_same_bits_within_the_bound() {
    for world in 1..=5 {
        let cluster = Cluster::new(world);
        let mut seq = 0;
        for quantisation in Quantisation::ALL {
            for data_type in FLOATS {
                for (count, op) in [
                    (0, ReduceOp::Sum),
                    (1, ReduceOp::Avg),
                    (127, ReduceOp::Sum),
                    (128, ReduceOp::Avg),
                    (1_023, ReduceOp::Sum),
                    (40_001, ReduceOp::Avg),
                ] {
                    let call = Fingerprint {
                        op,
                        quantisation: Some(quantisation),
                        ..Fingerprint::new(OpKind::AllReduce, data_type, [count as u64])
                    };
                    let spec = cluster.spec_of(&call, 0, seq);
                    seq += 1;
                    let results = cluster.everybody(|member_number, member| {
                        let mut tensor = input(data_type, member_number, count);
                        let buffers = Buffers::in_place([&mut tensor[..]]);
                        member.plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
                        tensor
                    });
                    assert!(results.iter().all(|result| *result == results[0]), "{call} among {world}");
                    let bounds = exact(data_type, world, count, quantisation, op == ReduceOp::Avg);
                    for (at, (value, (exact, bound))) in
                        decode(data_type, &results[0]).into_iter().zip(bounds).enumerate()
                    {
                        assert!((value - exact).abs() <= bound, "{call} at {at}: {value}, {exact} ± {bound}");
                    }
                }
            }
        }
    }
}

#[test]
fn fewer_bytes_travel_and_an_undo_restores_every_bit() {
    let (world, count) = (3, 300_000);
    let cluster = Cluster::new(world);
    let mut sent = Vec::new();
    for (seq, quantisation) in
        [None, Some(Quantisation::Int8), Some(Quantisation::Int4)].into_iter().enumerate()
    {
        let call = Fingerprint {
            quantisation,
            ..Fingerprint::new(OpKind::AllReduce, DataType::F32, [count as u64])
        };
        let spec = cluster.spec_of(&call, 0, seq as u64);
        let bytes = cluster.everybody(|number, member| {
            let original = input(DataType::F32, number, count);
            let mut tensor = original.clone();
            let performed =
                member.plane.perform(&spec, Buffers::in_place([&mut tensor[..]]), &Abort::new()).unwrap();
            let bytes = performed.bytes_sent;
            performed.undo();
            assert!(tensor == original, "{call}");
            bytes
        });
        sent.push(bytes.iter().sum::<u64>() as f64);
    }
    assert!(sent[0] / sent[1] > 3.8, "int8 sends {} of {}", sent[1], sent[0]);
    assert!(sent[0] / sent[2] > 7.4, "int4 sends {} of {}", sent[2], sent[0]);
}

#[test]
fn many_tensors_share_blocks_and_still_agree() {
    let sizes = [1_usize, 130, 0, 70_000, 77, 128, 33_333];
    for world in 2..=3 {
        let cluster = Cluster::new(world);
        let total: usize = sizes.iter().sum();
        let call = Fingerprint {
            quantisation: Some(Quantisation::Int8),
            ..Fingerprint::new(OpKind::AllReduceMany, DataType::F32, sizes.map(|count| count as u64))
        };
        let spec = cluster.spec_of(&call, 0, 0);
        let results = cluster.everybody(|number, member| {
            let mut rest = &input(DataType::F32, number, total)[..];
            let mut tensors = Vec::new();
            for count in sizes {
                let (tensor, more) = rest.split_at(4 * count);
                tensors.push(tensor.to_vec());
                rest = more;
            }
            let buffers = Buffers::in_place(tensors.iter_mut().map(Vec::as_mut_slice));
            member.plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
            tensors.concat()
        });
        assert!(results.iter().all(|result| *result == results[0]));
        let bounds = exact(DataType::F32, world, total, Quantisation::Int8, false);
        for (value, (exact, bound)) in decode(DataType::F32, &results[0]).into_iter().zip(bounds) {
            assert!((value - exact).abs() <= bound, "{value}, {exact} ± {bound}");
        }
    }
}

#[test]
fn the_other_reductions_are_within_the_bound_too() {
    let (world, count) = (3, 5_000);
    let cluster = Cluster::new(world);
    for (seq, kind) in [OpKind::Reduce, OpKind::ReduceScatter].into_iter().enumerate() {
        let root = kind.has_root().then(|| support::peer(1));
        let part = if kind == OpKind::Reduce { count } else { count / world };
        let quantisation = Some(Quantisation::Int8);
        let call = Fingerprint { quantisation, root, ..Fingerprint::new(kind, DataType::F32, [part as u64]) };
        let spec = cluster.spec_of(&call, 0, seq as u64);
        cluster.everybody(|rank, member| {
            let inputs = input(DataType::F32, rank, part * if root.is_some() { 1 } else { world });
            let (_, writes) = call.shape(world, root == Some(member.id));
            let mut output = vec![0; writes as usize * 4];
            let buffers = Buffers::out_of_place([&inputs[..]], [&mut output[..]]);
            member.plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
            let start = if root.is_some() { 0 } else { rank * part };
            // Blocks of a part do not begin where those of the whole do: the largest number of all bounds them.
            let bounds = exact(DataType::F32, world, count, Quantisation::Int8, false);
            let worst = bounds.iter().fold(0.0, |most: f64, (_, bound)| most.max(*bound));
            for (value, (exact, _)) in decode(DataType::F32, &output).into_iter().zip(&bounds[start..]) {
                assert!((value - exact).abs() <= worst, "{call}: {value}, {exact} ± {worst}");
            }
        });
    }
}

#[test]
fn what_is_not_a_number_stays_visible_on_all() {
    let cluster = Cluster::new(2);
    let call = Fingerprint {
        quantisation: Some(Quantisation::Int8),
        ..Fingerprint::new(OpKind::AllReduce, DataType::F32, [1_000])
    };
    let spec = cluster.spec_of(&call, 0, 0);
    cluster.everybody(|number, member| {
        let mut values = vec![1.0_f32; 1_000];
        if number == 1 {
            values[300] = f32::NAN;
        }
        let buffers = Buffers::in_place([support::bytes_of_mut(&mut values)]);
        member.plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
        assert!(
            values[256..384].iter().all(|value| value.is_nan()) && values[..256].iter().all(|v| !v.is_nan())
        );
    });
}
