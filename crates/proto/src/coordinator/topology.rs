//! Votes for newcomers: the whole run, unanimously, between collectives.
//!
//! Every accepted peer votes by calling `update_topology`; a newcomer's registration is its vote. When all
//! have voted and nothing runs, everybody who waits is admitted and the changed groups get a new epoch. A
//! voter's call ends when its links are up and its group is as large as it asked for; until then its vote
//! stands. A voter that is lost is simply no longer asked.

use super::peers::{Phase, TopologyVote};
use super::run::{Note, Run};
use crate::collective::Group;
use crate::id::PeerId;
use crate::time::Instant;
use crate::wire::control::ToPeer;
use std::collections::BTreeMap;

impl Run {
    pub(super) fn vote_topology(&mut self, now: Instant, from: PeerId, min_world: u32) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if min_world == 0 {
            peer.vote = None; // Its call ended without us: the vote no longer stands.
            return;
        }
        let since = peer.vote.map_or(now, |vote| vote.since);
        peer.vote = Some(TopologyVote { min_world, since });
        peer.last_call = (format!("update_topology(min_world={min_world})"), now);
        let group = peer.group;
        self.judge_mixed_calls(now, group);
        self.try_topology(now);
    }

    /// Two kinds of calls in one group are a mistake of the program, not a reason to wait (rule 7).
    pub(super) fn judge_mixed_calls(&mut self, now: Instant, group: Group) {
        let keys = self.open_keys(group, |scope, _| *scope == crate::collective::Scope::Whole);
        let Some(key) = keys.first() else { return };
        let Some(state) = self.groups.get(&group) else { return };
        let place = (key.scope.clone(), key.tag);
        let Some(op) = state.tags.get(&place).and_then(|tag| tag.open.as_ref()) else { return };
        let voters: Vec<_> = state
            .roster
            .iter()
            .filter(|peer| !op.votes.contains_key(peer))
            .filter(|peer| self.peers.get(peer).is_some_and(|peer| peer.vote.is_some()))
            .copied()
            .collect();
        if voters.is_empty() {
            return;
        }
        let callers: Vec<_> = op.votes.keys().copied().collect();
        let words = op.calls[0].to_string();
        let oldest = |side: &[PeerId]| side.iter().filter_map(|id| Some(self.peers.get(id)?.age)).min();
        let voters_deviate = match voters.len().cmp(&callers.len()) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal => oldest(&voters) > oldest(&callers),
        };
        if voters_deviate {
            for voter in voters {
                if let Some(peer) = self.peers.get_mut(&voter) {
                    peer.vote = None;
                }
                self.tell(voter, ToPeer::TopologyMismatch { others: words.clone() });
            }
        } else {
            let reason = crate::wire::control::AbortReason::Mismatch {
                deviating: callers,
                theirs: words,
                common: "update_topology".to_owned(),
            };
            self.abort(now, key, reason);
        }
    }

    /// Takes the next step of admission if everybody agrees.
    pub(super) fn try_topology(&mut self, now: Instant) {
        let busy = self.groups.values().any(|group| group.has_open_ops() || group.rebuild.is_some());
        let unanimous = self.accepted().all(|(_, peer)| peer.vote.is_some());
        let too_early = self.groups.is_empty() && self.fresh_after.is_some_and(|fresh| now < fresh);
        if busy || !unanimous || too_early {
            return;
        }
        let newcomers: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.phase == Phase::Registered)
            .map(|(id, _)| *id)
            .collect();
        if !newcomers.is_empty() {
            return self.admit(now, newcomers);
        }
        if self.groups.values().any(|group| !group.unconfirmed.is_empty()) {
            return;
        }
        self.finish_votes();
    }

    fn admit(&mut self, now: Instant, mut newcomers: Vec<PeerId>) {
        // Ranks of newcomers follow the order of their arrival.
        newcomers.sort_by_key(|id| self.peers[id].age);
        let mut by_group: BTreeMap<Group, Vec<PeerId>> = BTreeMap::new();
        for id in newcomers {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.phase = Phase::Accepted;
                by_group.entry(peer.group).or_default().push(id);
            }
            self.note(Note::Accepted(id));
        }
        self.run_epoch += 1;
        for (group, joined) in by_group {
            let mut roster = self.groups.get(&group).map(|state| state.roster.clone()).unwrap_or_default();
            roster.extend(&joined);
            self.open_epoch(now, group, roster, joined, Vec::new());
        }
    }

    /// Ends the calls of all voters whose group is large enough.
    fn finish_votes(&mut self) {
        let satisfied: Vec<_> = self
            .accepted()
            .filter(|(_, peer)| {
                let size = self.groups.get(&peer.group).map_or(0, |group| group.roster.len() as u32);
                peer.vote.is_some_and(|vote| size >= vote.min_world)
            })
            .map(|(id, _)| *id)
            .collect();
        let (run_epoch, global_world_size) = (self.run_epoch, self.global_world_size());
        for id in satisfied {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.vote = None;
            }
            self.tell(id, ToPeer::TopologyDone { run_epoch, global_world_size });
        }
    }
}
