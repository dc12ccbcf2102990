//! Who looks at the control connection, and where a call waits for its orders.
//!
//! One thread at a time should look: the one that drives the data links if there is one, because it polls anyway;
//! else one of those that wait for orders, which then *has the wheel*; else, when nobody waits, the connection's
//! task. Whoever waits without the wheel sleeps, and is woken by its order or because the wheel became free.
//!
//! The invariant: while a call waits, somebody looks. Whoever stops looking and was the last wakes one that
//! sleeps; whoever goes to sleep is on the list before it checks that somebody looks.

use super::control::Order;
use crate::executor::Wakeup;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The orders of one call.
#[derive(Debug, Default)]
pub(super) struct Desk {
    inner: Mutex<Inner>,
    woken: Condvar,
    /// Its thread has the wheel and is inside a poll, or about to: only the bell reaches it.
    polls: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    orders: VecDeque<Order>,
    wheel_is_free: bool,
}

impl Desk {
    pub(super) fn take(&self) -> Option<Order> {
        lock(&self.inner).orders.pop_front()
    }

    fn put(&self, order: Order) {
        lock(&self.inner).orders.push_back(order);
        self.woken.notify_one();
    }

    fn offer_wheel(&self) {
        lock(&self.inner).wheel_is_free = true;
        self.woken.notify_one();
    }

    /// Sleeps until there is an order, or the wheel is free.
    fn sleep(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let idle = |inner: &mut Inner| inner.orders.is_empty() && !inner.wheel_is_free;
        let waited = self.woken.wait_timeout_while(lock(&self.inner), left, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0.wheel_is_free = false;
    }
}

/// See the module's essay.
pub(super) struct Wheel {
    looking: AtomicUsize,
    /// When the last one stopped looking, in milliseconds after `start`.
    left_at: AtomicU64,
    start: Instant,
    sleeping: Mutex<Vec<Arc<Desk>>>,
    bell: Wakeup,
}

impl Wheel {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            looking: AtomicUsize::new(0),
            left_at: AtomicU64::new(0),
            start: Instant::now(),
            sleeping: Mutex::default(),
            bell: Wakeup::new()?,
        })
    }

    /// Whether somebody looks, or did so less than `pause` ago and may be back in a moment.
    pub(super) fn is_held(&self, pause: Duration) -> bool {
        let left_at = Duration::from_millis(self.left_at.load(Ordering::Relaxed));
        self.looking.load(Ordering::SeqCst) > 0 || self.start.elapsed() < left_at + pause
    }

    /// Somebody begins to look who polls anyway.
    pub(super) fn join(&self) {
        self.looking.fetch_add(1, Ordering::SeqCst);
    }

    /// Somebody stops looking.
    pub(super) fn leave(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.left_at.store(now, Ordering::Relaxed);
        self.looking.fetch_sub(1, Ordering::SeqCst);
        self.pass_on();
    }

    /// Offers the wheel on if nobody has it: whoever returns may have been offered it and not taken it.
    fn pass_on(&self) {
        if self.looking.load(Ordering::SeqCst) == 0
            && let Some(desk) = lock(&self.sleeping).pop()
        {
            desk.offer_wheel();
        }
    }

    /// Gives an order to a call, wherever its thread waits.
    pub(super) fn order(&self, desk: &Desk, order: Order) {
        desk.put(order);
        if desk.polls.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// The line has changed: whoever has the wheel looks again.
    pub(super) fn ring(&self) {
        self.bell.ring();
    }

    /// Waits for the next order, `None` if none came by `until`. Who has the wheel meanwhile polls with `poll`,
    /// which returns when the line may be readable, the bell rings or that moment has come, and takes in what came
    /// with `take_in`.
    pub(super) fn wait(
        &self,
        desk: &Arc<Desk>,
        until: Instant,
        mut poll: impl FnMut(&Wakeup, Instant),
        mut take_in: impl FnMut(),
    ) -> Option<Order> {
        loop {
            if let Some(order) = desk.take() {
                self.pass_on();
                return Some(order);
            }
            if Instant::now() >= until {
                self.pass_on();
                return None;
            }
            if self.looking.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                let _leave = Leave(self, desk);
                loop {
                    desk.polls.store(true, Ordering::SeqCst);
                    // An order that comes from now on rings the bell; one that came before is seen here.
                    if let Some(order) = desk.take() {
                        return Some(order);
                    }
                    if Instant::now() >= until {
                        return None;
                    }
                    poll(&self.bell, until);
                    desk.polls.store(false, Ordering::SeqCst);
                    self.bell.answer();
                    take_in();
                }
            }
            lock(&self.sleeping).push(Arc::clone(desk));
            if self.looking.load(Ordering::SeqCst) > 0 {
                desk.sleep(until);
            }
            lock(&self.sleeping).retain(|other| !Arc::ptr_eq(other, desk));
        }
    }
}

