//! What a ring does when something goes wrong: memory as it was, nobody blamed, the next call works.

mod support;

use outlast::executor::{Abort, Buffers, DataSettings, LinkEvent, Performed, Stopped};
use outlast::fork::Guarded;
use outlast::link::{TcpSettings, TcpWire, Wire};
use outlast_proto::collective::{BrokenLink, DataType, ReduceOp};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::moments::{Moments, abort_at_random_moments};
use support::{Cluster, PATIENCE, Wrap, bytes_of_mut, contribution_f32, peer, reduce, sum_f32};

#[test]
fn an_abort_at_any_moment_leaves_the_memory_alone_and_the_links_usable() {
    abort_at_random_moments(&Cluster::new(2), 300_000, 20);
    abort_at_random_moments(&Cluster::new(3), 300_000, 20);
}

#[test]
#[ignore = "long: make soak"]
fn soak_aborts_at_random_moments() {
    for world in 2..=4 {
        abort_at_random_moments(&Cluster::new(world), 2_000_000, 300);
        abort_at_random_moments(&Cluster::new(world), 1_000, 2_000);
    }
}

/// A wire that takes and gives a few bytes at a time, and refuses now and then: whatever happens, happens in
/// the middle of a frame.
struct Trickle {
    wire: Box<dyn Wire>,
    moments: Moments,
}

impl Trickle {
    fn share(&mut self, bytes: usize) -> io::Result<usize> {
        if self.moments.below(4) == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(bytes.min(1 + self.moments.below(20_000) as usize))
    }
}

impl Wire for Trickle {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let piece = pieces.iter().find(|piece| !piece.is_empty()).map_or(&[][..], |piece| piece);
        let share = self.share(piece.len())?;
        self.wire.send(&[IoSlice::new(&piece[..share])])
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let share = self.share(usize::MAX)?;
        let piece = pieces.iter_mut().find(|piece| !piece.is_empty()).expect("somewhere to put it");
        let share = share.min(piece.len());
        self.wire.receive(&mut [IoSliceMut::new(&mut piece[..share])])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wire.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wire.descriptor()
    }

    fn wants_checksums(&self) -> bool {
        true
    }
}

#[test]
fn frames_that_were_begun_are_finished_although_their_operation_is_gone() {
    let seed = AtomicU64::new(1);
    let wrap: Wrap = Arc::new(move |wire| {
        Box::new(Trickle { wire, moments: Moments(seed.fetch_add(0x1234_5678_9abc, Ordering::Relaxed)) })
    });
    for world in 2..=3 {
        abort_at_random_moments(&Cluster::with(world, DataSettings::default(), &wrap), 300_000, 15);
    }
}

/// A wire with checksums that turns one bit over, once.
struct Flip {
    wire: Box<dyn Wire>,
    after: usize,
    flips: Arc<AtomicBool>,
}

impl Wire for Flip {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.wire.send(pieces)
    }

    fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let bytes = self.wire.receive(pieces)?;
        if bytes > self.after && self.flips.swap(false, Ordering::SeqCst) {
            pieces[0][self.after] ^= 0x10;
        }
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wire.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wire.descriptor()
    }

    fn wants_checksums(&self) -> bool {
        true
    }
}

#[test]
fn a_bit_that_turns_over_on_the_way_is_noticed() {
    let flips = Arc::new(AtomicBool::new(true));
    let armed = Arc::clone(&flips);
    let wrap: Wrap = Arc::new(move |wire| Box::new(Flip { wire, after: 5_000, flips: Arc::clone(&armed) }));
    let cluster = Cluster::with(2, DataSettings::default(), &wrap);
    let count = 500_000;
    let spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[count]);
    let outcomes = cluster.everybody(|number, member| {
        let original = contribution_f32(number, count, 0);
        let mut tensor = original.clone();
        let outcome = reduce(member, &spec, &mut tensor).map(Performed::undo);
        assert_eq!(tensor, original);
        outcome
    });
    assert!(!flips.load(Ordering::SeqCst), "the bit was turned over");
    let noticed = |outcome: &Result<(), Stopped>| matches!(outcome, Err(Stopped::LinkBroken(BrokenLink { error, .. })) if error.contains("checksum"));
    assert!(outcomes.iter().any(noticed), "{outcomes:?}");
    let spec = cluster.spec(0, 1, DataType::F32, ReduceOp::Sum, &[count]);
    cluster.everybody(|number, member| {
        let mut tensor = contribution_f32(number, count, 0);
        reduce(member, &spec, &mut tensor).unwrap().commit();
        assert!(tensor == sum_f32(2, count, 0), "the next call dials again and works");
    });
}

