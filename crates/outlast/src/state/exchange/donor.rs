//! The donor's end: answers questions about a state that a sync has lent, for as long as it is lent.
//!
//! Each stream has a thread and the memory of a leaf, so only so many are served at once. The others are told that the donor
//! is *busy*, and come again. So is who asks *early*: receivers may hear of an election sooner than the donor does, and take
//! a donor that says nothing for one that stands still.
//!
//! What is served is hashed again. If it is not what was offered, the program wrote to its tensors during the sync: then this
//! donor does not hold what was elected, and its own call must say so, too.

use super::Stream;
use super::porter::Porter;
use crate::state::SharedState;
use crate::sync::{lock, sleep_while};
use outlast_kernels::hash128;
use outlast_proto::id::PeerId;
use outlast_proto::state::frame::{Answer, Question, Status, Wanted};
use outlast_proto::state::tree::{LEAF_BYTES, Leaves};
use outlast_proto::state::{Digest, Outline};
use outlast_proto::wire::encode;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Streams that are served at once. More are told to come again.
pub(super) const STREAMS_MAX: usize = 64;
/// Receivers may ask for this long before our own call has heard of the election.
const EARLY: Duration = Duration::from_secs(10);
/// Each question of theirs is kept waiting this long, and then told to come again: well before the receiver takes us for one
/// that has stalled.
const EARLY_QUESTION: Duration = Duration::from_secs(2);
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
    account: Arc<Account>,
}

/// What became of something lent.
struct Account {
    /// Payload bytes that were sent.
    sent: AtomicU64,
    /// Whether a leaf was found that is not what it was when it was hashed.
    has_changed: AtomicBool,
    /// Told so once, at that moment.
    on_change: Box<dyn Fn() + Send + Sync>,
}

// SAFETY: the pointers are to memory that the borrow in `Serving` keeps readable from any thread; it outlives `Lent`.
unsafe impl Send for Lent {}

/// What is on offer, and what is asked for though it is not.
#[derive(Default)]
struct Desk {
    lent: Option<Lent>,
    /// What was asked for in this sync before it was lent, and since when.
    early: Option<(Digest, Instant)>,
}

impl Desk {
    fn lends(&self, root: Digest) -> bool {
        self.lent.as_ref().is_some_and(|lent| lent.root == root)
    }
}

/// Where a communicator's state is fetched from, while it is lent.
pub(crate) struct Stall {
    desk: Mutex<Desk>,
    changed: Condvar,
    porter: Porter,
    served: AtomicUsize,
    /// How many are served at once.
    served_max: AtomicUsize,
    /// Whether leaves are changed on their way out.
    #[cfg(feature = "internals")]
    spoils: AtomicBool,
}

impl Default for Stall {
    fn default() -> Self {
        Self {
            desk: Mutex::default(),
            changed: Condvar::new(),
            porter: Porter::default(),
            served: AtomicUsize::new(0),
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
    account: Arc<Account>,
    _state: &'a SharedState,
}

impl Serving<'_> {
    /// Payload bytes that were sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.account.sent.load(Ordering::Relaxed)
    }

    /// Whether the state was found to be another than the one that was lent.
    pub(crate) fn has_changed(&self) -> bool {
        self.account.has_changed.load(Ordering::SeqCst)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.stall.lock().lent = None;
    }
}

