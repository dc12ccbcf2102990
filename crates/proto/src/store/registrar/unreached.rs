//! Newcomers that reach whoever decides on views, and no member.
//!
//! # The problem
//!
//! A view begins when everybody in it has what it will hold. A newcomer behind a firewall, or one that names an address at
//! which nobody finds it, is heard by its registrar all the while and never has it. What moves is frozen for as long as
//! it is waited for, and in a small store that is everything.
//!
//! # The intuition
//!
//! A newcomer that fetches says how much has come. If nothing more comes for `dead_after`, though everybody who could give
//! it something is heard, its view is given up: what was frozen is served again, and the newcomer is told why and put
//! out. It registers anew by itself. So that it does not freeze the store again at once, whoever comes from its host is let in only after a
//! pause, which doubles as long as nobody from there gets in.
//!
//! # What this does not do
//!
//! Find out who is to blame: a member that nobody reaches looks the same from here as a newcomer that reaches nobody.
//! Members keep their places.

use super::{Command, FromRegistrar, Phase, Registrar};
use crate::limits::STORE_MEMBERS_MAX;
use crate::time::{Duration, Instant};
use crate::wire::store::{MemberId, StoreMember};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The longest pause is so many times `dead_after`.
const PAUSE_MAX: u32 = 8;

/// Hosts whose newcomers reached no member.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Unreached {
    hosts: BTreeMap<IpAddr, Host>,
}

#[derive(Clone, Debug, Hash)]
struct Host {
    /// The last pause, and when it ends.
    pause: Duration,
    until: Instant,
}

impl Unreached {
    /// Until when newcomers from where that one listens must wait.
    pub(super) fn until(&self, now: Instant, member: &StoreMember) -> Option<Instant> {
        let until = self.hosts.get(&member.address.ip())?.until;
        (now < until).then_some(until)
    }

    /// That one was put out. How long others from its host wait.
    fn put_out(&mut self, now: Instant, member: &StoreMember, dead_after: Duration) -> Duration {
        // Who comes back long after its pause is over begins anew.
        self.hosts.retain(|_, host| now < host.until + dead_after * PAUSE_MAX);
        let before = self.hosts.get(&member.address.ip()).map(|host| host.pause);
        let pause = before.map_or(dead_after, |pause| (pause * 2).min(dead_after * PAUSE_MAX));
        if before.is_some() || self.hosts.len() < STORE_MEMBERS_MAX {
            self.hosts.insert(member.address.ip(), Host { pause, until: now + pause });
        }
        pause
    }

    /// That one is in a view.
    pub(super) fn got_in(&mut self, member: &StoreMember) {
        self.hosts.remove(&member.address.ip());
    }
}

impl Registrar {
    /// Puts out newcomers for which nothing has come for long, if there are any: then the view that was being prepared is
    /// given up.
    pub(super) fn put_out_the_unreached(&mut self, now: Instant) -> bool {
        self.wait_for_the_silent(now);
        let dues = self.patience_ends();
        let unreached: BTreeSet<_> = dues.filter(|(_, end)| now >= *end).map(|(id, _)| id).collect();
        let Some(next) = self.next.as_ref().filter(|_| !unreached.is_empty()) else { return false };
        let (epoch, waited) = (next.layout.epoch(), self.config.dead_after);
        for id in unreached {
            let Some(seat) = self.seats.remove(&id) else { continue };
            let pause = self.unreached.put_out(now, &seat.member, waited);
            self.commands.push_back(Command::Note(format!(
                "store view {epoch} is given up: {} is heard here, but for {waited:?} nothing of what it is to hold came to \
                 it from any member: a firewall, or an address that is of no use to others; it is left out, and tried \
                 again when it registers anew, in {pause:?} at the earliest",
                seat.member.words()
            )));
            if let Some(stream) = seat.stream() {
                self.turn_away(
                    stream,
                    format!(
                        "this member reaches whoever decides on views, but for {waited:?} nothing came to it from any \
                         member of the store: a firewall between them, or an address ({}) that is of no use to others; \
                         the store goes on without it",
                        seat.member.address
                    ),
                );
            }
        }
        true
    }

    /// When each newcomer that has not said what is waited for was waited for long enough.
    pub(super) fn patience_ends(&self) -> impl Iterator<Item = (MemberId, Instant)> {
        let next = self.next.as_ref().filter(|next| next.phase != Phase::Deciding);
        let (next, active) = (next.zip(self.active.as_ref())).unzip();
        let members = next.into_iter().flat_map(|next| &next.layout.view().members).map(|member| member.id);
        let newcomers =
            members.filter(move |id| active.is_some_and(|active| active.view().place(*id).is_none()));
        newcomers.filter_map(move |id| {
            let (next, seat) = (next?, self.seats.get(&id)?);
            let said = if next.phase == Phase::Preparing { seat.prepared } else { seat.ready };
            let since = next.since.max(seat.progressed);
            (said < next.layout.epoch()).then(|| (id, since + self.config.dead_after))
        })
    }

    /// While a member of the view that ends is silent, that nothing comes from it says nothing about a newcomer.
    fn wait_for_the_silent(&mut self, now: Instant) {
        let (Some(next), Some(active)) = (&mut self.next, &self.active) else { return };
        let is_silent = |member: &StoreMember| {
            let seat = self.seats.get(&member.id);
            !next.gone.contains(&member.id) && seat.is_none_or(|seat| seat.is_silent(now, &self.config))
        };
        if active.view().members.iter().any(is_silent) {
            next.since = now;
        }
    }

    /// A newcomer registers from a host whose last one reached no member: it is told for how long it waits.
    pub(super) fn hold_back(&mut self, now: Instant, id: MemberId) {
        let is_in = self.is_member(id);
        let Some(seat) = self.seats.get_mut(&id).filter(|_| self.active.is_some() && !is_in) else { return };
        seat.not_before = self.unreached.until(now, &seat.member);
        if let Some(until) = seat.not_before {
            let (host, left) = (seat.member.address.ip(), until.since(now));
            let text = format!(
                "nothing came from the members of the store to the last one that joined from {host}, though it was heard by \
                 whoever decides on views: a firewall between them, or an address that is of no use to others? It is tried \
                 again in {left:?}"
            );
            self.order(id, Some(FromRegistrar::Waits(text)));
        }
    }
}
