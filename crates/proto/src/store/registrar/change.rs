//! Which view comes next: who is in it, who is done without.

use super::seat::{Fate, Seat};
use super::{Command, FromRegistrar, Layout, Next, Phase, Registrar};
use crate::limits::STORE_BUCKETS;
use crate::time::Instant;
use crate::wire::store::{MemberId, View};
use std::collections::BTreeSet;
use std::fmt::Write as _;

impl Registrar {
    /// Who is to be done without. Whoever was given up and alone holds something, or alone is left to hold it, is waited for
    /// once more as long.
    pub(super) fn out(&self, now: Instant) -> BTreeSet<MemberId> {
        let fate = |id: &MemberId| self.seats.get(id).map_or(Fate::Dead, |seat| seat.fate(now, &self.config));
        let next = self.next.iter().flat_map(|next| &next.layout.view().members);
        let members = self.active.iter().flat_map(|layout| &layout.view().members).chain(next);
        let members: BTreeSet<_> = members.map(|member| member.id).collect();
        let mut out: BTreeSet<_> = members.iter().copied().filter(|id| fate(id) == Fate::Dead).collect();
        for id in members.into_iter().filter(|id| fate(id) == Fate::GivenUp) {
            let overdue = self.seats.get(&id).is_none_or(|seat| seat.is_overdue(now, &self.config));
            let loses = self.active.as_ref().is_some_and(|active| {
                active.lost(|member| member == id || out.contains(&member))
                    > active.lost(|m| out.contains(&m))
            });
            out.insert(id);
            if !overdue && (loses || !self.somebody_stays(now, &out)) {
                out.remove(&id);
            }
        }
        out
    }

    /// Whether anybody would be in a view without those: somebody who neither leaves nor is only about to come.
    fn somebody_stays(&self, now: Instant, gone: &BTreeSet<MemberId>) -> bool {
        let is_in =
            |id: &MemberId| self.active.as_ref().is_some_and(|active| active.view().place(*id).is_some());
        let is_there = |seat: &Seat| seat.may_come(now, &self.config);
        let stays = |(id, seat): (&MemberId, &Seat)| {
            !gone.contains(id) && !seat.leaves && (is_in(id) || is_there(seat))
        };
        self.seats.iter().any(stays)
    }

