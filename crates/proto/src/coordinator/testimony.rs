//! What the members say after a coordinator's death, and what follows from it (rule 17).
//!
//! For every attempt that somebody mentions: a commit that anybody learned stands, for it had everybody's
//! Complete; else an abort that anybody learned stands; else a member that came back without having completed
//! means that nobody was told a commit, and the attempt is void; else all who are left hold the result, and
//! it is committed, if they all made the same call. Members lag: some have learned what others wait for, some are in an epoch that others
//! have left. Honest members never contradict each other; where two do, one of them lies.
//!
//! *Remembering.* A member remembers its last commit and a few more verdicts per (scope, tag). Nobody can wait
//! for the verdict on an attempt that lies before a later commit, because that commit needed its Complete. So
//! what nobody remembers was not committed; but how it ended is not known any more, and a member that has yet to
//! hear it, whether it waits for it or for something before it, cannot be told which of its calls pairs with the
//! others': it must join anew.

use crate::collective::{GroupEpoch, OpKey, Scope, Seq, Tag};
use crate::id::PeerId;
use crate::limits::LEARNED_MAX;
use crate::state::Revision;
use crate::wire::control::{AbortReason, BallotReport, EpochRecord, Resume, TagReport, Term, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// A tag among whom: calls under it are numbered by themselves.
type Place = (Scope, Tag);
/// Which attempt of a place.
type Position = (GroupEpoch, Seq);

fn position(key: &OpKey) -> Position {
    (key.epoch, key.seq)
}

/// What one member told.
#[derive(Clone, Debug, Hash)]
pub(super) struct Testimony {
    pub(super) epoch: GroupEpoch,
    pub(super) ballots: Vec<BallotReport>,
    /// The highest term that it had obeyed, and the highest that it has promised to obey.
    pub(super) term: Term,
    pub(super) promised: Term,
    /// It has heard all that was decided in epochs before this one.
    behind_from: GroupEpoch,
    remembers_from: GroupEpoch,
    tags: BTreeMap<Place, TagReport>,
    /// The last revision that it took part in agreeing on.
    revision: Option<Revision>,
}

impl Testimony {
    pub(super) fn new(resume: Resume) -> Self {
        let place = |report: &TagReport| {
            let learned = report.learned.first().map(|(key, _)| key);
            let key = learned.or(report.open.as_ref().map(|open| &open.key))?;
            Some((key.scope.clone(), key.tag))
        };
        let tags = resume.tags.into_iter().filter_map(|report| Some((place(&report)?, report))).collect();
        let (epoch, ballots) = (resume.record.epoch, resume.ballots);
        let behind_from = resume.behind_from.unwrap_or(epoch);
        let (term, remembers_from, revision) = (resume.term, resume.remembers_from, resume.revision);
        Self { epoch, ballots, term, promised: term, behind_from, remembers_from, tags, revision }
    }

    /// How far the state of its group had come when it took part last: by what it said, and by those of these verdicts
    /// that it has yet to hear and voted for.
    pub(super) fn reached(&self, verdicts: &[(OpKey, Verdict, Vec<PeerId>)]) -> Option<Revision> {
        let committed = |key: &OpKey| {
            let is_commit = |verdict: &Verdict| matches!(verdict, Verdict::Commit { .. });
            verdicts.iter().any(|(known, verdict, _)| known == key && is_commit(verdict))
        };
        let open = self.tags.values().filter_map(|report| report.open.as_ref());
        let whole = open.filter(|open| open.key.scope == Scope::Whole);
        let steps = whole.filter_map(|open| Some((&open.key, open.fingerprint.step?)));
        let steps = steps.filter(|(key, _)| committed(key)).map(|(_, step)| Some(step.saturating_add(1)));
        steps.fold(self.revision, Option::max)
    }

    fn report(&self, key: &OpKey) -> Option<&TagReport> {
        self.tags.get(&(key.scope.clone(), key.tag))
    }

    fn verdict(&self, key: &OpKey) -> Option<&Verdict> {
        self.report(key)?.learned.iter().find(|(known, _)| known == key).map(|(_, verdict)| verdict)
    }

    fn completed(&self, key: &OpKey) -> bool {
        self.report(key)
            .and_then(|report| report.open.as_ref())
            .is_some_and(|open| open.key == *key && open.complete)
    }

    fn has_open(&self, key: &OpKey) -> bool {
        self.report(key).and_then(|report| report.open.as_ref()).is_some_and(|open| open.key == *key)
    }

    /// Whether it learned a verdict on a later attempt, and so once knew the one on this.
    fn past(&self, key: &OpKey) -> bool {
        let learned = self.report(key).map(|report| &report.learned[..]).unwrap_or_default();
        learned.iter().any(|(later, _)| position(later) > position(key))
    }

    /// The first attempt of that place whose end it must still hear, if it was ever begun.
    fn wants_from(&self, place: &Place) -> Position {
        let report = self.tags.get(place);
        if let Some(open) = report.and_then(|report| report.open.as_ref()) {
            return position(&open.key);
        }
        let after = report
            .and_then(|report| report.learned.last())
            .map(|(key, _)| (key.epoch, key.seq.saturating_add(1)));
        after.unwrap_or_default().max((self.behind_from, 0))
    }

    /// Whether it has yet to hear the verdict on this attempt, as far as it knows itself.
    fn lacks(&self, key: &OpKey) -> bool {
        let may_lack = self.behind_from <= key.epoch || self.has_open(key);
        may_lack && self.verdict(key).is_none() && !self.past(key)
    }

    /// Whether it cannot say if it has heard that verdict: it may lack some of that epoch, and has forgotten some.
    fn is_unsure_of(&self, key: &OpKey) -> bool {
        key.epoch < self.remembers_from && self.lacks(key) && !self.has_open(key)
    }

    /// Whether it may have known the verdict on this attempt and forgotten it.
    fn forgot(&self, key: &OpKey) -> bool {
        let full = self.report(key).is_some_and(|report| report.learned.len() >= LEARNED_MAX);
        (self.past(key) && full) || key.epoch < self.remembers_from
    }
}

/// What follows.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Decided {
    /// A verdict, and who has not learned it, in the order in which they must be told.
    pub(super) verdicts: Vec<(OpKey, Verdict, Vec<PeerId>)>,
    /// Whose word cannot be true.
    pub(super) liars: BTreeSet<PeerId>,
    /// Who has yet to hear what nobody remembers.
    pub(super) laggards: BTreeSet<PeerId>,
}

