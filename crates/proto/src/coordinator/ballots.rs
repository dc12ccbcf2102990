//! Ballots as the coordinator holds them: votes in, ends out. What they are is said in [`crate::ballot`].
//!
//! Nothing here knows a kind. Votes stand in their group until the ballot ends, the voter takes its vote back, begins
//! something else or is lost. They are counted once for everything that a call to the machine has led to.

use super::admission::Gate;
use super::calls::Calls;
use super::epochs::Epochs;
use super::groups::{Groups, Phase as GroupPhase};
use super::office::Office;
use super::peers::Phase;
use crate::ballot::{self, Hall, Known, Reach, Seats, Step, admission};
use crate::collective::{Group, Scope};
use crate::id::PeerId;
use crate::time::Instant;
use crate::wire::control::{BallotEnd, BallotId, BallotKind, BallotReport, ToPeer};

impl Calls<'_> {
    /// A member votes.
    pub(super) fn vote(&mut self, now: Instant, from: PeerId, id: BallotId, wish: Vec<u8>) {
        let Some(rules) = ballot::rules(id.kind) else {
            return self.tell_end([&from], id, BallotEnd::Unknown);
        };
        if let Err(text) = rules.check(&wish) {
            return self.office.kick(from, &format!("its vote in {id} {text}"));
        }
        let Some(peer) = self.office.peers.get_mut(from).filter(|peer| peer.phase == Phase::Accepted) else {
            return;
        };
        let group = peer.group;
        let Some(state) = self.groups.get_mut(group) else { return };
        if id.number < state.ballots.current(id.kind).number {
            self.office.count_stale();
            return; // That ballot is over, and the news is on its way to it.
        }
        peer.last_call = (rules.call(&wish), now);
        let host = peer.info.address.ip();
        state.survey.note_vote(now, (from, host), &state.roster, id.kind, &wish);
        state.ballots.vote(id.kind, from, wish);
        self.office.agenda.count_votes();
        self.judge_mixed_calls(now, group);
    }

    /// A member's call ended without us: its vote no longer stands. If it owed that one, nobody's can lead anywhere.
    pub(super) fn take_back_vote(&mut self, now: Instant, from: PeerId, id: BallotId) {
        let peer = self.office.peers.get(from).filter(|peer| peer.phase == Phase::Accepted);
        let (Some(group), Some(rules)) = (peer.map(|peer| peer.group), ballot::rules(id.kind)) else {
            return;
        };
        let Some(state) = self.groups.get(group) else { return };
        let is_owed = id == state.ballots.current(id.kind)
            && state.ballots.last_end(id.kind).is_some_and(|outcome| rules.goes_on(outcome));
        if is_owed {
            let who = self.office.peers.waiting(now, from);
            return self.end_ballot(group, id.kind, None, BallotEnd::GivenUp(who));
        }
        if state.ballots.vote_of(from).is_some_and(|(kind, _)| kind == id.kind) {
            self.withdraw(from);
        }
    }

    /// A member's vote no longer stands, in whichever ballot it is.
    pub(super) fn withdraw(&mut self, peer: PeerId) {
        let Some(group) = self.office.peers.get(peer).map(|peer| peer.group) else { return };
        if self.groups.get_mut(group).is_some_and(|state| state.ballots.take_back(peer)) {
            self.office.agenda.count_votes();
        }
    }

    /// A voter's deadline passed: the ballot is over for its whole group, and all learn who was waited for (rule 6).
    pub(super) fn ballot_expired(&mut self, now: Instant, from: PeerId, id: BallotId) {
        let (Some(group), Some(rules)) =
            (self.office.peers.get(from).map(|peer| peer.group), ballot::rules(id.kind))
        else {
            return;
        };
        let Some(state) = self.groups.get(group) else { return };
        if state.ballots.vote_of(from).is_none_or(|(kind, _)| kind != id.kind) {
            return;
        }
        if id != state.ballots.current(id.kind) {
            self.office.count_stale();
            return;
        }
        let within_reach =
            self.groups.iter().filter(|(other, _)| rules.reach() == Reach::Run || *other == group);
        let missing = within_reach.flat_map(|(_, state)| {
            let votes = state.ballots.votes(id.kind);
            let wish = move |peer: &PeerId| votes.and_then(|votes| votes.get(peer));
            let voted = move |peer: &PeerId| wish(peer).is_some_and(|wish| rules.is_final(wish));
            state.roster.iter().filter(move |peer| !voted(peer) || state.linking.awaits(**peer))
        });
        let waiting = self.office.peers.waiting_list(now, missing);
        self.end_ballot(group, id.kind, None, BallotEnd::TimedOut(waiting));
        self.office.agenda.count_votes();
    }

    /// How many newcomers a vote of all groups would let in, were it held now (rule 10).
    pub(super) fn pending(&self) -> u32 {
        if self.office.peers.newcomers().is_empty() {
            return 0;
        }
        admission::pending(&hall(self.office, self.groups, self.gate, admission::KIND))
    }

    /// Ends a group's open ballot of that kind, for everybody who is in the group.
    fn end_ballot(&mut self, group: Group, kind: BallotKind, outcome: Option<Vec<u8>>, end: BallotEnd) {
        let (agreed, size) = (outcome.is_some(), self.groups.world_size());
        let Some(state) = self.groups.get_mut(group) else { return };
        let id = state.ballots.end(kind, outcome);
        state.refused_ring = None;
        self.office.agenda.count_votes();
        if agreed {
            state.world_told = size; // It comes with the news.
        }
        let (outbox, steps) = (&mut self.office.outbox, self.config.ring_steps.1);
        state.survey.note_end(outbox, kind, agreed, (&state.roster, &state.ring), steps);
        let roster = state.roster.clone();
        self.tell_end(&roster, id, end);
    }

    pub(super) fn tell_end<'a>(
        &mut self,
        peers: impl IntoIterator<Item = &'a PeerId>,
        ballot: BallotId,
        end: BallotEnd,
    ) {
        let (run_epoch, global_world_size) = (self.groups.run_epoch(), self.groups.world_size());
        self.office.tell_all(peers, ToPeer::BallotEnded { ballot, end, run_epoch, global_world_size });
    }

    /// Tells a member that comes back how the ballots ended whose end it did not hear.
    pub(super) fn tell_missed_ends(&mut self, peer: PeerId, group: Group, known: &Known) {
        let missed = self.groups.get(group).map(|state| state.ballots.missed(known));
        for (id, end) in missed.unwrap_or_default() {
            self.tell_end([&peer], id, end);
        }
    }

    /// The vote that a member stood in when it lost us, if that ballot is not over.
    pub(super) fn vote_again(&mut self, now: Instant, from: PeerId, group: Group, reports: &[BallotReport]) {
        self.withdraw(from);
        let Some(state) = self.groups.get_mut(group) else { return };
        let open = reports
            .iter()
            .filter(|report| ballot::rules(report.kind).is_some() && !state.ballots.is_over(report));
        if let Some((kind, wish)) =
            open.into_iter().find_map(|report| Some((report.kind, report.wish.clone()?)))
        {
            if let Some(peer) = self.office.peers.get(from) {
                state.survey.note_vote(now, (from, peer.info.address.ip()), &state.roster, kind, &wish);
            }
            state.ballots.vote(kind, from, wish);
        }
        self.office.agenda.count_votes();
        self.judge_mixed_calls(now, group);
    }
}

