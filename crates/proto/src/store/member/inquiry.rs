//! Asking others about a call that does not end.
//!
//! # The problem
//!
//! When a call's time is over its caller wants to know why, and the reason is elsewhere: at the key's owner, at its
//! replica, or on the way there. What broke may be the very link over which one would ask.
//!
//! # The intuition
//!
//! Shortly before the deadline everybody on the way is asked, over three paths that share no fate: the links of the mesh,
//! sealed datagrams, and the stream to whoever decides on views, who knows when it last heard the owner. At the same time
//! the owner's kernel is asked with a connect: that tells a process that is stopped from one that is gone. Datagrams get
//! lost, so there are [`TIMES`] of them. Whatever has come by the deadline is what the text is made of (`telling.rs`).
//!
//! # The invariant
//!
//! Asking never makes a call longer, and never costs more than [`STORE_INQUIRIES_MAX`] calls' questions at a time. What
//! is told only informs: nothing is decided by it.

use super::Member;
use super::calls::{Ticket, What};
use crate::limits::{STORE_ACCOUNT_LINKS_MAX, STORE_ASKED_KEY_BYTES_MAX, STORE_INQUIRIES_MAX};
use crate::store::Action;
use crate::store::hop::HopLink;
use crate::store::layout::{Layout, bucket};
use crate::store::record::Record;
use crate::store::registrar::Knocked;
use crate::time::{Duration, Instant};
use crate::wire::store::MemberId;
use crate::wire::store::account::{Account, Datagram, Inquiry, LinkAccount};
use crate::wire::store::mesh::Letter;
use crate::wire::store::views::ToRegistrar;
use std::collections::{BTreeMap, BTreeSet};

/// How long before the deadline others are asked first; a short call asks when half of its time is over.
const ASK_BEFORE: Duration = Duration::from_millis(900);
/// How often they are asked.
const TIMES: u32 = 3;
/// Of those who have not answered a question about all keys, so many are asked.
const ASKED_MAX: usize = 8;

/// When others are asked about one call.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Asking {
    at: Instant,
    every: Duration,
    left: u32,
}

impl Asking {
    pub(super) fn before(deadline: Instant, timeout: Duration) -> Self {
        let before = ASK_BEFORE.min(timeout / 2);
        Self { at: deadline - before, every: before / TIMES, left: TIMES }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        (self.left > 0).then_some(self.at)
    }

    pub(super) fn asked(&mut self) {
        self.left -= 1;
        self.at += self.every;
    }

    fn is_first(&self) -> bool {
        self.left + 1 == TIMES
    }
}

/// Calls about which others are asked at present, and what came of it.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Inquiries {
    open: BTreeMap<Ticket, BTreeMap<MemberId, Said>>,
    /// When a kernel was asked, and its answer.
    knocks: BTreeMap<MemberId, (Instant, Option<Knocked>)>,
    /// When whoever decides on views answered about a member, and when it had heard it last.
    heard: BTreeMap<MemberId, (Instant, Option<Duration>)>,
}

/// What a member has told about a call.
#[derive(Clone, Debug, Hash)]
pub(super) struct Said {
    pub(super) at: Instant,
    pub(super) account: Account,
    /// Which ways brought its answers.
    pub(super) by_link: bool,
    pub(super) by_datagram: bool,
}

/// When whoever decides on views heard a member.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    Ago(Duration),
    /// It has no stream to it.
    NoStream,
}

impl Inquiries {
    /// Whether this call may be asked about.
    fn open(&mut self, ticket: Ticket) -> bool {
        let has_room = self.open.len() < STORE_INQUIRIES_MAX || self.open.contains_key(&ticket);
        if has_room {
            self.open.entry(ticket).or_default();
        }
        has_room
    }

    pub(super) fn close(&mut self, ticket: Ticket) {
        self.open.remove(&ticket);
        if self.open.is_empty() {
            self.knocks.clear();
            self.heard.clear();
        }
    }

    /// What was told about a call. One that was not asked about has nothing.
    pub(super) fn said(&self, ticket: Ticket) -> impl Iterator<Item = (MemberId, &Said)> {
        self.open.get(&ticket).into_iter().flatten().map(|(member, said)| (*member, said))
    }

    pub(super) fn knocked(&self, member: MemberId) -> Option<Knocked> {
        self.knocks.get(&member).and_then(|(_, knocked)| *knocked)
    }

    /// What whoever decides on views said of a member.
    pub(super) fn heard(&self, now: Instant, member: MemberId) -> Option<Heard> {
        let (at, ago) = self.heard.get(&member)?;
        Some(ago.map_or(Heard::NoStream, |ago| Heard::Ago(ago + now.since(*at))))
    }
}

impl Member {
    /// Asks those on the way of a call what they know.
    pub(super) fn inquire(&mut self, now: Instant, ticket: Ticket) {
        if !self.calls.inquiries.open(ticket) {
            return;
        }
        let Some(call) = self.calls.under_way.get(&ticket) else { return };
        let is_first = call.asking.is_first();
        let inquiry = self.inquiry(ticket, call);
        let whom = self.concerned(&call.what);
        for (at, member) in whom.into_iter().enumerate() {
            let Some(address) = self.post.known(member).map(|member| member.address) else { continue };
            self.actions.push_back(Action::Datagram(address, Datagram::Inquire(inquiry.clone())));
            if is_first {
                self.send(now, member, Letter::Inquire(inquiry.clone()));
                if at < 2 {
                    self.ask_kernel(now, member, address);
                }
            }
            if at == 0 {
                self.actions.push_back(Action::Tell(ToRegistrar::Ask(member)));
            }
        }
    }

