//! One pair of hands: who drives the sockets of a peer.
//!
//! # The problem
//!
//! To wake a thread costs more than to move a small message. A thread of its own for the sockets would cost every
//! call two wake-ups: one on the way in, one on the way out.
//!
//! # The intuition
//!
//! There is no such thread. Whoever waits for something that comes over the sockets drives them meanwhile, for itself
//! and for everybody who comes to wait too; the others sit. When what the driver waits for is there, it passes the
//! baton to one of those who sit, or puts it down. So a lone call pays for no hand-over, and many calls share one pair
//! of hands. It makes no difference what a call waits for: the end of a transfer of bytes, a verdict, an admission.
//!
//! ```text
//!              takes it                        its wait is over
//!   (resting) -----------> somebody drives -----------------------> (resting)
//!                               |     ^                 |
//!                               |     '--- handed on ---+ somebody sits
//!                               v
//!                      rings, notes: "there is news for that seat"
//! ```
//!
//! # The invariant
//!
//! While somebody sits without news, somebody drives. Everything that decides this is behind one lock: who has the
//! baton, who sits, who has news. Whoever puts the baton down does so only when nobody sits without news; whoever sits
//! down does so only while another has it. A driver passes it on however its wait ends, by a panic too.
//!
//! What a user gave us to run (see [`watch`]) runs on the user's own thread with the baton passed on: a slow answer
//! holds up nobody else's call.
//!
//! # What it does not know
//!
//! What is driven, and how one waits for it: that is [`Drive`]. Descriptors today; whoever must wait on a word of
//! memory does so there, and gives its bell a way to wake it. Nor that there is only one: links that are parted among
//! two drivers are two batons, each with its part.

use super::bell::Bell;
use super::sync::{Arc, Condvar, Mutex, MutexGuard, lock, sleep};
use super::watch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What goes around. No method panics: what panics inside is dealt with inside.
pub(crate) trait Drive: Send {
    /// Takes in what was left for it and who rang for it, and nothing else. May be called under locks of the caller.
    fn heed(&mut self);
    /// Heeds, and moves all that can be moved now, without waiting. Whether anything moved.
    fn turn(&mut self) -> bool;
    /// Waits until something can move, the bell rings or that moment has come.
    fn wait(&mut self, until: Instant);
}

/// See the module's essay.
pub(crate) struct Baton<T> {
    place: Mutex<Place<T>>,
    bell: Arc<Bell>,
}

struct Place<T> {
    /// What goes around, while nobody has it.
    resting: Option<Box<T>>,
    /// Until when somebody drove.
    driven: Instant,
    /// Those who wait while another drives, in the order in which they came.
    sitting: Vec<Sitting<T>>,
}

struct Sitting<T> {
    seat: Arc<Seat<T>>,
    handed: Option<Box<T>>,
}

/// Where one call waits. Its two marks change under the baton's lock.
pub(crate) struct Seat<T> {
    baton: Arc<Baton<T>>,
    /// Something was left for it since it looked last.
    news: AtomicBool,
    /// Its thread has the baton and is inside a wait, or about to: only the bell reaches it. (It is cleared without the
    /// lock: a ring too many does no harm.)
    waits: AtomicBool,
    woken: Condvar,
}

impl<T: Drive> Baton<T> {
    /// `bell` ends the waits of `thing`.
    pub(crate) fn new(thing: Box<T>, bell: Arc<Bell>) -> Self {
        let place = Place { resting: Some(thing), driven: Instant::now(), sitting: Vec::new() };
        Self { place: Mutex::new(place), bell }
    }

    /// What was left for the thing is taken in soon: now, by us, if nobody drives.
    pub(crate) fn nudge(&self) {
        if let Some(mut held) = self.take() {
            held.heed();
            return;
        }
        self.bell.ring();
        // Whoever had it may have put it down before it could hear the bell.
        if let Some(mut held) = self.take() {
            held.heed();
        }
    }

    /// The same for whoever is about to [wait](Seat::wait): if nobody drives, the first turn of that wait takes it in.
    pub(crate) fn call_driver(&self) {
        let is_driven = lock(&self.place).resting.is_none();
        if is_driven {
            self.bell.ring();
        }
    }

    /// Whether somebody drives, or did so less than `pause` ago and may be back in a moment.
    pub(crate) fn is_driven(&self, pause: Duration) -> bool {
        let place = lock(&self.place);
        place.resting.is_none() || place.driven.elapsed() < pause
    }

    /// The bell of whoever drives.
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// How many wait while another drives.
    #[cfg(test)]
    pub(crate) fn sitting(&self) -> usize {
        lock(&self.place).sitting.len()
    }

