//! Every collective through real communicators and a coordinator, in one process: shapes, receipts, losses.

mod peers;

use half::{bf16, f16};
use outlast::communicator::{
    Call, CallBuffers, Error, Interrupt, NextStep, OpKind, Quantisation, ReduceOp, Tensor, TensorMut,
};
use outlast_proto::session::CallError;
use peers::together;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn each_collective_has_the_shape_that_its_users_expect() {
    let world = 3;
    together(world, move |comm| {
        let (rank, call) = (comm.rank(), Call::default());
        let root = comm.peers()[1].id;
        let mine: Vec<i32> = (0..4).map(|i| (10 * rank + i) as i32).collect();
        let everybodys: Vec<i32> = (0..12).map(|i| 10 * (i / 4) + i % 4).collect();

        let mut out = vec![-1; 12];
        let receipt = comm.all_gather(&mut out, &mine, &call).expect("an all_gather");
        assert_eq!((&out, receipt.algorithm, receipt.contributors.len()), (&everybodys, "ring", 3));

        let mut part = vec![-1; 4];
        comm.reduce_scatter(&mut part, &everybodys, &call).expect("a reduce_scatter");
        assert_eq!(part, mine.iter().map(|x| 3 * x).collect::<Vec<_>>());

        let mut data = mine.clone();
        comm.broadcast(&mut data, root, &call).expect("a broadcast");
        assert_eq!(data, [10, 11, 12, 13]);

        let mut data = mine.clone();
        comm.reduce(&mut data, root, &Call::new(ReduceOp::Max)).expect("a reduce");
        assert_eq!(data, if rank == 1 { vec![20, 21, 22, 23] } else { mine.clone() });

        let mut out = vec![-1; if rank == 1 { 12 } else { 0 }];
        comm.gather(&mut out, &mine, root, &call).expect("a gather");
        assert_eq!(out, if rank == 1 { everybodys.clone() } else { Vec::new() });

        let mut part = vec![-1; 4];
        let whole = if rank == 1 { everybodys.clone() } else { Vec::new() };
        comm.scatter(&mut part, &whole, root, &call).expect("a scatter");
        assert_eq!(part, mine);

        let mut out = vec![-1; 12];
        let sent: Vec<i32> = (0..12).map(|i| 100 * rank as i32 + i).collect();
        let receipt = comm.all_to_all(&mut out, &sent, &call).expect("an all_to_all");
        let expected: Vec<i32> = (0..12).map(|i| 100 * (i / 4) + 4 * rank as i32 + i % 4).collect();
        assert_eq!((out, receipt.algorithm), (expected, "direct"));

        // Larger than any eager limit, so that credit and many blocks are at work over TLS.
        let large = vec![rank as f64; 300_000];
        let mut out = vec![-1.0; 900_000];
        comm.all_to_all(&mut out, &large.repeat(3), &call).expect("a large all_to_all");
        assert!(out.iter().enumerate().all(|(at, value)| *value as usize == at / 300_000));
    });
}

#[test]
fn every_type_goes_through_the_same_core() {
    together(2, |comm| {
        let call = Call::default().hash(true);
        let mut halves = vec![f16::from_f32(1.5); 1_000];
        comm.all_reduce(&mut halves, &call).expect("a sum of f16");
        assert!(halves.iter().all(|x| *x == f16::from_f32(3.0)));
        let mut brains = vec![bf16::from_f32(1.5); 1_000];
        let receipt = comm.all_reduce(&mut brains, &call).expect("a sum of bf16");
        assert!(brains.iter().all(|x| *x == bf16::from_f32(3.0)) && receipt.hash.is_some());
        let mut truths = vec![comm.rank() == 1, false];
        comm.all_reduce(&mut truths, &call).expect("whether any is true");
        assert_eq!(truths, [true, false]);
        let mut bytes = vec![0b0110_u8; 3];
        comm.all_reduce(&mut bytes, &Call::new(ReduceOp::BitXor)).expect("an xor");
        assert_eq!(bytes, [0; 3]);
        let (data, mut out) = (vec![2_u64; 10], vec![0_u64; 10]);
        comm.all_reduce_into(&mut out, &data, &Call::new(ReduceOp::Prod)).expect("a product, elsewhere");
        assert_eq!((data, out), (vec![2; 10], vec![4; 10]));
        let mut values = vec![0.5_f32; 1_000];
        let receipt = comm
            .all_reduce(&mut values, &Call::avg().quantise(Quantisation::Int8))
            .expect("a quantised mean");
        assert_eq!(receipt.algorithm, "ring/int8");
        assert!(values.iter().all(|x| (x - 0.5).abs() < 0.01));
    });
}