impl Stall {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        lock(&self.desk)
    }

    /// A sync of ours begins: whoever asks early from here on asks early in this one.
    pub(crate) fn begin_sync(&self) {
        self.lock().early = None;
    }

    /// Lends a state to these peers. `hashes` are those of its leaves, `root` follows from them. `on_change` is told, on
    /// another thread, when a leaf is found that is not what it was.
    pub(crate) fn lend<'a>(
        &'a self,
        state: &'a SharedState,
        hashes: Arc<Vec<Digest>>,
        root: Digest,
        to: impl IntoIterator<Item = PeerId>,
        on_change: impl Fn() + Send + Sync + 'static,
    ) -> Serving<'a> {
        let (sent, has_changed, on_change) = (AtomicU64::new(0), AtomicBool::new(false), Box::new(on_change));
        let account = Arc::new(Account { sent, has_changed, on_change });
        let tensors = state.memory.iter().map(|memory| (memory.start().cast_const(), memory.bytes().len()));
        let lent = Lent {
            root,
            outline: state.outline.clone(),
            extra: state.extra.clone(),
            hashes,
            leaves: Leaves::of(&state.outline),
            tensors: tensors.collect(),
            to: to.into_iter().collect(),
            account: Arc::clone(&account),
        };
        self.lock().lent = Some(lent);
        self.changed.notify_all();
        Serving { stall: self, account, _state: state }
    }

    /// Serves a stream that a peer has opened to us, on a thread of its own.
    pub(crate) fn accept(self: &Arc<Self>, peer: PeerId, stream: Stream) {
        let Some(place) = self.place() else { return self.porter.turn_away(peer, stream) };
        let thread = std::thread::Builder::new().name("outlast-state".to_owned());
        // Without a thread the stream is closed, and the receiver takes another donor.
        let _ = thread.spawn(move || place.0.serve(peer, stream));
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

    /// A place among those who are served, if one is free.
    fn place(self: &Arc<Self>) -> Option<Place> {
        let most = self.served_max.load(Ordering::Relaxed);
        let free = |taken| (taken < most).then_some(taken + 1);
        self.served.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).ok()?;
        Some(Place(Arc::clone(self)))
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
            if status == Status::Busy {
                return self.porter.turn_away(peer, stream);
            }
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
        let (expected, account) = match self.copy(peer, question, bytes) {
            Ok(copied) => copied,
            Err(status) => return status,
        };
        if expected.is_some_and(|hash| Digest::from(hash128(&bytes[begin..])) != hash) {
            if !account.has_changed.swap(true, Ordering::SeqCst) {
                (account.on_change)();
            }
            return Status::Mutated;
        }
        #[cfg(feature = "internals")]
        if expected.is_some()
            && self.spoils.load(Ordering::Relaxed)
            && let Some(byte) = bytes.last_mut()
        {
            *byte ^= 1;
        }
        account.sent.fetch_add((bytes.len() - begin) as u64, Ordering::Relaxed);
        Status::Here
    }

    /// Waits until that root is lent, for a while.
    fn once_lent(&self, root: Digest) -> Result<MutexGuard<'_, Desk>, Status> {
        let mut desk = self.lock();
        if desk.lends(root) {
            return Ok(desk);
        }
        let now = Instant::now();
        let since = desk.early.filter(|(early, _)| *early == root).map_or(now, |(_, since)| since);
        desk.early = Some((root, since));
        let left = (since + EARLY).saturating_duration_since(now);
        let desk = sleep_while(&self.changed, desk, left.min(EARLY_QUESTION), |desk| !desk.lends(root));
        if desk.lends(root) {
            return Ok(desk);
        }
        Err(if left > EARLY_QUESTION { Status::Busy } else { Status::NotServed })
    }

    /// Copies what is asked for, under the lock: a leaf with the hash that it must have.
    fn copy(
        &self,
        peer: PeerId,
        question: Question,
        bytes: &mut Vec<u8>,
    ) -> Result<(Option<Digest>, Arc<Account>), Status> {
        let desk = self.once_lent(question.root)?;
        let lent = desk.lent.as_ref().filter(|lent| lent.to.contains(&peer));
        lent.and_then(|lent| lent.copy(question.wanted, bytes)).ok_or(Status::NotServed)
    }
}

impl Lent {
    /// Appends what is wanted, if there is such a thing; a leaf with the hash that it must have.
    fn copy(&self, wanted: Wanted, bytes: &mut Vec<u8>) -> Option<(Option<Digest>, Arc<Account>)> {
        let account = Arc::clone(&self.account);
        match wanted {
            Wanted::Hashes => {
                self.hashes.iter().for_each(|hash| bytes.extend_from_slice(hash.as_bytes()));
                bytes.extend_from_slice(&self.extra);
                Some((None, account))
            }
            Wanted::Outline => {
                bytes.extend(encode(&self.outline));
                Some((None, account))
            }
            Wanted::Leaf(number) => {
                let number = usize::try_from(number).ok()?;
                let (leaf, hash) = (self.leaves.get(number)?, self.hashes.get(number)?);
                let (start, length) = self.tensors[leaf.tensor];
                assert!(leaf.bytes.end <= length, "leaves are cut from the tensors' own lengths");
                // SAFETY: readable while it is lent, and whoever calls this holds the lock that keeps it lent. The program promised not to write
                // meanwhile; if it does, the hash tells.
                bytes.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(start.add(leaf.bytes.start), leaf.bytes.len())
                });
                Some((Some(*hash), account))
            }
        }
    }
}

/// One stream's place among those that are served. Dropped, it is free.
struct Place(Arc<Stall>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.served.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A donor that never hears of the election must not keep its receivers from others for as long as they like.
    #[test]
    fn who_asks_too_early_for_too_long_is_told_that_it_is_not_served() {
        let (stall, root) = (Stall::default(), Digest::of(b"elected"));
        let told = || stall.once_lent(root).map(drop).unwrap_err();
        let asked_since =
            |ago: Duration| stall.lock().early = Some((root, Instant::now().checked_sub(ago).unwrap()));
        asked_since(EARLY);
        assert_eq!(told(), Status::NotServed);
        assert_eq!(told(), Status::NotServed, "nor later");
        // The last of these questions waits until the time is over.
        asked_since(EARLY.saturating_sub(Duration::from_millis(20)));
        assert_eq!(told(), Status::NotServed);
        // In the next sync it is early anew.
        stall.begin_sync();
        assert_eq!(told(), Status::Busy);
    }
}
