//! Checkpoints on the way: a copy is taken between two steps and written while the training goes on.
//!
//! One member writes, the first of the contributors, so that a shared disk gets each checkpoint once. One is written at a
//! time, and at most one copy waits: if the disk is slower than the training, the newest state is written next and those
//! before it are left out, rather than memory filled with copies. A checkpoint that could not be written does not stop a
//! training; it is told to whoever asks, and in the log.

use crate::planted::{self, Place};
use crate::runtime;
use crate::state::{Revision, SharedState};
use crate::sync::{Arc, Mutex, lock};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Writes checkpoints to one folder.
#[derive(Debug)]
pub(super) struct Scribe {
    folder: PathBuf,
    every: NonZeroU64,
    tray: Arc<Mutex<Tray>>,
    writer: Option<JoinHandle<()>>,
    failure: Option<String>,
}

/// What the writer finds and leaves.
#[derive(Debug, Default)]
struct Tray {
    waiting: Option<(Revision, SharedState)>,
    /// Whether a writer will look at this again.
    busy: bool,
    saved: Option<Revision>,
    failure: Option<String>,
}

impl Scribe {
    pub(super) fn new(folder: PathBuf, every: NonZeroU64) -> Self {
        Self { folder, every, tray: Arc::default(), writer: None, failure: None }
    }

    /// Whether that revision is to be saved.
    pub(super) fn is_due(&self, revision: Revision) -> bool {
        revision.is_multiple_of(self.every.get())
    }

    /// Copies the state, and has it written.
    pub(super) fn save(&mut self, revision: Revision, state: &SharedState) {
        let copy = state.copy();
        let mut tray = lock(&self.tray);
        if let Some((before, _)) = tray.waiting.replace((revision, copy)) {
            tracing::info!(
                before,
                revision,
                "a checkpoint was left out: the disk is slower than the training"
            );
        }
        if std::mem::replace(&mut tray.busy, true) {
            return;
        }
        drop(tray);
        self.wait();
        let (tray, folder) = (Arc::clone(&self.tray), self.folder.clone());
        let write = move || {
            // Whoever saves next leaves the writing to this thread, so it says when it is done even after a panic (rule 40).
            while runtime::guarded("writing a checkpoint", || write_next(&tray, &folder)).unwrap_or_else(
                || {
                    lock(&tray).fail(&folder, "writing it panicked, which is a bug in outlast".to_owned());
                    true
                },
            ) {}
        };
        match std::thread::Builder::new().name("outlast-scribe".to_owned()).spawn(write) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => {
                let mut tray = lock(&self.tray);
                (tray.busy, tray.waiting) = (false, None);
                tray.fail(&self.folder, format!("{revision}: no thread to write it: {error}"));
            }
        }
    }

    /// Waits for what is being written, and for what waits.
    pub(super) fn wait(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        let _ = writer.join();
    }

    /// The newest that is on the disk, and why the last one is not.
    pub(super) fn saved(&mut self) -> (Option<Revision>, Option<&str>) {
        let tray = lock(&self.tray);
        self.failure.clone_from(&tray.failure);
        (tray.saved, self.failure.as_deref())
    }
}

impl Tray {
    fn fail(&mut self, folder: &Path, text: String) {
        tracing::warn!(checkpoint = %folder.display(), why = text, "a checkpoint was not written");
        self.failure = Some(text);
    }
}

/// Writes what waits. False if there is nothing.
fn write_next(tray: &Mutex<Tray>, folder: &Path) -> bool {
    let (revision, state) = {
        let mut tray = lock(tray);
        let Some(next) = tray.waiting.take() else {
            tray.busy = false;
            return false;
        };
        next
    };
    planted::step(|place| matches!(place, Place::Checkpoint(planted) if planted == folder));
    let outcome = state.save(&folder.join(revision.to_string()));
    let mut tray = lock(tray);
    match outcome {
        Ok(()) => (tray.saved, tray.failure) = (tray.saved.max(Some(revision)), None),
        Err(error) => tray.fail(folder, format!("{revision}: {error}")),
    }
    true
}

impl Drop for Scribe {
    fn drop(&mut self) {
        self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(revision: Revision) -> SharedState {
        let mut state = SharedState::new();
        state.insert("w", vec![revision as f32; 4], &[4]).unwrap();
        state.set_revision(Some(revision));
        state
    }

    #[test]
    fn what_is_due_is_written_from_a_copy_and_a_failure_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut scribe = Scribe::new(folder.path().to_owned(), NonZeroU64::new(10).unwrap());
        assert_eq!([9, 10, 20].map(|revision| scribe.is_due(revision)), [false, true, true]);
        let mut first = state(10);
        scribe.save(10, &first);
        first.get_mut::<f32>("w").unwrap().fill(99.0);
        scribe.wait();
        assert_eq!(scribe.saved(), (Some(10), None));
        let mut read = state(0);
        read.load(folder.path()).unwrap();
        assert_eq!((read.get::<f32>("w"), read.revision()), (Some(&[10.0_f32; 4][..]), Some(10)));
        scribe.save(10, &state(10));
        scribe.wait();
        let (saved, failure) = scribe.saved();
        assert!(saved == Some(10) && failure.unwrap().contains("is there already"), "{failure:?}");
        // A slow disk leaves some out, and never the newest.
        (1..=20).for_each(|tens| scribe.save(100 * tens, &state(100 * tens)));
        scribe.wait();
        assert_eq!(scribe.saved(), (Some(2_000), None));
        assert_eq!(read.load(folder.path()).unwrap(), folder.path().join("2000"));
    }

    /// Once the thread that writes panicked, nothing was written any more, and nobody was told.
    #[test]
    fn a_panic_over_one_checkpoint_is_told_and_the_next_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut scribe = Scribe::new(folder.path().to_owned(), NonZeroU64::new(10).unwrap());
        planted::plant(Place::Checkpoint(folder.path().to_owned()));
        scribe.save(10, &state(10));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while scribe.saved().1.is_none() {
            assert!(
                std::time::Instant::now() < deadline,
                "a failure is told without anybody who waits for it"
            );
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(scribe.saved().1.unwrap().contains("panicked"));
        scribe.save(20, &state(20));
        scribe.wait();
        assert_eq!(scribe.saved(), (Some(20), None));
    }
}
