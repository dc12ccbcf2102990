//! The receiver's end: fetches what differs, from several donors at once.
//!
//! A donor is dropped when it lies, or when the last of its streams broke; one that is *busy* with others is asked again
//! after a pause, until the deadline. The state counts as torn from before its first byte is written until it is whole:
//! then nothing that ends a heal, a panic included, can leave a half-written state that looks like one.

use super::Stream;
use crate::state::SharedState;
use crate::state::memory::Memory;
use crate::sync::{lock, sleep_while, unlocked};
use crate::{clock, runtime};
use outlast_kernels::hash128;
use outlast_proto::id::PeerId;
use outlast_proto::limits::STATE_EXTRA_BYTES_MAX;
use outlast_proto::retry;
use outlast_proto::state::frame::{Answer, Question, Status, Wanted};
use outlast_proto::state::transfer::{Fault, STALLED, Transfer, WINDOW};
use outlast_proto::state::tree::{self, LEAF_BYTES, Leaf, Leaves};
use outlast_proto::state::{Difference, Digest, Outline};
use outlast_proto::wire::decode;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

/// Streams to one donor: one that waits for a lost packet does not stop the other.
pub(super) const STREAMS_PER_DONOR: usize = 2;
/// How often somebody who waits for others looks up.
const BEAT: Duration = Duration::from_millis(20);
/// A donor that is busy is asked again after the first of these, then after twice as long each time, up to the other.
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A heal that takes longer says how far it is, this often.
const PROGRESS: Duration = Duration::from_secs(1);

/// Opens a stream to a donor. Called on a thread of its own that nobody waits for longer than it has to.
pub(crate) type Open = Arc<dyn Fn(PeerId, Instant) -> io::Result<Stream> + Send + Sync>;

/// What to fetch, and from whom.
pub(crate) struct Errand<'a> {
    pub(crate) root: Digest,
    pub(crate) donors: &'a [PeerId],
    /// Ours, so that receivers do not all begin with the same donor.
    pub(crate) rank: usize,
    pub(crate) open: Open,
    pub(crate) deadline: Instant,
    /// Whether the call was given up; asked on the calling thread only.
    pub(crate) given_up: &'a dyn Fn() -> bool,
    /// Told how many leaves are here, of how many; on the calling thread, now and then.
    pub(crate) progress: &'a dyn Fn(u64, u64),
}

/// Why a heal did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unhealed {
    /// No donor is left that gives what is missing.
    NoDonor,
    /// The deadline passed.
    TimedOut,
    /// The program gave the call up.
    GivenUp,
}

/// What a heal found and did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Payload bytes that came.
    pub(crate) received: u64,
    /// Leaves that differed.
    pub(crate) leaves: u64,
    /// Keys whose contents differed, in their order.
    pub(crate) differed: Vec<String>,
    /// Leaves that were kept, by donor.
    pub(crate) donors: BTreeMap<PeerId, u64>,
    /// Donors that were replaced, and why.
    pub(crate) dropped: Vec<(PeerId, Fault)>,
}

/// Verified leaves that are not in their places yet.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    leaves: Vec<(Leaf, Vec<u8>)>,
    extra: Vec<u8>,
}

impl Staged {
    /// Puts everything in its place.
    pub(crate) fn apply(self, state: &mut SharedState) {
        for (leaf, bytes) in self.leaves {
            state.memory[leaf.tensor].bytes_mut()[leaf.bytes].copy_from_slice(&bytes);
        }
        state.extra = self.extra;
    }
}

/// Why a stream does not give what it was asked for.
enum Setback {
    /// The donor serves as many others as it can.
    Busy,
    /// The stream is of no use, and perhaps the donor is not.
    Fault(Fault),
}