/// Rule 17 on everything that the resumes mention. Liars and laggards are taken out of `resumed`.
pub(super) fn decide(record: &EpochRecord, resumed: &mut BTreeMap<PeerId, Testimony>) -> Decided {
    let mut decided = Decided::default();
    // A liar's word is not heard: without it everything is looked at again.
    while let Some(liars) = contradiction(record, resumed) {
        liars.iter().for_each(|liar| drop(resumed.remove(liar)));
        decided.liars.extend(liars);
    }
    let mut again = true;
    while std::mem::take(&mut again) {
        decided.verdicts.clear();
        let gaps = gaps(resumed);
        let misses = |(peer, told): &(&PeerId, &Testimony)| {
            gaps.iter().any(|(place, end)| place.0.involves(**peer) && told.wants_from(place) < *end)
        };
        let laggards: Vec<_> = resumed.iter().filter(misses).map(|(peer, _)| *peer).collect();
        laggards.iter().for_each(|peer| drop(resumed.remove(peer)));
        decided.laggards.extend(laggards);
        for key in keys(resumed) {
            let known = resumed.values().find_map(|told| told.verdict(&key).cloned());
            // Void attempts of an epoch that is over concern only those who are still in them.
            let concerns_nobody =
                |verdict: &Verdict| *verdict == Verdict::Abort(AbortReason::Void) && key.epoch < record.epoch;
            let in_scope = || resumed.iter().filter(|(peer, _)| key.scope.involves(**peer));
            let is_lost_to = |told: &Testimony| match &known {
                Some(verdict) if concerns_nobody(verdict) => false,
                Some(_) => told.is_unsure_of(&key),
                None => told.has_open(&key) && in_scope().any(|(_, told)| told.forgot(&key)),
            };
            let laggards: Vec<_> =
                in_scope().filter(|(_, told)| is_lost_to(told)).map(|(peer, _)| *peer).collect();
            if !laggards.is_empty() {
                laggards.iter().for_each(|peer| drop(resumed.remove(peer)));
                decided.laggards.extend(laggards);
                again = true;
                break;
            }
            let verdict = match known {
                Some(verdict) => verdict,
                None if in_scope().all(|(_, told)| told.completed(&key)) && one_call(resumed, &key) => {
                    Verdict::Commit { pending: 0 }
                }
                None => Verdict::Abort(AbortReason::Void),
            };
            let void = concerns_nobody(&verdict);
            let unknowing = in_scope()
                .filter(|(_, told)| told.lacks(&key))
                .filter(|(_, told)| !void || told.has_open(&key))
                .map(|(peer, _)| *peer)
                .collect();
            decided.verdicts.push((key, verdict, unknowing));
        }
    }
    decided
}

