//! The flight recorder: the last few thousand things that a peer or a coordinator did, for the hour after.
//!
//! # The problem
//!
//! A run stands still, or one call in ten thousand fails. What a person wants to see then is over: who had said what to
//! whom, in which order. A log that tells everything is too slow to be on, and one that is off has nothing to tell.
//!
//! # The intuition
//!
//! Keep everything, for a short while, in a form that costs nothing: a ring of fixed records in memory. A record is a
//! few words (time, message, epoch, tag, number, peer) that are copied as they are; nothing is formatted and nothing is
//! allocated until somebody asks. Asking is a signal (SIGUSR2), a function, or an error that nobody handled; the answer
//! is a file of JSON lines, which `outlast debug merge` puts on one time line with those of others.
//!
//! # The invariant
//!
//! Whoever notes something never waits: it takes the next cell by one atomic addition, and takes no lock. A reader
//! that finds a cell in the middle of a change leaves it out: each cell carries the number of its record, which is wiped
//! before the words change and written after them.
//!
//! # What it does not do
//!
//! It keeps no tensor, no secret and no key. It decides nothing, and nothing reads it but people. After [`EVENTS_MAX`]
//! more records an old one is gone; the dump says how many were overwritten.

mod dump;
mod entry;
mod signal;

pub use dump::{DumpError, dump, folder_for};
pub(crate) use entry::{Entry, What, key_of};

use crate::clock;
use crate::sync::{Arc, Mutex, lock};
use entry::WORDS;
use outlast_proto::id::PeerId;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

/// Records that are kept.
pub const EVENTS_MAX: usize = 4_096;
/// Recorders that are kept although their owners are closed: an error that nobody handles is told after that.
const CLOSED_MAX: usize = 8;
/// Names of peers and runs that are kept.
const NAMES_MAX: usize = 4_096;

/// Whether nothing is recorded in this process.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Records nothing from now on: for measurements of what recording costs.
#[doc(hidden)]
pub fn pause() {
    PAUSED.store(true, Ordering::Relaxed);
}

/// Everybody in one process who records.
struct Crew {
    process: u32,
    /// The oldest first.
    recorders: Mutex<Vec<Arc<Recorder>>>,
}

/// The crew of this process. A forked child inherits its parent's, perhaps with the lock taken, and makes its own.
static CREW: AtomicPtr<Crew> = AtomicPtr::new(ptr::null_mut());

/// Whose records they are.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) role: &'static str,
    pub(crate) id: Option<PeerId>,
    pub(crate) name: String,
    pub(crate) run: String,
}

struct Cell {
    /// The number of the record, counted from one; zero while it changes.
    number: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// See the module's essay.
pub(crate) struct Recorder {
    owner: Owner,
    noted: AtomicU64,
    cells: Box<[Cell]>,
    names: Mutex<BTreeMap<u64, String>>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Begins to record for `owner`, and to answer SIGUSR2 if nobody else in this process does.
    pub(crate) fn start(owner: Owner) -> Arc<Self> {
        let recorder = Arc::new(Self::new(owner, EVENTS_MAX));
        let mut all = lock(&crew().recorders);
        let closed = all.iter().filter(|other| Arc::strong_count(other) == 1).count();
        let mut surplus = closed.saturating_sub(CLOSED_MAX);
        all.retain(|other| {
            let goes = surplus > 0 && Arc::strong_count(other) == 1;
            surplus -= usize::from(goes);
            !goes
        });
        all.push(Arc::clone(&recorder));
        drop(all);
        recorder
    }

    fn new(owner: Owner, size: usize) -> Self {
        let cell = || Cell { number: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] };
        let cells = (0..size).map(|_| cell()).collect();
        Self { owner, noted: AtomicU64::new(0), cells, names: Mutex::default() }
    }

    /// Keeps a record of what happens now.
    pub(crate) fn note(&self, entry: &Entry<'_>) {
        if PAUSED.load(Ordering::Relaxed) {
            return;
        }
        let number = self.noted.fetch_add(1, Ordering::Relaxed);
        let cell = self.cell(number);
        cell.number.store(0, Ordering::Relaxed);
        // Nobody may see a new word under the old number.
        fence(Ordering::Release);
        entry.write(clock::now(), &cell.words);
        cell.number.store(number + 1, Ordering::Release);
        // The next record's place was last used thousands of records ago: it is on its way here until it is needed.
        prefetch(self.cell(number + 1));
    }

    fn cell(&self, number: u64) -> &Cell {
        &self.cells[(number % self.cells.len() as u64) as usize]
    }

    /// Remembers what people call a peer or, by its number, a run.
    pub(crate) fn name(&self, key: u64, name: &str) {
        let mut names = lock(&self.names);
        if names.len() < NAMES_MAX || names.contains_key(&key) {
            names.entry(key).or_insert_with(|| name.to_owned());
        }
    }

    /// The records that are whole, the oldest first, each with its number.
    fn records(&self) -> Vec<(u64, [u64; WORDS])> {
        let read = |cell: &Cell| {
            let number = cell.number.load(Ordering::Acquire);
            let words = std::array::from_fn(|at| cell.words[at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            (number > 0 && cell.number.load(Ordering::Relaxed) == number).then_some((number, words))
        };
        let mut records: Vec<_> = self.cells.iter().filter_map(read).collect();
        records.sort_by_key(|(number, _)| *number);
        records
    }
}

/// Asks for the part of a cell that every record uses.
fn prefetch(cell: &Cell) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = ptr::from_ref(cell).cast::<i8>();
        // SAFETY: a prefetch reads nothing that a program could see, and 64 bytes on is inside the cell.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(start);
            _mm_prefetch::<_MM_HINT_T0>(start.add(64));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = cell;
}

fn crew() -> &'static Crew {
    loop {
        let current = CREW.load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` below and is never freed.
        if let Some(crew) = unsafe { current.as_ref() }.filter(|crew| crew.process == std::process::id()) {
            return crew;
        }
        let fresh =
            Box::into_raw(Box::new(Crew { process: std::process::id(), recorders: Mutex::default() }));
        if CREW.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            signal::answer();
        } else {
            // Another thread was faster; its crew is found at the next look.
            // SAFETY: ours was not published, so nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// The recorders of this process.
fn recorders() -> Vec<Arc<Recorder>> {
    lock(&crew().recorders).clone()
}

#[cfg(test)]
mod tests;
