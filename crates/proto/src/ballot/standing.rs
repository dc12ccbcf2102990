//! The ballots of one group: whose votes stand, and how far each kind has come.

use super::KINDS;
use crate::id::PeerId;
use crate::wire::control::{BallotEnd, BallotId, BallotKind, BallotReport, EpochRecord, Tally};
use std::collections::BTreeMap;

/// Ballots of one kind.
#[derive(Clone, Debug, Default, Hash)]
struct Ballot {
    /// What each voter asks for in the ballot that is open.
    votes: BTreeMap<PeerId, Vec<u8>>,
    tally: Tally,
    /// What the last agreement was, for whoever has not heard it. None if nobody who is left knows it.
    outcome: Option<Vec<u8>>,
}

impl Ballot {
    /// A ballot that was agreed on had everybody's vote, so everybody knew how the one before it ended: who claims that
    /// a later one was agreed on is not believed. If those who are believed tell different outcomes, most of them count.
    fn rebuilt(kind: BallotKind, record: Tally, told: &[&[BallotReport]]) -> Self {
        let reports = || told.iter().filter_map(|reports| reports.iter().find(|report| report.kind == kind));
        let ended = |reports: &&[BallotReport]| known(reports).get(&kind).copied().unwrap_or(0);
        let next = told.iter().map(ended).min().unwrap_or(0) + 1;
        let credible = |report: &&BallotReport| report.tally.agreed <= next.max(record.agreed);
        let agreed =
            reports().filter(credible).map(|report| report.tally.agreed).fold(record.agreed, u64::max);
        let ended = reports().map(|report| report.tally.ended).fold(record.ended, u64::max);
        let mut outcomes: BTreeMap<&Vec<u8>, usize> = BTreeMap::new();
        let heard = reports().filter(|report| report.tally.agreed == agreed);
        heard.filter_map(|report| report.outcome.as_ref()).for_each(|outcome| {
            *outcomes.entry(outcome).or_default() += 1;
        });
        let outcome =
            outcomes.into_iter().max_by_key(|(_, voices)| *voices).map(|(outcome, _)| outcome.clone());
        Self { votes: BTreeMap::new(), tally: Tally { ended: ended.max(agreed), agreed }, outcome }
    }
}

/// How a ballot ended that somebody did not hear of.
pub(crate) type Missed = (BallotId, BallotEnd);

/// The last ballot of each kind that somebody knows the end of.
pub(crate) type Known = BTreeMap<BallotKind, u64>;

/// The same, as a member tells it.
pub(crate) fn known(reports: &[BallotReport]) -> Known {
    reports.iter().map(|report| (report.kind, report.tally.ended)).collect()
}

/// The ballots of one group. Whoever votes in one is in no other.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Ballots {
    kinds: BTreeMap<BallotKind, Ballot>,
}

impl Ballots {
    /// How far the ballots have come by the newest record and by what all who are left have told (rule 17). Votes are
    /// not taken over here.
    pub(crate) fn rebuilt(record: &EpochRecord, told: &[&[BallotReport]]) -> Self {
        let kinds = KINDS.iter().map(|rules| rules.kind());
        Self { kinds: kinds.map(|kind| (kind, Ballot::rebuilt(kind, record.tally(kind), told))).collect() }
    }

    /// Takes down a vote; it takes the place of any other of that peer.
    pub(crate) fn vote(&mut self, kind: BallotKind, peer: PeerId, wish: Vec<u8>) {
        self.take_back(peer);
        self.kinds.entry(kind).or_default().votes.insert(peer, wish);
    }

    /// A peer's vote no longer stands. True if one did.
    pub(crate) fn take_back(&mut self, peer: PeerId) -> bool {
        self.kinds.values_mut().filter_map(|ballot| ballot.votes.remove(&peer)).count() > 0
    }

    /// Forgets the votes of those for whom this is true.
    pub(crate) fn forget(&mut self, gone: impl Fn(&PeerId) -> bool) {
        self.kinds.values_mut().for_each(|ballot| ballot.votes.retain(|peer, _| !gone(peer)));
    }

