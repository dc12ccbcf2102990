//! Panics: whatever unwinds, a call gives its caller's memory back in its own time and nobody waits in vain.

use super::super::ticket::Caller;
use super::*;
use crate::fork::Guarded;
use crate::link::{PlainDialer, TcpSettings, TcpWire};
use crate::watch::{cancels, watched};
use outlast_proto::collective::{BrokenLink, DataType, OpKey, Scope};
use outlast_proto::wire::control::Decider;
use std::net::TcpListener;
use std::thread;

const COUNT: usize = 1_000;

fn peer(number: u8) -> PeerId {
    PeerId::from_bytes([number; 16])
}

fn plane(dialer: impl Dial + 'static) -> DataPlane {
    DataPlane::new(peer(1), DataSettings::default(), Arc::new(dialer), |_| {}).unwrap()
}

/// Opens an epoch with somebody who lets itself be dialled and never makes a call.
fn beside_a_silent_member(plane: &DataPlane) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    plane.open_epoch(0, 1, vec![(peer(1), address), (peer(2), address)]);
    listener
}

fn all_reduce(plane: &DataPlane, tag: u64, deadline: Instant, tensor: &mut [u8]) -> Result<(), Stopped> {
    let members: Arc<[PeerId]> = [peer(1), peer(2)].into();
    let spec = OpSpec {
        attempt: Attempt {
            key: OpKey { group: 0, epoch: 1, scope: Scope::Whole, tag, seq: 0 },
            ring: Arc::clone(&members),
            members,
            goes_around: false,
            decider: Decider::Coordinator,
        },
        fingerprint: Fingerprint::new(OpKind::AllReduce, DataType::U8, [tensor.len() as u64]),
        deadline,
    };
    plane.perform(&spec, Buffers::in_place([tensor]), &Abort::new()).map(Performed::commit)
}

#[test]
fn a_call_that_unwinds_while_another_drives_has_its_operation_back_first() {
    let plane = plane(PlainDialer { me: peer(1), tcp: TcpSettings::default() });
    let _silent = beside_a_silent_member(&plane);
    let deadline = Instant::now() + Duration::from_secs(20);
    // One mapping for each of the two operations.
    let idle = || plane.shared.undo.idle();
    assert_eq!(idle(), 0);
    thread::scope(|scope| {
        let driver = scope.spawn(|| all_reduce(&plane, 0, deadline, &mut [1; COUNT]));
        while !plane.baton().is_driven(Duration::ZERO) {
            thread::yield_now();
        }
        let began = Instant::now();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            watched(
                Duration::from_millis(20),
                || true,
                || {
                    let _cancels = cancels(|| panic!("on the way"));
                    all_reduce(&plane, 1, deadline, &mut [1; COUNT])
                },
            )
        }));
        assert!(unwound.is_err(), "{unwound:?}");
        assert_eq!(idle(), 1, "its undo copy was given back before the call was left");
        assert!(began.elapsed() < Duration::from_secs(10), "it did not wait for its deadline");
        assert!(!driver.is_finished(), "the other call is not disturbed");
        plane.shutdown();
        assert_eq!(driver.join().unwrap(), Err(Stopped::Closed));
    });
}

/// The thread that panics has driven, for itself and for another.
#[test]
fn a_driver_that_unwinds_passes_the_baton_on() {
    let plane = plane(PlainDialer { me: peer(1), tcp: TcpSettings::default() });
    let _silent = beside_a_silent_member(&plane);
    let deadline = Instant::now() + Duration::from_secs(20);
    thread::scope(|scope| {
        let driver = scope.spawn(|| {
            catch_unwind(AssertUnwindSafe(|| {
                watched(
                    Duration::from_millis(300),
                    || true,
                    || {
                        let _cancels = cancels(|| panic!("at the wheel"));
                        all_reduce(&plane, 0, deadline, &mut [1; COUNT])
                    },
                )
            }))
        });
        while !plane.baton().is_driven(Duration::ZERO) {
            thread::yield_now();
        }
        let other = scope.spawn(|| all_reduce(&plane, 1, deadline, &mut [1; COUNT]));
        assert!(driver.join().unwrap().is_err());
        assert!(!other.is_finished(), "the other call is not disturbed");
        plane.shutdown();
        assert_eq!(other.join().unwrap(), Err(Stopped::Closed));
        assert_eq!(all_reduce(&plane, 2, deadline, &mut [1; COUNT]), Err(Stopped::Closed));
    });
}

/// Panics when it is asked for a link's state in the middle of a turn: our own bug.
struct Breaks(TcpWire);