    fn take(&self) -> Option<Held<'_, T>> {
        let thing = lock(&self.place).resting.take();
        thing.map(|thing| Held { baton: self, thing: Some(thing), drives: false })
    }

    /// Passes it on, or puts it down if nobody needs it. Whether it is down.
    fn put_down(&self, thing: Box<T>, drove: bool) -> bool {
        let mut place = lock(&self.place);
        if drove {
            place.driven = Instant::now();
        }
        // Who has news gets up anyway; should that not be what it waits for, it finds the baton here.
        let next = place.sitting.iter_mut().find(|sitting| !sitting.seat.news.load(Ordering::Relaxed));
        if let Some(next) = next {
            next.handed = Some(thing);
            next.seat.woken.notify_one();
            return false;
        }
        place.resting = Some(thing);
        true
    }
}

/// The baton in somebody's hands. However it is dropped, it goes on.
struct Held<'a, T: Drive> {
    baton: &'a Baton<T>,
    thing: Option<Box<T>>,
    /// It is driven, not only looked at.
    drives: bool,
}

impl<T: Drive> Held<'_, T> {
    fn thing(&mut self) -> &mut T {
        self.thing.as_mut().expect("it is there until it is dropped")
    }

    fn heed(&mut self) {
        self.thing().heed();
    }
}

impl<T: Drive> Drop for Held<'_, T> {
    fn drop(&mut self) {
        while let Some(thing) = self.thing.take() {
            // Whoever rang while we had it found it in our hands: unless another has it now, we answer.
            if self.baton.put_down(thing, self.drives)
                && self.baton.bell.is_ringing()
                && let Some(mut held) = self.baton.take()
            {
                self.thing = held.thing.take();
                self.heed();
            }
        }
    }
}

impl<T: Drive> Seat<T> {
    pub(crate) fn new(baton: &Arc<Baton<T>>) -> Self {
        let (news, waits) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { baton: Arc::clone(baton), news, waits, woken: Condvar::new() }
    }

    /// Something was left for whoever waits here.
    pub(crate) fn notify(&self) {
        let place = lock(&self.baton.place);
        self.news.store(true, Ordering::Relaxed);
        if place.sitting.iter().any(|sitting| std::ptr::eq(&raw const *sitting.seat, self)) {
            self.woken.notify_one();
        } else if self.waits.load(Ordering::Relaxed) {
            drop(place);
            self.baton.bell.ring();
        }
    }

    /// Waits until `done` has something, and drives meanwhile if nobody else does. `None` if nothing came by `until`.
    /// What `done` looks at is changed first, and then the seat is [notified](Self::notify).
    pub(crate) fn wait<R>(
        self: &Arc<Self>,
        until: Instant,
        mut done: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        loop {
            if let Some(result) = done() {
                return Some(result);
            }
            if Instant::now() >= until {
                return None;
            }
            // With no baton in hand, and no lock: whoever is asked may take its time.
            watch::look();
            if let Some(mut held) = self.sit(until)
                && let Some(result) = self.drive(&mut held, until, &mut done)
            {
                return Some(result);
            }
        }
    }

    /// Drives until our wait is over, or the user's question is due.
    fn drive<R>(
        &self,
        held: &mut Held<'_, T>,
        until: Instant,
        done: &mut impl FnMut() -> Option<R>,
    ) -> Option<R> {
        held.drives = true;
        loop {
            let moved = held.thing().turn();
            if let Some(result) = done() {
                return Some(result);
            }
            if Instant::now() >= until || watch::is_due() {
                return None;
            }
            if !moved && self.begins_to_wait() {
                held.thing().wait(cut(until));
                self.waits.store(false, Ordering::Relaxed);
            }
        }
    }

    /// From now on news ring the bell; unless there are some already.
    fn begins_to_wait(&self) -> bool {
        let _place = lock(&self.baton.place);
        let has_news = self.news.swap(false, Ordering::Relaxed);
        self.waits.store(!has_news, Ordering::Relaxed);
        !has_news
    }

    /// Takes the baton if it rests. Else sits until it is handed over, there are news, or that moment has come.
    fn sit(self: &Arc<Self>, until: Instant) -> Option<Held<'_, T>> {
        let mut place = lock(&self.baton.place);
        let thing = if place.resting.is_some() {
            place.resting.take()
        } else {
            place.sitting.push(Sitting { seat: Arc::clone(self), handed: None });
            self.rest(place, until)
        };
        thing.map(|thing| Held { baton: &self.baton, thing: Some(thing), drives: false })
    }

    fn rest(&self, mut place: MutexGuard<'_, Place<T>>, until: Instant) -> Option<Box<T>> {
        loop {
            let ours = |sitting: &Sitting<T>| std::ptr::eq(&raw const *sitting.seat, self);
            let at = place.sitting.iter().position(ours).expect("who sits is on the list");
            let left = cut(until).saturating_duration_since(Instant::now());
            let has_news = self.news.swap(false, Ordering::Relaxed);
            if has_news || left.is_zero() || place.sitting[at].handed.is_some() {
                return place.sitting.remove(at).handed;
            }
            place = sleep(&self.woken, place, left);
        }
    }
}

/// The moment at which a wait must end because of the user's question, if that comes first.
fn cut(until: Instant) -> Instant {
    let now = Instant::now();
    now + watch::patience(until.saturating_duration_since(now))
}
