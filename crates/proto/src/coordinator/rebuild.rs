//! Coming back: a peer to its session, and a coordinator to its memory.
//!
//! A peer that lost its connection resumes: it learns what it missed, in order ([`returning`](super::returning)), and
//! its votes stand. A coordinator that was restarted knows nothing; the first resume tells it that there was a run, if
//! it is believed ([`claims`](super::claims)). It decides nothing until every member of the roster has resumed, and has
//! promised to obey no lower term, or is evicted. What follows then from what they told is in
//! [`testimony`](super::testimony) (rule 17).

use super::Config;
use super::claims::{Standing, Terms, Weight};
use super::groups::{self, GroupState, Linking};
use super::outbox::Timer;
use super::peers::{Phase, Sign, UNKNOWN_SESSION, other_encryption};
use super::run::{Action, ConnectionId, Note};
use super::sessions::Sessions;
use super::testimony::{Testimony, decide};
use crate::ballot::{self, Ballots, known, sync};
use crate::collective::{Group, OpKey, Scope};
use crate::id::PeerId;
use crate::limits::{COUNT_MAX, HELD_MAX};
use crate::state::Revision;
use crate::time::Instant;
use crate::wire::control::{
    Encryption, EpochRecord, KickReason, LossReason, OpenVote, Registration, Resume, Term, ToCoordinator,
    ToPeer, Verdict,
};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// What the resumes have told so far.
#[derive(Clone, Debug, Hash)]
pub(super) struct Rebuild {
    /// The newest agreed membership that anybody knows.
    record: EpochRecord,
    /// Who has resumed, and what it knows.
    resumed: BTreeMap<PeerId, Testimony>,
    left: Vec<(PeerId, LossReason)>,
    /// How far those who are gone again had said that the group's state had come.
    reached: BTreeMap<PeerId, Option<Revision>>,
    /// When the first one resumed.
    pub(super) since: Instant,
    /// Whether others had their time to speak, and it was weighed against what they said (rule 41).
    weighed: bool,
    /// Whether we were late to do so and gave them more.
    late: bool,
    /// Who told of this line of records, and who brought the newest.
    heard: BTreeSet<PeerId>,
    bearers: BTreeSet<PeerId>,
}

impl Rebuild {
    /// A rebuild that goes by that record, with what is known from one that went by an older record.
    fn new(now: Instant, record: EpochRecord, before: Option<Self>) -> Self {
        let mut rebuild = Self {
            record,
            resumed: BTreeMap::new(),
            left: Vec::new(),
            reached: BTreeMap::new(),
            since: now,
            weighed: false,
            late: false,
            heard: BTreeSet::new(),
            bearers: BTreeSet::new(),
        };
        if let Some(Self { mut resumed, mut left, mut reached, since, weighed, late, heard, .. }) = before {
            let here = |peer: &PeerId| rebuild.record.rank_of(*peer).is_some();
            let gone = resumed.iter().filter(|(peer, _)| !here(peer));
            reached.extend(gone.map(|(peer, told)| (*peer, told.reached(&[]))));
            resumed.retain(|peer, _| here(peer));
            left.retain(|(peer, _)| here(peer));
            (rebuild.resumed, rebuild.left, rebuild.since, rebuild.heard) = (resumed, left, since, heard);
            (rebuild.reached, rebuild.weighed, rebuild.late) = (reached, weighed, late);
        }
        rebuild
    }

    fn hear(&mut self, from: PeerId, record: &EpochRecord) {
        self.heard.insert(from);
        if record.epoch == self.record.epoch {
            self.bearers.insert(from);
        }
    }

    /// Whether a record of the same history belongs to this line: of two, a bearer of the newer one is in the older,
    /// or the newer one has everybody who is in the older.
    pub(super) fn is_in_line(&self, from: PeerId, record: &EpochRecord) -> bool {
        let has_all = |newer: &EpochRecord, older: &EpochRecord| {
            let here: BTreeSet<_> = newer.roster.iter().map(|info| info.id).collect();
            older.roster.iter().all(|info| here.contains(&info.id))
        };
        if !record.is_akin(&self.record) {
            return false;
        }
        match record.epoch.cmp(&self.record.epoch) {
            // An epoch of which only newcomers had heard may have been opened once more, with others.
            Ordering::Equal => {
                record.roster.len() == self.record.roster.len() && has_all(record, &self.record)
            }
            Ordering::Greater => self.record.rank_of(from).is_some() || has_all(record, &self.record),
            Ordering::Less => {
                self.bearers.iter().any(|bearer| record.rank_of(*bearer).is_some())
                    || has_all(&self.record, record)
            }
        }
    }

