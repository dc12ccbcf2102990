//! A resume is a claim (rule 41): who is believed, and how far.
//!
//! Whoever holds the run's secret can say that it was a member of anything. While a group is served we know its
//! members, and no word of anybody changes its roster, its epoch or our term. Only a coordinator that was restarted
//! must believe what it is told, and there a claim can be weighed against the others:
//!
//! - *Two lines.* Records of one history whose bearers knew each other are one line, and its highest epoch counts,
//!   however few bring it. Whoever tells of another line waits beside: after the control grace the line that more
//!   have come back to is rebuilt, and the others join it anew. Whoever waits is here: it is not missed meanwhile.
//! - *The moment of weighing* is when we weigh, not when we should have: who came before it is counted. If we stood
//!   still ourselves, there may be words that we have yet to read, and we wait once more.
//! - *Who was not heard* may know epochs that nobody told us of. What a rebuild without all of a roster goes on with is
//!   a history of its own, so that the two are never taken for one (decision 29).
//! - *One voice.* A line that a single peer brought, and nobody else knows, is served only after the same time: by
//!   then the members of a run that it would displace have spoken. Where nobody even promised to obey, nothing is
//!   waited for.
//! - *Terms.* A coordinator's term must lie above all that were obeyed. Who claims a term far above ours has never obeyed
//!   it, if as many of one line tell of a nearer one; however many such claims there are, none of them confirms another.
//!   Until others have had their time to speak it waits. Terms end at a bound at which they stay, so that no reign is
//!   ever refused.
//!
//! - *Reigns.* Whether another coordinator reigned since is asked of every group by itself, because our own term says
//!   nothing about it: the rebuild of one group raises it, while what we hold of another is as old as before. A member
//!   that obeys a term which it cannot have from us ([`Terms`]) was another's meanwhile.
//!
//! What is not promised: a member of a line that brings a higher epoch with a smaller roster is believed, because that
//! is what a sole survivor looks like.

use super::Config;
use super::groups::GroupState;
use super::outbox::Timer;
use super::peers::Phase;
use super::rebuild::Rebuild;
use super::run::{Action, ConnectionId, Note};
use super::sessions::Sessions;
use crate::collective::Group;
use crate::id::PeerId;
use crate::limits::{COUNT_MAX, MEMBERS_MAX};
use crate::time::Instant;
use crate::wire::control::{EpochRecord, KickReason, Resume, Term, ToPeer};
use std::collections::{BTreeMap, VecDeque};

/// Further than this from all others, a term was never obeyed: a million restarts.
const TERM_FAR: Term = 1 << 20;

/// A resume that contradicts a rebuild under way, and waits until it is known which of them counts.
#[derive(Clone, Debug, Hash)]
struct Rival {
    at: ConnectionId,
    resume: Resume,
}

/// What a resume is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A member's of a group that we serve.
    Member,
    /// Part of what is being rebuilt, or the beginning of it.
    Rebuilding,
    /// It contradicts what is being rebuilt under that number.
    Rival(Group),
    /// A member's that obeys a higher term than ours, and most others have not said so.
    Ahead,
    /// Nobody's whom we must believe.
    Stranger,
}

/// What a claimed term is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// It is counted.
    Counts,
    /// Nobody else has spoken yet, and it is far above what we know: it waits for others to confirm it.
    Alone,
    /// Nobody can have obeyed it; in words.
    Breach(String),
}

/// How many terms are remembered that a peer was told and has not promised to obey. Each is a rebuild.
const TOLD_MAX: usize = 16;

/// The terms that a peer can have from us.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Terms {
    /// What it surely obeyed, in our own reign.
    obeyed: Term,
    /// What we told it since. Of a connection that broke nobody knows whether it arrived.
    told: VecDeque<Term>,
}

impl Terms {
    /// Of a peer that is known to have obeyed that one.
    pub(super) fn new(obeyed: Term) -> Self {
        Self { obeyed, told: VecDeque::new() }
    }

    pub(super) fn tell(&mut self, term: Term) {
        if term > self.obeyed && !self.told.contains(&term) {
            self.told.push_back(term);
            if self.told.len() > TOLD_MAX {
                self.told.pop_front();
            }
        }
    }

