//! The clauses about transfers: two ends, no vote, no epoch (rule 8).

use super::super::plane::Performed;
use super::super::{Abort, Buffers, Stopped, TransferSpec};
use super::worlds::{Make, PATIENCE, World, peer};
use super::{BEFORE, bytes, input, meanwhile};
use outlast_proto::collective::{DataType, Fingerprint, OpKind};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for a call to begin to wait, and no time for anybody to come.
const SOON: Duration = Duration::from_millis(50);

fn spec(other: usize, tag: u64, count: usize, receives: Option<u64>) -> TransferSpec {
    TransferSpec {
        group: 0,
        peer: peer(other),
        tag,
        receives,
        fingerprint: Fingerprint::new(OpKind::SendReceive, DataType::I32, [count as u64]),
        deadline: Instant::now() + PATIENCE,
    }
}

fn within(time: Duration, spec: TransferSpec) -> TransferSpec {
    TransferSpec { deadline: Instant::now() + time, ..spec }
}

/// What a sender has to say.
fn values(from: usize, count: usize) -> Vec<u8> {
    bytes(&(0..count).map(|at| input(from, at)).collect::<Vec<_>>())
}

fn send(world: &World, from: usize, spec: &TransferSpec, abort: &Abort) -> Result<(), Stopped> {
    let data = values(from, spec.fingerprint.elements() as usize);
    let buffers = Buffers::out_of_place([&data[..]], []);
    world.members[from].plane.transfer(spec, buffers, abort).map(Performed::commit)
}

/// What came. If nothing did, memory is as it was.
fn receive(world: &World, to: usize, spec: &TransferSpec, abort: &Abort) -> Result<Vec<u8>, Stopped> {
    let before = bytes(&vec![BEFORE; spec.fingerprint.elements() as usize]);
    let mut data = before.clone();
    let buffers = Buffers::out_of_place([], [&mut data[..]]);
    let outcome = world.members[to].plane.transfer(spec, buffers, abort).map(Performed::commit);
    assert!(outcome.is_ok() || data == before, "memory is as it was: {outcome:?}");
    outcome.map(|()| data)
}

/// A transfer that nobody disturbs.
fn transfer(world: &World, (from, to): (usize, usize), tag: u64, number: u64, count: usize) {
    thread::scope(|scope| {
        scope.spawn(|| send(world, from, &spec(to, tag, count, None), &Abort::new()).expect("undisturbed"));
        let received = receive(world, to, &spec(from, tag, count, Some(number)), &Abort::new());
        assert!(received.expect("undisturbed") == values(from, count), "{count} numbers from {from} to {to}");
    });
}

pub(super) fn a_transfer_gives_its_values_whoever_comes_first(make: Make) {
    let world = make(3);
    for (number, count) in [0, 1, 1_000, 40_003].into_iter().enumerate() {
        let number = 2 * number as u64;
        let outgoing = spec(2, 5, count, None);
        let received = meanwhile(
            || receive(&world, 2, &spec(0, 5, count, Some(number)), &Abort::new()),
            || send(&world, 0, &outgoing, &Abort::new()).expect("it is waited for"),
        );
        assert!(received == Ok(values(0, count)));
        let sent = meanwhile(
            || send(&world, 0, &outgoing, &Abort::new()),
            || {
                let incoming = spec(0, 5, count, Some(number + 1));
                assert!(receive(&world, 2, &incoming, &Abort::new()) == Ok(values(0, count)));
            },
        );
        assert_eq!(sent, Ok(()));
    }
    // All at once, in a circle and under several tags.
    world.everybody(|rank, _| {
        thread::scope(|scope| {
            for tag in 0..4 {
                let (world, next) = (&world, (rank + 1) % 3);
                scope.spawn(move || transfer(world, (rank, next), tag, 0, 20_000));
            }
        });
    });
}

