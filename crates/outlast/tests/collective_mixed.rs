//! Lists of tensors of several types: exact values, the same bits on all members, undone whole.

mod support;

use half::{bf16, f16};
use outlast::executor::{Abort, Buffers, Stopped};
use outlast_proto::collective::{DataType, Fingerprint, OpKind, Quantisation, ReduceOp};
use std::time::{Duration, Instant};
use support::moments::Moments;
use support::{Cluster, Member};

/// Types and numbers of elements in no helpful order: odd sizes before wide elements, nothing at all, one type twice.
const LIST: [(DataType, usize); 12] = [
    (DataType::U8, 1),
    (DataType::F64, 3),
    (DataType::BF16, 0),
    (DataType::BF16, 70_001),
    (DataType::Bool, 5),
    (DataType::F32, 33_003),
    (DataType::I16, 7),
    (DataType::F16, 1),
    (DataType::U64, 20_011),
    (DataType::F32, 2),
    (DataType::I8, 9_999),
    (DataType::F64, 1),
];

fn call(list: &[(DataType, usize)], op: ReduceOp, quantisation: Option<Quantisation>) -> Fingerprint {
    let counts = list.iter().map(|(_, count)| *count as u64);
    let types = list.iter().map(|(data_type, _)| *data_type).collect();
    let plain = Fingerprint::new(OpKind::AllReduceMany, DataType::F32, counts).typed(types);
    Fingerprint { op, quantisation, ..plain }
}

fn encode(data_type: DataType, value: usize, bytes: &mut Vec<u8>) {
    match data_type {
        DataType::F16 => bytes.extend(f16::from_f64(value as f64).to_le_bytes()),
        DataType::BF16 => bytes.extend(bf16::from_f64(value as f64).to_le_bytes()),
        DataType::F32 => bytes.extend((value as f32).to_le_bytes()),
        DataType::F64 => bytes.extend((value as f64).to_le_bytes()),
        DataType::Bool => bytes.push(u8::from(value > 2)),
        _ => bytes.extend(&(value as u64).to_le_bytes()[..data_type.size()]),
    }
}

/// A small number, so that sums and means of up to four are exact in every type.
fn value(member: usize, tensor: usize, at: usize) -> usize {
    (member + 1) * (1 + (at * 7 + tensor) % 4)
}

/// The list of one member, or what all of them make of theirs.
fn tensors(list: &[(DataType, usize)], value: impl Fn(usize, usize) -> usize) -> Vec<Vec<u8>> {
    let tensor = |(number, (data_type, count)): (usize, &(DataType, usize))| {
        let mut bytes = Vec::new();
        (0..*count).for_each(|at| encode(*data_type, value(number, at), &mut bytes));
        bytes
    };
    list.iter().enumerate().map(tensor).collect()
}

fn contribution(list: &[(DataType, usize)], member: usize) -> Vec<Vec<u8>> {
    tensors(list, |tensor, at| value(member, tensor, at))
}

fn in_place(tensors: &mut [Vec<u8>]) -> Buffers<'_> {
    Buffers::in_place(tensors.iter_mut().map(Vec::as_mut_slice))
}

#[test]
fn every_tensor_ends_with_its_own_reduction() {
    for world in 1..=4 {
        let cluster = Cluster::new(world);
        let everybody = |tensor, at| (0..world).map(move |member| value(member, tensor, at));
        for (seq, op) in [ReduceOp::Sum, ReduceOp::Max].into_iter().enumerate() {
            let call = call(&LIST, op, None);
            let expected = tensors(&LIST, |tensor, at| match op {
                ReduceOp::Max => everybody(tensor, at).max().unwrap(),
                // Whether any is true.
                _ if LIST[tensor].0 == DataType::Bool => everybody(tensor, at).max().unwrap(),
                _ => everybody(tensor, at).sum(),
            });
            for (turn, elsewhere) in [false, true].into_iter().enumerate() {
                let spec = cluster.spec_of(&call, 0, (2 * seq + turn) as u64);
                cluster.everybody(|number, member| {
                    let input = contribution(&LIST, number);
                    let mut output = input.clone();
                    let buffers = if elsewhere {
                        let outputs = output.iter_mut().map(|tensor| {
                            tensor.fill(0xEE);
                            tensor.as_mut_slice()
                        });
                        Buffers::out_of_place(input.iter().map(Vec::as_slice), outputs)
                    } else {
                        in_place(&mut output)
                    };
                    member.plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
                    for (at, (result, expected)) in output.iter().zip(&expected).enumerate() {
                        assert!(result == expected, "{op} of x[{at}] among {world}, elsewhere: {elsewhere}");
                    }
                    assert!(input == contribution(&LIST, number), "inputs are only read");
                });
            }
        }
    }
}

