//! Coming back: a peer to its session, and a coordinator to its memory.
//!
//! A peer that lost its connection resumes: it learns what it missed, in order, and its votes stand. A
//! coordinator that was restarted knows nothing; the first resume tells it that there was a run, and it
//! decides nothing until every member of the roster has resumed, and has promised to obey no lower term, or is
//! evicted. Then, for every attempt that
//! somebody mentions: a verdict that anybody learned stands; otherwise a resumed member without Complete
//! means abort; otherwise commit, because every survivor holds the result (rule 17).

use super::groups::GroupState;
use super::peers::{Lobby, Peer, Phase, Sign, UNKNOWN_SESSION};
use super::run::{Action, ConnectionId, Note, Run};
use super::testimony::{Testimony, decide};
use crate::collective::{Group, OpKey, Scope};
use crate::id::PeerId;
use crate::limits::{COUNT_MAX, HELD_MAX, MEMBERS_MAX};
use crate::time::Instant;
use crate::wire::control::{
    Encryption, EpochRecord, KickReason, LossReason, OpenVote, Registration, Resume, Rounds, ToCoordinator,
    ToPeer, Verdict,
};
use std::collections::{BTreeMap, BTreeSet};

/// What the resumes have told so far.
#[derive(Clone, Debug, Hash)]
pub(super) struct Rebuild {
    /// The newest agreed membership that anybody knows.
    record: EpochRecord,
    /// Who has resumed, and what it knows.
    resumed: BTreeMap<PeerId, Testimony>,
    left: Vec<(PeerId, LossReason)>,
}

impl Rebuild {
    pub(super) fn without(&mut self, gone: Vec<(PeerId, LossReason)>) {
        self.resumed.retain(|peer, _| !gone.iter().any(|(gone, _)| gone == peer));
        self.left.extend(gone);
    }
}

impl Run {
    /// A peer is back.
    pub(super) fn resume(&mut self, now: Instant, at: ConnectionId, from: PeerId, resume: Resume) {
        if let Err(text) = plausible(from, &resume) {
            return self.turn_away(at, KickReason::Breach, &text);
        }
        let group = resume.registration.group;
        if let Some(peer) = self.peers.get(&from) {
            // Whether it is who it says is asked before anything is done on its word.
            let unknown = peer.session == UNKNOWN_SESSION;
            let same = peer.session == resume.registration.session && resume.generation > peer.generation;
            if !unknown && !same {
                let text = format!("{from} is here already with a newer connection or another session");
                return self.turn_away(at, KickReason::Duplicate, &text);
            }
            if peer.connection == Some(at) {
                return self.kick(from, "resumed twice on one connection");
            }
            if !unknown && peer.group != group {
                let text = format!("resumed in group {group}, it is in group {}", peer.group);
                self.kick(from, &text);
                return self.turn_away(at, KickReason::Breach, &text);
            }
        }
        self.step_down(&resume);
        if !self.prepare_rebuild(now, group, &resume.record) {
            let text = "the run went on without it: connect again";
            return self.turn_away(at, KickReason::Superseded, text);
        }
        let rebuilding = self.groups.get(&group).is_some_and(|state| state.rebuild.is_some());
        let Some(peer) = self.peers.get(&from).filter(|peer| peer.phase == Phase::Accepted) else {
            // Its record may have been what the others waited for.
            self.try_finish_rebuild(now, group);
            return self.turn_away(at, KickReason::Evicted, "evicted while it was away: connect again");
        };
        let connection = peer.connection;
        if !self.agree_encryption(resume.registration.encryption) {
            return self.turn_away(
                at,
                KickReason::Encryption,
                "resumed with another encryption than the run's",
            );
        }
        if let Some(old) = connection {
            // Its old connection is gone, though we have not noticed: what that means comes first (rule 4).
            self.connections.remove(&old);
            self.act(Action::Close(old));
            self.disconnected(now, from, old);
        }
        let doomed = self.is_doomed(from);
        let Some(peer) = self.peers.get_mut(&from).filter(|_| !doomed) else {
            // Nothing of what it hears on its old connection reaches it any more.
            return self.turn_away(at, KickReason::Evicted, "evicted while it was away: connect again");
        };
        // In a rebuilt coordinator nobody's session is known yet; the first who resumes brings it (rule 18).
        let unknown = peer.session == UNKNOWN_SESSION;
        peer.session = resume.registration.session;
        peer.generation = resume.generation;
        peer.info = resume.registration.info.clone();
        peer.heard = now;
        if unknown {
            peer.sign = Sign::Alive { acked: None }; // It is here; the health plane has not said otherwise.
        }
        self.raise_term(resume.term, rebuilding);
        self.attach(from, at);
        self.note(Note::Resumed(from));
        self.tell(from, ToPeer::Resumed { term: self.term });
        if unknown {
            self.try_kernel(from);
        }
        if rebuilding {
            if let Some(rebuild) = self.groups.get_mut(&group).and_then(|state| state.rebuild.as_mut()) {
                rebuild.resumed.insert(from, Testimony::new(resume));
            }
        } else {
            self.take_back(now, from, group, &resume);
        }
    }

