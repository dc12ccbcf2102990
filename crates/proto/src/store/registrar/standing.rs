//! What a registrar does on the side: it asks kernels, says who is waited for, lets old copies be forgotten, ends a store
//! whose member was to end it, and tells people how it all stands.

use super::seat::Fate;
use super::{Command, FromRegistrar, Layout, Phase, Registrar};
use crate::limits::STATUS_PEERS_MAX;
use crate::time::Instant;
use crate::wire::store::{MemberId, StoreMember};
use serde::Serialize;
use std::collections::BTreeSet;

/// Stores of one run that ended and are remembered.
const ENDED_MAX: usize = 16;

/// How the store stands, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreStatus {
    /// The view's epoch; zero before the first.
    pub epoch: u64,
    /// Keys that all members own together.
    pub keys: u64,
    /// Bytes that all members hold together; each key is with two of them.
    pub bytes: u64,
    /// Calls that wait for a key.
    pub waits: u64,
    /// What is being done or waited for, in words; empty if nothing is.
    pub change: String,
    /// The members of the view.
    pub members: Vec<SeatStatus>,
}

/// How one member stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeatStatus {
    /// Its rank.
    pub rank: u32,
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// `member`, `away` (no stream), `leaving`, or `silent` (no lease).
    pub state: &'static str,
    /// Keys that it owns.
    pub keys: u64,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Calls that wait with it.
    pub waits: u64,
}

impl Registrar {
    pub(super) fn knock(&mut self, now: Instant) {
        let members = self.active.iter().flat_map(|l| &l.view().members).map(|m| m.id);
        let prospects = self.seats.keys().copied().filter(|id| self.is_prospect(*id));
        let members: BTreeSet<_> = members.chain(prospects).collect();
        let (config, commands) = (&self.config, &mut self.commands);
        for (id, seat) in
            self.seats.iter_mut().filter(|(id, seat)| members.contains(id) || seat.is_attached())
        {
            if seat.knocks(now, config) {
                commands.push_back(Command::Knock(*id, seat.member.address, config.probe_interval));
            }
        }
    }

    /// After a long pause of our own nobody was heard, and that says nothing about them.
    pub(super) fn doubt_ourselves(&mut self, now: Instant) {
        if now.since(self.looked) > self.config.view_lease {
            self.seats.values_mut().filter(|seat| seat.is_attached()).for_each(|seat| seat.hear(now));
        }
        self.looked = now;
    }

    /// Who is missing before there can be a view.
    pub(super) fn waits_for(&self) -> Option<String> {
        if self.recovery.is_some() {
            return Some(
                "whoever decides on views has just started and waits for members to come back".to_owned(),
            );
        }
        if let Some(active) = &self.active {
            return self.lacks_majority.then(|| {
                let members = &active.view().members;
                let away = members.iter().filter(|m| self.seats.get(&m.id).is_none_or(|s| !s.is_attached()));
                let away: Vec<_> = away.take(8).map(StoreMember::words).collect();
                format!(
                    "the majority of the {} members of view {} is lost (away: {}): calls wait until they are back",
                    members.len(),
                    active.epoch(),
                    away.join(", ")
                )
            });
        }
        if self.founders <= 1 {
            return None;
        }
        let here: BTreeSet<_> =
            self.seats.values().filter(|seat| seat.is_attached()).map(|seat| seat.member.rank).collect();
        let missing: Vec<_> = (0..self.founders as u32).filter(|rank| !here.contains(rank)).collect();
        let named: Vec<_> = missing.iter().take(16).map(u32::to_string).collect();
        let more =
            if missing.len() > 16 { format!(" and {} more", missing.len() - 16) } else { String::new() };
        (!missing.is_empty()).then(|| {
            format!(
                "{} of {} members never connected: rank {}{more}",
                missing.len(),
                self.founders,
                named.join(", rank ")
            )
        })
    }

    /// Says so when too few are left to go on, and when they are enough again.
    pub(super) fn tell_if_too_few(&mut self, now: Instant) {
        let gone = self.out(now);
        let lacks = self.next.is_none() && !self.is_majority(now, &gone);
        if lacks == std::mem::replace(&mut self.lacks_majority, lacks) {
            return;
        }
        if lacks {
            self.tell_who_is_missing();
            let text = self.waits_for().unwrap_or_default();
            self.commands.push_back(Command::Note(text));
        } else if self.next.is_none() {
            self.activate_all();
        }
    }

    /// Tells everybody who waits for the first view who is missing.
    pub(super) fn tell_who_is_missing(&mut self) {
        let Some(text) = self.waits_for() else { return };
        let streams: Vec<_> = self.streams.keys().copied().collect();
        for stream in streams {
            self.commands.push_back(Command::Send(stream, FromRegistrar::Waits(text.clone())));
        }
    }

    /// Everybody is in the view: what was held before may be forgotten.
    pub(super) fn settle(&mut self) {
        let Some(active) = &self.active else { return };
        let (epoch, view) = (active.epoch(), std::sync::Arc::clone(active.view()));
        let is_in = |id: &MemberId| self.seats.get(id).is_some_and(|seat| seat.activated >= epoch);
        if self.settled < epoch && view.members.iter().all(|member| is_in(&member.id)) {
            self.settled = epoch;
            view.members.iter().for_each(|member| self.order(member.id, Some(FromRegistrar::Settled(epoch))));
        }
    }

    /// Whether everybody is in the view in force, no other is prepared, and old copies were forgotten.
    pub fn is_settled(&self) -> bool {
        self.next.is_none() && self.active.as_ref().is_some_and(|active| self.settled >= active.epoch())
    }

