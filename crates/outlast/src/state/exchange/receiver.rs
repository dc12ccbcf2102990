//! The receiver's end: fetches what differs, from several donors at once.
//!
//! A donor is dropped when it lies, or when the last of its streams broke; one that is *busy* with others is asked again
//! after a pause, until the deadline, and one that is slow is kept as long as bytes come. The state counts as torn from
//! before its first byte is written until it is whole: then nothing that ends a heal, a panic included, can leave a
//! half-written state that looks like one.

mod pulling;

use super::Stream;
use crate::state::SharedState;
use crate::sync::unlocked;
use outlast_proto::id::PeerId;
use outlast_proto::limits::STATE_EXTRA_BYTES_MAX;
use outlast_proto::retry;
use outlast_proto::state::frame::{Answer, Question, Status, Wanted};
use outlast_proto::state::transfer::{Fault, STALLED, Transfer};
use outlast_proto::state::tree::{self, Leaf, Leaves};
use outlast_proto::state::{Difference, Digest, Outline};
use outlast_proto::wire::decode;
use pulling::{Pulling, Work};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, mpsc};
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unhealed {
    /// Two tensors are one memory here and differ in what was elected, which this state thus cannot be. It is as it was.
    Unfit(String),
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
    let answer = read_answer(&mut stream, wanted, STALLED, &off)?;
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
    if let Some(why) = state.broken_tie(&leaves, &hashes) {
        return Err(Unhealed::Unfit(why));
    }
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
        work: Mutex::new(Work::new(plan, &mut state.memory, staged)),
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

fn gone(error: io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::TimedOut => Fault::Stalled,
        _ => Fault::Gone(error.to_string()),
    }
}

fn read_answer(
    stream: &mut Stream,
    wanted: Wanted,
    patience: Duration,
    off: &dyn Fn() -> bool,
) -> Result<Answer, Setback> {
    let mut header = [0; Answer::BYTES];
    if !stream.receive(&mut header, patience, off).map_err(gone)? {
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
