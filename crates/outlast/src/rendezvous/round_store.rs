//! A store that the participants of a round keep, for whatever they have to tell each other before they begin.
//!
//! It is that of a run of its own, `<run>.<round>`, so that no key of another round is in it: stale keys are why restarts
//! hang elsewhere. The coordinator that serves the rendezvous, or counts the members of the store that it is agreed in,
//! counts the members of this one as well; an etcd cannot, so there is none there.
//!
//! The invariant: a participant that lets go of it leaves it, and never ends it for the others.

use super::{Rendezvous, RendezvousError, Round};
use crate::store::Store;
use outlast_proto::id::RunId;
use std::ops::Deref;

/// A member of a round's store. Dropping it leaves the store, which may take some seconds: what this member holds is handed
/// over first. (A [`Store`] that is dropped ends for all.)
#[derive(Debug)]
pub struct RoundStore(Store);

impl Deref for RoundStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.0
    }
}

impl Drop for RoundStore {
    fn drop(&mut self) {
        if let Err(error) = self.0.leave() {
            tracing::debug!(%error, "the store of a round is not left");
        }
    }
}

impl Rendezvous {
    /// Joins the store of that round, which all its participants may do: returns once this node is in it. Let go of it before
    /// the next round.
    pub fn join_store(&self, round: &Round) -> Result<RoundStore, RendezvousError> {
        self.creator.check()?;
        let builder = self.store.clone().ok_or(RendezvousError::NoStore)?;
        Ok(RoundStore(builder.run_id(self.run_of_round(round.round)).join()?))
    }

    /// The run whose store the participants of that round keep.
    pub fn run_of_round(&self, round: u64) -> RunId {
        run_of_round(&self.run, round)
    }
}

fn run_of_round(run: &RunId, round: u64) -> RunId {
    format!("{run}.{round}").parse().unwrap_or_else(|_| {
        let digest = outlast_proto::store::layout::digest(run.as_str().as_bytes());
        format!("round-{digest:016x}.{round}").parse().expect("letters, digits and a dot")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_of_every_run_has_a_run_of_its_own_however_long_its_name_is() {
        let run = |text: &str| text.parse::<RunId>().expect("a run id");
        assert_eq!(run_of_round(&run("job"), 7).as_str(), "job.7");
        let (one, other) = (run(&"a".repeat(64)), run(&format!("{}b", "a".repeat(63))));
        assert_ne!(run_of_round(&one, 0), run_of_round(&one, 1));
        assert_ne!(run_of_round(&one, 0), run_of_round(&other, 0));
        assert_ne!(run_of_round(&one, u64::MAX), run_of_round(&other, u64::MAX));
    }
    #[cfg(feature = "etcd")]
    #[test]
    fn an_etcd_counts_no_members_so_a_round_there_has_no_store() {
        let node = Rendezvous::builder("etcd://127.0.0.1:1", 1, 1).start().expect("a node");
        let round = Round { round: 0, rank: 0, participants: Vec::new() };
        let error = node.join_store(&round).unwrap_err();
        assert!(matches!(error, RendezvousError::NoStore), "{error}");
    }
}
