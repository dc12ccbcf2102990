//! The donor's end: answers questions about a state that a sync has lent, for as long as it is lent.
//!
//! Each stream has a thread and the memory of a leaf, so only so many are served at once. One checkpoint may have to heal
//! hundreds of empty members: the others are told that the donor is *busy*, and come again. To close their streams instead
//! would look like a donor that is gone.

use super::Stream;
use crate::state::SharedState;
use crate::sync::{lock, sleep_while};
use outlast_kernels::hash128;
use outlast_proto::id::PeerId;
use outlast_proto::state::frame::{Answer, Question, Status, Wanted};
use outlast_proto::state::tree::{LEAF_BYTES, Leaves};
use outlast_proto::state::{Digest, Outline};
use outlast_proto::wire::encode;
use std::collections::BTreeSet;
#[cfg(feature = "internals")]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Streams that are served at once. More are told to come again.
pub(super) const STREAMS_MAX: usize = 64;
/// Streams that are being told so at once. More are closed without a word, and their receivers take other donors.
const TURNED_AWAY_MAX: usize = 256;
/// Who is turned away has this long to ask, and to go.
const FAREWELL: Duration = Duration::from_secs(2);
/// A receiver that asks before our own call has heard of the election is kept waiting this long.
const EARLY: Duration = Duration::from_secs(10);
/// A stream on which nobody asks, or takes what was asked for, is closed after this long.
const IDLE: Duration = Duration::from_secs(30);

/// What is lent.
struct Lent {
    root: Digest,
    outline: Outline,
    extra: Vec<u8>,
    hashes: Arc<Vec<Digest>>,
    leaves: Leaves,
    /// The first byte and the length of each tensor.
    tensors: Vec<(*const u8, usize)>,
    to: BTreeSet<PeerId>,
    sent: Arc<AtomicU64>,
}

// SAFETY: the pointers are to memory that the borrow in `Serving` keeps readable from any thread; it outlives `Lent`.
unsafe impl Send for Lent {}

/// Where a communicator's state is fetched from, while it is lent.
pub(crate) struct Stall {
    lent: Mutex<Option<Lent>>,
    changed: Condvar,
    served: AtomicUsize,
    turned_away: AtomicUsize,
    /// How many are served at once.
    served_max: AtomicUsize,
    /// Whether leaves are changed on their way out.
    #[cfg(feature = "internals")]
    spoils: AtomicBool,
}

impl Default for Stall {
    fn default() -> Self {
        Self {
            lent: Mutex::default(),
            changed: Condvar::new(),
            served: AtomicUsize::new(0),
            turned_away: AtomicUsize::new(0),
            served_max: AtomicUsize::new(STREAMS_MAX),
            #[cfg(feature = "internals")]
            spoils: AtomicBool::new(false),
        }
    }
}

impl std::fmt::Debug for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stall").field("served", &self.served).finish_non_exhaustive()
    }
}

/// A state that is lent. Dropped, nobody touches it any more.
pub(crate) struct Serving<'a> {
    stall: &'a Stall,
    sent: Arc<AtomicU64>,
    _state: &'a SharedState,
}

impl Serving<'_> {
    /// Payload bytes that were sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        *self.stall.lock() = None;
    }
}