/// A model's gradients: of several types, of every size, and a list longer than a message shows.
struct Gradients {
    brains: Vec<bf16>,
    halves: Vec<f16>,
    singles: Vec<Vec<f32>>,
    doubles: Vec<f64>,
}

impl Gradients {
    fn of(value: f32) -> Self {
        Self {
            brains: vec![bf16::from_f32(value); 70_001],
            halves: vec![f16::from_f32(value); 3],
            singles: (0..9).map(|at| vec![value; 1_000 * at + 1]).collect(),
            doubles: vec![f64::from(value); 5],
        }
    }

    fn tensors(&mut self) -> Vec<TensorMut<'_>> {
        let Self { brains, halves, singles, doubles } = self;
        let mut tensors = vec![TensorMut::from(&mut brains[..]), TensorMut::from(&mut halves[..])];
        tensors.extend(singles.iter_mut().map(|tensor| TensorMut::from(&mut tensor[..])));
        tensors.push(TensorMut::from(&mut doubles[..]));
        tensors
    }

    /// Whether every element is that number, to the bit.
    fn are(&self, value: f32) -> bool {
        let all = Self::of(value);
        self.brains.iter().zip(&all.brains).all(|(a, b)| a.to_bits() == b.to_bits())
            && self.halves.iter().zip(&all.halves).all(|(a, b)| a.to_bits() == b.to_bits())
            && self.singles.iter().flatten().all(|x| x.to_bits() == value.to_bits())
            && self.doubles.iter().all(|x| x.to_bits() == f64::from(value).to_bits())
    }
}