    pub(super) fn inquiry(&self, ticket: Ticket, call: &super::calls::Call) -> Inquiry {
        let key = match &call.what {
            What::One(key, _) => Some(key).filter(|key| key.name.len() <= STORE_ASKED_KEY_BYTES_MAX).cloned(),
            What::Keys(..) | What::Count(..) => None,
        };
        Inquiry { number: ticket.0, call: call.name, key, from: self.me.id }
    }

    /// Whom a call waits for: the key's owner, its replica, and those on the way; or who has not answered.
    fn concerned(&self, what: &What) -> Vec<MemberId> {
        let whom: Vec<_> = match what {
            What::One(key, _) => {
                let Some(holders) = self.active.as_ref().and_then(|layout| layout.holders(bucket(key)))
                else {
                    return Vec::new();
                };
                let way = self.post.way_or_cut(self.me.id, holders.owner);
                [Some(holders.owner), holders.replica].into_iter().flatten().chain(way).collect()
            }
            What::Keys(_, _, left) => left.keys().copied().take(ASKED_MAX).collect(),
            What::Count(_, left) => left.iter().copied().take(ASKED_MAX).collect(),
        };
        let mut once = BTreeSet::from([self.me.id]);
        whom.into_iter().filter(|member| once.insert(*member)).collect()
    }

    fn ask_kernel(&mut self, now: Instant, member: MemberId, address: std::net::SocketAddr) {
        let knocks = &mut self.calls.inquiries.knocks;
        if knocks.get(&member).is_none_or(|(at, _)| now.since(*at) >= ASK_BEFORE) {
            knocks.insert(member, (now, None));
            self.actions.push_back(Action::Knock(member, address, ASK_BEFORE));
        }
    }

    /// How a member's kernel answered a connect.
    pub fn handle_knock(&mut self, member: MemberId, knocked: Knocked) {
        if let Some((_, answer)) = self.calls.inquiries.knocks.get_mut(&member) {
            *answer = Some(knocked);
        }
    }

    /// Whoever decides on views tells when it heard a member last.
    pub(super) fn heard_of(&mut self, now: Instant, member: MemberId, heard_ms: Option<u64>) {
        let inquiries = &mut self.calls.inquiries;
        if !inquiries.open.is_empty() {
            inquiries.heard.insert(member, (now, heard_ms.map(Duration::from_millis)));
        }
    }

    /// Somebody on the way tells what it knows.
    pub(super) fn told(&mut self, now: Instant, account: Account, by_datagram: bool) {
        let Some(said) = self.calls.inquiries.open.get_mut(&Ticket(account.number)) else { return };
        let before = said.get(&account.from);
        let by_link = !by_datagram || before.is_some_and(|said| said.by_link);
        let by_datagram = by_datagram || before.is_some_and(|said| said.by_datagram);
        if said.len() < STORE_INQUIRIES_MAX || before.is_some() {
            said.insert(account.from, Said { at: now, account, by_link, by_datagram });
        }
    }

    /// What this member knows of a call.
    pub(super) fn account(&self, now: Instant, inquiry: &Inquiry) -> Account {
        let part = inquiry.key.as_ref().map(bucket);
        let holders = part.and_then(|part| self.active.as_ref()?.holders(part));
        let owner = holders.map(|holders| holders.owner);
        let key = inquiry.key.as_ref();
        let present = key.map(|key| self.shelf.record(key).is_some_and(Record::is_present));
        let since = key.and_then(|key| self.waiting_room.waits_since(key, inquiry.call));
        let next = owner.and_then(|owner| self.post.way(owner).first().copied());
        let mut links: Vec<_> =
            self.post.links().iter().map(|(to, link)| link_account(now, *to, link)).collect();
        let replica = holders.and_then(|holders| holders.replica);
        let matters = [owner, next, Some(inquiry.from), replica];
        links.sort_by_key(|link| {
            let place = matters.iter().position(|member| *member == Some(link.to));
            (place.unwrap_or(matters.len()), link.carries)
        });
        links.truncate(STORE_ACCOUNT_LINKS_MAX);
        Account {
            number: inquiry.number,
            from: self.me.id,
            epoch: self.active.as_ref().map(Layout::epoch),
            owns: owner == Some(self.me.id),
            present,
            waits_ms: since.map(|since| millis(now.since(since))),
            holds: self.waiting_room.holds(inquiry.call),
            lease_ms: self.lease.until.filter(|until| now < *until).map(|until| millis(until.since(now))),
            moving: self.next.as_ref().is_some_and(|next| part.is_none_or(|part| next.moves(part))),
            unacknowledged: self.replication.unacknowledged(key),
            next,
            registrar_away_ms: (!self.registrar.is_open).then(|| millis(now.since(self.registrar.since))),
            links,
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn link_account(now: Instant, to: MemberId, link: &HopLink) -> LinkAccount {
    LinkAccount {
        to,
        carries: link.is_up(),
        carried: link.was_up(),
        since_ms: millis(now.since(link.since())),
        pending: link.pending() as u64,
        silent_ms: link.silent_since().map(|since| millis(now.since(since))),
    }
}
