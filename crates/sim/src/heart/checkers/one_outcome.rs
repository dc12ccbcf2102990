//! Of one ballot nobody hears two different outcomes, and nobody hears one without its own vote in it; also across a
//! restart of the coordinator. The ballots are about nothing and say nothing of lost voters, resumes and restarts.

use super::{Checker, Fact, World};
use outlast_proto::id::PeerId;
use outlast_proto::time::Instant;
use outlast_proto::wire::control::BallotId;
use std::collections::BTreeMap;

/// See above.
#[derive(Default)]
pub struct OneOutcome {
    /// By history and ballot: what was heard first, and by whom.
    heard: BTreeMap<(PeerId, BallotId), (Vec<u8>, PeerId)>,
}

impl Checker for OneOutcome {
    fn name(&self) -> &'static str {
        "one_outcome"
    }

    fn hear(&mut self, _world: &World, _at: Instant, fact: &Fact) -> Result<(), String> {
        let Fact::BallotAgreed { peer, founder, ballot, outcome, vote, .. } = fact else { return Ok(()) };
        if let Some(vote) = vote
            && !outcome.chunks(vote.wish.len()).any(|wish| wish == vote.wish)
        {
            return Err(format!("{}: {ballot} was agreed on without its vote", peer.short()));
        }
        let first = self.heard.entry((*founder, *ballot)).or_insert_with(|| (outcome.clone(), *peer));
        if first.0 == *outcome {
            Ok(())
        } else {
            Err(format!("{} and {} hear different outcomes of {ballot}", first.1.short(), peer.short()))
        }
    }
}
