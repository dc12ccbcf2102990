//! Coming back: a peer to its session, and a coordinator to its memory.
//!
//! A peer that lost its connection resumes: it learns what it missed, in order, and its votes stand. A
//! coordinator that was restarted knows nothing; the first resume tells it that there was a run, and it
//! decides nothing until every member of the roster has resumed or is evicted. Then, for every attempt that
//! somebody mentions: a verdict that anybody learned stands; otherwise a resumed member without Complete
//! means abort; otherwise commit, because every survivor holds the result (rule 17).

use super::ops::TagState;
use super::peers::{Peer, Phase, Sign, TopologyVote};
use super::run::{ConnectionId, Note, Run, Timer};
use crate::collective::{Group, OpKey};
use crate::id::PeerId;
use crate::limits::UNCLAIMED_MAX;
use crate::time::Instant;
use crate::wire::control::{
    AbortReason, EpochRecord, KickReason, LossReason, OpenVote, Registration, Resume, SessionId, TagReport,
    ToCoordinator, ToPeer, Verdict,
};
use std::collections::{BTreeMap, BTreeSet};

/// What the resumes have told so far.
#[derive(Debug)]
pub(super) struct Rebuild {
    /// The newest agreed membership that anybody knows.
    record: EpochRecord,
    /// Who has resumed, with which epoch, and what it knows.
    resumed: BTreeMap<PeerId, (u64, Vec<TagReport>)>,
    pub(super) left: Vec<(PeerId, LossReason)>,
}

impl Rebuild {
    pub(super) fn without(&mut self, gone: &BTreeSet<PeerId>) {
        self.resumed.retain(|peer, _| !gone.contains(peer));
    }
}

impl Run {
    /// A peer is back.
    pub(super) fn resume(&mut self, now: Instant, at: ConnectionId, from: PeerId, resume: Resume) {
        if resume.registration.info.id != from {
            let text = format!("resumed as {} over a connection of {from}", resume.registration.info.id);
            return self.turn_away(at, KickReason::Breach, &text);
        }
        let group = resume.registration.group;
        if resume.record.group != group || resume.record.rank_of(from).is_none() {
            return self.turn_away(at, KickReason::Breach, "resumed with a record of which it is no member");
        }
        self.prepare_rebuild(now, group, &resume.record);
        let rebuilding = self.groups.get(&group).is_some_and(|state| state.rebuild.is_some());
        let Some(peer) = self.peers.get_mut(&from).filter(|peer| peer.phase == Phase::Accepted) else {
            return self.turn_away(at, KickReason::Evicted, "evicted while it was away: connect again");
        };
        // In a rebuilt coordinator nobody's session is known yet; the first who resumes brings it (rule 18).
        let unknown = peer.session == UNKNOWN_SESSION;
        if !unknown && (peer.session != resume.registration.session || resume.generation <= peer.generation) {
            let text = format!("{from} is here already with a newer connection or another session");
            return self.turn_away(at, KickReason::Duplicate, &text);
        }
        peer.session = resume.registration.session;
        peer.generation = resume.generation;
        peer.info = resume.registration.info.clone();
        peer.heard = now;
        peer.vote = resume.topology_vote.map(|min_world| TopologyVote { min_world, since: now });
        self.attach(from, at);
        self.note(Note::Resumed(from));
        self.raise_term(resume.term, rebuilding);
        self.tell(from, ToPeer::Resumed { term: self.term });
        if unknown {
            self.try_kernel(from);
        }
        if rebuilding {
            if let Some(rebuild) = self.groups.get_mut(&group).and_then(|state| state.rebuild.as_mut()) {
                rebuild.resumed.insert(from, (resume.record.epoch, resume.tags));
            }
            self.try_finish_rebuild(now, group);
        } else {
            self.catch_up(now, from, group, &resume);
        }
    }

    /// The term grows with every rebuild, beyond any that a peer has obeyed, and never shrinks.
    fn raise_term(&mut self, seen: u64, rebuilding: bool) {
        let wanted = if rebuilding { seen + 1 } else { seen };
        if wanted <= self.term {
            return;
        }
        self.term = wanted;
        let others: Vec<_> = self.accepted().map(|(id, _)| *id).collect();
        for peer in others {
            self.tell(peer, ToPeer::Resumed { term: self.term });
        }
    }

