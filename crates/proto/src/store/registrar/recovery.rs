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
//! # How far a member is believed
//!
//! Orders must carry a term that nobody has obeyed a higher one than, and views an epoch above all that were ordered, or
//! members refuse them; so members say which they know. That is a claim (rule 41), and one that nobody can have come by
//! would bring the next view to where no member can read it. With a view in force a claim far above what is in force is
//! turned away. Without one it counts if it is near what others claim, or if nobody else claims anything.
//!
//! # What this does not do
//!
//! Doubt a whole view: whoever has the secret and is the first to speak to a registrar that knows nothing is believed.
//!
//! Go on from a view whose members are all dead or given up, though they acknowledged something in it: every holder of
//! that is gone. Who comes back later with such a view joins anew.

use super::seat::{Fate, Seat};
use super::{Command, FromRegistrar, Layout, Registrar};
use crate::id::PeerId;
use crate::limits::{COUNT_MAX, STORE_MEMBERS_MAX};
use crate::time::Instant;
use crate::wire::store::{MemberId, StoreMember, View};
use std::collections::{BTreeMap, BTreeSet};

/// Further than this above what is known, no epoch and no term was ever given: a million views, or restarts.
const FAR: u64 = 1 << 20;
/// No claim counts further than this, so that a trillion may follow.
const CLAIM_MAX: u64 = COUNT_MAX - (1 << 40);

/// What was brought so far.
#[derive(Clone, Debug, Hash)]
pub(super) struct Recovery {
    /// Not before then, unless it is certain that there is no other view.
    pub(super) until: Instant,
    /// Members of views that somebody froze for, and the newest of those views that each is in.
    prospects: BTreeMap<MemberId, (u64, StoreMember)>,
    /// The term and the epoch that each process claims to have heard of.
    claims: BTreeMap<PeerId, (u64, u64)>,
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
        self.recovery = Some(Recovery { until, prospects: BTreeMap::new(), claims: BTreeMap::new() });
    }

    /// Takes note of what a member brings. If it cannot be let in like that, why.
    pub(super) fn hear_out(
        &mut self,
        now: Instant,
        peer: PeerId,
        id: MemberId,
        brought: Brought,
    ) -> Result<(), String> {
        let Brought { view, next, term, epoch } = brought;
        let view = view.filter(|view| view.place(id).is_some());
        if self.active.is_none() && view.is_some() && self.recovery.is_none() {
            self.listen(now + self.config.control_grace.max(self.config.view_lease));
        }
        let went_on = || Err("others went on without this member while it was away".to_owned());
        let Some(recovery) = &mut self.recovery else {
            if self.active.is_some() && (is_far(term, self.term) || is_far(epoch, self.epoch)) {
                let text = format!(
                    "this member claims to know term {term} and epoch {epoch}, far above term {} and epoch {}, which are in \
                     force: nobody else has heard of them",
                    self.term, self.epoch
                );
                self.commands.push_back(Command::Note(format!("{} is turned away: {text}", peer.short())));
                return Err(text);
            }
            self.term = self.term.max(term.min(CLAIM_MAX));
            self.epoch = self.epoch.max(epoch.min(CLAIM_MAX));
            // A later view than ours is that of a registrar before us, and whoever was in it was not heard in time.
            let Some(view) = view else { return Ok(()) };
            let knows = |active: &Layout| active.view().place(id).is_some() && view.epoch <= active.epoch();
            let is_known = self.active.as_ref().is_some_and(knows);
            if !is_known && let Some(seat) = self.seats.get_mut(&id) {
                seat.is_forgotten = true;
            }
            return if is_known { Ok(()) } else { went_on() };
        };
        if recovery.claims.len() < STORE_MEMBERS_MAX || recovery.claims.contains_key(&peer) {
            recovery.claims.insert(peer, (term, epoch));
        }
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
        Ok(())
    }

    /// Goes on above whatever members were told by a registrar before us, as far as that is believed.
    fn rise_above_claims(&mut self) {
        let Some(recovery) = &self.recovery else { return };
        let terms = recovery.claims.values().map(|(term, _)| *term).collect();
        let epochs = recovery.claims.values().map(|(_, epoch)| *epoch).collect();
        // A term is obeyed by whoever has obeyed a lower one: ours must be the higher one.
        self.term = self.term.max(counted(self.term, terms).map_or(0, |term| term + 1));
        self.epoch = self.epoch.max(counted(self.epoch, epochs).unwrap_or(0));
    }

    /// Goes on from a view that is in force.
    fn go_on(&mut self, now: Instant, view: View) {
        if view.founder != self.founder {
            // What was heard of an earlier store's end is not about this one.
            (self.ends_at, self.ended_with) = (None, None);
        }
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
        self.rise_above_claims();
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

fn is_far(claimed: u64, known: u64) -> bool {
    claimed > known.saturating_add(FAR)
}

/// The highest of what was claimed that is not far above what is known and what others claim.
fn counted(known: u64, mut claims: Vec<u64>) -> Option<u64> {
    claims.sort_unstable();
    let is_alone = claims.len() == 1;
    let mut highest = None;
    for (at, claim) in claims.iter().enumerate() {
        let is_confirmed = claims.get(at + 1).is_some_and(|other| !is_far(*other, *claim));
        if is_alone || is_confirmed || !is_far(*claim, known.max(highest.unwrap_or(0))) {
            highest = Some((*claim).min(CLAIM_MAX));
        }
    }
    highest
}
