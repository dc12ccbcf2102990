//! A registrar that was restarted: what it must know before it decides anything.
//!
//! # The problem
//!
//! A registrar keeps nothing. The one before it may have begun a view that only some members have heard of, and those may
//! have answered calls in it. Should the next one go on from the view before, what they acknowledged is gone, and there
//! are two owners. A lease that it gives to a member of a view that has passed is as bad.
//!
//! # The intuition
//!
//! Members bring the view that they are in and the one that they froze for. A view begins only after everybody in the
//! one before it froze for it, or was given up. So whoever might be in a later view than any that was brought is a member
//! of a view that was: of the newest one, or of one that somebody froze for. All of those are waited for, until they have
//! come, are dead, or are given up like any other member. Then the newest view that was brought goes on. If all of its
//! members have come and nobody froze for another there is none to wait for, and it goes on at once.
//!
//! Until then there are no leases; and it takes at least as long as a lease of the registrar before us may last, unless
//! there can be no other view.
//!
//! # What this does not do
//!
//! Go on from a view whose members are all dead or given up, though they acknowledged something in it: every holder of
//! that is gone. Who comes back later with such a view joins anew.

use super::seat::{Fate, Seat};
use super::{Command, FromRegistrar, Layout, Registrar};
use crate::time::Instant;
use crate::wire::store::{MemberId, StoreMember, View};
use std::collections::{BTreeMap, BTreeSet};

/// What was brought so far.
#[derive(Clone, Debug, Hash)]
pub(super) struct Recovery {
    /// Not before then, unless it is certain that there is no other view.
    pub(super) until: Instant,
    /// Members of views that somebody froze for, and the newest of those views that each is in.
    prospects: BTreeMap<MemberId, (u64, StoreMember)>,
}

/// What a member brings when it opens a stream.
#[derive(Debug)]
pub(super) struct Brought {
    pub(super) view: Option<View>,
    pub(super) next: Option<View>,
    pub(super) term: u64,
    pub(super) epoch: u64,
}

impl Registrar {
    /// Members of one that was here before us may bring their views at least until then.
    pub fn listen(&mut self, until: Instant) {
        self.recovery = Some(Recovery { until, prospects: BTreeMap::new() });
    }

    /// Takes note of what a member brings. False if others went on without it.
    pub(super) fn hear_out(&mut self, now: Instant, id: MemberId, brought: Brought) -> bool {
        let Brought { view, next, term, epoch } = brought;
        let view = view.filter(|view| view.place(id).is_some());
        if self.active.is_none() && view.is_some() && self.recovery.is_none() {
            self.listen(now + self.config.control_grace.max(self.config.view_lease));
        }
        self.term = self.term.max(term + u64::from(self.recovery.is_some()));
        self.epoch = self.epoch.max(epoch);
        let Some(recovery) = &mut self.recovery else {
            // A later view than ours is that of a registrar before us, and whoever was in it was not heard in time.
            let Some(view) = view else { return true };
            let knows = |active: &Layout| active.view().place(id).is_some() && view.epoch <= active.epoch();
            let is_known = self.active.as_ref().is_some_and(knows);
            if !is_known && let Some(seat) = self.seats.get_mut(&id) {
                seat.is_forgotten = true;
            }
            return is_known;
        };
        for member in next.iter().flat_map(|next| &next.members) {
            let epoch = next.as_ref().map_or(0, |next| next.epoch);
            let known = recovery.prospects.entry(member.id).or_insert_with(|| (epoch, member.clone()));
            known.0 = known.0.max(epoch);
        }
        if let Some(view) = view
            && self.active.as_ref().is_none_or(|active| active.epoch() < view.epoch)
        {
            self.go_on(now, view);
        }
        self.expect_prospects(now);
        true
    }

    /// Goes on from a view that is in force.
    fn go_on(&mut self, now: Instant, view: View) {
        self.founder = view.founder;
        self.epoch = self.epoch.max(view.epoch);
        for member in &view.members {
            let seat = self.seats.entry(member.id).or_insert_with(|| Seat::absent(now, member.clone()));
            // Whoever was registrar before us may have given it a lease a moment ago.
            seat.lease_until = Some(now + self.config.view_lease);
        }
        self.active = Some(Layout::new(view));
    }

    /// Whoever may be in a later view than the newest that was brought has a seat, so that it is knocked at.
    fn expect_prospects(&mut self, now: Instant) {
        let Some(recovery) = &mut self.recovery else { return };
        let newest = self.active.as_ref().map_or(0, Layout::epoch);
        recovery.prospects.retain(|_, (epoch, _)| *epoch > newest);
        for (id, (_, member)) in &recovery.prospects {
            self.seats.entry(*id).or_insert_with(|| Seat::absent(now, member.clone()));
        }
    }

    /// Whether this member is waited for because it may know of a later view.
    pub(super) fn is_prospect(&self, id: MemberId) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.prospects.contains_key(&id))
    }

    /// Whether a registrar that was restarted has heard all that it must; if so just now, the view goes on.
    pub(super) fn knows_how_things_stand(&mut self, now: Instant) -> bool {
        let Some(recovery) = &self.recovery else { return true };
        let newest = self.active.as_ref().map_or(0, Layout::epoch);
        let seat = |id: &MemberId| self.seats.get(id);
        let members =
            || self.active.iter().flat_map(|layout| &layout.view().members).map(|member| &member.id);
        let is_certain = self.active.is_some()
            && recovery.prospects.is_empty()
            && members().all(|id| seat(id).is_some_and(|seat| seat.brought == Some((newest, false))));
        let is_settled = |id: &MemberId| {
            seat(id).is_none_or(|seat| match seat.fate(now, &self.config) {
                Fate::There => seat.brought.is_some(),
                Fate::Dead => true,
                Fate::GivenUp => seat.is_overdue(now, &self.config),
            })
        };
        let unheard = members().filter(|id| seat(id).is_none_or(|seat| seat.brought.is_none()));
        let unheard: BTreeSet<_> = unheard.copied().collect();
        let has_waited = now >= recovery.until
            && members().chain(recovery.prospects.keys()).all(is_settled)
            && self.is_majority(now, &unheard);
        if !is_certain && !has_waited {
            return false;
        }
        self.recovery = None;
        self.gathering = Some(now);
        self.turn_away_strangers();
        let lease = self.config.view_lease;
        // Nobody was given a lease meanwhile, so that it ran out says nothing about anybody.
        for seat in self.seats.values_mut().filter(|seat| seat.is_attached()) {
            seat.lease_until = seat.lease_until.map(|_| now + lease);
        }
        self.activate_all();
        true
    }

    /// Whoever came with a view in which others went on without it joins anew; who did not come at all is nobody.
    fn turn_away_strangers(&mut self) {
        let is_stranger = |(id, seat): &(&MemberId, &Seat)| {
            let comes_anew = seat.brought == Some((0, false)) || seat.brought == Some((0, true));
            !self.is_member(**id) && (!seat.is_attached() || !comes_anew)
        };
        let strangers: Vec<_> = self.seats.iter().filter(is_stranger).map(|(id, _)| *id).collect();
        for id in strangers {
            if let Some(stream) = self.seats.remove(&id).and_then(|seat| seat.stream()) {
                self.streams.remove(&stream);
                let text = "others went on without this member while it was away".to_owned();
                self.commands.push_back(Command::Send(stream, FromRegistrar::Out(text)));
                self.commands.push_back(Command::Close(stream));
            }
        }
    }
}