    /// Prepares another view, if the members are not those of the one in force.
    pub(super) fn begin_change(&mut self, now: Instant) -> bool {
        let members = |layout: &Layout| -> BTreeSet<MemberId> {
            layout.view().members.iter().map(|member| member.id).collect()
        };
        let current = self.active.as_ref().map(members).unwrap_or_default();
        let mut gone: BTreeSet<_> = self.out(now).intersection(&current).copied().collect();
        let leaves = |id: &MemberId| self.seats.get(id).is_some_and(|seat| seat.leaves);
        // Who is silent is no newcomer until it speaks: a view with it would be given up in the same moment, for ever.
        let newcomers: BTreeSet<_> = self
            .seats
            .iter()
            .filter(|(id, seat)| !current.contains(id) && seat.may_come(now, &self.config) && !seat.leaves)
            .map(|(id, _)| *id)
            .collect();
        let gathered = self.gathering.is_none_or(|since| now >= since + self.config.gathering);
        if self.active.is_none() {
            if newcomers.is_empty() || newcomers.len() < self.founders || !gathered {
                return false;
            }
        } else if gone.is_empty() && !current.iter().any(leaves) && (newcomers.is_empty() || !gathered) {
            return false;
        }
        if !self.is_majority(now, &gone) {
            return false;
        }
        gone = self.and_the_absent(now, gone);
        let stays = current.iter().filter(|id| !gone.contains(id) && !leaves(id));
        let ids: BTreeSet<_> = stays.chain(&newcomers).copied().collect();
        self.gathering = None;
        if ids.is_empty() {
            self.end_view_of_nobody();
            return false;
        }
        self.epoch += 1;
        let members =
            ids.iter().filter_map(|id| self.seats.get(id)).map(|seat| seat.member.clone()).collect();
        let view = View { epoch: self.epoch, founder: self.founder, members };
        let lost = self.active.as_ref().map_or(0, |active| active.lost(|id| gone.contains(&id)));
        let words = |ids: &BTreeSet<MemberId>| {
            let name =
                |id: &MemberId| self.seats.get(id).map_or_else(|| id.to_string(), |seat| seat.member.words());
            ids.iter().take(8).map(name).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("store view {} of {} members", view.epoch, view.members.len());
        if !newcomers.is_empty() {
            let _ = write!(text, "; new: {}", words(&newcomers));
        }
        if !gone.is_empty() {
            let _ = write!(text, "; gone: {}", words(&gone));
        }
        if lost > 0 {
            let _ =
                write!(text, "; LOST: both holders of {lost} of {STORE_BUCKETS} parts of the keys are gone");
        }
        self.commands.push_back(Command::Note(text));
        let next = Next { layout: Layout::new(view), gone, phase: Phase::Preparing, since: now };
        let concerned: BTreeSet<_> = self.ids(&next).filter(|id| !next.gone.contains(id)).collect();
        self.next = Some(next);
        for id in concerned {
            self.order(id, self.preparation());
        }
        true
    }

    /// With another view on its way, whoever does not answer is left out of it, unless it alone holds something or would be
    /// alone in it: those who are gone, and those.
    pub(super) fn and_the_absent(&self, now: Instant, mut gone: BTreeSet<MemberId>) -> BTreeSet<MemberId> {
        let Some(active) = &self.active else { return gone };
        for id in active.view().members.iter().map(|member| member.id) {
            let is_absent = self.seats.get(&id).is_none_or(|seat| seat.is_absent(now, &self.config));
            if is_absent && !gone.contains(&id) {
                let more: BTreeSet<_> = gone.iter().copied().chain([id]).collect();
                let loses_none = active.lost(|m| more.contains(&m)) == active.lost(|m| gone.contains(&m));
                if loses_none && self.is_majority(now, &more) && self.somebody_stays(now, &more) {
                    gone = more;
                }
            }
        }
        gone
    }

    /// Whether the members of the view in force may go on without those who are gone (rule 29). With a coordinator they
    /// may; otherwise they must be more than half, because the other half may be somewhere and think the same. Of two,
    /// one goes on alone only if the other is dead for certain.
    pub(super) fn is_majority(&self, now: Instant, gone: &BTreeSet<MemberId>) -> bool {
        let Some(active) = self.active.as_ref().filter(|_| self.founders > 1) else { return true };
        let members = &active.view().members;
        let is_dead = |id: &MemberId| self.seats.get(id).is_some_and(|seat| seat.is_dead(now, &self.config));
        match members.len() {
            2 => gone.is_empty() || (gone.len() == 1 && gone.iter().all(is_dead)),
            all => (all - gone.len()) * 2 > all,
        }
    }

    pub(super) fn begin_view(&mut self, now: Instant) {
        let Some(next) = self.next.take() else { return };
        let before: Vec<_> =
            self.active.iter().flat_map(|layout| &layout.view().members).map(|m| m.id).collect();
        let came = next.layout.view().members.iter().filter(|member| !before.contains(&member.id));
        came.for_each(|member| self.unreached.got_in(member));
        self.active = Some(next.layout);
        let out: Vec<_> = before.into_iter().filter(|id| !self.is_member(*id)).collect();
        for id in out {
            self.order(id, Some(FromRegistrar::Out("a view began without this member".to_owned())));
            if let Some(stream) = self.seats.remove(&id).and_then(|seat| seat.stream()) {
                self.streams.remove(&stream);
                self.commands.push_back(Command::Close(stream));
            }
        }
        self.activate_all();
        let waiting = |(id, seat): (&MemberId, &Seat)| seat.is_attached() && !self.is_member(*id);
        self.gathering = self.seats.iter().any(waiting).then_some(now);
    }

    /// The last member is gone: whoever comes next begins a new store.
    fn end_view_of_nobody(&mut self) {
        (self.active, self.next) = (None, None);
        for (_, seat) in std::mem::take(&mut self.seats) {
            if let Some(stream) = seat.stream() {
                self.streams.remove(&stream);
                let text = "this member was the last one".to_owned();
                self.commands.push_back(Command::Send(stream, FromRegistrar::Out(text)));
                self.commands.push_back(Command::Close(stream));
            }
        }
    }
}