/// Attempts that somebody learned the verdict on, while everybody has forgotten what came right before it.
fn gaps(resumed: &BTreeMap<PeerId, Testimony>) -> BTreeSet<(Place, Position)> {
    let reports = || resumed.values().flat_map(|told| &told.tags);
    let bridged = |(place, first): &(Place, Position)| {
        let theirs = reports().filter(|(other, _)| *other == place).map(|(_, report)| unbroken(report));
        theirs.flat_map(|row| row.iter().skip(1)).any(|(key, _)| position(key) == *first)
    };
    let full = reports().filter(|(_, report)| report.learned.len() >= LEARNED_MAX);
    let begins = full.filter_map(|(place, report)| {
        let (key, _) = unbroken(report).first()?;
        Some((place.clone(), position(key)))
    });
    begins.filter(|begin| !bridged(begin)).collect()
}

/// What a member remembers one after another: its last commit may stand before that alone.
fn unbroken(report: &TagReport) -> &[(OpKey, Verdict)] {
    match &report.learned[..] {
        [(commit, _), rest @ ..] if rest.len() >= LEARNED_MAX => {
            let follows = |next: &OpKey| position(next) == (commit.epoch, commit.seq.saturating_add(1));
            if rest.first().is_some_and(|(next, _)| follows(next)) { &report.learned } else { rest }
        }
        all => all,
    }
}

/// Whether all who are in that attempt made the same call (rule 4). Where they did not, the attempt is void, and their
/// next ones will show who deviates.
fn one_call(resumed: &BTreeMap<PeerId, Testimony>, key: &OpKey) -> bool {
    let reports = resumed.values().filter_map(|told| told.report(key)?.open.as_ref());
    let mut calls = reports.filter(|open| open.key == *key).map(|open| &open.fingerprint);
    let first = calls.next();
    calls.all(|call| Some(call) == first)
}

fn keys(resumed: &BTreeMap<PeerId, Testimony>) -> BTreeSet<OpKey> {
    let reports = || resumed.values().flat_map(|told| told.tags.values());
    let learned = reports().flat_map(|report| report.learned.iter().map(|(key, _)| key.clone()));
    let open = reports().filter_map(|report| report.open.as_ref().map(|open| open.key.clone()));
    learned.chain(open).collect()
}

/// The first contradiction: a commit that some learned, beside members that cannot have completed it, or that
/// learned an abort. The side with fewer voices lies; if equal, those who contradict the commit.
fn contradiction(record: &EpochRecord, resumed: &BTreeMap<PeerId, Testimony>) -> Option<BTreeSet<PeerId>> {
    keys(resumed).into_iter().find_map(|key| {
        let in_scope = || resumed.iter().filter(|(peer, _)| key.scope.involves(**peer));
        let committed = |told: &Testimony| matches!(told.verdict(&key), Some(Verdict::Commit { .. }));
        let believers: BTreeSet<_> =
            in_scope().filter(|(_, told)| committed(told)).map(|(peer, _)| *peer).collect();
        let denies = |told: &Testimony| {
            let aborted = matches!(told.verdict(&key), Some(Verdict::Abort(_)));
            // Members of this epoch from its beginning on: a newcomer of a later one knows nothing of it.
            let was_there = key.epoch == record.epoch || told.behind_from <= key.epoch;
            aborted || (was_there && !committed(told) && !told.completed(&key) && !told.past(&key))
        };
        let opposed: BTreeSet<_> =
            in_scope().filter(|(_, told)| denies(told)).map(|(peer, _)| *peer).collect();
        match (believers.is_empty(), opposed.is_empty()) {
            (true, _) | (_, true) => None,
            _ if opposed.len() > believers.len() => Some(believers),
            _ => Some(opposed),
        }
    })
}
