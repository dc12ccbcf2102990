//! What a call does whose bytes the wire has taken and the kernel has not: it waits for them, and no longer than
//! its abort or its deadline says.

mod support;

use outlast::executor::{Abort, Buffers, DataSettings, OpSpec, Performed, Stopped, TransferSpec};
use outlast::link::Wire;
use outlast_proto::collective::{DataType, Fingerprint, OpKind, ReduceOp};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{Cluster, Member, Wrap, bytes_of, bytes_of_mut, contribution_f32, reduce, sum_f32};

const COUNT: usize = 1_000;

/// What a stuck wire does, for all wires of a member.
#[derive(Default)]
struct Tap {
    /// The kernel takes nothing: the other process is stopped, and its window is closed.
    stuck: AtomicBool,
    /// Becomes stuck as soon as anything comes in.
    sticks_on_arrival: AtomicBool,
}

/// A wire as one with TLS is: it takes up to 64 KiB for itself, and what the kernel does not take waits for `flush`.
struct Sealing {
    wire: Box<dyn Wire>,
    held: Vec<u8>,
    tap: Arc<Tap>,
}

impl Wire for Sealing {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let mut taken = 0;
        for piece in pieces {
            let some = piece.len().min((64 << 10) - taken);
            self.held.extend_from_slice(&piece[..some]);
            taken += some;
        }
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let bytes = self.wire.receive(pieces)?;
        if self.tap.sticks_on_arrival.load(Ordering::SeqCst) {
            self.tap.stuck.store(true, Ordering::SeqCst);
        }
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.held.is_empty() {
            if self.tap.stuck.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let sent = self.wire.send(&[IoSlice::new(&self.held)])?;
            self.held.drain(..sent);
        }
        self.wire.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wire.descriptor()
    }

    fn wants_checksums(&self) -> bool {
        false
    }
}

/// Two members; the wires of the first hold bytes back when its tap says so.
fn pair() -> (Cluster, Arc<Tap>) {
    let tap = Arc::new(Tap::default());
    let plain: Wrap = Arc::new(|wire| wire);
    let ours = Arc::clone(&tap);
    let sealing: Wrap =
        Arc::new(move |wire| Box::new(Sealing { wire, held: Vec::new(), tap: Arc::clone(&ours) }));
    let settings = DataSettings::default();
    let members = vec![Member::new(0, settings, &sealing), Member::new(1, settings, &plain)];
    let mut cluster = Cluster { ring: members.iter().map(|member| member.id).collect(), members, epoch: 0 };
    cluster.open_epoch();
    all_reduce(&cluster, 0);
    (cluster, tap)
}

/// Everybody's links carry, and what comes out is right.
fn all_reduce(cluster: &Cluster, seq: u64) {
    cluster.everybody(|number, member| {
        let spec = cluster.spec(0, seq, DataType::F32, ReduceOp::Sum, &[COUNT]);
        let mut tensor = contribution_f32(number, COUNT, 0);
        reduce(member, &spec, &mut tensor).unwrap().commit();
        assert_eq!(tensor, sum_f32(2, COUNT, 0));
    });
}

/// The first member's part of a broadcast: it is done with it as soon as the wire has its bytes.
fn broadcast(cluster: &Cluster, spec: &OpSpec, abort: &Abort) -> Result<(), Stopped> {
    let data = vec![1.0_f32; COUNT];
    let buffers = Buffers::out_of_place([bytes_of(&data)], []);
    cluster.members[0].plane.perform(spec, buffers, abort).map(Performed::commit)
}

fn broadcast_spec(cluster: &Cluster, timeout: Duration) -> OpSpec {
    let call = Fingerprint {
        root: Some(cluster.members[0].id),
        ..Fingerprint::new(OpKind::Broadcast, DataType::F32, [COUNT as u64])
    };
    OpSpec { deadline: Instant::now() + timeout, ..cluster.spec_of(&call, 1, 0) }
}