pub(super) fn a_receive_that_was_given_up_takes_back_that_it_waits(make: Make) {
    let world = make(2);
    for number in 0..3 {
        let given_up = within(SOON, spec(0, 0, 10, Some(2 * number)));
        assert_eq!(receive(&world, 1, &given_up, &Abort::new()), Err(Stopped::Deadline));
        let sent = meanwhile(
            || send(&world, 0, &spec(1, 0, 10, None), &Abort::new()),
            || {
                let received = receive(&world, 1, &spec(0, 0, 10, Some(2 * number + 1)), &Abort::new());
                assert!(received == Ok(values(0, 10)));
            },
        );
        assert_eq!(sent, Ok(()), "it met the receive after the one that was given up");
    }
}

pub(super) fn a_send_that_was_given_up_is_not_received(make: Make) {
    let world = make(2);
    let given_up = within(SOON, spec(1, 0, 10, None));
    assert_eq!(send(&world, 0, &given_up, &Abort::new()), Err(Stopped::Deadline));
    let waiting = within(SOON, spec(0, 0, 10, Some(0)));
    assert_eq!(receive(&world, 1, &waiting, &Abort::new()), Err(Stopped::Deadline));
    transfer(&world, (0, 1), 0, 1, 10);
}

pub(super) fn another_call_at_the_other_end_is_noticed_by_the_sender(make: Make) {
    let world = make(2);
    let abort = Abort::new();
    let received = meanwhile(
        || receive(&world, 1, &spec(0, 0, 10, Some(0)), &abort),
        || {
            let sent = send(&world, 0, &spec(1, 0, 11, None), &Abort::new());
            assert!(matches!(sent, Err(Stopped::Mismatch { .. })), "{sent:?}");
            abort.trigger();
        },
    );
    assert!(matches!(received, Err(Stopped::Mismatch { .. } | Stopped::Aborted)), "{received:?}");
    transfer(&world, (0, 1), 0, 1, 10);
}

pub(super) fn an_abort_or_a_shutdown_ends_a_transfer(make: Make) {
    let world = make(2);
    for number in 0..2 {
        let abort = Abort::new();
        let call = || receive(&world, 1, &spec(0, 0, 10, Some(number)), &abort);
        assert_eq!(meanwhile(call, || abort.trigger()), Err(Stopped::Aborted));
        let abort = Abort::new();
        let call = || send(&world, 0, &spec(1, 0, 10, None), &abort);
        assert_eq!(meanwhile(call, || abort.trigger()), Err(Stopped::Aborted));
    }
    transfer(&world, (0, 1), 0, 2, 10);
    let call = || receive(&world, 1, &spec(0, 0, 10, Some(3)), &Abort::new());
    assert_eq!(meanwhile(call, || world.members[1].plane.shutdown()), Err(Stopped::Closed));
    assert_eq!(send(&world, 1, &spec(0, 0, 10, None), &Abort::new()), Err(Stopped::Closed));
}

pub(super) fn a_transfer_outlives_epochs_and_ends_with_its_other_end(make: Make) {
    let mut world = make(3);
    let gone = world.members.pop().expect("three members");
    // A thread borrows the world, so the next epochs are opened by hand.
    let next = |epoch| {
        let planes = world.members.iter().map(|member| &member.plane);
        planes.for_each(|plane| plane.open_epoch(0, epoch, world.addresses()));
    };
    let from_gone = meanwhile(
        || receive(&world, 0, &spec(2, 1, 10, Some(0)), &Abort::new()),
        || {
            let received = meanwhile(
                || receive(&world, 1, &spec(0, 0, 10, Some(0)), &Abort::new()),
                || {
                    (2..4).for_each(next);
                    send(&world, 0, &spec(1, 0, 10, None), &Abort::new()).expect("both are members still");
                },
            );
            assert!(received == Ok(values(0, 10)));
        },
    );
    assert_eq!(from_gone, Err(Stopped::Aborted));
    let outcome = receive(&world, 0, &spec(2, 1, 10, Some(1)), &Abort::new());
    assert_eq!(outcome, Err(Stopped::Stale), "nobody receives from one that is no member");
    drop(gone);
}
