//! The baton in thousands of orders of threads, each chosen by a seed that a failure prints.
//!
//! The very file `baton.rs` is compiled once more here, with locks of the same face whose every step is a choice of
//! [shuttle](https://docs.rs/shuttle). Nothing times out in this world: a wake-up that is lost, or a baton that nobody
//! passes on, leaves everybody asleep, and that is a failure that shuttle reports.

#[expect(clippy::duplicate_mod, reason = "the same code over other locks: what is explored is what runs")]
#[path = "../baton.rs"]
pub(crate) mod baton;

/// The face of `crate::sync`.
pub(crate) mod sync {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn sleep<'a, T>(
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        _timeout: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        condvar.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The face of `crate::bell`; and a network, because whoever polls waits for both.
pub(crate) mod bell {
    use super::sync::{Condvar, Mutex, lock};

    #[derive(Default)]
    pub(crate) struct Bell {
        rings: Mutex<Rings>,
        woken: Condvar,
    }

    #[derive(Default)]
    struct Rings {
        bell: bool,
        socket: Vec<usize>,
    }

    impl Bell {
        pub(crate) fn ring(&self) {
            lock(&self.rings).bell = true;
            self.woken.notify_all();
        }

        pub(crate) fn is_ringing(&self) -> bool {
            lock(&self.rings).bell
        }

        pub(crate) fn answer(&self) {
            lock(&self.rings).bell = false;
        }

        /// Something for a call comes over the network.
        pub(crate) fn arrive(&self, call: usize) {
            lock(&self.rings).socket.push(call);
            self.woken.notify_all();
        }

        pub(crate) fn receive(&self) -> Vec<usize> {
            std::mem::take(&mut lock(&self.rings).socket)
        }

        pub(crate) fn poll(&self) {
            let mut rings = lock(&self.rings);
            while !rings.bell && rings.socket.is_empty() {
                rings = self.woken.wait(rings).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }
}

/// The face of `crate::watch`: a question that is due whenever the seed says so, and takes its time.
pub(crate) mod watch {
    use shuttle::rand::{Rng, thread_rng};
    use std::time::Duration;

    shuttle::thread_local! {
        static WATCHED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    pub(crate) fn begin() {
        WATCHED.with(|watched| watched.set(true));
    }

    pub(crate) fn is_due() -> bool {
        WATCHED.with(std::cell::Cell::get) && thread_rng().gen_bool(0.3)
    }

    pub(crate) fn look() {
        if is_due() {
            shuttle::thread::yield_now();
        }
    }

    pub(crate) fn patience(wait: Duration) -> Duration {
        wait
    }
}

use baton::{Baton, Drive, Seat};
use bell::Bell;
use shuttle::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use sync::{Mutex, lock};

/// What goes around: a network that brings things for calls, and an inbox.
struct Hands {
    bell: Arc<Bell>,
    calls: Arc<Mutex<Vec<Arc<Call>>>>,
    inbox: Arc<AtomicUsize>,
    /// Calls that asked something; the network brings an answer to each.
    asked: Arc<Mutex<Vec<usize>>>,
    is_used: Arc<AtomicBool>,
}

impl Hands {
    fn alone<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        assert!(!self.is_used.swap(true, Ordering::SeqCst), "two drive at once");
        let result = work(self);
        self.is_used.store(false, Ordering::SeqCst);
        result
    }
}

impl Drive for Hands {
    fn heed(&mut self) {
        self.alone(|hands| {
            hands.bell.answer();
            hands.inbox.store(0, Ordering::SeqCst);
            let asked = std::mem::take(&mut *lock(&hands.asked));
            asked.into_iter().for_each(|call| hands.bell.arrive(call));
        });
    }

    fn turn(&mut self) -> bool {
        self.heed();
        self.alone(|hands| {
            let arrived = hands.bell.receive();
            for call in &arrived {
                let call = Arc::clone(&lock(&hands.calls)[*call]);
                call.leave();
            }
            !arrived.is_empty()
        })
    }

    fn wait(&mut self, _: Instant) {
        self.alone(|hands| hands.bell.poll());
    }
}

struct Call {
    seat: Arc<Seat<Hands>>,
    left: Mutex<u32>,
}

impl Call {
    fn leave(&self) {
        *lock(&self.left) += 1;
        self.seat.notify();
    }

    fn take(&self) -> Option<()> {
        let mut left = lock(&self.left);
        *left = left.checked_sub(1)?;
        Some(())
    }