/// Begins a broadcast whose bytes stay in the wire, does `end` to it, and returns how it ended and how long that
/// took after `end`.
fn end_a_stuck_broadcast(timeout: Duration, end: impl FnOnce(&mut Cluster, &Abort)) -> (Stopped, Duration) {
    let (mut cluster, tap) = pair();
    tap.stuck.store(true, Ordering::SeqCst);
    let spec = broadcast_spec(&cluster, timeout);
    let abort = Abort::new();
    let plane = Arc::clone(&cluster.members[0].plane);
    let (ended, took) = std::thread::scope(|scope| {
        let root = scope.spawn(|| {
            let data = vec![1.0_f32; COUNT];
            let buffers = Buffers::out_of_place([bytes_of(&data)], []);
            plane.perform(&spec, buffers, &abort).map(Performed::commit)
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!root.is_finished(), "its bytes are not in the kernel, so it is not complete");
        end(&mut cluster, &abort);
        let ending = Instant::now();
        // Whatever is wrong, the test itself ends.
        while !root.is_finished() && ending.elapsed() < Duration::from_secs(4) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let took = ending.elapsed();
        tap.stuck.store(false, Ordering::SeqCst);
        (root.join().unwrap(), took)
    });
    // What the wire held is drained by the other end, and the link lives on.
    all_reduce(&cluster, 1);
    (ended.expect_err("its bytes never left"), took)
}

#[test]
fn an_abort_ends_a_call_whose_last_bytes_the_kernel_does_not_take() {
    let (stopped, took) = end_a_stuck_broadcast(Duration::from_secs(30), |_, abort| abort.trigger());
    assert_eq!(stopped, Stopped::Aborted);
    assert!(took < Duration::from_secs(2), "{took:?} after the abort");
}

#[test]
fn a_deadline_ends_a_call_whose_last_bytes_the_kernel_does_not_take() {
    let (stopped, took) = end_a_stuck_broadcast(Duration::from_secs(1), |_, _| {});
    assert_eq!(stopped, Stopped::Deadline);
    assert!(took < Duration::from_secs(3), "{took:?} after a deadline of one second");
}

#[test]
fn a_new_epoch_ends_a_call_whose_last_bytes_the_kernel_does_not_take() {
    let (stopped, took) = end_a_stuck_broadcast(Duration::from_secs(30), |cluster, _| cluster.open_epoch());
    assert_eq!(stopped, Stopped::Aborted);
    assert!(took < Duration::from_secs(2), "{took:?} after its epoch was left");
}

#[test]
fn a_call_whose_last_bytes_leave_late_is_complete_when_they_have_left() {
    let (cluster, tap) = pair();
    tap.stuck.store(true, Ordering::SeqCst);
    let spec = broadcast_spec(&cluster, Duration::from_secs(30));
    std::thread::scope(|scope| {
        let root = scope.spawn(|| broadcast(&cluster, &spec, &Abort::new()));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!root.is_finished());
        tap.stuck.store(false, Ordering::SeqCst);
        let mut data = vec![0.0_f32; COUNT];
        let buffers = Buffers::out_of_place([], [bytes_of_mut(&mut data)]);
        cluster.members[1].plane.perform(&spec, buffers, &Abort::new()).unwrap().commit();
        assert_eq!(data, [1.0; COUNT]);
        root.join().unwrap().unwrap();
    });
}

/// The receiver has all of it and cannot say so. What it has received it keeps: the sender may hear of it later.
#[test]
fn what_was_received_whole_is_kept_although_the_sender_cannot_be_told_in_time() {
    let (cluster, tap) = pair();
    let spec = |other: usize, receives, timeout| TransferSpec {
        group: 0,
        peer: cluster.members[other].id,
        tag: 0,
        receives,
        fingerprint: Fingerprint::new(OpKind::SendReceive, DataType::F32, [COUNT as u64]),
        deadline: Instant::now() + timeout,
    };
    let sent = contribution_f32(1, COUNT, 3);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            tap.sticks_on_arrival.store(true, Ordering::SeqCst);
            let buffers = Buffers::out_of_place([bytes_of(&sent)], []);
            let spec = spec(0, None, Duration::from_secs(20));
            cluster.members[1].plane.transfer(&spec, buffers, &Abort::new()).map(Performed::commit)
        });
        let mut data = vec![0.0_f32; COUNT];
        let began = Instant::now();
        let buffers = Buffers::out_of_place([], [bytes_of_mut(&mut data)]);
        let spec = spec(1, Some(0), Duration::from_secs(1));
        cluster.members[0].plane.transfer(&spec, buffers, &Abort::new()).unwrap().commit();
        assert!(began.elapsed() < Duration::from_secs(3), "{:?} for a deadline of a second", began.elapsed());
        assert_eq!(data, sent);
        assert!(tap.stuck.load(Ordering::SeqCst), "its word was held back");
        assert!(!sender.is_finished(), "the sender has heard nothing");
        tap.sticks_on_arrival.store(false, Ordering::SeqCst);
        tap.stuck.store(false, Ordering::SeqCst);
        // The word leaves with whatever this member does next.
        broadcast(&cluster, &broadcast_spec(&cluster, Duration::from_secs(20)), &Abort::new()).unwrap();
        sender.join().unwrap().unwrap();
    });
}
