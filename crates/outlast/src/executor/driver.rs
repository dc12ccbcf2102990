//! What goes around from driver to driver: the links of a peer, and its control connection.
//!
//! [`Hands`] hold the engine and look after the [companion](super::companion). Whoever has the
//! [baton](crate::baton) moves both: so one thread at a time reads and writes the data links, on behalf of every call.
//! What other threads want from the engine waits in the [`Inbox`] and is heeded at the next turn, or at once by whoever
//! posts it while nobody drives.
//!
//! The links are looked at only while an operation uses them: what arrives between two calls stays in the kernel,
//! where it costs nothing.
//!
//! The invariant: nothing that goes wrong here is felt by a call that has no part in it. An engine that panics, which
//! is our bug, gives its operations back and is gone; the control connection is looked after as before (rule 40).

use super::Stopped;
use super::companion::Accompanied;
use super::engine::{Command, Engine, Output};
use super::ticket::{self, Caller};
use crate::baton::{self, Drive};
use crate::bell::Bell;
use crate::linger;
use crate::runtime;
use crate::sync::{Arc, Mutex, lock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest single wait; deadlines are nearer as a rule.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Where a call waits for whatever the hands bring.
pub(crate) type Seat = baton::Seat<Hands>;

impl Caller for Seat {
    fn notify(&self) {
        Seat::notify(self);
    }
}

/// What waits for the engine while somebody drives.
#[derive(Default)]
pub(super) struct Inbox {
    commands: Mutex<Vec<Command>>,
    is_filled: AtomicBool,
}

impl Inbox {
    pub(super) fn put(&self, command: Command) {
        lock(&self.commands).push(command);
        self.is_filled.store(true, Ordering::SeqCst);
    }

    fn take(&self) -> Vec<Command> {
        if self.is_filled.load(Ordering::SeqCst) && self.is_filled.swap(false, Ordering::SeqCst) {
            std::mem::take(&mut lock(&self.commands))
        } else {
            Vec::new()
        }
    }
}

/// Does what the engine wants from the outside. Must not wait.
pub(super) type CarryOut = Box<dyn Fn(Vec<Output>) + Send>;

/// See the module's essay.
pub(crate) struct Hands {
    /// Gone after a panic of its own.
    engine: Option<Engine>,
    inbox: Arc<Inbox>,
    companion: Accompanied,
    bell: Arc<Bell>,
    carry_out: CarryOut,
    /// What the last wait polled; its memory serves the next.
    polled: Vec<PollFd<'static>>,
    /// And what it found of the links.
    ready: Vec<PollFlags>,
}

impl Hands {
    pub(super) fn new(
        engine: Engine,
        inbox: Arc<Inbox>,
        companion: Accompanied,
        bell: Arc<Bell>,
        carry_out: CarryOut,
    ) -> Self {
        Self {
            engine: Some(engine),
            inbox,
            companion,
            bell,
            carry_out,
            polled: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// Does something with the engine, if it is there. A panic is the end of it, and of all that it carries.
    fn with_engine<R>(&mut self, work: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        let engine = self.engine.as_mut()?;
        let result = runtime::guarded("the engine of the data plane", || work(engine));
        if result.is_none() {
            // It hands back what it holds.
            runtime::guarded("the end of an engine", || drop(self.engine.take()));
        }
        result
    }

    fn apply(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Join(operation) if self.engine.is_none() => {
                    ticket::hand_back(operation, Err(Stopped::Closed));
                }
                command => drop(self.with_engine(|engine| engine.apply(command))),
            }
        }
        self.with_engine(|engine| {
            // An abort may have come before anybody listened for it.
            engine.check_aborts();
            engine.settle();
        });
    }

    fn satisfy(&mut self) {
        if let Some(engine) = self.engine.as_mut().filter(|engine| engine.has_outputs()) {
            let outputs = engine.take_outputs();
            runtime::guarded("a listener to links", || (self.carry_out)(outputs));
        }
    }
}

impl Drive for Hands {
    fn heed(&mut self) {
        let rang = self.bell.answer();
        let commands = self.inbox.take();
        if rang || !commands.is_empty() {
            self.companion.look_again();
            self.apply(commands);
            self.satisfy();
        }
    }

    fn turn(&mut self) -> bool {
        self.heed();
        let now = Instant::now();
        let moved = self.with_engine(|engine| {
            let moved = engine.is_busy() && engine.pump(now);
            engine.settle();
            moved
        });
        self.satisfy();
        self.companion.turn_if_due(now);
        moved.unwrap_or(false)
    }

    fn wait(&mut self, until: Instant) {
        let engine = self.engine.as_mut().filter(|engine| engine.is_busy());
        let deadline = engine.as_ref().and_then(|engine| engine.next_deadline());
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let left = until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        let beside = self.companion.beside();
        let due = beside.as_ref().and_then(|beside| beside.due());
        let left = left.min(due.unwrap_or(WAIT_MAX));
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut polled = recycled(std::mem::take(&mut self.polled));
        polled.push(PollFd::from_borrowed_fd(self.bell.descriptor(), PollFlags::IN));
        polled.extend(beside.iter().map(|beside| PollFd::from_borrowed_fd(beside.socket(), PollFlags::IN)));
        let links_from = polled.len();
        if let Some(engine) = &engine {
            let awaited = engine.awaited();
            polled.extend(awaited.map(|(descriptor, flags)| PollFd::from_borrowed_fd(descriptor, flags)));
        }
        // An interrupted or failed wait is a short wait: the next turn finds out what is the matter.
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut count = Ok(0);
        let mut look = || {
            count = poll(&mut polled, Some(&at_once));
            count != Ok(0)
        };
        if !linger::finds(linger::BETWEEN_PIECES, &mut look) {
            count = poll(&mut polled, Some(&timeout));
        }
        if !polled[0].revents().is_empty() {
            self.bell.heard();
        }
        let came = links_from > 1 && !polled[1].revents().is_empty();
        if came || (due.is_some() && count == Ok(0)) {
            self.companion.call();
        }
        self.ready.clear();
        self.ready.extend(polled[links_from..].iter().map(PollFd::revents));
        self.polled = recycled(polled);
        if let Some(engine) = engine {
            engine.note_ready(&self.ready);
        }
    }
}

/// The same memory for another list: nothing is allocated for a wait.
fn recycled<'b>(mut polled: Vec<PollFd<'_>>) -> Vec<PollFd<'b>> {
    polled.clear();
    polled.into_iter().map(|_| unreachable!("it is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_uses_the_memory_of_the_last() {
        let bell = Bell::new().unwrap();
        let mut polled = Vec::with_capacity(9);
        polled.push(PollFd::from_borrowed_fd(bell.descriptor(), PollFlags::IN));
        let memory = polled.as_ptr().addr();
        let again = recycled(polled);
        assert_eq!((again.as_ptr().addr(), again.capacity(), again.len()), (memory, 9, 0));
    }
}
