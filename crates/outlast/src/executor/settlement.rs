//! How an attempt ends: the caller's memory is as it was, or holds the result.
//!
//! When the bytes have moved nobody knows yet whether the attempt counts. A transport says what is left to do when that
//! is known:
//!
//! ```text
//!             while bytes move                              commit            abort
//! Undo        results go to the outputs, what was there     forget            put it back
//!             is saved first (see `undo`)
//! CopyOut     results wait in memory of the transport's,    copy them to      nothing: no output
//!             the outputs are not touched (rule 13)         the outputs       was touched
//! ```
//!
//! The invariant: whatever is dropped, at any moment and by a panic too, an attempt without a commit leaves the outputs
//! as they were.

use super::memory::Region;
use super::undo::UndoLog;

/// What is left to do when the verdict is known. Dropping it is an abort.
#[derive(Debug)]
pub(super) enum Settlement {
    /// The result is in place; an abort restores what was there.
    Undo(UndoLog),
    /// The result waits elsewhere; a commit fetches it.
    CopyOut(CopyOut),
}

impl Settlement {
    /// The caller keeps the result.
    pub(super) fn commit(self) {
        match self {
            Self::Undo(mut log) => log.forget(),
            Self::CopyOut(mut waiting) => waiting.copy(),
        }
    }

    /// The caller gets back what it had.
    pub(super) fn abort(self) {
        // Dropping a log undoes it; what waits elsewhere was never here.
        drop(self);
    }
}

/// Results in memory that outlives whoever made them (rule 13). They are the outputs' bytes, one behind the other in
/// the order of the plan. Dropping them says that this member needs them no more, and the last to say so frees the
/// place (rule 12).
pub(super) trait Results: Send + std::fmt::Debug {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

/// Outputs, and the results that belong there.
#[derive(Debug)]
pub(super) struct CopyOut {
    outputs: Region,
    results: Box<dyn Results>,
}

impl CopyOut {
    /// # Panics
    /// If there are not as many results as there are outputs: a transport's bug, found before anything is written.
    pub(super) fn new(outputs: Region, results: Box<dyn Results>) -> Self {
        assert_eq!(outputs.output_bytes(), results.bytes().len(), "a result for every output");
        Self { outputs, results }
    }

    fn copy(&mut self) {
        let all = 0..self.outputs.output_bytes();
        self.outputs.store(&all, self.results.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Buffers;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug)]
    struct Waiting(Vec<u8>, Arc<AtomicUsize>);

    impl Results for Waiting {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn results_are_copied_out_on_commit_and_given_up_on_abort() {
        let freed = Arc::new(AtomicUsize::new(0));
        for commit in [false, true] {
            let mut tensors = [vec![1_u8; 3], vec![], vec![2; 5]];
            let outputs = Buffers::in_place(tensors.iter_mut().map(Vec::as_mut_slice)).into_region();
            let results = Waiting((10..18).collect(), Arc::clone(&freed));
            let settlement = Settlement::CopyOut(CopyOut::new(outputs, Box::new(results)));
            if commit {
                settlement.commit();
                assert_eq!(tensors, [vec![10, 11, 12], vec![], vec![13, 14, 15, 16, 17]]);
            } else {
                settlement.abort();
                assert_eq!(tensors, [vec![1; 3], vec![], vec![2; 5]]);
            }
        }
        assert_eq!(freed.load(Ordering::SeqCst), 2, "the place is free either way");
    }
}
