//! Votes for newcomers: the whole run, unanimously, between collectives.
//!
//! Every accepted peer votes by calling `update_topology`; a newcomer's registration is its vote. When all
//! have voted and nothing runs, whoever makes its group as large as all its voters ask for is admitted, and
//! the changed groups get a new epoch: one for many newcomers, not one for each. A group's vote ends for all
//! of its members together, when the links are up and it is large enough; until then the votes stand. A voter
//! that is lost is simply no longer asked. The first deadline to pass ends the vote for its group (rule 6).
//!
//! A newcomer may ask for what cannot be had, such as four members where there would be three. A vote could not let it
//! in, so it is not counted as pending, and no vote waits on its account (rule 10): it waits until others come.
//!
//! The votes of a group are numbered. So a member that did not hear how a vote ended, because its connection
//! broke or the coordinator died in the middle of saying it, is told when it resumes, and does not wait in a
//! vote that the others have left.

use super::groups::GroupState;
use super::peers::Phase;
use super::run::{Note, Run};
use super::status::some;
use crate::collective::Group;
use crate::id::PeerId;
use crate::limits::NAMED_MAX;
use crate::time::Instant;
use crate::wire::control::{Rounds, ToPeer};
use std::collections::BTreeMap;

/// What a vote would make of a group.
struct Prospect {
    /// How many would come in.
    newcomers: usize,
    /// The most members that any of them asks for.
    most: u32,
}

