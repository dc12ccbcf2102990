//! Pulling leaves: one thread for each stream to a donor, and one that looks after all of them.
//!
//! What they share is under one lock, which a stream takes when it asks and when it has a whole leaf. Bytes of a leaf that is
//! on its way are counted beside it, for each donor: the one that looks after all passes the count on to the plan every few
//! milliseconds, so that a donor which is slow is not taken for one that stands still.

use super::{
    BEAT, BUSY_PAUSE, Errand, Open, PROGRESS, STREAMS_PER_DONOR, Setback, Unhealed, gone, open, read_answer,
};
use crate::state::exchange::Stream;
use crate::state::memory::Memory;
use crate::sync::{lock, sleep_while};
use crate::{clock, runtime};
use outlast_kernels::hash128;
use outlast_proto::id::PeerId;
use outlast_proto::retry;
use outlast_proto::state::Digest;
use outlast_proto::state::frame::{Question, Wanted};
use outlast_proto::state::transfer::{Fault, STALLED, Transfer, WINDOW};
use outlast_proto::state::tree::{LEAF_BYTES, Leaf, Leaves};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A stream on which nothing came for this long is given up, and its donor's others go on. A donor that is silent on all of
/// them has stalled a little sooner, by the plan: it would be asked once more on another stream, and waited for twice.
const SILENT: Duration = STALLED.saturating_add(Duration::from_millis(500));

/// A wait for one beat that took this long means that it was this process which stood still.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// The streams to one donor.
struct Streams {
    /// How many have not failed.
    left: usize,
    /// How many bytes came by all of them.
    received: Arc<AtomicU64>,
}

/// What the threads of a heal share.
pub(super) struct Work<'a> {
    pub(super) plan: Transfer,
    streams: BTreeMap<PeerId, Streams>,
    memory: &'a mut [Memory],
    pub(super) staged: Option<Vec<(Leaf, Vec<u8>)>>,
    pub(super) received: u64,
    /// Leaves that were put in place.
    pub(super) written: u64,
}

impl<'a> Work<'a> {
    /// Nothing is here yet.
    pub(super) fn new(plan: Transfer, memory: &'a mut [Memory], staged: bool) -> Self {
        let (staged, streams) = (staged.then(Vec::new), BTreeMap::new());
        Self { plan, streams, memory, staged, received: 0, written: 0 }
    }

    /// A stream of that donor failed, and these leaves will not come by it. A donor that lies is of no use by its other
    /// streams either; one that is merely hard to reach is kept until the last of them has failed.
    fn lose_stream(&mut self, donor: PeerId, fault: Fault, asked: impl IntoIterator<Item = usize>) {
        let left = self.streams.get_mut(&donor).map_or(0, |streams| {
            streams.left = streams.left.saturating_sub(1);
            streams.left
        });
        if left > 0 && matches!(fault, Fault::Gone(_) | Fault::Stalled) {
            tracing::debug!(%donor, %fault, "a stream to a donor ended, and another is left");
            return self.plan.hand_back(donor, asked);
        }
        tracing::warn!(%donor, %fault, "a donor is replaced");
        self.plan.drop_donor(donor, fault);
    }

    /// Drops the donors of whom nothing comes any more.
    fn drop_stalled(&mut self) {
        let now = clock::now();
        for (donor, streams) in &self.streams {
            self.plan.heard(now, *donor, streams.received.load(Ordering::Relaxed));
        }
        for donor in self.plan.stalled(now) {
            tracing::warn!(%donor, fault = %Fault::Stalled, "a donor is replaced");
            self.plan.drop_donor(donor, Fault::Stalled);
        }
    }
}

/// A heal under way.
pub(super) struct Pulling<'a> {
    pub(super) hashes: &'a [Digest],
    pub(super) leaves: &'a Leaves,
    pub(super) root: Digest,
    pub(super) open: Open,
    pub(super) deadline: Instant,
    pub(super) over: AtomicBool,
    /// Something was delivered, or somebody was dropped.
    pub(super) changed: Condvar,
    pub(super) work: Mutex<Work<'a>>,
}

