//! What the health thread shares with everybody else, and how little that is.
//!
//! Three things: a mailbox into the thread, the two lists out of it, and a queue of events. Each lies behind
//! a mutex that is held for a swap or a push and never across a system call that can wait, so no user of the
//! lists can make a timer late. Mailbox and queue are bounded: what does not fit is counted and, for events,
//! reported to the reader in their place.

use crate::bell::Bell;
use crate::clock;
use crate::membership::Counters;
use crate::recorder::{Entry, Recorder};
use crate::sync::{Arc, Condvar, Mutex, lock, sleep_while};
use outlast_proto::membership::{Event, Member, Source};
use outlast_proto::time::{Duration, Instant};
use outlast_proto::wire::membership::Packet;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Events that wait to be read. A program that reads none for a long time loses the oldest and is told so.
const EVENTS_MAX: usize = 4_096;
/// Packets from streams that wait for the health thread.
const MAILBOX_MAX: usize = 1_024;

/// Something that happened to the group, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// Wall-clock time, for people and logs.
    pub time: SystemTime,
    /// Monotonic time on [`clock::now`], for measuring.
    pub at: Instant,
    /// How many members were in the active list afterwards, ourselves included.
    pub active: usize,
    /// What happened.
    pub what: Happening,
}

/// What a [`TimedEvent`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happening {
    /// A fact about a member.
    Event(Event),
    /// This many events were lost because nobody read them in time. Read the lists to catch up.
    Lagged(u64),
}

/// Why the health thread is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It said goodbye.
    Left,
    /// It broke one of its own invariants: our bug.
    Panicked,
}

/// The two lists at one moment.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub(crate) active: Vec<Member>,
    pub(crate) failed: Vec<Member>,
}

/// What others ask of the health thread.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A packet came over a stream.
    Packet(Source, Packet),
    /// Get to know the group of these members.
    Join(Vec<std::net::SocketAddr>),
    /// There is evidence against that member: probe it now.
    Look(outlast_proto::id::PeerId),
    /// The coordinator took that member out of the run.
    Evict(outlast_proto::id::PeerId),
    /// That member has just registered with the coordinator.
    Renew(outlast_proto::wire::membership::MemberInfo),
    /// These are the members of our group.
    Roster(Vec<outlast_proto::wire::membership::MemberInfo>),
    /// Say goodbye, and be gone by then.
    Leave(Instant),
}

/// Counts of what the health plane did. All start at zero and only grow.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) packets_sent: AtomicU64,
    pub(crate) packets_received: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) stream_packets_sent: AtomicU64,
    pub(crate) stream_packets_received: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) connects_not_asked: AtomicU64,
    pub(crate) stalls: AtomicU64,
    pub(crate) lateness_nanos_max: AtomicU64,
}

impl Tally {
    pub(crate) fn counters(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            packets_sent: read(&self.packets_sent),
            packets_received: read(&self.packets_received),
            bytes_sent: read(&self.bytes_sent),
            bytes_received: read(&self.bytes_received),
            stream_packets_sent: read(&self.stream_packets_sent),
            stream_packets_received: read(&self.stream_packets_received),
            refused: read(&self.refused),
            connections_refused: 0,
            malformed: read(&self.malformed),
            dropped: read(&self.dropped),
            connects: read(&self.connects),
            connects_not_asked: read(&self.connects_not_asked),
            stalls: read(&self.stalls),
            lateness_max: Duration::from_nanos(read(&self.lateness_nanos_max)),
        }
    }

    pub(crate) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<TimedEvent>,
    lost: u64,
    ending: Option<Ending>,
}

/// The shared half of one member.
#[derive(Debug)]
pub(crate) struct Shared {
    lists: Mutex<Arc<Lists>>,
    queue: Mutex<Queue>,
    readable: Condvar,
    mailbox: Mutex<VecDeque<Letter>>,
    bell: Bell,
    /// Who keeps a record of what happens.
    recorder: OnceLock<Arc<Recorder>>,
    pub(crate) tally: Tally,
}

