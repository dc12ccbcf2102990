//! Send and receive over links: large ones, many at once, given up in the middle, and nobody else disturbed. What every
//! transport owes a transfer is in the executor's contract (`executor/contract/transfers.rs`).

mod support;

use outlast::executor::{Abort, Buffers, Stopped, TransferSpec};
use outlast_proto::collective::{DataType, Fingerprint, OpKind};
use std::time::{Duration, Instant};
use support::{Cluster, PATIENCE, bytes_of, bytes_of_mut, peer};

fn spec(other: usize, tag: u64, count: usize, receives: Option<u64>) -> TransferSpec {
    TransferSpec {
        group: 0,
        peer: peer(other),
        tag,
        receives,
        fingerprint: Fingerprint::new(OpKind::SendReceive, DataType::I64, [count as u64]),
        deadline: Instant::now() + PATIENCE,
    }
}

fn send(cluster: &Cluster, from: usize, to: usize, tag: u64, data: &[i64]) -> Result<(), Stopped> {
    let spec = spec(to, tag, data.len(), None);
    send_as(cluster, from, &spec, data, &Abort::new())
}

fn send_as(
    cluster: &Cluster,
    from: usize,
    spec: &TransferSpec,
    data: &[i64],
    abort: &Abort,
) -> Result<(), Stopped> {
    let buffers = Buffers::out_of_place([bytes_of(data)], []);
    cluster.members[from].plane.transfer(spec, buffers, abort).map(outlast::executor::Performed::commit)
}

fn receive(
    cluster: &Cluster,
    (from, to): (usize, usize),
    tag: u64,
    number: u64,
    count: usize,
) -> Result<Vec<i64>, Stopped> {
    let spec = spec(from, tag, count, Some(number));
    receive_as(cluster, to, &spec, count, &Abort::new())
}

fn receive_as(
    cluster: &Cluster,
    to: usize,
    spec: &TransferSpec,
    count: usize,
    abort: &Abort,
) -> Result<Vec<i64>, Stopped> {
    let mut data = vec![-7; count];
    let buffers = Buffers::out_of_place([], [bytes_of_mut(&mut data)]);
    let outcome = cluster.members[to].plane.transfer(spec, buffers, abort);
    let outcome = outcome.map(outlast::executor::Performed::commit);
    if outcome.is_err() {
        assert!(data.iter().all(|value| *value == -7), "memory is as it was");
    }
    outcome.map(|()| data)
}

fn values(count: usize, salt: u64) -> Vec<i64> {
    (0..count).map(|i| (i as i64) * 31 + salt as i64).collect()
}

#[test]
fn what_is_sent_is_received_whoever_comes_first() {
    let cluster = Cluster::new(3);
    for (number, count) in [0, 1, 1_000, 100_000, 2_000_000].into_iter().enumerate() {
        for late in 0..2 {
            let number = (2 * number + late) as u64;
            std::thread::scope(|scope| {
                let cluster = &cluster;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(20 * late as u64));
                    send(cluster, 0, 2, 5, &values(count, number)).unwrap();
                });
                let received = receive(cluster, (0, 2), 5, number, count).unwrap();
                assert!(received == values(count, number), "{count} numbers");
            });
        }
    }
}

#[test]
fn everybody_sends_to_the_next_and_receives_from_the_last_at_once() {
    let cluster = Cluster::new(4);
    for number in 0..20 {
        cluster.everybody(|me, _| {
            std::thread::scope(|scope| {
                let cluster = &cluster;
                scope.spawn(move || send(cluster, me, (me + 1) % 4, 0, &values(50_000, me as u64)).unwrap());
                let from = (me + 3) % 4;
                let received = receive(cluster, (from, me), 0, number, 50_000).unwrap();
                assert!(received == values(50_000, from as u64));
            });
        });
    }
}

