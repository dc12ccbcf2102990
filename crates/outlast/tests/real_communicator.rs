//! Communicators, a coordinator and real sockets, in one process: results, losses, newcomers.

mod peers;

use outlast::Coordinator;
use outlast::communicator::{Call, Error, Interrupt, NextStep};
use outlast::membership::Preset;
use outlast_proto::limits::TAGS_MAX;
use outlast_proto::session::CallError;
use peers::{coordinator, each, peer};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_world_of_one_reduces_alone() {
    let coordinator = coordinator();
    let comm = peer(&coordinator, "alone");
    comm.connect(1).expect("admitted");
    let mut data = vec![2.5f32; 1000];
    let receipt = comm.all_reduce(&mut data, &Call::sum()).expect("a sum");
    assert_eq!((receipt.contributors.len(), receipt.world_size, receipt.rank), (1, 1, 0));
    assert!(data.iter().all(|value| value.to_bits() == 2.5f32.to_bits()));
}

#[test]
fn a_coordinator_that_was_dropped_decides_nothing_any_more() {
    for _ in 0..20 {
        let coordinator = coordinator();
        let comm = peer(&coordinator, "alone");
        comm.connect(1).expect("admitted");
        comm.barrier(&Call::sum()).expect("a verdict");
        drop(coordinator);
        let interrupt = Interrupt::new();
        let call = Call::sum().interrupt(&interrupt);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| comm.barrier(&call));
            thread::sleep(Duration::from_millis(20));
            interrupt.trigger();
            assert!(waiting.join().unwrap().is_err(), "a verdict of nobody");
        });
    }
}

#[test]
fn peers_sum_to_the_same_bits_and_receipts_agree() {
    let coordinator = coordinator();
    let results = each(&coordinator, 3, |number, comm| {
        comm.connect(3).expect("admitted");
        let mut receipts = Vec::new();
        for count in [0, 1, 2, 3, 4, 1023, 203_530] {
            let mut data: Vec<i64> = (0..count).map(|at| at + number as i64).collect();
            let receipt = comm.all_reduce(&mut data, &Call::sum()).expect("a sum");
            assert!(data.iter().enumerate().all(|(at, value)| *value == 3 * at as i64 + 3), "count {count}");
            receipts.push((receipt.epoch, receipt.seq, receipt.contributors, receipt.pending));
        }
        let mut mean = vec![number as f32; 100];
        comm.all_reduce(&mut mean, &Call::avg()).expect("a mean");
        assert!(mean.iter().all(|value| value.to_bits() == 1.0f32.to_bits()));
        comm.barrier(&Call::sum().tag(9)).expect("a barrier");
        receipts
    });
    assert!(results.iter().all(|receipts| *receipts == results[0]), "{results:?}");
}

#[test]
fn tags_in_any_order_do_not_deadlock() {
    let coordinator = coordinator();
    each(&coordinator, 3, |number, comm| {
        comm.connect(3).expect("admitted");
        let mut tags: Vec<u64> = (0..4).collect();
        if number == 1 {
            tags.reverse();
        }
        let handles: Vec<_> = tags
            .iter()
            .map(|tag| comm.all_reduce_async(vec![*tag as f32; 1 << 20], Call::sum().tag(*tag)))
            .collect();
        for (handle, tag) in handles.into_iter().zip(tags) {
            let (data, receipt) = handle.wait();
            receipt.expect("a sum");
            assert!(data.iter().all(|value| value.to_bits() == (3.0 * tag as f32).to_bits()));
        }
    });
}

#[test]
fn survivors_go_on_when_a_peer_leaves_and_admit_a_newcomer() {
    let coordinator = Arc::new(coordinator());
    let gone = Arc::new(Barrier::new(3));
    let (signal, service) = (Arc::clone(&gone), Arc::clone(&coordinator));
    let late = {
        let coordinator = Arc::clone(&coordinator);
        let gone = Arc::clone(&gone);
        thread::spawn(move || {
            gone.wait();
            let comm = peer(&coordinator, "late");
            comm.connect(3).expect("admitted");
            let mut data = vec![100i64; 5000];
            let receipt = comm.all_reduce(&mut data, &Call::sum().tag(7)).expect("a sum");
            (data[0], receipt.contributors.len())
        })
    };
    let sums = each(&service, 3, move |number, comm| {
        comm.connect(3).expect("admitted");
        let mut data = vec![1i64; 5000];
        comm.all_reduce(&mut data, &Call::sum()).expect("a sum of three");
        assert_eq!(data[0], 3);
        if number == 2 {
            comm.leave();
            return 0;
        }
        let mut data = vec![1i64; 5000];
        let receipt = comm.all_reduce(&mut data, &Call::sum()).expect("a sum of two");
        assert_eq!((data[0], receipt.contributors.len()), (2, 2));
        signal.wait();
        let change = comm.update_topology(3).expect("a newcomer");
        assert_eq!(change.joined.len(), 1);
        let mut data = vec![10i64; 5000];
        comm.all_reduce(&mut data, &Call::sum().tag(7)).expect("a sum with the newcomer");
        data[0]
    });
    assert_eq!(late.join().expect("the newcomer"), (120, 3));
    assert_eq!(sums, [120, 120, 0]);
}