    /// A peer obeys no lower term any more. Only now its resume is sure to stay true: nobody but us tells it
    /// anything new.
    pub(super) fn promised(&mut self, now: Instant, from: PeerId, term: u64) {
        let Some(group) = self.peers.get(&from).map(|peer| peer.group) else { return };
        let rebuild = self.groups.get_mut(&group).and_then(|state| state.rebuild.as_mut());
        if let Some(told) = rebuild.and_then(|rebuild| rebuild.resumed.get_mut(&from)) {
            told.promised = told.promised.max(term);
            self.try_finish_rebuild(now, group);
        }
    }

    /// The term grows with every rebuild, beyond any that a peer has obeyed, and never shrinks.
    fn raise_term(&mut self, seen: u64, rebuilding: bool) {
        let wanted = if rebuilding { seen.saturating_add(1) } else { seen };
        if wanted <= self.term {
            return;
        }
        self.term = wanted;
        let everybody: Vec<_> = self.peers.keys().copied().collect();
        self.tell_all(&everybody, ToPeer::Resumed { term: self.term });
    }

    /// A member that obeys a higher term than ours, in a group that we believe to be in charge of, shows that
    /// another coordinator reigned since: nothing that we hold counts any more (rule 17). We begin again like
    /// one that was just started, and learn from the peers how things stand. A stranger's word is not enough.
    fn step_down(&mut self, resume: &Resume) {
        let member = self.is_member(resume.registration.info.id, resume.record.group);
        let in_charge = self
            .groups
            .get(&resume.record.group)
            .is_some_and(|state| state.rebuild.is_none() && state.founder == resume.record.founder);
        if resume.term <= self.term || !in_charge || !member {
            return;
        }
        self.note(Note::SteppedDown(resume.term));
        for at in std::mem::take(&mut self.connections).into_keys() {
            self.act(Action::Close(at));
        }
        self.peers.clear();
        self.addresses.clear();
        self.newcomers = Lobby::default();
        self.groups.clear();
        self.encryption = None;
        self.knocks.clear();
        self.frozen_until = None;
    }