impl Epochs<'_> {
    /// Takes the next step of every kind for which everybody agrees.
    pub(super) fn count_votes(&mut self, now: Instant) {
        self.open_prepared(now);
        if self.office.peers.newcomers().is_empty()
            && self.groups.values().all(|state| state.ballots.open().next().is_none())
        {
            return;
        }
        for rules in ballot::KINDS {
            let hall = hall(self.office, self.groups, self.gate, rules.kind());
            match rules.count(&hall.counted(now, self.config.ring_steps.0)) {
                Step::Wait => {}
                Step::Admit(newcomers) => self.admit(now, newcomers),
                Step::Rewire(rings) => {
                    for (group, ring) in rings {
                        if let Some(state) = self.groups.get_mut(group) {
                            state.survey.note_rewiring(rules.kind(), &state.ring);
                        }
                        self.rewire(rules.kind(), group, ring);
                    }
                }
                Step::Ask(questions) => {
                    for (group, question) in questions {
                        if let Some(state) = self.groups.get_mut(group) {
                            state.survey.ask(&mut self.office.outbox, question);
                        }
                    }
                    // Other groups may have something else to do.
                    self.office.agenda.count_votes();
                }
                Step::Agree(outcomes) => {
                    for (group, outcome) in outcomes {
                        if let Some(agreement) = rules.agreement(&outcome) {
                            let roster = self.groups.members_in(group, &Scope::Whole);
                            let took_part = |peer| agreement.is_of(peer);
                            self.groups.set_revision_of(group, agreement.revision, &roster, took_part);
                        }
                        let end = BallotEnd::Agreed(outcome.clone());
                        self.calls().end_ballot(group, rules.kind(), Some(outcome), end);
                    }
                }
            }
        }
    }
}

/// What the rules of a kind may see.
pub(super) fn hall<'a>(office: &'a Office, groups: &'a Groups, gate: &Gate, kind: BallotKind) -> Hall<'a> {
    let seats = groups.iter().map(|(group, state)| Seats {
        group,
        members: &state.roster,
        ring: &state.ring,
        refused_ring: state.refused_ring.as_deref(),
        paths: &state.paths,
        survey: &state.survey,
        votes: state.ballots.votes(kind),
        agreed: state.ballots.agreed(kind),
        revision: groups.revision(group),
        is_quiet: state.operations.is_quiet() && state.is_served(),
        is_linked: state.linking.is_done() && !matches!(state.phase, GroupPhase::Rewiring(_)),
    });
    // Members of before may be on their way, of groups that nobody has spoken of (rule 41): nobody is let in.
    Hall::new(seats.collect(), Some(office.peers.newcomers()).filter(|_| gate.is_open()))
}