#[test]
fn a_call_that_differs_is_told_so_and_the_others_wait_for_the_right_one() {
    let coordinator = coordinator();
    each(&coordinator, 3, |number, comm| {
        comm.connect(3).expect("admitted");
        if number == 1 {
            let mut wrong = vec![1.0f32; 77];
            let error = comm.all_reduce(&mut wrong, &Call::sum()).expect_err("a mismatch");
            assert_eq!(error.action(), NextStep::Fatal, "{error}");
            assert!(error.to_string().contains("77") && error.to_string().contains("1000"), "{error}");
            assert!(wrong.iter().all(|value| value.to_bits() == 1.0f32.to_bits()), "data untouched");
        }
        let mut right = vec![1.0f32; 1000];
        comm.all_reduce(&mut right, &Call::sum()).expect("a sum");
        assert!(right.iter().all(|value| value.to_bits() == 3.0f32.to_bits()));
    });
}

/// The majority once decided: the trained member was told that it was wrong, and the newcomers went on from nothing (rule 42).
#[test]
fn newcomers_whose_call_differs_are_told_so_and_the_trained_member_goes_on() {
    let coordinator = coordinator();
    let trained = peer(&coordinator, "trained");
    trained.connect(1).expect("admitted");
    let mut weights = vec![1.0f32; 1000];
    trained.all_reduce(&mut weights, &Call::sum()).expect("what it has in common with nobody yet");
    let newcomers: Vec<_> = (0..2)
        .map(|number| {
            let comm = peer(&coordinator, &format!("newcomer{number}"));
            thread::spawn(move || {
                comm.connect(3).expect("admitted");
                let mut wrong = vec![0.0f32; 77];
                let error = comm.all_reduce(&mut wrong, &Call::sum()).expect_err("a mismatch");
                assert!(matches!(error.cause(), Some(CallError::Mismatch { .. })), "{error}");
                assert!(error.to_string().contains("77") && error.to_string().contains("1000"), "{error}");
                assert!(wrong.iter().all(|value| value.to_bits() == 0.0f32.to_bits()), "data untouched");
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    while trained.all_reduce(&mut weights, &Call::sum()).expect("a sum").pending < 2 {
        assert!(Instant::now() < deadline, "the newcomers come");
        thread::sleep(Duration::from_millis(5));
    }
    trained.update_topology(3).expect("they are let in");
    assert_eq!(trained.world_size(), 3);
    let receipt = trained.all_reduce(&mut weights, &Call::sum()).expect("it goes on");
    assert_eq!((receipt.world_size, receipt.contributors), (1, vec![trained.peer_id()]));
    assert!(weights.iter().all(|value| value.to_bits() == 1.0f32.to_bits()));
    newcomers.into_iter().for_each(|newcomer| newcomer.join().expect("it was told"));
    trained.barrier(&Call::default()).expect("and on");
}

/// What is beyond the limit once cost a peer its place, and the other one all its calls.
#[test]
fn more_tags_than_there_may_be_cost_the_calls_that_are_too_many_and_nobody_its_place() {
    const TOO_MANY: usize = 176;
    const BURST: usize = TAGS_MAX / 8;
    let coordinator = coordinator();
    each(&coordinator, 2, |_, comm| {
        comm.connect(2).expect("admitted");
        let sum_under = |tags: std::ops::Range<usize>| {
            let begin = |tag| comm.all_reduce_async(vec![1.0f32; 16], Call::sum().tag(tag as u64));
            let handles: Vec<_> = tags.map(begin).collect();
            handles.into_iter().map(outlast::communicator::Handle::wait).collect::<Vec<_>>()
        };
        // In the background they begin in any order, and each peer would refuse others: first come those that fit.
        // Not all at once: each has a thread of its own, and a thousand of them take longer than a call may.
        for first in (0..TAGS_MAX).step_by(BURST) {
            for (data, receipt) in sum_under(first..first + BURST) {
                assert_eq!(receipt.expect("a sum").contributors.len(), 2);
                assert!(data.iter().all(|value| value.to_bits() == 2.0f32.to_bits()));
            }
        }
        for (data, receipt) in sum_under(TAGS_MAX..TAGS_MAX + TOO_MANY) {
            let error = receipt.expect_err("one too many");
            assert!(matches!(error.cause(), Some(CallError::TooManyTags { tags: TAGS_MAX, .. })), "{error}");
            assert!(data.iter().all(|value| value.to_bits() == 1.0f32.to_bits()), "data untouched");
        }
        // Those that are in use go on, in the same epoch.
        for (data, receipt) in sum_under(TAGS_MAX - TOO_MANY..TAGS_MAX) {
            assert_eq!(receipt.expect("a sum").seq, 1);
            assert!(data.iter().all(|value| value.to_bits() == 2.0f32.to_bits()));
        }
        let receipt = comm.barrier(&Call::default()).expect("the next one works");
        assert_eq!((receipt.world_size, receipt.attempts), (2, 1));
    });
    let status = coordinator.status(&"default".parse().expect("a run")).expect("an answer").expect("a run");
    assert!(status.contains("\"evictions\":0") && status.contains("\"kicks\":0"), "{status}");
}

#[test]
fn a_deadline_is_agreed_and_names_who_was_waited_for() {
    let coordinator = coordinator();
    each(&coordinator, 2, |number, comm| {
        comm.connect(2).expect("admitted");
        if number == 0 {
            let mut data = vec![1.0f32; 1000];
            let call = Call::sum().timeout(Duration::from_millis(700));
            let error = comm.all_reduce(&mut data, &call).expect_err("nobody else calls");
            assert_eq!(error.action(), NextStep::Retry);
            assert!(error.to_string().contains("p1"), "{error}");
            assert!(data.iter().all(|value| value.to_bits() == 1.0f32.to_bits()), "data untouched");
            comm.barrier(&Call::sum().tag(1)).expect("both are here");
        } else {
            comm.barrier(&Call::sum().tag(1)).expect("both are here");
        }
    });
}

#[test]
fn a_coordinator_that_is_restarted_at_its_address_goes_on() {
    let coordinator = coordinator();
    let (address, secret) = (coordinator.address(), coordinator.secret().clone());
    let peers: Vec<_> = (0..3).map(|number| peer(&coordinator, &format!("p{number}"))).collect();
    let halfway = Arc::new(Barrier::new(4));
    let threads: Vec<_> = peers
        .into_iter()
        .map(|comm| {
            let halfway = Arc::clone(&halfway);
            thread::spawn(move || {
                comm.connect(3).expect("admitted");
                for step in 0..60 {
                    if step == 30 {
                        halfway.wait();
                    }
                    let mut data = vec![1i64; 10_000];
                    let receipt = comm.all_reduce(&mut data, &Call::sum()).expect("a sum");
                    assert_eq!((data[0], receipt.contributors.len()), (3, 3), "step {step}");
                }
            })
        })
        .collect();
    halfway.wait();
    drop(coordinator);
    let again = Coordinator::builder().listen(address).secret(secret).preset(Preset::Local);
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    let _again = loop {
        match again.clone().start() {
            Ok(coordinator) => break coordinator,
            Err(error) if std::time::Instant::now() > deadline => panic!("{error}"),
            Err(_) => thread::yield_now(),
        }
    };
    threads.into_iter().for_each(|thread| thread.join().expect("a peer's program"));
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_happens() {
    let coordinator = coordinator();
    let comm = peer(&coordinator, "p");
    let mut data = [1.0f32];
    let error = comm.all_reduce(&mut data, &Call::sum()).expect_err("not connected");
    assert_eq!(error.action(), NextStep::Fatal, "{error}");
    comm.connect(1).expect("admitted");
    assert!(matches!(comm.connect(1), Err(Error::InvalidArgument(_))));
}

#[test]
fn an_interrupted_call_returns_soon_restores_its_data_and_breaks_nothing() {
    use outlast::watch::watched;
    use outlast_proto::session::CallError;

    let coordinator = coordinator();
    let interrupted = Arc::new(Barrier::new(2));
    each(&coordinator, 2, move |number, comm| {
        comm.connect(2).expect("admitted");
        if number == 0 {
            // The other does not come: a collective is left while it moves bytes, a barrier after its vote.
            let soon = Duration::from_millis(20);
            let mut data = vec![1.0f32; 1 << 20];
            let error = watched(soon, || true, || comm.all_reduce(&mut data, &Call::sum().tag(3)));
            assert_eq!(error.unwrap_err().cause(), Some(&CallError::Cancelled));
            assert!(data.iter().all(|value| value.to_bits() == 1.0f32.to_bits()));
            let error = watched(soon, || true, || comm.barrier(&Call::sum().tag(4)));
            assert_eq!(error.unwrap_err().cause(), Some(&CallError::Cancelled));
        }
        interrupted.wait();
        let mut data = vec![1.0f32; 1 << 20];
        comm.all_reduce(&mut data, &Call::sum()).expect("a sum after the interrupt");
        assert!(data.iter().all(|value| value.to_bits() == 2.0f32.to_bits()));
    });
}