    /// A member of a run that this coordinator remembers learns what it missed.
    fn catch_up(&mut self, now: Instant, from: PeerId, group: Group, resume: &Resume) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        for report in &resume.tags {
            if let Some((key, _)) = report.learned.last()
                && let Some(tag) = state.tags.get_mut(&(key.scope.clone(), key.tag))
            {
                tag.learned(from, key.epoch, key.seq);
            }
        }
        let unlearned: Vec<_> = state.tags.values().flat_map(|tag| tag.unlearned(from)).collect();
        let behind = resume.record.epoch < state.epoch;
        for (key, verdict) in unlearned {
            self.tell(from, ToPeer::Verdict { key, verdict });
        }
        if behind {
            let record = self.record(group, Vec::new(), Vec::new());
            self.tell(from, ToPeer::Epoch(record));
        }
        for open in resume.tags.iter().filter_map(|report| report.open.clone()) {
            self.vote_again(now, from, open);
        }
        self.settle(now, group);
        self.try_topology(now);
    }

    fn vote_again(&mut self, now: Instant, from: PeerId, open: OpenVote) {
        let OpenVote { key, fingerprint, timeout_ms, complete } = open;
        self.initiate(now, from, key.clone(), fingerprint, timeout_ms);
        if complete {
            self.complete(now, from, &key);
        }
    }

    /// If this coordinator does not know the run that a resume speaks of, it begins to rebuild it.
    fn prepare_rebuild(&mut self, now: Instant, group: Group, record: &EpochRecord) {
        match self.groups.get(&group) {
            Some(state) if state.rebuild.is_none() && state.epoch >= record.epoch => return,
            Some(state)
                if state.rebuild.as_ref().is_some_and(|rebuild| rebuild.record.epoch >= record.epoch) =>
            {
                return;
            }
            // A newer record than the one the rebuild began with: its roster counts. Whoever is only in the
            // old one was evicted before we came.
            Some(state) if state.rebuild.is_some() => {
                let roster: BTreeSet<_> = record.roster.iter().map(|info| info.id).collect();
                let gone: Vec<_> = state.roster.iter().copied().filter(|id| !roster.contains(id)).collect();
                for peer in gone {
                    self.peers.remove(&peer);
                }
            }
            // Somebody began afresh before the old run came back: the old run wins.
            Some(state) => {
                let usurpers = state.roster.clone();
                for peer in usurpers {
                    let text = "an older run under this id came back: connect again to join it".to_owned();
                    self.tell(peer, ToPeer::Kicked { reason: KickReason::Superseded, text });
                    if let Some(at) = self.peers.remove(&peer).and_then(|peer| peer.connection) {
                        self.connections.remove(&at);
                        self.act(super::run::Action::Close(at));
                    }
                }
                self.groups.remove(&group);
            }
            None => {}
        }
        for info in &record.roster {
            if !self.peers.contains_key(&info.id) {
                let registration =
                    Registration { info: info.clone(), group, session: UNKNOWN_SESSION, min_world: 1 };
                let mut peer = Peer::new(now, &registration, self.next_age);
                self.next_age += 1;
                peer.phase = Phase::Accepted;
                peer.lost_since = Some(now);
                // Nobody has called it alive yet, and it may have died before we came (rule 20c).
                peer.sign = Sign::Suspect;
                self.peers.insert(info.id, peer);
                self.schedule(now + self.config.control_grace, Timer::Lost(info.id));
                self.schedule(now + self.config.control_lost_after, Timer::Lost(info.id));
            }
        }
        self.run_epoch = self.run_epoch.max(record.run_epoch);
        let state = self.groups.entry(group).or_default();
        let resumed = state.rebuild.take().map(|rebuild| rebuild.resumed).unwrap_or_default();
        state.roster = record.roster.iter().map(|info| info.id).collect();
        state.epoch = record.epoch;
        state.rebuild = Some(Rebuild { record: record.clone(), resumed, left: Vec::new() });
    }

    /// Decides everything once nobody is missing any more.
    pub(super) fn try_finish_rebuild(&mut self, now: Instant, group: Group) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        let Some(rebuild) = &state.rebuild else { return };
        if !state.roster.iter().all(|peer| rebuild.resumed.contains_key(peer)) {
            return;
        }
        let Some(Rebuild { record, resumed, left }) = state.rebuild.take() else { return };
        let roster: Vec<_> = record.roster.iter().map(|info| info.id).collect();
        state.ring = record.ring.iter().map(|rank| roster[*rank as usize]).collect();
        state.ring.retain(|peer| state.roster.contains(peer));

        let (verdicts, liars) = decide(&record, &resumed);
        let mut told = Vec::new();
        for (key, verdict, unknowing) in verdicts {
            let tag = state.tags.entry((key.scope.clone(), key.tag)).or_insert_with(TagState::default);
            if key.epoch == record.epoch {
                tag.next_seq = tag.next_seq.max(key.seq + 1);
            }
            tag.keep(key.clone(), verdict.clone(), unknowing.len());
            for peer in resumed.keys().filter(|peer| !unknowing.contains(peer)) {
                tag.begin(*peer);
            }
            told.extend(unknowing.into_iter().map(|peer| (peer, key.clone(), verdict.clone())));
        }
        for (peer, key, verdict) in told {
            self.tell(peer, ToPeer::Verdict { key, verdict });
        }
        self.note(Note::Rebuilt(group, record.epoch));
        if left.is_empty() {
            let current = self.record(group, Vec::new(), Vec::new());
            for (peer, (epoch, _)) in &resumed {
                if *epoch < record.epoch {
                    self.tell(*peer, ToPeer::Epoch(current.clone()));
                }
            }
        } else {
            let roster = self.groups[&group].roster.clone();
            self.open_epoch(now, group, roster, Vec::new(), left);
        }
        for liar in liars {
            self.note(Note::Contradiction(liar));
            self.kick(now, liar, "its resume contradicts what the others know (rule 17)");
        }
        let members: Vec<_> = resumed.keys().copied().collect();
        for peer in members {
            let held = self.peers.get_mut(&peer).map(|peer| std::mem::take(&mut peer.held));
            for message in held.unwrap_or_default() {
                self.handle_settled_message(now, peer, message);
            }
        }
        self.try_topology(now);
    }

    /// Keeps a member's messages until everything is decided. True if the message was taken.
    pub(super) fn hold_while_rebuilding(&mut self, from: PeerId, message: &ToCoordinator) -> bool {
        let Some(peer) = self.peers.get_mut(&from) else { return false };
        let rebuilding = self.groups.get(&peer.group).is_some_and(|state| state.rebuild.is_some());
        let member = peer.phase == Phase::Accepted;
        if !rebuilding
            || !member
            || matches!(message, ToCoordinator::Leave)
            || peer.held.len() >= UNCLAIMED_MAX
        {
            return false;
        }
        peer.held.push(message.clone());
        true
    }
}