impl From<Fault> for Setback {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Asks one donor after the other until one gives what `take` accepts; `Fault::Corrupt` if it does not. Those that are
/// busy are asked again later.
fn ask_any<T>(
    errand: &Errand<'_>,
    wanted: Wanted,
    found: &mut Found,
    take: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, Unhealed> {
    let count = errand.donors.len().max(1);
    let mut pause = BUSY_PAUSE.0;
    loop {
        let mut is_one_busy = false;
        for at in 0..errand.donors.len() {
            let donor = errand.donors[(errand.rank + at) % count];
            if found.replaced(donor).is_some() {
                continue;
            }
            let setback = match ask(errand, donor, wanted) {
                Ok(bytes) => {
                    found.received += bytes.len() as u64;
                    match take(&bytes) {
                        Some(taken) => return Ok(taken),
                        None => Fault::Corrupt.into(),
                    }
                }
                Err(setback) => setback,
            };
            errand.goes_on()?;
            match setback {
                Setback::Busy => is_one_busy = true,
                Setback::Fault(fault) => {
                    tracing::warn!(donor = %donor, %fault, "a donor is replaced");
                    found.dropped.push((donor, fault));
                }
            }
        }
        if !is_one_busy {
            return Err(Unhealed::NoDonor);
        }
        let until = Instant::now() + pause;
        while Instant::now() < until {
            std::thread::sleep(BEAT);
            errand.goes_on()?;
        }
        pause = retry::longer(pause, BUSY_PAUSE.1);
    }
}

/// Asks one donor, on a stream for this question alone.
fn ask(errand: &Errand<'_>, donor: PeerId, wanted: Wanted) -> Result<Vec<u8>, Setback> {
    let off = || errand.goes_on().is_err();
    let mut stream = open(&errand.open, donor, errand.deadline, &off).map_err(gone)?;
    let question = Question { root: errand.root, wanted };
    stream.send(&question.encode(), STALLED, &off).map_err(gone)?;
    let answer = read_answer(&mut stream, wanted, &off)?;
    let mut bytes = vec![0; answer.bytes as usize];
    if !stream.receive(&mut bytes, STALLED, &off).map_err(gone)? {
        return Err(gone(io::ErrorKind::UnexpectedEof.into()).into());
    }
    Ok(bytes)
}

impl Errand<'_> {
    /// An error once it is of no use to go on. Asked on the calling thread only.
    fn goes_on(&self) -> Result<(), Unhealed> {
        if (self.given_up)() {
            return Err(Unhealed::GivenUp);
        }
        if Instant::now() >= self.deadline { Err(Unhealed::TimedOut) } else { Ok(()) }
    }
}

/// Where our outline differs from the elected one.
pub(crate) fn difference(errand: &Errand<'_>, ours: &Outline, elected: Digest) -> Option<Difference> {
    let take = |bytes: &[u8]| decode::<Outline>(bytes).ok().filter(|outline| outline.digest() == elected);
    let theirs = ask_any(errand, Wanted::Outline, &mut Found::default(), take).ok()?;
    ours.difference(&theirs)
}

/// Makes `state` what was elected: in place, or staged. `ours` are the hashes of its leaves. In place, a heal that
/// ends early leaves the state torn if it had changed anything; one that succeeds leaves it whole and without a revision,
/// because the caller knows which it is.
pub(crate) fn heal(
    state: &mut SharedState,
    ours: &[Digest],
    errand: &Errand<'_>,
    staged: bool,
    found: &mut Found,
) -> Result<Option<Staged>, Unhealed> {
    let outline = state.outline.digest();
    let take = |bytes: &[u8]| {
        let (hashes, extra) = bytes.split_at_checked(ours.len() * Digest::BYTES)?;
        let hash = |bytes: &[u8]| bytes.try_into().map(Digest::from_bytes).ok();
        let hashes: Vec<_> = hashes.chunks(Digest::BYTES).map(hash).collect::<Option<_>>()?;
        let fits = extra.len() <= STATE_EXTRA_BYTES_MAX;
        (fits && tree::root(outline, extra, &hashes) == errand.root).then(|| (hashes, extra.to_vec()))
    };
    let (hashes, extra) = ask_any(errand, Wanted::Hashes, found, take)?;
    let wanted = tree::differing(ours, &hashes);
    let leaves = Leaves::of(&state.outline);
    found.leaves = wanted.len() as u64;
    for leaf in wanted.iter().filter_map(|number| leaves.get(*number)) {
        let key = &state.outline.tensors()[leaf.tensor].key;
        if found.differed.last() != Some(key) {
            found.differed.push(key.clone());
        }
    }
    let willing: Vec<_> =
        errand.donors.iter().copied().filter(|donor| found.replaced(*donor).is_none()).collect();
    let plan = Transfer::new(wanted, &willing, errand.rank);
    let before = (state.torn, state.revision);
    if !staged {
        (state.torn, state.revision) = (true, None);
    }
    let pulling = Pulling {
        hashes: &hashes,
        leaves: &leaves,
        root: errand.root,
        open: Arc::clone(&errand.open),
        deadline: errand.deadline,
        over: AtomicBool::new(false),
        changed: Condvar::new(),
        work: Mutex::new(Work {
            plan,
            streams: BTreeMap::new(),
            memory: &mut state.memory,
            staged: staged.then(Vec::new),
            received: 0,
            written: 0,
        }),
    };
    let all = found.leaves;
    (errand.progress)(0, all);
    let outcome = pulling.run(errand, all);
    let Work { plan, staged, received, written, .. } = unlocked(pulling.work);
    found.received += received;
    found.donors.clone_from(plan.kept());
    found.dropped.extend(plan.dropped().iter().cloned());
    match (outcome, staged) {
        (Ok(()), Some(leaves)) => Ok(Some(Staged { leaves, extra })),
        (Ok(()), None) => {
            (state.extra, state.torn) = (extra, false);
            Ok(None)
        }
        (Err(unhealed), _) => {
            if written == 0 {
                (state.torn, state.revision) = before;
            }
            Err(unhealed)
        }
    }
}

impl Found {
    fn replaced(&self, donor: PeerId) -> Option<&Fault> {
        self.dropped.iter().find(|(dropped, _)| *dropped == donor).map(|(_, fault)| fault)
    }
}

/// What the threads of a heal share.
struct Work<'a> {
    plan: Transfer,
    /// How many streams each donor has that have not failed.
    streams: BTreeMap<PeerId, usize>,
    memory: &'a mut [Memory],
    staged: Option<Vec<(Leaf, Vec<u8>)>>,
    received: u64,
    /// Leaves that were put in place.
    written: u64,
}