    fn wait(&self) {
        let far = Instant::now() + Duration::from_hours(1);
        assert_eq!(self.seat.wait(far, || self.take()), Some(()));
    }
}

struct World {
    baton: Arc<Baton<Hands>>,
    inbox: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<usize>>>,
    calls: Vec<Arc<Call>>,
}

fn world(calls: usize) -> World {
    let (bell, inbox, places) = (Arc::<Bell>::default(), Arc::default(), Arc::<Mutex<Vec<_>>>::default());
    let asked = Arc::<Mutex<Vec<usize>>>::default();
    let hands = Hands {
        bell: Arc::clone(&bell),
        calls: Arc::clone(&places),
        inbox: Arc::clone(&inbox),
        asked: Arc::clone(&asked),
        is_used: Arc::default(),
    };
    let baton = Arc::new(Baton::new(Box::new(hands), bell));
    let call = |_| Arc::new(Call { seat: Arc::new(Seat::new(&baton)), left: Mutex::new(0) });
    let calls: Vec<_> = (0..calls).map(call).collect();
    lock(&places).clone_from(&calls);
    World { baton, inbox, asked, calls }
}

impl World {
    /// When all is over: nobody has the baton, nobody sits, nothing was forgotten.
    fn is_at_rest(&self) {
        assert!(!self.baton.is_driven(Duration::ZERO), "somebody kept the baton");
        assert_eq!(self.baton.sitting(), 0);
        assert_eq!(self.inbox.load(Ordering::SeqCst), 0, "what was posted was not heeded");
    }
}

/// Half of the orders at random, half with few but nasty changes of threads.
fn explore(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(scenario, 1_500);
    shuttle::check_pct(scenario, 1_500, 3);
}

#[test]
fn whatever_comes_over_the_network_reaches_its_call() {
    explore(|| {
        let world = world(3);
        let waiting = world.calls.iter().map(|call| {
            let call = Arc::clone(call);
            thread::spawn(move || {
                call.wait();
                call.wait();
            })
        });
        let waiting: Vec<_> = waiting.collect();
        for call in [0, 1, 2, 2, 1, 0] {
            world.baton.bell().arrive(call);
        }
        waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
        world.is_at_rest();
    });
}

#[test]
fn whatever_another_thread_brings_reaches_its_call_whoever_drives() {
    explore(|| {
        let world = world(3);
        let waiting = world.calls.iter().map(|call| {
            let call = Arc::clone(call);
            thread::spawn(move || call.wait())
        });
        let waiting: Vec<_> = waiting.collect();
        let (first, bell) = (Arc::clone(&world.calls[0]), Arc::clone(world.baton.bell()));
        let brings = thread::spawn(move || {
            first.leave();
            bell.arrive(1);
        });
        world.calls[2].leave();
        brings.join().unwrap();
        waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
        world.is_at_rest();
    });
}

#[test]
fn whatever_is_posted_is_heeded_although_the_driver_is_just_leaving() {
    explore(|| {
        let world = world(1);
        let (call, bell) = (Arc::clone(&world.calls[0]), Arc::clone(world.baton.bell()));
        let waiting = thread::spawn(move || call.wait());
        let (baton, inbox) = (Arc::clone(&world.baton), Arc::clone(&world.inbox));
        let posts = thread::spawn(move || {
            for _ in 0..2 {
                inbox.fetch_add(1, Ordering::SeqCst);
                baton.nudge();
            }
        });
        bell.arrive(0);
        waiting.join().unwrap();
        posts.join().unwrap();
        world.is_at_rest();
    });
}

/// A call that asks and then waits rings only if somebody drives: otherwise its own first turn takes in what it asked.
#[test]
fn whoever_asks_and_then_waits_has_an_answer_whoever_drives() {
    explore(|| {
        let world = world(3);
        let waiting = world.calls.iter().enumerate().map(|(number, call)| {
            let (call, baton, asked) = (Arc::clone(call), Arc::clone(&world.baton), Arc::clone(&world.asked));
            thread::spawn(move || {
                for _ in 0..2 {
                    lock(&asked).push(number);
                    baton.call_driver();
                    call.wait();
                }
            })
        });
        let waiting: Vec<_> = waiting.collect();
        waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
        world.is_at_rest();
    });
}

#[test]
fn a_question_at_any_moment_holds_nobody_up() {
    explore(|| {
        let world = world(2);
        let asked = Arc::clone(&world.calls[0]);
        let asked = thread::spawn(move || {
            watch::begin();
            asked.wait();
        });
        let other = Arc::clone(&world.calls[1]);
        let other = thread::spawn(move || other.wait());
        world.baton.bell().arrive(1);
        other.join().unwrap();
        world.baton.bell().arrive(0);
        asked.join().unwrap();
        world.is_at_rest();
    });
}

#[test]
fn whoever_panics_at_the_wheel_passes_the_baton_on() {
    explore(|| {
        let world = world(2);
        let panics = Arc::clone(&world.calls[0]);
        let panics = thread::spawn(move || {
            let mut looks = 0;
            let far = Instant::now() + Duration::from_hours(1);
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                panics.seat.wait(far, || {
                    looks += 1;
                    // The first look is before anything is taken. No hook is called: this panic is planned.
                    if looks > 1 {
                        std::panic::resume_unwind(Box::new("at the wheel"));
                    }
                    None::<()>
                })
            }));
            assert!(unwound.is_err());
        });
        let other = Arc::clone(&world.calls[1]);
        let other = thread::spawn(move || other.wait());
        world.calls[0].leave();
        world.baton.bell().arrive(1);
        panics.join().unwrap();
        other.join().unwrap();
        world.is_at_rest();
    });
}