fn tags_in_reversed_order(count: usize) {
    let tags = 6;
    let cluster = Cluster::new(3);
    cluster.everybody(|number, member| {
        std::thread::scope(|scope| {
            let order: Vec<u64> = if number == 1 { (0..tags).collect() } else { (0..tags).rev().collect() };
            for tag in order {
                let spec = cluster.spec(tag, 0, DataType::F32, ReduceOp::Sum, &[count]);
                scope.spawn(move || {
                    let mut tensor = contribution_f32(number, count, tag as usize);
                    reduce(member, &spec, &mut tensor).unwrap().commit();
                    assert_eq!(tensor, sum_f32(3, count, tag as usize), "tag {tag}");
                });
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    });
}

#[test]
fn tags_meet_in_any_order() {
    tags_in_reversed_order(200_000);
    tags_in_reversed_order(100);
}

#[test]
#[ignore = "long: make soak"]
fn soak_tags_of_64_mib_in_reversed_order() {
    tags_in_reversed_order(16 << 20);
}

/// One member waits under a tag that the other has not called: calls under another tag pass it by.
#[test]
fn a_call_that_nobody_answers_yet_is_in_nobodys_way() {
    let cluster = Cluster::new(2);
    let count = 2_000_000;
    let run = |member: usize, tag: u64, seq: u64| {
        let spec = cluster.spec(tag, seq, DataType::F32, ReduceOp::Sum, &[count]);
        let mut tensor = contribution_f32(member, count, 0);
        reduce(&cluster.members[member], &spec, &mut tensor).unwrap().commit();
        assert!(tensor == sum_f32(2, count, 0));
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(0, 1, 0));
        let second = scope.spawn(|| run(1, 2, 0));
        for seq in 0..3 {
            std::thread::scope(|scope| {
                scope.spawn(|| run(0, 3, seq));
                scope.spawn(|| run(1, 3, seq));
            });
        }
        assert!(!first.is_finished() && !second.is_finished(), "these wait for their partners");
        scope.spawn(|| run(1, 1, 0));
        scope.spawn(|| run(0, 2, 0));
    });
}

#[test]
fn a_peer_that_vanishes_is_reported_by_its_neighbours_alone() {
    let mut cluster = Cluster::new(5);
    let count = 4_000_000;
    let victim = 2;
    let spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[count]);
    let aborts: Vec<_> = (0..5).map(|_| Abort::new()).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    let ready = std::sync::Barrier::new(6);
    let outcomes = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..5)
            .map(|number| {
                let (member, abort, spec) = (&cluster.members[number], &aborts[number], &spec);
                let (sender, ready) = (sender.clone(), &ready);
                scope.spawn(move || {
                    let original = contribution_f32(number, count, 0);
                    let mut tensor = original.clone();
                    ready.wait();
                    let buffers = Buffers::in_place([bytes_of_mut(&mut tensor)]);
                    let outcome = member.plane.perform(spec, buffers, abort).map(Performed::undo);
                    assert!(tensor == original, "member {number} has its memory back");
                    sender.send(number).unwrap();
                    outcome
                })
            })
            .collect();
        ready.wait();
        std::thread::sleep(Duration::from_millis(5));
        cluster.members[victim].plane.shutdown();
        for _ in 0..3 {
            let number = receiver.recv_timeout(PATIENCE).unwrap();
            assert!((1..=3).contains(&number), "only the victim and its neighbours notice, not {number}");
        }
        aborts.iter().for_each(Abort::trigger);
        calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(matches!(&outcomes[1], Err(Stopped::LinkBroken(broken)) if broken.to == peer(2)));
    assert!(matches!(&outcomes[3], Err(Stopped::LinkBroken(broken)) if broken.from == peer(2)));
    assert_eq!(outcomes[2], Err(Stopped::Closed));
    assert_eq!((&outcomes[0], &outcomes[4]), (&Err(Stopped::Aborted), &Err(Stopped::Aborted)));
    let told = cluster.members[1].events.lock().unwrap().clone();
    assert!(told.iter().any(|event| matches!(event, LinkEvent::Down { peer: lost, .. } if *lost == peer(2))));

    cluster.members.remove(victim);
    cluster.open_epoch();
    let spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[count]);
    cluster.everybody(|number, member| {
        let mut tensor = contribution_f32(number, count, 0);
        reduce(member, &spec, &mut tensor).unwrap().commit();
        assert!(tensor == sum_f32(4, count, 0), "the survivors go on");
    });
}