    /// A member that was to end the store is gone without a goodbye.
    pub(super) fn end_with_the_lost(&mut self, now: Instant) {
        let view = self.active.iter().flat_map(|layout| &layout.view().members);
        let fate = |member: &&StoreMember| {
            let seat = self.seats.get(&member.id);
            member.ends_store && seat.is_some_and(|s| !s.leaves && s.fate(now, &self.config) != Fate::There)
        };
        let Some(lost) = view.into_iter().find(fate).cloned() else { return };
        self.commands.push_back(Command::Note(format!("the store ends with {}", lost.words())));
        let streams: Vec<_> = self.streams.keys().copied().collect();
        for stream in streams {
            self.commands.push_back(Command::Send(stream, FromRegistrar::Ended(Some(lost.clone()))));
        }
        self.ended_with = Some(lost);
        self.end_by(now);
    }

    /// The store ends. Members tell each other; how long that may take is what a shutdown waits for all to join in.
    pub(super) fn end_by(&mut self, now: Instant) {
        self.ends_at.get_or_insert(now + self.config.shutdown_wait);
    }

    /// Members that are stopped may keep the word from those behind them, so whoever is still here is told once more. Then
    /// there are no streams of that store any more, not even those of members that never read it. Who came meanwhile, and
    /// was in no view, joins anew and begins another store.
    pub(super) fn tell_of_the_end(&mut self, now: Instant) {
        if self.ends_at.is_none_or(|at| now < at) {
            return;
        }
        for (stream, id) in std::mem::take(&mut self.streams) {
            let is_in = self.active.as_ref().is_some_and(|active| active.view().place(id).is_some());
            let word = if is_in {
                FromRegistrar::Ended(self.ended_with.clone())
            } else {
                FromRegistrar::Out("the store has ended that this member was to be let in to".to_owned())
            };
            self.commands.extend([Command::Send(stream, word), Command::Close(stream)]);
        }
    }

    /// Once everybody of a store that ended is gone, another may begin here. Who was stopped all the while, and comes back
    /// to a store that is no more, is told so.
    pub(super) fn forget_the_ended(&mut self) {
        if self.ends_at.is_some() && self.streams.is_empty() {
            self.ends_at = None;
            self.seats.clear();
            (self.active, self.next, self.gathering) = (None, None, None);
            if self.ended.len() >= ENDED_MAX {
                self.ended.pop_front();
            }
            let ended = (self.founder, self.ended_with.take());
            self.ended.push_back(ended);
            // The next store is another one, and counts its ranks anew.
            (self.founder, self.ranks) = (self.founder.wrapping_add(1), 0);
        }
    }

    /// What a member of that founder's store is told if it has ended: by a shutdown, or with somebody.
    pub(super) fn how_it_ended(&self, founder: u64) -> Option<FromRegistrar> {
        if self.ends_at.is_some() && founder == self.founder {
            return Some(FromRegistrar::Ended(self.ended_with.clone()));
        }
        let ended = self.ended.iter().find(|(ended, _)| *ended == founder);
        ended.map(|(_, lost)| FromRegistrar::Ended(lost.clone()))
    }

    /// How long ago a member was heard, for somebody whose call does not end.
    pub(super) fn heard_ms(&self, now: Instant, member: MemberId) -> Option<u64> {
        let ago = self.seats.get(&member)?.heard_ago(now)?;
        Some(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))
    }

    /// What somebody who only looks is told.
    pub(super) fn shown(&self) -> FromRegistrar {
        let view = self.view().cloned();
        let members = view.iter().flat_map(|view| &view.members);
        let held = |member: &StoreMember| self.seats.get(&member.id).map_or((0, 0, 0), |seat| seat.holds);
        FromRegistrar::Shown { holdings: members.map(held).collect(), view, waits_for: self.waits_for() }
    }

    /// How the store stands; nothing if nobody is in it.
    pub fn status(&self, now: Instant) -> Option<StoreStatus> {
        if self.is_empty() {
            return None;
        }
        let members = self.active.iter().flat_map(|layout| &layout.view().members);
        let member = |member: &StoreMember| {
            let seat = self.seats.get(&member.id);
            let (keys, bytes, waits) = seat.map_or((0, 0, 0), |seat| seat.holds);
            let state = match seat {
                Some(seat) if seat.leaves => "leaving",
                Some(seat) if !seat.is_attached() => "away",
                Some(seat) if seat.is_absent(now, &self.config) => "silent",
                Some(_) => "member",
                None => "away",
            };
            let (name, address) = (member.name.clone(), member.address.to_string());
            SeatStatus { rank: member.rank, name, address, state, keys, bytes, waits }
        };
        let members: Vec<_> = members.take(STATUS_PEERS_MAX).map(member).collect();
        let sum = |what: fn(&SeatStatus) -> u64| members.iter().map(what).sum();
        let change = match &self.next {
            _ if self.ends_at.is_some() => "the store ends".to_owned(),
            Some(next) => {
                let what = match next.phase {
                    Phase::Preparing => "everybody freezes what moves",
                    Phase::Fetching => "members fetch what they will hold",
                    Phase::Deciding => "being decided",
                };
                format!("view {} is being prepared: {what}", next.layout.epoch())
            }
            None => self.waits_for().unwrap_or_default(),
        };
        let epoch = self.active.as_ref().map_or(0, Layout::epoch);
        let (keys, bytes, waits) = (sum(|m| m.keys), sum(|m| m.bytes), sum(|m| m.waits));
        Some(StoreStatus { epoch, keys, bytes, waits, change, members })
    }
}