    /// When it is weighed against what others have said. Where we should have done so long ago, we stood still, and what
    /// others said meanwhile is yet to be read: they get as much time again, once.
    pub(super) fn due(&mut self, now: Instant, config: &Config) -> Instant {
        let due = self.since + config.control_grace;
        let late = now.since(due);
        if late > config.probe_timeout / 2 && !self.late && !self.weighed {
            self.late = true;
            self.since += late + late.min(config.control_grace);
        }
        self.since + config.control_grace
    }

    pub(super) fn weigh(&mut self) {
        self.weighed = true;
    }

    pub(super) fn is_weighed(&self) -> bool {
        self.weighed
    }

    /// How many have told of this line.
    pub(super) fn voices(&self) -> usize {
        self.heard.len()
    }

    /// Whether anybody of this line obeys us.
    pub(super) fn is_promised(&self, term: Term) -> bool {
        self.resumed.values().any(|told| told.promised >= term)
    }

    pub(super) fn without(&mut self, gone: Vec<(PeerId, LossReason)>) {
        let told = gone.iter().filter_map(|(peer, _)| Some((*peer, self.resumed.get(peer)?.reached(&[]))));
        self.reached.extend(told);
        self.resumed.retain(|peer, _| !gone.iter().any(|(gone, _)| gone == peer));
        self.left.extend(gone);
    }
}