impl Run {
    pub(super) fn vote_topology(&mut self, now: Instant, from: PeerId, min_world: u32, round: u64) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if min_world == 0 {
            return self.set_vote(from, None); // Its call ended without us: the vote no longer stands.
        }
        let group = peer.group;
        let Some(state) = self.groups.get(&group).filter(|_| peer.phase == Phase::Accepted) else { return };
        if round <= state.rounds.ended {
            self.counters.stale += 1;
            return; // That vote is over, and the news is on its way to it.
        }
        peer.last_call = (format!("update_topology(min_world={min_world})"), now);
        self.set_vote(from, Some(min_world));
        self.judge_mixed_calls(now, group);
    }

    /// A voter's deadline passed: the vote is over for its whole group, and all learn who was waited for.
    pub(super) fn topology_expired(&mut self, now: Instant, from: PeerId, round: u64) {
        let Some(group) = self.peers.get(&from).map(|peer| peer.group) else { return };
        let Some(state) = self.groups.get_mut(&group).filter(|state| state.voters.contains(&from)) else {
            return;
        };
        if round != state.rounds.ended + 1 {
            self.counters.stale += 1;
            return;
        }
        state.rounds.ended = round;
        let (roster, voters) = (state.roster.clone(), state.voters.clone());
        let everybody = self.groups.values().flat_map(|state| {
            state
                .roster
                .iter()
                .filter(|peer| !state.voters.contains(peer) || state.unconfirmed.contains(peer))
        });
        let waiting = self.waiting_list(now, everybody);
        for voter in voters {
            self.set_vote(voter, None);
        }
        self.tell_all(&roster, ToPeer::TopologyTimeout { round, waiting });
    }

    /// Takes the next step of admission if everybody agrees.
    pub(super) fn try_topology(&mut self, now: Instant) {
        let agrees = |group: &GroupState| {
            group.open_ops == 0 && group.rebuild.is_none() && group.voters.len() == group.roster.len()
        };
        if self.pending() == 0 {
            // There is nobody to admit: a group's vote is its own affair. The others are not told that anybody
            // waits, and would not come to vote (rule 10).
            return self.finish_votes(|group| agrees(group) && group.unconfirmed.is_empty());
        }
        if !self.groups.values().all(agrees) {
            return;
        }
        let admissible = self.admissible();
        if !admissible.is_empty() {
            return self.admit(now, admissible);
        }
        if self.groups.values().all(|group| group.unconfirmed.is_empty()) {
            self.finish_votes(|_| true);
        }
    }

    /// How many newcomers a vote of all groups would let in, were it held now (rule 10). Who has not voted is taken
    /// to ask for nothing.
    pub(super) fn pending(&self) -> u32 {
        if self.fresh_after.is_some() {
            return 0; // Members of before may be on their way, of groups that nobody has spoken of (rule 41).
        }
        let count = |group: Group| self.prospect(group).map_or(0, |prospect| prospect.newcomers);
        self.newcomers.groups().map(count).sum::<usize>() as u32
    }

    /// What a group would be if a vote were held now. None if nobody could come in: admitting fewer than make it as
    /// large as everybody in it asks for would end nobody's call, and cost an epoch each.
    fn prospect(&self, group: Group) -> Option<Prospect> {
        let roster = self.groups.get(&group).map_or(&[][..], |state| &state.roster);
        // Whoever asks for more than there would be waits outside.
        let (size, most) = self.newcomers.prospect(group, roster.len());
        let content = |id: &PeerId| {
            self.peers.get(id).and_then(|peer| peer.vote).is_none_or(|wants| wants as usize <= size)
        };
        let newcomers = size - roster.len();
        (newcomers > 0 && roster.iter().all(content)).then_some(Prospect { newcomers, most })
    }

    /// The newcomers whom a vote of all groups lets in now.
    fn admissible(&self) -> BTreeMap<Group, Vec<PeerId>> {
        let mut by_group = BTreeMap::new();
        for group in self.newcomers.groups() {
            if let Some(Prospect { most, .. }) = self.prospect(group) {
                let mut newcomers = self.newcomers.modest(group, most);
                // Ranks of newcomers follow the order of their arrival.
                newcomers.sort_by_key(|id| self.peers[id].age);
                by_group.insert(group, newcomers);
            }
        }
        by_group
    }

    /// What newcomers wait for, one sentence each.
    pub(super) fn newcomers_wait(&self, now: Instant, name: impl Fn(&PeerId) -> String) -> Vec<String> {
        let mut sentences = Vec::new();
        if let Some(until) = self.fresh_after.filter(|_| self.newcomers.groups().next().is_some()) {
            let time = until.since(now).as_secs_f64();
            sentences.push(format!(
                "nobody is admitted yet: members of before the coordinator's start have {time:.1} s to come back"
            ));
        }
        let mut admissible = Vec::new();
        for group in self.newcomers.groups().take(NAMED_MAX) {
            let most = self.prospect(group).map(|prospect| prospect.most);
            let (modest, others): (Vec<_>, Vec<_>) =
                self.newcomers.of(group).partition(|(_, wants)| most.is_some_and(|most| *wants <= most));
            admissible.extend(modest.iter().map(|(id, _)| *id));
            let there = self.groups.get(&group).map_or(0, |state| state.roster.len());
            for (id, wants) in others.iter().take(NAMED_MAX) {
                let (who, with) = (name(id), there + modest.len() + others.len());
                sentences.push(format!(
                    "{who} waits for group {group} to have {wants} members: there would be {with} with all that wait"
                ));
            }
        }
        let silent = |state: &GroupState| -> Vec<PeerId> {
            state.roster.iter().filter(|id| !state.voters.contains(id)).copied().collect()
        };
        let silent: Vec<_> = self.groups.values().flat_map(silent).collect();
        if !admissible.is_empty() && !silent.is_empty() {
            let (who, whom) = (some(admissible.iter(), &name), some(silent.iter(), &name));
            let (who, whom) = (who.join(", "), whom.join(", "));
            sentences.push(format!("{who} waits to be admitted until {whom} calls update_topology"));
        }
        sentences
    }

    fn admit(&mut self, now: Instant, by_group: BTreeMap<Group, Vec<PeerId>>) {
        self.run_epoch += 1;
        for (group, joined) in by_group {
            for id in &joined {
                self.newcomers.remove(*id);
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.phase = Phase::Accepted;
                }
                self.note(Note::Accepted(*id));
            }
            let mut roster = self.groups.get(&group).map(|state| state.roster.clone()).unwrap_or_default();
            roster.extend(&joined);
            self.open_epoch(now, group, roster, joined.clone(), Vec::new());
            if let Some(state) = self.groups.get_mut(&group) {
                state.voters.extend(joined);
            }
        }
    }

    /// Ends the calls of all voters of the groups that are large enough for everybody in them.
    fn finish_votes(&mut self, ready: impl Fn(&GroupState) -> bool) {
        let (run_epoch, global_world_size) = (self.run_epoch, self.global_world_size());
        let satisfied = |peer: &PeerId, size: usize| {
            self.peers.get(peer).and_then(|peer| peer.vote).is_none_or(|wants| wants as usize <= size)
        };
        let done: Vec<_> = self
            .groups
            .iter()
            .filter(|(_, state)| ready(state))
            .filter(|(_, state)| state.roster.iter().all(|peer| satisfied(peer, state.roster.len())))
            .map(|(group, _)| *group)
            .collect();
        for group in done {
            let Some(state) = self.groups.get_mut(&group) else { continue };
            let round = state.rounds.ended + 1;
            state.rounds = Rounds { ended: round, done: round };
            state.voters.clear();
            state.world_told = global_world_size;
            let roster = state.roster.clone();
            for id in &roster {
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.vote = None;
                }
            }
            self.tell_all(&roster, ToPeer::TopologyDone { run_epoch, global_world_size, round });
        }
    }

    /// Tells a member that comes back how the votes ended whose end it did not hear.
    pub(super) fn tell_rounds(&mut self, peer: PeerId, group: Group, known: Rounds) {
        let Some(rounds) = self.groups.get(&group).map(|state| state.rounds) else { return };
        if rounds.done > known.ended {
            // A vote that ended well had this peer's vote: it is the one that it waits in.
            let (run_epoch, global_world_size) = (self.run_epoch, self.global_world_size());
            self.tell(peer, ToPeer::TopologyDone { run_epoch, global_world_size, round: rounds.done });
        }
        if rounds.ended > known.ended.max(rounds.done) {
            self.tell(peer, ToPeer::TopologyTimeout { round: rounds.ended, waiting: Vec::new() });
        }
    }
}