    /// A member of a run that this coordinator remembers learns what it missed.
    fn take_back(&mut self, now: Instant, from: PeerId, group: Group, resume: &Resume) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        for report in &resume.tags {
            if let Some((key, _)) = report.learned.last()
                && let Some(tag) = state.tags.get_mut(&(key.scope.clone(), key.tag))
            {
                tag.learned(from, key.epoch, key.seq);
            }
        }
        self.welcome(from, group, resume.record.epoch, resume.rounds);
        self.catch_up(group);
        self.vote_again(now, from, group, resume.topology_vote, resume.rounds);
        for open in resume.tags.iter().filter_map(|report| report.open.clone()) {
            let OpenVote { key, fingerprint, timeout_ms, complete } = open;
            self.initiate(now, from, key.clone(), fingerprint, timeout_ms.max(1));
            if complete {
                self.complete(from, &key);
            }
        }
        self.settle(now, group);
        let (run_epoch, global_world_size) = (self.run_epoch, self.global_world_size());
        let told = self
            .groups
            .get(&group)
            .is_some_and(|state| state.world_told == global_world_size && state.epoch == resume.record.epoch);
        if told && resume.record.global_world_size != global_world_size {
            self.tell(from, ToPeer::World { run_epoch, global_world_size });
        }
    }

    /// The vote for newcomers that a member stood in when it lost us, if that is not over.
    fn vote_again(&mut self, now: Instant, from: PeerId, group: Group, vote: Option<u32>, known: Rounds) {
        let over = self.groups.get(&group).is_none_or(|state| state.rounds.ended > known.ended);
        self.set_vote(from, vote.filter(|_| !over));
        self.judge_mixed_calls(now, group);
    }

    /// If this coordinator does not know the run that a resume speaks of, it begins to rebuild it. False if
    /// the run has gone on without whoever resumes.
    fn prepare_rebuild(&mut self, now: Instant, group: Group, record: &EpochRecord) -> bool {
        let elsewhere = |id: &PeerId| {
            self.peers.get(id).is_some_and(|peer| peer.phase == Phase::Accepted && peer.group != group)
        };
        let known = self.groups.get(&group).is_some_and(|state| state.rebuild.is_none());
        if record.roster.iter().any(|info| elsewhere(&info.id))
            || (!known && self.peers.len() + record.roster.len() > 2 * MEMBERS_MAX)
        {
            return false;
        }
        let lifetime = self.config.control_lost_after;
        let young = self.born.is_none_or(|born| now.since(born) < lifetime);
        match self.groups.get(&group) {
            None => {}
            Some(state) if state.founder == record.founder => match &state.rebuild {
                None if state.epoch >= record.epoch => return true,
                // It knows an epoch of ours that we never opened.
                None => return false,
                Some(rebuild) if rebuild.record.epoch >= record.epoch => return true,
                Some(_) => {}
            },
            // Somebody began afresh before the old run came back: the old run wins, as long as its sessions
            // can be alive. After that whoever comes is a stray.
            Some(state) if young && state.rebuild.is_none() => {
                let usurpers = state.roster.clone();
                self.groups.remove(&group);
                let text = "an older run under this id came back: connect again to join it";
                self.dismiss(&usurpers, KickReason::Superseded, text);
            }
            Some(_) => return false,
        }
        let roster: Vec<_> = record.roster.iter().map(|info| info.id).collect();
        // A newer record than the one the rebuild began with: its roster counts. Whoever is only in the old
        // one was evicted before we came.
        if let Some(state) = self.groups.get(&group) {
            let members: BTreeSet<_> = roster.iter().copied().collect();
            let gone: Vec<_> = state.roster.iter().copied().filter(|id| !members.contains(id)).collect();
            self.dismiss(&gone, KickReason::Evicted, "evicted before the coordinator was restarted");
        }
        let rebuild = self.groups.get(&group).and_then(|state| state.rebuild.as_ref());
        let lost: BTreeSet<_> =
            rebuild.iter().flat_map(|rebuild| &rebuild.left).map(|(peer, _)| *peer).collect();
        for info in &record.roster {
            let expected = self.peers.get(&info.id).is_some_and(|peer| peer.phase == Phase::Accepted);
            // Who was lost since we began stays lost: it is in no roster any more.
            if !expected && !lost.contains(&info.id) {
                // If it waits as a newcomer, it does not know that it was admitted; then it joins anew.
                self.dismiss(&[info.id], KickReason::Superseded, "it was admitted already: connect again");
                let registration = Registration {
                    info: info.clone(),
                    group,
                    session: UNKNOWN_SESSION,
                    min_world: 1,
                    encryption: Encryption::default(),
                };
                self.peers.insert(info.id, Peer::absent(now, &registration, self.next_age));
                self.next_age += 1;
            }
        }
        self.run_epoch = self.run_epoch.max(record.run_epoch);
        let floor = record.epoch;
        let state = self.groups.entry(group).or_insert_with(|| GroupState::new(record.founder, floor));
        let before = state.rebuild.take();
        let (mut resumed, left) = before.map(|before| (before.resumed, before.left)).unwrap_or_default();
        let left: Vec<_> = left.into_iter().filter(|(peer, _)| roster.contains(peer)).collect();
        resumed.retain(|peer, _| roster.contains(peer));
        let gone: BTreeSet<_> = left.iter().map(|(peer, _)| *peer).collect();
        state.roster = roster.into_iter().filter(|peer| !gone.contains(peer)).collect();
        state.away = state.roster.iter().copied().filter(|peer| !resumed.contains_key(peer)).collect();
        state.epoch = record.epoch;
        state.rebuild = Some(Rebuild { record: record.clone(), resumed, left });
        for info in &record.roster {
            self.review_lost(now, info.id);
        }
        true
    }

    /// Removes peers whose group is not what they think.
    pub(super) fn dismiss(&mut self, peers: &[PeerId], reason: KickReason, text: &str) {
        for peer in peers {
            self.tell(*peer, ToPeer::Kicked { reason, text: text.to_owned(), term: self.term });
            self.newcomers.remove(*peer);
            let Some(record) = self.peers.remove(peer) else { continue };
            self.leave_address(*peer, record.info.address);
            if let Some(at) = record.connection {
                self.connections.remove(&at);
                self.act(Action::Close(at));
            }
        }
    }

    /// Decides everything once nobody is missing any more.
    pub(super) fn try_finish_rebuild(&mut self, now: Instant, group: Group) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        let Some(rebuild) = &state.rebuild else { return };
        let term = self.term;
        let ready = |peer: &PeerId| rebuild.resumed.get(peer).is_some_and(|told| told.promised >= term);
        if !state.roster.iter().all(ready) {
            return;
        }
        let Some(Rebuild { record, mut resumed, left }) = state.rebuild.take() else { return };
        let roster: Vec<_> = record.roster.iter().map(|info| info.id).collect();
        let members: BTreeSet<_> = state.roster.iter().copied().collect();
        let ring = record.ring.iter().filter_map(|rank| roster.get(*rank as usize).copied());
        state.ring = ring.filter(|peer| members.contains(peer)).collect();
        let broken = record.broken_links();
        state.paths.recall(broken.filter(|(a, b)| members.contains(a) && members.contains(b)).collect());
        state.unconfirmed = members;
        state.rounds = resumed.values().map(|told| told.rounds).fold(record.rounds, Rounds::max);

        (state.world_told, state.rebuilt) = (record.global_world_size, true);

        let decided = decide(&record, &mut resumed);
        // Who was there first: the record says it of the time when it was written (rule 42).
        let whole_commit = |(key, verdict, _): &(OpKey, Verdict, _)| {
            (key.epoch, &key.scope) == (record.epoch, &Scope::Whole)
                && matches!(verdict, Verdict::Commit { .. })
        };
        let since = decided.verdicts.iter().any(whole_commit);
        let first = if since { roster.len() } else { roster.len().min(record.incumbents as usize) };
        state.incumbents = roster[..first].iter().filter(|peer| state.roster.contains(peer)).count();
        for (key, verdict, unknowing) in decided.verdicts {
            let tag = state.tags.entry((key.scope.clone(), key.tag)).or_default();
            if key.epoch == record.epoch {
                tag.next_seq = tag.next_seq.max(key.seq.saturating_add(1));
                if tag.reuse() {
                    state.usage.add(&key.scope);
                }
            }
            tag.keep(key, verdict, &unknowing);
        }
        for (peer, told) in &resumed {
            self.welcome(*peer, group, told.epoch, told.rounds);
        }
        self.note(Note::Rebuilt(group, record.epoch));
        for liar in decided.liars {
            self.note(Note::Contradiction(liar));
            self.kick(liar, "its resume contradicts what the others know (rule 17)");
        }
        for laggard in decided.laggards {
            // It was away for longer than anybody remembers.
            self.lose(laggard, LossReason::NotResumed);
        }
        if !left.is_empty() {
            let roster = self.groups[&group].roster.clone();
            self.open_epoch(now, group, roster, Vec::new(), left);
        }
        self.catch_up(group);
        for (peer, told) in &resumed {
            self.vote_again(now, *peer, group, told.topology_vote, told.rounds);
        }
        for peer in resumed.into_keys() {
            let held = self.peers.get_mut(&peer).map(|peer| std::mem::take(&mut peer.held));
            for message in held.unwrap_or_default() {
                if !self.is_doomed(peer) {
                    self.handle_settled_message(now, peer, message);
                }
            }
        }
        self.settle(now, group);
        self.watch_paths(now, group);
        self.count_topology = true;
        self.world_changed = true;
    }

    /// Keeps a member's messages until everything is decided. True if the message was taken.
    pub(super) fn hold_while_rebuilding(&mut self, from: PeerId, message: &ToCoordinator) -> bool {
        let Some(peer) = self.peers.get_mut(&from) else { return false };
        let rebuilding = self.groups.get(&peer.group).is_some_and(|state| state.rebuild.is_some());
        let passes = matches!(message, ToCoordinator::Leave | ToCoordinator::Promise { .. });
        if !rebuilding || peer.phase != Phase::Accepted || passes {
            return false;
        }
        if peer.held.len() >= HELD_MAX {
            self.kick(
                from,
                &format!("sent more than {HELD_MAX} messages to a coordinator that was restarted"),
            );
        } else {
            peer.held.push(message.clone());
        }
        true
    }
}

