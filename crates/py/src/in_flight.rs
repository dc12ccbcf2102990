//! Operations in flight, and the memory that they hold.
//!
//! A collective that runs in the background writes into memory that Python owns. The loan must last until the
//! runtime has let go of it, even when the program drops the handle, the communicator, or both. So loans
//! are kept here, beside the operation's outcome, and are given back by the next call that comes from Python
//! after the end: a worker's thread never touches the interpreter.

use crate::buffer::Tensor;
use outlast::communicator::{Error, Receipt};
use outlast::membership::PeerId;
use outlast::sync::{lock, owned};
use outlast::workers;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// How an operation ended; a transfer has no receipt.
pub(crate) type Ending = Result<Option<Receipt>, Arc<Error>>;

/// One operation's outcome, once it has one.
pub(crate) type Outcome = workers::Outcome<Ending>;

/// What tells two operations of one communicator apart.
pub(crate) type Place = (Option<Vec<PeerId>>, u64);

/// One operation in flight.
pub(crate) struct Flight {
    /// None for a transfer: the runtime tells those apart by their ends.
    pub(crate) place: Option<Place>,
    pub(crate) outcome: Arc<Outcome>,
    /// Loans that are held, never looked at.
    pub(crate) tensors: Vec<Tensor>,
}

impl Flight {
    fn touches(&self, range: &Range<usize>) -> bool {
        let overlap = |ours: Range<usize>| ours.start < range.end && range.start < ours.end;
        self.tensors.iter().any(|tensor| overlap(tensor.range()))
    }
}

/// The operations in flight of one communicator.
#[derive(Default)]
pub(crate) struct InFlight(Mutex<Vec<Flight>>);

/// Why an operation may not begin.
pub(crate) enum Busy {
    /// Its tag is in flight.
    Tag(u64),
    /// Some of its memory is in use, under that tag or by a transfer.
    Memory(Option<u64>),
}

impl InFlight {
    fn flights(&self) -> MutexGuard<'_, Vec<Flight>> {
        lock(&self.0)
    }

    /// Gives back the loans of operations that are over. To be called, and the result dropped, with the
    /// interpreter at hand.
    pub(crate) fn reap(&self) -> Vec<Flight> {
        let mut flights = self.flights();
        if flights.is_empty() {
            return Vec::new();
        }
        flights.extract_if(.., |flight| flight.outcome.is_done()).collect()
    }

    /// Whether an operation with that place and memory may begin.
    pub(crate) fn check(&self, place: Option<&Place>, tensors: &[Tensor]) -> Result<(), Busy> {
        for flight in self.flights().iter().filter(|flight| !flight.outcome.is_done()) {
            if let Some(place) = place.filter(|place| flight.place.as_ref() == Some(place)) {
                return Err(Busy::Tag(place.1));
            }
            if tensors.iter().any(|tensor| flight.touches(&tensor.range())) {
                return Err(Busy::Memory(flight.place.as_ref().map(|place| place.1)));
            }
        }
        Ok(())
    }

    pub(crate) fn add(&self, flight: Flight) {
        self.flights().push(flight);
    }

    /// The tags that are in flight.
    pub(crate) fn tags(&self) -> Vec<u64> {
        self.flights()
            .iter()
            .filter(|flight| !flight.outcome.is_done())
            .filter_map(|flight| flight.place.as_ref().map(|place| place.1))
            .collect()
    }

    /// Everything, over or not.
    pub(crate) fn take_all(&self) -> Vec<Flight> {
        std::mem::take(&mut *self.flights())
    }

    /// The same for an owner that is going, without a lock that a forked child could find held.
    pub(crate) fn take_all_unshared(&mut self) -> Vec<Flight> {
        std::mem::take(owned(&mut self.0))
    }

    /// Whether all were over before `deadline`.
    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        let outcomes: Vec<_> = self.flights().iter().map(|flight| Arc::clone(&flight.outcome)).collect();
        let left = || deadline.saturating_duration_since(Instant::now());
        outcomes.iter().all(|outcome| outcome.wait(left()).is_some())
    }
}