impl Wire for Breaks {
    fn send(&mut self, _: &[io::IoSlice<'_>]) -> io::Result<usize> {
        panic!("in the middle of a turn")
    }

    fn receive(&mut self, pieces: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.receive(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.descriptor()
    }

    fn wants_checksums(&self) -> bool {
        false
    }
}

#[test]
fn an_engine_that_panics_gives_every_operation_back_and_whoever_else_waits_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let dialer = move |_: PeerId, at: SocketAddr| {
        let stream = Guarded::new(std::net::TcpStream::connect(at)?)?;
        Ok(Box::new(Breaks(TcpWire::new(stream, &TcpSettings::default())?)) as Box<dyn Wire>)
    };
    let plane = plane(Dials(dialer));
    let deadline = Instant::now() + Duration::from_secs(20);
    let seat = Arc::new(Seat::new(plane.baton()));
    let verdict = std::sync::atomic::AtomicBool::new(false);
    let mut tensor = [1; COUNT];
    thread::scope(|scope| {
        // A call that waits for something else than bytes.
        let votes = scope.spawn(|| seat.wait(deadline, || verdict.load(Ordering::SeqCst).then_some(())));
        while !plane.baton().is_driven(Duration::ZERO) {
            thread::yield_now();
        }
        plane.open_epoch(0, 1, vec![(peer(1), address), (peer(2), address)]);
        assert_eq!(all_reduce(&plane, 0, deadline, &mut tensor), Err(Stopped::Closed));
        assert_eq!(all_reduce(&plane, 1, deadline, &mut [1; COUNT]), Err(Stopped::Closed), "and none hangs");
        assert!(!votes.is_finished(), "who has no part in it goes on");
        verdict.store(true, Ordering::SeqCst);
        seat.notify();
        assert_eq!(votes.join().unwrap(), Some(()));
    });
    assert!(tensor.iter().all(|byte| *byte == 1), "its memory is as it was");
}

/// Nobody waits for it.
struct Nobody;

impl Caller for Nobody {
    fn notify(&self) {}
}

#[test]
fn an_operation_that_is_lost_tells_its_call_when_the_memory_is_as_it_was() {
    let pool = Arc::new(UndoPool::new(1 << 30));
    let mut tensor = vec![1_u8; COUNT];
    let members = [peer(1), peer(2)];
    let call = Fingerprint::new(OpKind::AllReduce, DataType::U8, [COUNT as u64]);
    let arithmetic = Arithmetic::new(&call, 2);
    let plan = Plan::new(&call, &members, &members, peer(1), arithmetic.unit()).unwrap();
    let mut undo = UndoLog::new(Buffers::in_place([&mut tensor[..]]).into_region(), COUNT, &pool).unwrap();
    undo.save(&(0..COUNT));
    undo.region.store(&(0..COUNT), &[7; COUNT]);
    let key = OpKey { group: 0, epoch: 1, scope: Scope::Whole, tag: 0, seq: 0 };
    let parts = Parts {
        name: OpName::from(&key),
        fingerprint: call.digest(),
        plan,
        arithmetic,
        deadline: Instant::now(),
        abort: Abort::new(),
        window_bytes: 1 << 20,
        end: None,
    };
    let operation = Operation::new(parts, undo, Ticket::new(Arc::new(Nobody)));
    let claim = operation.ticket.claim();
    assert!(claim.take().is_none());
    drop(operation);
    assert!(matches!(claim.take(), Some(Told::Gone)));
    assert!(tensor.iter().all(|byte| *byte == 1));
}

/// Dials with a function.
struct Dials<F>(F);

impl<F: Fn(PeerId, SocketAddr) -> io::Result<Box<dyn Wire>> + Send + Sync> Dial for Dials<F> {
    fn dial(&self, peer: PeerId, address: SocketAddr, _: Instant) -> io::Result<Box<dyn Wire>> {
        (self.0)(peer, address)
    }
}

#[test]
fn a_dialler_that_panics_is_a_link_that_broke() {
    let plane = plane(Dials(|_, _| panic!("instead of a link")));
    let _silent = beside_a_silent_member(&plane);
    let deadline = Instant::now() + Duration::from_secs(20);
    let stopped = all_reduce(&plane, 0, deadline, &mut [1; COUNT]).unwrap_err();
    let Stopped::LinkBroken(BrokenLink { error, .. }) = &stopped else { panic!("{stopped:?}") };
    assert!(error.contains("the dialler panicked"), "{error}");
}

#[test]
fn a_listener_to_links_that_panics_costs_no_call() {
    let dialer = Dials(|_, _| Err(io::Error::other("nobody there")));
    let plane = DataPlane::new(peer(1), DataSettings::default(), Arc::new(dialer), |_| panic!("a listener"));
    let plane = plane.unwrap();
    let _silent = beside_a_silent_member(&plane);
    let deadline = Instant::now() + Duration::from_secs(20);
    for tag in 0..2 {
        let stopped = all_reduce(&plane, tag, deadline, &mut [1; COUNT]).unwrap_err();
        assert!(matches!(&stopped, Stopped::LinkBroken(broken) if broken.error.contains("nobody there")));
    }
}