/// Whether a resume could be true at all.
fn plausible(from: PeerId, resume: &Resume) -> Result<(), String> {
    let Resume { registration, record, tags, .. } = resume;
    if registration.info.id != from {
        return Err(format!("resumed as {} over a connection of {from}", registration.info.id));
    }
    if registration.session == UNKNOWN_SESSION {
        return Err("resumed with a session of zeros: it must be random".to_owned());
    }
    if record.group != registration.group || record.rank_of(from).is_none() {
        return Err("resumed with a record of which it is no member".to_owned());
    }
    let ids: BTreeSet<_> = record.roster.iter().map(|info| info.id).collect();
    if ids.len() != record.roster.len() {
        return Err("resumed with a record that lists a member twice".to_owned());
    }
    let counts = [record.epoch, record.run_epoch, record.rounds.ended, resume.rounds.ended, resume.term];
    if let Some(count) = counts.into_iter().find(|count| *count > COUNT_MAX) {
        return Err(format!("resumed with a count of {count}: nobody counts that far"));
    }
    if resume.rounds.done > resume.rounds.ended || record.rounds.done > record.rounds.ended {
        return Err("resumed with a vote that ended well before it ended".to_owned());
    }
    let learned = tags.iter().flat_map(|tag| tag.learned.iter().map(|(key, _)| key));
    let mut keys = learned.chain(tags.iter().filter_map(|tag| tag.open.as_ref().map(|open| &open.key)));
    let foreign = |key: &&OpKey| {
        key.group != record.group
            || key.epoch > record.epoch
            || !key.scope.involves(from)
            || key.seq > COUNT_MAX
    };
    match keys.find(foreign) {
        Some(key) => Err(format!("resumed with {key}, which cannot be its own")),
        None => Ok(()),
    }
}