/// Stands for a session that nobody has told us yet.
pub(super) const UNKNOWN_SESSION: SessionId = SessionId([0; 16]);

/// A verdict and who has not learned it.
type Decided = (OpKey, Verdict, Vec<PeerId>);

/// Rule 17 on everything that the resumes mention; and whose word cannot be true.
fn decide(
    record: &EpochRecord,
    resumed: &BTreeMap<PeerId, (u64, Vec<TagReport>)>,
) -> (Vec<Decided>, BTreeSet<PeerId>) {
    let mut learned: BTreeMap<OpKey, BTreeMap<PeerId, Verdict>> = BTreeMap::new();
    let mut open: BTreeMap<OpKey, BTreeMap<PeerId, bool>> = BTreeMap::new();
    for (peer, (_, tags)) in resumed {
        for report in tags {
            for (key, verdict) in &report.learned {
                learned.entry(key.clone()).or_default().insert(*peer, verdict.clone());
            }
            if let Some(vote) = &report.open {
                open.entry(vote.key.clone()).or_default().insert(*peer, vote.complete);
            }
        }
    }
    let keys: BTreeSet<_> = learned.keys().chain(open.keys()).cloned().collect();
    let (mut decided, mut liars) = (Vec::new(), BTreeSet::new());
    for key in keys {
        let known = learned.get(&key);
        let votes = open.get(&key);
        // Whoever is in a later epoch had this attempt's verdict before it, or came after it: only those who
        // are still in the attempt's own epoch can lack it.
        let involved: Vec<_> = resumed.keys().copied().filter(|peer| key.scope.involves(*peer)).collect();
        let in_scope: Vec<_> = involved.iter().copied().filter(|peer| resumed[peer].0 <= key.epoch).collect();
        // A member that is past this attempt learned its verdict once, though it may not remember it.
        let past = |peer: &PeerId| {
            resumed[peer].1.iter().flat_map(|report| &report.learned).any(|(later, _)| {
                (later.scope == key.scope && later.tag == key.tag)
                    && (later.epoch, later.seq) > (key.epoch, key.seq)
            })
        };
        let complete = |peer: &PeerId| votes.and_then(|votes| votes.get(peer)).copied().unwrap_or(false);
        let incomplete: Vec<_> =
            in_scope.iter().copied().filter(|peer| !complete(peer) && !past(peer)).collect();
        let verdict = match known.and_then(|known| known.values().next()) {
            Some(verdict) => {
                let knowing = known.map(BTreeMap::len).unwrap_or_default();
                if matches!(verdict, Verdict::Commit { .. }) {
                    // A commit needed everybody's Complete: who still votes otherwise cannot be right.
                    let unknowing = incomplete
                        .iter()
                        .copied()
                        .filter(|peer| known.is_none_or(|known| !known.contains_key(peer)))
                        .filter(|peer| votes.is_some_and(|votes| votes.contains_key(peer)));
                    let contradicting: Vec<_> = unknowing.collect();
                    if contradicting.len() > knowing {
                        liars.extend(known.into_iter().flat_map(|known| known.keys().copied()));
                    } else {
                        liars.extend(contradicting);
                    }
                }
                verdict.clone()
            }
            None if key.epoch < record.epoch && involved.iter().any(&past) => {
                // Decided long ago, and nobody remembers how: whoever waits for it must join anew.
                liars.extend(votes.into_iter().flat_map(|votes| votes.keys().copied()));
                continue;
            }
            None if incomplete.is_empty() => Verdict::Commit { pending: 0 },
            None => Verdict::Abort(AbortReason::Rebuilt),
        };
        let unknowing = in_scope
            .into_iter()
            .filter(|peer| known.is_none_or(|known| !known.contains_key(peer)) && !past(peer))
            .collect();
        decided.push((key, verdict, unknowing));
    }
    (decided, liars)
}