    /// It promised to obey that one, which we told it.
    pub(super) fn promise(&mut self, term: Term) {
        if self.told.contains(&term) {
            self.obeyed = term;
            self.told.retain(|told| *told > term);
        }
    }

    /// Whether a peer that obeys that term can have heard nobody but us. Not so if it is between what it obeyed and
    /// what we told it: then another said it, however high our own term is by now.
    pub(super) fn has(&self, term: Term) -> bool {
        term <= self.obeyed || self.told.contains(&term)
    }
}

/// Whose word is waited for, or held against us.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Claims {
    /// When the first message came: until the old members' sessions have run out, they may come back to us.
    born: Option<Instant>,
    /// Resumes that wait until it is known which claim counts (rule 41).
    rivals: BTreeMap<PeerId, Rival>,
    /// Members that obey a higher term than ours, and its number.
    ahead: BTreeMap<PeerId, Term>,
}

impl Claims {
    /// A message came: if it was the first, sessions of before are counted from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        self.born.get_or_insert(now);
    }

    /// When all have come back who ever will: sessions outlive a coordinator by this time.
    pub(super) fn known_by(&self, now: Instant, config: &Config) -> Instant {
        self.born.map_or(now, |born| born + config.control_lost_after)
    }

    /// Whether nobody waits for an answer.
    pub(super) fn is_empty(&self) -> bool {
        self.rivals.is_empty()
    }

    pub(super) fn footprint(&self) -> usize {
        self.rivals.len() + self.ahead.len()
    }
}

