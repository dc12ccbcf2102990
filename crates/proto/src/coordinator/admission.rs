//! Letting newcomers in: what the coordinator does for the ballot of that name ([`crate::ballot::admission`]).

use super::Config;
use super::ballots::hall;
use super::epochs::Epochs;
use super::groups::{GroupState, Groups};
use super::office::Office;
use super::run::Note;
use super::status::some;
use crate::ballot::admission::{self, KIND};
use crate::collective::Group;
use crate::id::PeerId;
use crate::limits::{FAILED_MAX, NAMED_MAX};
use crate::retry;
use crate::time::Instant;
use std::collections::BTreeMap;

/// How often a peer was evicted since it last took part in a commit, and when last.
#[derive(Clone, Copy, Debug, Hash)]
struct Evicted {
    times: u32,
    last: Instant,
}

/// When newcomers may come in: all of them, and those who were evicted lately.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Gate {
    /// Until then this may be an old run whose members are still on their way: nobody new is let in.
    closed_until: Option<Instant>,
    evicted: BTreeMap<PeerId, Evicted>,
}

impl Gate {
    pub(super) fn close(&mut self, until: Instant) {
        self.closed_until = Some(until);
    }

    pub(super) fn open(&mut self) {
        self.closed_until = None;
    }

    pub(super) fn is_open(&self) -> bool {
        self.closed_until.is_none()
    }

    /// Until when a peer that was evicted is not admissible again (rule 45).
    pub(super) fn backoff(&self, config: &Config, peer: PeerId) -> Option<Instant> {
        let evicted = self.evicted.get(&peer)?;
        let (first, longest) = (2 * config.probe_interval, config.dead_after);
        Some(evicted.last + retry::nth(first, evicted.times, longest))
    }

    /// Counts an eviction, to know who comes back too eagerly.
    pub(super) fn note_eviction(&mut self, now: Instant, peer: PeerId) {
        let times = self.evicted.remove(&peer).map_or(0, |evicted| evicted.times);
        let oldest = |evicted: &(&PeerId, &Evicted)| evicted.1.last;
        if self.evicted.len() >= FAILED_MAX
            && let Some(oldest) = self.evicted.iter().min_by_key(oldest).map(|(peer, _)| *peer)
        {
            self.evicted.remove(&oldest);
        }
        self.evicted.insert(peer, Evicted { times: times.saturating_add(1), last: now });
    }

    /// These took part in a commit: what was before does not count any more.
    pub(super) fn forgive(&mut self, members: &[PeerId]) {
        if !self.evicted.is_empty() {
            self.evicted.retain(|peer, _| !members.contains(peer));
        }
    }

    pub(super) fn footprint(&self) -> usize {
        self.evicted.len()
    }

    /// What newcomers wait for, one sentence each.
    pub(super) fn newcomers_wait(
        &self,
        office: &Office,
        groups: &Groups,
        now: Instant,
        name: impl Fn(&PeerId) -> String,
    ) -> Vec<String> {
        let mut sentences = Vec::new();
        if let Some(until) = self.closed_until.filter(|_| !office.peers.newcomers().is_empty()) {
            let time = until.since(now).as_secs_f64();
            sentences.push(format!(
                "nobody is admitted yet: members of before the coordinator's start have {time:.1} s to come back"
            ));
        }
        let hall = hall(office, groups, self, KIND);
        let mut admissible = Vec::new();
        for group in office.peers.newcomers().groups().take(NAMED_MAX) {
            let most = admission::prospect(&hall, group).map(|prospect| prospect.most);
            let (modest, others): (Vec<_>, Vec<_>) = office
                .peers
                .newcomers()
                .of(group)
                .partition(|(_, wants)| most.is_some_and(|most| *wants <= most));
            admissible.extend(modest.iter().map(|(id, _)| *id));
            let there = groups.get(group).map_or(0, |state| state.roster.len());
            for (id, wants) in others.iter().take(NAMED_MAX) {
                let (who, with) = (name(id), there + modest.len() + others.len());
                sentences.push(format!(
                    "{who} waits for group {group} to have {wants} members: there would be {with} with all that wait"
                ));
            }
        }
        let silent = |state: &GroupState| -> Vec<PeerId> {
            let voted = |id: &PeerId| state.ballots.votes(KIND).is_some_and(|votes| votes.contains_key(id));
            state.roster.iter().filter(|id| !voted(id)).copied().collect()
        };
        let silent: Vec<_> = groups.values().flat_map(silent).collect();
        if !admissible.is_empty() && !silent.is_empty() {
            let (who, whom) = (some(admissible.iter(), &name), some(silent.iter(), &name));
            let (who, whom) = (who.join(", "), whom.join(", "));
            sentences.push(format!("{who} waits to be admitted until {whom} calls update_topology"));
        }
        sentences
    }
}

impl Epochs<'_> {
    /// Lets these into their groups, with one epoch for all of a group. What they asked for when they registered is their
    /// vote in the ballot that goes on.
    pub(super) fn admit(&mut self, now: Instant, by_group: BTreeMap<Group, Vec<PeerId>>) {
        self.groups.next_run_epoch();
        for (group, joined) in by_group {
            let mut wishes = Vec::new();
            for id in &joined {
                if let Some(wants) = self.office.peers.admit(*id) {
                    wishes.push((*id, admission::wish(wants)));
                }
                self.office.outbox.note(Note::Accepted(*id));
            }
            let mut roster = self.groups.get(group).map(|state| state.roster.clone()).unwrap_or_default();
            roster.extend(&joined);
            self.open_epoch(now, group, roster, joined, Vec::new());
            for (id, _) in &wishes {
                self.office.tell_annals(*id);
            }
            if let Some(state) = self.groups.get_mut(group) {
                wishes.into_iter().for_each(|(id, wish)| state.ballots.vote(KIND, id, wish));
            }
        }
    }
}