#[test]
fn each_float_type_has_its_own_mean_packed_or_not() {
    let list: Vec<_> = LIST.into_iter().filter(|(data_type, _)| data_type.is_float()).collect();
    let world = 3;
    let cluster = Cluster::new(world);
    let expected = tensors(&list, |tensor, at| 2 * (1 + (at * 7 + tensor) % 4));
    for (seq, quantisation) in
        [None, Some(Quantisation::Int8), Some(Quantisation::Int4)].into_iter().enumerate()
    {
        let spec = cluster.spec_of(&call(&list, ReduceOp::Avg, quantisation), 0, seq as u64);
        let results = cluster.everybody(|number, member| {
            let mut input = contribution(&list, number);
            let performed = member.plane.perform(&spec, in_place(&mut input), &Abort::new()).unwrap();
            let sent = performed.bytes_sent;
            performed.commit();
            (input, sent)
        });
        assert!(results.iter().all(|(result, _)| *result == results[0].0), "{quantisation:?}: the same bits");
        let bytes: usize = expected.iter().map(Vec::len).sum();
        let Some(quantisation) = quantisation else {
            assert_eq!(results[0].0, expected);
            continue;
        };
        assert!(results[0].1 < bytes as u64, "{} bytes sent of {bytes}", results[0].1);
        // Three packings of half a scale each, and a third of their sum: no partial sum is above 24.
        let bound = if quantisation == Quantisation::Int8 { 0.2 } else { 2.0 };
        for ((data_type, _), (result, exact)) in list.iter().zip(results[0].0.iter().zip(&expected)) {
            let mut pairs = decode(*data_type, result).zip(decode(*data_type, exact));
            assert!(pairs.all(|(a, b)| (a - b).abs() < bound), "{quantisation} of {data_type}");
        }
    }
}

fn decode(data_type: DataType, bytes: &[u8]) -> impl Iterator<Item = f64> {
    let number = move |bytes: &[u8]| match data_type {
        DataType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        _ => f64::from_le_bytes(bytes.try_into().unwrap()),
    };
    bytes.chunks_exact(data_type.size()).map(number)
}

fn give_up_after(cluster: &Cluster, member: &Member, number: usize, seq: u64, delay: Duration) -> bool {
    let spec = cluster.spec_of(&call(&LIST, ReduceOp::Sum, None), 0, seq);
    let abort = Abort::new();
    let mut input = contribution(&LIST, number);
    let outcome = std::thread::scope(|scope| {
        let trigger = abort.clone();
        scope.spawn(move || {
            std::thread::sleep(delay);
            trigger.trigger();
        });
        member.plane.perform(&spec, in_place(&mut input), &abort).map(outlast::executor::Performed::undo)
    });
    assert!(input == contribution(&LIST, number), "member {number}, attempt {seq}: every tensor as it was");
    match outcome {
        Ok(()) => false,
        Err(Stopped::Aborted) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn an_abort_at_any_moment_restores_every_tensor() {
    let cluster = Cluster::new(3);
    let mut moments = Moments(0x2545_f491);
    let mut healthy = Duration::from_millis(2);
    let (mut aborted, mut seq) = (0, 0);
    while seq < 40 || (aborted == 0 && seq < 400) {
        let below = 1 + healthy.as_micros() as u64;
        let delays: Vec<_> = (0..3).map(|_| Duration::from_micros(moments.below(below))).collect();
        let outcomes =
            cluster.everybody(|number, member| give_up_after(&cluster, member, number, seq, delays[number]));
        aborted += outcomes.into_iter().filter(|aborted| *aborted).count();
        let started = Instant::now();
        let spec = cluster.spec_of(&call(&LIST, ReduceOp::Sum, None), 0, seq + 1);
        cluster.everybody(|number, member| {
            let mut input = contribution(&LIST, number);
            member.plane.perform(&spec, in_place(&mut input), &Abort::new()).unwrap().undo();
            assert!(input == contribution(&LIST, number), "an undo of a whole attempt");
        });
        healthy = started.elapsed();
        seq += 2;
    }
    assert!(aborted > 0, "no abort came in time: nothing was tested");
}

#[test]
fn one_other_type_is_noticed_before_a_byte_is_used() {
    let cluster = Cluster::new(2);
    let mut list = LIST;
    // As many bytes, cut alike: only the fingerprint knows.
    list[5].0 = DataType::I32;
    let aborts = [Abort::new(), Abort::new()];
    let outcomes = cluster.everybody(|number, member| {
        let list = if number == 0 { LIST } else { list };
        let spec = cluster.spec_of(&call(&list, ReduceOp::Sum, None), 0, 0);
        let mut input = contribution(&list, number);
        let outcome = member.plane.perform(&spec, in_place(&mut input), &aborts[number]);
        let outcome = outcome.map(outlast::executor::Performed::undo);
        if outcome.is_err() {
            aborts[1 - number].trigger();
        }
        assert!(input == contribution(&list, number), "as it was");
        outcome
    });
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(Stopped::Mismatch { .. }))), "{outcomes:?}");
}