impl Sessions<'_> {
    /// What a resume that could be true is to us.
    pub(super) fn regard(&mut self, now: Instant, from: PeerId, resume: &Resume, waited: bool) -> Standing {
        let (group, record) = (resume.record.group, &resume.record);
        if let Some(state) = self.groups.get(group).filter(|state| state.is_served()) {
            // A member that was evicted learns that from the roster, a stranger here.
            if !state.is_of_history(record) {
                return Standing::Stranger;
            }
            let ours = self.office.peers.get(from).is_none_or(|peer| peer.terms.has(resume.term));
            if !ours && self.office.peers.is_member(from, group) {
                let deposed = self.is_deposed(from, group, resume.term);
                return if deposed { Standing::Rebuilding } else { Standing::Ahead };
            }
            // It may know an epoch of ours that we never opened.
            return if record.epoch > state.epoch { Standing::Stranger } else { Standing::Member };
        }
        if self.office.peers.len() + self.claims.rivals.len() + record.roster.len() > 2 * MEMBERS_MAX {
            return Standing::Stranger;
        }
        // Sessions outlive a coordinator by this time. A group of which nobody has spoken by then is invented.
        let young = self.claims.born.is_none() || now < self.claims.known_by(now, self.config);
        if self.groups.get(group).is_none() && !self.groups.is_empty() && !young {
            return Standing::Stranger;
        }
        match self.contradicted(group, from, record) {
            None => Standing::Rebuilding,
            Some(other) => match self.groups.get(other).and_then(|state| state.rebuild()) {
                // It had its time, and more have come back to the other.
                Some(rebuild) if waited && rebuild.voices() > self.companions(from, record) + 1 => {
                    Standing::Stranger
                }
                Some(rebuild) if !rebuild.is_weighed() => Standing::Rival(other),
                _ => Standing::Stranger,
            },
        }
    }

    /// The group, of those that we serve or rebuild, that cannot be true together with this record.
    fn contradicted(&self, group: Group, from: PeerId, record: &EpochRecord) -> Option<Group> {
        if let Some(state) = self.groups.get(group)
            && let Some(rebuild) = state.rebuild()
            && !rebuild.is_in_line(from, record)
        {
            return Some(group);
        }
        record.roster.iter().find_map(|info| {
            let known = self.office.peers.get(info.id).filter(|peer| peer.phase == Phase::Accepted)?;
            Some(known.group).filter(|other| *other != group)
        })
    }

    /// Lets a resume wait until it is known which claim counts. It is answered then.
    pub(super) fn park(
        &mut self,
        now: Instant,
        at: ConnectionId,
        from: PeerId,
        resume: Resume,
        beside: Group,
    ) {
        let rebuild = self.groups.get(beside).and_then(|state| state.rebuild());
        let since = rebuild.map_or(now, |rebuild| rebuild.since);
        self.office.outbox.schedule(since + self.config.control_grace, Timer::Claims(beside));
        self.claims.rivals.insert(from, Rival { at, resume });
        self.office.peers.wait_aside(now, from);
    }

    /// A claim does not wait any more. If its peer is expected somewhere, it is away there again until it is heard.
    fn recall_rival(&mut self, now: Instant, peer: PeerId) -> Option<Rival> {
        let rival = self.claims.rivals.remove(&peer)?;
        if self.office.peers.step_out(now, peer) {
            self.inquiry().review_lost(now, peer);
        }
        Some(rival)
    }

    /// A peer speaks anew: what it said on an earlier connection waits no longer.
    pub(super) fn forget_rival(&mut self, now: Instant, peer: PeerId) {
        if let Some(rival) = self.recall_rival(now, peer) {
            self.office.outbox.act(Action::Close(rival.at));
        }
    }

    /// A connection is gone: whoever waited on it does not wait any more.
    pub(super) fn hang_up_rival(&mut self, now: Instant, at: ConnectionId) {
        let gone = self.claims.rivals.iter().find(|(_, rival)| rival.at == at).map(|(peer, _)| *peer);
        if let Some(peer) = gone {
            self.recall_rival(now, peer);
        }
    }

    /// Whether claims wait that cannot be true together with that rebuild.
    pub(super) fn is_contested(&self, group: Group) -> bool {
        self.claims.rivals.iter().any(|(peer, rival)| {
            self.contradicted(rival.resume.record.group, *peer, &rival.resume.record) == Some(group)
        })
    }

    /// The members of a group that is being rebuilt had their time to speak (rule 41).
    pub(super) fn weigh_claims(&mut self, now: Instant, group: Group) {
        if let Some(rebuild) = self.groups.get_mut(group).and_then(GroupState::rebuild_mut) {
            let until = rebuild.due(now, self.config);
            if now < until {
                return self.office.outbox.schedule(until, Timer::Claims(group));
            }
            rebuild.weigh();
            let (promised, voices) = (rebuild.is_promised(self.office.term), rebuild.voices());
            let most = self.claims.rivals.keys().map(|rival| self.voices_of(rival)).max().unwrap_or(0);
            if !promised || most > voices {
                self.dissolve(group);
            }
        }
        self.hear_rivals(now, true);
        self.try_finish_rebuild(now, group);
    }

    /// Gives up a rebuild: whoever told of that group joins anew.
    fn dissolve(&mut self, group: Group) {
        let Some(state) = self.groups.remove(group) else { return };
        let text = "this coordinator was restarted and does not know that group: connect again to join";
        self.office.dismiss(&state.roster, KickReason::Superseded, text);
        self.office.agenda.count_votes();
    }

    /// Hears those again who had to wait: all of them, or those whom nothing contradicts any more.
    pub(super) fn hear_rivals(&mut self, now: Instant, all: bool) {
        let mut waiting: Vec<_> = self.claims.rivals.keys().copied().collect();
        // Those first of whom there are more.
        waiting.sort_by_cached_key(|peer| std::cmp::Reverse(self.voices_of(peer)));
        for peer in waiting {
            let Some(rival) = self.claims.rivals.get(&peer) else { continue };
            let record = &rival.resume.record;
            if all || self.contradicted(record.group, peer, record).is_none() {
                let Some(Rival { at, resume }) = self.recall_rival(now, peer) else { continue };
                self.hear_resume(now, at, peer, resume, all);
            }
        }
    }

    /// How many of those who wait tell of the same history as this one.
    fn voices_of(&self, rival: &PeerId) -> usize {
        let record = self.claims.rivals.get(rival).map(|rival| &rival.resume.record);
        record.map_or(0, |record| self.companions(*rival, record) + 1)
    }

    /// How many others of those who wait tell of the same history.
    fn companions(&self, peer: PeerId, record: &EpochRecord) -> usize {
        let others = self.claims.rivals.iter().filter(|(other, _)| **other != peer);
        others.filter(|(_, rival)| rival.resume.record.is_akin(record)).count()
    }

    /// Whether most members of a group obey terms that are not ours. Then another coordinator reigned there since, and
    /// nothing that we hold of it counts any more (rule 17): we begin that group again like one that was just started,
    /// and learn from its members how things stand. A single word is not enough, and no group's word is about another.
    fn is_deposed(&mut self, from: PeerId, group: Group, term: Term) -> bool {
        let Some(state) = self.groups.get(group) else { return false };
        self.claims.ahead.insert(from, term);
        self.claims.ahead.retain(|peer, _| self.office.peers.knows(*peer));
        let ahead = state.roster.iter().filter(|peer| self.claims.ahead.contains_key(peer)).count();
        if 2 * ahead <= state.roster.len() {
            return false;
        }
        let members = state.roster.clone();
        self.office.outbox.note(Note::SteppedDown(term));
        self.groups.remove(group);
        for member in members {
            self.claims.ahead.remove(&member);
            self.office.strike_out(member);
            self.evidence.forget(member);
        }
        if self.office.peers.is_empty() {
            self.office.peers.forget_encryption();
            self.evidence.thaw();
        }
        true
    }

    /// Holds a claimed term against ours and those of all other lines.
    pub(super) fn weigh_term(&self, from: PeerId, resume: &Resume, waited: bool) -> Weight {
        if !self.is_far(resume.term) {
            return Weight::Counts;
        }
        let own = self.companions(from, &resume.record) + 1;
        let waiting = self.claims.rivals.iter().filter(|(_, rival)| !self.is_far(rival.resume.term));
        let waiting = waiting.map(|(peer, _)| self.voices_of(peer));
        // What was heard already has raised our own term: none of it is far.
        let heard = self.groups.values().filter_map(|state| state.rebuild()).map(Rebuild::voices);
        let nearer = waiting.chain(heard).max().unwrap_or(0);
        let served = self.groups.values().any(GroupState::is_served);
        if served || (nearer >= own && (waited || nearer > 1)) {
            let (term, ours) = (resume.term, self.office.term);
            return Weight::Breach(format!(
                "resumed with term {term}, which nobody else has obeyed: ours is {ours}"
            ));
        }
        if waited { Weight::Counts } else { Weight::Alone }
    }

    /// Whether nobody can be that far ahead of us.
    fn is_far(&self, term: Term) -> bool {
        term > self.office.term.saturating_add(TERM_FAR)
    }

    /// Those who wait for others to confirm a far term, and whom enough others have contradicted by now, are put out.
    pub(super) fn weigh_far_terms(&mut self, now: Instant) {
        let far = |(peer, rival): (&PeerId, &Rival)| self.is_far(rival.resume.term).then_some(*peer);
        let far: Vec<_> = self.claims.rivals.iter().filter_map(far).collect();
        for peer in far {
            let weight =
                self.claims.rivals.get(&peer).map(|rival| self.weigh_term(peer, &rival.resume, false));
            if let Some(Weight::Breach(text)) = weight
                && let Some(Rival { at, .. }) = self.recall_rival(now, peer)
            {
                self.put_out(at, &text);
            }
        }
    }

    /// Turns somebody away who claims what cannot be.
    pub(super) fn put_out(&mut self, at: ConnectionId, text: &str) {
        self.office.counters.kicks += 1;
        self.office.turn_away(at, KickReason::Breach, text);
    }

    /// A peer that begins anew keeps its promise to obey no lower term than it has seen (rule 17). A coordinator
    /// that was started afresh takes that term over: it has decided nothing yet. One that has had members does
    /// not: if it is one of the past, the peer must refuse it.
    pub(super) fn meet_term(&mut self, seen: Term) {
        if self.groups.is_empty() && seen <= self.office.term.saturating_add(TERM_FAR) {
            self.raise_term(seen);
        }
    }

    /// The term grows with every rebuild, beyond any that a peer has obeyed, and never shrinks; all who are here hear of
    /// it. At its bound it stays: the next reign is not told apart from this one, and nobody refuses it.
    pub(super) fn raise_term(&mut self, wanted: Term) {
        let wanted = wanted.min(COUNT_MAX);
        if wanted <= self.office.term {
            return;
        }
        self.office.term = wanted;
        let mut told = Vec::new();
        for (id, peer) in self.office.peers.iter_mut().filter(|(_, peer)| peer.connection.is_some()) {
            peer.terms.tell(wanted);
            told.push(id);
        }
        self.office.tell_all(&told, ToPeer::Resumed { term: wanted });
    }
}