impl Sessions<'_> {
    /// A peer is back.
    pub(super) fn resume(&mut self, now: Instant, at: ConnectionId, from: PeerId, resume: Resume) {
        match plausible(from, &resume) {
            Ok(()) => self.hear_resume(now, at, from, resume, false),
            Err(text) => self.office.turn_away(at, KickReason::Breach, &text),
        }
    }

    /// Hears a resume that could be true; `waited`: all others had their time to speak first (rule 41).
    pub(super) fn hear_resume(
        &mut self,
        now: Instant,
        at: ConnectionId,
        from: PeerId,
        resume: Resume,
        waited: bool,
    ) {
        let group = resume.registration.group;
        self.forget_rival(now, from);
        if let Some(peer) = self.office.peers.get(from) {
            // Whether it is who it says is asked before anything is done on its word.
            let unknown = peer.session == UNKNOWN_SESSION;
            let same = peer.session == resume.registration.session && resume.generation > peer.generation;
            if !unknown && !same {
                let text = format!("{from} is here already with a newer connection or another session");
                return self.office.turn_away(at, KickReason::Duplicate, &text);
            }
            if peer.connection == Some(at) {
                return self.office.kick(from, "resumed twice on one connection");
            }
            if !unknown && peer.phase == Phase::Accepted && peer.group != group {
                let text = format!("resumed in group {group}, it is in group {}", peer.group);
                self.office.kick(from, &text);
                return self.office.turn_away(at, KickReason::Breach, &text);
            }
        }
        match self.weigh_term(from, &resume, waited) {
            Weight::Counts => {}
            Weight::Alone => return self.park(now, at, from, resume, group),
            Weight::Breach(text) => return self.put_out(at, &text),
        }
        match self.regard(now, from, &resume, waited) {
            Standing::Member => {}
            Standing::Rebuilding => {
                self.prepare_rebuild(now, group, from, &resume.record);
                self.weigh_far_terms(now);
            }
            Standing::Rival(other) => return self.park(now, at, from, resume, other),
            Standing::Ahead => {
                let text = "this coordinator is behind the one that it obeyed: most members must say so";
                return self.office.turn_away(at, KickReason::Superseded, text);
            }
            Standing::Stranger => {
                let text = "unknown here, the run goes on without it: connect again to join";
                return self.office.turn_away(at, KickReason::Superseded, text);
            }
        }
        let rebuilding = self.groups.get(group).is_some_and(GroupState::is_rebuilding);
        let Some(peer) = self.office.peers.get(from).filter(|_| self.office.peers.is_member(from, group))
        else {
            // Its record may have been what the others waited for.
            self.hear_rivals(now, false);
            self.try_finish_rebuild(now, group);
            return self.office.turn_away(
                at,
                KickReason::Evicted,
                "evicted while it was away: connect again",
            );
        };
        let connection = peer.connection;
        let wanted = resume.registration.encryption;
        let Ok(giving_way) = self.office.peers.recall_encryption(wanted) else {
            let text = "resumed with another encryption than the run's";
            return self.office.turn_away(at, KickReason::Encryption, text);
        };
        self.office.dismiss(&giving_way, KickReason::Encryption, &other_encryption(wanted.other(), wanted));
        if let Some(old) = connection {
            // Its old connection is gone, though we have not noticed: what that means comes first (rule 4).
            self.office.peers.hang_up(old);
            self.office.outbox.act(Action::Close(old));
            self.disconnected(now, from, old);
        }
        let doomed = self.office.agenda.is_doomed(from);
        let Some(peer) = self.office.peers.get_mut(from).filter(|_| !doomed) else {
            // Nothing of what it hears on its old connection reaches it any more.
            return self.office.turn_away(
                at,
                KickReason::Evicted,
                "evicted while it was away: connect again",
            );
        };
        // In a rebuilt coordinator nobody's session is known yet; the first who resumes brings it (rule 18).
        let unknown = peer.session == UNKNOWN_SESSION;
        peer.session = resume.registration.session;
        peer.generation = resume.generation;
        peer.info = resume.registration.info.clone();
        peer.heard = now;
        if unknown {
            // It is here, and what the health plane said before is answered by that.
            (peer.sign, peer.registered) = (Sign::Alive { acked: None }, now);
        }
        if rebuilding {
            self.raise_term(resume.term.saturating_add(1));
        }
        self.attach(from, at);
        if let Some(peer) = self.office.peers.get_mut(from) {
            peer.terms = Terms::new(resume.term);
            peer.terms.tell(self.office.term);
        }
        self.office.outbox.note(Note::Resumed(from));
        self.office.tell(from, ToPeer::Resumed { term: self.office.term });
        if unknown {
            self.inquiry().try_kernel(from);
        }
        if rebuilding {
            if let Some(rebuild) = self.groups.get_mut(group).and_then(|state| state.rebuild_mut()) {
                rebuild.resumed.insert(from, Testimony::new(resume));
            }
            self.hear_rivals(now, false);
        } else {
            self.take_back(now, from, group, &resume);
        }
    }

    /// A peer obeys no lower term any more. Only now its resume is sure to stay true: nobody but us tells it
    /// anything new.
    pub(super) fn promised(&mut self, now: Instant, from: PeerId, term: u64) {
        let Some(peer) = self.office.peers.get_mut(from) else { return };
        peer.terms.promise(term);
        let group = peer.group;
        let rebuild = self.groups.get_mut(group).and_then(|state| state.rebuild_mut());
        if let Some(told) = rebuild.and_then(|rebuild| rebuild.resumed.get_mut(&from)) {
            told.promised = told.promised.max(term);
            self.try_finish_rebuild(now, group);
        }
    }

    /// A member of a run that this coordinator remembers learns what it missed.
    fn take_back(&mut self, now: Instant, from: PeerId, group: Group, resume: &Resume) {
        let Some(state) = self.groups.get_mut(group) else { return };
        for report in &resume.tags {
            if let Some((key, _)) = report.learned.last() {
                state.operations.learned(from, key);
            }
        }
        self.epochs().welcome(from, group, resume.record.epoch, known(&resume.ballots));
        self.epochs().catch_up(group);
        self.calls().vote_again(now, from, group, &resume.ballots);
        self.epochs().tell_prepare(group, &[from]);
        for open in resume.tags.iter().filter_map(|report| report.open.clone()) {
            let OpenVote { key, fingerprint, timeout_ms, complete } = open;
            self.calls().initiate(now, from, key.clone(), fingerprint, timeout_ms.max(1));
            if complete {
                self.calls().complete(from, &key);
            }
        }
        self.epochs().settle(now, group);
        let (run_epoch, global_world_size) = (self.groups.run_epoch(), self.groups.world_size());
        let told = self
            .groups
            .get(group)
            .is_some_and(|state| state.world_told == global_world_size && state.epoch == resume.record.epoch);
        if told && resume.record.global_world_size != global_world_size {
            self.office.tell(from, ToPeer::World { run_epoch, global_world_size });
        }
    }

    /// What this coordinator does not know of a run, or knows less of than whoever resumes, it begins to rebuild.
    fn prepare_rebuild(&mut self, now: Instant, group: Group, from: PeerId, record: &EpochRecord) {
        match self.groups.get_mut(group).map(GroupState::rebuild_mut) {
            Some(None) => return,
            Some(Some(rebuild)) if rebuild.record.epoch >= record.epoch => return rebuild.hear(from, record),
            Some(Some(_)) | None => {}
        }
        let roster: Vec<_> = record.roster.iter().map(|info| info.id).collect();
        // A newer record than the one the rebuild began with: its roster counts. Whoever is only in the old
        // one was evicted before we came.
        if let Some(state) = self.groups.get(group) {
            let members: BTreeSet<_> = roster.iter().copied().collect();
            let gone: Vec<_> = state.roster.iter().copied().filter(|id| !members.contains(id)).collect();
            self.office.dismiss(&gone, KickReason::Evicted, "evicted before the coordinator was restarted");
        }
        let before = self.groups.get_mut(group).and_then(GroupState::take_rebuild);
        let mut rebuild = Rebuild::new(now, record.clone(), before);
        rebuild.hear(from, record);
        let lost: BTreeSet<_> = rebuild.left.iter().map(|(peer, _)| *peer).collect();
        for info in record.roster.iter().filter(|info| !lost.contains(&info.id)) {
            match self.office.peers.get(info.id).map(|peer| peer.phase) {
                Some(Phase::Accepted) => {}
                // It does not know that it was admitted, and says itself that it is in nothing: it waits to be let in.
                Some(Phase::Registered) => rebuild.left.push((info.id, LossReason::Left)),
                None => {
                    let registration = Registration {
                        info: info.clone(),
                        group,
                        session: UNKNOWN_SESSION,
                        min_world: 1,
                        encryption: Encryption::default(),
                        witness: None,
                    };
                    self.office.peers.expect(now, &registration);
                }
            }
        }
        let state = self.groups.recall(group, record);
        let gone: BTreeSet<_> = rebuild.left.iter().map(|(peer, _)| *peer).collect();
        state.roster = roster.into_iter().filter(|peer| !gone.contains(peer)).collect();
        let resumed = &rebuild.resumed;
        let missing = state.roster.iter().copied().filter(|peer| !resumed.contains_key(peer));
        state.attendance.expect(missing.collect());
        (state.epoch, state.decider) = (record.epoch, record.decider);
        (state.founder, state.ancestors) = (record.founder, record.ancestors.clone());
        let until = rebuild.since + self.config.control_grace;
        state.phase = groups::Phase::Rebuilding(Box::new(rebuild));
        self.office.outbox.schedule(until, Timer::Claims(group));
        for info in &record.roster {
            self.inquiry().review_lost(now, info.id);
        }
    }

    /// Decides everything once nobody is missing any more.
    pub(super) fn try_finish_rebuild(&mut self, now: Instant, group: Group) {
        let Some(state) = self.groups.get_mut(group) else { return };
        let Some(rebuild) = state.rebuild() else { return };
        let term = self.office.term;
        let ready = |peer: &PeerId| rebuild.resumed.get(peer).is_some_and(|told| told.promised >= term);
        if !state.roster.iter().all(ready) {
            return;
        }
        // One voice alone, or one of several that contradict each other, is not taken for the run's (rule 41).
        if !rebuild.is_weighed() && (rebuild.voices() < 2 || self.is_contested(group)) {
            return;
        }
        let Some(state) = self.groups.get_mut(group) else { return };
        let Some(Rebuild { record, mut resumed, left, mut reached, .. }) = state.take_rebuild() else {
            return;
        };
        let roster: Vec<_> = record.roster.iter().map(|info| info.id).collect();
        let members: BTreeSet<_> = state.roster.iter().copied().collect();
        let ring = record.ring.iter().filter_map(|rank| roster.get(*rank as usize).copied());
        state.ring = ring.filter(|peer| members.contains(peer)).collect();
        let broken = record.broken_links();
        state.paths.recall(broken.filter(|(a, b)| members.contains(a) && members.contains(b)).collect());
        state.linking = Linking::new(members, state.linking.grew());
        let told: Vec<_> = resumed.values().map(|told| &told.ballots[..]).collect();
        state.ballots = Ballots::rebuilt(&record, &told);

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
        reached.extend(resumed.iter().map(|(peer, told)| (*peer, told.reached(&decided.verdicts))));
        for (key, verdict, unknowing) in decided.verdicts {
            let in_epoch = key.epoch == record.epoch;
            state.operations.recall(key, verdict, &unknowing, in_epoch);
        }
        self.recall_revision(group, &roster, &reached);
        for (peer, told) in &resumed {
            self.epochs().welcome(*peer, group, told.epoch, known(&told.ballots));
        }
        self.office.outbox.note(Note::Rebuilt(group, record.epoch));
        for liar in decided.liars {
            self.office.outbox.note(Note::Contradiction(liar));
            self.office.kick(liar, "its resume contradicts what the others know (rule 17)");
        }
        for laggard in decided.laggards {
            // It was away for longer than anybody remembers.
            self.office.lose(laggard, LossReason::NotResumed);
        }
        if !left.is_empty() {
            self.epochs().begin_history(group);
            let roster = self.groups[group].roster.clone();
            self.epochs().open_epoch(now, group, roster, Vec::new(), left);
        }
        self.epochs().catch_up(group);
        for (peer, told) in &resumed {
            self.calls().vote_again(now, *peer, group, &told.ballots);
        }
        for peer in resumed.into_keys() {
            let held = self.office.peers.get_mut(peer).map(|peer| std::mem::take(&mut peer.held));
            for message in held.unwrap_or_default() {
                if !self.office.agenda.is_doomed(peer) {
                    self.epochs().handle_message(now, peer, message);
                }
            }
        }
        self.epochs().settle(now, group);
        self.epochs().watch_paths(now, group);
        self.office.agenda.count_votes();
        self.office.agenda.tell_world();
    }

    /// How far the group's state has come, by what those have said who took part and by the last sync that anybody
    /// remembers: nobody begins below it (rule 25).
    fn recall_revision(
        &mut self,
        group: Group,
        roster: &[PeerId],
        reached: &BTreeMap<PeerId, Option<Revision>>,
    ) {
        let synced = self.groups[group].ballots.agreed(sync::KIND).and_then(sync::last);
        let Some(revision) = reached.values().copied().fold(synced, Option::max) else { return };
        let took_part = |peer| reached.get(&peer).copied().flatten() == Some(revision);
        self.groups.set_revision_of(group, revision, roster, took_part);
    }

    /// Keeps a member's messages until everything is decided. True if the message was taken.
    pub(super) fn hold_while_rebuilding(&mut self, from: PeerId, message: &ToCoordinator) -> bool {
        let Some(peer) = self.office.peers.get_mut(from) else { return false };
        let rebuilding = self.groups.get(peer.group).is_some_and(GroupState::is_rebuilding);
        let passes = matches!(message, ToCoordinator::Leave { .. } | ToCoordinator::Promise { .. });
        if !rebuilding || peer.phase != Phase::Accepted || passes {
            return false;
        }
        if peer.held.len() >= HELD_MAX {
            self.office.kick(
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
    let Resume { registration, record, tags, ballots, .. } = resume;
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
    if resume.behind_from.is_some_and(|epoch| epoch > record.epoch) {
        return Err("resumed as one that lacks verdicts of epochs that it does not know".to_owned());
    }
    if record.ancestors.iter().any(|before| before.epoch >= record.epoch) {
        return Err("resumed with a record that is older than a history that it goes on from".to_owned());
    }
    let tallies =
        || record.ballots.iter().map(|(_, tally)| tally).chain(ballots.iter().map(|report| &report.tally));
    let counts =
        [record.epoch, record.run_epoch, resume.term].into_iter().chain(tallies().map(|tally| tally.ended));
    let counts = counts.chain(resume.revision);
    if let Some(count) = counts.into_iter().find(|count| *count > COUNT_MAX) {
        return Err(format!("resumed with a count of {count}: nobody counts that far"));
    }
    if tallies().any(|tally| tally.agreed > tally.ended) {
        return Err("resumed with a ballot that was agreed on before it ended".to_owned());
    }
    let wishes =
        ballots.iter().filter_map(|report| Some((ballot::rules(report.kind)?, report.wish.as_ref()?)));
    for (rules, wish) in wishes {
        rules.check(wish).map_err(|text| format!("its vote in {} {text}", rules.name()))?;
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