impl Work<'_> {
    /// A stream of that donor failed, and these leaves will not come by it. A donor that lies is of no use by its other
    /// streams either; one that is merely hard to reach is kept until the last of them has failed.
    fn lose_stream(&mut self, donor: PeerId, fault: Fault, asked: impl IntoIterator<Item = usize>) {
        let streams = self.streams.entry(donor).or_default();
        *streams = streams.saturating_sub(1);
        if *streams > 0 && matches!(fault, Fault::Gone(_) | Fault::Stalled) {
            tracing::debug!(%donor, %fault, "a stream to a donor ended, and another is left");
            return self.plan.hand_back(donor, asked);
        }
        tracing::warn!(%donor, %fault, "a donor is replaced");
        self.plan.drop_donor(donor, fault);
    }
}

struct Pulling<'a> {
    hashes: &'a [Digest],
    leaves: &'a Leaves,
    root: Digest,
    open: Open,
    deadline: Instant,
    over: AtomicBool,
    /// Something was delivered, or somebody was dropped.
    changed: Condvar,
    work: Mutex<Work<'a>>,
}

impl<'a> Pulling<'a> {
    fn lock(&self) -> MutexGuard<'_, Work<'a>> {
        lock(&self.work)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Engages donors, replaces those that stand still, and looks up now and then, until it is over.
    fn run(&self, errand: &Errand<'_>, all: u64) -> Result<(), Unhealed> {
        std::thread::scope(|scope| {
            let mut told = Instant::now();
            let outcome = loop {
                let mut work = self.lock();
                if work.plan.is_done() {
                    break Ok(());
                }
                for donor in work.plan.stalled(clock::now()) {
                    tracing::warn!(%donor, fault = %Fault::Stalled, "a donor is replaced");
                    work.plan.drop_donor(donor, Fault::Stalled);
                }
                while let Some(donor) = work.plan.engage() {
                    // None of them gets far before we let go of the lock.
                    work.streams.insert(donor, STREAMS_PER_DONOR);
                    for _ in 0..STREAMS_PER_DONOR {
                        let thread = std::thread::Builder::new().name("outlast-heal".to_owned());
                        if let Err(error) = thread.spawn_scoped(scope, move || self.attend(donor)) {
                            work.lose_stream(donor, gone(error), []);
                        }
                    }
                }
                if work.plan.is_hopeless() {
                    break Err(Unhealed::NoDonor);
                }
                let missing = work.plan.missing() as u64;
                let received = work.received;
                drop(self.changed.wait_timeout(work, BEAT));
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
    fn attend(&self, donor: PeerId) {
        let mut pause = BUSY_PAUSE.0;
        loop {
            let mut asked = VecDeque::new();
            let ended = runtime::guarded("what takes a stream of a heal", || self.pull(donor, &mut asked));
            match ended.unwrap_or_else(|| Err(self.panicked().into())) {
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

    /// A stream panicked. Its donor is let go at once, and others bring what it owes, unless that happened in the middle of
    /// what all streams share: then nobody knows what is in its place, and the panic goes on.
    fn panicked(&self) -> Fault {
        assert!(!self.work.is_poisoned(), "a heal panicked while it put a leaf in its place");
        gone(io::Error::other("what received from it panicked"))
    }

    /// Asks for as much as the plan allows, and takes what comes. `asked` is what was asked for and did not come.
    fn pull(&self, donor: PeerId, asked: &mut VecDeque<usize>) -> Result<(), Setback> {
        let off = || self.is_over() || !self.lock().plan.is_engaged(donor);
        let mut stream = match open(&self.open, donor, self.deadline, &off) {
            Ok(stream) => stream,
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
        let answer = read_answer(stream, Wanted::Leaf(number as u64), off)?;
        if answer.bytes != leaf.bytes.len() as u64 {
            return Err(Fault::Corrupt.into());
        }
        let bytes = &mut buffer[..leaf.bytes.len()];
        if !stream.receive(bytes, STALLED, off).map_err(gone)? {
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

fn gone(error: io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::TimedOut => Fault::Stalled,
        _ => Fault::Gone(error.to_string()),
    }
}

fn read_answer(stream: &mut Stream, wanted: Wanted, off: &dyn Fn() -> bool) -> Result<Answer, Setback> {
    let mut header = [0; Answer::BYTES];
    if !stream.receive(&mut header, STALLED, off).map_err(gone)? {
        return Err(gone(io::ErrorKind::ConnectionAborted.into()).into());
    }
    let answer = Answer::decode(&header, wanted).map_err(|_| Fault::Corrupt)?;
    match answer.status {
        Status::Here => Ok(answer),
        Status::Mutated => Err(Fault::Mutated.into()),
        Status::NotServed => Err(Fault::Gone("it does not serve the elected state".to_owned()).into()),
        Status::Busy => Err(Setback::Busy),
    }
}

/// Opens a stream on a thread of its own, which is left to itself when nobody wants the stream any more.
fn open(open: &Open, donor: PeerId, deadline: Instant, off: &dyn Fn() -> bool) -> io::Result<Stream> {
    let (deadline, open) = (deadline.min(Instant::now() + STALLED), Arc::clone(open));
    let (hand_over, opened) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("outlast-dial".to_owned());
    thread.spawn(move || drop(hand_over.send(open(donor, deadline))))?;
    loop {
        match opened.recv_timeout(BEAT) {
            Ok(stream) => return stream,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Err(mpsc::RecvTimeoutError::Timeout) if off() => return Err(io::ErrorKind::Interrupted.into()),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}
