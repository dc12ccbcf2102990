//! Panics on purpose, for tests of what they cost (rule 40).
//!
//! What a mistake of ours may cost can only be tested by making one. A test *plants* a panic in a place, and whoever does
//! its work there next steps on it. Places name whom they belong to, so that tests in one process do not meet. Nothing
//! but a test plants any: elsewhere each look costs one load of a flag that is never set.

use crate::sync::{Mutex, lock};
use outlast_proto::id::{PeerId, RunId};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a panic can be planted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In what decides for that run at its coordinator.
    Machine(RunId),
    /// In what describes that run to whoever asks how it stands.
    Status(RunId),
    /// In what decides on the views of that run's store.
    Registrar(RunId),
    /// In the clerk of the coordinator that listens there, or of any, outside of all runs.
    Clerk(Option<SocketAddr>),
    /// In a peer that dials the coordinator there.
    Dial(String),
    /// In the thread that writes checkpoints to that folder.
    Checkpoint(PathBuf),
    /// In the thread of that member's health.
    Health(PeerId),
    /// In what lets the leases of that run's registers run out.
    Warden(RunId),
}

static IS_ANY: AtomicBool = AtomicBool::new(false);
static PLANTED: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// Plants one panic.
pub fn plant(place: Place) {
    lock(&PLANTED).push(place);
    IS_ANY.store(true, Ordering::Release);
}

/// Whether one is still there that nobody has stepped on.
pub fn is_planted(place: &Place) -> bool {
    lock(&PLANTED).contains(place)
}

/// Panics if one is planted here.
pub(crate) fn step(is_here: impl Fn(&Place) -> bool) {
    if !IS_ANY.load(Ordering::Acquire) {
        return;
    }
    let mut planted = lock(&PLANTED);
    let found = planted.iter().position(is_here).map(|index| planted.swap_remove(index));
    drop(planted);
    if let Some(place) = found {
        panic!("on purpose: {place:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_planted_panic_is_stepped_on_once_and_by_nobody_else() {
        let place = |name: &str| Place::Machine(name.parse().unwrap());
        let step_at = |name: &str| {
            let here = place(name);
            catch_unwind(|| step(|place| *place == here)).is_err()
        };
        plant(place("planted-here"));
        assert!(!step_at("planted-elsewhere") && is_planted(&place("planted-here")));
        assert!(step_at("planted-here") && !is_planted(&place("planted-here")));
        assert!(!step_at("planted-here"));
    }
}