impl Shared {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            lists: Mutex::default(),
            queue: Mutex::default(),
            readable: Condvar::new(),
            mailbox: Mutex::default(),
            bell: Bell::new()?,
            recorder: OnceLock::new(),
            tally: Tally::default(),
        })
    }

    /// The lists as they were published last.
    pub(crate) fn lists(&self) -> Arc<Lists> {
        Arc::clone(&lock(&self.lists))
    }

    /// Keeps a record of events there as well, from now on.
    pub(crate) fn record_in(&self, recorder: &Arc<Recorder>) {
        let _ = self.recorder.set(Arc::clone(recorder));
    }

    /// Replaces the lists. The old ones are freed outside the lock.
    pub(crate) fn publish(&self, lists: Lists) {
        let fresh = Arc::new(lists);
        let old = std::mem::replace(&mut *lock(&self.lists), fresh);
        drop(old);
    }

    /// Appends events; the oldest make room.
    pub(crate) fn notify(&self, events: impl IntoIterator<Item = TimedEvent>) {
        let mut queue = lock(&self.queue);
        for event in events {
            if let (Some(recorder), Happening::Event(event)) = (self.recorder.get(), &event.what) {
                recorder.note(&Entry::health(event));
            }
            if queue.events.len() == EVENTS_MAX {
                queue.events.pop_front();
                queue.lost += 1;
            }
            queue.events.push_back(event);
        }
        drop(queue);
        self.readable.notify_all();
    }

    /// Takes all waiting events, or waits for the first until `timeout` has passed. `Err` once there will be
    /// no more.
    pub(crate) fn take_events(&self, timeout: Duration) -> Result<Vec<TimedEvent>, Ending> {
        let nothing =
            |queue: &mut Queue| queue.events.is_empty() && queue.lost == 0 && queue.ending.is_none();
        let mut queue = sleep_while(&self.readable, lock(&self.queue), timeout, nothing);
        let lost = std::mem::take(&mut queue.lost);
        let events = std::mem::take(&mut queue.events);
        let ending = queue.ending;
        drop(queue);
        if let (true, Some(ending)) = (events.is_empty(), ending) {
            return Err(ending);
        }
        let lagged = events
            .front()
            .filter(|_| lost > 0)
            .map(|first| TimedEvent { what: Happening::Lagged(lost), ..first.clone() });
        Ok(lagged.into_iter().chain(events).collect())
    }

    /// The thread has ended; whoever waits is told.
    pub(crate) fn end(&self, ending: Ending) {
        lock(&self.queue).ending.get_or_insert(ending);
        self.readable.notify_all();
    }

    /// How the thread has ended, if it has.
    pub(crate) fn ending(&self) -> Option<Ending> {
        lock(&self.queue).ending
    }

    /// Waits until the thread has ended; false if `timeout` passed first.
    pub(crate) fn wait_ended(&self, timeout: Duration) -> bool {
        let running = |queue: &mut Queue| queue.ending.is_none();
        let queue = sleep_while(&self.readable, lock(&self.queue), timeout, running);
        queue.ending.is_some()
    }

    /// Puts a letter into the mailbox and rings. A packet that does not fit is dropped, as a network would.
    pub(crate) fn post(&self, letter: Letter) {
        let mut mailbox = lock(&self.mailbox);
        if mailbox.len() >= MAILBOX_MAX && matches!(letter, Letter::Packet(..)) {
            drop(mailbox);
            Tally::add(&self.tally.dropped, 1);
            return;
        }
        mailbox.push_back(letter);
        drop(mailbox);
        self.bell.ring();
    }

    /// Empties the mailbox and silences the bell.
    pub(crate) fn take_letters(&self) -> VecDeque<Letter> {
        self.bell.answer();
        std::mem::take(&mut *lock(&self.mailbox))
    }

    /// What the health thread waits on for letters.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.descriptor()
    }

    /// A wait found the bell ringing.
    pub(crate) fn heard(&self) {
        self.bell.heard();
    }

    /// An event of this moment.
    pub(crate) fn timed(event: Event, active: usize) -> TimedEvent {
        TimedEvent { time: SystemTime::now(), at: clock::now(), active, what: Happening::Event(event) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_proto::id::PeerId;
    use outlast_proto::membership::Path;
    use outlast_proto::wire::membership::{DeathReason, Packet};

    fn event(number: u32) -> TimedEvent {
        Shared::timed(
            Event::Rejoined {
                incarnation: number,
                reason: DeathReason::Silent,
                since: outlast_proto::time::Instant::ORIGIN,
            },
            1,
        )
    }

    #[test]
    fn a_reader_that_lags_is_told_how_much_it_missed() {
        let shared = Shared::new().unwrap();
        shared.notify((0..EVENTS_MAX as u32 + 3).map(event));
        let events = shared.take_events(Duration::ZERO).unwrap();
        assert_eq!(events.len(), EVENTS_MAX + 1);
        assert_eq!(events[0].what, Happening::Lagged(3));
        assert_eq!(events[1].what, event(3).what);
        assert_eq!(shared.take_events(Duration::ZERO), Ok(Vec::new()));
    }

    #[test]
    fn the_last_events_are_read_before_the_end_is_told() {
        let shared = Shared::new().unwrap();
        shared.notify([event(1)]);
        shared.end(Ending::Left);
        shared.end(Ending::Panicked);
        assert_eq!(shared.take_events(Duration::ZERO).unwrap().len(), 1);
        assert_eq!(shared.take_events(Duration::from_secs(5)), Err(Ending::Left));
        assert!(shared.wait_ended(Duration::ZERO));
    }

    #[test]
    fn the_mailbox_is_bounded_for_packets_and_never_for_a_goodbye() {
        let shared = Shared::new().unwrap();
        let source = Source {
            id: PeerId::from_bytes([1; 16]),
            address: ([127, 0, 0, 1], 1).into(),
            path: Path::Stream,
        };
        for _ in 0..MAILBOX_MAX + 5 {
            shared.post(Letter::Packet(source, Packet { body: None, records: Vec::new() }));
        }
        shared.post(Letter::Leave(clock::now()));
        assert_eq!(shared.tally.dropped.load(Ordering::Relaxed), 5);
        let letters = shared.take_letters();
        assert_eq!(letters.len(), MAILBOX_MAX + 1);
        assert!(matches!(letters.back(), Some(Letter::Leave(_))));
        assert!(shared.take_letters().is_empty());
    }
}