#[test]
fn different_calls_under_one_name_are_noticed_before_a_byte_is_used() {
    for counts in [[100, 101], [1_000_000, 999_999], [10, 1_000_000]] {
        let cluster = Cluster::new(2);
        let aborts = [Abort::new(), Abort::new()];
        let outcomes = cluster.everybody(|number, member| {
            let count = counts[number];
            let spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[count]);
            let original = contribution_f32(number, count, 0);
            let mut tensor = original.clone();
            let buffers = Buffers::in_place([bytes_of_mut(&mut tensor)]);
            let outcome = member.plane.perform(&spec, buffers, &aborts[number]).map(Performed::undo);
            assert_eq!(tensor, original);
            aborts[1 - number].trigger();
            outcome
        });
        let other = |number: usize| {
            let spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[counts[1 - number]]);
            Err(Stopped::Mismatch { peer: peer(1 - number), theirs: spec.fingerprint.digest() })
        };
        assert!(outcomes[0] == other(0) || outcomes[1] == other(1), "{outcomes:?}");
        assert!(
            (0..2).all(|n| outcomes[n] == other(n) || outcomes[n] == Err(Stopped::Aborted)),
            "{outcomes:?}"
        );
    }
}

#[test]
fn a_call_without_partners_ends_at_its_deadline() {
    let cluster = Cluster::new(2);
    let mut spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[1_000]);
    spec.deadline = Instant::now() + Duration::from_millis(100);
    let mut tensor = vec![1.0_f32; 1_000];
    let outcome = reduce(&cluster.members[0], &spec, &mut tensor).map(Performed::undo);
    assert_eq!(outcome, Err(Stopped::Deadline));
    assert!(Instant::now() >= spec.deadline, "not before it");
}

#[test]
fn an_epoch_that_is_left_takes_its_calls_with_it_and_is_refused_afterwards() {
    let mut cluster = Cluster::new(2);
    let ring: Vec<_> = cluster.members.iter().map(|member| (member.id, member.address)).collect();
    // On a busy machine the call may begin only when its epoch is over: then the next epoch waits longer for it.
    let mut old = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[1_000_000]);
    let mut ended = Err(Stopped::Stale);
    for patience in [20, 100, 500, 2_000, 10_000] {
        if ended != Err(Stopped::Stale) {
            break;
        }
        old = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[1_000_000]);
        cluster.epoch += 1;
        ended = std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let mut tensor = vec![1.0_f32; 1_000_000];
                reduce(&cluster.members[0], &old, &mut tensor).map(Performed::undo)
            });
            std::thread::sleep(Duration::from_millis(patience));
            cluster.members[0].plane.open_epoch(0, cluster.epoch, ring.clone());
            call.join().unwrap()
        });
    }
    assert_eq!(ended, Err(Stopped::Aborted));
    let mut tensor = vec![1.0_f32; 1_000_000];
    let refused = reduce(&cluster.members[0], &old, &mut tensor).map(Performed::undo);
    assert_eq!(refused, Err(Stopped::Stale));
    // Member 1 is a moment late: its eager bytes of the old epoch are drained, the new epoch works.
    cluster.open_epoch();
    let spec = cluster.spec(0, 0, DataType::F32, ReduceOp::Sum, &[1_000_000]);
    cluster.everybody(|number, member| {
        let mut tensor = contribution_f32(number, 1_000_000, 0);
        reduce(member, &spec, &mut tensor).unwrap().commit();
        assert!(tensor == sum_f32(2, 1_000_000, 0));
    });
}

