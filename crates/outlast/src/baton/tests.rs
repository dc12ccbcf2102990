//! The baton with real threads and a real bell. Every order of events is played in `baton/explored.rs`.

use crate::baton::{Baton, Drive, Seat};
use crate::bell::Bell;
use crate::sync::{Arc, Mutex, lock};
use crate::watch::{cancels, watched};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Sockets on which nothing ever comes: news come from other threads.
struct Idle {
    bell: Arc<Bell>,
    /// How often what was left for it was taken in.
    heeded: Arc<AtomicUsize>,
    is_waiting: Arc<AtomicBool>,
}

impl Drive for Idle {
    fn heed(&mut self) {
        self.bell.answer();
        self.heeded.fetch_add(1, Ordering::SeqCst);
    }

    fn turn(&mut self) -> bool {
        self.heed();
        false
    }

    fn wait(&mut self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut polled = [PollFd::from_borrowed_fd(self.bell.descriptor(), PollFlags::IN)];
        self.is_waiting.store(true, Ordering::SeqCst);
        if matches!(poll(&mut polled, Some(&timeout)), Ok(1..)) {
            self.bell.heard();
        }
        self.is_waiting.store(false, Ordering::SeqCst);
    }
}

struct World {
    baton: Arc<Baton<Idle>>,
    heeded: Arc<AtomicUsize>,
    is_waiting: Arc<AtomicBool>,
}

fn world() -> World {
    let bell = Arc::new(Bell::new().unwrap());
    let (heeded, is_waiting) = (Arc::default(), Arc::default());
    let idle =
        Idle { bell: Arc::clone(&bell), heeded: Arc::clone(&heeded), is_waiting: Arc::clone(&is_waiting) };
    World { baton: Arc::new(Baton::new(Box::new(idle), bell)), heeded, is_waiting }
}

/// A call, and what was left for it.
struct Call {
    seat: Arc<Seat<Idle>>,
    left: Mutex<Option<u32>>,
}

impl Call {
    fn of(world: &World) -> Arc<Self> {
        Arc::new(Self { seat: Arc::new(Seat::new(&world.baton)), left: Mutex::new(None) })
    }

    fn leave(&self, what: u32) {
        *lock(&self.left) = Some(what);
        self.seat.notify();
    }

    fn wait(&self, patience: Duration) -> Option<u32> {
        self.seat.wait(Instant::now() + patience, || lock(&self.left).take())
    }
}

fn waits(call: &Arc<Call>) -> JoinHandle<Option<u32>> {
    let call = Arc::clone(call);
    thread::spawn(move || call.wait(PATIENCE))
}

fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came true");
        thread::yield_now();
    }
}

#[test]
fn news_reach_whoever_drives_and_the_baton_rests_afterwards() {
    let world = world();
    let call = Call::of(&world);
    let waiting = waits(&call);
    until(|| world.is_waiting.load(Ordering::SeqCst));
    assert!(world.baton.is_driven(Duration::ZERO));
    call.leave(7);
    assert_eq!(waiting.join().unwrap(), Some(7));
    assert!(!world.baton.is_driven(Duration::ZERO), "nobody drives any more");
    assert!(world.baton.is_driven(PATIENCE), "but somebody did a moment ago");
}

#[test]
fn news_reach_whoever_sits_and_the_driver_drives_on() {
    let world = world();
    let (driver, other) = (Call::of(&world), Call::of(&world));
    let driving = waits(&driver);
    until(|| world.is_waiting.load(Ordering::SeqCst));
    let sitting = waits(&other);
    until(|| world.baton.sitting() == 1);
    other.leave(3);
    assert_eq!(sitting.join().unwrap(), Some(3));
    assert!(world.baton.is_driven(Duration::ZERO) && !driving.is_finished());
    driver.leave(4);
    assert_eq!(driving.join().unwrap(), Some(4));
}