    /// The votes that stand in a kind, if any do.
    pub(crate) fn votes(&self, kind: BallotKind) -> Option<&BTreeMap<PeerId, Vec<u8>>> {
        self.kinds.get(&kind).map(|ballot| &ballot.votes).filter(|votes| !votes.is_empty())
    }

    /// What the last ballot of a kind agreed on, if anybody who is left knows it.
    pub(crate) fn agreed(&self, kind: BallotKind) -> Option<&[u8]> {
        self.kinds.get(&kind)?.outcome.as_deref()
    }

    /// What the last ballot of a kind agreed on, unless one after it ended without agreement.
    pub(crate) fn last_end(&self, kind: BallotKind) -> Option<&[u8]> {
        let ballot = self.kinds.get(&kind).filter(|ballot| ballot.tally.agreed == ballot.tally.ended)?;
        ballot.outcome.as_deref()
    }

    /// The kinds in which votes stand, with these votes.
    pub(crate) fn open(&self) -> impl Iterator<Item = (BallotKind, &BTreeMap<PeerId, Vec<u8>>)> {
        let open = self.kinds.iter().filter(|(_, ballot)| !ballot.votes.is_empty());
        open.map(|(kind, ballot)| (*kind, &ballot.votes))
    }

    /// In which kind a peer's vote stands, and what it asks for.
    pub(crate) fn vote_of(&self, peer: PeerId) -> Option<(BallotKind, &[u8])> {
        self.kinds.iter().find_map(|(kind, ballot)| Some((*kind, ballot.votes.get(&peer)?.as_slice())))
    }

    /// The ballot of that kind that is open, or is opened by the next vote.
    pub(crate) fn current(&self, kind: BallotKind) -> BallotId {
        let ended = self.kinds.get(&kind).map_or(0, |ballot| ballot.tally.ended);
        BallotId { kind, number: ended + 1 }
    }

    /// Ends the open ballot of a kind, with what was agreed on or without agreement. The voters of it are told.
    pub(crate) fn end(&mut self, kind: BallotKind, outcome: Option<Vec<u8>>) -> BallotId {
        let id = self.current(kind);
        let ballot = self.kinds.entry(kind).or_default();
        ballot.votes.clear();
        ballot.tally.ended = id.number;
        if outcome.is_some() {
            ballot.tally.agreed = id.number;
            ballot.outcome = outcome;
        }
        id
    }

    /// How far each kind has come, for the record of an epoch.
    pub(crate) fn tallies(&self) -> Vec<(BallotKind, Tally)> {
        let begun = self.kinds.iter().filter(|(_, ballot)| ballot.tally.ended > 0);
        begun.map(|(kind, ballot)| (*kind, ballot.tally)).collect()
    }

    /// How the ballots ended that somebody has not heard the end of who knows these, in their order. Who waits in one
    /// that was agreed on has voted in it, so it is the last one that was.
    pub(crate) fn missed(&self, known: &Known) -> Vec<Missed> {
        let mut missed = Vec::new();
        for (&kind, Ballot { tally, outcome, .. }) in &self.kinds {
            let known = known.get(&kind).copied().unwrap_or(0);
            if tally.agreed > known {
                let end = outcome.clone().map_or(BallotEnd::Void, BallotEnd::Agreed);
                missed.push((BallotId { kind, number: tally.agreed }, end));
            }
            if tally.ended > known.max(tally.agreed) {
                missed.push((BallotId { kind, number: tally.ended }, BallotEnd::TimedOut(Vec::new())));
            }
        }
        missed
    }

    /// Whether the ballot is over in which the vote of such a report stands.
    pub(crate) fn is_over(&self, report: &BallotReport) -> bool {
        self.current(report.kind).number > report.tally.ended + 1
    }

    pub(crate) fn footprint(&self) -> usize {
        self.kinds.values().map(|ballot| 1 + ballot.votes.len()).sum()
    }
}