/// Gives the wheel up, also when looking panics.
struct Leave<'a>(&'a Wheel, &'a Desk);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.1.polls.store(false, Ordering::SeqCst);
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn poll_bell(bell: &Wakeup, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: 0 };
        let mut polled = [PollFd::from_borrowed_fd(bell.descriptor(), PollFlags::IN)];
        if matches!(poll(&mut polled, Some(&timeout)), Ok(1..)) {
            bell.heard();
        }
    }

    fn waits(wheel: &Arc<Wheel>, desk: &Arc<Desk>) -> thread::JoinHandle<Option<Order>> {
        let (wheel, desk) = (Arc::clone(wheel), Arc::clone(desk));
        thread::spawn(move || wheel.wait(&desk, Instant::now() + PATIENCE, poll_bell, || {}))
    }

    fn until(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "it never came true");
            thread::yield_now();
        }
    }

    #[test]
    fn an_order_reaches_whoever_polls() {
        let (wheel, desk) = (Arc::new(Wheel::new().unwrap()), Arc::new(Desk::default()));
        let waiting = waits(&wheel, &desk);
        until(|| desk.polls.load(Ordering::SeqCst));
        wheel.order(&desk, Order::Commit);
        assert!(matches!(waiting.join().unwrap(), Some(Order::Commit)));
        assert!(!wheel.is_held(Duration::ZERO), "nobody looks any more");
        assert!(wheel.is_held(PATIENCE), "but somebody did a moment ago");
    }

    #[test]
    fn an_order_reaches_whoever_sleeps_while_another_looks() {
        let (wheel, desk) = (Arc::new(Wheel::new().unwrap()), Arc::new(Desk::default()));
        wheel.join();
        let waiting = waits(&wheel, &desk);
        until(|| !lock(&wheel.sleeping).is_empty());
        wheel.order(&desk, Order::Undo);
        assert!(matches!(waiting.join().unwrap(), Some(Order::Undo)));
        assert!(lock(&wheel.sleeping).is_empty());
        assert!(wheel.is_held(Duration::ZERO), "the other one still looks");
    }

    #[test]
    fn whoever_looked_last_wakes_one_that_sleeps() {
        let (wheel, desk) = (Arc::new(Wheel::new().unwrap()), Arc::new(Desk::default()));
        wheel.join();
        let waiting = waits(&wheel, &desk);
        until(|| !lock(&wheel.sleeping).is_empty());
        wheel.leave();
        until(|| desk.polls.load(Ordering::SeqCst));
        wheel.order(&desk, Order::Commit);
        assert!(matches!(waiting.join().unwrap(), Some(Order::Commit)));
    }

    #[test]
    fn a_wheel_that_was_offered_and_not_taken_is_offered_on() {
        let wheel = Arc::new(Wheel::new().unwrap());
        let desks: Vec<_> = (0..2).map(|_| Arc::new(Desk::default())).collect();
        wheel.join();
        let sleepers: Vec<_> = desks.iter().map(|desk| waits(&wheel, desk)).collect();
        until(|| lock(&wheel.sleeping).len() == 2);
        // The one that will be offered the wheel has its order by then.
        let offered = lock(&wheel.sleeping).last().map(Arc::clone).unwrap();
        lock(&offered.inner).orders.push_back(Order::Commit);
        wheel.leave();
        let other = desks.iter().find(|desk| !Arc::ptr_eq(desk, &offered)).unwrap();
        until(|| other.polls.load(Ordering::SeqCst));
        wheel.order(other, Order::Commit);
        assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap().is_some()));
    }

    #[test]
    fn among_many_somebody_always_looks_and_every_order_arrives() {
        let wheel = Arc::new(Wheel::new().unwrap());
        let desks: Vec<_> = (0..8).map(|_| Arc::new(Desk::default())).collect();
        thread::scope(|scope| {
            for desk in &desks {
                let wheel = &wheel;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let order = wheel.wait(desk, Instant::now() + PATIENCE, poll_bell, || {});
                        assert!(order.is_some(), "an order was lost");
                    }
                });
                scope.spawn(move || {
                    for _ in 0..200 {
                        wheel.order(desk, Order::Commit);
                        thread::yield_now();
                    }
                });
            }
        });
        assert!(!wheel.is_held(Duration::ZERO));
    }

    #[test]
    fn a_wait_ends_in_time() {
        let (wheel, desk) = (Wheel::new().unwrap(), Arc::new(Desk::default()));
        assert!(wheel.wait(&desk, Instant::now(), poll_bell, || {}).is_none());
        wheel.join();
        assert!(wheel.wait(&desk, Instant::now() + Duration::from_millis(1), poll_bell, || {}).is_none());
    }
}