#[test]
fn giving_up_in_the_middle_ends_both_and_the_next_transfer_works() {
    let cluster = Cluster::new(2);
    let count = 4_000_000;
    let data = values(count, 0);
    let mut told = 0;
    // How long "the middle" takes to come depends on the machine: it is looked for until it was met.
    for number in 0..64 {
        if number >= 16 && told > 0 {
            break;
        }
        let aborts = [Abort::new(), Abort::new()];
        let victim = (number % 2) as usize;
        let start = std::sync::Barrier::new(3);
        let outcomes = std::thread::scope(|scope| {
            let (cluster, aborts, data, start) = (&cluster, &aborts, &data, &start);
            let sending = scope.spawn(move || {
                start.wait();
                send_as(cluster, 0, &spec(1, 0, count, None), data, &aborts[0])
            });
            let receiving = scope.spawn(move || {
                start.wait();
                receive_as(cluster, 1, &spec(0, 0, count, Some(2 * number)), count, &aborts[1])
            });
            start.wait();
            std::thread::sleep(Duration::from_millis(2 * number));
            aborts[victim].trigger();
            // Whoever gives up tells the other end, unless the two have not met yet.
            let waited = Instant::now();
            let both = || sending.is_finished() && receiving.is_finished();
            while !both() && waited.elapsed() < Duration::from_millis(500) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let both = both();
            aborts[1 - victim].trigger();
            (sending.join().unwrap(), receiving.join().unwrap(), both)
        });
        if outcomes.0.is_ok() {
            assert!(outcomes.1.is_ok_and(|received| received == *data), "received whole");
        } else if outcomes.2 {
            told += 1;
        }
        std::thread::scope(|scope| {
            let cluster = &cluster;
            scope.spawn(move || send(cluster, 0, 1, 0, &values(1_000, number)).unwrap());
            let received = receive(cluster, (0, 1), 0, 2 * number + 1, 1_000).unwrap();
            assert!(received == values(1_000, number), "the transfer after number {number}");
        });
    }
    assert!(told > 0, "nothing was given up in the middle: nothing was tested");
}

#[test]
fn an_epoch_without_somebody_else_leaves_a_transfer_alone() {
    let mut cluster = Cluster::new(3);
    let data = values(2_000_000, 7);
    let (ring, epoch) = (cluster.addresses(), cluster.epoch);
    let lost = cluster.members.pop().expect("three members");
    std::thread::scope(|scope| {
        let (cluster, data) = (&cluster, &data);
        let waiting = scope.spawn(move || receive(cluster, (2, 0), 1, 0, 10));
        let receiver = scope.spawn(move || receive(cluster, (0, 1), 0, 0, data.len()));
        // The two ends learn of the next epochs at different moments: before, while and after they meet.
        cluster.members[1].plane.open_epoch(0, epoch + 1, ring[..2].to_vec());
        let sender = scope.spawn(move || send(cluster, 0, 1, 0, data));
        cluster.members[0].plane.open_epoch(0, epoch + 1, ring[..2].to_vec());
        cluster.members[0].plane.open_epoch(0, epoch + 2, ring[..2].to_vec());
        assert_eq!(sender.join().unwrap(), Ok(()));
        assert!(receiver.join().unwrap().is_ok_and(|received| received == *data), "received whole");
        // It may have come to the data plane after the epoch: then it was refused instead of ended.
        let waited = waiting.join().unwrap();
        assert!(matches!(waited, Err(Stopped::Aborted | Stopped::Stale)), "{waited:?} from one that is gone");
        let outcome = receive(cluster, (2, 0), 1, 1, 10);
        assert_eq!(outcome, Err(Stopped::Stale), "nobody receives from one that is no member");
    });
    drop(lost);
}

#[test]
fn a_peer_that_vanishes_ends_its_transfers_and_no_others() {
    let cluster = Cluster::new(3);
    std::thread::scope(|scope| {
        let cluster = &cluster;
        let waiting = scope.spawn(move || receive(cluster, (1, 0), 0, 0, 10));
        let sending = scope.spawn(move || send(cluster, 0, 1, 9, &values(4_000_000, 0)));
        let receiver = scope.spawn(move || receive(cluster, (0, 1), 9, 0, 4_000_000).map(|_| ()));
        std::thread::sleep(Duration::from_millis(10));
        cluster.members[1].plane.shutdown();
        assert_eq!(receiver.join().unwrap().unwrap_err(), Stopped::Closed);
        assert!(matches!(sending.join().unwrap(), Err(Stopped::LinkBroken(_)) | Ok(())));
        // Others are not disturbed; and who waits for the lost one waits for the epoch to end.
        scope.spawn(move || send(cluster, 2, 0, 0, &values(10, 3)).unwrap());
        assert_eq!(receive(cluster, (2, 0), 0, 0, 10), Ok(values(10, 3)));
        assert!(!waiting.is_finished());
        cluster.members[0].plane.close_epoch(0, cluster.epoch);
        assert_eq!(waiting.join().unwrap(), Err(Stopped::Aborted));
    });
}