#[test]
fn whoever_gets_up_hands_the_baton_to_one_that_sits() {
    let world = world();
    let (driver, other) = (Call::of(&world), Call::of(&world));
    let driving = waits(&driver);
    until(|| world.is_waiting.load(Ordering::SeqCst));
    let sitting = waits(&other);
    until(|| world.baton.sitting() == 1);
    driver.leave(1);
    assert_eq!(driving.join().unwrap(), Some(1));
    until(|| world.baton.sitting() == 0 && world.is_waiting.load(Ordering::SeqCst));
    other.leave(2);
    assert_eq!(sitting.join().unwrap(), Some(2));
}

#[test]
fn a_wait_ends_in_time_with_the_baton_and_without() {
    let world = world();
    let (one, other) = (Call::of(&world), Call::of(&world));
    assert_eq!(one.wait(Duration::ZERO), None);
    assert_eq!(one.wait(Duration::from_millis(1)), None);
    let driving = waits(&one);
    until(|| world.is_waiting.load(Ordering::SeqCst));
    assert_eq!(other.wait(Duration::from_millis(1)), None);
    assert_eq!(world.baton.sitting(), 0);
    one.leave(0);
    assert_eq!(driving.join().unwrap(), Some(0));
}

#[test]
fn what_is_left_for_the_thing_is_taken_in_whoever_has_it() {
    let world = world();
    world.baton.nudge();
    assert_eq!(world.heeded.load(Ordering::SeqCst), 1, "by who left it, while it rests");
    let call = Call::of(&world);
    let driving = waits(&call);
    until(|| world.is_waiting.load(Ordering::SeqCst));
    let before = world.heeded.load(Ordering::SeqCst);
    world.baton.nudge();
    until(|| world.heeded.load(Ordering::SeqCst) > before);
    call.leave(0);
    driving.join().unwrap();
}

#[test]
fn among_many_every_news_arrives() {
    let world = world();
    let calls: Vec<_> = (0..8).map(|_| Call::of(&world)).collect();
    thread::scope(|scope| {
        for call in &calls {
            scope.spawn(|| {
                for round in 0..200 {
                    assert_eq!(call.wait(PATIENCE), Some(round), "news were lost");
                }
            });
            scope.spawn(|| {
                for round in 0..200 {
                    until(|| lock(&call.left).is_none());
                    call.leave(round);
                }
            });
        }
    });
    assert!(!world.baton.is_driven(Duration::ZERO));
}

#[test]
fn a_question_is_asked_with_the_baton_passed_on() {
    let world = world();
    let (slow, other) = (Call::of(&world), Call::of(&world));
    let (asked, answer) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    thread::scope(|scope| {
        let (was_asked, may_answer) = (Arc::clone(&asked), Arc::clone(&answer));
        let waiting = scope.spawn(|| {
            let stop = move || {
                was_asked.store(true, Ordering::SeqCst);
                until(|| may_answer.load(Ordering::SeqCst));
                false
            };
            watched(Duration::from_millis(5), stop, || {
                let _cancels = cancels(|| {});
                slow.wait(PATIENCE)
            })
        });
        until(|| asked.load(Ordering::SeqCst));
        // A handler takes its time, and meanwhile another call drives and ends.
        let driving = waits(&other);
        until(|| world.is_waiting.load(Ordering::SeqCst));
        other.leave(5);
        assert_eq!(driving.join().unwrap(), Some(5));
        answer.store(true, Ordering::SeqCst);
        slow.leave(6);
        assert_eq!(waiting.join().unwrap(), Some(6));
    });
}

#[test]
fn whoever_panics_passes_the_baton_on() {
    let world = world();
    let other = Call::of(&world);
    let seat = Arc::new(Seat::new(&world.baton));
    let (turns, sat) = (Cell::new(0), Cell::new(None));
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        seat.wait(Instant::now() + PATIENCE, || {
            turns.set(turns.get() + 1);
            if turns.get() == 2 {
                // We drive by now.
                sat.set(Some(waits(&other)));
                until(|| world.baton.sitting() == 1);
                panic!("at the wheel");
            }
            None::<()>
        })
    }));
    assert!(unwound.is_err());
    until(|| world.baton.sitting() == 0);
    other.leave(8);
    assert_eq!(sat.take().unwrap().join().unwrap(), Some(8));
    assert!(!world.baton.is_driven(Duration::ZERO));
}