/// Memory that is gone right after the call: a late write would be the end of this process.
struct Page {
    start: *mut u8,
    bytes: usize,
}

impl Page {
    fn new(bytes: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        Self { start: start.unwrap().cast(), bytes }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: our own mapping, borrowed through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no borrow of it is left.
        unsafe { munmap(self.start.cast(), self.bytes) }.unwrap();
    }
}

#[test]
fn nobody_touches_the_memory_after_an_abort_returned() {
    let cluster = Cluster::new(2);
    let bytes = 4 << 20;
    let mut moments = Moments(77);
    for attempt in 0..25 {
        let delays = [moments.below(3_000), moments.below(3_000)].map(Duration::from_micros);
        cluster.everybody(|number, member| {
            std::thread::scope(|scope| {
                // Two tags: whichever call ends first, the other goes on driving the same links.
                for tag in 0..2 {
                    let cluster = &cluster;
                    scope.spawn(move || {
                        let mut page = Page::new(bytes);
                        let abort = Abort::new();
                        let spec = cluster.spec(tag, attempt, DataType::F32, ReduceOp::Sum, &[bytes / 4]);
                        std::thread::scope(|scope| {
                            let trigger = abort.clone();
                            if tag == 0 {
                                scope.spawn(move || {
                                    std::thread::sleep(delays[number]);
                                    trigger.trigger();
                                });
                            }
                            let buffers = Buffers::in_place([page.bytes_mut()]);
                            match member.plane.perform(&spec, buffers, &abort) {
                                Ok(performed) => performed.commit(),
                                Err(stopped) => assert_eq!((tag, stopped), (0, Stopped::Aborted)),
                            }
                            drop(page);
                        });
                    });
                }
            });
        });
    }
}

#[test]
fn nonsense_breaks_its_link_and_nothing_else() {
    let cluster = Cluster::new(2);
    let run = |seq| {
        let spec = cluster.spec(0, seq, DataType::F32, ReduceOp::Sum, &[100_000]);
        cluster.everybody(|number, member| {
            let mut tensor = contribution_f32(number, 100_000, 0);
            reduce(member, &spec, &mut tensor).unwrap().commit();
            assert!(tensor == sum_f32(2, 100_000, 0));
        });
    };
    run(0);
    // A connection in the name of member 1 takes the place of its real one, and talks nonsense.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut liar = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let victim = &cluster.members[0];
    victim.plane.accept(
        peer(1),
        Box::new(TcpWire::new(Guarded::new(accepted).unwrap(), &TcpSettings::default()).unwrap()),
    );
    liar.write_all(&[0xee; 1_000]).unwrap();
    let spec = cluster.spec(9, 0, DataType::F32, ReduceOp::Sum, &[100_000]);
    let mut short = spec;
    short.deadline = Instant::now() + Duration::from_millis(300);
    let mut tensor = vec![1.0_f32; 100_000];
    let outcome = reduce(victim, &short, &mut tensor).map(Performed::undo);
    assert_eq!(outcome, Err(Stopped::Deadline), "a link that broke before its first frame may come back");
    let told = victim.events.lock().unwrap().clone();
    let reported =
        |event: &LinkEvent| matches!(event, LinkEvent::Down { error, .. } if error.contains("0xeeee"));
    assert!(told.iter().any(reported), "{told:?}");
    // Member 1 finds its link closed and dials again by itself.
    run(1);
}