#[test]
fn a_list_of_several_types_is_one_transaction() {
    let hashes = together(3, |comm| {
        let mut gradients = Gradients::of(comm.rank() as f32 + 1.0);
        let receipt =
            comm.all_reduce_many(gradients.tensors(), &Call::avg().hash(true)).expect("a mean of all types");
        assert!(gradients.are(2.0));
        assert_eq!((receipt.seq, receipt.contributors.len(), receipt.algorithm), (0, 3, "ring"));
        let (counts, flags) = ([comm.rank() as u64; 3], [comm.rank() == 1; 2]);
        let (mut sums, mut any) = ([0_u64; 3], [false; 2]);
        let out = [TensorMut::from(&mut sums[..]), TensorMut::from(&mut any[..])];
        comm.all_reduce_many_into(out, [Tensor::from(&counts[..]), Tensor::from(&flags[..])], &Call::sum())
            .expect("a sum of numbers and of truth values");
        assert_eq!((sums, any), ([3; 3], [true; 2]));
        receipt.hash
    });
    assert!(hashes[0].is_some() && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn one_other_type_in_the_list_is_told_to_who_deviates_and_an_abort_restores_all() {
    let told = Arc::new(Barrier::new(3));
    together(3, move |comm| {
        let mut gradients = Gradients::of(comm.rank() as f32 + 1.0);
        if comm.rank() == 1 {
            let mut last = [2.0_f32; 5];
            let mut tensors = gradients.tensors();
            tensors.pop();
            tensors.push(TensorMut::from(&mut last[..]));
            let error = comm.all_reduce_many(tensors, &Call::avg()).expect_err("the others pass f64");
            let words = error.to_string();
            assert!(words.contains("whose x[11] is f64[5]"), "{words}");
            assert_eq!((error.action(), last), (NextStep::Fatal, [2.0; 5]));
        } else {
            let call = Call::avg().timeout(Duration::from_secs(20));
            comm.all_reduce_many(gradients.tensors(), &call).expect("who deviated comes again");
            assert!(gradients.are(2.0));
            told.wait();
            return;
        }
        assert!(gradients.are(2.0), "as they were: its own number");
        comm.all_reduce_many(gradients.tensors(), &Call::avg()).expect("now they agree");
        assert!(gradients.are(2.0));
        told.wait();
    });
}

#[test]
fn giving_up_a_list_of_several_types_restores_every_tensor() {
    together(2, |comm| {
        if comm.rank() == 0 {
            let mut gradients = Gradients::of(7.0);
            let soon = Call::avg().tag(3).timeout(Duration::from_millis(200));
            comm.all_reduce_many(gradients.tensors(), &soon).expect_err("nobody else calls");
            assert!(gradients.are(7.0));
        }
        comm.barrier(&Call::default()).expect("both are here");
    });
}

#[test]
fn hashes_are_of_the_result_and_equal() {
    let hashes = together(3, |comm| {
        let mut values = vec![comm.rank() as f32 * 0.1; 10_000];
        let receipt = comm.all_reduce(&mut values, &Call::sum().hash(true)).expect("a sum");
        let plain = comm.all_reduce(&mut values, &Call::sum()).expect("a sum");
        assert_eq!(plain.hash, None);
        receipt.hash
    });
    assert!(hashes[0].is_some() && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn a_part_of_the_group_works_by_itself() {
    together(4, |comm| {
        let ids: Vec<_> = comm.peers().iter().map(|peer| peer.id).collect();
        let (rank, half) = (comm.rank(), comm.rank() / 2);
        let call = Call::default().scope([ids[2 * half], ids[2 * half + 1]]);
        let mut out = vec![0_i64; 2];
        comm.all_gather(&mut out, &[rank as i64], &call).expect("an all_gather of two");
        assert_eq!(out, [2 * half as i64, 2 * half as i64 + 1]);
        let mut data = [rank as i64];
        let receipt = comm.broadcast(&mut data, ids[2 * half + 1], &call).expect("a broadcast of two");
        assert_eq!((data[0], receipt.contributors.len()), (2 * half as i64 + 1, 2));
        let stranger = Call::default().scope([ids[(rank + 1) % 4], ids[(rank + 2) % 4]]);
        assert!(matches!(comm.barrier(&stranger), Err(Error::InvalidArgument(_))));
        comm.barrier(&Call::default()).expect("all are here");
    });
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    together(2, |comm| {
        let call = Call::default();
        let refused = |result: Result<_, Error>, word: &str| {
            let Err(Error::InvalidArgument(text)) = result else { panic!("{word}") };
            assert!(text.contains(word), "{text:?} says {word:?}");
        };
        let stranger = outlast_proto::id::PeerId::from_bytes([9; 16]);
        refused(comm.all_gather(&mut [0_u8; 5], &[0; 2], &call), "4");
        refused(comm.all_to_all(&mut [0_u8; 3], &[0; 3], &call), "3 elements");
        refused(comm.broadcast(&mut [0_u8; 5], stranger, &call), "root");
        refused(comm.all_reduce(&mut [0_f32; 5], &Call::new(ReduceOp::BitAnd)), "bitwise");
        refused(comm.all_reduce(&mut [true; 5], &Call::avg()), "bool");
        refused(comm.all_reduce(&mut [1_u8; 5], &Call::sum().quantise(Quantisation::Int4)), "int4");
        refused(
            comm.all_gather(&mut [0_f32; 4], &[0.0; 2], &Call::sum().quantise(Quantisation::Int4)),
            "int4",
        );
        refused(comm.collective(OpKind::Reduce, None, CallBuffers::none(), &call), "root");
        refused(comm.all_reduce_into(&mut [0_u8; 2], &[0; 3], &call), "x has 3 elements and out has 2");
        let (mut numbers, mut truths) = ([1.0_f32; 3], [true; 2]);
        macro_rules! tensors {
            () => {
                [TensorMut::from(&mut numbers[..]), TensorMut::from(&mut truths[..])]
            };
        }
        refused(comm.all_reduce_many(tensors!(), &Call::avg()), "x[1]: avg of bool");
        refused(comm.all_reduce_many(tensors!(), &Call::sum().quantise(Quantisation::Int8)), "x[1]: int8");
        let data = [Tensor::from(&[1.0_f32; 3][..]), Tensor::from(&[1_u8; 2][..])];
        refused(comm.all_reduce_many_into(tensors!(), data, &call), "x[1] is u8 and out[1] is bool");
        let data = [Tensor::from(&[1.0_f32; 3][..]), Tensor::from(&[true; 5][..])];
        refused(comm.all_reduce_many_into(tensors!(), data, &call), "x[1] has 5 elements and out[1] has 2");
        let mut out = [0_i8; 4];
        let mixed = CallBuffers::out_of_place([&[1_u8; 2][..]], [&mut out[..]]);
        refused(comm.collective(OpKind::AllGather, None, mixed, &call), "one type, not u8 and i8");
        comm.barrier(&call).expect("nobody else was troubled");
    });
}

fn is_loss(error: &Error) -> bool {
    matches!(error.cause(), Some(CallError::PeersLost(_)))
}

#[test]
fn a_lost_peer_is_an_error_for_what_depends_on_who_is_there() {
    let left = Arc::new(Barrier::new(3));
    together(3, move |comm| {
        let call = Call::default();
        let mut out = vec![0_i32; 3];
        comm.all_gather(&mut out, &[1], &call).expect("three are here");
        // All have returned, and so all still see three.
        left.wait();
        if comm.rank() == 2 {
            comm.leave();
            left.wait();
            return;
        }
        left.wait();
        // The program still believes in three; it is told once, and then knows better.
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut out = vec![7_i32; 3];
        let error = comm.all_gather(&mut out, &[1], &call).expect_err("one is gone");
        assert!(is_loss(&error), "{error}");
        assert_eq!((error.action(), out), (NextStep::Retry, vec![7; 3]));
        while comm.world_size() == 3 {
            // The call ended by the abort; the next one learns of the new epoch.
            assert!(Instant::now() < deadline, "the new epoch comes");
            let again = comm.all_gather(&mut [7_i32; 3], &[1], &call).expect_err("one is gone");
            assert!(is_loss(&again), "{again}");
        }
        let mut out = vec![0_i32; 2];
        comm.all_gather(&mut out, &[comm.rank() as i32], &call).expect("two are here");
        assert_eq!(out, [0, 1]);
    });
}

#[test]
fn an_interrupt_gives_a_call_up_at_once() {
    together(2, |comm| {
        if comm.rank() == 0 {
            let interrupt = Interrupt::new();
            let trigger = interrupt.clone();
            let thread = thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                trigger.trigger();
            });
            let mut data = vec![1.0_f32; 1_000_000];
            let started = Instant::now();
            let call = Call::sum().tag(5).interrupt(&interrupt);
            let error = comm.all_reduce(&mut data, &call).expect_err("given up");
            assert!(matches!(error.cause(), Some(CallError::Cancelled)), "{error}");
            assert!(started.elapsed() < Duration::from_secs(10), "long before its deadline");
            assert!(data.iter().all(|x| x.to_bits() == 1.0_f32.to_bits()));
            thread.join().expect("the trigger");
        }
        comm.barrier(&Call::default()).expect("both are here");
    });
}

#[test]
fn two_members_send_and_receive_without_a_vote() {
    together(3, |comm| {
        let ids: Vec<_> = comm.peers().iter().map(|peer| peer.id).collect();
        let (rank, call) = (comm.rank(), Call::default());
        let (next, last) = (ids[(rank + 1) % 3], ids[(rank + 2) % 3]);
        for count in [0, 1, 1_000, 500_000] {
            let mut data = vec![-1_i32; count];
            thread::scope(|scope| {
                let comm = &comm;
                scope.spawn(move || {
                    comm.send(&vec![rank as i32; count], next, &Call::default()).expect("a send");
                });
                comm.recv(&mut data, last, &call).expect("a receive");
            });
            assert!(data.iter().all(|value| *value as usize == (rank + 2) % 3), "{count}");
        }
        assert!(
            matches!(comm.send(&[1_u8], ids[rank], &call), Err(Error::InvalidArgument(_))),
            "to ourselves"
        );
        // Times out with a name, and the next one pairs up.
        if rank == 0 {
            let soon = Call::default().timeout(Duration::from_millis(100));
            let error = comm.recv(&mut [0_u8; 4], ids[1], &soon).expect_err("nobody sends");
            let named = error.to_string();
            assert!(error.action() == NextStep::Retry && named.contains(&comm.peers()[1].name), "{named}");
            comm.barrier(&call).expect("go on");
            let mut data = [0_u8; 4];
            comm.recv(&mut data, ids[1], &call).expect("a receive");
            assert_eq!(data, [7; 4]);
        } else {
            comm.barrier(&call).expect("go on");
            if rank == 1 {
                comm.send(&[7_u8; 4], ids[0], &call).expect("a send");
            }
        }
    });
}

#[test]
fn a_transfer_is_not_disturbed_by_others_that_leave() {
    let met = Arc::new(Barrier::new(3));
    together(3, move |comm| {
        let ids: Vec<_> = comm.peers().iter().map(|peer| peer.id).collect();
        let count = 4_000_000;
        match comm.rank() {
            0 => {
                let mut data = vec![0_i32; count];
                thread::scope(|scope| {
                    let (comm, met, ids) = (&comm, &met, &ids);
                    // One that waits from before the loss until after it, and one in the middle of it.
                    let late = scope.spawn(move || {
                        let mut late = [0_u8; 3];
                        comm.recv(&mut late, ids[1], &Call::default().tag(9)).map(|()| late)
                    });
                    met.wait();
                    comm.recv(&mut data, ids[1], &Call::default()).expect("a receive");
                    assert_eq!(late.join().expect("a thread").expect("a receive"), [1, 2, 3]);
                });
                assert!(data.iter().all(|value| *value == 5));
            }
            1 => {
                met.wait();
                comm.send(&vec![5_i32; count], ids[0], &Call::default()).expect("a send");
                let deadline = Instant::now() + Duration::from_secs(10);
                while comm.world_size() == 3 {
                    assert!(Instant::now() < deadline, "the next epoch comes");
                    comm.barrier(&Call::sum().scope([ids[1]])).expect("alone");
                }
                comm.send(&[1_u8, 2, 3], ids[0], &Call::default().tag(9)).expect("a send");
            }
            _ => {
                met.wait();
                comm.leave();
            }
        }
    });
}

#[test]
fn a_receive_ends_when_the_other_end_leaves() {
    together(3, |comm| {
        let ids: Vec<_> = comm.peers().iter().map(|peer| peer.id).collect();
        match comm.rank() {
            0 => {
                let started = Instant::now();
                let mut data = [5_u8; 4];
                let error = comm.recv(&mut data, ids[2], &Call::default()).expect_err("it leaves");
                assert!(
                    matches!(error.cause(), Some(CallError::PeersLost(lost)) if lost[0].0 == ids[2]),
                    "{error}"
                );
                assert!(started.elapsed() < Duration::from_secs(15), "long before the deadline");
                assert_eq!(data, [5; 4]);
                comm.send(&[1_u8], ids[1], &Call::default()).expect("others are not disturbed");
                comm.barrier(&Call::default()).expect("both are done");
            }
            1 => {
                comm.recv(&mut [0_u8], ids[0], &Call::default()).expect("a receive");
                comm.barrier(&Call::default()).expect("both are done");
            }
            _ => {
                thread::sleep(Duration::from_millis(200));
                comm.leave();
            }
        }
    });
}

#[test]
fn what_runs_in_the_background_gives_its_data_back() {
    together(2, |comm| {
        let (rank, ids) = (comm.rank(), comm.peers());
        let tagged = |tag: u64| Call::sum().tag(tag);
        // All of them at once, in another order on each peer.
        let start: [&dyn Fn() -> Box<dyn FnOnce()>; 6] = [
            &|| {
                let handle = comm.all_gather_async(vec![0_i16; 2], vec![rank as i16], tagged(1));
                Box::new(move || assert_eq!(handle.wait().0, (vec![0, 1], vec![rank as i16])))
            },
            &|| {
                let handle = comm.reduce_scatter_async(vec![0_u32], vec![10, 20], tagged(2));
                Box::new(move || assert_eq!(handle.wait().0.0, [if rank == 0 { 20 } else { 40 }]))
            },
            &|| {
                let handle = comm.broadcast_async(vec![rank as f64; 3], ids[1].id, tagged(3));
                Box::new(move || assert!(handle.wait().0.iter().all(|value| *value > 0.9)))
            },
            &|| {
                let call = tagged(4).quantise(Quantisation::Int8);
                let handle = comm.all_reduce_many_async(vec![vec![1.5_f32; 200], vec![2.5; 300]], call);
                Box::new(move || {
                    let (data, receipt) = handle.wait();
                    assert_eq!(receipt.expect("a sum").algorithm, "ring/int8");
                    assert!(data[0].iter().all(|x| (x - 3.0).abs() < 0.1), "{:?}", data[0]);
                    assert!(data[1].iter().all(|x| (x - 5.0).abs() < 0.1), "{:?}", data[1]);
                })
            },
            &|| {
                // Several types in one transaction.
                let lists = (vec![vec![0.5_f32; 3], vec![1.5]], vec![rank as u64 + 1], vec![vec![true]]);
                let handle = comm.all_reduce_many_async(lists, Call::new(ReduceOp::Max).tag(6));
                Box::new(move || {
                    let ((floats, numbers, truths), receipt) = handle.wait();
                    assert_eq!(receipt.expect("a maximum").contributors.len(), 2);
                    assert_eq!(
                        (floats, numbers, truths),
                        (vec![vec![0.5; 3], vec![1.5]], vec![2], vec![vec![true]])
                    );
                })
            },
            &|| {
                let handle = comm.barrier_async(tagged(5));
                Box::new(move || drop(handle.wait().1.expect("a barrier")))
            },
        ];
        let order = |place: usize| if rank == 0 { place } else { start.len() - 1 - place };
        let waits: Vec<_> = (0..start.len()).map(|place| start[order(place)]()).collect();
        waits.into_iter().for_each(|wait| wait());
        // What is refused, and what panics, gives its data back too.
        let (data, receipt) = comm.all_gather_async(vec![7_u8; 9], vec![1], Call::sum()).wait();
        assert_eq!((data, receipt.is_err()), ((vec![7; 9], vec![1]), true));
        if rank == 0 {
            let (data, receipt) = comm.in_background(vec![3], |_, _| panic!("on purpose")).wait();
            assert_eq!((data, receipt.is_err()), (vec![3], true));
        }
        comm.barrier(&Call::default()).expect("both are done");
    });
}