impl<'a> Pulling<'a> {
    fn lock(&self) -> MutexGuard<'_, Work<'a>> {
        lock(&self.work)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Engages donors, replaces those that stand still, and looks up now and then, until it is over.
    pub(super) fn run(&self, errand: &Errand<'_>, all: u64) -> Result<(), Unhealed> {
        std::thread::scope(|scope| {
            let mut told = Instant::now();
            let outcome = loop {
                let mut work = self.lock();
                if work.plan.is_done() {
                    break Ok(());
                }
                work.drop_stalled();
                while let Some(donor) = work.plan.engage() {
                    // None of them gets far before we let go of the lock.
                    let received = Arc::<AtomicU64>::default();
                    let streams = Streams { left: STREAMS_PER_DONOR, received: Arc::clone(&received) };
                    work.streams.insert(donor, streams);
                    for _ in 0..STREAMS_PER_DONOR {
                        let thread = std::thread::Builder::new().name("outlast-heal".to_owned());
                        let received = Arc::clone(&received);
                        let attend = move || self.attend(donor, &received);
                        if let Err(error) = thread.spawn_scoped(scope, attend) {
                            work.lose_stream(donor, gone(error), []);
                        }
                    }
                }
                if work.plan.is_hopeless() {
                    break Err(Unhealed::NoDonor);
                }
                let missing = work.plan.missing() as u64;
                let received = work.received;
                let began = Instant::now();
                drop(self.changed.wait_timeout(work, BEAT));
                if began.elapsed() >= STOOD_STILL {
                    self.lock().plan.handle_stood_still(clock::now());
                }
                if told.elapsed() >= PROGRESS {
                    told = Instant::now();
                    tracing::info!(missing, all, received, "healing goes on");
                    (errand.progress)(all.saturating_sub(missing), all);
                }
                if (errand.given_up)() {
                    break Err(Unhealed::GivenUp);
                }
                if Instant::now() >= self.deadline {
                    break Err(Unhealed::TimedOut);
                }
            };
            self.over.store(true, Ordering::Relaxed);
            self.changed.notify_all();
            outcome
        })
    }

    /// One stream to one donor, opened again for as long as the donor is busy.
    fn attend(&self, donor: PeerId, received: &Arc<AtomicU64>) {
        let mut pause = BUSY_PAUSE.0;
        loop {
            let mut asked = VecDeque::new();
            let ended =
                runtime::guarded("what takes a stream of a heal", || self.pull(donor, received, &mut asked));
            let Some(ended) = ended else { return self.panicked(donor) };
            match ended {
                Ok(()) => return,
                Err(Setback::Busy) => self.lock().plan.hand_back(donor, asked),
                Err(Setback::Fault(fault)) => {
                    self.lock().lose_stream(donor, fault, asked);
                    return self.changed.notify_all();
                }
            }
            self.changed.notify_all();
            let waits = |work: &mut Work<'a>| !self.is_over() && work.plan.is_engaged(donor);
            let work = sleep_while(&self.changed, self.lock(), pause, waits);
            if self.is_over() || !work.plan.is_engaged(donor) {
                return;
            }
            drop(work);
            pause = retry::longer(pause, BUSY_PAUSE.1);
        }
    }

    /// A stream panicked. Its donor is let go at once, with its other stream, which would only panic next, and others bring
    /// what it owes; unless that happened in the middle of what all streams share: then nobody knows what is in its place, and
    /// the panic goes on. A heal that is complete by then still names the donor: it ends after all of its streams.
    fn panicked(&self, donor: PeerId) {
        assert!(!self.work.is_poisoned(), "a heal panicked while it put a leaf in its place");
        let fault = gone(io::Error::other("what received from it panicked"));
        tracing::warn!(%donor, %fault, "a donor is replaced");
        self.lock().plan.drop_donor(donor, fault);
        self.changed.notify_all();
    }

    /// Asks for as much as the plan allows, and takes what comes. `asked` is what was asked for and did not come.
    fn pull(
        &self,
        donor: PeerId,
        received: &Arc<AtomicU64>,
        asked: &mut VecDeque<usize>,
    ) -> Result<(), Setback> {
        let off = || self.is_over() || !self.lock().plan.is_engaged(donor);
        let mut stream = match open(&self.open, donor, self.deadline, &off) {
            Ok(stream) => stream.counted_in(received),
            Err(_) if off() => return Ok(()),
            Err(error) => return Err(gone(error).into()),
        };
        let mut buffer = vec![0; LEAF_BYTES];
        loop {
            let mut questions = Vec::new();
            {
                let mut work = self.lock();
                if self.is_over() || work.plan.is_done() || !work.plan.is_engaged(donor) {
                    return Ok(());
                }
                while asked.len() < WINDOW / STREAMS_PER_DONOR
                    && let Some(leaf) = work.plan.next(clock::now(), donor)
                {
                    asked.push_back(leaf);
                    let wanted = Wanted::Leaf(leaf as u64);
                    questions.extend(Question { root: self.root, wanted }.encode());
                }
                if asked.is_empty() {
                    drop(self.changed.wait_timeout(work, BEAT));
                    continue;
                }
            }
            let leaf = *asked.front().expect("it was just looked at");
            let sent = stream.send(&questions, STALLED, &off).map_err(|error| gone(error).into());
            match sent.and_then(|()| self.take(donor, leaf, &mut stream, &mut buffer, &off)) {
                Ok(()) => {
                    asked.pop_front();
                }
                Err(_) if off() => return Ok(()),
                Err(setback) => return Err(setback),
            }
        }
    }

    /// Takes one leaf: into memory of our own first, and to its place only if it is what was elected.
    fn take(
        &self,
        donor: PeerId,
        number: usize,
        stream: &mut Stream,
        buffer: &mut [u8],
        off: &dyn Fn() -> bool,
    ) -> Result<(), Setback> {
        let leaf = self.leaves.get(number).expect("the plan is made of leaves that are there");
        let answer = read_answer(stream, Wanted::Leaf(number as u64), SILENT, off)?;
        if answer.bytes != leaf.bytes.len() as u64 {
            return Err(Fault::Corrupt.into());
        }
        let bytes = &mut buffer[..leaf.bytes.len()];
        if !stream.receive(bytes, SILENT, off).map_err(gone)? {
            return Err(gone(io::ErrorKind::UnexpectedEof.into()).into());
        }
        if Digest::from(hash128(bytes)) != self.hashes[number] {
            return Err(Fault::Corrupt.into());
        }
        let mut work = self.lock();
        work.received += bytes.len() as u64;
        if !self.is_over() && work.plan.delivered(clock::now(), donor, number) {
            if let Some(staged) = &mut work.staged {
                staged.push((leaf, bytes.to_vec()));
            } else {
                work.memory[leaf.tensor].bytes_mut()[leaf.bytes].copy_from_slice(bytes);
                work.written += 1;
            }
        }
        drop(work);
        self.changed.notify_all();
        Ok(())
    }
}