impl Stall {
    fn lock(&self) -> MutexGuard<'_, Option<Lent>> {
        lock(&self.lent)
    }

    /// Lends a state to these peers. `hashes` are those of its leaves, `root` follows from them.
    pub(crate) fn lend<'a>(
        &'a self,
        state: &'a SharedState,
        hashes: Arc<Vec<Digest>>,
        root: Digest,
        to: impl IntoIterator<Item = PeerId>,
    ) -> Serving<'a> {
        let sent = Arc::<AtomicU64>::default();
        let tensors = state.memory.iter().map(|memory| (memory.start().cast_const(), memory.bytes().len()));
        let lent = Lent {
            root,
            outline: state.outline.clone(),
            extra: state.extra.clone(),
            hashes,
            leaves: Leaves::of(&state.outline),
            tensors: tensors.collect(),
            to: to.into_iter().collect(),
            sent: Arc::clone(&sent),
        };
        *self.lock() = Some(lent);
        self.changed.notify_all();
        Serving { stall: self, sent, _state: state }
    }

    /// Serves a stream that a peer has opened to us, on a thread of its own.
    pub(crate) fn accept(self: &Arc<Self>, peer: PeerId, stream: Stream) {
        let Some(place) = self.place(true).or_else(|| self.place(false)) else {
            return tracing::debug!(%peer, "too many streams ask for the state: one is closed");
        };
        let thread = std::thread::Builder::new().name("outlast-state".to_owned());
        // Without a thread the stream is closed, and the receiver takes another donor.
        let _ = thread.spawn(move || {
            if place.is_served {
                place.stall.serve(peer, stream);
            } else {
                turn_away(peer, stream);
            }
        });
    }

    /// Sends every leaf with one bit changed from now on, for tests of what others do about it.
    #[cfg(feature = "internals")]
    pub(crate) fn spoil(&self) {
        self.spoils.store(true, Ordering::Relaxed);
    }

    /// Serves fewer streams at once, for tests of what others do about it.
    #[cfg(feature = "internals")]
    pub(crate) fn serve_fewer(&self, most: usize) {
        self.served_max.store(most, Ordering::Relaxed);
    }

    /// A place among those who are served, or among those who are turned away, if one is free.
    fn place(self: &Arc<Self>, is_served: bool) -> Option<Place> {
        let most = if is_served { self.served_max.load(Ordering::Relaxed) } else { TURNED_AWAY_MAX };
        let free = |taken| (taken < most).then_some(taken + 1);
        self.taken(is_served).fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).ok()?;
        Some(Place { stall: Arc::clone(self), is_served })
    }

    fn taken(&self, is_served: bool) -> &AtomicUsize {
        if is_served { &self.served } else { &self.turned_away }
    }

    fn serve(&self, peer: PeerId, mut stream: Stream) {
        let mut question = [0; Question::BYTES];
        let (mut bytes, never) = (Vec::with_capacity(Answer::BYTES + LEAF_BYTES), || false);
        loop {
            match stream.receive(&mut question, IDLE, &never) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return tracing::debug!(%peer, %error, "a stream for the state ended"),
            }
            let question = match Question::decode(&question) {
                Ok(question) => question,
                Err(error) => return tracing::debug!(%peer, %error, "no question about the state"),
            };
            bytes.clear();
            bytes.resize(Answer::BYTES, 0);
            let status = self.answer(peer, question, &mut bytes);
            if status != Status::Here {
                bytes.truncate(Answer::BYTES);
            }
            let answer = Answer { status, bytes: (bytes.len() - Answer::BYTES) as u64 };
            bytes[..Answer::BYTES].copy_from_slice(&answer.encode());
            if let Err(error) = stream.send(&bytes, IDLE, &never) {
                return tracing::debug!(%peer, %error, "a stream for the state ended");
            }
        }
    }

    /// Appends the answer. What is slow is done with the copy: whoever ends the sync need not wait for it.
    fn answer(&self, peer: PeerId, question: Question, bytes: &mut Vec<u8>) -> Status {
        let begin = bytes.len();
        let Some((expected, sent)) = self.copy(peer, question, bytes) else { return Status::NotServed };
        if expected.is_some_and(|hash| Digest::from(hash128(&bytes[begin..])) != hash) {
            return Status::Mutated;
        }
        #[cfg(feature = "internals")]
        if expected.is_some()
            && self.spoils.load(Ordering::Relaxed)
            && let Some(byte) = bytes.last_mut()
        {
            *byte ^= 1;
        }
        sent.fetch_add((bytes.len() - begin) as u64, Ordering::Relaxed);
        Status::Here
    }

    /// Copies what is asked for, under the lock: a leaf with the hash that it must have.
    fn copy(
        &self,
        peer: PeerId,
        question: Question,
        bytes: &mut Vec<u8>,
    ) -> Option<(Option<Digest>, Arc<AtomicU64>)> {
        let waits = |lent: &mut Option<Lent>| lent.as_ref().is_none_or(|lent| lent.root != question.root);
        let lent = sleep_while(&self.changed, self.lock(), EARLY, waits);
        let lent = lent.as_ref().filter(|lent| lent.root == question.root && lent.to.contains(&peer))?;
        let sent = Arc::clone(&lent.sent);
        match question.wanted {
            Wanted::Hashes => {
                lent.hashes.iter().for_each(|hash| bytes.extend_from_slice(hash.as_bytes()));
                bytes.extend_from_slice(&lent.extra);
                Some((None, sent))
            }
            Wanted::Outline => {
                bytes.extend(encode(&lent.outline));
                Some((None, sent))
            }
            Wanted::Leaf(number) => {
                let number = usize::try_from(number).ok()?;
                let (leaf, hash) = (lent.leaves.get(number)?, lent.hashes.get(number)?);
                let (start, length) = lent.tensors[leaf.tensor];
                assert!(leaf.bytes.end <= length, "leaves are cut from the tensors' own lengths");
                // SAFETY: readable while it is lent, and the lock keeps it lent. The program promised not to write
                // meanwhile; if it does, the hash tells.
                bytes.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(start.add(leaf.bytes.start), leaf.bytes.len())
                });
                Some((Some(*hash), sent))
            }
        }
    }
}

/// Says that we are busy, to every question: one that is left unread could make the kernel drop the answer.
fn turn_away(peer: PeerId, mut stream: Stream) {
    tracing::debug!(%peer, "as many streams as possible ask for the state: one is told to come again");
    let (until, never) = (Instant::now() + FAREWELL, || false);
    let answer = Answer { status: Status::Busy, bytes: 0 }.encode();
    let mut question = [0; Question::BYTES];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let asked = stream.receive(&mut question, left, &never);
        if !matches!(asked, Ok(true)) || stream.send(&answer, left, &never).is_err() {
            return;
        }
    }
}

/// One stream's place. Dropped, it is free.
struct Place {
    stall: Arc<Stall>,
    is_served: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stall.taken(self.is_served).fetch_sub(1, Ordering::SeqCst);
    }
}
